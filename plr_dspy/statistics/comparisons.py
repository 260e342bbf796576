"""Intervals of means and paired differences, and how far orders differ beyond chance.

Examples are the random sample: all statements are about mean scores on new
examples. Shapes: R orders, E examples, D draws.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes half a second to import

Array = NDArray[np.float64]

NUM_FLIPS = 4_999
NUM_DRAWS = 20_000
NUM_DEVIATIONS = 400
TAIL = 0.025  # at each end of the intervals
SIGNIFICANT = 0.05  # The order of demos matters if the p value is at most this.
MANY_ORDERS = 10**9  # stands for all larger numbers of orders
# Added to the noise, as examples with the largest difference: a few examples that
# agree must not look certain.
PSEUDO_EXAMPLES = 2


def paired_interval(
    differences: Sequence[float], confidence: float = 0.95, *, num_comparisons: int = 1, largest: float = 0.0
) -> tuple[float, float]:
    """Return the confidence interval of a mean paired difference.

    It is Student's t with two pseudo-examples: one at 0, and half of one each at
    plus and minus the largest difference (Agresti and Min, Statistics in Medicine
    24, 2005). If all differences are 0, it is (0, 0).

    Args:
        differences: Differences of scores, one for each example.
        confidence: Level at which all `num_comparisons` hold together (Bonferroni).
        largest: Largest possible difference, if it is more than was seen.
    """
    mean, error, freedom = _with_pseudo_examples(differences, largest)
    tail = (1 - confidence) / (2 * num_comparisons)
    margin = float(special.stdtrit(freedom, 1 - tail)) * error
    return (mean - margin, mean + margin)


def paired_probability(differences: Sequence[float]) -> float:
    """Return the probability of a mean above 0, by `paired_interval`; .5 if all are 0."""
    mean, error, freedom = _with_pseudo_examples(differences)
    if not error:
        return 0.5
    return float(special.stdtr(freedom, mean / error))


def _with_pseudo_examples(differences: Sequence[float], largest: float = 0.0) -> tuple[float, float, int]:
    """Return the mean, its standard error and degrees of freedom."""
    values = np.asarray(differences, dtype=float)
    if values.size == 0:
        raise ValueError("paired_interval needs at least one difference; got none")
    count = values.size + 2
    largest = max(largest, float(np.abs(values).max()))
    mean = float(values.sum()) / count
    variance = (float((values**2).sum()) + largest**2) / count - mean**2
    return mean, math.sqrt(max(variance, 0.0) / count), count - 1


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return Student's t confidence interval of the mean of two or more values."""
    if len(values) < 2:
        raise ValueError(f"mean_interval needs at least two values; got {len(values)}")
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    margin = float(special.stdtrit(len(values) - 1, 0.5 + confidence / 2)) * error
    return (mean - margin, mean + margin)


class Spread(NamedTuple):
    """How far the scores of orders lie apart, with 95 % intervals."""

    p_value: float  # of means as far apart, if all orders score the same on new examples
    deviation: float  # standard deviation of the true scores of all orders
    deviation_interval: tuple[float, float]
    expected_gain: float  # true score of the best order over that of the program's own, or 0
    gain_interval: tuple[float, float]


