import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from plr_dspy import PlackettLuce


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def distributions(draw, max_items=5, lengths_drawn=None):
    """Singles and mixtures of two, of all items, of the first few, or of numbers that are drawn."""
    size = draw(st.integers(1, max_items))
    rows = draw(st.lists(st.lists(st.floats(-6, 6), min_size=size, max_size=size), min_size=1, max_size=2))
    options = {} if len(rows) == 1 else {"weights": float64([0.25, 0.75])}
    if draw(st.booleans()) if lengths_drawn is None else lengths_drawn:
        options["length"] = draw(st.integers(0, size))
        shares = draw(st.lists(st.integers(1, 9), min_size=1, max_size=options["length"] + 1))
        options["length_probabilities"] = float64(shares) / sum(shares)
    else:
        options["length"] = draw(st.none() | st.integers(1, size))
    return PlackettLuce(float64(rows[0] if len(rows) == 1 else rows), **options)


def everything(distribution):
    lengths = range(distribution.min_length, distribution.length + 1)
    rankings = (r for k in lengths for r in itertools.permutations(range(distribution.num_items), k))
    return [[*ranking, *[-1] * (distribution.length - len(ranking))] for ranking in rankings]


def naive_probability(distribution, row):
    """PLR Eq. 2, draw by draw from the items left; times the probability that so many are drawn."""
    ranking, total = [item for item in row if item >= 0], 0.0
    weights = [1.0] if distribution.weights is None else distribution.weights.tolist()
    for weight, logits in zip(weights, distribution.logits.view(len(weights), -1).tolist(), strict=True):
        left = list(range(len(logits)))
        for item in ranking:
            weight *= math.exp(logits[item]) / sum(math.exp(logits[j]) for j in left)
            left.remove(item)
        total += weight
    shares = distribution.length_probabilities
    return total if shares is None else total * shares[len(ranking) - distribution.min_length].item()


class TestProbabilities:
    @given(distributions())
    def test_are_those_of_the_definition_and_sum_to_one(self, distribution):
        every = distribution.enumerate_support()
        assert every.tolist() == everything(distribution)
        probabilities = distribution.log_prob(every).exp()
        assert probabilities.tolist() == pytest.approx(
            [naive_probability(distribution, row) for row in every.tolist()], rel=1e-9
        )
        assert probabilities.sum().item() == pytest.approx(1.0)

    @pytest.mark.parametrize("length", [1, 3, 6])
    def test_gradient_agrees_with_finite_differences(self, length):
        logits = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
        value = torch.stack([torch.randperm(6)[:length] for _ in range(2)])
        assert torch.autograd.gradcheck(lambda x: PlackettLuce(x, length=length).log_prob(value), (logits,))


class TestDraws:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"length": 2},
            {"length": 3, "length_probabilities": [0.2, 0.5, 0.1, 0.2]},
            {"logits": [[2.0, 0.0, -1.0, 0.5], [-1.5, 0.5, 1.0, 0.0]], "weights": [0.3, 0.7], "length": 2},
        ],
    )
    def test_frequencies_agree_with_the_probabilities(self, options):
        tensors = {name: float64(value) for name, value in options.items() if isinstance(value, list)}
        logits = {"logits": float64([1.0, 0.0, -0.7, 0.4])}
        generator = torch.Generator().manual_seed(3)
        distribution = PlackettLuce(**{**logits, **options, **tensors}, generator=generator)
        draws = [tuple(row) for row in distribution.sample((20_000,)).tolist()]
        every = [tuple(row) for row in everything(distribution)]
        expected = distribution.log_prob(torch.tensor(every)).exp() * len(draws)
        assert set(draws) <= set(every)
        observed = [draws.count(row) for row in every]
        assert stats.chisquare(observed, expected.tolist()).pvalue > 1e-3

    @given(distributions())
    def test_own_generator_repeats_and_leaves_the_global_one_alone(self, distribution):
        before = torch.random.get_rng_state()
        first, again = (distribution.copy(generator=torch.Generator().manual_seed(1)).sample((9,)) for _ in range(2))
        assert torch.equal(first, again)
        assert torch.equal(before, torch.random.get_rng_state())
        assert torch.isfinite(distribution.log_prob(first)).all()


class TestMode:
    @given(distributions())
    def test_is_the_most_probable_of_the_most_probable_length(self, distribution):
        mode, shares = distribution.mode.tolist(), distribution.length_probabilities
        length = sum(item >= 0 for item in mode)
        if shares is not None:
            assert length - distribution.min_length == shares.argmax()
        if distribution.weights is None:
            alike = [row for row in everything(distribution) if sum(item >= 0 for item in row) == length]
            best = distribution.log_prob(torch.tensor(alike)).max().item()
            assert distribution.log_prob(distribution.mode).item() == pytest.approx(best, abs=1e-9)

    def test_of_a_mixture_need_not_be_that_of_its_heaviest_component(self):
        assert PlackettLuce(torch.zeros(4)).mode.tolist() == [0, 1, 2, 3]
        flat, sharp = [0.2, 0.1, 0.0], [0.0, 4.0, 8.0]
        mixture = PlackettLuce(float64([flat, sharp]), weights=float64([0.6, 0.4]))
        assert mixture.mode.tolist() == [2, 1, 0]


