"""Cross-entropy search, random search, and why a search stops."""

import math
from itertools import chain

import pytest
import torch
from fakes import ascending_share
from hypothesis import example, given
from hypothesis import strategies as st
from worlds import play

from plr_dspy import CrossEntropySearch, MaximumLikelihood, OrderingSpace
from plr_dspy.report.schema import Iteration
from plr_dspy.search.search import RandomSearch, num_elites, reason_to_stop
from plr_dspy.search.space import ScoreEstimate, WholeProgram

UPDATES = ["ema", "mle", "mixture"]


def sortedness(ordering):
    shares = [ascending_share(block[::-1]) for block in ordering]
    return sum(shares) / len(ordering)


def scored(orderings):
    return {ordering: {0: sortedness(ordering)} for ordering in orderings}


class TestCrossEntropySearch:
    @pytest.mark.parametrize("update", UPDATES)
    @pytest.mark.parametrize("sizes", [(7,), (4, 5)])
    def test_the_search_learns_the_best_order_of_each_block(self, update, sizes):
        """The search must not use torch's global random-number generator."""
        before = torch.random.get_rng_state()
        options = {"update": update, "num_samples": 30, "seed": 1}
        search = CrossEntropySearch(OrderingSpace.of_sizes(*sizes), **options)
        batches = play(search, scored, rounds=10)
        means = [sum(map(sortedness, batch)) / len(batch) for batch in batches]
        assert max(means) > means[0] + 0.2
        assert len(search.distributions) == len(sizes)
        assert sortedness(search.mode()) > 0.9
        assert torch.equal(before, torch.random.get_rng_state())

    def test_draws_are_independent_and_elites_come_only_from_the_last_round(self):
        search = CrossEntropySearch(OrderingSpace.of_sizes(3), num_samples=40, elite_fraction=0.05)
        first = search.ask()
        assert len(set(first)) <= 6 < len(first) == 40
        search = CrossEntropySearch(OrderingSpace.of_sizes(9), num_samples=40, elite_fraction=0.05)
        first = search.ask()
        scores = {ordering: {0: 1.0} for ordering in first}
        search.tell(first, scores)
        second = search.ask()
        scores |= {ordering: {0: i, 3: 2 * i} for i, ordering in enumerate(second)}
        elites = search.tell([*second, second[-1]], scores)
        assert elites == [(second[-1], 58.5)] * 2 + [(second[-2], 57.0)]

    @pytest.mark.parametrize(
        ("weighted", "scores", "weights"),
        [(False, [0.3, 0.1], None), (True, [0.3, 0.1], [3.0, 1.0]), (True, [0.3, 0.0], None)],
    )
    def test_tell_applies_the_update_rule_to_the_elites(self, weighted, scores, weights):
        """If any score is 0 or less, all elites have equal weights."""
        rule = MaximumLikelihood(num_steps=5, weighted=weighted)
        search = CrossEntropySearch(OrderingSpace.of_sizes(3), update=rule, elite_fraction=0.5)
        orderings = [(2, 0, 1), (1, 2, 0), (0, 1, 2), (0, 2, 1)]
        scores_by_ordering = {}
        for ordering, score in zip(orderings, [*scores, -1.0, -1.0], strict=True):
            scores_by_ordering[(ordering,)] = {0: score}
        search.tell(list(scores_by_ordering), scores_by_ordering)
        weights = None if weights is None else torch.tensor(weights)
        expected = rule.update(rule.initial(3), torch.tensor(orderings[:2]), weights).logits
        torch.testing.assert_close(search.distributions[0].logits, expected)

    def test_refit_ignores_whole_programs_and_their_scores(self):
        orderings = [ScoreEstimate(((2, 0, 1),), 0.3), ScoreEstimate(((1, 2, 0),), 0.1)]
        program = ScoreEstimate(WholeProgram(0, "theirs"), 0.9)
        space = OrderingSpace.of_sizes(3, max_length=3)
        rule = MaximumLikelihood(num_steps=5, weighted=True)
        search, other = (CrossEntropySearch(space, update=rule) for _ in range(2))
        search.refit([program, *orderings])
        other.refit(orderings)
        assert search.distributions[0].state_dict() == other.distributions[0].state_dict()

    def test_refit_starts_from_the_current_or_from_uniform_distributions(self):
        elites = [[ScoreEstimate((tuple(order),), 1.0)] for order in ([2, 0, 1], [1, 2, 0])]
        search, new = (CrossEntropySearch(OrderingSpace.of_sizes(3)) for _ in range(2))
        search.refit(elites[0])
        search.refit(elites[1])
        new.refit(elites[1])
        assert search.distributions[0].state_dict() != new.distributions[0].state_dict()
        search.refit(elites[1], from_uniform=True)
        assert search.distributions[0].state_dict() == new.distributions[0].state_dict()

    @pytest.mark.parametrize(
        ("space", "options", "error", "message"),
        [
            (OrderingSpace.of_sizes(3), {"num_samples": 0}, ValueError, "num_samples"),
            (OrderingSpace.of_sizes(3), {"elite_fraction": 0.0}, ValueError, "elite_fraction"),
            (OrderingSpace.of_sizes(3), {"elite_fraction": 1.1}, ValueError, "elite_fraction"),
            (OrderingSpace.of_sizes(3), {"update": "sgd"}, ValueError, "update"),
            (8, {}, TypeError, "of_sizes"),
        ],
    )
    def test_rejects_invalid_arguments(self, space, options, error, message):
        with pytest.raises(error, match=message):
            CrossEntropySearch(space, **options)


