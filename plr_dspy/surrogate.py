"""A model of how an ordering's score depends on the ordering, learnt from scores on single examples.

    score of ordering o on example e  =  effect of e  +  f(o)  +  noise

The effects of examples are shrunk means. f is a Gaussian process: a sum of linear functions of feature
families with a variance each, and of an effect of every ordering's own. The variances maximise the marginal
likelihood under a Gamma prior, by the fixed-point steps of restricted maximum likelihood (D. A. Harville,
"Maximum likelihood approaches to variance component estimation", JASA 72, 1977).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

Array = NDArray[np.float64]

EXAMPLE_SHRINKAGE = 3.0
"""Noise variance over the variance of examples' effects: an example's mean counts as much as so many scores."""

PRIOR_VARIANCE = 0.02
"""Prior mean of f's variance over that of the noise: orders of accuracy .6 that differ by .06."""

PRIOR_SHAPE = 0.3
"""Of the Gamma prior of the variances; small lets families vanish."""

NUM_STEPS = 3
"""Steps of the variances in one fit; the next fit goes on from there."""


def score_table(rows: Sequence[Mapping[int, float]]) -> Array:
    """Scores ``[m, E]`` from the scores by example of each ordering, NaN where there is none."""
    columns = {example: i for i, example in enumerate(sorted({example for row in rows for example in row}))}
    table = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        table[i, [columns[example] for example in row]] = list(row.values())
    return table


def example_effects(scores: Array, effects: Array) -> Array:
    """Shrunk mean of each example over the orderings that it has scored, ``[E]``.

    Args:
        scores: Of orderings on examples, ``[m, E]``; NaN where there is none.
        effects: Of the orderings, ``[m]``.
    """
    known = ~np.isnan(scores)
    rest = np.where(known, scores - effects[:, None], 0.0)
    counts = known.sum(axis=0)
    shrunk: Array = (rest.sum(axis=0) + EXAMPLE_SHRINKAGE * rest.sum() / max(1, counts.sum())) / (
        counts + EXAMPLE_SHRINKAGE
    )
    return shrunk


def ordering_effects(scores: Array, effects: Array) -> Array:
    """Mean of each ordering above the effects of its examples, ``[m]``; arguments as in `example_effects`."""
    known = ~np.isnan(scores)
    rest = np.where(known, scores - example_effects(scores, effects), 0.0)
    means: Array = rest.sum(axis=1) / np.maximum(1, known.sum(axis=1))
    return means


def adjusted_means(scores: Array, *, num_rounds: int = 10) -> Array:
    """Mean score of each ordering as if all had been scored on all examples, less the mean example, ``[m]``.

    Two-way additive fit with shrunk effects, by alternation.

    Args:
        scores: Of orderings on examples, ``[m, E]``; NaN where there is none.
        num_rounds: Alternations.
    """
    counts = (~np.isnan(scores)).sum(axis=1)
    effects = np.zeros(len(scores))
    for _ in range(num_rounds):
        means = ordering_effects(scores, effects)
        effects = _shrunk(means, counts)
    return means


def shrunk_means(scores: Array) -> Array:
    """`adjusted_means`, the nearer to 0 the fewer examples they come from."""
    return _shrunk(adjusted_means(scores), (~np.isnan(scores)).sum(axis=1))


def _shrunk(means: Array, counts: NDArray[np.int64]) -> Array:
    shrunk: Array = means * counts / (counts + 0.5 / PRIOR_VARIANCE)
    return shrunk


