"""One progress bar for a compile, in program calls, and log lines that leave it whole."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from tqdm import tqdm

shows_progress: ContextVar[bool] = ContextVar("shows_progress", default=True)
"""Whether what runs now says how far it is; the terminal's log handler asks."""

DSPY_HANDLER = "dspy_handler"
"""The name of the log handlers that DSPy makes; they write to a stream that stands for `sys.stderr`."""


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
        self._stack = ExitStack()
        self._display = display
        self._at_end = at_end
        self._bar = tqdm(total=total, desc=title, unit="call", dynamic_ncols=True, disable=not display)

    def __enter__(self) -> ProgressBar:
        self._stack.callback(shows_progress.reset, shows_progress.set(self._display))
        if self._at_end is not None:
            self._stack.callback(self._at_end)
        if not self._bar.disable:
            self._stack.enter_context(_messages_above(self._bar))
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


class _AboveBar:
    """A stream that clears a bar, writes, and draws the bar again.

    tqdm's own way of writing clears the bars that it knows of, and DSPy's executor makes it forget them.
    """

    def __init__(self, stream: Any, bar: tqdm) -> None:
        self._stream = stream
        self._bar = bar

    def write(self, text: str) -> None:
        with self._bar.get_lock():
            self._bar.clear(nolock=True)
            self._stream.write(text)
            self._bar.refresh(nolock=True)

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def _messages_above(bar: tqdm) -> Iterator[None]:
    """Keep log lines and warnings that go to the terminal off a bar."""
    with ExitStack() as stack:
        for handler in _terminal_handlers():
            stream = handler.stream
            handler.setStream(_AboveBar(stream, bar))
            stack.callback(handler.setStream, stream)
        if (last := logging.lastResort) is not None:
            logging.lastResort = logging.StreamHandler(_AboveBar(sys.stderr, bar))
            logging.lastResort.setLevel(last.level)
            stack.callback(setattr, logging, "lastResort", last)
        if warnings.showwarning.__module__ == "warnings":  # not the user's own, nor logging.captureWarnings'
            stack.callback(setattr, warnings, "showwarning", warnings.showwarning)
            warnings.showwarning = _shown_above(bar)
        yield


def _shown_above(bar: tqdm) -> Callable[..., None]:
    """What shows Python's warnings as it is now, above a bar."""
    show = warnings.showwarning
    stream: Any = _AboveBar(sys.stderr, bar)

    def show_above(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        show(message, category, filename, lineno, file or stream, line)

    return show_above


def _terminal_handlers() -> list[logging.StreamHandler[Any]]:
    """The log handlers that write to the terminal, whoever set them up."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [h for logger in loggers if isinstance(logger, logging.Logger) for h in logger.handlers]
    return [
        handler
        for handler in dict.fromkeys(handlers)
        if isinstance(handler, logging.StreamHandler)
        and "stream" in vars(handler)  # else it cannot be exchanged
        and (handler.name == DSPY_HANDLER or handler.stream in (sys.stdout, sys.stderr))
        and not isinstance(handler.stream, _AboveBar)
    ]
