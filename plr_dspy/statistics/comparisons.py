"""Confidence intervals for means and paired differences, and a test of whether orders differ in score.

The examples are treated as a random sample, so all results are estimates for new examples.
Shapes: R orders, E examples, D draws.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special  # scipy.stats would take half a second to import

from plr_dspy.statistics.arrays import Array

NUM_FLIPS = 4_999  # number of random permutations in a permutation test
NUM_DRAWS = 20_000  # number of draws from a posterior
NUM_DEVIATIONS = 400  # number of points in a grid of standard deviations
TAIL = 0.025  # probability on each side of a 95% interval
SIGNIFICANT = 0.05  # maximum p-value for the conclusion that the order of demos matters
# Number of artificial examples to add. On these examples, programs differ as much as on the real example
# with the largest difference. Without them, equal scores on a few examples would imply certainty.
PSEUDO_EXAMPLES = 2


def paired_interval(
    differences: Sequence[float], *, num_comparisons: int = 1, largest: float = 0.0
) -> tuple[float, float]:
    """Return the 95% interval for a mean paired difference.

    The interval is calculated using Student's t distribution, after adding two artificial
    differences (A. Agresti and Y. Min, Statistics in Medicine 24, 2005). One of them is 0. The
    other is split into two values with a weight of 1/2 each: plus and minus the largest absolute
    difference. If all differences are 0, the interval is (0, 0) unless `largest` is above 0.

    Args:
        differences: Score differences, one for each example.
        num_comparisons: Number of simultaneous intervals. With a probability of at least 95%, all
            of them contain their true values (Bonferroni correction).
        largest: Largest possible absolute difference. Ignored if an observed absolute
            difference is larger.

    Raises:
        ValueError: If there are no differences.
    """
    mean, error, freedom = _with_pseudo_examples(differences, largest)
    margin = float(special.stdtrit(freedom, 1 - TAIL / num_comparisons)) * error
    return (mean - margin, mean + margin)


def limited_interval(
    differences: Sequence[float], largest: float, *, num_comparisons: int = 1
) -> tuple[float, float]:
    """Return the 95% interval for a mean paired difference, limited to the largest possible difference.

    If only a few differences are not 0, they may all be small by chance. After K of them, the next
    is larger than all K with a probability of 1 / (K + 1). Therefore, the artificial difference is
    at least the largest possible difference divided by K + 1.
    """
    num_different = int(np.count_nonzero(differences))
    low, high = paired_interval(
        differences, num_comparisons=num_comparisons, largest=largest / (num_different + 1)
    )
    return max(low, -largest), min(high, largest)


def paired_probability(differences: Sequence[float]) -> float:
    """Return the probability that the mean difference on new examples is above 0.

    The mean difference has the same distribution as in `paired_interval()`. If all differences are
    0, return 0.5.
    """
    mean, error, freedom = _with_pseudo_examples(differences)
    if not error:
        return 0.5
    return float(special.stdtr(freedom, mean / error))


def _with_pseudo_examples(differences: Sequence[float], largest: float = 0.0) -> tuple[float, float, int]:
    """Add two artificial differences, and return the mean, standard error and degrees of freedom."""
    values = np.asarray(differences, dtype=float)
    if values.size == 0:
        raise ValueError("differences must contain at least one number; got 0 numbers")
    count = values.size + 2
    largest = max(largest, float(np.abs(values).max()))
    mean = float(values.sum()) / count
    variance = (float((values**2).sum()) + largest**2) / count - mean**2
    return mean, math.sqrt(max(variance, 0.0) / count), count - 1


def likely_bounds(scores: Sequence[float]) -> tuple[float, float]:
    """Return likely bounds of a metric, given some of its scores.

    If no score is negative, the bounds are 0 and the larger of 1 and the highest score. Otherwise,
    they are the lowest score and the larger of 0 and the highest score.
    """
    lowest = min(scores)
    highest = max(scores)
    if lowest >= 0.0:
        return 0.0, max(1.0, highest)
    return lowest, max(0.0, highest)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval for a population mean, based on a sample and Student's t distribution.

    Raises:
        ValueError: If there are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"values must contain at least two numbers; got {len(values)}")
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    margin = float(special.stdtrit(len(values) - 1, 1 - TAIL)) * error
    return (mean - margin, mean + margin)


def p_value_of(scores: Array, rng: np.random.Generator) -> float:
    """Return the p-value of a permutation test for differences between the orders' mean scores.

    `scores` has the shape ``[R, E]``. The null hypothesis is that all orders are equally good on
    new examples. The test statistic is the variance of the orders' mean scores. On each example,
    the mean score of all orders is subtracted first. Each permutation then flips the signs of the
    resulting differences on random examples. For two orders and scores of 0 or 1, the test is
    equivalent to McNemar's test.
    """
    # Subtract a row first, so that the deviations are exactly 0 if all orders have equal scores.
    deviations = scores - scores[0]
    deviations = deviations - deviations.mean(axis=0)
    observed = float((deviations.sum(axis=1) ** 2).sum())
    signs = rng.choice([-1.0, 1.0], size=(NUM_FLIPS, scores.shape[1]))
    flipped = ((signs @ deviations.T) ** 2).sum(axis=1)
    num_as_large = int((flipped >= observed * (1 - 1e-9)).sum())
    return (1 + num_as_large) / (1 + NUM_FLIPS)


def draw_deviations(
    scores: Array, largest: float, disagreement: float, rng: np.random.Generator, *, usual: float
) -> tuple[Array, float]:
    """Estimate the standard deviation of the orders' true mean scores.

    Return posterior draws of the standard deviation, ``[D]``, and an unbiased estimate of its
    square.

    Args:
        scores: Scores of the orders, ``[R, E]``.
        largest: Largest possible standard deviation.
        disagreement: Largest difference between scores on one example. On each artificial example,
            half of the orders are assumed to score this much more than the other half.
        rng: Source of random numbers.
        usual: Scale of the half-normal prior for the standard deviation.
    """
    num_orders, num_examples = scores.shape
    size = num_orders - 1
    residuals = scores - scores[0]
    residuals = residuals - residuals.mean(axis=0)
    means = residuals.mean(axis=1)
    covariance = np.cov(residuals)
    noise = float(np.trace(covariance)) / size / num_examples
    pseudo_noise = disagreement**2 * num_orders / 4 / size / num_examples**2
    variance = float((means**2).sum()) / size

    grid = np.linspace(0.0, largest, NUM_DEVIATIONS)
    totals = grid**2 + noise + PSEUDO_EXAMPLES * pseudo_noise
    degrees = _degrees_of_freedom(covariance, num_examples)
    log_likelihood = -0.5 * degrees * (np.log(totals) + variance / totals)
    log_prior = -0.5 * (grid / usual) ** 2
    draws = rng.choice(grid, size=NUM_DRAWS, p=special.softmax(log_likelihood + log_prior))
    return draws, variance - noise


def _degrees_of_freedom(covariance: Array, num_examples: int) -> float:
    """Return the effective degrees of freedom of the variance between mean scores.

    The result is the geometric mean of R - 1 and the degrees of freedom of the noise. The noise has
    the given `covariance`, ``[R, R]``. It has fewer than R - 1 degrees of freedom if similar orders
    get similar scores on an example. The estimate of the sum of squared covariances is unbiased
    (Z. Bai and H. Saranadasa, Statistica Sinica 6, 1996).
    """
    size = len(covariance) - 1
    total = float(np.trace(covariance))
    count = num_examples - 1
    squares = float((covariance**2).sum()) - total**2 / count
    squares *= count**2 / max(1, count - 1) / (count + 2)
    if squares <= 0:
        return size
    return math.sqrt(size * min(size, max(1.0, total**2 / squares)))
