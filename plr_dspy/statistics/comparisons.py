"""Paired comparisons of scores; agreement of orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes half a second to import


def paired_interval(
    differences: Sequence[float], confidence: float = 0.95, *, num_comparisons: int = 1
) -> tuple[float, float]:
    """Confidence interval of a mean paired difference.

    Student's t on the differences and two pseudo-examples: half of one each at the largest
    difference seen and at its negative, and one at 0. For right-or-wrong scores this is the adjusted
    Wald interval of Agresti and Min (Statistics in Medicine 24, 2005); it keeps a few examples that
    happen to agree from looking certain.

    Args:
        differences: One difference for each example.
        confidence: Level of the interval, in (0, 1).
        num_comparisons: How many such intervals hold together at that level (Bonferroni).

    Returns:
        Lower and upper end. Where all differences are 0, both are.
    """
    values = np.asarray(differences, dtype=float)
    if values.size == 0:
        raise ValueError("paired_interval needs at least one difference; got none")
    count = values.size + 2
    largest = float(np.abs(values).max())
    mean = float(values.sum()) / count
    variance = (float((values**2).sum()) + largest**2) / count - mean**2
    quantile = float(special.stdtrit(count - 1, 1 - (1 - confidence) / (2 * num_comparisons)))
    margin = quantile * math.sqrt(max(variance, 0.0) / count)
    return (mean - margin, mean + margin)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student-t confidence interval of a mean, such as that of the gains of several runs.

    Args:
        values: At least two.
        confidence: Level of the interval, in (0, 1).
    """
    if len(values) < 2:
        raise ValueError(f"mean_interval needs at least two values; got {len(values)}")
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    margin = float(special.stdtrit(len(values) - 1, 0.5 + confidence / 2)) * error
    return (mean - margin, mean + margin)


def agreement(orderings: Sequence[Sequence[Sequence[int]]], sizes: Sequence[int] | None = None) -> float:
    """How far orderings agree: the mean of Kendall's W over their blocks of two or more items.

    Source: M. G. Kendall and B. Babington Smith, "The problem of m rankings", Annals of Mathematical
    Statistics 10 (1939).

    Args:
        orderings: One permutation for each block; all of the same blocks. Or arrangements, whose first place is the
            last one shown: items that are not shown share the mean of the places left over.
        sizes: Number of items of each block; None where all are shown.

    Returns:
        1 where all orderings are the same or no block has two items; for m random ones 1 / m, on the mean.
    """
    if not orderings:
        raise ValueError("agreement needs at least one ordering; got none")
    blocks = list(zip(*orderings, strict=True))
    numbers = [len(block[0]) for block in blocks] if sizes is None else sizes
    pairs = zip(blocks, numbers, strict=True)
    values = [_concordance(block, number) for block, number in pairs if number > 1]
    return float(np.mean(values)) if values else 1.0


def _concordance(rows: Sequence[Sequence[int]], size: int) -> float:
    """Kendall's W of so many rankings of n > 1 items, corrected for ties."""
    count = len(rows)
    left_out = np.array([size - len(row) for row in rows])
    if not left_out.any():
        ranks: NDArray[Any] = np.array(rows).argsort(axis=1)
    else:
        ranks = np.repeat((2 * size - 1 - left_out)[:, None] / 2, size, axis=1)
        for row, places in zip(rows, ranks, strict=True):
            places[list(row[::-1])] = np.arange(len(row))
    totals = ranks.sum(axis=0)
    ties = int((left_out**3 - left_out).sum())
    most = count**2 * (size**3 - size) - count * ties
    return float(12 * ((totals - totals.mean()) ** 2).sum() / most) if most else 1.0
