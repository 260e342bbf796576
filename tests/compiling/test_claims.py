"""Claimed gains in the benchmarks' simulated worlds, with and without a real effect."""

from functools import partial

import landscapes
import numpy as np
import pytest
from landscapes import OwnEffectsLandscape
from replay import Pool, compile_with

BUDGETS = {"light": 400, "logprobs": 100, "calibrated": 100, "paper": None, "top-k": 1_000}
"""Program calls by mode. There are fewer with log-probabilities, because rounds are slower and more numerous."""

LEANING = partial(OwnEffectsLandscape, common=1.0, own=0.3, leaning=True)
"""Orders are biased towards a label. With or without calibration, each is right on half of the new examples."""


class TestNothingToFind:
    @pytest.mark.parametrize(
        ("world", "num_demos", "num_pool", "mode"),
        [
            (OwnEffectsLandscape, 8, 20, "light"),
            (landscapes.CoinLandscape, 8, 20, "top-k"),
            (OwnEffectsLandscape, 4, 20, "paper"),
            (LEANING, 8, 40, "logprobs"),
            (LEANING, 8, 10, "calibrated"),
            (LEANING, 8, 20, "calibrated"),
            (LEANING, 8, 40, "calibrated"),
            (landscapes.NoisyLogitsLandscape, 8, 100, "logprobs"),
        ],
    )
    def test_a_gain_is_seldom_claimed_and_no_score_is_lost(self, world, num_demos, num_pool, mode):
        """By chance, at least two of 5 compiles make a false claim with a probability of 8%."""
        outcomes = []
        changes = []
        for seed in range(5):
            pool = Pool(world(num_demos, 500 + seed, num_pool + 1_000), num_pool)
            outcome = compile_with(pool, mode, BUDGETS[mode], seed)
            outcomes.append(outcome)
            changes.append(outcome.score - pool.held_out(pool.space.identity[0]))
        assert sum(outcome.claims for outcome in outcomes) <= 1
        assert abs(np.mean(changes)) < 0.03

    def test_an_original_that_differs_from_all_other_orders_is_kept(self):
        """The original is correct on 70% of the examples, and all other orders on 60%."""
        kept = 0
        for seed in range(5):
            pool = Pool(landscapes.WORLDS["lone original"](8, 500 + seed, 200), 100)
            kept += not compile_with(pool, "light", 400, seed).changed
        assert kept >= 4


class TestSomethingToFind:
    @pytest.mark.parametrize("mode", ["light", "logprobs"])
    def test_a_real_gain_is_found_and_claimed(self, mode):
        """A gain is claimed in at least half of the compiles."""
        outcomes = []
        gains = []
        for seed in range(6):
            pool = Pool(OwnEffectsLandscape(6, 700 + seed, 1_100, common=1.5, own=0.5), 100)
            outcomes.append(compile_with(pool, mode, BUDGETS[mode], seed))
            gains.append(outcomes[-1].score - pool.held_out(pool.space.identity[0]))
        assert sum(outcome.claims for outcome in outcomes) >= 3
        assert np.mean(gains) > 0.1
        expected = [outcome.comparison.expected_gain for outcome in outcomes]
        assert np.mean(expected) == pytest.approx(np.mean(gains), abs=0.08)

    @pytest.mark.parametrize("mode", ["light", "logprobs", "top-k"])
    def test_an_original_that_is_by_far_the_best_is_kept(self, mode):
        """All six orders of three demos are scored."""
        kept = 0
        for seed in range(4):
            landscape = OwnEffectsLandscape(3, 900 + seed, 1_100, common=0.8, own=0.8)
            orders = [ordering[0] for ordering in Pool(landscape, 100).space.enumerate()]
            truths = sorted(((landscape.answers(order).mean(), order) for order in orders), reverse=True)
            pool = Pool(landscapes.Rearranged(landscape, truths[0][1]), 100)
            outcome = compile_with(pool, mode, BUDGETS[mode], seed)
            kept += not outcome.changed or truths[0][0] - outcome.score < 0.1
        assert kept >= 3
