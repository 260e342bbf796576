import itertools
import json
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from plr_dspy import MaximumLikelihood, MixtureEM, PlackettLuce, RankEMA
from plr_dspy.orderings.arrangement_distribution import ArrangementDistribution, ArrangementUpdate
from plr_dspy.orderings.partial_rankings import padded
from plr_dspy.orderings.plackett_luce import distribution_state, plackett_luce_mixture

RULES = [RankEMA(), MaximumLikelihood(num_steps=10), MixtureEM(num_steps=10)]


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def distributions(draw, max_items=5):
    """Singles and mixtures of two, over any range of lengths."""
    size = draw(st.integers(1, max_items))
    least = draw(st.integers(0, size))
    shares = draw(st.lists(st.integers(1, 9), min_size=1, max_size=size - least + 1))
    rows = draw(st.lists(st.lists(st.floats(-5, 5), min_size=size, max_size=size), min_size=1, max_size=2))
    ranking = (
        PlackettLuce(float64(rows[0]))
        if len(rows) == 1
        else plackett_luce_mixture(float64([0.25, 0.75]), float64(rows))
    )
    return ArrangementDistribution(ranking, float64(shares) / sum(shares), least)


def example(min_length=0):
    return ArrangementDistribution(
        PlackettLuce(float64([1.0, 0.0, -0.7, 0.4])), float64([0.2, 0.5, 0.3]), min_length
    )


def everything(distribution):
    return [
        items
        for length in range(distribution.min_length, distribution.max_length + 1)
        for items in itertools.permutations(range(distribution.num_items), length)
    ]


def naive_probability(distribution, arrangement):
    """The number of items, then draw by draw from the end."""
    probability = distribution.length_probabilities[len(arrangement) - distribution.min_length].item()
    left = list(range(distribution.num_items))
    for item in reversed(arrangement):
        worths = {j: math.exp(distribution.ranking.logits[j]) for j in left}
        probability *= worths[item] / sum(worths.values())
        left.remove(item)
    return probability


class TestProbabilities:
    @settings(max_examples=50)
    @given(distributions())
    def test_sum_to_one_over_all_lengths(self, distribution):
        total = distribution.log_prob(everything(distribution)).exp().sum().item()
        assert total == pytest.approx(1.0)

    @pytest.mark.parametrize("min_length", [0, 1, 2])
    def test_are_those_of_the_definition(self, min_length):
        distribution = example(min_length)
        every = everything(distribution)
        expected = [naive_probability(distribution, arrangement) for arrangement in every]
        assert distribution.log_prob(every).exp().tolist() == pytest.approx(expected)

    def test_the_last_item_shown_has_one_distribution_whatever_the_length(self):
        distribution = example(1)
        for length in (1, 2, 3):
            arrangements = [a for a in everything(distribution) if len(a) == length and a[-1] == 0]
            share = distribution.log_prob(arrangements).exp().sum() / [0.2, 0.5, 0.3][length - 1]
            assert share.item() == pytest.approx(distribution.ranking.logits.softmax(-1)[0].item())

    def test_frequencies_agree_with_the_probabilities(self):
        distribution = example()
        draws = Counter(distribution.sample(20_000, torch.Generator().manual_seed(0)))
        every = everything(distribution)
        expected = distribution.log_prob(every).exp() * 20_000
        assert set(draws) <= set(every)
        assert stats.chisquare([draws[a] for a in every], expected.tolist()).pvalue > 1e-3

    def test_draws_repeat(self):
        first, again = (example().sample(9, torch.Generator().manual_seed(1)) for _ in range(2))
        assert first == again

    @settings(max_examples=50)
    @given(distributions())
    def test_marginals_agree_with_enumeration(self, distribution):
        expected = torch.zeros(distribution.num_items, distribution.max_length, dtype=torch.float64)
        every = everything(distribution)
        for arrangement, probability in zip(every, distribution.log_prob(every).exp(), strict=True):
            for place, item in enumerate(reversed(arrangement)):
                expected[item, place] += probability
        torch.testing.assert_close(distribution.marginals(), expected, atol=1e-7, rtol=0)

    @given(distributions())
    def test_the_mode_is_the_most_probable_of_its_length(self, distribution):
        mode = distribution.mode
        assert len(mode) - distribution.min_length == distribution.length_probabilities.argmax()
        if isinstance(distribution.ranking, PlackettLuce):
            alike = [a for a in everything(distribution) if len(a) == len(mode)]
            best = distribution.log_prob(alike).max().item()
            assert distribution.log_prob([mode]).item() == pytest.approx(best, abs=1e-9)

    def test_the_mode_of_a_mixture_is_the_best_of_its_components(self):
        flat, sharp = [0.2, 0.1, 0.0], [0.0, 4.0, 8.0]
        mixture = plackett_luce_mixture(float64([0.6, 0.4]), float64([flat, sharp]))
        assert ArrangementDistribution(mixture, float64([1.0]), 2).mode == (1, 2)


class TestSharpness:
    def test_none_is_uniform_over_lengths_and_then_over_arrangements(self):
        flat = example().sharpened(0.0)
        every = everything(flat)
        expected = [1 / 3 / math.perm(4, len(arrangement)) for arrangement in every]
        assert flat.log_prob(every).exp().tolist() == pytest.approx(expected)

    def test_one_changes_nothing(self):
        every = everything(example())
        torch.testing.assert_close(example().sharpened(1.0).log_prob(every), example().log_prob(every))


