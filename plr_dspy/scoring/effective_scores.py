"""What turns call records into the scores that a search sees."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from plr_dspy.scoring.run_log import CallRecord
from plr_dspy.search.space import Scores

Records: TypeAlias = Mapping[int, CallRecord]  # of a candidate, by example
Labels: TypeAlias = Mapping[int, int]  # numbers of labels by example


class EffectiveScores:
    """Takes scores as the metric gave them. `ConfusionScores` derives those of a metric over a set."""

    def score_of(self, example: int, record: CallRecord) -> float | None:
        """Return the score of a call on an example; None if it has none."""
        return record.score

    def refer_to(self, best_first: Iterable[tuple[Records, Labels]], *, least: int = 1) -> None:
        """Take the answers of the best candidates as the reference of all scores.

        Args:
            best_first: The records of each candidate, and the labels that calibration makes of some answers.
            least: How many candidates are taken at least.
        """

    def counted(self, scores: Scores) -> Scores:
        """Return scores by example so that their mean is the score of a candidate."""
        return scores

    def information_weights(self, known: NDArray[np.bool_], examples: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how many scores on random examples tell as much as one of the known ones ``[m, e]``, ``[m]``."""
        return np.ones(len(known))

    def strata(self, num_examples: int) -> Sequence[Sequence[int]]:
        """Return groups of the first examples, on which candidates are scored in turn."""
        return [range(num_examples)]

    def clip(self, value: float) -> float:
        """Return the nearest value that the metric can have."""
        return value
