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
_START_SECONDS = 120.0
_MAX_SECONDS = 60.0  # by the clock; the child's own limit is of processor time, the same on a busy machine


class Checker:
    """A child process that compares expressions, one pair at a time; safe in threads.

    A pair that takes too long ends the child and counts as different; the next one starts another.

    Args:
        max_seconds: What a pair may take by the clock, whatever the machine does beside it.
    """

    def __init__(self, *, max_seconds: float = _MAX_SECONDS) -> None:
        self.max_seconds = max_seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def equal(self, predicted: str, gold: str) -> bool:
        """Whether two LaTeX expressions are equal; those that cannot be read, or take too long, are not.

        Raises:
            ImportError: when math-verify is not installed.
            RuntimeError: when the child cannot be started.
        """
        require_library()
        with self._lock:
            child = self._running()
            reply = self._exchange(child, [predicted, gold], seconds=self.max_seconds)
            if not reply:
                logger.debug("gave up comparing %r and %r", predicted, gold)
            return bool(json.loads(reply)) if reply else False

    def close(self) -> None:
        """End the child; the next comparison starts another."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[str]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        self._child = subprocess.Popen(
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
        child = self._child
        reply = self._exchange(child, sys.path, seconds=_START_SECONDS)
        if not reply:
            raise RuntimeError(
                f"the process that compares answers ended before it was ready; try {_CHILD} by hand"
            )
        if error := json.loads(reply).get("error"):
            self._end()
            raise ImportError(f"{_INSTALL} ({error})")
        return child

    def _exchange(self, child: subprocess.Popen[str], message: list[str], *, seconds: float) -> str:
        """The child's reply, or nothing where it ended first."""
        assert child.stdin is not None and child.stdout is not None
        alarm = threading.Timer(seconds, child.kill)
        alarm.start()
        try:
            child.stdin.write(json.dumps(message) + "\n")
            child.stdin.flush()
            reply = child.stdout.readline()
        except OSError:
            reply = ""
        except BaseException:  # an interrupt: its reply must not be taken for the next pair's
            self._end()
            raise
        finally:
            alarm.cancel()
            alarm.join()  # a late alarm must not meet the next pair
        if not reply or child.poll() is not None:
            self._end()
        return reply

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:  # a message that the child did not live to read
                logger.debug("the child ended with a message unread")


_CHECKER = Checker()


@lru_cache(maxsize=100_000)
def equivalent(predicted: str, gold: str) -> bool:
    """`Checker.equal` of a process that all callers share; each pair is compared once."""
    return _CHECKER.equal(predicted, gold)


@atexit.register
def _close() -> None:
    _CHECKER.close()


@lru_cache(maxsize=1)
def require_library() -> None:
    """Say what to install where math-verify is missing.

    Raises:
        ImportError: when it is.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError(_INSTALL)


def _after_fork() -> None:
    """The copy of a process must not talk to its parent's child."""
    global _CHECKER
    _CHECKER = Checker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
