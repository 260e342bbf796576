import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import Categorical, MixtureSameFamily

from plr_dspy import PlackettLuce
from plr_dspy.orderings.plackett_luce import (
    distribution_from_state,
    distribution_state,
    draw_orderings,
    mode_probability,
    most_probable_ordering,
    permutation,
    plackett_luce_mixture,
)

logit_lists = st.lists(st.floats(-8, 8), min_size=1, max_size=6)


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def naive_log_prob(logits, ordering):
    """PLR Eq. 2, position by position."""
    total, left = 0.0, list(range(len(logits)))
    for item in ordering:
        total += logits[item] - math.log(sum(math.exp(logits[j]) for j in left))
        left.remove(item)
    return total


def naive_marginals(distribution):
    n = distribution.num_items
    table = torch.zeros(n, n, dtype=torch.float64)
    for ordering in distribution.enumerate_support():
        probability = distribution.log_prob(ordering).exp()
        for position, item in enumerate(ordering.tolist()):
            table[item, position] += probability
    return table


class TestShapes:
    def test_batch_and_event_shape(self):
        distribution = PlackettLuce(torch.zeros(3, 2, 5))
        assert distribution.batch_shape == (3, 2)
        assert distribution.event_shape == (5,)
        assert distribution.sample((7,)).shape == (7, 3, 2, 5)
        assert distribution.log_prob(distribution.sample((7,))).shape == (7, 3, 2)
        assert distribution.mode.shape == (3, 2, 5)
        assert distribution.marginals().shape == (3, 2, 5, 5)
        assert distribution.enumerate_support().shape == (120, 3, 2, 5)
        assert distribution.enumerate_support(expand=False).shape == (120, 1, 1, 5)

    def test_expand_keeps_the_distribution(self):
        single = PlackettLuce(float64([0.3, -1.0, 2.0]))
        batch = single.expand((4,))
        ordering = torch.tensor([2, 0, 1])
        assert batch.batch_shape == (4,)
        torch.testing.assert_close(batch.log_prob(ordering), single.log_prob(ordering).expand(4))

    def test_log_prob_broadcasts_values_against_a_batch(self):
        distribution = PlackettLuce(torch.randn(3, 4))
        value = torch.tensor([[2, 0, 1, 3]])
        assert distribution.log_prob(value).shape == (3,)


class TestValidation:
    @pytest.mark.parametrize("value", [[0, 0, 1], [1, 2, 3], [-1, 0, 1]])
    def test_refuses_what_is_no_permutation(self, value):
        with pytest.raises(ValueError, match="support"):
            PlackettLuce(torch.zeros(3)).log_prob(torch.tensor(value))

    def test_refuses_another_number_of_items(self):
        with pytest.raises(ValueError):
            PlackettLuce(torch.zeros(3)).log_prob(torch.tensor([0, 1]))

    def test_refuses_nan_logits(self):
        with pytest.raises(ValueError, match="logits"):
            PlackettLuce(torch.tensor([0.0, float("nan")]))

    def test_refuses_infinities_integers_and_lists(self):
        with pytest.raises(ValueError, match="finite"):
            PlackettLuce(torch.tensor([0.0, float("inf")]))
        with pytest.raises(TypeError, match="floating-point"):
            PlackettLuce(torch.tensor([0, 1]))
        with pytest.raises(TypeError, match="floating-point"):
            PlackettLuce([0.0, 1.0])

    def test_refuses_a_scalar(self):
        with pytest.raises(ValueError, match="shape"):
            PlackettLuce(torch.tensor(1.0))

    def test_support_is_permutations(self):
        assert permutation.check(torch.tensor([[1, 0, 2], [1, 1, 2]])).tolist() == [True, False]

    def test_enumeration_stops_before_it_fills_the_memory(self):
        with pytest.raises(ValueError, match="n = 10"):
            PlackettLuce(torch.zeros(11)).enumerate_support()


