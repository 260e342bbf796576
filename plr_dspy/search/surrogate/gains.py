"""What orderings gain on new examples, and how sure that is, with the variances not taken for known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

SCALES = (0.0, 0.03, 0.1, 0.2, 0.35, 0.6, 1.0, 1.5, 2.2)
"""What the variance of orderings may be, over its estimate."""

PRIOR_NOTHING = 0.5
"""Prior probability of the first: that all orderings score the same on new examples."""


def expected_gains(
    means: Array, *, covariance: Array, apart: Array, noise: Array, reference: int
) -> tuple[Array, Array]:
    """What orderings score above one of them, and the probability that they are better, ``[m]`` each.

    The variance of orderings is an estimate, and takes chance for an effect where there is none. So both are means over
    what it may be, by the likelihood of the scores: from none to more than the estimate.

    Args:
        means: Mean scores of the orderings less the effects of their examples, in units of the standard deviation of a
            single score, ``[m]``.
        covariance: Of their true scores as estimated, ``[m, m]``; all variances are over that of a single score.
        apart: Further variances of those that are not of the same kind as the others, whatever these are, ``[m]``.
        noise: Covariance of what the means have beside the true scores, ``[m, m]``.
        reference: The number of the ordering that the others are held against.
    """
    logs, gains, chances = [], [], []
    for scale in SCALES:
        prior = scale * covariance + np.diag(apart)
        inverse = np.asarray(np.linalg.inv(prior + noise), dtype=np.float64)
        rest: Array = means - generalised_mean(means, inverse)
        # The restricted likelihood: the mean of all is not known.
        logs.append(
            0.5 * np.linalg.slogdet(inverse)[1] - 0.5 * np.log(inverse.sum()) - 0.5 * rest @ inverse @ rest
        )
        contrasts = prior - prior[reference]
        gains.append(contrasts @ inverse @ rest)
        before = np.diag(prior) + prior[reference, reference] - 2 * prior[reference]
        weights = contrasts @ inverse
        of_mean = weights.sum(axis=1) ** 2 / inverse.sum()
        after = np.maximum(before - (weights * contrasts).sum(axis=1) + of_mean, 0.0)
        differ = before > 1e-12
        chance = special.ndtr(gains[-1] / np.sqrt(np.where(differ, np.maximum(after, 1e-18), 1.0)))
        chances.append(np.where(differ, chance, 0.0))
    nothing = np.array(SCALES) == 0.0
    shares = np.where(nothing, PRIOR_NOTHING / nothing.sum(), (1 - PRIOR_NOTHING) / (~nothing).sum())
    shares *= np.exp(np.array(logs) - max(logs))
    shares /= shares.sum()
    return shares @ np.array(gains), shares @ np.array(chances)


def generalised_mean(values: Array, inverse: Array) -> float:
    """Generalised least-squares mean of values with this inverse covariance."""
    weights = inverse.sum(axis=0)
    return float(weights @ values / weights.sum())
