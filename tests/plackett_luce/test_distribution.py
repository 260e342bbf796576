"""The Plackett-Luce distribution, compared with calculations from its definition over all rankings."""

import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from plr_dspy import PlackettLuce
from plr_dspy.plackett_luce.distribution import padded


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def distributions(draw):
    """Draw single distributions and mixtures, with fixed and with random lengths."""
    size = draw(st.integers(1, 5))
    logits = st.lists(st.floats(-6, 6), min_size=size, max_size=size)
    if draw(st.booleans()):
        options = {"length": draw(st.integers(0, size))}
        most = options["length"] + 1
        shares = draw(st.lists(st.integers(1, 9), min_size=1, max_size=most))
        options["length_probabilities"] = float64(shares) / sum(shares)
    else:
        options = {"length": draw(st.none() | st.integers(1, size))}
    if draw(st.booleans()):
        options["weights"] = float64([0.25, 0.75])
        return PlackettLuce(float64([draw(logits), draw(logits)]), **options)
    return PlackettLuce(float64(draw(logits)), **options)


def all_rankings(distribution):
    rankings = []
    for length in range(distribution.min_length, distribution.length + 1):
        rankings += itertools.permutations(range(distribution.num_items), length)
    return padded(rankings, distribution.length)


def naive_probability(distribution, row):
    """Return a ranking's probability, calculated item by item (PLR Eq. 2).

    If lengths are random, the probability of the ranking's length is a factor of the result.
    """
    ranking = [item for item in row if item >= 0]
    weights = [1.0]
    if distribution.weights is not None:
        weights = distribution.weights.tolist()
    components = distribution.logits.view(len(weights), -1).tolist()
    total = 0.0
    for weight, logits in zip(weights, components, strict=True):
        probability = weight
        remaining = list(range(len(logits)))
        for item in ranking:
            normaliser = sum(math.exp(logits[j]) for j in remaining)
            probability *= math.exp(logits[item]) / normaliser
            remaining.remove(item)
        total += probability
    if distribution.length_probabilities is None:
        return total
    shorter = len(ranking) - distribution.min_length
    return total * distribution.length_probabilities[shorter].item()


class TestProbabilities:
    @given(distributions())
    def test_probabilities_follow_the_definition_and_sum_to_one(self, distribution):
        rankings = all_rankings(distribution)
        probabilities = distribution.log_prob(rankings).exp()
        expected = [naive_probability(distribution, row) for row in rankings.tolist()]
        assert probabilities.tolist() == pytest.approx(expected, rel=1e-9)
        assert probabilities.sum().item() == pytest.approx(1.0)

    @pytest.mark.parametrize("length", [1, 3, 6])
    def test_gradient_agrees_with_finite_differences(self, length):
        logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
        value = torch.stack([torch.randperm(6)[:length] for _ in range(2)])

        def log_prob(logits):
            return PlackettLuce(logits, length=length).log_prob(value)

        assert torch.autograd.gradcheck(log_prob, (logits,))


SINGLE = float64([1.0, 0.0, -0.7, 0.4])
MIXED = float64([[2.0, 0.0, -1.0, 0.5], [-1.5, 0.5, 1.0, 0.0]])


class TestSample:
    @pytest.mark.parametrize(
        ("logits", "options"),
        [
            (SINGLE, {}),
            (SINGLE, {"length": 2}),
            (SINGLE, {"length": 3, "length_probabilities": float64([0.2, 0.5, 0.1, 0.2])}),
            (MIXED, {"length": 2, "weights": float64([0.3, 0.7])}),
        ],
    )
    def test_frequencies_agree_with_probabilities(self, logits, options):
        generator = torch.Generator().manual_seed(3)
        distribution = PlackettLuce(logits, **options, generator=generator)
        draws = distribution.sample((20_000,)).tolist()
        rankings = all_rankings(distribution)
        expected = distribution.log_prob(rankings).exp() * len(draws)
        observed = [draws.count(row) for row in rankings.tolist()]
        assert sum(observed) == len(draws)
        assert stats.chisquare(observed, expected.tolist()).pvalue > 1e-3

    @given(distributions())
    def test_generator_makes_draws_reproducible_and_leaves_the_global_state_unchanged(self, distribution):
        before = torch.random.get_rng_state()
        first, second = (
            distribution.copy(generator=torch.Generator().manual_seed(1)).sample((9,)) for _ in range(2)
        )
        assert torch.equal(first, second)
        assert torch.equal(before, torch.random.get_rng_state())
        assert torch.isfinite(distribution.log_prob(first)).all()


