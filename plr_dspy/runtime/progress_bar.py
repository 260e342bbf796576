"""One progress bar for a compile, in program calls, and lines that leave it whole."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from tqdm import tqdm

shows_progress: ContextVar[bool] = ContextVar("shows_progress", default=True)
"""Whether what runs now says how far it is; the terminal's log handler asks."""

DSPY_HANDLER = "dspy_handler"
"""The name of the log handlers that DSPy makes; they write to whatever is `sys.stderr`."""


class _AboveBar:
    """A stream whose lines stand above a bar.

    tqdm's own way of writing clears the bars that it knows of, and DSPy's executor makes it forget them.
    """

    def __init__(self, stream: Any, bar: tqdm) -> None:
        # One of a bar that has ended was left behind: its thread began before another's, and ended before it.
        while isinstance(stream, _AboveBar) and stream._bar.disable:
            stream = stream._stream
        self._stream: Any = stream
        self._bar: tqdm = bar
        self._in_line = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._bar.get_lock():
            if not self._in_line:
                self._bar.clear(nolock=True)
            self._stream.write(text)
            self._in_line = not text.endswith("\n")
            if not self._in_line:
                self._bar.refresh(nolock=True)
        return len(text)


class ProgressBar:
    """A tqdm bar that counts program calls and shows how the last round went.

    Args:
        total: Program calls at most.
        display: False draws nothing.
        title: Stands before the bar.
        at_end: Called when the bar has ended, with what it displayed still standing.
    """

    def __init__(
        self, total: int, *, display: bool, title: str = "PLReorder", at_end: Callable[[], None] | None = None
    ) -> None:
        self._stack = contextlib.ExitStack()
        self._display = display
        self._at_end = at_end
        self._bar = tqdm(total=total, desc=title, unit="call", dynamic_ncols=True, disable=not display)

    def __enter__(self) -> ProgressBar:
        self._stack.callback(shows_progress.reset, shows_progress.set(self._display))
        if self._at_end is not None:
            self._stack.callback(self._at_end)
        if not self._bar.disable:
            self._stack.enter_context(_lines_above(self._bar))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._bar.total = self._bar.n  # cells known already cost nothing
            self._bar.refresh()
        self._bar.close()
        self._stack.close()

    def advance(self, count: int = 1) -> None:
        """Count program calls."""
        self._bar.update(count)

    def show(self, text: str) -> None:
        """Show a text behind the bar."""
        self._bar.set_postfix_str(text)


@contextlib.contextmanager
def _lines_above(bar: tqdm) -> Iterator[None]:
    """Write log lines, warnings and what else goes to the terminal's standard error above a bar."""
    above = {id(stream): _AboveBar(stream, bar) for stream in (sys.stdout, sys.stderr)}
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    with contextlib.ExitStack() as stack:
        for handler in {handler for logger in loggers for handler in getattr(logger, "handlers", [])}:
            # Not those whose stream is whatever `sys.stderr` is.
            if (stream := vars(handler).get("stream")) is not None and id(stream) in above:
                handler.setStream(above[id(stream)])
                stack.callback(handler.setStream, stream)
        stack.enter_context(contextlib.redirect_stderr(above[id(sys.stderr)]))  # type: ignore[type-var]
        yield
