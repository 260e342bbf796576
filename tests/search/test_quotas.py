"""Spaces whose orderings show a minimum number of items of each class."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from worlds import play

from plr_dspy import CrossEntropySearch, OrderingSpace, PlackettLuce, ThompsonSearch
from plr_dspy.search.quotas import Quotas
from plr_dspy.search.search import RandomSearch

seeds = st.integers(0, 99)


@st.composite
def quotas_of(draw, size):
    """Draw classes of items, with some items outside all classes, and minimums that the items can meet."""
    classes = tuple(draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size)))
    minimums = tuple(min(classes.count(number), draw(st.integers(0, 2))) for number in range(3))
    return Quotas(classes, minimums)


@st.composite
def spaces(draw):
    """Draw spaces with one or two blocks, and sometimes a choice."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))
    quotas = [draw(quotas_of(size)) for size in sizes]
    limits = []
    for size, quota in zip(sizes, quotas, strict=True):
        lower = draw(st.integers(quota.total, size))
        limits.append((lower, draw(st.integers(lower, min(size, lower + 2)))))
    choices = ()
    if draw(st.booleans()):
        sizes.append(2)
        limits.append((1, 1))
        quotas.append(Quotas())
        choices = (0,)
    kinds = tuple(tuple(range(size)) for size in sizes)
    return OrderingSpace(kinds, tuple(limits), choices=choices, quotas=tuple(quotas))


def meets(space, ordering):
    """Return whether an ordering meets the quotas and limits, without using the space's own methods."""
    for quotas, items, (lower, upper) in zip(space.quotas, ordering, space.limits, strict=True):
        counts = Counter(quotas.classes[item] for item in items) if quotas.minimums else Counter()
        if any(counts[number] < minimum for number, minimum in enumerate(quotas.minimums)):
            return False
        if not lower <= len(items) <= upper or len(set(items)) < len(items):
            return False
    return True


def everything(space):
    """Return all orderings that meet the quotas."""
    blocks = []
    for size, (lower, upper) in zip(space.sizes, space.limits, strict=True):
        lengths = range(lower, upper + 1)
        blocks.append(list(itertools.chain(*(itertools.permutations(range(size), n) for n in lengths))))
    return {ordering for ordering in itertools.product(*blocks) if meets(space, ordering)}


class TestSpace:
    @given(spaces())
    def test_it_has_exactly_the_orderings_that_meet_the_quotas(self, space):
        listed = list(space.enumerate())
        assert set(listed) == everything(space)
        assert len(listed) == len(set(listed)) == space.num_distinct
        assert listed[0] == space.identity

    def test_equal_items_count_once(self):
        space = OrderingSpace(((0, 0, 1, 2),), ((2, 3),), quotas=(Quotas((0, 0, 0, 1), (1, 1)),))
        assert len(list(space.enumerate())) == space.num_distinct

    @given(spaces(), seeds)
    def test_draws_and_moves_meet_the_quotas(self, space, seed):
        rng = np.random.default_rng(seed)
        orderings = [*space.draw(5, rng), *space.draw_longest(5, rng), *space.first_candidates]
        orderings += [space.moved(ordering, rng) for ordering in orderings]
        assert all(meets(space, ordering) for ordering in orderings)

    @given(spaces(), seeds, st.integers(1, 5))
    def test_shortened_orderings_meet_the_quotas(self, space, seed, most):
        limited = OrderingSpace(
            space.kinds,
            space.limits,
            min(space.enumerate(), key=lambda ordering: sum(map(len, ordering))),
            choices=space.choices,
            quotas=space.quotas,
        )
        (ordering,) = limited.draw_longest(1, np.random.default_rng(seed))
        object.__setattr__(limited, "allowed", lambda ordering: sum(map(len, ordering)) <= most)
        shortened = limited.shortened(ordering)
        fewest = sum(lower for lower, _ in space.limits)
        assert (shortened is None) == (fewest > most)
        assert shortened is None or meets(space, shortened)

    def test_moves_reach_exactly_the_neighbors_that_meet_the_quotas(self):
        quotas = Quotas((0, 0, 1, 1, -1), (1, 1))
        space = OrderingSpace((tuple(range(5)),), ((2, 3),), quotas=(quotas,))
        for (begin,) in (((0, 2),), ((0, 1, 2),), ((2, 4, 0),)):
            rng = np.random.default_rng(0)
            reached = {space.moved((begin,), rng) for _ in range(3_000)}
            neighbors = set()
            for (items,) in everything(space):
                shared = set(items) & set(begin)
                num_changed = sum(a != b for a, b in zip(items, begin, strict=False))
                is_replaced = len(items) == len(begin) == len(shared) + 1 and num_changed == 1
                longer, shorter = sorted([items, begin], key=len, reverse=True)
                is_longer = len(longer) == len(shorter) + 1 and any(
                    longer[:place] + longer[place + 1 :] == shorter for place in range(len(longer))
                )
                is_permuted = set(items) == set(begin) and items != begin
                if is_replaced or is_longer or is_permuted:
                    neighbors.add((items,))
            assert reached == neighbors

    def test_new_choices_are_shown_only_with_orderings_that_meet_the_quotas(self):
        quotas = (Quotas((0, 1, 1), (1, 1)), Quotas())
        limits = ((2, 3), (1, 1))
        space = OrderingSpace(((0, 1, 2), (0,)), limits, choices=(0,), quotas=quotas)
        wider = space.with_choices([2])
        assert wider.with_new_items(((1, 0), (0,)), space) == [((1, 0), (1,))]
        assert wider.with_new_items(((1, 2), (0,)), space) == []

    def test_rejects_limits_that_cannot_meet_the_quotas(self):
        with pytest.raises(ValueError, match="at least 2 items, the sum of the quotas; got 1"):
            OrderingSpace(((0, 1, 2),), ((1, 3),), quotas=(Quotas((0, 1, 1), (1, 1)),))


