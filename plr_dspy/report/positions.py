"""Computes from a predictor's final distributions where its demos stand, and which orders are likely."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from plr_dspy.orderings.arrangement_distribution import ArrangementDistribution
from plr_dspy.orderings.marginals import most_probable_orderings, position_probabilities
from plr_dspy.orderings.plackett_luce import OrderingDistribution, distribution_from_state
from plr_dspy.report.schema import SlotReport


def is_learnt(slot: SlotReport) -> bool:
    """Tell whether some order of the predictor's demos is more probable than another."""
    logits = [np.atleast_2d(state.get("ranking", state)["logits"]) for state in slot.distributions]
    return any(bool(np.ptp(block, axis=1).max() > 0) for block in logits)


def position_table(slot: SlotReport) -> NDArray[np.float64]:
    """Compute the probability of each demo (row) at each position (column); one that cannot be moved stays.

    Of a pool, positions are counted from the end.
    """
    if slot.is_pool:
        return ArrangementDistribution.from_state(slot.distributions[0]).marginals().numpy()
    table = np.eye(slot.num_demos)
    for block, distribution in _blocks(slot):
        table[np.ix_(block, block)] = position_probabilities(distribution).numpy()
    return table


def log_probability(slot: SlotReport, ordering: Sequence[int]) -> float:
    """Compute the natural logarithm of an order's probability; an order is demo indices by position."""
    return sum(
        float(distribution.log_prob(torch.tensor([block.index(ordering[place]) for place in block])))
        for block, distribution in _blocks(slot)
    )


def most_probable(slot: SlotReport, count: int) -> list[tuple[int, ...]]:
    """Find the most probable orders, best first."""
    orderings = [tuple(range(slot.num_demos))]
    for block, distribution in _blocks(slot):
        permutations = most_probable_orderings(distribution, count).tolist()
        pairs = itertools.product(orderings, permutations)
        products = [_permute(ordering, block, permutation) for ordering, permutation in pairs]
        # The blocks that are still in the original order add the same to all.
        orderings = sorted(products, key=lambda product: -log_probability(slot, product))[:count]
    return orderings


def _blocks(slot: SlotReport) -> Iterator[tuple[list[int], OrderingDistribution]]:
    """Yield each block of demos that can trade places, with the distribution over its orders."""
    return zip(slot.blocks, map(distribution_from_state, slot.distributions), strict=True)


def _permute(ordering: Sequence[int], block: Sequence[int], permutation: Sequence[int]) -> tuple[int, ...]:
    """Bring the demos of a block into another order, and leave all others where they are."""
    result = list(ordering)
    for place, item in zip(block, permutation, strict=True):
        result[place] = block[item]
    return tuple(result)
