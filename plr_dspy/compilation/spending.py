"""Where the program calls of a compile go: those made in each phase, and those that a phase may still make."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from plr_dspy.compilation.budget import FINAL_SHARE, RACE_SHARE
from plr_dspy.compilation.plan import Plan
from plr_dspy.orderings.space import Ordering
from plr_dspy.report.text import BUDGET
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.loop import ALL_ROUNDS, NOTHING_LEFT, TIME_LIMIT

logger = logging.getLogger(__name__)


class Spending:
    """The program calls of a compile, by phase.

    Args:
        plan: The shape of the compile.
        scorer: Makes the calls, on the train split followed by the selection split.
        num_train: Examples of the train split.
        original: What the user has.

    Attributes:
        train, selection: The examples of the two splits.
        search_calls: Calls that the search has made; 0 until it has ended.
        earlier_finals: Calls of the final comparison of an earlier part, which was of too early a search.
    """

    def __init__(self, plan: Plan, scorer: CellScorer, *, num_train: int, original: Ordering) -> None:
        self.train = range(num_train)
        self.selection = range(num_train, num_train + plan.num_selection_examples)
        self.search_calls = 0
        self.earlier_finals = 0
        self._earlier_race = 0
        self._extended_from = -1
        self._plan = plan
        self._scorer = scorer
        self._original = original

    @property
    def train_calls(self) -> int:
        """Calls made on the train split, by the search and the race."""
        return self._scorer.ledger.calls(self.train)

    @property
    def final_calls(self) -> int:
        """Calls of final comparisons so far."""
        return self._scorer.ledger.calls(self.selection)

    @property
    def original_calls(self) -> int:
        """Selection examples that the original order has been scored on; the next comparison needs them, too."""
        return len(self.selection) - self._scorer.cost([self._original], self.selection)

    @property
    def search_limit(self) -> int:
        """Calls that the search may make; where an earlier part has paid for a race, this one gets the rest."""
        planned = self._plan.race_calls
        return self._train_limit - max(planned // 2, planned - self._earlier_race)

    def race_limit(self, share: float) -> int:
        """Calls that the race may make.

        Args:
            share: Of the calls that the search was to make, those that it did make; 1 unless it was ended early.
        """
        left = self._train_limit - self.search_calls
        return left if share == 1.0 else min(left, round(share * self._plan.race_calls))

    def share_searched(self, stopped: str) -> float:
        """The share of its calls that a search made which was ended early; 1 for others.

        What follows it shrinks with it: who ends a search early wants to spend less.

        Args:
            stopped: Why the search ended.
        """
        # A racing plan ends with its calls; other plans are laid out for so many rounds.
        planned = {TIME_LIMIT, BUDGET, NOTHING_LEFT} | (set() if self._plan.racing else {ALL_ROUNDS})
        return 1.0 if stopped in planned else min(1.0, self.search_calls / max(1, self._plan.search_calls))

    @property
    def _train_limit(self) -> int:
        """Calls that the search and the race may make."""
        ends = self._plan.final_calls + self.earlier_finals + self._scorer.ledger.num_lost
        return self._plan.call_limit - ends

    def restore(self, state: Mapping[str, Any], *, extended: bool) -> None:
        """Go on from the state of an earlier part; with `extended`, towards a larger budget."""
        if extended:
            self._extended_from = paid = self.train_calls
            self._earlier_race = max(0, paid - int(state.get("search_calls") or paid))
        finals = self.final_calls - self.original_calls if extended else state["earlier_finals"]
        self.earlier_finals = max(0, int(finals))

    def note_search(self, stopped: str) -> None:
        """Note that the search has ended; warn when a larger budget has let it make no further call.

        Args:
            stopped: Why it ended.
        """
        self.search_calls = self.train_calls
        if self.search_calls != self._extended_from or stopped != BUDGET:
            return
        plan = self._plan
        needed = self.search_calls + self.earlier_finals + plan.num_samples * plan.num_more_examples
        logger.warning(
            "max_metric_calls pays for no further order beside what is kept for race and final comparison: to let the "
            "search go on, raise it by %d or more",
            math.ceil(needed / (1 - FINAL_SHARE) / (1 - RACE_SHARE)) - plan.call_limit,
        )

    def by_phase(self, *, searching: bool) -> dict[str, int]:
        """Calls by phase, as in `Report`.

        Args:
            searching: Whether the search was still under way.
        """
        ledger = self._scorer.ledger
        total, train = ledger.calls(), self.train_calls + ledger.num_lost  # most likely: nobody knows
        search = train if searching else self.search_calls
        race = max(0, train - search)
        return {
            "search": search,
            "race": race,
            "final": total - search - race - self.original_calls,
            "original": self.original_calls,
            "total": total,
            "resumed": ledger.num_resumed,
        }