@settings(max_examples=50, deadline=None)
@given(distributions())
def test_marginals_agree_with_enumeration(distribution):
    expected = torch.zeros(distribution.num_items, distribution.length, dtype=torch.float64)
    for row in everything(distribution):
        for place, item in enumerate(row):
            if item >= 0:
                expected[item, place] += naive_probability(distribution, row)
    torch.testing.assert_close(distribution.marginals(), expected, atol=0.03, rtol=0)
    assert torch.equal(distribution.marginals(), distribution.marginals())


@pytest.mark.parametrize("is_mixture", [False, True])
def test_shapes_of_batches(is_mixture):
    logits = torch.randn(3, 2, 4, 5) if is_mixture else torch.randn(3, 2, 5)
    weights = torch.rand(3, 2, 4).softmax(-1) if is_mixture else None
    distribution = PlackettLuce(logits, weights=weights, length=2)
    assert (distribution.batch_shape, distribution.event_shape) == ((3, 2), (2,))
    drawn = distribution.sample((7,))
    assert drawn.shape == (7, 3, 2, 2)
    assert distribution.log_prob(drawn).shape == (7, 3, 2)
    assert distribution.mode.shape == (3, 2, 2)
    assert distribution.marginals().shape == (3, 2, 5, 2)
    assert distribution.enumerate_support().shape == (20, 3, 2, 2)
    assert distribution.enumerate_support(expand=False).shape == (20, 1, 1, 2)
    one = distribution.copy(logits=logits[1, 1], weights=None if weights is None else weights[1, 1])
    torch.testing.assert_close(distribution.log_prob(drawn)[:, 1, 1], one.log_prob(drawn[:, 1, 1]))
    assert torch.equal(distribution.mode[1, 1], one.mode)
    torch.testing.assert_close(one.expand((4,)).log_prob(drawn[0, 1, 1]), one.log_prob(drawn[0, 1, 1]).expand(4))
    together = torch.distributions.Independent(distribution, 2)
    torch.testing.assert_close(together.log_prob(drawn), distribution.log_prob(drawn).sum(dim=(1, 2)))
    assert distribution.has_enumerate_support
    assert bool(distribution.support.check(drawn).all())


@given(distributions())
def test_states_come_back_to_the_last_digit(distribution):
    """A search that goes on from its state must go on the same."""
    state = distribution.state_dict()
    loaded = PlackettLuce.from_state(json.loads(json.dumps(state)))
    assert loaded.state_dict() == state
    every = distribution.enumerate_support()
    assert torch.equal(loaded.log_prob(every), distribution.log_prob(every))


class TestBadInput:
    @pytest.mark.parametrize(
        ("logits", "options", "error", "message"),
        [
            ([0.0, 1.0], {}, TypeError, "floating-point"),
            (torch.tensor([0, 1]), {}, TypeError, "floating-point"),
            (torch.tensor(1.0), {}, ValueError, "shape"),
            (float64([0.0, math.nan]), {}, ValueError, "logits"),
            (float64([0.0, math.inf]), {}, ValueError, "finite"),
            *((torch.zeros(3), {"length": k}, ValueError, "number from 1 to the 3") for k in (0, 4, 1.0, True)),
            (torch.zeros(3), {"weights": float64([1.0])}, ValueError, "one entry for each component"),
            (torch.zeros(2, 3), {"weights": float64([0.5, 0.6])}, ValueError, "weights"),
            *(
                (torch.zeros(3), {"length_probabilities": float64(p)}, ValueError, "length_probabilities")
                for p in ([], [[1.0]], [0.2] * 5, [0.5, 0.6])
            ),
        ],
    )
    def test_refuses_arguments_that_do_not_fit(self, logits, options, error, message):
        with pytest.raises(error, match=message):
            PlackettLuce(logits, **options)

    @pytest.mark.parametrize(
        ("value", "options"),
        [
            *(([0, 0, 1], {}), ([1, 2, 3], {}), ([-1, 0, 1], {}), ([0, 1, -1], {}), ([0, 1], {})),
            ([0, -1], {"length": 2}),
            *([row, {"length_probabilities": [0.5, 0.5]}] for row in ([0, -1, -1], [0, -1, 1], [0, 0, -1])),
        ],
    )
    def test_refuses_what_is_no_ranking(self, value, options):
        options = {k: float64(v) if isinstance(v, list) else v for k, v in options.items()}
        with pytest.raises(ValueError, match="value must hold"):
            PlackettLuce(torch.zeros(3), **options).log_prob(torch.tensor(value))

    def test_enumeration_stops_before_it_fills_the_memory(self):
        assert PlackettLuce(torch.zeros(100), length=2).enumerate_support().shape == (9_900, 2)
        with pytest.raises(ValueError, match="first 6 of n = 100"):
            PlackettLuce(torch.zeros(100), length=6).enumerate_support()
