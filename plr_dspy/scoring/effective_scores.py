"""Conversion of call records to the scores that a search uses."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from plr_dspy.scoring.run_log import CallRecord
from plr_dspy.search.space import Scores

Records: TypeAlias = Mapping[int, CallRecord]  # a candidate's calls by example
Labels: TypeAlias = Mapping[int, int]  # label indices by example


class EffectiveScores:
    """The scores that the metric returned. `ConfusionScores` derives scores from a metric over a set instead."""

    def score_of(self, example: int, record: CallRecord) -> float | None:
        """Return the score of a call on an example; None if it has none."""
        return record.score

    def refer_to(self, best_first: Iterable[tuple[Records, Labels]], *, least: int = 1) -> None:
        """Make the answers of at least `least` of the best candidates the reference for all scores.

        Labels replace a candidate's answers to their examples.
        """

    def counted(self, scores: Scores) -> Scores:
        """Return scores by example that average to each candidate's score."""
        return scores

    def information_weights(
        self, known: NDArray[np.bool_], examples: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the information per score of each row, ``[m]``, relative to scores on random examples.

        `known` tells whether each score is known, ``[m, e]``; `examples` are their indices, ``[e]``.
        """
        return np.ones(len(known))

    def strata(self, num_examples: int) -> Sequence[Sequence[int]]:
        """Return the first `num_examples` examples in groups that take turns when candidates are scored."""
        return [range(num_examples)]

    def clip(self, value: float) -> float:
        """Clip a value to the metric's bounds."""
        return value
