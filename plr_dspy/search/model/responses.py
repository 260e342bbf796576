"""The calls to which a score model is fitted, with their scores and log-probabilities of labels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.arrays import Array, Mask, Numbers

MIN_LOG = -1e3  # minimum log-probability, because servers return -9999 or nothing for a probability of 0


class SetMetricWeights(Protocol):
    """The methods of `ConfusionScores` that weight the scores of examples."""

    def weights(self, known: Mask, examples: Numbers) -> Array:
        """Return the weights of known scores on examples, ``[m, n]``."""

    def reweighted(self, table: Array, examples: Numbers) -> Array:
        """Return scores ``[m, n]`` rescaled so that each row's mean is its weighted mean."""


class LabelTable(NamedTuple):
    """The log-probabilities of labels in calls, and the labels' scores."""

    logs: Array  # log-probabilities p, at least MIN_LOG, [m, E, L]
    unseen: Mask  # whether a label was not among the likeliest tokens, [m, E, L]
    scores: Array  # scores M of the labels, [E, L]

    @classmethod
    def unknown(cls, num_candidates: int, num_examples: int) -> LabelTable:
        """Return a table without log-probabilities, with a single label."""
        logs = np.full((num_candidates, num_examples, 1), np.nan)
        return cls(logs, np.zeros(logs.shape, dtype=bool), np.zeros((num_examples, 1)))

    @property
    def known(self) -> Mask:
        """Return which calls have log-probabilities, ``[m, E]``."""
        return ~np.isnan(self.logs[..., 0])


@dataclass(frozen=True)
class LabelResponses:
    """The scores of labels, and access to their log-probabilities.

    Attributes:
        scores: Score of each label on each example, ``[E, L]``.
        logprobs_of: Returns a candidate's log-probabilities on an example and the indices of
            unseen labels, or None if the log-probabilities are unknown.
        shares: Share of examples for which each label is correct, ``[L]``, or ``[S, L]`` for
            alternative shares; None for even shares.
        are_calibrated: Whether calibrated answers are scored.
        influence: The `ConfusionScores` of a metric over a set; None for other metrics.
    """

    scores: Array
    logprobs_of: Callable[[Candidate, int], tuple[Sequence[float], Sequence[int]] | None]
    shares: Array | None = None
    are_calibrated: bool = False
    influence: SetMetricWeights | None = None

    def table(self, rows: Mapping[Candidate, Collection[int]], examples: Numbers) -> LabelTable:
        """Return the log-probabilities of each candidate on its own examples.

        The columns of the table are `examples`. Cells without log-probabilities are NaN.
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
        is_program: Whether each candidate is a whole program, ``[m]``, whose log-probabilities
            reveal nothing about other candidates.
        is_outsider: Whether each candidate has no features, ``[m]``, like whole programs.
    """

    candidates: list[Candidate]
    scored: ScoreTable
    labels: LabelTable
    is_program: Mask
    is_outsider: Mask

    def select(self, rows: Numbers) -> Calls:
        """Return the calls of the candidates in `rows`, without examples on which no such candidate was scored."""
        columns = self.scored.known[rows].any(axis=0)
        cells = np.ix_(rows, columns)
        return Calls(
            [self.candidates[row] for row in rows],
            ScoreTable(
                self.scored.scores[cells],
                self.scored.examples[columns],
                self.scored.information_weights[rows],
            ),
            LabelTable(self.labels.logs[cells], self.labels.unseen[cells], self.labels.scores[columns]),
            self.is_program[rows],
            self.is_outsider[rows],
        )
