"""Plackett-Luce cut off after the first k of n items, and the updates from elites that show only some items."""

import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize
from torch.distributions import Categorical, MixtureSameFamily

from plr_dspy import MaximumLikelihood, MixtureEM, PlackettLuce, RankEMA
from plr_dspy.orderings.fitting import ascend_log_likelihood, split_by_distance
from plr_dspy.orderings.marginals import MOST_EXACT, most_probable_orderings, position_probabilities
from plr_dspy.orderings.partial_rankings import are_rankings, log_probabilities, padded, tied_ranks
from plr_dspy.orderings.plackett_luce import (
    cut_off,
    distribution_from_state,
    distribution_state,
    draw_orderings,
    mode_probability,
    most_probable_ordering,
    plackett_luce_mixture,
    sharpened,
)

RULES = [RankEMA(), MaximumLikelihood(num_steps=10), MixtureEM(num_steps=10)]

logit_lists = st.lists(st.floats(-6, 6), min_size=1, max_size=6)
"""At most six items, so that everything can be enumerated."""


@st.composite
def cut_offs(draw):
    logits = draw(logit_lists)
    return logits, draw(st.integers(1, len(logits)))


@st.composite
def mixed_rankings(draw, size=5, count=4):
    """Rankings of any lengths, the empty one among them."""
    orders = draw(st.lists(st.permutations(range(size)), min_size=count, max_size=count))
    return [order[: draw(st.integers(0, size))] for order in orders]


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def naive_probability(logits, ranking):
    """Draw by draw, from the items left."""
    probability, left = 1.0, list(range(len(logits)))
    for item in ranking:
        probability *= math.exp(logits[item]) / sum(math.exp(logits[j]) for j in left)
        left.remove(item)
    return probability


def logits_of(distribution):
    single = isinstance(distribution, PlackettLuce)
    return distribution.logits if single else distribution.component_distribution.logits


