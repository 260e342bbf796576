"""Spaces of orderings, with and without limits on the number of items shown."""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from plr_dspy import OrderingSpace

seeds = st.integers(0, 99)
FEW = {"min_length": 1, "max_length": 2}


@st.composite
def spaces(draw, max_size=4):
    """Draw spaces with or without identical items, and with or without limits."""
    block = st.lists(st.integers(0, 3), max_size=max_size).map(tuple)
    blocks = draw(st.lists(block, min_size=1, max_size=2))
    if draw(st.booleans()):
        blocks = [tuple(range(len(kinds))) for kinds in blocks]
    if draw(st.booleans()):
        return OrderingSpace(tuple(blocks))
    limits = []
    for kinds in blocks:
        ends = st.lists(st.integers(0, len(kinds)), min_size=2, max_size=2)
        limits.append(tuple(sorted(draw(ends))))
    return OrderingSpace(tuple(blocks), tuple(limits))


def everything(space):
    """Return all arrangements within the limits."""
    blocks = []
    for size, (least, most) in zip(space.sizes, space.limits, strict=True):
        subsets = []
        for length in range(least, most + 1):
            subsets += itertools.permutations(range(size), length)
        blocks.append(subsets)
    return set(itertools.product(*blocks))


def appearance(space, ordering):
    shown = []
    for kinds, items in zip(space.kinds, ordering, strict=True):
        shown.append(tuple(kinds[item] for item in items))
    return tuple(shown)


def without(items, left_out):
    return [item for item in items if item != left_out]


def one_item_apart(first, second):
    """Return whether the orderings differ in the position of at most one item."""
    return any(without(first, item) == without(second, item) for item in first)


def one_move_apart(first, second):
    """Return whether a single move changes one arrangement into the other."""
    if len(first) > len(second):
        first, second = second, first
    if len(first) < len(second):
        return any(second[:p] + second[p + 1 :] == first for p in range(len(second)))
    different = [p for p in range(len(first)) if first[p] != second[p]]
    if set(first) != set(second):
        return len(different) == 1
    return first != second and (one_item_apart(first, second) or len(different) == 2)


def short(ordering):
    return sum(map(len, ordering)) <= 3


