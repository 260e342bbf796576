"""Searches over arrangements: they differ in the items shown, the number of items and their order."""

from itertools import chain

import numpy as np
import pytest
import torch
from landscapes import ArrangementWorld
from replay import Pool, compile_with, halving
from worlds import play

from plr_dspy import (
    CrossEntropySearch,
    MaximumLikelihood,
    MixtureEM,
    OrderingSpace,
    RankEMA,
    ThompsonSearch,
)
from plr_dspy.search.model.ordering_model import OrderingModel

SPACE = OrderingSpace.of_sizes(12, max_length=4, identity=((),))


def score(arrangement):
    """Return scores that reward short arrangements with item 3, especially if item 3 is last."""
    items = arrangement[0]
    good = (3 in items) + (items[-1:] == (3,)) - 0.3 * len(items)
    rng = np.random.default_rng([len(items), *items])
    return {e: float(good + 0.3 * rng.normal()) for e in range(6)}


class Scored(dict):
    def __call__(self, arrangements):
        self.update({arrangement: score(arrangement) for arrangement in arrangements})
        return self


def searched(space=SPACE, **options):
    search = ThompsonSearch(space, num_examples=50, num_samples=8, num_initial=20, **options)
    batches = play(search, Scored(), rounds=5)
    return search, list(chain.from_iterable(batches))


class TestThompson:
    def test_begins_with_the_identity_and_asks_for_arrangements_of_the_space(self):
        _, asked = searched()
        assert asked[0] == ((),)
        assert all(SPACE.canonical(arrangement) == arrangement for arrangement in asked)
        assert {len(items) for (items,) in asked} == {0, 1, 2, 3, 4}

    def test_finds_the_best_item_position_and_length(self):
        for seed in range(3):
            search, asked = searched(seed=seed)
            best = search.ranked(Scored()(asked))[0].ordering
            assert best[0][-1] == 3
            assert len(best[0]) <= 2
            assert 3 in search.mode()[0]

    def test_asks_only_for_allowed_arrangements(self):
        limits = {"max_length": 4, "identity": ((),)}
        space = OrderingSpace.of_sizes(12, **limits, allowed=lambda a: sum(a[0]) <= 9)
        search, asked = searched(space)
        assert len(set(asked)) > 30
        assert all(sum(items) <= 9 for (items,) in [*asked, search.mode(), *search.draw(50)])


@pytest.mark.parametrize("num_examples", [4, 20])
def test_low_scores_without_demos_do_not_lower_estimates_of_arrangements(num_examples):
    rng = np.random.default_rng(0)

    def draws(count):
        return {example: float(rng.random() < 0.7) for example in range(count)}

    arrangements = filter(any, SPACE.draw(60, rng))
    scores = {arrangement: draws(4) for arrangement in arrangements}
    best = max(scores, key=lambda a: sum(scores[a].values()))
    scores[best] = draws(20)
    scores[((),)] = dict.fromkeys(range(num_examples), 0.0)
    fitted = OrderingModel(SPACE).fit(scores)
    gain = fitted.gains(((),))[best]
    assert gain.expected > (0.4 if num_examples > 4 else 0.2)
    assert gain.probability > 0.95
    assert dict(fitted.estimates())[best] > 0.55


@pytest.mark.parametrize(
    "rule", [RankEMA(), MaximumLikelihood(num_steps=5), MixtureEM(num_steps=5), RankEMA(weighted=True)]
)
def test_refits_to_the_items_that_elites_show_counted_from_the_end(rule):
    space = OrderingSpace.of_sizes(4, max_length=3)
    search = CrossEntropySearch(space, update=rule, elite_fraction=1.0)
    scores = {((3, 1),): {0: 3.0}, ((0, 2, 1),): {0: 2.0}, ((),): {0: 1.0}}
    search.tell(list(scores), scores)
    (distribution,) = search.distributions
    weights = torch.tensor([1.5, 1.0, 0.5] if rule.weighted else [1.0] * 3)
    shown = torch.tensor([[1, 3, -1, -1], [1, 2, 0, -1], [-1, -1, -1, -1]])
    expected = rule.update(rule.initial(4), shown, weights)
    torch.testing.assert_close(distribution.logits, expected.logits)
    of_lengths = weights[[2, 0, 1]].numpy() / 3  # These are the elites' shares for 0, 2 and 3 items.
    shares = 0.95 * (0.3 / 4 + 0.7 * np.insert(of_lengths, 1, 0.0)) + 0.05 / 4
    probabilities = distribution.length_probabilities.tolist()
    assert probabilities == pytest.approx(shares.tolist())


class TestWorlds:
    def test_beats_random_search_with_the_same_number_of_calls(self):
        """In a measurement over 16 worlds, the mean scores were .806 and, for random search, .773."""
        scores = []
        for seed in range(61_004, 61_008):
            pool = Pool(ArrangementWorld("classes", 30, seed), 100)
            order, _ = halving(pool, 500, seed)
            scores.append([compile_with(pool, "light", 500, seed).score, pool.held_out(order)])
        default, by_halving = np.mean(scores, axis=0)
        assert default > by_halving + 0.01

    def test_a_student_without_demos_is_replaced_if_any_demos_help(self):
        """In a measurement, 22 of 24 compiles replaced the student."""
        results = []
        for seed in range(62_004, 62_012):
            pool = Pool(ArrangementWorld("help", 25, seed), 100)
            results.append(compile_with(pool, "logprobs", 300, seed))
        assert sum(result.changed for result in results) >= 5

    @pytest.mark.parametrize(
        ("kind", "method", "num_known"),
        [
            ("nothing", "light", 10),
            ("harm", "light", 40),
            ("nothing", "logprobs", 40),
            ("harm", "logprobs", 40),
        ],
    )
    def test_rarely_claims_a_gain_or_loses_score_if_no_demo_helps(self, kind, method, num_known):
        """At most one of four compiles may claim that its choice is better."""
        # In a measurement with harmful demos, none of 40 compiles returned a program with demos.
        better = []
        replaced = []
        change = []
        for seed in range(4):
            pool = Pool(ArrangementWorld(kind, 20, 300 + seed, num_known + 2_000), num_known)
            result = compile_with(pool, method, 200, seed)
            better.append(result.claims)
            replaced.append(result.changed)
            change.append(result.score - pool.held_out(()))
        assert sum(better) <= 1
        assert np.mean(change) > -0.03
        assert kind == "nothing" or sum(replaced) <= 1


def test_random_arrangements_of_a_small_pool_have_all_lengths_and_keep_most_instructions():
    """A shuffle of 6 items contains only one arrangement of 4 items, so the lengths must vary between shuffles."""
    items = tuple(range(6))
    space = OrderingSpace((items, items[:5]), ((0, 4), (1, 1)), ((), (0,)), choices=(0,))
    arrangements = ThompsonSearch(space, num_examples=50, num_initial=60).nested(60)
    random = [arrangement for arrangement in arrangements if arrangement not in space.first_candidates]
    assert {len(items) for items, _ in random} == {1, 2, 3, 4}
    kept = sum(instruction == (0,) for _, instruction in random) / len(random)
    assert 0.6 < kept < 0.9
