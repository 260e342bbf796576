"""Draws of the mean score of random orderings that were scored on a few examples each."""

import numpy as np
import pytest
from scipy import stats

from plr_dspy.statistics.crossed import draw_means


def interval(scores, low=0.0, high=1.0):
    draws = draw_means(np.array(scores, dtype=float), low, high, np.random.default_rng(0))
    return np.quantile(draws, [0.025, 0.975])


@pytest.mark.parametrize("score", [0.0, 1.0])
@pytest.mark.parametrize("num_examples", [5, 20])
def test_equal_scores_leave_the_doubt_of_jeffreys_prior_whatever_the_number_of_orderings(score, num_examples):
    limits = stats.beta(0.5 + score * num_examples, 0.5 + (1 - score) * num_examples)
    for num_orderings in (3, 40):
        found = interval(np.full((num_orderings, num_examples), score))
        assert found == pytest.approx(limits.ppf([0.025, 0.975]), abs=0.02)


def test_examples_that_only_few_orderings_saw_count_less():
    scores = np.full((3, 12), np.nan)
    scores[:, :2] = 0.0
    few = interval(scores)
    scores[0] = 0.0
    assert interval(np.zeros((3, 12)))[1] < interval(scores)[1] < few[1]


@pytest.mark.parametrize("num_orderings", [3, 6, 24])
@pytest.mark.parametrize("num_examples", [8, 30])
def test_the_interval_covers_the_mean_of_new_orderings_on_new_examples(num_orderings, num_examples):
    """Orderings and examples both differ, and each ordering is scored on a third of the examples."""
    rng = np.random.default_rng([num_orderings, num_examples])
    covered = []
    for _ in range(150):
        worth = rng.normal(0.4, 0.5, size=(num_orderings, 1))
        ease = rng.normal(0.0, 1.0, size=num_examples)
        chances = 1 / (1 + np.exp(-2 * (worth + ease)))
        scores = (rng.random(chances.shape) < chances).astype(float)
        for number, row in enumerate(scores):
            is_called = (np.arange(num_examples) + number) % 3 == 0
            row[~is_called] = np.nan
        low, high = interval(scores)
        covered.append(low <= TRUE_MEAN <= high)
    assert np.mean(covered) >= 0.93


SUMS = np.random.default_rng(0).normal(0.4, np.hypot(0.5, 1.0), size=200_000)
TRUE_MEAN = np.mean(1 / (1 + np.exp(-2 * SUMS)))