class Surrogate:
    """The Gaussian process f over orderings, given as features.

    Attributes:
        variances: Of the families, and of an ordering's own effect, over the noise's; None before `fit`.
        mean: Posterior mean score of the orderings fitted, ``[m]``, on a mean example.
    """

    def __init__(self) -> None:
        self.variances: Array | None = None
        self.mean: Array

    def fit(self, features: Sequence[Array], scores: Array) -> None:
        """Learn from orderings' scores on examples.

        Args:
            features: ``[m, d]`` for each family.
            scores: ``[m, E]``, NaN where there is none; each row has one at least.
        """
        self._unit = float(np.nanmax(np.abs(scores))) or 1.0
        scores = scores / self._unit
        known = ~np.isnan(scores)
        counts = known.sum(axis=1).astype(np.float64)
        kernels = [family @ family.T for family in features] + [np.eye(len(scores))]
        variances = self.variances
        if variances is None:
            variances = np.full(len(kernels), PRIOR_VARIANCE / len(kernels))
        effects = shrunk_means(scores)
        num_steps = NUM_STEPS if self.variances is not None else 5 * NUM_STEPS
        for step in range(num_steps + 1):
            covariance = np.tensordot(variances, kernels, axes=1)
            inverse = np.asarray(np.linalg.inv(covariance + np.diag(1.0 / counts)), dtype=np.float64)
            means = ordering_effects(scores, effects)
            centre = np.average(means, weights=1.0 / (1.0 / counts + PRIOR_VARIANCE))
            effects = covariance @ (inverse @ (means - centre)) + centre
            if step < num_steps:
                noise = self._noise(scores, known, effects, float(np.vdot(covariance, inverse)))
                solved = inverse @ (means - centre) / np.sqrt(noise)
                variances = _step(variances, kernels, inverse, solved)
        self.variances = variances
        self._noise_variance = noise
        self._features = list(features)
        self._covariance, self._inverse = covariance, inverse
        self._solved = inverse @ (means - centre)
        self._weights = [v * (f.T @ self._solved) for v, f in zip(variances, features, strict=False)]
        examples = example_effects(scores, effects)
        self._level = float(examples[known.any(axis=0)].mean() + centre)
        self.mean = self._unit * (covariance @ self._solved + self._level)

    @staticmethod
    def _noise(scores: Array, known: NDArray[np.bool_], effects: Array, parameters: float) -> float:
        """Noise variance from what is left over, for the parameters used; 1 where all scores are equal."""
        spread = float(np.nanvar(scores))
        if spread <= 1e-18 * float(np.nanmax(np.abs(scores))) ** 2:
            return 1.0
        rest = np.where(known, scores - example_effects(scores, effects) - effects[:, None], 0.0)
        per_example = known.sum(axis=0)
        used = parameters + float((per_example / (per_example + EXAMPLE_SHRINKAGE)).sum())
        total = known.sum()
        return max(float((rest**2).sum() / max(total - used, 0.25 * total)), 1e-6 * spread)

    def predict(self, features: Sequence[Array]) -> Array:
        """Posterior mean score at other orderings."""
        pairs = zip(features, self._weights, strict=True)
        mean: Array = sum((family @ weights for family, weights in pairs), np.zeros(1)) + self._level
        return self._unit * mean

    def sample(self, features: Sequence[Array], num_draws: int, rng: np.random.Generator) -> Array:
        """Joint posterior draws of the scores of the orderings fitted and of others, ``[draws, m + c]``."""
        assert self.variances is not None
        cross = self._cross(features)
        own = np.tensordot(self.variances[:-1], [f @ f.T for f in features], axes=1)
        own[np.diag_indices(len(own))] += self.variances[-1]
        prior = np.block([[self._covariance, cross.T], [cross, own]])
        to_known = np.concatenate([self._covariance, cross])
        posterior = prior - to_known @ self._inverse @ to_known.T
        posterior[np.diag_indices(len(posterior))] += 1e-5
        root = linalg.cholesky(posterior, lower=True, check_finite=False)
        draws = rng.normal(size=(num_draws, len(posterior))) @ root.T
        sampled: Array = to_known @ self._solved + self._level + np.sqrt(self._noise_variance) * draws
        return self._unit * sampled

    def _cross(self, features: Sequence[Array]) -> Array:
        assert self.variances is not None
        pairs = zip(self.variances[:-1], features, self._features, strict=True)
        total: Array = sum((v * (there @ here.T) for v, there, here in pairs), np.zeros(1))
        return total


def _step(variances: Array, kernels: Sequence[Array], inverse: Array, solved: Array) -> Array:
    """One fixed-point step of the variances, in units of the noise."""
    prior = PRIOR_VARIANCE / len(variances)
    explained = np.array([solved @ kernel @ solved for kernel in kernels])
    traces = np.array([np.vdot(inverse, kernel) for kernel in kernels])
    stepped: Array = (0.5 * variances * explained + PRIOR_SHAPE) / (0.5 * traces + PRIOR_SHAPE / prior)
    return np.maximum(stepped, 1e-9)