class TestDistribution:
    @given(cut_offs())
    def test_probabilities_are_those_of_the_definition_and_sum_to_one(self, case):
        logits, length = case
        distribution = PlackettLuce(float64(logits), length=length)
        every = distribution.enumerate_support()
        assert every.tolist() == [list(r) for r in itertools.permutations(range(len(logits)), length)]
        probabilities = distribution.log_prob(every).exp()
        assert probabilities.tolist() == pytest.approx([naive_probability(logits, r) for r in every.tolist()])
        assert probabilities.sum().item() == pytest.approx(1.0)

    @given(cut_offs())
    def test_is_the_sum_over_all_orderings_that_begin_so(self, case):
        logits, length = case
        whole = PlackettLuce(float64(logits))
        orderings = whole.enumerate_support()
        beginning = whole.mode.flip(-1)[:length]
        begin_so = (orderings[:, :length] == beginning).all(-1)
        expected = whole.log_prob(orderings[begin_so]).exp().sum()
        actual = PlackettLuce(float64(logits), length=length).log_prob(beginning).exp()
        torch.testing.assert_close(actual, expected)

    @settings(max_examples=40)
    @given(cut_offs())
    def test_marginals_agree_with_enumeration(self, case):
        logits, length = case
        distribution = PlackettLuce(float64(logits), length=length)
        expected = torch.zeros(len(logits), length, dtype=torch.float64)
        shown = torch.zeros(len(logits), dtype=torch.float64)
        for ranking in distribution.enumerate_support():
            probability = distribution.log_prob(ranking).exp()
            expected[ranking, torch.arange(length)] += probability
            shown[ranking] += probability
        torch.testing.assert_close(distribution.marginals(), expected, atol=1e-7, rtol=0)
        torch.testing.assert_close(distribution.marginals().sum(-1), shown, atol=1e-7, rtol=0)
        torch.testing.assert_close(position_probabilities(distribution), expected, atol=1e-7, rtol=0)

    def test_marginals_of_many_items_are_shares_of_draws(self):
        logits = torch.linspace(2, -2, MOST_EXACT + 1, dtype=torch.float64)
        distribution = PlackettLuce(logits, length=3)
        shares = position_probabilities(distribution)
        assert shares.shape == (MOST_EXACT + 1, 3)
        assert (shares - distribution.marginals()).abs().max() < 0.015

    @given(cut_offs())
    def test_no_ranking_is_more_probable_than_the_mode(self, case):
        logits, length = case
        distribution = PlackettLuce(float64(logits), length=length)
        every = distribution.enumerate_support()
        best = distribution.log_prob(every).max().item()
        assert distribution.log_prob(distribution.mode).item() == pytest.approx(best, abs=1e-9)

    @pytest.mark.parametrize("length", [1, 2, 3, 4])
    def test_frequencies_agree_with_the_probabilities(self, length):
        generator = torch.Generator().manual_seed(length)
        distribution = PlackettLuce(float64([1.0, 0.0, -0.7, 0.4]), length=length, generator=generator)
        draws = distribution.sample((20_000,))
        every = distribution.enumerate_support()
        observed = [(draws == ranking).all(-1).sum().item() for ranking in every]
        expected = distribution.log_prob(every).exp() * len(draws)
        assert stats.chisquare(observed, expected.tolist()).pvalue > 1e-3

    def test_draws_are_the_beginnings_of_draws_of_the_whole(self):
        logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
        whole, first = (
            PlackettLuce(logits, length=length, generator=torch.Generator().manual_seed(7)).sample((5,))
            for length in (None, 2)
        )
        assert torch.equal(whole[..., :2], first)

    @pytest.mark.parametrize("length", [1, 3, 6])
    def test_gradient_agrees_with_finite_differences(self, length):
        logits = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
        value = torch.stack([torch.randperm(6)[:length] for _ in range(2)])
        assert torch.autograd.gradcheck(lambda x: PlackettLuce(x, length=length).log_prob(value), (logits,))

    def test_gradient_of_one_draw_is_what_a_softmax_has(self):
        logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
        PlackettLuce(logits, length=1).log_prob(torch.tensor([3])).backward()
        expected = torch.eye(5, dtype=torch.float64)[3] - logits.detach().softmax(-1)
        torch.testing.assert_close(logits.grad, expected)


class TestShapes:
    def test_batch_and_event_shape(self):
        distribution = PlackettLuce(torch.zeros(3, 2, 5), length=2)
        assert (distribution.batch_shape, distribution.event_shape) == ((3, 2), (2,))
        assert (distribution.num_items, distribution.length) == (5, 2)
        assert distribution.sample((7,)).shape == (7, 3, 2, 2)
        assert distribution.log_prob(distribution.sample((7,))).shape == (7, 3, 2)
        assert distribution.mode.shape == (3, 2, 2)
        assert distribution.marginals().shape == (3, 2, 5, 2)
        assert distribution.enumerate_support().shape == (20, 3, 2, 2)
        assert distribution.enumerate_support(expand=False).shape == (20, 1, 1, 2)

    def test_expand_keeps_the_distribution(self):
        single = PlackettLuce(float64([0.3, -1.0, 2.0]), length=2)
        batch = single.expand((4,))
        ranking = torch.tensor([2, 0])
        assert (batch.batch_shape, batch.event_shape) == ((4,), (2,))
        torch.testing.assert_close(batch.log_prob(ranking), single.log_prob(ranking).expand(4))

    @given(logit_lists)
    def test_the_length_of_all_items_changes_nothing(self, logits):
        one, other = (
            PlackettLuce(float64(logits), length=length, generator=torch.Generator().manual_seed(3))
            for length in (None, len(logits))
        )
        draws = one.sample((5,))
        assert torch.equal(draws, other.sample((5,)))
        assert torch.equal(one.log_prob(draws), other.log_prob(draws))
        assert torch.equal(one.marginals(), other.marginals())


