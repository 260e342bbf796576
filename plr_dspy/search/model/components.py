"""Gaussian processes as sums of components, whose variances are estimated.

symbol  code        shape   meaning
m, c                        orderings that were fitted, and other orderings
k                           outputs; a process of one output has none of this axis
F_i     features    [m, d]  features of all components but the last
K_i     kernels     [m, m]  covariance of component i at variance 1
v_i     variances   [n]     variances of the components
G       fixed       [m, m]  prior covariance that is not estimated
K       covariance  [m, m]  sum_i v_i K_i + G
E       errors      [m, m]  covariance of the errors of the measured values
s       noise               unit of all variances above
y       values      [m, k]  measured values without their mean
u       solved      [m, k]  (K + E)^-1 y
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from plr_dspy.search.model.gains import Families
from plr_dspy.statistics.arrays import Array

Variances: TypeAlias = Sequence[float] | None  # of an earlier fit that a fit continues
Measure: TypeAlias = Callable[[Array, Array], tuple[Array, float]]  # from K and (K + E)^-1 to y and s

PRIOR_VARIANCE = 0.02  # prior mean of orderings' variance over the noise's; at accuracy .6, orders differ by .06
PRIOR_SHAPE = 0.3  # of the Gamma prior of each variance; a small one lets components vanish
NUM_FIRST_STEPS = 15
NUM_STEPS = 3  # if an earlier fit is continued
MIN_VARIANCE = 1e-9


@dataclass(frozen=True)
class Components:
    """A fitted sum of independent Gaussian processes, in units of the noise."""

    variances: Array
    covariance: Array
    fixed: Array
    inverse: Array  # (K + E)^-1
    solved: Array
    noise: float
    weights: list[Array]  # of the features in the posterior mean, [d, k] of each family

    @property
    def values(self) -> Array:
        """Return the posterior means of the fitted orderings, ``[m, k]``."""
        return np.asarray(self.covariance @ self.solved)

    @property
    def posterior_variances(self) -> Array:
        """Return the posterior variances of the fitted orderings, ``[m]``."""
        return self.remaining(np.diag(self.covariance), self.covariance)

    def remaining(self, prior_variances: Array, covariance: Array) -> Array:
        """Return posterior variances ``[c]`` of values with these covariances ``[c, m]`` with the fitted ones."""
        explained = ((covariance @ self.inverse) * covariance).sum(axis=1)
        return np.asarray(self.noise * np.maximum(prior_variances - explained, MIN_VARIANCE))


def linear(features: Families, weights: Families) -> Array:
    """Return the linear function of features ``[c, d]`` that has these weights ``[d, k]``."""
    return np.asarray(sum(family @ w for family, w in zip(features, weights, strict=True)))


def kernels_of(features: Families) -> list[Array]:
    """Return the covariance ``[m, m]`` of a linear function of each family with variance 1."""
    return [family @ family.T for family in features]


def fit_components(
    features: Families,
    kernels: Families,
    errors: Array,
    measure: Measure,
    *,
    earlier: Variances = None,
    total: float = PRIOR_VARIANCE,
    noise: float = 1.0,
    fixed: Array | float = 0.0,
    extra_variances: Array | float = 0.0,
) -> Components:
    """Maximise the restricted likelihood under a Gamma prior by fixed-point steps.

    Source: D. A. Harville, JASA 72, 1977.

    Args:
        earlier: Variances of a fit of the same components; they are ignored if the components differ.
        total: Sum of the variances that a first fit starts from.
        noise: The noise that the fit starts from.
        extra_variances: Further prior variances in the unit of the values, ``[m]``.
    """
    stacked: Array = np.stack(kernels)
    count = len(kernels)
    size = len(errors)
    variances = np.full(count, total / count)
    num_steps = NUM_FIRST_STEPS
    if earlier is not None and len(earlier) == count:
        variances = np.array(earlier)
        num_steps = NUM_STEPS
    rate = PRIOR_SHAPE * count / total
    for step in range(num_steps + 1):
        given = fixed + np.diag(np.zeros(size) + extra_variances / noise)
        covariance = np.tensordot(variances, stacked, axes=1) + given
        inverse: Any = np.linalg.inv(covariance + errors)
        values, new_noise = measure(covariance, inverse)
        solved = inverse @ values
        if step == num_steps:
            break
        noise = new_noise
        squares = np.array([np.vdot(solved, kernel @ solved) for kernel in kernels])
        explained = squares / (noise * solved.size / size)
        traces = stacked.reshape(count, -1) @ inverse.ravel()
        variances = (0.5 * variances * explained + PRIOR_SHAPE) / (0.5 * traces + rate)
        variances = np.maximum(variances, MIN_VARIANCE)
    weights = [v * (family.T @ solved) for v, family in zip(variances[:-1], features, strict=True)]
    return Components(variances, covariance, given, inverse, solved, noise, weights)
