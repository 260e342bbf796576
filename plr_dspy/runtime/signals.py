"""Signals that end a compile."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """While this context lasts, SIGINT and SIGTERM raise `KeyboardInterrupt` in the main thread.

    So they do inside `asyncio.run`, whose own handler would wait for the next await. A handler of the
    user's own is called first; where there is one for SIGTERM, it alone decides. In other threads there
    are no signals, and nothing changes.

    Attributes:
        received: Whether one has come; a program may have swallowed the exception.
    """

    def __init__(self) -> None:
        self.received = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            if before[signal.SIGTERM] is not signal.SIG_DFL:
                del before[signal.SIGTERM]
            self._before = {n: old for n, old in before.items() if old not in (None, signal.SIG_IGN)}
            for number in self._before:
                signal.signal(number, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.received.set()
        handler = self._before.get(number)
        module = getattr(getattr(handler, "func", handler), "__module__", "") or ""
        if callable(handler) and not module.startswith(("_signal", "asyncio")):
            handler(number, frame)
        raise KeyboardInterrupt("SIGTERM" if number == signal.SIGTERM else "")