class TestValidation:
    @pytest.mark.parametrize("length", [0, 4, -1, 1.0, True])
    def test_refuses_lengths_out_of_range(self, length):
        with pytest.raises(ValueError, match="length must be a whole number from 1 to the 3 items"):
            PlackettLuce(torch.zeros(3), length=length)

    @pytest.mark.parametrize("value", [[0, 0], [0, 3], [-1, 0], [0, -1]])
    def test_refuses_what_is_no_ranking(self, value):
        with pytest.raises(ValueError, match="support"):
            PlackettLuce(torch.zeros(3), length=2).log_prob(torch.tensor(value))

    @pytest.mark.parametrize("value", [[0], [0, 1, 2]])
    def test_refuses_another_length(self, value):
        with pytest.raises(ValueError):
            PlackettLuce(torch.zeros(3), length=2).log_prob(torch.tensor(value))

    def test_enumerates_short_rankings_of_many_items(self):
        assert PlackettLuce(torch.zeros(100), length=2).enumerate_support().shape == (9_900, 2)
        with pytest.raises(ValueError, match="first 6 of n = 100"):
            PlackettLuce(torch.zeros(100), length=6).enumerate_support()


class TestMixture:
    logits = float64([[2.0, 0.0, -1.0, 0.5], [-1.5, 0.5, 1.0, 0.0]])

    def mixture(self, length=2):
        return plackett_luce_mixture(float64([0.3, 0.7]), self.logits, length=length)

    def test_log_prob_is_the_weighted_sum(self):
        every = PlackettLuce(self.logits[0], length=2).enumerate_support()
        parts = [PlackettLuce(row, length=2).log_prob(every).exp() for row in self.logits]
        torch.testing.assert_close(self.mixture().log_prob(every).exp(), 0.3 * parts[0] + 0.7 * parts[1])

    def test_draws_follow_the_mixture(self):
        mixture = self.mixture()
        draws = draw_orderings(mixture, 20_000, torch.Generator().manual_seed(0))
        every = PlackettLuce(self.logits[0], length=2).enumerate_support()
        observed = [(draws == ranking).all(-1).sum().item() for ranking in every]
        expected = mixture.log_prob(every).exp() * len(draws)
        assert stats.chisquare(observed, expected.tolist()).pvalue > 1e-3

    def test_torchs_own_mixture_takes_it(self):
        mixture = MixtureSameFamily(
            Categorical(probs=float64([0.3, 0.7])), PlackettLuce(self.logits, length=2)
        )
        assert mixture.event_shape == (2,)
        assert torch.isfinite(mixture.log_prob(mixture.sample((50,)))).all()

    def test_mode_is_the_best_of_its_components_modes(self):
        mixture = self.mixture()
        assert most_probable_ordering(mixture).tolist() == [2, 1]
        assert mode_probability(mixture) == pytest.approx(mixture.log_prob(torch.tensor([2, 1])).exp().item())

    @pytest.mark.parametrize("kind", ["single", "mixture"])
    @pytest.mark.parametrize("length", [1, 3, 4])
    def test_most_probable_ones_by_enumeration(self, kind, length):
        whole = PlackettLuce(self.logits[0]) if kind == "single" else self.mixture(None)
        distribution = cut_off(whole, length)
        every = PlackettLuce(torch.zeros(4), length=length).enumerate_support()
        expected = distribution.log_prob(every).sort(descending=True).values[:3]
        found = most_probable_orderings(distribution, 3)
        assert found.shape[1] == length
        torch.testing.assert_close(distribution.log_prob(found), expected)

    @pytest.mark.parametrize("length", [2, None])
    @pytest.mark.parametrize("kind", ["single", "mixture"])
    def test_state_and_sharpening_keep_the_length(self, kind, length):
        mixed = kind == "mixture"
        distribution = self.mixture(length) if mixed else PlackettLuce(self.logits[0], length=length)
        state = json.loads(json.dumps(distribution_state(distribution)))
        assert ("length" in state) == (length is not None)
        every = PlackettLuce(self.logits[0], length=length).enumerate_support()
        loaded = distribution_from_state(state)
        assert torch.equal(loaded.log_prob(every), distribution.log_prob(every))
        flat = sharpened(distribution, 0.0).log_prob(every).exp()
        torch.testing.assert_close(flat, torch.full_like(flat, 1 / len(every)))


