"""Confidence intervals of means and paired differences, and the spread of orders' scores beyond chance.

The examples are a random sample, so all statements are about mean scores on new examples.
Shapes: R orders, E examples, D draws.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

from plr_dspy.statistics.arrays import Array

NUM_FLIPS = 4_999
NUM_DRAWS = 20_000
NUM_DEVIATIONS = 400
TAIL = 0.025  # probability outside the intervals, at each end
SIGNIFICANT = 0.05  # maximum p value at which the order of demos counts as relevant
MANY_ORDERS = 10**9  # cap on the number of orders, which grows factorially
# Extra examples with the largest difference, so that a few equal scores do not imply
# certainty.
PSEUDO_EXAMPLES = 2


def paired_interval(
    differences: Sequence[float], *, num_comparisons: int = 1, largest: float = 0.0
) -> tuple[float, float]:
    """Return the 95 % interval of a mean paired difference.

    This is Student's t interval with two pseudo-examples: one at 0, and one split between
    plus and minus the largest difference (Agresti and Min, Statistics in Medicine 24, 2005).
    If all differences are 0, the interval is (0, 0) unless `largest` is given.

    Args:
        differences: Differences of scores, one for each example.
        num_comparisons: Number of intervals that hold jointly (Bonferroni).
        largest: Largest possible absolute difference, if larger than those observed.

    Raises:
        ValueError: If there are no differences.
    """
    mean, error, freedom = _with_pseudo_examples(differences, largest)
    margin = float(special.stdtrit(freedom, 1 - TAIL / num_comparisons)) * error
    return (mean - margin, mean + margin)


def paired_probability(differences: Sequence[float]) -> float:
    """Return the probability of a mean above 0, as in `paired_interval`; 0.5 without differences."""
    mean, error, freedom = _with_pseudo_examples(differences)
    if not error:
        return 0.5
    return float(special.stdtr(freedom, mean / error))


def _with_pseudo_examples(differences: Sequence[float], largest: float = 0.0) -> tuple[float, float, int]:
    """Return the mean with pseudo-examples, its standard error and its degrees of freedom."""
    values = np.asarray(differences, dtype=float)
    if values.size == 0:
        raise ValueError("differences must contain at least one value; got none")
    count = values.size + 2
    largest = max(largest, float(np.abs(values).max()))
    mean = float(values.sum()) / count
    variance = (float((values**2).sum()) + largest**2) / count - mean**2
    return mean, math.sqrt(max(variance, 0.0) / count), count - 1


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's t 95 % interval of the mean of at least two values.

    Raises:
        ValueError: If there are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"values must contain at least two numbers; got {len(values)}")
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    margin = float(special.stdtrit(len(values) - 1, 1 - TAIL)) * error
    return (mean - margin, mean + margin)


class Spread(NamedTuple):
    """The spread of orders' scores, with 95 % intervals."""

    p_value: float  # p value of the hypothesis that all orders score the same on new examples
    deviation: float  # standard deviation of the true scores of all orders
    deviation_interval: tuple[float, float]
    expected_gain: float  # true gain of the best order over the program's own, at least 0
    gain_interval: tuple[float, float]


def spread(
    scores: Array, *, num_distinct: int, num_searched: int, bounds: tuple[float, float] | None = None, seed: int = 0
) -> Spread:
    """Separate real differences between orders from chance.

    True scores of orders are normal, with a flat prior on their standard deviation s, and mean
    scores add noise. The program's own order may have been selected, so it is part of the
    sample only if all orders are scored. Intervals start at 0 if chance alone explains the
    scores.

    Args:
        scores: Scores ``[R, E]`` of at least 3 orders (or of both, if only 2 exist): the
            program's own, then a random sample of the others.
        num_distinct: Number of distinct orders.
        num_searched: Number of orders searched, of which the best defines the gain.
        bounds: Bounds of mean scores, if scores of single examples can exceed them.
        seed: Seed of the random draws.
    """
    rng = np.random.default_rng(seed)
    scores, (lowest, highest), disagreement = prepared(scores, bounds)
    largest = (highest - lowest) / 2
    p_value = p_value_of(scores, rng)
    all_scored = len(scores) == num_distinct
    sample = scores if all_scored else scores[1:]
    population = min(num_distinct, MANY_ORDERS) - (len(scores) - len(sample))
    effects, s_draws, variance = draw_effects(sample, largest, disagreement, rng)
    squares = (effects**2).sum(axis=1)
    if population > len(sample):
        squares += s_draws**2 * rng.chisquare(population - len(sample), size=NUM_DRAWS)
    deviations = np.minimum(np.sqrt(squares / population), largest)
    low, high = _interval(deviations, p_value)
    deviation = math.sqrt(max(0.0, variance) * (population - 1) / population)
    best = effects.max(axis=1)
    num_unscored = num_searched - len(scores)
    if num_unscored > 0:
        unscored = special.ndtri(rng.random(NUM_DRAWS) ** (1 / num_unscored))
        shift = math.sqrt(1 / len(sample) - 1 / population) * rng.normal(size=NUM_DRAWS)
        best = np.maximum(best, s_draws * (unscored + shift))
    if all_scored:
        gains = best - effects[:, 0]
    else:
        gains = best + _mean_draws(sample.mean(axis=0) - scores[0], disagreement, rng)
    # Two pseudo-examples at each end of the range (Agresti and Coull) leave doubt about an
    # order that was always right.
    own_scores = np.append(scores[0], [lowest, lowest, highest, highest])
    own_error = float(own_scores.std()) / math.sqrt(len(own_scores))
    largest_gains = highest - own_scores.mean() - own_error * rng.normal(size=NUM_DRAWS)
    gains = np.clip(gains, 0.0, np.maximum(0.0, largest_gains))
    return Spread(
        p_value=p_value,
        deviation=min(max(deviation, low), high),
        deviation_interval=(low, high),
        expected_gain=float(gains.mean()),
        gain_interval=_interval(gains, p_value),
    )


