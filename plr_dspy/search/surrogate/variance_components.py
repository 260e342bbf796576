"""Variance components of a Gaussian process that is a sum of independent ones, over the noise's variance.

They maximise the marginal likelihood under a Gamma prior, by the fixed-point steps of restricted maximum
likelihood (D. A. Harville, "Maximum likelihood approaches to variance component estimation", JASA 72, 1977).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PRIOR_VARIANCE = 0.02
"""Prior mean of their sum: orders of accuracy .6 that differ by .06."""

PRIOR_SHAPE = 0.3
"""Of the Gamma prior of each; small lets components vanish."""

NUM_STEPS = 3
"""Steps of one fit that goes on from an earlier one."""

NUM_FIRST_STEPS = 15
"""Steps of the first."""


def begin(earlier: Array | None, number: int, *, total: float = PRIOR_VARIANCE) -> tuple[Array, int]:
    """The variances that a fit begins with, and its number of steps.

    Args:
        earlier: Of the fit before; None, or of another number of components, for none.
        number: Of components.
        total: Prior mean of their sum, which they begin with.
    """
    if earlier is None or len(earlier) != number:
        return np.full(number, total / number), NUM_FIRST_STEPS
    return earlier, NUM_STEPS


def posterior(
    variances: Array, kernels: Sequence[Array], noise: Array, *, fixed: Array | float = 0.0
) -> tuple[Array, Array]:
    """Prior covariance of the values and inverse covariance of their observations, ``[m, m]`` each.

    Args:
        variances: Of the components, ``[k]``.
        kernels: Their covariances at variance 1, ``[m, m]`` each.
        noise: Covariance of what the observations have beside the values, over the variance of one score, ``[m, m]``.
        fixed: Further prior variances of the values, which are known, ``[m]``.
    """
    covariance = np.tensordot(variances, kernels, axes=1) + fixed * np.eye(len(noise))
    inverse = np.linalg.inv(covariance + noise)
    return covariance, np.asarray(inverse, dtype=np.float64)


def stepped(
    variances: Array,
    kernels: Sequence[Array],
    inverse: Array,
    solved: Array,
    *,
    total: float = PRIOR_VARIANCE,
) -> Array:
    """The variances after one step.

    Args:
        variances, kernels: As in `posterior`.
        inverse: What `posterior` gave.
        solved: It times the centred observations, in units of the noise's standard deviation, ``[m]``; of several
            outputs with the same components ``[m, k]``, over the square root of k.
        total: Prior mean of their sum.
    """
    prior = total / len(variances)
    explained = np.array([np.vdot(solved, kernel @ solved) for kernel in kernels])
    traces = np.array([np.vdot(inverse, kernel) for kernel in kernels])
    after: Array = (0.5 * variances * explained + PRIOR_SHAPE) / (0.5 * traces + PRIOR_SHAPE / prior)
    return np.maximum(after, 1e-9)