class TestMode:
    @given(distributions())
    def test_mode_is_the_most_probable_ranking_of_the_most_probable_length(self, distribution):
        mode = distribution.mode
        length = sum(item >= 0 for item in mode.tolist())
        if distribution.length_probabilities is not None:
            most_probable = distribution.length_probabilities.argmax()
            assert length == distribution.min_length + most_probable
        if distribution.weights is None:
            rankings = all_rankings(distribution)
            rankings = rankings[(rankings >= 0).sum(dim=-1) == length]
            best = distribution.log_prob(rankings).max()
            torch.testing.assert_close(distribution.log_prob(mode), best)

    def test_items_with_equal_logits_keep_their_order(self):
        assert PlackettLuce(torch.zeros(4)).mode.tolist() == [0, 1, 2, 3]

    def test_mode_of_a_mixture_may_come_from_a_component_with_a_small_weight(self):
        logits = float64([[0.2, 0.1, 0.0], [0.0, 4.0, 8.0]])
        mixture = PlackettLuce(logits, weights=float64([0.6, 0.4]))
        assert mixture.mode.tolist() == [2, 1, 0]


@settings(max_examples=25, deadline=None)
@given(distributions())
def test_marginals_agree_with_enumeration(distribution):
    expected = torch.zeros(distribution.num_items, distribution.length, dtype=torch.float64)
    for row in all_rankings(distribution).tolist():
        for position, item in enumerate(row):
            if item >= 0:
                expected[item, position] += naive_probability(distribution, row)
    marginals = distribution.marginals()
    torch.testing.assert_close(marginals, expected, atol=0.03, rtol=0)
    assert torch.equal(distribution.marginals(), marginals)


@given(distributions())
def test_state_survives_json_to_the_last_digit(distribution):
    state = distribution.state_dict()
    loaded = PlackettLuce.from_state(json.loads(json.dumps(state)))
    assert loaded.state_dict() == state
    rankings = all_rankings(distribution)
    assert torch.equal(loaded.log_prob(rankings), distribution.log_prob(rankings))


class TestBadInput:
    @pytest.mark.parametrize(
        ("logits", "options", "error", "message"),
        [
            ([0.0, 1.0], {}, TypeError, "floating-point"),
            (torch.tensor([0, 1]), {}, TypeError, "floating-point"),
            (torch.tensor(1.0), {}, ValueError, "shape"),
            (float64([0.0, math.nan]), {}, ValueError, "logits"),
            (float64([0.0, math.inf]), {}, ValueError, "finite"),
            (SINGLE, {"weights": float64([1.0])}, ValueError, "shape"),
            (MIXED, {}, ValueError, "shape"),
            (MIXED, {"weights": float64([1.0])}, ValueError, "weights"),
            (MIXED, {"weights": float64([0.5, 0.6])}, ValueError, "weights"),
        ],
    )
    def test_rejects_invalid_logits_and_weights(self, logits, options, error, message):
        with pytest.raises(error, match=message):
            PlackettLuce(logits, **options)

    @pytest.mark.parametrize("length", [0, 5, 1.0, True])
    def test_rejects_invalid_lengths(self, length):
        with pytest.raises(ValueError, match="an integer from 1 to the number of items, 4"):
            PlackettLuce(SINGLE, length=length)

    @pytest.mark.parametrize("probabilities", [[], [[1.0]], [0.2] * 6, [0.5, 0.6]])
    def test_rejects_invalid_length_probabilities(self, probabilities):
        with pytest.raises(ValueError, match="length_probabilities"):
            PlackettLuce(SINGLE, length_probabilities=float64(probabilities))

    @pytest.mark.parametrize(
        "value", [[0, 0, 1], [1, 2, 3], [0, 1, 9], [0, 1, -2], [-1, 0, 1], [0, 1, -1], [0, 1]]
    )
    def test_log_prob_rejects_rows_that_are_not_orderings(self, value):
        with pytest.raises(ValueError, match=r"different items of 0\.\.2"):
            PlackettLuce(torch.zeros(3)).log_prob(torch.tensor(value))

    @pytest.mark.parametrize("value", [[0, -1, -1], [0, -1, 1], [0, 0, -1]])
    def test_log_prob_rejects_short_rankings_and_gaps(self, value):
        distribution = PlackettLuce(torch.zeros(3), length_probabilities=float64([0.5, 0.5]))
        message = "2 to 3 different items of 0..2, padded with -1"
        with pytest.raises(ValueError, match=message):
            distribution.log_prob(torch.tensor(value))