class TestMixedLengths:
    @given(logit_lists, st.data())
    def test_log_probabilities_of_any_lengths(self, logits, data):
        rankings = data.draw(mixed_rankings(size=len(logits)))
        actual = log_probabilities(float64(logits), padded(rankings, len(logits))).exp()
        assert actual.tolist() == pytest.approx([naive_probability(logits, ranking) for ranking in rankings])

    @given(mixed_rankings(), st.floats(0, 1))
    def test_the_log_likelihood_is_concave(self, rankings, share):
        rankings = padded(rankings, 5)
        one, other = torch.randn(2, 5, dtype=torch.float64).mul(3).unbind()
        between = log_probabilities(share * one + (1 - share) * other, rankings)
        chord = share * log_probabilities(one, rankings) + (1 - share) * log_probabilities(other, rankings)
        assert (between >= chord - 1e-9).all()

    def test_ranks_of_items_left_out_are_tied(self):
        ranks = tied_ranks(padded([[2, 0], [], [3, 1, 0, 2], [1, 3, 0]], 4), 4)
        assert ranks.tolist() == [[1, 2.5, 0, 2.5], [1.5] * 4, [2, 1, 3, 0], [2, 0, 3, 1]]

    @pytest.mark.parametrize(
        ("row", "good"),
        [
            ([2, 0, 1], True),
            ([2, -1, -1], True),
            ([-1, -1, -1], True),
            ([-1, 2, -1], False),
            ([2, 2, -1], False),
            ([3, -1, -1], False),
            ([-2, 0, 1], False),
        ],
    )
    def test_what_rankings_are(self, row, good):
        assert are_rankings(torch.tensor([[0, 1, 2], row]), 3).tolist() == [True, good]


