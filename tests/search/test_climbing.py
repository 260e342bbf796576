import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plr_dspy import OrderingSpace
from plr_dspy.search.hill_climbing import NUM_CLIMBERS, climb

sizes = st.lists(st.integers(1, 7), min_size=1, max_size=3)


def distance(first, second):
    """Items to move to make one sequence of the other: all but a longest common subsequence, of permutations."""
    place = {item: i for i, item in enumerate(first)}
    tails = []
    for item in second:
        index = int(np.searchsorted(tails, place[item]))
        tails[index : index + 1] = [place[item]]
    return len(first) - len(tails)


def height(orderings):
    """How many pairs of neighbours are in order."""
    return np.array([float(sum(a < b for a, b in zip(o[0], o[0][1:], strict=False))) for o in orderings])


@given(sizes, st.integers(0, 99))
def test_a_move_puts_at_most_one_item_elsewhere(sizes, seed):
    space, rng = OrderingSpace.of_sizes(*sizes), np.random.default_rng(seed)
    ordering = space.canonical([rng.permutation(size).tolist() for size in sizes])
    after = space.moved(ordering, rng)
    assert space.canonical(after) == after
    assert sum(distance(a, b) for a, b in zip(ordering, after, strict=True)) <= 1


def test_moves_reach_every_item_and_place():
    space, rng = OrderingSpace.of_sizes(4), np.random.default_rng(0)
    reached = {space.moved(space.identity, rng) for _ in range(500)}
    assert reached == {o for o in space.enumerate() if distance(space.identity[0], o[0]) <= 1}


@pytest.mark.parametrize("seed", range(5))
def test_a_climb_gets_higher_and_returns_what_it_met(seed):
    space, rng = OrderingSpace.of_sizes(10), np.random.default_rng(seed)
    begin = [(tuple(rng.permutation(10).tolist()),) for _ in range(3)]
    met = climb(space, begin, height, rng)
    assert max(height(met)) >= max(height(begin)) + 2
    assert len(met) == len(set(met))
    assert height(met[-NUM_CLIMBERS:]).mean() > height(met[:NUM_CLIMBERS]).mean()


def test_the_best_are_not_lost_on_the_way():
    space, rng = OrderingSpace.of_sizes(6), np.random.default_rng(0)
    begin = [space.identity, *(o for o, _ in zip(space.enumerate(), range(30), strict=False))]
    assert space.identity in climb(space, begin, height, rng)