def prepared(scores: Array, bounds: tuple[float, float] | None) -> tuple[Array, tuple[float, float], float]:
    """Return scores ``[R, E]``, bounds of mean scores, and the largest difference on an example.

    The scores are rounded and their examples sorted, because their order must not affect draws.
    """
    scores = np.round(scores, 9)
    scores = scores[:, np.lexsort(scores)]
    lowest, highest = bounds or (min(0.0, float(scores.min())), max(1.0, float(scores.max())))
    disagreement = float(np.ptp(scores, axis=0).max()) or highest - lowest
    return scores, (lowest, highest), disagreement


def p_value_of(scores: Array, rng: np.random.Generator) -> float:
    """Return the p value of a test of the variance of mean scores, which flips the signs of whole examples.

    If all orders score the same on new examples, each order's deviations from the examples'
    means average 0. For two orders and right-or-wrong scores, this is McNemar's test.
    """
    deviations = scores - scores[0]  # This makes deviations exactly 0 if no order differs.
    deviations = deviations - deviations.mean(axis=0)
    observed = float((deviations.sum(axis=1) ** 2).sum())
    signs = rng.choice([-1.0, 1.0], size=(NUM_FLIPS, scores.shape[1]))
    flipped = ((signs @ deviations.T) ** 2).sum(axis=1)
    num_as_large = int((flipped >= observed * (1 - 1e-9)).sum())
    return (1 + num_as_large) / (1 + NUM_FLIPS)


def draw_effects(
    scores: Array, largest: float, disagreement: float, rng: np.random.Generator, *, usual: float = math.inf
) -> tuple[Array, Array, float]:
    """Draw the effects of n orders ``[D, n]`` and s ``[D]``; also return the unbiased estimate of s squared.

    An effect is an order's true score minus the mean over all orders. Scores are ``[n, E]``.
    The prior of s is half normal with the scale `usual`; by default, it is flat.
    """
    num_orders, num_examples = scores.shape
    size = num_orders - 1
    residuals = scores - scores[0]
    residuals = residuals - residuals.mean(axis=0)
    means = residuals.mean(axis=1)
    covariance = np.cov(residuals)
    noise = float(np.trace(covariance)) / size / num_examples
    # A pseudo-example has half of the orders at one end of the range and half at the other.
    pseudo_noise = disagreement**2 * num_orders / 4 / size / num_examples**2
    total_noise = noise + PSEUDO_EXAMPLES * pseudo_noise
    squares = float((means**2).sum())

    grid = np.linspace(0.0, largest, NUM_DEVIATIONS)
    totals = grid**2 + total_noise
    degrees = _degrees_of_freedom(covariance, num_examples)
    log_likelihood = -0.5 * degrees * (np.log(totals) + squares / size / totals)
    log_prior = -0.5 * (grid / usual) ** 2
    s_draws = rng.choice(grid, size=NUM_DRAWS, p=special.softmax(log_likelihood + log_prior))
    shrinkage = s_draws**2 / (s_draws**2 + total_noise)
    errors = rng.normal(size=(NUM_DRAWS, num_orders))
    errors *= np.sqrt(shrinkage * total_noise)[:, None]
    errors -= errors.mean(axis=1, keepdims=True)
    return shrinkage[:, None] * means + errors, s_draws, squares / size - noise


def _degrees_of_freedom(covariance: Array, num_examples: int) -> float:
    """Return effective degrees of freedom of n means, given the covariance ``[n, n]`` of their noise.

    This is the geometric mean of n - 1 and the noise's degrees of freedom. If examples favour
    similar orders, the noise has fewer. The sum of squares is estimated without bias (Z. Bai
    and H. Saranadasa, Statistica Sinica 6, 1996).
    """
    size = len(covariance) - 1
    total = float(np.trace(covariance))
    count = num_examples - 1
    squares = float((covariance**2).sum()) - total**2 / count
    squares *= count**2 / max(1, count - 1) / (count + 2)
    if squares <= 0:
        return size
    return math.sqrt(size * min(size, max(1.0, total**2 / squares)))


def _mean_draws(differences: Array, disagreement: float, rng: np.random.Generator) -> Array:
    """Draw the true mean ``[D]`` of differences ``[E]``."""
    count = len(differences)
    variance = differences.var(ddof=1) + PSEUDO_EXAMPLES * disagreement**2 / 2 / count
    errors = rng.standard_t(count - 1, size=NUM_DRAWS)
    return np.asarray(differences.mean() + math.sqrt(variance / count) * errors)


def _interval(draws: Array, p_value: float) -> tuple[float, float]:
    """Return the 95 % interval of the draws, which starts at 0 if the orders do not differ significantly."""
    low, high = np.quantile(draws, [TAIL, 1 - TAIL]).tolist()
    if p_value > SIGNIFICANT:
        low = 0.0
    return low, high
