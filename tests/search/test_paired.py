"""The score model for whole programs that were scored on the same examples."""

import numpy as np
import pytest

from plr_dspy.search.model.paired import PairedProcess
from plr_dspy.search.model.score_table import ScoreTable


def scores(num_examples=200):
    rng = np.random.default_rng(0)
    return (rng.random((3, num_examples)) < 0.6).astype(float)


def error_variance(table, first, second):
    """Return the error variance of the difference between two programs' mean scores."""
    process = PairedProcess(ScoreTable(table))
    noise = process._noise
    return process._unit**2 * (noise[first, first] + noise[second, second] - 2.0 * noise[first, second])


def test_the_error_of_a_dropped_program_depends_only_on_its_own_examples():
    table = scores()
    alone = error_variance(table[:, :20], 2, 0)
    others = error_variance(table, 1, 0)
    table[2, 20:] = np.nan
    assert 0.7 < error_variance(table, 2, 0) / alone < 1.3
    assert error_variance(table, 1, 0) == pytest.approx(others, rel=0.05)


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1e6])
def test_results_do_not_depend_on_the_scale_of_scores(scale):
    table = scores()
    table[2] = np.maximum(table[2], table[1])
    process = PairedProcess(ScoreTable(table))
    scaled = PairedProcess(ScoreTable(scale * table + 5.0 * scale))
    for value, expected in zip(
        scaled.gains(0).summary()[1:3], process.gains(0).summary()[1:3], strict=True
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(scaled.improvements(0, 400), process.improvements(0, 400), rtol=1e-6)
    np.testing.assert_allclose(scaled.mean, scale * (process.mean + 5.0), rtol=1e-9)


@pytest.mark.parametrize("score", [0.0, 0.1, 0.7])
def test_equal_scores_lead_to_small_expected_improvements(score):
    process = PairedProcess(ScoreTable(np.full((3, 20), score)))
    assert process.improvements(0, 100).max() < 0.1
    np.testing.assert_allclose(process.unshrunk, score)
