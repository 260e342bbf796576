"""The times at which the phases of a compile must end, by the pace of the calls made so far."""

from __future__ import annotations

import time

from plr_dspy.compilation.plan import Plan
from plr_dspy.scoring.ledger import Ledger

FIRST_SHARE = 0.25
"""Of the time that the first round leaves to the final comparison, as long as nobody knows the pace of calls."""


class Deadlines:
    """Deadlines by `time.monotonic`, None where there is no limit; the time begins now.

    Args:
        max_seconds: The limit; None for none.
        plan: How many calls each phase makes.
        ledger: Calls made so far, which tell the pace.
    """

    def __init__(self, max_seconds: float | None, plan: Plan, ledger: Ledger) -> None:
        self._max_seconds = max_seconds
        self._plan = plan
        self._ledger = ledger
        self._started = time.monotonic()

    def end(self) -> float | None:
        """When the time is over."""
        return None if self._max_seconds is None else self._started + self._max_seconds

    def race(self) -> float | None:
        """When the final comparison must begin to end in time, at the pace of the calls made so far."""
        if self._max_seconds is None:
            return None
        made = self._ledger.calls() - self._ledger.num_resumed
        elapsed = time.monotonic() - self._started
        share = self._plan.final_calls * elapsed / made if made else FIRST_SHARE * self._max_seconds
        return self._started + self._max_seconds - min(share, self._max_seconds / 2)

    def search(self) -> float | None:
        """When the race must begin to have its share of the time before the final comparison."""
        deadline = self.race()
        if deadline is None:
            return None
        share = self._plan.search_calls / max(1, self._plan.search_calls + self._plan.race_calls)
        return self._started + share * (deadline - self._started)
