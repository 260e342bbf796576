import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plr_dspy import OrderingSpace

kinds = st.lists(st.integers(0, 2), min_size=0, max_size=5).map(tuple)
spaces = st.lists(kinds, min_size=1, max_size=2).map(lambda blocks: OrderingSpace(tuple(blocks)))


def looks(space, ordering):
    """What an ordering shows: the kinds by position."""
    return tuple(
        tuple(block[i] for i in permutation) for block, permutation in zip(space.kinds, ordering, strict=True)
    )


@given(spaces)
def test_enumeration_shows_everything_once_and_begins_with_the_identity(space):
    listed = list(space.enumerate())
    everything = itertools.product(*(itertools.permutations(range(size)) for size in space.sizes))
    assert {looks(space, ordering) for ordering in listed} == {looks(space, o) for o in everything}
    assert len(listed) == len({looks(space, ordering) for ordering in listed}) == space.num_distinct
    assert listed[0] == space.identity


@given(spaces, st.randoms(use_true_random=False))
def test_canonical_orderings_are_equal_exactly_where_they_look_alike(space, rng):
    def shuffled():
        return tuple(tuple(rng.sample(range(size), size)) for size in space.sizes)

    first, second = shuffled(), shuffled()
    assert looks(space, space.canonical(first)) == looks(space, first)
    alike = looks(space, first) == looks(space, second)
    assert (space.canonical(first) == space.canonical(second)) == alike


def test_of_sizes_has_all_orders():
    assert OrderingSpace.of_sizes(4, 3).num_distinct == 24 * 6
    assert OrderingSpace.of_sizes(30).num_distinct == math.factorial(30)


@pytest.mark.parametrize("ordering", [((0, 1),), ((0, 0, 1),), ((0, 1, 2), (0,)), ()])
def test_refuses_what_is_no_ordering_of_the_space(ordering):
    with pytest.raises(ValueError, match="permutation"):
        OrderingSpace.of_sizes(3).canonical(ordering)
