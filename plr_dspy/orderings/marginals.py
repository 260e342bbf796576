"""What a distribution over orderings says: which item stands where, and which orderings are most probable."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import MixtureSameFamily

from plr_dspy.orderings.plackett_luce import (
    OrderingDistribution,
    PlackettLuce,
    component_logits,
    draw_orderings,
)
from plr_dspy.runtime.threads import one_thread

MOST_EXACT = 64
"""Items up to which position probabilities are computed; for more of them this would take seconds to minutes."""

NUM_DRAWS = 20_000
"""Of more items; the standard error of a probability is at most .0035."""

BEAM = 30
"""Orderings kept of each component of a mixture, at least."""


def position_probabilities(distribution: OrderingDistribution) -> Tensor:
    """Probability of each item at each position; of a mixture, the weighted mean of its components'.

    Args:
        distribution: A Plackett-Luce or a mixture of it, without batch dimensions.

    Returns:
        Tensor ``[n, k]`` for the first k of n items, k = n mostly: row i, column r is Pr(item i at position r).
        Columns sum to 1, and rows to the probability of being shown. For more than `MOST_EXACT` items, shares of
        draws with a fixed seed.
    """
    length = distribution.event_shape[0]
    weights, logits = _components(distribution)
    num_items = logits.shape[-1]
    with one_thread():
        if num_items > MOST_EXACT:
            draws = draw_orderings(distribution, NUM_DRAWS, torch.Generator().manual_seed(0))
            counts = torch.zeros(num_items, length, dtype=torch.float64)
            for position in range(length):
                counts[:, position] = torch.bincount(draws[:, position], minlength=num_items)
            return counts / NUM_DRAWS
        marginals = PlackettLuce(logits, length=length).marginals().clamp(min=0.0)
        return torch.einsum("k,kir->ir", weights, marginals)


def most_probable_orderings(distribution: OrderingDistribution, count: int) -> Tensor:
    """The most probable orderings, best first; of a mixture, those among the most probable of each component.

    A beam search over beginnings, each with the probability of its best completion: the items left, by their
    logits. The beginnings of the `count` best orderings are among the `count` best beginnings, so that the result
    is exact for one Plackett-Luce.

    Args:
        distribution: A Plackett-Luce or a mixture of it, without batch dimensions.
        count: How many, where there are so many.

    Returns:
        Integer tensor ``[count, n]``, or as many columns as the distribution draws items.
    """
    length = distribution.event_shape[0]
    weights, logits = _components(distribution)
    width = count if len(weights) == 1 else max(count, BEAM)
    with one_thread():
        beams = [_best_of(PlackettLuce(component, length=length), width) for component in logits]
        found: Tensor = torch.cat(beams).unique(dim=0)
        # Sorted lexicographically by now, so that equals come in one order on every machine.
        best = distribution.log_prob(found).argsort(descending=True, stable=True)
        return found[best[:count]]


def _components(distribution: OrderingDistribution) -> tuple[Tensor, Tensor]:
    """Weights ``[k]`` and logits ``[k, n]`` in float64."""
    if isinstance(distribution, MixtureSameFamily):
        return distribution.mixture_distribution.probs.double(), component_logits(distribution).double()
    return torch.ones(1, dtype=torch.float64), distribution.logits.double()[None]


def _best_of(single: PlackettLuce, width: int) -> Tensor:
    """The most probable orderings of one Plackett-Luce, ``[<= width, k]``."""
    size, length = single.num_items, single.length
    by_logit = single.logits.argsort(descending=True, stable=True)
    beam = by_logit[None]  # beginnings of `position` items, each followed by the rest in its best order
    for position in range(min(length, size - 1)):
        # Moving one of the rest to its front leaves the others in their best order; the lower its logit, the less
        # probable the result, so that of each beginning the first `width` are enough.
        moved = [
            torch.cat(
                [beam[:, :position], beam[:, [place]], _without(beam[:, position:], place - position)], 1
            )
            for place in range(position, min(size, position + width))
        ]
        candidates = torch.cat(moved)
        best = single.log_prob(candidates[:, :length]).argsort(descending=True, stable=True)
        beam = candidates[best[:width]]
    return beam[:, :length]


def _without(rows: Tensor, place: int) -> Tensor:
    return torch.cat([rows[:, :place], rows[:, place + 1 :]], 1)
