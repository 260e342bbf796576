"""Intervals of means and paired differences, and how far orders differ beyond chance.

Examples are the random sample: all statements are about the mean score on new
examples. If answers change with the order on some examples, but not on the mean
of all, that is chance here. Analyses that treat the scores of one example as
interchangeable (a permutation test within examples, Cochran's Q, the F test)
find too much if examples prefer similar orders; see `benchmarks/sensitivity.py`.

Shapes: R orders, E examples, D draws.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes half a second to import

Array = NDArray[np.float64]

NUM_FLIPS = 4_999
NUM_DRAWS = 20_000
TAIL = 0.025  # at each end of the intervals
MANY_ORDERS = 10**9  # the number that stands for all larger ones
# Added to the noise of intervals, as examples with the largest disagreement seen:
# a few examples that happen to agree must not look certain (see `paired_interval`).
PSEUDO_EXAMPLES = 2


def paired_interval(
    differences: Sequence[float], confidence: float = 0.95, *, num_comparisons: int = 1, largest: float = 0.0
) -> tuple[float, float]:
    """Return the confidence interval of a mean paired difference.

    It is Student's t on the differences and two pseudo-examples: one at 0, and
    half of one each at plus and minus the largest difference. For right-or-wrong
    scores this is the adjusted Wald interval of Agresti and Min (Statistics in
    Medicine 24, 2005). If all differences are 0, it is (0, 0).

    Args:
        differences: Differences of scores, one for each example.
        confidence: Level at which all comparisons hold together (Bonferroni).
        num_comparisons: Number of comparisons.
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
    noise: float  # standard deviation of an order's mean score over choices of examples
    deviation: float  # standard deviation of the true scores of all orders
    deviation_interval: tuple[float, float]
    expected_gain: float  # true score of the best order over the program's own, or 0
    gain_interval: tuple[float, float]


class _Table(NamedTuple):
    scores: Array  # [R, E]
    lowest: float
    highest: float
    disagreement: float  # the largest one of two orders on an example
    own_mean: float
    own_interval: tuple[float, float]


class _Contrasts(NamedTuple):
    """Differences between mean scores of n orders, in n - 1 uncorrelated coordinates."""

    means: Array  # [n - 1]
    variances: Array  # of their errors, with the pseudo-examples, [n - 1]
    basis: Array  # from the coordinates to the orders, [n - 1, n]
    noise: float  # mean variance of their errors, without pseudo-examples
    num_examples: int


