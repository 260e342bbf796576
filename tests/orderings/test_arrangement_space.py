import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from plr_dspy.orderings.arrangement_moves import moves
from plr_dspy.orderings.arrangement_space import ArrangementSpace
from plr_dspy.search.search import as_ordering


@st.composite
def spaces(draw, max_size=4):
    sizes = draw(st.lists(st.integers(0, max_size), min_size=1, max_size=2))
    limits = []
    for size in sizes:
        least = draw(st.integers(0, size))
        limits.append((least, draw(st.integers(least, size))))
    identity = tuple(tuple(range(most)) for _, most in limits)
    return ArrangementSpace(tuple(sizes), tuple(limits), identity)


def everything(space):
    """By definition: all ordered subsets within the limits, of all pools together."""
    pools = [
        [items for length in range(least, most + 1) for items in itertools.permutations(range(size), length)]
        for size, (least, most) in zip(space.sizes, space.limits, strict=True)
    ]
    return set(itertools.product(*pools))


def one_move_apart(first, second):
    """Whether ordered subsets differ by one item left out, put in, replaced or put elsewhere, or two swapped."""
    if len(first) > len(second):
        first, second = second, first
    if len(first) < len(second):
        return any(second[:p] + second[p + 1 :] == first for p in range(len(second)))
    different = [p for p in range(len(first)) if first[p] != second[p]]
    if set(first) != set(second):
        return len(different) == 1
    elsewhere = any([x for x in first if x != item] == [x for x in second if x != item] for item in first)
    return first != second and (elsewhere or len(different) == 2)


def short(arrangement):
    """Allows three items in all."""
    return sum(map(len, arrangement)) <= 3


