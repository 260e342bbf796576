"""Whether the calls of a compile ask for log-probabilities."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from dspy.utils.exceptions import AdapterParseError

from plr_dspy.label_probabilities.servers import is_refusal


class LogprobRequests:
    """Decides whether log-probabilities are asked for: until an endpoint refuses them, or its first reply has none.

    One is shared by all calls of a compile; threads may share it. Until a first reply has come, calls that ask
    follow one another, so that an endpoint refuses one request at most.

    Args:
        required: No call is made without asking.

    Attributes:
        wanted: Whether calls ask; it can be switched off.
        given: Whether any reply had them.
        reason: Why they are no longer asked for; empty otherwise.
    """

    def __init__(self, *, required: bool = False) -> None:
        self.required = required
        self.wanted = True
        self.given = False
        self.reason = ""
        self._accepted = False
        self._lock = threading.RLock()  # Coroutines of one thread pass together.

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Wait until it is known whether to ask, or for the turn to find out; yield whether to ask."""
        with ExitStack() as stack:
            if self.wanted and not self._accepted:
                stack.enter_context(self._lock)
                if not self.wanted or self._accepted:
                    stack.close()
            yield self.wanted

    def note_reply(self, lm: Any, *, given: bool) -> None:
        """Note that a call that asked was answered."""
        with self._lock:
            self._accepted = True
            self.given = self.given or given
            if not self.given:
                self._stop(f"{lm.model} gives no log-probabilities")

    def note_error(self, lm: Any, error: Exception) -> bool:
        """Note the error of a call that asked; return whether it is to be made again without asking."""
        with self._lock:
            if isinstance(error, AdapterParseError):  # of a reply
                self._accepted = True
            if self.given or not is_refusal(lm, error):
                return False
            self._stop(f"{lm.model} refuses requests for log-probabilities")
            return not self.required

    def _stop(self, reason: str) -> None:
        self.wanted = False
        self.reason = self.reason or reason
