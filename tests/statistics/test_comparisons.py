"""Intervals of paired differences and of means, and how far elites agree."""

import math
import statistics

import pytest
import torch
from scipy import stats

from plr_dspy.compilation.choice import comparison
from plr_dspy.search.model.ordering_model import Gain
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

    def test_covers_the_mean_at_its_level(self):
        generator = torch.Generator().manual_seed(0)
        samples = torch.randn(2000, 25, generator=generator, dtype=torch.float64) + 0.3
        hits = [low <= 0.3 <= high for low, high in (paired_interval(row.tolist(), 0.9) for row in samples)]
        assert 0.89 < sum(hits) / len(hits) < 0.95

    def test_the_winner_of_noise_seldom_looks_better(self):
        """Eight orders that are all alike: the chosen one's interval lies above 0 in about 2.5 % of the cases."""
        generator = torch.Generator().manual_seed(0)
        above = 0
        for _ in range(1000):
            scores = (torch.rand(8, 40, generator=generator) < 0.6).double()
            best = int(scores.mean(dim=1).argmax())
            rows, gain = scores.tolist(), Gain(0.0, 0.5)
            interval = comparison(rows[0], rows[best], num_candidates=8, gain=gain).interval
            above += interval[0] > 0
        assert above / 1000 <= 0.04

    def test_interval_of_a_mean_is_students(self):
        values = [0.17, 0.215, 0.07, 0.175, 0.145]
        expected = stats.t.interval(0.95, 4, loc=statistics.mean(values), scale=stats.sem(values))
        assert mean_interval(values) == pytest.approx(expected)
        with pytest.raises(ValueError, match="at least two"):
            mean_interval([0.1])

    def test_no_difference_and_none(self):
        assert paired_interval([0.0, 0.0]) == (0.0, 0.0)
        with pytest.raises(ValueError, match="at least one"):
            paired_interval([])