def spread(
    scores: Array, *, num_distinct: int, num_searched: int, bounds: tuple[float, float] | None = None, seed: int = 0
) -> Spread:
    """Separate the spread of orders from chance.

    The true scores of orders are normal; their standard deviation s has a flat
    prior. Mean scores add noise. The program's own order may have been chosen, so
    it is no part of the sample unless all orders are scored. Intervals begin at 0
    if chance alone explains the scores.

    Args:
        scores: Scores ``[R, E]`` of at least 3 orders (or all 2): the own order,
            then a random sample.
        num_distinct: Number of distinct orders.
        num_searched: Number of orders whose best one is the gain.
        bounds: Bounds of mean scores, if scores of examples may exceed them.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng(seed)
    scores = np.round(scores, 9)
    # The order of the examples must not change what is drawn.
    scores = scores[:, np.lexsort(scores)]
    lowest = min(0.0, float(scores.min()))
    highest = max(1.0, float(scores.max()))
    if bounds is not None:
        lowest, highest = bounds
    largest = (highest - lowest) / 2
    disagreement = float(np.ptp(scores, axis=0).max()) or highest - lowest
    p_value = _p_value(scores, rng)

    all_scored = len(scores) == num_distinct
    sample = scores if all_scored else scores[1:]
    population = min(num_distinct, MANY_ORDERS) - (len(scores) - len(sample))
    effects, drawn, variance = _effects(sample, largest, disagreement, rng)
    squares = (effects**2).sum(axis=1)
    if population > len(sample):
        squares += drawn**2 * rng.chisquare(population - len(sample), size=NUM_DRAWS)
    deviations = np.minimum(np.sqrt(squares / population), largest)
    low, high = _interval(deviations, p_value)
    deviation = math.sqrt(max(0.0, variance) * (population - 1) / population)

    best = effects.max(axis=1)
    num_unscored = num_searched - len(scores)
    if num_unscored > 0:
        unscored = special.ndtri(rng.random(NUM_DRAWS) ** (1 / num_unscored))
        shift = math.sqrt(1 / len(sample) - 1 / population) * rng.normal(size=NUM_DRAWS)
        best = np.maximum(best, drawn * (unscored + shift))
    if all_scored:
        gains = best - effects[:, 0]
    else:
        gains = best + _mean_draws(sample.mean(axis=0) - scores[0], disagreement, rng)
    # Two pseudo-examples at each end (Agresti and Coull): an own order that was
    # always right is not perfect.
    own_scores = np.append(scores[0], [lowest, lowest, highest, highest])
    own_error = float(own_scores.std()) / math.sqrt(len(own_scores))
    most = highest - own_scores.mean() - own_error * rng.normal(size=NUM_DRAWS)
    gains = np.clip(gains, 0.0, np.maximum(0.0, most))
    return Spread(
        p_value=p_value,
        deviation=min(max(deviation, low), high),
        deviation_interval=(low, high),
        expected_gain=float(gains.mean()),
        gain_interval=_interval(gains, p_value),
    )


def _p_value(scores: Array, rng: np.random.Generator) -> float:
    """Test the variance of mean scores by flipping the signs of whole examples.

    If all orders score the same on new examples, an example's deviations from its
    own mean are 0 on average. For two orders and right-or-wrong scores this is
    McNemar's test.
    """
    deviations = scores - scores[0]  # exactly 0 if no order differs
    deviations = deviations - deviations.mean(axis=0)
    observed = float((deviations.sum(axis=1) ** 2).sum())
    signs = rng.choice([-1.0, 1.0], size=(NUM_FLIPS, scores.shape[1]))
    flipped = ((signs @ deviations.T) ** 2).sum(axis=1)
    num_reached = int((flipped >= observed * (1 - 1e-9)).sum())
    return (1 + num_reached) / (1 + NUM_FLIPS)


def _effects(
    scores: Array, largest: float, disagreement: float, rng: np.random.Generator
) -> tuple[Array, Array, float]:
    """Draw effects of orders ``[D, n]`` and s ``[D]``; return these and the unbiased s squared.

    An effect is the true score of an order less the mean of all. Scores are ``[n, E]``.
    """
    num_orders, num_examples = scores.shape
    size = num_orders - 1
    residuals = scores - scores[0]
    residuals = residuals - residuals.mean(axis=0)
    means = residuals.mean(axis=1)
    covariance = np.cov(residuals)
    noise = float(np.trace(covariance)) / size / num_examples
    # A pseudo-example puts half the orders at one end and half at the other.
    pseudo_noise = disagreement**2 * num_orders / 4 / size / num_examples**2
    total_noise = noise + PSEUDO_EXAMPLES * pseudo_noise
    squares = float((means**2).sum())

    grid = np.linspace(0.0, largest, NUM_DEVIATIONS)
    totals = grid**2 + total_noise
    freedom = _freedom(covariance, num_examples)
    log_likelihood = -0.5 * freedom * (np.log(totals) + squares / size / totals)
    drawn = rng.choice(grid, size=NUM_DRAWS, p=special.softmax(log_likelihood))
    shrinkage = drawn**2 / (drawn**2 + total_noise)
    errors = rng.normal(size=(NUM_DRAWS, num_orders))
    errors *= np.sqrt(shrinkage * total_noise)[:, None]
    errors -= errors.mean(axis=1, keepdims=True)
    return shrinkage[:, None] * means + errors, drawn, squares / size - noise


def _freedom(covariance: Array, num_examples: int) -> float:
    """Return the degrees of freedom of n orders whose noise has this covariance ``[n, n]``.

    They are the geometric mean of n - 1 and those of the noise, which are fewer if
    examples prefer similar orders. The sum of squares is the unbiased one of Z. Bai
    and H. Saranadasa (Statistica Sinica 6, 1996).
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
    """Draw the true mean of differences ``[E]``."""
    count = len(differences)
    variance = differences.var(ddof=1) + PSEUDO_EXAMPLES * disagreement**2 / 2 / count
    errors = rng.standard_t(count - 1, size=NUM_DRAWS)
    return np.asarray(differences.mean() + math.sqrt(variance / count) * errors)


def _interval(draws: Array, p_value: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [TAIL, 1 - TAIL]).tolist()
    if p_value > SIGNIFICANT:
        low = 0.0
    return low, high