@pytest.mark.parametrize("num_orderings", [7, 24, 99])
@pytest.mark.parametrize("kinds", [(0, 1, 2, 3), (0, 1, 1, 2)])
def test_random_search_asks_for_each_ordering_once_starting_with_the_identity(num_orderings, kinds):
    space = OrderingSpace((kinds,))
    search = RandomSearch(space, num_orderings=num_orderings, num_samples=5, seed=3)
    *batches, last = play(search, scored, rounds=100)
    asked = list(chain.from_iterable(batches))
    assert last == []
    assert asked[0] == space.identity
    assert len(set(asked)) == len(asked) == min(num_orderings, space.num_distinct)
    assert {len(batch) for batch in batches[:-1]} <= {5}


def history(*best_so_far):
    rounds = []
    for i, score in enumerate(best_so_far):
        scores = dict.fromkeys(("mean_score", "best_score", "best_score_so_far"), score)
        counts = {"num_samples": 5, "num_new": 5, "program_calls": 5 * (i + 1)}
        rounds.append(Iteration(index=i, best_ordering=((int(10 * score),),), **scores, **counts))
    return rounds


@pytest.mark.parametrize(
    ("score", "patience", "going", "ended"),
    [
        (0.8, None, history(0.5, 0.79), history(0.5, 0.8)),
        (0.8, 9, history(0.5, 0.79), history(0.5, 0.8)),
        (None, 2, history(0.5, 0.6, 0.6), history(0.5, 0.6, 0.6, 0.6)),
        (0.9, 2, history(0.6, 0.5, 0.6), history(0.6, 0.5, 0.5, 0.5)),
        (None, 1, history(0.5), history(0.5, 0.5)),
    ],
)
def test_reason_to_stop_depends_on_score_and_patience(score, patience, going, ended):
    assert not reason_to_stop([], stop_at_score=score, patience=patience)
    assert not reason_to_stop(going, stop_at_score=score, patience=patience)
    assert not reason_to_stop(ended, stop_at_score=None, patience=None)
    assert reason_to_stop(ended, stop_at_score=score, patience=patience)


@example(100, 0.07)
@given(st.integers(1, 500), st.sampled_from([0.1, 0.2, 0.3, 0.5, 1.0]))
def test_number_of_elites_is_rounded_up(num_trials, fraction):
    exact = math.ceil(round(fraction * num_trials, 6))
    assert num_elites(num_trials, fraction) == max(1, exact)
