"""A Gaussian process that is a sum of independent ones, and how much each of them varies."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from plr_dspy.search.model.table import PRIOR_VARIANCE, Array

PRIOR_SHAPE = 0.3  # of the Gamma prior of each variance; small lets components vanish
NUM_STEPS, NUM_FIRST_STEPS = 3, 15  # of a fit of variances that goes on from an earlier one, and of the first


class Components(NamedTuple):
    """A sum of independent Gaussian processes, fitted to what was measured of m orderings, in units of the noise."""

    variances: Array  # of the components
    covariance: Array  # prior covariance of the values, [m, m]
    fixed: Array  # the part of it that was given, [m, m]
    inverse: Array  # inverse covariance of what was measured, [m, m]
    solved: Array  # it times what was measured less its mean, [m, ...]
    noise: float  # its variance

    def weights(self, features: Sequence[Array]) -> list[Array]:
        """Of the features ``[m, d]`` of the components but the last, in the posterior mean."""
        return [v * (f.T @ self.solved) for v, f in zip(self.variances[:-1], features, strict=True)]

    def left(self, before: Array, covariance: Array) -> Array:
        """Posterior variances of values, from prior ones ``[c]`` and covariances ``[c, m]`` with those fitted."""
        explained = ((covariance @ self.inverse) * covariance).sum(axis=1)
        return np.asarray(self.noise * np.maximum(before - explained, 1e-9))


def linear(features: Sequence[Array], weights: Sequence[Array]) -> Array:
    """The function of orderings' features, ``[c, d]`` of each family, that has these weights, ``[c]``."""
    return np.asarray(sum(f @ w for f, w in zip(features, weights, strict=True)))


def fit_components(
    kernels: Sequence[Array],  # covariances of the components at variance 1, [m, m] each
    errors: Array,  # covariance of what was measured beside the values, [m, m]
    measure: Callable[[Array, Array], tuple[Array, float]],
    *,
    earlier: Array | Sequence[float] | None = None,  # variances of the fit before, if of the same components
    total: float = PRIOR_VARIANCE,  # sum of the variances that the first fit begins with
    noise: float = 1.0,
    fixed: Array | float = 0.0,  # further prior covariance, [m, m]
    extra_variances: Array | float = 0.0,  # further prior variances in the values' own unit, [m]
) -> Components:
    """Maximise the restricted likelihood under a Gamma prior, by fixed-point steps (D. A. Harville, JASA 72, 1977).

    `measure` goes from the prior covariance, and the inverse covariance of what was measured, to that itself, less its
    mean, ``[m]`` or of several outputs ``[m, k]``, and to the variance of the noise, which begins with `noise`.
    """
    stacked, number, size = np.stack(kernels), len(kernels), len(errors)
    variances, num_steps = np.full(number, total / number), NUM_FIRST_STEPS
    if earlier is not None and len(earlier) == number:
        variances, num_steps = np.array(earlier), NUM_STEPS
    for step in range(num_steps + 1):
        given = fixed + np.diag(np.zeros(size) + extra_variances / noise)
        covariance = np.tensordot(variances, stacked, axes=1) + given
        inverse: Any = np.linalg.inv(covariance + errors)
        values, left = measure(covariance, inverse)
        solved = inverse @ values
        if step < num_steps:
            noise = left
            explained = np.array([np.vdot(solved, k @ solved) for k in kernels]) / (noise * solved.size / size)
            traces = stacked.reshape(number, -1) @ inverse.ravel()
            variances = 0.5 * variances * explained + PRIOR_SHAPE
            variances = np.maximum(variances / (0.5 * traces + PRIOR_SHAPE * number / total), 1e-9)
    return Components(variances, covariance, given, inverse, solved, noise)
