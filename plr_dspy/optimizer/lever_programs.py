"""The programs that `headroom` scores for each lever, including random sets and orders of demos."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from plr_dspy.optimizer.levers import NEAREST, NO_DEMOS, ORDERS, PROGRAM, RANDOM
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.instructions import OWN
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.search.space import Candidate, Ordering, WholeProgram

MIN_SAMPLE = 3  # minimum number of sets or orders to estimate the spread of their scores
MAX_DRAWS = 50  # maximum number of draws per requested set or order; several draws may give the same prompt

Groups: TypeAlias = dict[str, list[Candidate]]  # the programs to score for each lever


def programs_of_levers(setup: CompileSetup, num_sets: int, num_orders: int) -> Groups:
    """Return the programs to score for each lever, and omit levers that cannot be tried.

    Draw up to `num_sets` random sets of demos, and up to `num_orders` orders of the same demos.
    """
    slots = setup.slots
    assert isinstance(slots, PoolSlots)
    own = slots.original
    assert not isinstance(own, WholeProgram)
    own_demos, own_instruction = _demos_and_instruction(slots, own)
    without_demos: Ordering = (*(() for _ in own_demos), *own_instruction)
    sets = _if_enough(_draw_sets(setup, slots, own, num_sets))
    if own == without_demos and sets:
        # The program has no demos to reorder, so reorder the first random set.
        orders = [sets[0], *_draw_orders(slots, sets[0], num_orders - 1, seed=setup.seed)]
    else:
        orders = _draw_orders(slots, own, num_orders, seed=setup.seed)
    groups: Groups = {
        PROGRAM: [own],
        NO_DEMOS: [without_demos] if own != without_demos else [],
        RANDOM: [*sets],
        NEAREST: [*slots.space.programs[:1]],
        ORDERS: [*_if_enough(orders)],
    }
    shown_demos, _ = _demos_and_instruction(slots, sets[0] if sets else own)
    for instructions in slots.alternatives.values():
        for number, instruction in enumerate(instructions[1:], start=1):  # Skip the program's own.
            groups[instruction.origin] = [(*shown_demos, (number,))]
    return {name: candidates for name, candidates in groups.items() if candidates}


def _draw_sets(setup: CompileSetup, slots: PoolSlots, own: Ordering, num_sets: int) -> list[Ordering]:
    """Draw up to `num_sets` random sets of demos from the pools, excluding the program's own demos."""
    pools = []
    for slot in slots.slots:
        pools.append([item for item, pooled in enumerate(slot.pool) if pooled.origin != OWN])
    # Sets with most of a pool's demos would hardly differ, so draw at most half of the pool.
    sizes = [min(setup.options.max_demos, math.ceil(len(pool) / 2)) for pool in pools]
    return _draw_distinct(slots, pools, sizes, num_sets, besides=own, seed=setup.seed)


def _draw_orders(slots: PoolSlots, ordering: Ordering, num_orders: int, *, seed: int) -> list[Ordering]:
    """Draw up to `num_orders` random orders of the demos in `ordering`, excluding `ordering` itself."""
    demos, _ = _demos_and_instruction(slots, ordering)
    sizes = [len(items) for items in demos]
    return _draw_distinct(slots, demos, sizes, num_orders, besides=ordering, seed=seed)


def _draw_distinct(
    slots: PoolSlots,
    blocks: Sequence[Sequence[int]],
    sizes: Sequence[int],
    num_orderings: int,
    *,
    besides: Ordering,
    seed: int,
) -> list[Ordering]:
    """Draw up to `num_orderings` random orderings with distinct prompts, each with `sizes` items of `blocks`.

    All orderings have the instruction of `besides`, but none gives the same prompt as `besides`. A
    larger `num_orderings` only appends orderings.
    """
    rng = np.random.default_rng([seed, 2])
    _, instruction = _demos_and_instruction(slots, besides)
    orderings = {slots.fingerprint(besides): besides}
    for _ in range(MAX_DRAWS * num_orderings):
        if len(orderings) > num_orderings:
            break
        shuffled_blocks = [rng.permutation(items).tolist() for items in blocks]
        demos = [tuple(items[:size]) for items, size in zip(shuffled_blocks, sizes, strict=True)]
        ordering = (*demos, *instruction)
        orderings.setdefault(slots.fingerprint(ordering), ordering)
    return [*orderings.values()][1:]  # Omit `besides`.


def _if_enough(orderings: Sequence[Ordering]) -> Sequence[Ordering]:
    """Return the orderings, or an empty list if they are too few to estimate the spread of their scores."""
    return orderings if len(orderings) >= MIN_SAMPLE else []


def _demos_and_instruction(slots: PoolSlots, ordering: Ordering) -> tuple[Ordering, Ordering]:
    """Split an ordering into its blocks of demos, one for each slot, and the instruction's block, if any."""
    num_blocks = len(slots.slots)
    return ordering[:num_blocks], ordering[num_blocks:]
