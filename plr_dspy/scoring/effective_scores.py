"""Turns call records into the scores that a search sees."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from plr_dspy.scoring.run_log import CallRecord
from plr_dspy.search.space import Scores

Records: TypeAlias = Mapping[int, CallRecord]  # a candidate's, by example
Labels: TypeAlias = Mapping[int, int]  # label numbers by example


class EffectiveScores:
    """Uses scores as the metric gave them; `ConfusionScores` derives them from a metric over a set."""

    def score_of(self, example: int, record: CallRecord) -> float | None:
        """Return a call's score on an example, or None."""
        return record.score

    def refer_to(self, best_first: Iterable[tuple[Records, Labels]], *, least: int = 1) -> None:
        """Make the best candidates' answers the reference for all scores.

        Args:
            best_first: Each candidate's records, and the labels that replace some answers.
            least: Minimum number of candidates.
        """

    def counted(self, scores: Scores) -> Scores:
        """Return per-example scores whose mean is the candidate's score."""
        return scores

    def information_weights(self, known: NDArray[np.bool_], examples: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return each row's information per known score ``[m, e]``, relative to random examples, ``[m]``."""
        return np.ones(len(known))

    def strata(self, num_examples: int) -> Sequence[Sequence[int]]:
        """Group the first examples; candidates are scored on each group in turn."""
        return [range(num_examples)]

    def clip(self, value: float) -> float:
        """Clip a value to the metric's bounds."""
        return value