def probability(logits, quotas, items):
    """Return the probability of drawing these items one by one.

    Each item is drawn from the items that leave room for the missing classes.
    """
    product = 1.0
    for place, item in enumerate(items):
        left = []
        for other in set(range(len(logits))) - set(items[:place]):
            counts = Counter(quotas.classes[shown] for shown in (*items[:place], other))
            missing = sum(max(0, minimum - counts[number]) for number, minimum in enumerate(quotas.minimums))
            if missing <= len(items) - place - 1:
                left.append(other)
        weights = [math.exp(logits[other]) for other in left]
        product *= math.exp(logits[item]) / sum(weights) if item in left else 0.0
    return product


class TestDraws:
    def test_each_item_is_drawn_from_the_items_that_leave_room_for_missing_classes(self):
        """The first item drawn is shown last."""
        logits = [1.0, 0.5, 0.0, -0.5, 0.2]
        quotas = Quotas((0, 0, 0, 1, 2), (1, 1, 0))
        space = OrderingSpace((tuple(range(5)),), ((2, 3),), quotas=(quotas,))
        search = CrossEntropySearch(space, seed=1)
        shares = torch.tensor([0.25, 0.75], dtype=torch.float64)
        values = torch.tensor(logits, dtype=torch.float64)
        search.distributions = [PlackettLuce(values, length=3, length_probabilities=shares)]
        drawn = Counter(search.draw(20_000))
        every = sorted(everything(space))
        expected = []
        for (items,) in every:
            expected.append(shares[len(items) - 2].item() * probability(logits, quotas, items[::-1]))
        assert sum(expected) == pytest.approx(1.0)
        assert drawn.keys() <= set(every)
        observed = [drawn[ordering] for ordering in every]
        assert stats.chisquare(observed, np.array(expected) * 20_000).pvalue > 1e-3

    def test_the_mode_has_the_best_items_that_leave_room_for_missing_classes(self):
        space = OrderingSpace((tuple(range(5)),), ((2, 3),), quotas=(Quotas((0, 0, 0, 1, 1), (1, 1)),))
        search = CrossEntropySearch(space)
        logits = torch.tensor([5.0, 4.0, 3.0, 1.0, 2.0], dtype=torch.float64)
        shares = torch.tensor([0.0, 1.0], dtype=torch.float64)
        search.distributions = [PlackettLuce(logits, length=3, length_probabilities=shares)]
        assert search.mode() == ((4, 1, 0),)

    @settings(max_examples=12)
    @given(spaces(), seeds)
    def test_all_candidates_of_a_search_meet_the_quotas(self, space, seed):
        def scores(candidates):
            known.update(
                {
                    candidate: {e: float((seed + sum(map(sum, candidate)) + e) % 3) for e in range(4)}
                    for candidate in candidates
                }
            )
            return known

        for search in (
            ThompsonSearch(space, num_examples=8, num_initial=6, num_samples=4, seed=seed),
            RandomSearch(space, num_orderings=12, num_samples=6, seed=seed),
            CrossEntropySearch(space, num_samples=4, seed=seed),
        ):
            known = {}
            asked = list(itertools.chain(*play(search, scores, rounds=3)))
            assert asked
            assert all(meets(space, ordering) for ordering in [*asked, search.mode(), *search.draw(9)])


class TestManyClasses:
    """A space of 50 items in 41 classes, in which an ordering must show each class."""

    QUOTAS = Quotas((*range(41), *range(9)), tuple(1 for _ in range(41)))

    def space(self, most):
        return OrderingSpace((tuple(range(50)),), ((41, most),), quotas=(self.QUOTAS,))

    @pytest.mark.parametrize("most", [41, 45, 50])
    def test_a_search_shows_all_classes(self, most):
        space = self.space(most)
        search = ThompsonSearch(space, num_examples=50, num_samples=8, num_initial=30)

        def scores(candidates):
            known.update({candidate: {0: float(candidate[0][-1]), 1: 0.0} for candidate in candidates})
            return known

        known = {}
        first, *others = play(search, scores, rounds=3)
        assert len(set(first)) == 30
        assert {41, most} <= {len(items) for (items,) in first} <= set(range(41, most + 1))
        assert all(meets(space, ordering) for ordering in itertools.chain(first, *others))
        # Items of all classes may come last, not only items of rare classes.
        assert len({items[-1] < 9 or items[-1] > 40 for (items,) in first}) == 2

    def test_moves_replace_items_even_if_only_items_of_the_same_class_fit(self):
        space = self.space(41)
        rng = np.random.default_rng(0)
        moved = [space.moved(space.identity, rng) for _ in range(300)]
        num_replaced = sum(set(ordering[0]) != set(space.identity[0]) for ordering in moved)
        assert 70 < num_replaced < 130  # The three kinds of moves (replace, shift, swap) are equally likely.


def test_draws_reach_the_few_orderings_that_a_tight_limit_allows():
    """Only the first item of each of 12 classes is light enough, so random draws are almost never allowed."""
    classes = tuple(item % 12 for item in range(48))
    quotas = (Quotas(classes, tuple(1 for _ in range(12))),)
    shortest = (tuple(range(12)),)
    space = OrderingSpace(
        (tuple(range(48)),),
        ((12, 16),),
        shortest,
        allowed=lambda ordering: sum(ordering[0]) <= 70,
        quotas=quotas,
    )
    orderings = space.draw(5, np.random.default_rng(0))
    assert len(set(orderings)) > 1
    assert all(space.contains(ordering) and space.allows(ordering) for ordering in orderings)
