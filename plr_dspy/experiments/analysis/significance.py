"""Tests and intervals for paired differences of runs, some of which share their examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from scipy import stats

from plr_dspy.statistics.comparisons import mean_interval

NUM_FLIPS = 2**16
"""Most sign flips of a test: up to 16 groups have no more, and all of them are tried."""


def grouped_interval(groups: Sequence[Sequence[float]], confidence: float = 0.95) -> tuple[float, float]:
    """Student-t interval of the mean of all values, where only values of different groups are independent.

    It is the cluster-robust interval with as many degrees of freedom as there are groups less one; where each group
    has one value, it is `mean_interval`.

    Args:
        groups: At least two groups of values, none of them empty.
        confidence: Level of the interval, in (0, 1).
    """
    count = sum(map(len, groups))
    mean = fmean(value for group in groups for value in group)
    # The mean of these is the mean, and their spread is that of the groups' sums about what is expected of their size.
    parts = [mean + len(groups) / count * math.fsum(value - mean for value in group) for group in groups]
    return mean_interval(parts, confidence)


def sign_flip_test(groups: Sequence[Sequence[float]]) -> float:
    """Two-sided p-value of a mean of paired differences, if either sign were as likely for each group as a whole.

    It is exact up to 16 groups; beyond, 65,536 flips are drawn, the same ones at each call. One group has 1.0.
    """
    sums = np.array([math.fsum(group) for group in groups])
    if sums.size < 2:
        return 1.0  # the one group and its opposite are equally far from 0
    test = stats.permutation_test(
        (sums,),
        lambda values, axis: values.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=NUM_FLIPS,
        random_state=np.random.default_rng(0),
    )
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values by Holm's step-down correction, in the order given.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979).
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(np.arange(len(p), 0, -1) * p[order]).clip(max=1.0)
    result: list[float] = corrected.tolist()
    return result
