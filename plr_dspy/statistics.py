"""Paired comparisons of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats


def paired_interval(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student-t confidence interval of a mean paired difference.

    Args:
        differences: One difference for each example.
        confidence: Level of the interval, in (0, 1).

    Returns:
        Lower and upper end; both equal the mean where all differences are equal, and one
        difference alone gives the widest interval that scores in [0, 1] allow.
    """
    values = np.asarray(differences, dtype=float)
    if values.size == 0:
        raise ValueError("paired_interval needs at least one difference; got none")
    mean = float(values.mean())
    if values.size == 1:
        return (-1.0, 1.0)
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    margin = float(stats.t.ppf(0.5 + confidence / 2, values.size - 1)) * error
    return (mean - margin, mean + margin)
