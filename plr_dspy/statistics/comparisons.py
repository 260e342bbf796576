"""Intervals of paired differences and of means; whether orders differ by more than chance, and what the best may gain.

Examples are the random sample throughout: what is said is about the mean score on new examples. Answers that change
with the order on some examples, but not on the mean of all, are chance here. Analyses that take the scores of one
example for interchangeable (a permutation test within examples, Cochran's Q, the F test of orders x examples) find
too much where each example prefers similar orders; `benchmarks/sensitivity.py` has the figures.
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
TAIL = 0.025  # of each end of the intervals
# Examples on which orders disagree as far as on any seen, added to the noise of intervals: few examples that happen to
# agree must not look certain (see `paired_interval`).
PSEUDO_EXAMPLES = 2


def paired_interval(
    differences: Sequence[float], confidence: float = 0.95, *, num_comparisons: int = 1, largest: float = 0.0
) -> tuple[float, float]:
    """Confidence interval of a mean paired difference; 0 to 0 where all differences are 0.

    Student's t on the differences and two pseudo-examples: half of one each at the largest difference seen and at its
    negative, and one at 0. For right-or-wrong scores this is the adjusted Wald interval of Agresti and Min (Statistics
    in Medicine 24, 2005); it keeps a few examples that happen to agree from looking certain. So many comparisons hold
    together at the level `confidence` (Bonferroni). A difference may be as large as `largest`, if that is more than was
    seen.
    """
    mean, error, freedom = _with_pseudo_examples(differences, largest)
    margin = float(special.stdtrit(freedom, 1 - (1 - confidence) / (2 * num_comparisons))) * error
    return (mean - margin, mean + margin)


def paired_probability(differences: Sequence[float]) -> float:
    """Probability that a mean paired difference is above 0, by the `paired_interval`; .5 where all are 0."""
    mean, error, freedom = _with_pseudo_examples(differences)
    return float(special.stdtr(freedom, mean / error)) if error else 0.5


def _with_pseudo_examples(differences: Sequence[float], largest: float = 0.0) -> tuple[float, float, int]:
    """The mean of differences and two pseudo-examples, its standard error, and the degrees of freedom of that."""
    values = np.asarray(differences, dtype=float)
    if values.size == 0:
        raise ValueError("paired_interval needs at least one difference; got none")
    count, largest = values.size + 2, max(largest, float(np.abs(values).max()))
    mean = float(values.sum()) / count
    variance = (float((values**2).sum()) + largest**2) / count - mean**2
    return mean, math.sqrt(max(variance, 0.0) / count), count - 1


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student-t confidence interval of a mean of at least two values, such as that of the gains of several runs."""
    if len(values) < 2:
        raise ValueError(f"mean_interval needs at least two values; got {len(values)}")
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    margin = float(special.stdtrit(len(values) - 1, 0.5 + confidence / 2)) * error
    return (mean - margin, mean + margin)


class Spread(NamedTuple):
    """How far the scores of orders lie apart; intervals are those of 95 %."""

    p_value: float  # how often chance puts means at least so far apart if all orders score the same on new examples
    noise: float  # standard deviation that the choice of examples gives to the mean score of an order
    deviation: float  # standard deviation of the true scores of all orders, with that noise taken out
    deviation_interval: tuple[float, float]
    expected_gain: float  # true score of the best order less that of the program's own; 0 where none is better
    gain_interval: tuple[float, float]


class _Contrasts(NamedTuple):
    """Differences between the mean scores of n orders, in n - 1 coordinates whose errors are uncorrelated."""

    means: Array  # [n - 1]
    variances: Array  # of their errors, with the pseudo-examples, [n - 1]
    basis: Array  # from these coordinates to the orders, [n - 1, n]
    noise: float  # mean variance of their errors, without pseudo-examples
    num_examples: int  # that they are means of


