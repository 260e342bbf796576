"""Plackett-Luce with covariates against enumeration, against the distribution without, and with known coefficients."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad
from scipy.special import log_softmax

from plr_dspy import PlackettLuce
from plr_dspy.plackett_luce.distribution import choose, fit_coefficients
from plr_dspy.plackett_luce.updates import MaximumLikelihood


def features_of(seed, *, num_items=5, num_features=3):
    """Features that depend on what was chosen before, as the balance of labels does."""
    rng = np.random.default_rng(seed)
    fixed, moved = rng.normal(size=(2, num_items, num_features))
    return lambda chosen: fixed + 0.3 * len(chosen) * moved + 0.1 * moved * sum(chosen)


def log_prob(coefficients, features, ranking):
    total = 0.0
    for place, item in enumerate(ranking):
        logits = features(ranking[:place]) @ coefficients
        logits[list(ranking[:place])] = -np.inf
        total += log_softmax(logits)[item]
    return float(total)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(0, 4))
def test_each_item_chosen_is_the_likeliest_of_those_left(seed, length):
    features, coefficients = features_of(seed), np.random.default_rng(seed).normal(size=3)
    chosen = choose(coefficients, features, length)
    for place in range(length):
        left = set(range(5)) - set(chosen[:place])
        options = [log_prob(coefficients, features, (*chosen[:place], each)) for each in left]
        assert log_prob(coefficients, features, chosen[: place + 1]) == pytest.approx(max(options))


def test_draws_are_as_frequent_as_the_probabilities_say():
    features, coefficients = features_of(3, num_items=3), [0.5, -1.0, 0.3]
    rng, every = np.random.default_rng(0), list(itertools.permutations(range(3), 2))
    drawn = [choose(coefficients, features, 2, rng=rng) for _ in range(4_000)]
    for ranking in every:
        p = math.exp(log_prob(coefficients, features, ranking))
        assert drawn.count(ranking) / 4_000 == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 4_000))


@settings(max_examples=25, deadline=None)
@given(logits=st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_with_an_indicator_of_each_item_it_is_the_distribution_without(logits):
    mode = PlackettLuce(torch.tensor(logits, dtype=torch.float64)).mode
    assert choose(logits, lambda chosen: np.eye(len(logits)), len(logits)) == tuple(mode.tolist())


def test_the_fit_is_the_maximum_that_the_update_climbs_to():
    elites = torch.tensor([[0, 1, 2, 3], [1, 0, 2, 3], [0, 2, 1, 3], [3, 0, 1, 2]])
    weights = torch.tensor([2.0, 1.0, 1.0, 0.5], dtype=torch.float64)
    rule = MaximumLikelihood(num_steps=4_000, learning_rate=0.01, l2=0.1)
    climbed = rule.fit(torch.zeros(4, dtype=torch.float64), elites, weights)
    found = fit_coefficients([lambda chosen: np.eye(4)] * 4, elites.tolist(), weights.numpy(), l2=0.1)
    np.testing.assert_allclose(found, climbed.numpy(), atol=1e-4)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nothing_near_the_fit_is_likelier(seed):
    rng = np.random.default_rng(seed)
    features = [features_of(seed + i) for i in range(6)]
    rankings = [rng.permutation(5)[:3].tolist() for _ in features]
    weights = rng.random(6)

    def objective(coefficients):
        told = [w * log_prob(coefficients, f, r) for w, f, r in zip(weights, features, rankings, strict=True)]
        return sum(told) - 0.05 * float(coefficients @ coefficients)

    found = fit_coefficients(features, rankings, weights, l2=0.1)
    assert check_grad(objective, lambda c: np.zeros(3), found) < 1e-3  # its slope is 0 there


def test_a_ranking_without_weight_says_nothing_and_one_without_items_neither():
    features = [features_of(seed) for seed in range(3)]
    alone = fit_coefficients(features[:1], [[2, 0]], [1.0], l2=1e-3)
    both = fit_coefficients(features, [[2, 0], [1, 3], []], [1.0, 0.0, 1.0], l2=1e-3)
    np.testing.assert_allclose(alone, both, atol=1e-6)
