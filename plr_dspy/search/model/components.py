"""Gaussian processes that are sums of independent components with estimated variances.

symbol  code        shape   meaning
v_i     variances   [n]     variances of the n components; the last component has no features
G       fixed       [m, m]  prior covariance that is not estimated
K       covariance  [m, m]  sum_i v_i K_i + G
E       errors      [m, m]  covariance of the errors in the measured values
s       noise               noise variance, the unit of all variances and covariances above
y       values      [m, k]  measured values minus their mean; the last axis may be omitted if k = 1
u       solved      [m, k]  (K + E)^-1 y
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from plr_dspy.search.model.gains import Families
from plr_dspy.statistics.arrays import Array

Measure: TypeAlias = Callable[[Array, Array], tuple[Array, float]]  # maps K and (K + E)^-1 to y and s

# Prior mean of the variance between orderings, relative to the noise. At an accuracy of 0.6, the
# value 0.02 corresponds to a standard deviation of 0.07.
PRIOR_VARIANCE = 0.02
PRIOR_SHAPE = 0.3  # shape of each variance's Gamma prior, low so that unneeded components can vanish
NUM_STEPS = 15  # number of fixed-point steps in a fit
MIN_VARIANCE = 1e-9


@dataclass(frozen=True)
class Components:
    """A fitted sum of independent Gaussian processes, with variances relative to the noise."""

    variances: Array
    covariance: Array
    fixed: Array
    inverse: Array  # (K + E)^-1
    solved: Array
    noise: float
    weights: list[Array]  # weights of each family's features in the posterior mean, [d, k]

    @property
    def values(self) -> Array:
        """The posterior means of the fitted orderings, minus the mean of the values, ``[m, k]``."""
        return np.asarray(self.covariance @ self.solved)

    @property
    def posterior_variances(self) -> Array:
        """The posterior variances of the fitted orderings, ``[m]``."""
        return self.remaining(np.diag(self.covariance), self.covariance)

    def remaining(self, prior_variances: Array, covariance: Array) -> Array:
        """Return the posterior variances of orderings ``[c]``, given their prior variances ``[c]``.

        `covariance` holds the prior covariances between these and the fitted orderings, ``[c, m]``.
        """
        explained = ((covariance @ self.inverse) * covariance).sum(axis=1)
        return np.asarray(self.noise * np.maximum(prior_variances - explained, MIN_VARIANCE))


def linear(features: Families, weights: Families) -> Array:
    """Return the features ``[c, d]`` times the weights ``[d, k]``, summed over all families."""
    return np.asarray(sum(family @ w for family, w in zip(features, weights, strict=True)))


def kernels_of(features: Families) -> list[Array]:
    """Return the linear kernel ``[m, m]`` of each family."""
    return [family @ family.T for family in features]


def fit_components(
    features: Families,
    kernels: Families,
    errors: Array,
    measure: Measure,
    *,
    total: float = PRIOR_VARIANCE,
    noise: float = 1.0,
    fixed: Array | float = 0.0,
    extra_variances: Array | float = 0.0,
) -> Components:
    """Fit a sum of independent Gaussian processes to measured values.

    Fixed-point steps approximately maximize the likelihood of the variances times Gamma priors (D. A.
    Harville, JASA 72, 1977).

    Args:
        measure: A function that returns the measured values and the noise variance, given the
            current covariance K and the inverse of K + E.
        total: Prior mean and initial value of the sum of the variances.
        noise: Initial noise variance.
        fixed: The prior covariance G without `extra_variances`.
        extra_variances: Variances to add to the prior variances, ``[m]``, in the squared unit of the
            measured values.
    """
    stacked: Array = np.stack(kernels)
    count = len(kernels)
    size = len(errors)
    variances = np.full(count, total / count)
    rate = PRIOR_SHAPE * count / total
    for step in range(NUM_STEPS + 1):
        fixed_covariance = fixed + np.diag(np.zeros(size) + extra_variances / noise)
        covariance = np.tensordot(variances, stacked, axes=1) + fixed_covariance
        inverse: Any = np.linalg.inv(covariance + errors)
        values, new_noise = measure(covariance, inverse)
        solved = inverse @ values
        if step == NUM_STEPS:
            break
        noise = new_noise
        squares = np.array([np.vdot(solved, kernel @ solved) for kernel in kernels])
        explained = squares / (noise * solved.size / size)
        traces = stacked.reshape(count, -1) @ inverse.ravel()
        variances = (0.5 * variances * explained + PRIOR_SHAPE) / (0.5 * traces + rate)
        variances = np.maximum(variances, MIN_VARIANCE)
    weights = [v * (family.T @ solved) for v, family in zip(variances[:-1], features, strict=True)]
    return Components(variances, covariance, fixed_covariance, inverse, solved, noise, weights)