def spread(
    scores: Array,  # [R, E], of at least 3 orders (2 where there are no more) on at least 2 examples
    *,
    num_distinct: int,  # orders that there are
    num_searched: int,  # those of which the gain takes the best
    bounds: tuple[float, float] | None = None,  # of mean scores, where those of examples may lie beyond
    seed: int = 0,
) -> Spread:
    """Take chance out of the spread of orders.

    Scores can lie between 0 and 1, or between the lowest and the highest seen where these lie beyond: no deviation and
    no gain is larger than that allows. The program's own order may have been chosen, so it is no part of the sample
    that stands for all orders, unless all have been scored: it comes first, the others are a random sample of the rest.
    """
    num_orders = len(scores)
    scores = scores[:, np.lexsort(scores)]  # so that the order of the examples does not change what is drawn
    rng = np.random.default_rng(seed)
    lowest, highest = min(0.0, float(scores.min())), max(1.0, float(scores.max()))
    scores = np.round(scores / (highest - lowest), 9) * (highest - lowest)  # differences of rounding are none
    disagreement = float(np.ptp(scores, axis=0).max()) or highest - lowest
    others = _contrasts(scores[1:], disagreement)
    every = num_orders == num_distinct
    sampled = _contrasts(scores, disagreement) if every else others
    population = min(num_distinct, 10**9) - (not every)
    low, high = _deviations(sampled, population, rng)
    scale = math.sqrt((population - 1) / population)  # from a sample's deviation to that of all there are
    most = (highest - lowest) / 2 / scale
    low, high = np.minimum(low, most), np.minimum(high, most)
    deviation = min(math.sqrt(max(0.0, float((sampled.means**2).mean()) - sampled.noise)), most)
    ends = min(float(np.quantile(low, TAIL)), deviation), max(float(np.quantile(high, 1 - TAIL)), deviation)
    gains_at = _gains(scores, others, disagreement, num_distinct, num_searched, rng)
    # The 95 % interval of the own score, with two pseudo-examples at either end (Agresti and Coull).
    with_ends = np.append(scores[0], [lowest, lowest, highest, highest])
    mean, margin = float(with_ends.mean()), 2 * float(with_ends.std()) / math.sqrt(len(with_ends))
    own = max(lowest, mean - margin), min(highest, mean + margin)
    gains = np.where(low > 0, gains_at(low), 0.0)
    least_gain = min(max(0.0, float(np.quantile(gains, TAIL))), highest - own[1])
    most_gain = min(max(0.0, float(np.quantile(gains_at(high), 1 - TAIL))), highest - own[0])
    gain = float(gains_at(np.full(NUM_DRAWS, deviation), observed=True).mean()) if deviation else 0.0
    gain = max(0.0, min(max(gain, least_gain), most_gain, highest - float(scores[0].mean())))
    low_mean, high_mean = bounds or (-math.inf, math.inf)
    largest, largest_gain = (high_mean - low_mean) / 2, max(0.0, high_mean - max(low_mean, float(scores[0].mean())))
    return Spread(
        p_value=_p_value(scores, rng),
        noise=math.sqrt(sampled.noise),
        deviation=min(deviation * scale, largest),
        deviation_interval=(min(ends[0] * scale, largest), min(ends[1] * scale, largest)),
        expected_gain=min(gain, largest_gain),
        gain_interval=(
            min(least_gain, gain, largest_gain),
            max(0.0, min(most_gain, high_mean - max(low_mean, own[0]))),
        ),
    )


def _p_value(scores: Array, rng: np.random.Generator) -> float:
    """Of the variance of mean scores, by flipping the signs of whole examples."""
    # If all orders score the same on new examples, an example's deviations from its own mean are 0 on the average; for
    # two orders and right-or-wrong answers this is McNemar's test.
    deviations = scores - scores[0]  # exactly 0 where no order differs
    deviations = deviations - deviations.mean(axis=0)
    observed = float((deviations.sum(axis=1) ** 2).sum())
    signs = rng.choice([-1.0, 1.0], size=(NUM_FLIPS, scores.shape[1]))
    flipped = ((signs @ deviations.T) ** 2).sum(axis=1)
    reached = int((flipped >= observed * (1 - 1e-9)).sum())
    return (1 + reached) / (1 + NUM_FLIPS)


