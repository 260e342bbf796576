"""What a compile does with the terminal: log lines, one progress bar below them, and signals."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from contextvars import ContextVar
from types import FrameType
from typing import Any

from tqdm import tqdm

PACKAGE = "plr_dspy"
HANDLER = "dspy_handler"  # this and the formats are DSPy's
LINE_FORMAT, TIME_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y/%m/%d %H:%M:%S"

_shows_progress = ContextVar("shows_progress", default=True)  # whether what runs now says how far it is


class LogLines(logging.Handler):
    """Shows the package's log lines as DSPy shows its own: warnings, and where progress is shown, all lines.

    Where the user has set up logging, they go there, and are not shown a second time.
    """

    def emit(self, record: logging.LogRecord) -> None:
        configured = logging.root.handlers or len(logging.getLogger(PACKAGE).handlers) > 1
        if configured or not (record.levelno >= logging.WARNING or _shows_progress.get()):
            return
        of_dspy = sys.modules.get("dspy.utils.logging_utils")  # whose stream `dspy.disable_logging` turns off
        stream: Any = getattr(of_dspy, "DSPY_LOGGING_STREAM", sys.stderr)
        try:
            stream.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def show_log_lines() -> None:
    """Show the package's log lines, once, however often this is called."""
    logger, handler = logging.getLogger(PACKAGE), LogLines()
    handler.setFormatter(logging.Formatter(LINE_FORMAT, TIME_FORMAT))
    handler.set_name(HANDLER)
    logger.handlers[:] = [*(each for each in logger.handlers if each.name != HANDLER), handler]
    logger.setLevel(logger.level or logging.INFO)


@contextmanager
def progress_bar(
    total: int, *, display: bool, title: str = "PLReorder", at_end: Callable[[], None] = lambda: None
) -> Iterator[tqdm]:
    """Show a bar of program calls, of which there are so many at most; `at_end` is called when it has ended."""
    shown = _shows_progress.set(display)
    try:
        hidden = not display or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        with tqdm(total=total, desc=title, unit="call", dynamic_ncols=True, disable=hidden) as bar:
            with ExitStack() as stack:
                if not bar.disable:
                    _write_above(stack)
                yield bar
            bar.total = bar.n  # Cells known already cost nothing.
            bar.refresh()
    finally:
        at_end()
        _shows_progress.reset(shown)


def _write_above(stack: ExitStack) -> None:
    """Write log lines, warnings and what else goes to the standard error above the bars, until the stack ends."""
    from tqdm.contrib import DummyTqdmFile

    above = {}
    for stream in (sys.stdout, sys.stderr):
        bare: Any = stream  # A bar whose thread began before another's and ended before it leaves its own behind.
        while isinstance(bare, DummyTqdmFile):
            bare = bare._wrapped
        above[id(stream)] = DummyTqdmFile(bare)
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for handler in {handler for logger in loggers for handler in getattr(logger, "handlers", [])}:
        # Not those whose stream is whatever `sys.stderr` is.
        if (stream := vars(handler).get("stream")) is not None and id(stream) in above:
            handler.setStream(above[id(stream)])
            stack.callback(handler.setStream, stream)
    stack.enter_context(redirect_stderr(above[id(sys.stderr)]))


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """While this context lasts, SIGINT and SIGTERM raise `KeyboardInterrupt` in the main thread, and set the event.

    So they do inside `asyncio.run`, whose own handler would wait for the next await. A handler of the user's own is
    called first; where there is one for SIGTERM, it alone decides. Other threads get no signals. A program may have
    swallowed the exception; the event stays set.
    """
    received, before = threading.Event(), dict[int, Any]()

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.set()
        handler = before[number]
        module = getattr(getattr(handler, "func", handler), "__module__", "") or ""
        if callable(handler) and not module.startswith(("_signal", "asyncio")):
            handler(number, frame)
        raise KeyboardInterrupt("SIGTERM" if number == signal.SIGTERM else "")

    if threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(kind)
            own = kind == signal.SIGTERM and handler is not signal.SIG_DFL
            if not own and handler not in (None, signal.SIG_IGN):
                before[kind] = handler
    try:
        for number in before:
            signal.signal(number, interrupt)
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
