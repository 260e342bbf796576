"""Hill climbing on orderings, by moves of one item."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from plr_dspy.orderings.space import Ordering, OrderingSpace

NUM_CLIMBS, NUM_CLIMBERS, NUM_MOVES = 5, 10, 20
"""Steps, orderings that climb, and moves tried from each in a step."""


def climb(
    space: OrderingSpace,
    orderings: Sequence[Ordering],
    score: Callable[[list[Ordering]], NDArray[np.float64]],
    rng: np.random.Generator,
) -> list[Ordering]:
    """What a beam of orderings meets on its way up.

    Args:
        space: Of the orderings.
        orderings: Where to begin, best first.
        score: What to climb: of so many orderings, ``[m]``.
        rng: Decides the moves.
    """
    beam = list(orderings[:NUM_CLIMBERS])
    met: dict[Ordering, None] = {}
    for _ in range(NUM_CLIMBS):
        around = dict.fromkeys(beam)
        for ordering in beam:
            around |= dict.fromkeys(moved(space, ordering, rng) for _ in range(NUM_MOVES))
        reached = list(around)
        beam = [reached[index] for index in np.argsort(-score(reached), kind="stable")[:NUM_CLIMBERS]]
        met |= dict.fromkeys(beam)
    return list(met)


def moved(space: OrderingSpace, ordering: Ordering, rng: np.random.Generator) -> Ordering:
    """The ordering with one item put elsewhere in its block."""
    place, block = int(rng.integers(sum(space.sizes))), 0
    while place >= len(ordering[block]):
        place, block = place - len(ordering[block]), block + 1
    items = list(ordering[block])
    item = items.pop(place)
    items.insert(int(rng.integers(len(items) + 1)), item)
    return space.canonical([*ordering[:block], items, *ordering[block + 1 :]])