def _contrasts(scores: Array, disagreement: float) -> _Contrasts:
    """Contrasts of orders, ``[n, E]``; their covariance is drawn towards that of unrelated orders until its sum of
    squares is the unbiased estimate (Z. Bai and H. Saranadasa, Statistica Sinica 6, 1996)."""
    num_orders, num_examples = scores.shape
    size = num_orders - 1
    if size == 0:
        return _Contrasts(np.zeros(0), np.zeros(0), np.zeros((0, 1)), 0.0, num_examples)
    basis = np.linalg.qr(np.column_stack([np.ones(num_orders), np.eye(num_orders)[:, 1:]]))[0].T[1:]
    contrasts = basis @ (scores - scores[0])
    covariance = np.cov(contrasts).reshape(size, size)
    total, freedom = float(np.trace(covariance)), num_examples - 1
    unrelated = total / size * np.eye(size)
    excess = float(((covariance - unrelated) ** 2).sum())
    kept = 0.0
    if excess > 0 and freedom > 1:
        square = freedom**2 / (freedom - 1) / (freedom + 2) * ((covariance**2).sum() - total**2 / freedom)
        kept = math.sqrt(np.clip((square - total**2 / size) / excess, 0.0, 1.0))
    variances, axes = np.linalg.eigh((kept * covariance + (1 - kept) * unrelated) / num_examples)
    one = disagreement**2 * num_orders / 4 / size  # half the orders at one end, half at the other
    return _Contrasts(
        means=axes.T @ contrasts.mean(axis=1),
        variances=np.maximum(variances, 0.0) + PSEUDO_EXAMPLES * one / num_examples**2,
        basis=axes.T @ basis,
        noise=total / size / num_examples,
        num_examples=num_examples,
    )


def _deviations(sampled: _Contrasts, population: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draws of the true deviation s, for either end of its interval: ``s b + g``, of noise g and effects of length b in
    the direction observed, is as long as what was observed (S. Weerahandi, JASA 88, 1993); 0 where g alone is."""
    size, variances = len(sampled.means), sampled.variances
    squared = float((sampled.means**2).sum())
    towards = sampled.means / math.sqrt(squared) if squared else np.eye(size)[0]
    freedom = (sampled.num_examples - 1) * variances.sum() ** 2 / (variances**2).sum()
    widths = np.sqrt(variances * freedom / rng.chisquare(freedom, size=(NUM_DRAWS, 1)))
    noise = rng.normal(size=(NUM_DRAWS, size)) * widths
    lengths = rng.chisquare(size, size=NUM_DRAWS)
    rest = population - 1 - size
    unseen = rng.chisquare(rest, size=NUM_DRAWS) if rest else 0.0
    lengths *= (population - 1) / (lengths + unseen)  # the deviation of all is 1, not that of the sample
    along, alone = np.sqrt(lengths) * (noise @ towards), (noise**2).sum(axis=1)
    reached = squared + variances.sum() - size * sampled.noise  # pseudo-examples lengthen both
    root = np.sqrt(np.maximum(along**2 - lengths * (alone - reached), 0.0))
    high = np.maximum((root - along) / lengths, 0.0)
    return np.where(alone >= reached, 0.0, high), high


def _gains(
    scores: Array,
    others: _Contrasts,
    disagreement: float,
    num_distinct: int,
    num_searched: int,
    rng: np.random.Generator,
) -> Callable[..., Array]:
    """Draws of what the best order gains over the own one, which may be less than 0, for draws of the deviation."""
    count, num_examples = len(scores) - 1, scores.shape[1]
    gaps = scores[1:].mean(axis=0) - scores[0]
    variance = (gaps.var(ddof=1) + PSEUDO_EXAMPLES * disagreement**2 / 2 / num_examples) / num_examples
    error = math.sqrt(variance) * rng.standard_t(num_examples - 1, size=NUM_DRAWS)
    noise = rng.normal(size=(NUM_DRAWS, count - 1))
    unseen = max(0.0, 1 / count - 1 / (min(num_distinct, 10**9) - 1))
    mean = math.sqrt(unseen) * rng.normal(size=NUM_DRAWS)
    more, uniform = num_searched - len(scores), rng.random(NUM_DRAWS)
    best_unseen = special.ndtri(uniform ** (1 / more)) if more > 0 else np.zeros(NUM_DRAWS)

    def gains(deviations: Array, *, observed: bool = False) -> Array:
        # Over the mean of the other orders, those scored are drawn towards it, and the rest are unknown. The own order
        # lies where it was observed, or is as unsure as the others.
        column = deviations[:, None]
        trust = column**2 / (column**2 + others.variances)
        effects = trust * others.means + np.sqrt(trust * others.variances) * noise
        best = np.maximum((effects @ others.basis).max(axis=1), deviations * best_unseen) + float(gaps.mean())
        return np.asarray(best if observed else best + error + mean * deviations)

    return gains