def spread(
    scores: Array, *, num_distinct: int, num_searched: int, bounds: tuple[float, float] | None = None, seed: int = 0
) -> Spread:
    """Separate the spread of orders from chance.

    The program's own order may have been chosen, so it is no part of the sample
    unless all orders are scored.

    Args:
        scores: Scores ``[R, E]``, the own order first, then a random sample.
            At least 3 orders (or all 2) on at least 2 examples.
        num_distinct: Number of distinct orders.
        num_searched: Number of orders whose best one is the gain.
        bounds: Bounds of mean scores, which those of examples may exceed.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng(seed)
    table = _as_table(scores)
    others = _contrasts(table.scores[1:], table.disagreement)
    sampled = others
    population = min(num_distinct, MANY_ORDERS)
    if len(scores) == num_distinct:
        sampled = _contrasts(table.scores, table.disagreement)
    else:
        population -= 1

    to_population = math.sqrt((population - 1) / population)
    limit = (table.highest - table.lowest) / 2 / to_population
    low, high = (np.minimum(draws, limit) for draws in _deviations(sampled, population, rng))
    variance = float((sampled.means**2).mean()) - sampled.noise
    deviation = min(math.sqrt(max(0.0, variance)), limit)
    least = min(float(np.quantile(low, TAIL)), deviation)
    most = max(float(np.quantile(high, 1 - TAIL)), deviation)

    gains_at = _gains(table, others, num_distinct, num_searched, rng)
    gain = 0.0
    if deviation:
        gain = float(gains_at(np.full(NUM_DRAWS, deviation), observed=True).mean())
    least_gain, most_gain = _gain_interval(gains_at, low, high, table)
    gain = max(0.0, min(max(gain, least_gain), most_gain, table.highest - table.own_mean))

    low_bound, high_bound = bounds or (-math.inf, math.inf)
    largest = (high_bound - low_bound) / 2
    largest_gain = max(0.0, high_bound - max(low_bound, table.own_mean))
    most_gain = max(0.0, min(most_gain, high_bound - max(low_bound, table.own_interval[0])))
    deviations = np.minimum(np.array([deviation, least, most]) * to_population, largest).tolist()
    return Spread(
        p_value=_p_value(table.scores, rng),
        noise=math.sqrt(sampled.noise),
        deviation=deviations[0],
        deviation_interval=(deviations[1], deviations[2]),
        expected_gain=min(gain, largest_gain),
        gain_interval=(min(least_gain, gain, largest_gain), most_gain),
    )


def _as_table(scores: Array) -> _Table:
    # Sort the examples, so that their order does not change what is drawn.
    scores = scores[:, np.lexsort(scores)]
    lowest = min(0.0, float(scores.min()))
    highest = max(1.0, float(scores.max()))
    width = highest - lowest
    scores = np.round(scores / width, 9) * width  # rounding errors are no differences
    # Add two pseudo-examples at each end (Agresti and Coull).
    extended = np.append(scores[0], [lowest, lowest, highest, highest])
    mean = float(extended.mean())
    margin = 2 * float(extended.std()) / math.sqrt(len(extended))
    return _Table(
        scores,
        lowest,
        highest,
        disagreement=float(np.ptp(scores, axis=0).max()) or width,
        own_mean=float(scores[0].mean()),
        own_interval=(max(lowest, mean - margin), min(highest, mean + margin)),
    )


def _gain_interval(gains_at: Callable[..., Array], low: Array, high: Array, table: _Table) -> tuple[float, float]:
    own_low, own_high = table.own_interval
    least = float(np.quantile(np.where(low > 0, gains_at(low), 0.0), TAIL))
    most = float(np.quantile(gains_at(high), 1 - TAIL))
    return min(max(0.0, least), table.highest - own_high), min(max(0.0, most), table.highest - own_low)


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


def _contrasts(scores: Array, disagreement: float) -> _Contrasts:
    """Return the contrasts of orders ``[n, E]``.

    Their covariance shrinks towards that of unrelated orders until its sum of
    squares is the unbiased estimate (Z. Bai and H. Saranadasa, Statistica Sinica 6,
    1996).
    """
    num_orders, num_examples = scores.shape
    size = num_orders - 1
    if size == 0:
        return _Contrasts(np.zeros(0), np.zeros(0), np.zeros((0, 1)), 0.0, num_examples)
    columns = np.eye(num_orders)
    columns[:, 0] = 1.0
    basis = np.linalg.qr(columns)[0].T[1:]
    contrasts = basis @ (scores - scores[0])
    covariance = np.cov(contrasts).reshape(size, size)
    total = float(np.trace(covariance))
    freedom = num_examples - 1
    unrelated = total / size * np.eye(size)
    excess = float(((covariance - unrelated) ** 2).sum())
    share = 0.0
    if excess > 0 and freedom > 1:
        square = freedom**2 / (freedom - 1) / (freedom + 2) * ((covariance**2).sum() - total**2 / freedom)
        share = math.sqrt(np.clip((square - total**2 / size) / excess, 0.0, 1.0))
    shrunk = share * covariance + (1 - share) * unrelated
    variances, axes = np.linalg.eigh(shrunk / num_examples)
    # A pseudo-example puts half the orders at one end and half at the other.
    pseudo_example = disagreement**2 * num_orders / 4 / size
    return _Contrasts(
        means=axes.T @ contrasts.mean(axis=1),
        variances=np.maximum(variances, 0.0) + PSEUDO_EXAMPLES * pseudo_example / num_examples**2,
        basis=axes.T @ basis,
        noise=total / size / num_examples,
        num_examples=num_examples,
    )


def _deviations(sampled: _Contrasts, population: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw the true deviation s, for the lower and the upper end of its interval, ``[D]``.

    With noise g, and effects of length b in the direction observed, ``s b + g`` is
    as long as what was observed (S. Weerahandi, JASA 88, 1993). If g alone is as
    long, s is 0 at the lower end.
    """
    size = len(sampled.means)
    variances = sampled.variances
    squared = float((sampled.means**2).sum())
    direction = np.eye(size)[0]
    if squared:
        direction = sampled.means / math.sqrt(squared)
    freedom = (sampled.num_examples - 1) * variances.sum() ** 2 / (variances**2).sum()
    widths = np.sqrt(variances * freedom / rng.chisquare(freedom, size=(NUM_DRAWS, 1)))
    noise = rng.normal(size=(NUM_DRAWS, size)) * widths
    lengths = rng.chisquare(size, size=NUM_DRAWS)
    all_lengths = lengths.copy()
    num_unseen = population - 1 - size
    if num_unseen:
        all_lengths += rng.chisquare(num_unseen, size=NUM_DRAWS)
    # The deviation of all orders is 1, not that of the sample.
    lengths *= (population - 1) / all_lengths
    along = np.sqrt(lengths) * (noise @ direction)
    noise_alone = (noise**2).sum(axis=1)
    # Pseudo-examples lengthen both the noise and what was observed.
    observed = squared + variances.sum() - size * sampled.noise
    root = np.sqrt(np.maximum(along**2 - lengths * (noise_alone - observed), 0.0))
    high = np.maximum((root - along) / lengths, 0.0)
    low = np.where(noise_alone >= observed, 0.0, high)
    return low, high


def _gains(
    table: _Table, others: _Contrasts, num_distinct: int, num_searched: int, rng: np.random.Generator
) -> Callable[..., Array]:
    """Return a function that draws gains of the best order, ``[D]``, given deviations ``[D]``."""
    scores = table.scores
    count = len(scores) - 1
    num_examples = scores.shape[1]
    gaps = scores[1:].mean(axis=0) - scores[0]
    mean_gap = float(gaps.mean())
    variance = (gaps.var(ddof=1) + PSEUDO_EXAMPLES * table.disagreement**2 / 2 / num_examples) / num_examples
    error = math.sqrt(variance) * rng.standard_t(num_examples - 1, size=NUM_DRAWS)
    noise = rng.normal(size=(NUM_DRAWS, count - 1))
    unseen = max(0.0, 1 / count - 1 / (min(num_distinct, MANY_ORDERS) - 1))
    mean_unseen = math.sqrt(unseen) * rng.normal(size=NUM_DRAWS)
    uniform = rng.random(NUM_DRAWS)
    num_unscored = num_searched - len(scores)
    best_unscored = np.zeros(NUM_DRAWS)
    if num_unscored > 0:
        best_unscored = special.ndtri(uniform ** (1 / num_unscored))

    def gains(deviations: Array, *, observed: bool = False) -> Array:
        # The scored orders shrink towards the mean of the others. The own order is
        # where it was observed, or as uncertain as the others.
        squares = deviations[:, None] ** 2
        shrinkage = squares / (squares + others.variances)
        effects = shrinkage * others.means + np.sqrt(shrinkage * others.variances) * noise
        best_scored = (effects @ others.basis).max(axis=1)
        best: Array = np.maximum(best_scored, deviations * best_unscored) + mean_gap
        if observed:
            return best
        return best + error + mean_unseen * deviations

    return gains
