"""The calls to which a score model is fitted: their scores and the labels' log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.arrays import Array, Mask, Numbers

# Lower bound for log-probabilities, because servers may return -9999 for a probability of 0.
MIN_LOG = -1e3


class SetMetricWeights(Protocol):
    """The methods of `ConfusionScores` that weight the scores of examples."""

    def weights(self, known: Mask, examples: Numbers) -> Array:
        """Return the weight of each known score in its row's mean, ``[m, n]``."""

    def reweighted(self, table: Array, examples: Numbers) -> Array:
        """Return the scores ``[m, n]``, rescaled so that each row's plain mean equals its weighted mean."""


class LabelTable(NamedTuple):
    """The log-probabilities of labels in program calls, and the labels' scores."""

    logs: Array  # log-probabilities p of labels, at least MIN_LOG, [m, E, L]
    unseen: Mask  # whether each label was not among the likeliest tokens, [m, E, L]
    scores: Array  # the score M of each label on each example, [E, L]

    @property
    def known(self) -> Mask:
        """A mask of the calls with log-probabilities, ``[m, E]``."""
        return ~np.isnan(self.logs[..., 0])

    @property
    def unit(self) -> float:
        """The range of the labels' scores, or 1 if they are equal. It is the unit of prior deviations."""
        return float(np.ptp(self.scores)) or 1.0


@dataclass(frozen=True)
class LabelResponses:
    """The scores of labels, and access to their log-probabilities.

    Attributes:
        scores: Score of each label on each example, ``[E, L]``.
        logprobs_of: A function that takes a candidate and an example. It returns the
            log-probabilities of labels and the indices of unseen labels, or None if both are
            unknown.
        shares: Target share of each label among the answers, ``[L]``, or several alternatives,
            ``[S, L]``. NaN means no calibration, and None means equal shares.
        are_calibrated: Whether calibrated answers are scored.
        set_weights: The `ConfusionScores` of a metric over a set. None if the metric scores
            single examples.
    """

    scores: Array
    logprobs_of: Callable[[Candidate, int], tuple[Sequence[float], Sequence[int]] | None]
    shares: Array | None = None
    are_calibrated: bool = False
    set_weights: SetMetricWeights | None = None

    def table(self, rows: Mapping[Candidate, Collection[int]], examples: Numbers) -> LabelTable:
        """Return a table of log-probabilities, with the candidates as rows and `examples` as columns.

        `rows` maps each candidate to the examples on which it was called. Cells without
        log-probabilities are NaN.
        """
        logs = np.full((len(rows), len(examples), self.scores.shape[1]), np.nan)
        unseen = np.zeros(logs.shape, dtype=bool)
        for row, (candidate, own_examples) in enumerate(rows.items()):
            for column, example in enumerate(examples.tolist()):
                response = self.logprobs_of(candidate, example) if example in own_examples else None
                if response is not None:
                    logs[row, column] = np.maximum(response[0], MIN_LOG)
                    unseen[row, column, list(response[1])] = True
        return LabelTable(logs, unseen, self.scores[examples])


@dataclass(frozen=True)
class Calls:
    """The known scores and log-probabilities of candidates.

    Attributes:
        is_program: A mask of the whole programs, ``[m]``. Their log-probabilities reveal nothing
            about other candidates.
        is_outsider: A mask of the candidates without features, such as whole programs, ``[m]``.
    """

    scored: ScoreTable
    labels: LabelTable
    is_program: Mask
    is_outsider: Mask