class TestUpdates:
    @pytest.mark.parametrize("shape", [(5,), (3, 5)])
    def test_the_fit_is_that_of_torch(self, shape):
        """Its Adam, with gradients by autograd."""
        generator = torch.Generator().manual_seed(1)
        start = torch.randn(shape, dtype=torch.float64, generator=generator)
        elites = padded([[3, 1], [], [4, 0, 2, 1, 3], [2], [0, 3, 4, 1]], 5)
        weights = torch.rand((*shape[:-1], 5), dtype=torch.float64, generator=generator)
        settings = MaximumLikelihood(l2=0.1, clip=1.5, num_steps=40)

        def projected(logits):
            return (logits - logits.mean(-1, keepdim=True)).clamp(-settings.clip, settings.clip)

        theta = projected(start).requires_grad_(True)
        adam = torch.optim.Adam([theta], lr=settings.learning_rate, weight_decay=settings.l2, maximize=True)
        for _ in range(settings.num_steps):
            adam.zero_grad()
            (weights * log_probabilities(theta.unsqueeze(-2), elites)).sum().backward()
            adam.step()
            with torch.no_grad():
                theta.copy_(projected(theta))
        found = ascend_log_likelihood(start, elites, weights, settings)
        torch.testing.assert_close(found, theta.detach(), rtol=0, atol=1e-9)

    def test_reaches_the_maximum_that_scipy_finds(self):
        rankings, weights = [[0, 1], [1, 0, 3], [2], [3, 0, 1, 2], []], [1.0, 2.0, 0.5, 1.5, 3.0]

        def loss(x):
            terms = [w * math.log(naive_probability(x, r)) for w, r in zip(weights, rankings, strict=True)]
            return -sum(terms) + 0.05 * sum(x**2)

        best = minimize(loss, [0.0] * 4).x
        rule = MaximumLikelihood(num_steps=3000, learning_rate=0.02, l2=0.1)
        fitted = rule.fit(torch.zeros(4, dtype=torch.float64), padded(rankings, 4), float64(weights))
        torch.testing.assert_close(fitted, float64(best - best.mean()), atol=1e-4, rtol=0)

    def test_recovers_strengths_from_mixed_lengths(self):
        generator = torch.Generator().manual_seed(0)
        truth = torch.linspace(2, -2, 7, dtype=torch.float64)
        draws = PlackettLuce(truth, generator=generator).sample((1_500,)).tolist()
        rankings = [draw[: 1 + number % 5] for number, draw in enumerate(draws)]
        rule = MaximumLikelihood(num_steps=300)
        fitted = rule.fit(torch.zeros(7, dtype=torch.float64), padded(rankings, 7))
        torch.testing.assert_close(fitted, truth, atol=0.25, rtol=0)

    def test_an_item_never_shown_falls_behind(self):
        elites = padded([[0, 1], [1, 0]], 3)
        for rule in RULES:
            logits = logits_of(rule.update(rule.initial(3), elites))
            heaviest = logits if logits.dim() == 1 else logits.mean(0)
            assert heaviest.argmin() == 2

    def test_the_moving_average_goes_to_the_tied_ranks(self):
        rule, elites = RankEMA(smoothing=0.5), padded([[2], [2, 0, 1, 3]], 4)
        updated = rule.update(PlackettLuce(float64([1.0, 0.0, 0.0, -1.0])), elites)
        mean_ranks = [(2 + 1) / 2, (2 + 2) / 2, 0.0, (2 + 3) / 2]
        expected = 0.5 * float64([1.0, 0.0, 0.0, -1.0]) - 0.5 * float64(mean_ranks)
        torch.testing.assert_close(updated.logits, expected - expected.mean())

    def test_a_mixture_finds_two_modes_of_different_lengths(self):
        generator = torch.Generator().manual_seed(0)
        strong = torch.linspace(6, -6, 8, dtype=torch.float64)
        rankings = [
            draw[:length]
            for logits, length, count in ((strong, 3, 30), (-strong, 5, 10))
            for draw in PlackettLuce(logits, generator=generator).sample((count,)).tolist()
        ]
        rule = MixtureEM(num_components=2, l2=0.1)
        mixture = rule.initial(8)
        for _ in range(10):
            mixture = rule.update(mixture, padded(rankings, 8))
        weights, modes = mixture.mixture_distribution.probs, mixture.component_distribution.mode
        assert weights.max().item() == pytest.approx(0.75, abs=0.05)
        assert sorted(modes[weights.argmax()][:3].tolist()) == [0, 1, 2]
        assert sorted(modes[weights.argmin()][:4].tolist()) == [4, 5, 6, 7]

    def test_an_elite_that_shows_nothing_tells_likelihoods_nothing(self):
        start = PlackettLuce(float64([0.5, -0.7, 0.2]))
        rule = MaximumLikelihood()
        torch.testing.assert_close(rule.update(start, padded([[]], 3)).logits, start.logits)
        both = rule.update(start, padded([[1], []], 3))
        torch.testing.assert_close(both.logits, rule.update(start, padded([[1]], 3)).logits)

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    @given(rankings=mixed_rankings())
    def test_is_pure_and_stays_finite(self, rule, rankings):
        elites = padded(rankings, 5)
        copy = elites.clone()
        logits = logits_of(rule.update(rule.update(rule.initial(5), elites), elites))
        assert torch.equal(elites, copy)
        assert torch.isfinite(logits).all()
        assert logits.abs().max() <= 20.0
        torch.testing.assert_close(logits.mean(-1), torch.zeros_like(logits.mean(-1)))

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    @pytest.mark.parametrize("row", [[-1, 0, 1], [0, 0, 1], [0, 3, -1]])
    def test_refuses_what_is_no_ranking(self, rule, row):
        with pytest.raises(ValueError, match="different items in each row, followed by -1"):
            rule.update(rule.initial(3), torch.tensor([[0, 1, 2], row]))

    def test_elites_are_grouped_by_what_they_show(self):
        rankings = [[0, 1], [4, 3], [0], [4], [1, 0, 2], [3, 4]]
        groups = split_by_distance(padded(rankings, 5), 2).argmax(dim=1).tolist()
        assert groups == [0, 1, 0, 1, 0, 1]
