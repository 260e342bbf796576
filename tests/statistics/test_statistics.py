"""Offsets and shares for calibration, and intervals for paired differences and means."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.special import log_softmax

from plr_dspy.statistics.calibration import (
    batch_offsets,
    calibrated,
    label_offsets,
    likely_shares,
    shares_to_try,
)
from plr_dspy.statistics.comparisons import (
    draw_deviations,
    likely_bounds,
    limited_interval,
    mean_interval,
    paired_interval,
)

SHAPES = st.tuples(st.integers(1, 12), st.integers(2, 6))
SCORES = SHAPES.flatmap(lambda shape: arrays(np.float64, shape, elements=st.floats(-20, 20)))
# Arguments of `draw_deviations`.
DEVIATIONS = {"largest": 0.5, "disagreement": 1.0, "usual": 0.1}
TABLES = SCORES.map(lambda scores: log_softmax(scores, axis=1))


class TestBatchOffsets:
    def test_offsets_follow_the_prior_and_unseen_labels_have_probability_0(self):
        """A label is unseen if it was not among the likeliest tokens."""
        table = np.log([[0.9, 0.1], [0.7, 0.3]])
        prior = [0.25, 0.75]
        expected = np.log(prior) - np.log([0.8, 0.2])
        assert batch_offsets(table, prior=prior) == pytest.approx(expected - expected.mean())
        table = np.log([[0.6, 0.4], [0.9, 0.1]])
        offsets = batch_offsets(table, unseen=[[False, False], [False, True]])
        assert offsets[1] - offsets[0] == pytest.approx(np.log(0.75 / 0.2))

    @given(TABLES)
    def test_offsets_make_mean_probabilities_of_labels_equal(self, table):
        """The probabilities are not normalized again after calibration."""
        moved = np.exp(table + batch_offsets(table)).mean(axis=0)
        np.testing.assert_allclose(moved, moved[0], rtol=1e-9)

    def test_several_rows_of_means_are_handled_at_once(self):
        """A label that was never seen gets the smallest offset of the other labels in its row."""
        means = np.log([[0.8, 0.15, 0.05], [0.1, 0.85, 0.05]])
        even = np.full(3, 1 / 3)
        held = np.array([False, False, True])
        offsets = label_offsets(means, even, held=held)
        for row, p in zip(offsets, means, strict=True):
            assert row == pytest.approx(batch_offsets(p[None], unseen=[held]))
            assert row[2] == row[:2].min()
        assert label_offsets(means, even, held=~held)[0].tolist() == [0, 0, 0]
        assert label_offsets(means[0], np.array([0.5, 0.5, 0.0]), held=~held | held).tolist() == [0, 0, 0]
        offsets = label_offsets(means[0], np.array([0.5, 0.5, 0.0]), held=np.zeros(3, dtype=bool))
        assert offsets[2] == offsets[:2].min()


class TestUnevenLabels:
    @pytest.mark.parametrize(
        ("counts", "uneven"),
        [([0, 0], False), ([60, 40], False), ([90, 60], False), ([120, 80], True), ([3, 0], False)],
    )
    def test_uneven_labels_are_detected_by_a_chi_squared_test(self, counts, uneven):
        """The p-value of a chi-squared test is .014 for counts of 90 and 60, and .005 for 120 and 80."""
        shares = likely_shares(counts)
        assert len(shares) == 1 + uneven
        assert shares[-1].tolist() == [0.5, 0.5]
        if uneven:
            assert shares[0] == pytest.approx([121 / 202, 81 / 202])


class TestCalibrated:
    @given(TABLES, st.data())
    def test_an_unseen_label_does_not_become_the_likeliest(self, table, data):
        """An unseen label must not even tie with the likeliest label, because the first label wins a tie."""
        unseen = data.draw(arrays(bool, table.shape))
        table = log_softmax(np.where(unseen, table.min(), table), axis=1)
        offsets = data.draw(arrays(np.float64, table.shape[1], elements=st.floats(-20, 20)))
        moved = calibrated(table, offsets, unseen=unseen)
        np.testing.assert_allclose(np.exp(moved).sum(axis=1), 1)
        for answer, hidden in zip(moved.argmax(axis=1), unseen, strict=True):
            assert hidden.all() or not hidden[answer]


def test_no_calibration_is_the_first_option_for_metrics_that_depend_on_rare_labels():
    scores = np.concatenate([np.repeat(np.eye(2), [90, 10], axis=0), np.zeros((200, 2))])
    by_metric, by_accuracy = (shares_to_try(scores, between=between) for between in (True, False))
    assert np.isnan(by_metric[0]).all()
    assert np.isnan(by_accuracy[-1]).all()
    assert np.allclose(by_metric[1], by_accuracy[0])
    assert by_accuracy[0, 0] == pytest.approx(91 / 102)
    assert not np.isnan([*by_metric[1:], *by_accuracy[:-1]]).any()


class TestIntervals:
    def test_paired_interval_is_the_adjusted_wald_interval_for_proportions(self):
        """Agresti and Min (2005) add half an observation to each cell of the 2 x 2 table."""
        better = 12
        worse = 4
        same = 24
        differences = np.repeat([1.0, -1.0, 0.0], [better, worse, same]).tolist()
        n = better + worse + same + 2
        b = better + 0.5
        c = worse + 0.5
        error = math.sqrt((b + c - (b - c) ** 2 / n) / n**2)
        quantile = stats.t.ppf(0.975, n - 1)
        expected = ((b - c) / n - quantile * error, (b - c) / n + quantile * error)
        assert paired_interval(differences) == pytest.approx(expected)

    @pytest.mark.parametrize("num_different", range(4))
    def test_small_differences_on_few_examples_do_not_imply_certainty(self, num_different):
        """A few differences of .01 say little about the examples that have not been scored."""
        differences = np.where(np.arange(10) < num_different, 0.01, 0.0).tolist()
        low, high = limited_interval(differences, 1.0)
        assert (low, high) == paired_interval(differences, largest=1.0 / (num_different + 1))
        assert high > 0.04
        more = limited_interval([0.01, *differences], 1.0)
        assert more[1] - more[0] < high - low

    def test_many_small_differences_leave_the_interval_unchanged(self):
        differences = np.random.default_rng(0).normal(0.0, 0.05, size=60).tolist()
        assert limited_interval(differences, 1.0) == paired_interval(differences)

    @pytest.mark.parametrize(
        ("scores", "bounds"),
        [
            ([0.2, 0.7], (0.0, 1.0)),
            ([20.0, 70.0], (0.0, 70.0)),
            ([-0.7, 0.0], (-0.7, 0.0)),
            ([-0.7, -0.2], (-0.7, 0.0)),
            ([-3.0, 2.0], (-3.0, 2.0)),
        ],
    )
    def test_likely_bounds_include_0_and_for_scores_without_penalties_also_1(self, scores, bounds):
        assert likely_bounds(scores) == bounds

    def test_mean_interval_is_students_t_and_empty_inputs_are_rejected(self):
        values = [0.17, 0.215, 0.07, 0.175, 0.145]
        expected = stats.t.interval(0.95, 4, loc=statistics.mean(values), scale=stats.sem(values))
        assert mean_interval(values) == pytest.approx(expected)
        with pytest.raises(ValueError, match="at least two"):
            mean_interval([0.1])
        assert paired_interval([0.0, 0.0]) == (0.0, 0.0)
        with pytest.raises(ValueError, match="at least one"):
            paired_interval([])


class TestDeviations:
    """Draws of the standard deviation of orders' true scores."""

    def drawn(self, scores, scale=1.0):
        sizes = {name: scale * size for name, size in DEVIATIONS.items()}
        return draw_deviations(scale * scores, rng=np.random.default_rng(0), **sizes)

    @pytest.mark.parametrize("num_orders", [2, 3, 10])
    def test_draws_scale_with_the_scores(self, num_orders):
        scores = np.random.default_rng(1).integers(0, 2, (num_orders, 20)).astype(float)
        draws, square = self.drawn(scores)
        scaled_draws, scaled_square = self.drawn(scores, scale=100.0)
        np.testing.assert_allclose(scaled_draws, 100 * draws)
        assert scaled_square == pytest.approx(100**2 * square)

    def test_equal_scores_leave_doubt_that_more_examples_reduce(self):
        """Pseudo-examples keep the draws above 0, although no scores differ."""
        means = [self.drawn(np.ones((4, num_examples)))[0].mean() for num_examples in (5, 10, 20, 40)]
        assert means == sorted(means, reverse=True)
        assert means[-1] > 0
        assert self.drawn(np.ones((4, 10)))[1] == 0

    def test_draws_are_at_most_the_largest_possible_deviation(self):
        scores = np.array([[0.0], [4.0]]) + np.random.default_rng(3).normal(size=(2, 20))
        draws, square = self.drawn(scores)
        assert square > 4 * DEVIATIONS["largest"]
        assert 0.4 < draws.max() <= DEVIATIONS["largest"]

    def test_the_estimate_of_the_square_is_unbiased(self):
        """The true standard deviation is .1, and noise has a standard deviation of .5."""
        rng = np.random.default_rng(2)
        squares = []
        for _ in range(2_000):
            means = 0.1 * rng.normal(size=(6, 1))
            squares.append(self.drawn(means + 0.5 * rng.normal(size=(6, 30)))[1])
        assert np.mean(squares) == pytest.approx(0.1**2, abs=4 * np.std(squares) / math.sqrt(len(squares)))
        assert min(squares) < 0
