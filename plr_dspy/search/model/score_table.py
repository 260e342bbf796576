"""Scores of orderings on examples, and mean scores adjusted for the difficulty of the examples.

y[o, e]  =  t[o]  +  a[e]  +  noise

A score y is the sum of an ordering's effect t, an example's effect a, and noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np

from plr_dspy.search.model.components import PRIOR_VARIANCE
from plr_dspy.statistics.arrays import Array, Mask, Numbers

# Maps a mask of known scores [m, E] and the indices of examples [E] to weights of candidates [m].
InformationWeights: TypeAlias = Callable[[Mask, Numbers], Array]

PRIOR_NOISE_RATIO = 3.0  # prior value of `ScoreTable.noise_ratio`
PRIOR_EXAMPLES = 10.0  # weight of `PRIOR_NOISE_RATIO`, as a number of examples
MIN_NOISE_RATIO = 0.05
MAX_NOISE_RATIO = 30.0
NUM_ALTERNATIONS = 10


class ScoreTable:
    """A table of the scores of orderings (rows) on examples (columns)."""

    def __init__(
        self, scores: Array, examples: Numbers | None = None, information_weights: Array | None = None
    ) -> None:
        self.scores = scores
        self.known = ~np.isnan(scores)
        self.examples = np.arange(scores.shape[1]) if examples is None else examples
        self.information_weights = (
            np.ones(len(scores)) if information_weights is None else information_weights
        )
        self._is_known = self.known.astype(np.float64)
        self._values = np.where(self.known, scores, 0.0)
        self._sums = self._values.sum(axis=1)
        self._example_sums = self._values.sum(axis=0)
        self._example_counts = self.known.sum(axis=0)
        self.counts = self.known.sum(axis=1)
        self.seen = self._example_counts > 0
        self.sizes = self.counts * self.information_weights
        self.shrinkage: Array = self.sizes / (self.sizes + 0.5 / PRIOR_VARIANCE)

    @classmethod
    def from_rows(
        cls, rows: Sequence[Mapping[int, float]], information_weights: InformationWeights | None = None
    ) -> ScoreTable:
        """Return a table of the scores in `rows`, with the examples as columns in ascending order.

        Each row maps examples to the scores of one ordering.
        """
        examples = np.array(sorted(set().union(*rows)), dtype=np.int64)
        scores = np.full((len(rows), len(examples)), np.nan)
        for number, row in enumerate(rows):
            scores[number, np.searchsorted(examples, [*row])] = [*row.values()]
        weights = None
        if information_weights is not None:
            weights = information_weights(~np.isnan(scores), examples)
        return cls(scores, examples, weights)

    def minus(self, values: Array) -> ScoreTable:
        """Return a table of the scores minus `values`, ``[m, E]``."""
        return ScoreTable(self.scores - values, self.examples, self.information_weights)

    @cached_property
    def noise_ratio(self) -> float:
        """The ratio of the noise variance to the variance between examples.

        The ratio is estimated by an analysis of variance, combined with a prior.
        """
        is_repeated = self._example_counts >= 2
        if not is_repeated.any():
            return PRIOR_NOISE_RATIO
        counts = self._example_counts[is_repeated]
        size = len(counts)
        means = self._example_sums[is_repeated] / counts
        deviations = np.where(self.known[:, is_repeated], self._values[:, is_repeated] - means, 0.0)
        squares = (deviations * deviations).sum(axis=1)
        within = float(self.information_weights @ squares / (counts - 1).sum())
        if within <= 0.0:
            return MIN_NOISE_RATIO if means.var() > 0.0 else PRIOR_NOISE_RATIO
        between = float(means.var(ddof=min(1, size - 1)) - within * (1.0 / counts).mean())
        total = size * max(between, 0.0) / within + PRIOR_EXAMPLES / PRIOR_NOISE_RATIO
        return float(np.clip((size + PRIOR_EXAMPLES) / total, MIN_NOISE_RATIO, MAX_NOISE_RATIO))

    @cached_property
    def num_example_parameters(self) -> float:
        """The effective number of parameters that model the effects of examples."""
        return float((self._example_counts / (self._example_counts + self.noise_ratio)).sum())

    def example_effects(self, effects: Array) -> Array:
        """Return the effects of examples ``[E]``, given the effects of orderings ``[m]``."""
        sums = self._example_sums - effects @ self._is_known
        mean = sums.sum() / max(1, self._example_counts.sum())
        return np.asarray((sums + self.noise_ratio * mean) / (self._example_counts + self.noise_ratio))

    def ordering_effects(self, effects: Array) -> Array:
        """Return the orderings' mean scores, minus the effects of examples, ``[m]``.

        The effects of examples are estimated from `effects`, which holds earlier estimates of the
        orderings' effects.
        """
        sums = self._sums - self._is_known @ self.example_effects(effects)
        return np.asarray(sums / np.maximum(1, self.counts))

    def residuals(self, effects: Array) -> Array:
        """Return the scores minus the effects of orderings and examples, ``[m, E]``.

        The residuals of unknown scores are 0.
        """
        return (self._values - self.example_effects(effects) - effects[:, None]) * self._is_known

    def squares(self, residuals: Array) -> float:
        """Return the sum of squared residuals, weighted by each ordering's `information_weights`."""
        return float(self.information_weights @ (residuals * residuals).sum(axis=1))

    @cached_property
    def adjusted_means(self) -> Array:
        """The mean scores of orderings, adjusted for the difficulty of their examples, ``[m]``.

        The effects of orderings and of examples are estimated alternately.
        """
        means = effects = np.zeros(len(self.scores))
        for _ in range(NUM_ALTERNATIONS):
            means = self.ordering_effects(effects)
            effects = means * self.shrinkage
        return means

    @property
    def shrunk_means(self) -> Array:
        """The adjusted means ``[m]``, shrunk towards 0. Less informative means are shrunk more strongly."""
        return self.adjusted_means * self.shrinkage
