"""The objective of the paper's search: all orderings on the same train examples."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import Trial
from plr_dspy.scoring.scorer import CellScorer, NothingRan
from plr_dspy.search.loop import Objective

logger = logging.getLogger(__name__)


class SearchObjective(Objective, Protocol):
    """Scores orderings for a search, and can go on where another one was stopped.

    Attributes:
        deadline: When to stop, by `time.monotonic`; None for never.
    """

    deadline: float | None

    def scores(self) -> Mapping[Ordering, Mapping[int, float]]:
        """Scores by example that a final choice may go by, beside those of the comparison; costs nothing."""

    def salvage(self) -> list[Trial]:
        """Trials of a round that was not ended, of those of its orderings that were scored whole; costs nothing."""

    def state_dict(self) -> dict[str, Any]:
        """What decides how it goes on, as JSON data."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""


class CommonExamples:
    """Mean score on a fixed prefix of the train split, the same for all orderings.

    Examples that ran for no ordering when they were first met leave it: later rounds would else be
    scored on other examples than the first.

    Args:
        scorer: Of the train split followed by others.
        num_examples: Of the prefix.
        num_train: Of the split.

    Attributes:
        deadline: When to stop, by `time.monotonic`.
    """

    def __init__(self, scorer: CellScorer, *, num_examples: int, num_train: int) -> None:
        self.deadline: float | None = None
        self._examples = list(range(num_examples))
        self._train = range(num_train)
        self._scorer = scorer
        self._asked: dict[Ordering, None] = {}

    @property
    def program_calls(self) -> int:
        """Program calls made on the train split."""
        return self._scorer.ledger.calls(self._train)

    def cost(self, orderings: Sequence[Ordering]) -> int:
        """Program calls that scoring these orderings would make."""
        return self._scorer.cost(orderings, self._examples)

    def __call__(self, orderings: Sequence[Ordering]) -> list[Trial]:
        """Score orderings; fewer trials than orderings when the time is up."""
        self._asked = dict.fromkeys(orderings)
        trials = self._scorer.score(orderings, self._examples, deadline=self.deadline)
        if trials:
            lost = never_ran(self._scorer, self._examples, self._scorer.ledger.examples_that_ran())
            self._examples = [example for example in self._examples if example not in lost]
        return trials

    def scores(self) -> dict[Ordering, dict[int, float]]:
        """None: the selection split alone chooses, as in PLR Algorithm 1."""
        return {}

    def salvage(self) -> list[Trial]:
        """Trials of a round that was not ended, of those of its orderings that were scored whole; costs nothing."""
        whole = list(self._scorer.paid_each(dict.fromkeys(self._asked, self._examples)))
        try:
            return self._scorer.score(whole, self._examples) if whole else []
        except NothingRan:
            return []

    def state_dict(self) -> dict[str, Any]:
        """What decides how it goes on, as JSON data."""
        return {"examples": self._examples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._examples = [int(example) for example in state["examples"]]


def never_ran(scorer: CellScorer, examples: Collection[int], ran: Collection[int]) -> set[int]:
    """Those of the examples that have run for no ordering.

    Raises:
        RuntimeError: when they are more than half.
    """
    lost = set(examples) - set(ran)
    if 2 * len(lost) > len(examples):
        scorer.ledger.retry()
        raise RuntimeError(
            f"only {len(examples) - len(lost)} of {len(examples)} train examples ran for any order: mend the "
            "program, the metric or what they call, and compile again (with log_dir, from here; where the code of the "
            "program or the metric is another, with a new log_dir)"
        )
    if lost:
        logger.warning(
            "%d of %d train examples ran for no order so far: they are left out", len(lost), len(examples)
        )
    return lost
