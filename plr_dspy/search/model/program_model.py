"""The model of whole programs as a search uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plr_dspy.search.model.ordering_model import FittedModel, OrderingModel, one_thread
from plr_dspy.search.model.paired import PairedProcess
from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.search.space import Candidate, Scores


@dataclass(eq=False)
class FittedPrograms(FittedModel):
    """The model fitted to scores of whole programs on the same examples."""

    process: PairedProcess  # type: ignore[assignment]

    def interval(self, ordering: Candidate, score: float, *, reference: Candidate) -> tuple[float, float]:
        """Return the 95 % interval of an expected score, which extends beyond the mean of the program's own scores.

        Paired gains add hardly any error to it.
        """
        own = float(self.process.unshrunk[self.orderings.index(ordering)])
        low, _ = super().interval(ordering, score, reference=ordering)
        _, high = super().interval(ordering, max(score, self.clip(own)), reference=ordering)
        return low, high

    def improvements(self, leader: Candidate, num_examples: int) -> dict[Candidate, float]:
        """Return how much more examples should gain by each program, over the deviation of scores.

        Args:
            leader: The program that would be chosen now.
            num_examples: Number of examples in the end.
        """
        with one_thread():
            gains = self.process.improvements(self.orderings.index(leader), num_examples)
        return dict(zip(self.orderings, gains.tolist(), strict=True))


class ProgramModel(OrderingModel):
    """What scores of whole programs on the same examples tell of new examples."""

    def fit(
        self, scores: Scores, *, earlier: Mapping[str, Any] | None = None, kept: Sequence[Candidate] = ()
    ) -> FittedPrograms:
        """Fit the effects of all programs anew; other arguments are for searches that model some of many."""
        with one_thread():
            table = ScoreTable.from_rows([*scores.values()], self.information_weights)
            process = PairedProcess(table)
            return FittedPrograms(self, list(scores), process, None, table, table.scores)