class TestSpace:
    @settings(max_examples=50)
    @given(spaces())
    def test_enumeration_lists_everything_once_and_begins_with_the_identity(self, space):
        listed = list(space.enumerate())
        assert listed[0] == space.identity
        assert set(listed) == everything(space)
        assert len(listed) == len(set(listed)) == space.num_distinct

    def test_counts_are_exact(self):
        assert ArrangementSpace.of_sizes(40, min_length=8, max_length=8).num_distinct == math.perm(40, 8)
        total = 1  # of n items: none, or one of n at first and then an arrangement of the others
        for size in range(1, 31):
            total = size * total + 1
        assert ArrangementSpace.of_sizes(30).num_distinct == total
        assert ArrangementSpace.of_sizes(3, 2, max_length=1).num_distinct == 4 * 3

    def test_the_first_of_a_large_space_come_at_once(self):
        space = ArrangementSpace.of_sizes(200, 100, max_length=50)
        assert list(itertools.islice(space.enumerate(), 1, 3)) == [((), ()), ((), (0,))]

    def test_showing_none_is_an_arrangement_where_the_least_is_none(self):
        assert ((),) in set(ArrangementSpace.of_sizes(2).enumerate())
        assert ((),) not in set(ArrangementSpace.of_sizes(2, min_length=1).enumerate())

    def test_spaces_are_equal_by_their_pools_and_limits(self):
        one, other = (
            ArrangementSpace.of_sizes(4, allowed=None, max_length=3),
            ArrangementSpace.of_sizes(4, allowed=short, max_length=3),
        )
        assert one == other
        assert hash(one) == hash(other)
        assert one != ArrangementSpace.of_sizes(4, max_length=2)

    @given(spaces(), st.integers(0, 99))
    def test_arrangements_come_back_from_json(self, space, seed):
        (arrangement,) = space.draw(1, np.random.default_rng(seed))
        assert space.canonical(json.loads(json.dumps(arrangement))) == arrangement
        assert as_ordering(json.loads(json.dumps(arrangement))) == arrangement

    @pytest.mark.parametrize(
        ("arrangement", "message"),
        [
            (((0, 1),), "each of 2 pools"),
            (((0, 0), (1,)), "different items of 0..3"),
            (((0, 4), (1,)), "different items of 0..3"),
            (((0, -1), (1,)), "different items of 0..3"),
            (((0, 1), ()), "expected 1 to 2 items"),
            (((0, 1, 2), (0,)), "expected 1 to 2 items"),
        ],
    )
    def test_refuses_what_is_not_in_the_space(self, arrangement, message):
        with pytest.raises(ValueError, match=message):
            ArrangementSpace.of_sizes(4, 2, min_length=1, max_length=2).canonical(arrangement)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: ArrangementSpace.of_sizes(3, min_length=4), "limits must be"),
            (lambda: ArrangementSpace.of_sizes(3, min_length=-1), "limits must be"),
            (lambda: ArrangementSpace.of_sizes(3, min_length=2, max_length=1), "limits must be"),
            (lambda: ArrangementSpace((3, 3), ((0, 1),), ((), ())), "each of 2 pools"),
            (lambda: ArrangementSpace.of_sizes(5, allowed=short), "identity must be allowed"),
            (lambda: ArrangementSpace.of_sizes(5, max_length=2, identity=((0, 1, 2),)), "0 to 2 items"),
        ],
    )
    def test_refuses_limits_and_identities_that_do_not_fit(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()


class TestAllowed:
    space = ArrangementSpace.of_sizes(4, 3, identity=((3,), (1, 0)), allowed=short)

    def test_all_ways_into_the_space_ask_it(self):
        allowed = {a for a in everything(self.space) if short(a)}
        rng = np.random.default_rng(0)
        assert set(self.space.enumerate()) == allowed
        assert set(self.space.draw(200, rng)) <= allowed
        assert set(self.space.neighbours(self.space.identity)) <= allowed
        assert {self.space.moved(self.space.identity, rng) for _ in range(200)} <= allowed

    def test_what_has_no_allowed_neighbour_stays(self):
        space = ArrangementSpace.of_sizes(3, max_length=2, allowed=lambda a: a == ((0, 1),))
        assert list(space.neighbours(((0, 1),))) == []
        assert space.moved(((0, 1),), np.random.default_rng(0)) == ((0, 1),)
        assert space.moved(((),), np.random.default_rng(0)) == ((),)

    def test_draws_where_nearly_nothing_is_allowed(self):
        space = ArrangementSpace.of_sizes(12, allowed=lambda a: a == (tuple(range(12)),))
        with pytest.raises(ValueError, match="allowed refused 1,000 random arrangements"):
            space.draw(1, np.random.default_rng(0))


class TestDraws:
    def test_are_uniform_over_lengths_and_then_over_ordered_subsets(self):
        space = ArrangementSpace.of_sizes(4, min_length=1, max_length=3)
        draws = Counter(space.draw(20_000, np.random.default_rng(0)))
        every = list(space.enumerate())
        expected = [20_000 / 3 / math.perm(4, len(items)) for (items,) in every]
        assert stats.chisquare([draws[a] for a in every], expected).pvalue > 1e-3

    @given(spaces(), st.integers(0, 99))
    def test_lie_in_the_space_and_repeat(self, space, seed):
        first, again = (space.draw(5, np.random.default_rng(seed)) for _ in range(2))
        assert first == again
        assert [space.canonical(arrangement) for arrangement in first] == first


class TestMoves:
    @settings(max_examples=50)
    @given(spaces(), st.integers(0, 99))
    def test_neighbours_are_all_arrangements_one_move_away(self, space, seed):
        (arrangement,) = space.draw(1, np.random.default_rng(seed))
        found = list(space.neighbours(arrangement))
        assert len(found) == len(set(found))
        expected = set()
        for other in everything(space):
            pools = [p for p in range(len(space.sizes)) if arrangement[p] != other[p]]
            if len(pools) == 1 and one_move_apart(arrangement[pools[0]], other[pools[0]]):
                expected.add(other)
        assert set(found) == expected

    @pytest.mark.parametrize("begin", [((2, 0), (1,)), ((), ()), ((0, 1, 2), (1, 0))])
    def test_random_moves_reach_every_neighbour_and_nothing_else(self, begin):
        space, rng = ArrangementSpace.of_sizes(4, 2, max_length=3), np.random.default_rng(0)
        assert {space.moved(begin, rng) for _ in range(3_000)} == set(space.neighbours(begin))

    def test_kinds_of_moves(self):
        found = {
            name: {kind.make(number) for number in range(kind.number)}
            for name, kind in moves((0, 1), 3, min_length=1, max_length=3).items()
        }
        assert found == {
            "replace": {(2, 1), (0, 2)},
            "insert": {(2, 0, 1), (0, 2, 1), (0, 1, 2)},
            "drop": {(0,), (1,)},
            "shift": {(1, 0)},
            "swap": {(1, 0)},
        }

    def test_kinds_without_a_move_are_left_out(self):
        assert moves((1,), 2, min_length=1, max_length=1).keys() == {"replace"}
        assert moves((1, 0), 2, min_length=2, max_length=2).keys() == {"shift", "swap"}
        assert moves((), 0, min_length=0, max_length=0) == {}
