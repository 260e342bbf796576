"""Whether orders differ by more than chance: scores of some orders on the same examples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

NUM_PERMUTATIONS = 4_999
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """How far the scores of orders lie apart.

    Attributes:
        p_value: Of scores that lie as far apart, if order decided nothing.
        noise: Standard deviation that chance alone gives to the mean score of an order.
        deviation: Standard deviation of the true scores of orders, with chance taken out.
        interval: Confidence interval of `deviation`.
    """

    p_value: float
    noise: float
    deviation: float
    interval: tuple[float, float]


def spread(scores: Array, seed: int = 0) -> Spread:
    """Take chance out of the spread of orders.

    The p-value is that of a permutation test: where order decides nothing, the scores of an example could as well
    have come from the orders in another arrangement. The deviation is that of a random-effects analysis of variance
    of orders x examples, its interval the one of the chi-squared distribution with the noise taken as known (Searle,
    Casella and McCulloch, Variance Components, 1992, chapter 3).

    Args:
        scores: ``[R, E]``, of at least 2 orders that are a random sample, on at least 2 examples.
        seed: Of the permutations.

    Raises:
        ValueError: for fewer.
    """
    num_orders, num_examples = scores.shape
    if num_orders < 2 or num_examples < 2:
        raise ValueError(f"scores must be of at least 2 orders and 2 examples; got shape {scores.shape}")
    deviation, noise, interval = _deviation(scores)
    rng, observed = np.random.default_rng(seed), _variance(scores)
    reached = sum(
        _variance(rng.permuted(scores, axis=0)) >= observed - 1e-12 for _ in range(NUM_PERMUTATIONS)
    )
    return Spread((1 + reached) / (1 + NUM_PERMUTATIONS), noise, deviation, interval)


def _deviation(scores: Array) -> tuple[float, float, tuple[float, float]]:
    """Standard deviation of true scores, that of the noise of means, and the interval of the first."""
    if (scores == scores[0]).all():
        return 0.0, 0.0, (0.0, 0.0)  # rounding would leave some
    num_orders, num_examples = scores.shape
    rows, columns = scores.mean(axis=1, keepdims=True), scores.mean(axis=0, keepdims=True)
    residuals = scores - rows - columns + scores.mean()
    freedom, observed = num_orders - 1, _variance(scores)
    noise = float((residuals**2).sum()) / (freedom * (num_examples - 1)) / num_examples
    tails = (0.5 + CONFIDENCE / 2, 0.5 - CONFIDENCE / 2)
    ends = [freedom * observed / float(special.chdtri(freedom, 1 - tail)) for tail in tails]
    low, deviation, high = (math.sqrt(max(0.0, v - noise)) for v in (ends[0], observed, ends[1]))
    return deviation, math.sqrt(noise), (low, high)


def _variance(scores: Array) -> float:
    """Of the mean scores of orders."""
    return float(scores.mean(axis=1).var(ddof=1))


def expected_maximum(count: int) -> float:
    """Mean of the largest of so many draws from the standard normal distribution."""
    x, step = np.linspace(-10.0, 10.0, 4001, retstep=True)
    density = count * np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * special.ndtr(x) ** (count - 1)
    return float((x * density).sum() * step)  # exact: smooth, and 0 at both ends
