"""Plackett-Luce with covariates against enumeration, against the distribution without, and with known coefficients."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad

from plr_dspy import PlackettLuce
from plr_dspy.plackett_luce.covariates import CovariatePlackettLuce
from plr_dspy.plackett_luce.updates import MaximumLikelihood


def features_of(seed, *, num_items=5, num_features=3):
    """Features that depend on what was chosen before, as the balance of labels does."""
    rng = np.random.default_rng(seed)
    fixed, moved = rng.normal(size=(2, num_items, num_features))
    return lambda chosen: fixed + 0.3 * len(chosen) * moved + 0.1 * moved * sum(chosen)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(0, 4))
def test_probabilities_of_all_choices_sum_to_1(seed, length):
    features, model = features_of(seed), CovariatePlackettLuce(np.random.default_rng(seed).normal(size=3))
    every = list(itertools.permutations(range(5), length))
    probabilities = [math.exp(model.log_prob(features, ranking)) for ranking in every]
    assert sum(probabilities) == pytest.approx(1.0)
    stages = model.mode(features, length)
    for place, item in enumerate(stages):  # each item is the likeliest of those left
        options = [model.log_prob(features, (*stages[:place], each)) for each in set(range(5)) - set(stages[:place])]
        assert model.log_prob(features, stages[: place + 1]) == pytest.approx(max(options)), item


def test_draws_are_as_frequent_as_the_probabilities_say():
    features, model = features_of(3, num_items=3), CovariatePlackettLuce([0.5, -1.0, 0.3])
    rng, every = np.random.default_rng(0), list(itertools.permutations(range(3), 2))
    drawn = [model.sample(features, 2, rng) for _ in range(4_000)]
    for ranking in every:
        p = math.exp(model.log_prob(features, ranking))
        assert drawn.count(ranking) / 4_000 == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 4_000))


@settings(max_examples=25, deadline=None)
@given(logits=st.lists(st.floats(-5, 5), min_size=2, max_size=6), seed=st.integers(0, 10**6))
def test_with_an_indicator_of_each_item_it_is_the_distribution_without(logits, seed):
    old, new = PlackettLuce(torch.tensor(logits, dtype=torch.float64)), CovariatePlackettLuce(logits)
    one_hot = np.eye(len(logits))
    ranking = np.random.default_rng(seed).permutation(len(logits)).tolist()
    features = lambda chosen: one_hot  # noqa: E731
    assert new.log_prob(features, ranking) == pytest.approx(float(old.log_prob(torch.tensor(ranking))))
    assert new.mode(features, len(logits)) == tuple(old.mode.tolist())


def test_the_fit_is_the_maximum_that_the_update_climbs_to():
    elites = torch.tensor([[0, 1, 2, 3], [1, 0, 2, 3], [0, 2, 1, 3], [3, 0, 1, 2]])
    weights = torch.tensor([2.0, 1.0, 1.0, 0.5], dtype=torch.float64)
    rule = MaximumLikelihood(num_steps=4_000, learning_rate=0.01, l2=0.1)
    climbed = rule.fit(torch.zeros(4, dtype=torch.float64), elites, weights)
    features = [lambda chosen: np.eye(4)] * 4
    found = CovariatePlackettLuce.fit(features, elites.tolist(), weights.numpy(), l2=0.1)
    np.testing.assert_allclose(found.coefficients, climbed.numpy(), atol=1e-4)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nothing_near_the_fit_is_likelier_whatever_the_start(seed):
    rng = np.random.default_rng(seed)
    features = [features_of(seed + i) for i in range(6)]
    rankings = [rng.permutation(5)[:3].tolist() for _ in features]
    weights = rng.random(6)

    def objective(coefficients):
        model = CovariatePlackettLuce(coefficients)
        told = [w * model.log_prob(f, r) for w, f, r in zip(weights, features, rankings, strict=True)]
        return sum(told) - 0.05 * float(coefficients @ coefficients)

    found = CovariatePlackettLuce.fit(features, rankings, weights, l2=0.1).coefficients
    again = CovariatePlackettLuce.fit(features, rankings, weights, l2=0.1, start=rng.normal(size=3)).coefficients
    np.testing.assert_allclose(found, again, atol=1e-4)
    assert check_grad(objective, lambda c: np.zeros(3), found) < 1e-3  # its slope is 0 there


def test_a_ranking_without_weight_says_nothing_and_one_without_items_neither():
    features = [features_of(seed) for seed in range(3)]
    alone = CovariatePlackettLuce.fit(features[:1], [[2, 0]])
    both = CovariatePlackettLuce.fit(features, [[2, 0], [1, 3], []], [1.0, 0.0, 1.0])
    np.testing.assert_allclose(alone.coefficients, both.coefficients, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"weights": [1.0, -1.0]}, "weights"),
        ({"weights": [1.0]}, "weights"),
        ({"l2": 0.0}, "l2"),
        ({"features": []}, "features"),
    ],
)
def test_a_bad_argument_is_named(given, word):
    arguments = {"features": [features_of(0)] * 2, "rankings": [[0], [1]], **given}
    with pytest.raises(ValueError, match=word):
        CovariatePlackettLuce.fit(**arguments)
    with pytest.raises(ValueError, match="coefficients"):
        CovariatePlackettLuce([math.nan])
