"""Intervals of paired differences and of means, and how far elites agree."""

import math
import statistics

import pytest
from scipy import stats

from plr_dspy.statistics.comparisons import mean_interval, paired_interval


class TestIntervals:
    def test_is_the_adjusted_wald_interval_of_paired_proportions(self):
        """Agresti and Min 2005: half an observation more in each cell of the 2 x 2 table."""
        better, worse, same = 12, 4, 24
        differences = [1.0] * better + [-1.0] * worse + [0.0] * same
        n, b, c = better + worse + same + 2, better + 0.5, worse + 0.5
        error = math.sqrt((b + c - (b - c) ** 2 / n) / n**2)
        quantile = stats.t.ppf(0.975, n - 1)
        expected = ((b - c) / n - quantile * error, (b - c) / n + quantile * error)
        assert paired_interval(differences) == pytest.approx(expected)

    def test_interval_of_a_mean_is_students_and_none_of_no_differences(self):
        values = [0.17, 0.215, 0.07, 0.175, 0.145]
        expected = stats.t.interval(0.95, 4, loc=statistics.mean(values), scale=stats.sem(values))
        assert mean_interval(values) == pytest.approx(expected)
        with pytest.raises(ValueError, match="at least two"):
            mean_interval([0.1])
        assert paired_interval([0.0, 0.0]) == (0.0, 0.0)
        with pytest.raises(ValueError, match="at least one"):
            paired_interval([])
