"""What the final distributions of a predictor say about its demos: who stands where, and which orders are likely."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from plr_dspy.orderings.marginals import most_probable_orderings, position_probabilities
from plr_dspy.orderings.plackett_luce import distribution_from_state
from plr_dspy.report.schema import SlotReport


@dataclass(frozen=True)
class LikelyOrder:
    """An order of a predictor's demos.

    Attributes:
        ordering: Demo indices by position.
        log_probability: Natural logarithm, by the final distributions.
    """

    ordering: tuple[int, ...]
    log_probability: float


class Places:
    """The final distributions of a predictor, over all places of its demos.

    Args:
        slot: The predictor, as the report holds it.
    """

    def __init__(self, slot: SlotReport) -> None:
        self._slot = slot
        self._distributions = [distribution_from_state(state) for state in slot.distributions]

    @property
    def original(self) -> tuple[int, ...]:
        """The order that the demos had."""
        return tuple(range(self._slot.num_demos))

    @property
    def learnt(self) -> bool:
        """Whether some order is more probable than another."""
        logits = [np.atleast_2d(state["logits"]) for state in self._slot.distributions]
        return any(bool(np.ptp(block, axis=1).max() > 0) for block in logits)

    def probabilities(self) -> NDArray[np.float64]:
        """Probability of each demo (row) at each position (column); what cannot be moved stays."""
        result = np.eye(self._slot.num_demos)
        for block, distribution in zip(self._slot.blocks, self._distributions, strict=True):
            result[np.ix_(block, block)] = position_probabilities(distribution).numpy()
        return result

    def most_probable(self, count: int) -> list[LikelyOrder]:
        """The most probable orders, best first."""
        best: list[tuple[float, tuple[tuple[int, ...], ...]]] = [(0.0, ())]
        for distribution in self._distributions:
            found = most_probable_orderings(distribution, count)
            pairs = list(zip(distribution.log_prob(found).tolist(), map(tuple, found.tolist()), strict=True))
            products = [(a + b, (*head, tail)) for (a, head), (b, tail) in itertools.product(best, pairs)]
            best = sorted(products, key=lambda pair: -pair[0])[:count]
        return [LikelyOrder(self._demos(permutations), logarithm) for logarithm, permutations in best]

    def order(self, ordering: Sequence[int]) -> LikelyOrder:
        """An order with its probability."""
        logarithm = 0.0
        for block, distribution in zip(self._slot.blocks, self._distributions, strict=True):
            items = torch.tensor([block.index(ordering[place]) for place in block])
            logarithm += float(distribution.log_prob(items))
        return LikelyOrder(tuple(ordering), logarithm)

    def _demos(self, permutations: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Demo indices by position, from a permutation of each block."""
        result = list(self.original)
        for block, permutation in zip(self._slot.blocks, permutations, strict=True):
            for place, item in zip(block, permutation, strict=True):
                result[place] = block[item]
        return tuple(result)
