"""Hill climbing on orderings, by the moves of their space."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from plr_dspy.orderings.arrangement_space import SearchSpace
from plr_dspy.orderings.space import Ordering

NUM_CLIMBS, NUM_CLIMBERS, NUM_MOVES = 5, 10, 20
"""Steps, orderings that climb, and moves tried from each in a step."""


def climb(
    space: SearchSpace,
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
            around |= dict.fromkeys(space.moved(ordering, rng) for _ in range(NUM_MOVES))
        reached = list(around)
        beam = [reached[index] for index in np.argsort(-score(reached), kind="stable")[:NUM_CLIMBERS]]
        met |= dict.fromkeys(beam)
    return list(met)
