"""Keeps money and time of a compile for its later phases: when each phase must end, and what it may spend."""

from __future__ import annotations

import math
import time

from plr_dspy.compilation.deadlines import Deadlines
from plr_dspy.compilation.final_comparison import MIN_COMPARED
from plr_dspy.compilation.plan import Plan
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.scoring.purse import Purse
from plr_dspy.search.loop import TIME_LIMIT

COST_LIMIT = "cost limit"
"""The reason for its end that a search gives when the rest of the money is for what follows it."""


class Limits:
    """Limits by time and money. The money of a phase is its own from when its deadline is asked for.

    Args:
        max_seconds: See `Deadlines`; the time begins now.
        purse: Holds the money.
        plan: How many calls each phase makes.
        ledger: Calls made so far.
    """

    def __init__(self, max_seconds: float | None, purse: Purse, plan: Plan, ledger: Ledger) -> None:
        self._deadlines = Deadlines(max_seconds, plan, ledger)
        self._purse = purse
        self._plan = plan
        self._ledger = ledger

    def search(self) -> float | None:
        """When the race must begin; its money, and that of the final comparison, is kept from now on."""
        self._keep(self._final_calls + self.share * self._plan.race_calls)
        return self._deadlines.search()

    def race(self) -> float | None:
        """When the final comparison must begin; its money is kept from now on."""
        self._purse.refused = False
        self._keep(self._final_calls)
        return self._deadlines.race()

    def end(self) -> float | None:
        """When the time is over; all the money may be spent from now on."""
        self._keep(0)
        return self._deadlines.end()

    @property
    def share(self) -> float:
        """The share of the plan's calls that the money pays for."""
        return min(1.0, self.call_limit / max(1, self._plan.program_calls))

    @property
    def call_limit(self) -> int:
        """Program calls that the plan allows and the money pays for, those made included."""
        return min(self._plan.call_limit, self._ledger.calls() + self._purse.num_calls())

    def is_over(self, deadline: float | None) -> bool:
        """Whether a phase with this deadline was cut short."""
        return self._purse.refused or (deadline is not None and time.monotonic() >= deadline)

    def named(self, stopped: str) -> str:
        """A reason for an end, with the limit that it was."""
        return stopped.replace(TIME_LIMIT, COST_LIMIT) if self._purse.was_short else stopped

    @property
    def _final_calls(self) -> float:
        """Calls of a final comparison that the money pays for."""
        plan = self._plan
        num_examples = max(MIN_COMPARED, self.share * plan.num_selection_examples)
        return plan.num_finalists * min(num_examples, plan.num_selection_examples)

    def _keep(self, num_calls: float) -> None:
        """Allow what leaves the money for so many calls."""
        limit, kept = self._purse.limit, self._purse.cost(math.ceil(num_calls)) if num_calls else 0.0
        if limit is None:
            return
        if kept is None:  # nobody knows what a call costs
            kept = limit * min(1.0, num_calls / max(1, self._plan.program_calls))
        self._purse.allowance = limit - kept