class TestSpace:
    @settings(max_examples=100)
    @given(spaces())
    def test_enumeration_yields_each_ordering_once_starting_with_the_identity(self, space):
        listed = list(space.enumerate())
        shown = {appearance(space, ordering) for ordering in listed}
        assert shown == {appearance(space, ordering) for ordering in everything(space)}
        assert len(listed) == len(shown) == space.num_distinct
        assert listed[0] == space.identity
        assert all(space.canonical(ordering) == ordering for ordering in listed)

    @given(spaces(), seeds)
    def test_canonical_orderings_are_equal_if_and_only_if_they_look_alike(self, space, seed):
        rng = np.random.default_rng(seed)
        every = sorted(everything(space))
        first, second = (every[rng.integers(len(every))] for _ in range(2))
        assert appearance(space, space.canonical(first)) == appearance(space, first)
        alike = appearance(space, first) == appearance(space, second)
        assert (space.canonical(first) == space.canonical(second)) == alike
        assert space.canonical(json.loads(json.dumps(first))) == space.canonical(first)

    def test_num_distinct_is_exact(self):
        assert OrderingSpace.of_sizes(4, 3).num_distinct == 24 * 6
        assert OrderingSpace.of_sizes(30).num_distinct == math.factorial(30)
        assert OrderingSpace.of_sizes(40, min_length=8, max_length=8).num_distinct == math.perm(40, 8)
        # An arrangement of n items is empty, or has one of n first items and an arrangement of the rest.
        total = 1
        for size in range(1, 31):
            total = size * total + 1
        assert OrderingSpace.of_sizes(30, min_length=0).num_distinct == total
        assert OrderingSpace.of_sizes(3, 2, max_length=1).num_distinct == 4 * 3

    def test_positions_are_counted_from_the_end_if_limits_are_given(self):
        assert not OrderingSpace.of_sizes(4).from_end
        assert OrderingSpace.of_sizes(4, min_length=4).from_end
        assert OrderingSpace.of_sizes(4, max_length=4) == OrderingSpace.of_sizes(4, min_length=0)
        assert OrderingSpace.of_sizes(4, max_length=3) != OrderingSpace.of_sizes(4, max_length=2)

    @pytest.mark.parametrize(
        ("options", "ordering", "message"),
        [
            *(({}, o, "permutation") for o in (((0, 0, 1, 2), (0, 1)), ((0, 1, 2), (0, 1)))),
            *(({}, o, "per block, 2 in total") for o in (((0, 1),), ())),
            *((FEW, o, "items of 0..3") for o in (((0, 0), (1,)), ((0, 4), (1,)), ((0, -1), (1,)))),
            *((FEW, o, "must be 1 to 2 different") for o in (((0, 1), ()), ((0, 1, 2), (0,)))),
        ],
    )
    def test_rejects_orderings_outside_the_space(self, options, ordering, message):
        with pytest.raises(ValueError, match=message):
            OrderingSpace.of_sizes(4, 2, **options).canonical(ordering)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: OrderingSpace.of_sizes(3, min_length=4), "limits must satisfy"),
            (lambda: OrderingSpace.of_sizes(3, min_length=-1), "limits must satisfy"),
            (lambda: OrderingSpace.of_sizes(3, min_length=2, max_length=1), "limits must satisfy"),
            (lambda: OrderingSpace(((0,), (0,)), ((0, 1),)), "per block, 2 in total"),
            (lambda: OrderingSpace.of_sizes(5, allowed=short), "identity must be an ordering that"),
            (lambda: OrderingSpace.of_sizes(5, max_length=2, identity=((0, 1, 2),)), "0 to 2 different"),
        ],
    )
    def test_rejects_limits_and_identities_that_do_not_fit(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()


class TestAllowed:
    space = OrderingSpace.of_sizes(4, 3, min_length=0, identity=((3,), (1, 0)), allowed=short)

    def test_all_methods_return_only_allowed_orderings(self):
        allowed = {o for o in everything(self.space) if short(o)}
        rng = np.random.default_rng(0)
        assert set(self.space.enumerate()) == allowed
        assert set(self.space.draw(200, rng)) <= allowed
        assert {self.space.moved(self.space.identity, rng) for _ in range(200)} <= allowed
        assert self.space.shortened(((0, 1, 2), (2, 0))) == ((2,), (2, 0))
        least = OrderingSpace(self.space.kinds, ((3, 4), (0, 3)), allowed=short, identity=((0, 1, 2), ()))
        assert least.shortened(((0, 1, 2, 3), (2,))) == ((1, 2, 3), ())

    def test_moves_and_draws_end_if_only_one_ordering_is_allowed(self):
        space = OrderingSpace.of_sizes(3, max_length=2, allowed=lambda o: o == ((0, 1),))
        for ordering in (((0, 1),), ((),)):
            assert space.moved(ordering, np.random.default_rng(0)) == ordering
        assert space.shortened(((2, 1),)) is None
        full = (tuple(range(12)),)
        space = OrderingSpace.of_sizes(12, min_length=0, allowed=lambda o: o == full)
        assert space.draw(1, np.random.default_rng(0)) == [full]


class TestDraws:
    @pytest.mark.parametrize("limits", [{"min_length": 1, "max_length": 3}, {}])
    def test_draws_are_uniform_over_lengths_then_over_arrangements_of_that_length(self, limits):
        space = OrderingSpace.of_sizes(4, **limits)
        draws = Counter(space.draw(20_000, np.random.default_rng(0)))
        every = list(space.enumerate())
        number = len({len(items) for (items,) in every})
        expected = [20_000 / number / math.perm(4, len(items)) for (items,) in every]
        assert stats.chisquare([draws[o] for o in every], expected).pvalue > 1e-3

    @pytest.mark.parametrize(("allowed", "number"), [(None, 4 + 3), (short, 3)])
    def test_longest_draws_show_as_many_items_as_allowed(self, allowed, number):
        limits = {"min_length": 0, "max_length": 4, "identity": ((), ())}
        space = OrderingSpace.of_sizes(6, 3, **limits, allowed=allowed)
        drawn = space.draw(50, np.random.default_rng(0), longest=True)
        assert {sum(map(len, ordering)) for ordering in drawn} == {number}
        assert len(set(drawn)) > 25

    @given(spaces(), seeds)
    def test_draws_are_in_the_space_and_reproducible(self, space, seed):
        first, again = (space.draw(5, np.random.default_rng(seed)) for _ in range(2))
        assert first == again
        assert [space.canonical(ordering) for ordering in first] == first


@pytest.mark.parametrize(
    ("limits", "begin"),
    [
        ({"max_length": 3}, ((2, 0), (1,))),
        ({"max_length": 3}, ((), ())),
        ({"max_length": 3}, ((0, 1, 2), (1, 0))),
        ({"min_length": 2, "max_length": 2}, ((3, 1), (0, 1))),
    ],
)
def test_moves_reach_exactly_the_orderings_one_move_away(limits, begin):
    space = OrderingSpace.of_sizes(4, 2, **limits)
    rng = np.random.default_rng(0)
    expected = set()
    for other in everything(space):
        blocks = [b for b in range(2) if begin[b] != other[b]]
        if len(blocks) == 1 and one_move_apart(begin[blocks[0]], other[blocks[0]]):
            expected.add(other)
    assert {space.moved(begin, rng) for _ in range(5_000)} == expected


class TestChoices:
    """Spaces whose last blocks are choices of exactly one item, such as an instruction."""

    SPACE = OrderingSpace(
        (tuple(range(4)), tuple(range(3)), tuple(range(2))),
        ((0, 2), (1, 1), (1, 1)),
        ((), (0,), (0,)),
        choices=(0, None),
    )

    def test_first_candidates_differ_from_the_identity_by_one_choice(self):
        identity, *others = self.SPACE.first_candidates
        assert identity == ((), (0,), (0,))
        assert others == [((), (1,), (0,)), ((), (2,), (0,)), ((), (0,), (1,))]

    def test_choices_do_not_count_as_shown_items(self):
        assert not self.SPACE.shows_items(((), (2,), (1,)))
        assert self.SPACE.shows_items(((3,), (0,), (0,)))
        assert self.SPACE.with_first_choices(((3, 1), (2,), (1,))) == ((3, 1), (0,), (0,))

    def test_new_items_of_choices_come_last(self):
        wider = self.SPACE.with_choices([4, 2])
        assert wider.sizes == (4, 4, 2)
        assert 3 * wider.num_distinct == 4 * self.SPACE.num_distinct
        assert wider.identity == self.SPACE.identity
        ordering = ((3, 1), (2,), (1,))
        assert wider.contains(ordering)
        assert wider.with_new_items(ordering, self.SPACE) == [((3, 1), (3,), (1,))]
        assert wider.chosen(ordering) == ((2,), (1,))
        limited = replace(wider, allowed=lambda other: len(other[0]) < 2)
        assert limited.with_new_items(ordering, self.SPACE) == []

    def test_draws_and_moves_choose_exactly_one_item(self):
        rng = np.random.default_rng(0)
        drawn = self.SPACE.draw(200, rng)
        moved = [self.SPACE.moved(ordering, rng) for ordering in drawn]
        assert Counter(len(ordering[1]) for ordering in drawn + moved) == {1: 400}
        assert {ordering[1:] for ordering in drawn} == set(
            itertools.product([(0,), (1,), (2,)], [(0,), (1,)])
        )
        assert {before[1] != after[1] for before, after in zip(drawn, moved, strict=True)} == {True, False}
