"""One progress bar for a compile, in program calls, and lines that leave it whole."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

shows_progress: ContextVar[bool] = ContextVar("shows_progress", default=True)
"""Whether what runs now says how far it is; the terminal's log handler asks."""


@contextmanager
def progress_bar(
    total: int, *, display: bool, title: str = "PLReorder", at_end: Callable[[], None] = lambda: None
) -> Iterator[tqdm]:
    """Show a bar of program calls, of which there are so many at most; `at_end` is called when it has ended."""
    shown = shows_progress.set(display)
    try:
        with tqdm(total=total, desc=title, unit="call", dynamic_ncols=True, disable=not display) as bar:
            with ExitStack() as stack:
                if not bar.disable:
                    _write_above(stack)
                yield bar
            bar.total = bar.n  # Cells known already cost nothing.
            bar.refresh()
    finally:
        at_end()
        shows_progress.reset(shown)


def _write_above(stack: ExitStack) -> None:
    """Write log lines, warnings and what else goes to the standard error above the bars, until the stack ends."""
    from tqdm.contrib import DummyTqdmFile

    above = {id(stream): DummyTqdmFile(_bare(stream)) for stream in (sys.stdout, sys.stderr)}
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for handler in {handler for logger in loggers for handler in getattr(logger, "handlers", [])}:
        # Not those whose stream is whatever `sys.stderr` is.
        if (stream := vars(handler).get("stream")) is not None and id(stream) in above:
            handler.setStream(above[id(stream)])
            stack.callback(handler.setStream, stream)
    stack.enter_context(redirect_stderr(above[id(sys.stderr)]))


def _bare(stream: Any) -> Any:
    """The stream itself; a bar whose thread began before another's and ended before it leaves its own behind."""
    from tqdm.contrib import DummyTqdmFile

    while isinstance(stream, DummyTqdmFile):
        stream = stream._wrapped
    return stream
