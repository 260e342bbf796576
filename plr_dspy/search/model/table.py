"""Scores of orderings on examples as a table, of which most cells may be unknown."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from plr_dspy.search.space import Ordering

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Scores: TypeAlias = Mapping[Ordering, Mapping[int, float]]  # by example of each ordering

PRIOR_VARIANCE = 0.02  # prior mean of orderings' variance over the noise's: of accuracy .6, orders that differ by .06
PRIOR_SHRINKAGE = 3.0  # noise variance over that of examples' effects, as long as little is known of them
PRIOR_EXAMPLES = 10.0  # that this prior counts as much as
MIN_SHRINKAGE, MAX_SHRINKAGE = 0.05, 30.0
NUM_ALTERNATIONS = 10  # of the two-way fit


class ScoreTable:
    """Scores ``[m, E]`` of orderings on numbered examples, NaN where there is none, and their crossed effects: means
    that know how easy the examples were. There are `counts` scores of each ordering, whose means are trusted the more
    of them there are: by `trust` their true distance from the mean of all is smaller, ``[m]``."""

    def __init__(self, scores: Array, examples: NDArray[np.int64] | None = None) -> None:
        self.scores, self.known = scores, ~np.isnan(scores)
        self.examples = np.arange(scores.shape[1]) if examples is None else examples
        self._shown, self._values = self.known.astype(np.float64), np.where(self.known, scores, 0.0)
        self.counts, self._on_examples = self.known.sum(axis=1), self.known.sum(axis=0)
        self.seen = self._on_examples > 0
        self._sums, self._sums_on_examples = self._values.sum(axis=1), self._values.sum(axis=0)
        self.trust: Array = self.counts / (self.counts + 0.5 / PRIOR_VARIANCE)

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[int, float]]) -> ScoreTable:
        """The table of the scores by example of each ordering; its columns are the examples in ascending order."""
        told = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
        examples, columns = np.unique(told, return_inverse=True)
        table = np.full((len(rows), len(examples)), np.nan)
        values = itertools.chain.from_iterable(row.values() for row in rows)
        table[np.repeat(np.arange(len(rows)), [*map(len, rows)]), columns] = np.fromiter(values, np.float64)
        return cls(table, examples)

    @cached_property
    def shrinkage(self) -> float:
        """Noise variance over the variance of examples' effects, by the analysis of variance of the examples that have
        two scores or more, and a prior. The mean of all counts as so many scores of an example's own."""
        several = self._on_examples >= 2
        if not several.any():
            return PRIOR_SHRINKAGE
        counts, number = self._on_examples[several], int(several.sum())
        means = self._sums_on_examples[several] / counts
        rest = np.where(self.known[:, several], self._values[:, several] - means, 0.0)
        within = float((rest * rest).sum() / (counts - 1).sum())
        if within <= 0.0:
            return MIN_SHRINKAGE if means.var() > 0.0 else PRIOR_SHRINKAGE
        between = float(means.var(ddof=min(1, number - 1)) - within * (1.0 / counts).mean())
        share = number * max(between, 0.0) / within + PRIOR_EXAMPLES / PRIOR_SHRINKAGE
        return float(np.clip((number + PRIOR_EXAMPLES) / share, MIN_SHRINKAGE, MAX_SHRINKAGE))

    @cached_property
    def num_example_parameters(self) -> float:
        """Parameters that the shrunk effects of examples use up."""
        return float((self._on_examples / (self._on_examples + self.shrinkage)).sum())

    def example_effects(self, effects: Array) -> Array:
        """Shrunk mean of each example over its scores, less the effects ``[m]`` of the orderings, ``[E]``."""
        rest = self._sums_on_examples - effects @ self._shown
        mean = rest.sum() / max(1, self._on_examples.sum())
        return np.asarray((rest + self.shrinkage * mean) / (self._on_examples + self.shrinkage))

    def ordering_effects(self, effects: Array) -> Array:
        """Mean of each ordering above the effects that its examples have beside these of orderings, ``[m]``."""
        return np.asarray((self._sums - self._shown @ self.example_effects(effects)) / np.maximum(1, self.counts))

    def residuals(self, effects: Array) -> Array:
        """What effects of orderings and of examples leave of the scores, ``[m, E]``; 0 where there is none."""
        return (self._values - self.example_effects(effects) - effects[:, None]) * self._shown

    @cached_property
    def adjusted_means(self) -> Array:
        """Mean of each ordering as if all had been scored on all examples, less the mean example, ``[m]``: a two-way
        additive fit with shrunk effects, by alternation."""
        means = effects = np.zeros(len(self.scores))
        for _ in range(NUM_ALTERNATIONS):
            means = self.ordering_effects(effects)
            effects = means * self.trust
        return means