class TestLogProb:
    @given(logit_lists, st.randoms(use_true_random=False))
    def test_agrees_with_the_definition(self, logits, rng):
        ordering = list(range(len(logits)))
        rng.shuffle(ordering)
        actual = PlackettLuce(float64(logits)).log_prob(torch.tensor(ordering))
        assert actual.item() == pytest.approx(naive_log_prob(logits, ordering), abs=1e-9)

    @given(logit_lists)
    def test_probabilities_sum_to_one(self, logits):
        distribution = PlackettLuce(float64(logits))
        total = distribution.log_prob(distribution.enumerate_support()).exp().sum()
        assert total.item() == pytest.approx(1.0)

    @given(logit_lists, st.floats(-50, 50))
    def test_shifting_all_logits_changes_nothing(self, logits, shift):
        ordering = torch.arange(len(logits))
        before = PlackettLuce(float64(logits)).log_prob(ordering)
        after = PlackettLuce(float64(logits) + shift).log_prob(ordering)
        torch.testing.assert_close(before, after)

    def test_two_items_are_a_logistic_regression(self):
        value = PlackettLuce(float64([1.5, -0.5])).log_prob(torch.tensor([0, 1]))
        assert value.item() == pytest.approx(math.log(1 / (1 + math.exp(-2.0))))

    def test_gradient_agrees_with_finite_differences(self):
        logits = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
        value = torch.stack([torch.randperm(6), torch.randperm(6)])
        assert torch.autograd.gradcheck(lambda x: PlackettLuce(x).log_prob(value), (logits,))

    def test_extreme_logits_stay_finite(self):
        distribution = PlackettLuce(float64([400.0, -400.0, 0.0]))
        assert torch.isfinite(distribution.log_prob(torch.tensor([1, 2, 0])))


class TestSampling:
    def test_frequencies_agree_with_the_probabilities(self):
        distribution = PlackettLuce(
            float64([1.0, 0.0, -0.7, 0.4]), generator=torch.Generator().manual_seed(3)
        )
        draws = [tuple(row) for row in distribution.sample((20_000,)).tolist()]
        orderings = list(itertools.permutations(range(4)))
        observed = [draws.count(ordering) for ordering in orderings]
        expected = distribution.log_prob(torch.tensor(orderings)).exp() * len(draws)
        assert stats.chisquare(observed, expected.tolist()).pvalue > 1e-3

    def test_own_generator_repeats_and_leaves_the_global_one_alone(self):
        logits = torch.randn(5)
        before = torch.random.get_rng_state()
        first = PlackettLuce(logits, generator=torch.Generator().manual_seed(1)).sample((9,))
        second = PlackettLuce(logits, generator=torch.Generator().manual_seed(1)).sample((9,))
        assert torch.equal(first, second)
        assert torch.equal(before, torch.random.get_rng_state())

    @given(logit_lists)
    def test_samples_lie_in_the_support(self, logits):
        distribution = PlackettLuce(float64(logits))
        assert permutation.check(distribution.sample((5,))).all()


class TestMode:
    @given(logit_lists)
    def test_no_ordering_is_more_probable(self, logits):
        distribution = PlackettLuce(float64(logits))
        best = distribution.log_prob(distribution.enumerate_support()).max()
        assert distribution.log_prob(distribution.mode).item() == pytest.approx(best.item(), abs=1e-9)

    def test_equal_logits_keep_the_order_given(self):
        assert PlackettLuce(torch.zeros(4)).mode.tolist() == [0, 1, 2, 3]


