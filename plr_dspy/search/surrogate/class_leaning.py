"""How far an ordering leans towards some classes of examples at the cost of the others.

The order of demos moves a model towards one answer or another (T. Zhao et al., "Calibrate before use",
ICML 2021). How far is close to linear in the features of an ordering, and shows in which examples it gets
right; accuracy is not linear in it: it is best somewhere between the extremes. So it is learnt first, and what
accuracy does with it afterwards.

    rest of the score of ordering o on an example of class c  =  b_c l(o) + noise

b is the direction in which the orderings' profiles over the classes differ most: of two classes, their
difference. l is a Gaussian process with a variance for each feature family and for an ordering's own effect.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plr_dspy.search.surrogate.crossed_effects import (
    PRIOR_SHRINKAGE,
    example_effects,
    example_shrinkage,
    parameters_used,
)
from plr_dspy.search.surrogate.variance_components import begin, posterior, stepped

Array = NDArray[np.float64]

CENTRES = np.arange(-4.0, 4.01, 0.5)
"""Of the bumps that make up the function of the leaning, in standard deviations over random orderings."""

FURTHEST = 6.0
"""Leanings beyond it count as this, in the same unit."""


class Leaning:
    """The process l.

    Attributes:
        variances: Of its components, over the noise's.
        explained: What it explains of each score, ``[m, E]``, of scores known or not.

    Args:
        features: Of the orderings, ``[m, d]`` for each family.
        kernels: Of the families and of own effects, ``[m, m]`` each.
        scores: ``[m, E]``, NaN where there is none.
        classes: Of the examples, numbers from 0 without gaps, ``[E]``.
        effects: Of the orderings, ``[m]``.
        references: Features of random orderings.
        earlier: Variances of the fit before; None for none.
    """

    def __init__(
        self,
        features: Sequence[Array],
        kernels: Sequence[Array],
        scores: Array,
        classes: NDArray[np.int64],
        effects: Array,
        *,
        references: Sequence[Array],
        earlier: Array | None,
    ) -> None:
        known = ~np.isnan(scores)
        shrinkage = example_shrinkage(scores)
        rest = np.where(known, scores - example_effects(scores, effects, shrinkage) - effects[:, None], 0.0)
        of_class = np.eye(classes.max() + 1)[classes]
        sums, counts = rest @ of_class, known @ of_class
        direction = _direction(sums, counts)
        along = sums @ direction
        precisions = np.maximum(counts @ direction**2, 1e-3)
        means = along / precisions
        free = known.sum() - parameters_used(known, shrinkage)
        variances, num_steps = begin(earlier, len(kernels))
        for step in range(num_steps + 1):
            covariance, inverse = posterior(variances, kernels, np.diag(1.0 / precisions))
            centre = float(np.average(means, weights=precisions))
            solved = inverse @ (means - centre)
            leaning = covariance @ solved + centre
            if step < num_steps:
                left = float((rest**2).sum() - 2 * along @ leaning + precisions @ leaning**2)
                noise = left / max(free - float(np.vdot(covariance, inverse)), 0.25 * free)
                variances = stepped(variances, kernels, inverse, solved / np.sqrt(max(noise, 1e-9)))
        self.variances = variances
        self.explained = leaning[:, None] * direction[classes]
        self._weights = [v * (f.T @ solved) for v, f in zip(variances, features, strict=False)]
        at_random = self._predicted(references)
        self._centre, self._spread = float(at_random.mean()), float(at_random.std()) + 1e-9
        bumps = self._bumps(references)
        self._mean = bumps.mean(axis=0)
        self._scale = 1.0 / np.sqrt(((bumps - self._mean) ** 2).sum(axis=1).mean() + 1e-12)

    def family(self, features: Sequence[Array]) -> Array:
        """Features of the orderings' leaning ``[m, d]``: a linear function of them is a smooth one of the leaning.

        Centred and scaled as those of `features` are.
        """
        family: Array = (self._bumps(features) - self._mean) * self._scale
        return family

    def _predicted(self, features: Sequence[Array]) -> Array:
        """Posterior mean of the leaning, less a constant, ``[m]``."""
        total: Array = sum(
            (f @ weights for f, weights in zip(features, self._weights, strict=True)), np.zeros(1)
        )
        return total

    def _bumps(self, features: Sequence[Array]) -> Array:
        leaning = np.clip((self._predicted(features) - self._centre) / self._spread, -FURTHEST, FURTHEST)
        bumps: Array = np.exp(-0.5 * (leaning[:, None] - CENTRES) ** 2)
        return bumps


def _direction(sums: Array, counts: Array) -> Array:
    """The loading of each class, ``[C]``: mean 0 and mean square 1 over the scores.

    Args:
        sums, counts: Of the scores' rest, and of the scores, of each ordering in each class, ``[m, C]``.
    """
    profiles = sums / (counts + PRIOR_SHRINKAGE)
    profiles -= profiles.mean(axis=1, keepdims=True)
    direction = np.linalg.svd(profiles, full_matrices=False)[2][0]
    shares = counts.sum(axis=0) / counts.sum()
    direction = direction - direction @ shares
    scaled: Array = direction / np.sqrt(direction**2 @ shares + 1e-12)
    return scaled