class TestState:
    @given(distributions())
    def test_comes_back_to_the_last_digit(self, distribution):
        state = distribution.state_dict()
        loaded = ArrangementDistribution.from_state(json.loads(json.dumps(state)))
        assert loaded.state_dict() == state
        every = everything(distribution)
        assert torch.equal(loaded.log_prob(every), distribution.log_prob(every))


class TestUpdate:
    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    def test_starts_uniform(self, rule):
        distribution = ArrangementUpdate(rule).initial(4, min_length=1, max_length=3)
        every = everything(distribution)
        expected = [1 / 3 / math.perm(4, len(arrangement)) for arrangement in every]
        assert distribution.log_prob(every).exp().tolist() == pytest.approx(expected)

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    def test_the_ranking_learns_by_the_rule_from_the_end(self, rule):
        update = ArrangementUpdate(rule)
        start = update.initial(4, min_length=0, max_length=4)
        elites, weights = [(3, 1), (), (0, 2, 1)], float64([1.0, 2.0, 3.0])
        expected = rule.update(rule.initial(4), padded([(1, 3), (), (1, 2, 0)], 4), weights)
        updated = update.update(start, elites, weights)
        assert distribution_state(updated.ranking) == distribution_state(expected)

    def test_lengths_go_part_of_the_way_to_those_of_the_elites(self):
        update = ArrangementUpdate(RankEMA(smoothing=0.25), uniform_share=0.1)
        start = ArrangementDistribution(PlackettLuce(torch.zeros(3).double()), float64([0.5, 0.3, 0.2]), 1)
        updated = update.update(start, [(2,), (0, 1, 2)], float64([1.0, 3.0]))
        towards = 0.75 * float64([0.5, 0.3, 0.2]) + 0.25 * float64([0.25, 0.0, 0.75])
        torch.testing.assert_close(updated.length_probabilities, 0.9 * towards + 0.1 / 3)
        unweighted = update.update(start, [(2,), (0, 1, 2)]).length_probabilities
        towards = 0.75 * float64([0.5, 0.3, 0.2]) + 0.25 * float64([0.5, 0.0, 0.5])
        torch.testing.assert_close(unweighted, 0.9 * towards + 0.1 / 3)

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    def test_no_length_dies_out_and_the_elites_win(self, rule):
        update = ArrangementUpdate(rule)
        distribution = update.initial(6, min_length=0, max_length=5)
        for _ in range(20):
            distribution = update.update(distribution, [(4, 5), (3, 5)])
        assert 0.05 / 6 <= distribution.length_probabilities.min().item() < 0.015
        assert len(distribution.mode) == 2
        assert distribution.mode[-1] == 5

    def test_what_elites_of_all_lengths_agree_on_is_learnt(self):
        """Item 6 is last in all, item 5 right before it where there is room, and item 0 in none."""
        update = ArrangementUpdate()
        distribution = update.initial(7, min_length=1, max_length=5)
        elites = [(6,), (5, 6), (2, 5, 6), (1, 3, 5, 6), (4, 2, 1, 5, 6)]
        for _ in range(5):
            distribution = update.update(distribution, elites)
        logits = distribution.ranking.logits
        assert logits.argsort(descending=True)[:2].tolist() == [6, 5]
        assert logits.argmin() == 0
        marginals = distribution.marginals()
        assert marginals[6, 0] > 0.9
        assert marginals.sum(-1)[0] < 0.2

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    def test_changes_nothing_that_it_is_given(self, rule):
        update, elites, weights = ArrangementUpdate(rule), [(0, 2), ()], float64([1.0, 2.0])
        start = update.initial(3, min_length=0, max_length=2)
        state = json.dumps(start.state_dict())
        update.update(start, elites, weights)
        assert json.dumps(start.state_dict()) == state
        assert elites == [(0, 2), ()]
        assert weights.tolist() == [1.0, 2.0]


class TestErrors:
    @pytest.mark.parametrize("arrangement", [(0, 0), (4,), (-1, 2)])
    def test_refuses_what_is_no_arrangement_of_the_pool(self, arrangement):
        with pytest.raises(ValueError, match=r"different items of 0\.\.3"):
            example().log_prob([(1,), arrangement])
        with pytest.raises(ValueError, match=r"different items of 0\.\.3"):
            ArrangementUpdate().update(example(), [(1,), arrangement])

    @pytest.mark.parametrize("arrangement", [(), (0, 1, 2, 3)])
    def test_refuses_other_lengths(self, arrangement):
        with pytest.raises(ValueError, match="1 to 3 items"):
            example(1).log_prob([arrangement])
        with pytest.raises(ValueError, match="1 to 3 items"):
            ArrangementUpdate().update(example(1), [arrangement])

    @pytest.mark.parametrize(
        ("probabilities", "min_length", "message"),
        [
            ([0.5, 0.5], 3, "one entry for each number"),
            ([0.5, 0.5], -1, "one entry for each number"),
            ([], 0, "one entry for each number"),
            ([[1.0]], 0, "one entry for each number"),
            ([0.5, 0.6], 0, "sum to 1"),
            ([-0.5, 1.5], 0, "not be negative"),
            ([float("nan"), 1.0], 0, "sum to 1"),
        ],
    )
    def test_refuses_length_probabilities_that_do_not_fit(self, probabilities, min_length, message):
        with pytest.raises(ValueError, match=message):
            ArrangementDistribution(PlackettLuce(torch.zeros(3).double()), float64(probabilities), min_length)

    def test_refuses_settings_out_of_range(self):
        with pytest.raises(ValueError, match="uniform_share"):
            ArrangementUpdate(uniform_share=1.5)
        with pytest.raises(ValueError, match="max_length must be at least min_length=3"):
            ArrangementUpdate().initial(5, min_length=3, max_length=2)
