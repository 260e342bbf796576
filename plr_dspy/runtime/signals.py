"""Signals that end a compile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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
