"""Plackett-Luce with covariates against enumeration, and against the distribution without."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from plr_dspy import PlackettLuce
from plr_dspy.plackett_luce.distribution import choose


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
