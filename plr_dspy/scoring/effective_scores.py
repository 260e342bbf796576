"""Conversion of call records to the scores that a search uses."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from plr_dspy.scoring.run_log import CallRecord
from plr_dspy.search.space import Scores

Records: TypeAlias = Mapping[int, CallRecord]  # maps example indices to a candidate's calls
Labels: TypeAlias = Mapping[int, int]  # maps example indices to label indices


class EffectiveScores:
    """Scores as the metric returned them. For a metric over a set, `ConfusionScores` is used instead."""

    def score_of(self, example: int, record: CallRecord) -> float | None:
        """Return the score of a call on an example, or None if the call has no score."""
        return record.score

    def set_reference(
        self, best_first: Iterable[tuple[Records, Labels, set[int]]], *, min_candidates: int = 1
    ) -> None:
        """Do nothing, because the metric's own scores need no reference.

        A subclass may calculate scores relative to the answers of at least `min_candidates` of the
        best candidates. A candidate's labels, if any, replace its recorded answers. The examples in
        the set have failed calls that count as answers without a label.
        """

    def counted(self, scores: Scores) -> Scores:
        """Return the scores unchanged.

        Subclasses may rescale each candidate's scores so that their mean is its overall score.
        """
        return scores

    def information_weights(
        self, known: NDArray[np.bool_], examples: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return how informative the known scores in each row are on average, ``[m]``.

        The unit is the information in the score of a random example.

        Args:
            known: Whether each candidate's score on each example is known, ``[m, e]``.
            examples: The example index of each column, ``[e]``.
        """
        return np.ones(len(known))

    def strata(self, num_examples: int) -> Sequence[Sequence[int]]:
        """Return groups of the first `num_examples` examples. A schedule takes one from each in turn."""
        return [range(num_examples)]

    def clip(self, value: float) -> float:
        """Return the value unchanged. Subclasses may clip the value to the metric's bounds."""
        return value