class TestMarginals:
    @settings(max_examples=40)
    @given(logit_lists)
    def test_agree_with_enumeration(self, logits):
        distribution = PlackettLuce(float64(logits))
        torch.testing.assert_close(distribution.marginals(), naive_marginals(distribution), atol=1e-7, rtol=0)

    def test_rows_and_columns_sum_to_one_for_many_items(self):
        marginals = PlackettLuce(torch.randn(40, dtype=torch.float64) * 4).marginals()
        ones = torch.ones(40, dtype=torch.float64)
        torch.testing.assert_close(marginals.sum(0), ones, atol=1e-7, rtol=0)
        torch.testing.assert_close(marginals.sum(1), ones, atol=1e-7, rtol=0)

    def test_far_apart_items_have_certain_positions(self):
        marginals = PlackettLuce(float64([0.0, 1000.0, -1000.0])).marginals()
        expected = float64([[0, 1, 0], [1, 0, 0], [0, 0, 1]])
        torch.testing.assert_close(marginals, expected, atol=1e-7, rtol=0)

    def test_first_position_is_a_softmax(self):
        logits = torch.randn(7, dtype=torch.float64)
        torch.testing.assert_close(PlackettLuce(logits).marginals()[:, 0], logits.softmax(0))


class TestMixture:
    def mixture(self):
        logits = float64([[2.0, 0.0, -1.0], [-1.5, 0.5, 1.0]])
        return MixtureSameFamily(Categorical(probs=float64([0.3, 0.7])), PlackettLuce(logits)), logits

    def test_log_prob_is_the_weighted_sum(self):
        mixture, logits = self.mixture()
        orderings = PlackettLuce(logits[0]).enumerate_support()
        parts = [PlackettLuce(row).log_prob(orderings).exp() for row in logits]
        torch.testing.assert_close(mixture.log_prob(orderings).exp(), 0.3 * parts[0] + 0.7 * parts[1])

    def test_samples(self):
        mixture, _ = self.mixture()
        assert permutation.check(mixture.sample((50,))).all()

    def test_draws_follow_the_mixture_and_repeat(self):
        mixture, logits = self.mixture()
        draws = draw_orderings(mixture, 20_000, torch.Generator().manual_seed(0))
        again = draw_orderings(mixture, 20_000, torch.Generator().manual_seed(0))
        assert torch.equal(draws, again)
        orderings = PlackettLuce(logits[0]).enumerate_support()
        observed = [(draws == ordering).all(-1).sum().item() for ordering in orderings]
        expected = mixture.log_prob(orderings).exp() * len(draws)
        assert stats.chisquare(observed, expected.tolist()).pvalue > 1e-3

    def test_mode_of_a_mixture_is_its_best_component_mode(self):
        mixture, _ = self.mixture()
        assert most_probable_ordering(mixture).tolist() == [2, 1, 0]
        expected = mixture.log_prob(torch.tensor([2, 1, 0])).exp().item()
        assert mode_probability(mixture) == pytest.approx(expected)

    def test_mode_of_a_mixture_need_not_be_that_of_its_heaviest_component(self):
        flat, sharp = [0.2, 0.1, 0.0], [0.0, 4.0, 8.0]
        mixture = plackett_luce_mixture(float64([0.6, 0.4]), float64([flat, sharp]))
        assert most_probable_ordering(mixture).tolist() == [2, 1, 0]

    @pytest.mark.parametrize("kind", ["single", "mixture"])
    def test_state_round_trip(self, kind):
        if kind == "single":
            distribution = PlackettLuce(torch.randn(4, dtype=torch.float64))
        else:
            weights = torch.tensor([0.2, 0.8], dtype=torch.float64)
            distribution = plackett_luce_mixture(weights, torch.randn(2, 4, dtype=torch.float64))
        loaded = distribution_from_state(distribution_state(distribution))
        orderings = PlackettLuce(torch.zeros(4)).enumerate_support()
        torch.testing.assert_close(loaded.log_prob(orderings), distribution.log_prob(orderings))


def test_states_come_back_to_the_last_digit():
    """A search that goes on from its state must go on the same."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        weights = torch.rand(3, dtype=torch.float64, generator=generator)
        logits = torch.randn(3, 5, dtype=torch.float64, generator=generator)
        state = distribution_state(plackett_luce_mixture(weights / weights.sum(), logits))
        assert distribution_state(distribution_from_state(json.loads(json.dumps(state)))) == state
