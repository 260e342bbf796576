"""Whether two LaTeX expressions are equal, asked of math-verify in a child process.

math-verify's own time limits are signals, which only a main thread may set, and a metric runs in worker threads.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

logger = logging.getLogger(__name__)

_CHILD = Path(__file__).with_name("equivalence_child.py")
_INSTALL = "comparing LaTeX answers needs math-verify: pip install 'plr-dspy[experiments]'"
_MAX_START_SECONDS = 120.0
_MAX_PAIR_SECONDS = (
    60.0  # By the clock; the child's own limit is of processor time, the same on a busy machine.
)


class Checker:
    """A child process that compares expressions, one pair at a time; safe in threads.

    A pair that takes too long ends the child and counts as different; the next one starts another.

    Args:
        max_seconds: How long a pair may take by the clock, whatever the machine does beside it.
    """

    def __init__(self, *, max_seconds: float = _MAX_PAIR_SECONDS) -> None:
        self.max_seconds = max_seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def equal(self, predicted: str, gold: str) -> bool:
        """Whether two LaTeX expressions are equal; those that cannot be read, or take too long, are not.

        Raises:
            ImportError: If math-verify is not installed.
            RuntimeError: If the child cannot be started.
        """
        require_library()
        with self._lock:
            reply = self._reply(self._running(), [predicted, gold], seconds=self.max_seconds)
        if not reply:
            logger.debug("gave up comparing %r and %r", predicted, gold)
        return bool(reply and json.loads(reply))

    def close(self) -> None:
        """End the child; the next comparison starts another."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[str]:
        """Return the child, which is started where there is none."""
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        self._child = child = subprocess.Popen(
            [sys.executable, str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            # What a simplification finds can depend on the order of sets.
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"},
            # An interrupt at the keyboard is the parent's to handle.
            start_new_session=True,
        )
        if not self._reply(child, sys.path, seconds=_MAX_START_SECONDS):
            raise RuntimeError(f"the process that compares answers ended before it was ready: {_CHILD}")
        return child

    def _reply(self, child: subprocess.Popen[str], message: list[str], *, seconds: float) -> str:
        """Return the child's reply to a message; an empty text where the child ended first."""
        assert child.stdin is not None and child.stdout is not None
        alarm = threading.Timer(seconds, child.kill)
        alarm.start()
        reply = ""
        try:
            child.stdin.write(json.dumps(message) + "\n")
            child.stdin.flush()
            reply = child.stdout.readline()
        except OSError:
            logger.debug("the child ended with a message unread")
        finally:
            alarm.cancel()
            alarm.join()  # A late alarm must not meet the next pair.
            # After an interrupt the reply is still to come, and must not be taken for the next pair's.
            if not reply or child.poll() is not None:
                self._end()
        return reply

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()  # Waits for its end, and closes the pipes.


_CHECKER = Checker()
atexit.register(lambda: _CHECKER.close())


@lru_cache(maxsize=100_000)
def equivalent(predicted: str, gold: str) -> bool:
    """Do what `Checker.equal` does, with a child that all callers share; each pair is compared once."""
    return _CHECKER.equal(predicted, gold)


@lru_cache(maxsize=1)
def require_library() -> None:
    """Check that math-verify is installed.

    Raises:
        ImportError: If it is not; the message says what to install.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError(_INSTALL)


def _after_fork() -> None:
    """Give the copy of a process a child of its own."""
    global _CHECKER
    _CHECKER = Checker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
