"""A distribution over arrangements of a pool, which show some of its items in some order, and its update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributions import MixtureSameFamily

from plr_dspy.orderings.arrangement_moves import OrderedSubset, check_items
from plr_dspy.orderings.marginals import position_probabilities
from plr_dspy.orderings.partial_rankings import log_probabilities, padded
from plr_dspy.orderings.plackett_luce import (
    OrderingDistribution,
    component_logits,
    cut_off,
    distribution_from_state,
    distribution_state,
    draw_orderings,
    most_probable_ordering,
    sharpened,
)
from plr_dspy.orderings.updates import MaximumLikelihood, UpdateRule


@dataclass(frozen=True)
class ArrangementDistribution:
    """How many items of a pool are shown, and which in what order: a categorical distribution and a Plackett-Luce.

    The Plackett-Luce is drawn from the end: its first item is shown last. In a prompt the last demo is the nearest to
    the question, whatever the number of demos. So an item with a large logit is shown in most arrangements and near
    their end, and arrangements of all lengths tell of the same logits.

    Attributes:
        ranking: Over orderings of the whole pool, read from the end of an arrangement; without batch dimensions, and on
            the CPU.
        length_probabilities: Of each number of items, from the least one on; float64.
        min_length: The least number of items.

    Raises:
        ValueError: for probabilities that do not fit.
    """

    ranking: OrderingDistribution
    length_probabilities: Tensor
    min_length: int = 0

    def __post_init__(self) -> None:
        probabilities = self.length_probabilities
        if probabilities.dim() != 1 or not 0 <= self.min_length <= self.max_length <= self.num_items:
            raise ValueError(
                f"length_probabilities must have one entry for each number from min_length={self.min_length} to at "
                f"most the {self.num_items} items of the pool; got shape {list(probabilities.shape)}"
            )
        if bool((probabilities < 0).any()) or not abs(float(probabilities.sum()) - 1.0) < 1e-6:
            raise ValueError(f"length_probabilities must not be negative, and sum to 1; got {probabilities}")

    @property
    def num_items(self) -> int:
        """Number of items in the pool."""
        return self.ranking.event_shape[0]

    @property
    def max_length(self) -> int:
        """The largest number of items shown."""
        return self.min_length + len(self.length_probabilities) - 1

    def log_prob(self, arrangements: Sequence[Sequence[int]]) -> Tensor:
        """Log-probabilities ``[m]`` of arrangements, the empty one among them.

        Raises:
            ValueError: when one is no arrangement of the pool, or has another number of items.
        """
        rankings = rankings_of(arrangements, self.num_items)
        lengths = self.lengths_of(arrangements)
        if isinstance(self.ranking, MixtureSameFamily):
            parts = log_probabilities(component_logits(self.ranking), rankings[:, None, :])
            of_items = (parts + self.ranking.mixture_distribution.logits).logsumexp(dim=-1)
        else:
            of_items = log_probabilities(self.ranking.logits, rankings)
        return of_items + self.length_probabilities.log()[lengths]

    def sample(self, num_draws: int, generator: torch.Generator | None = None) -> list[OrderedSubset]:
        """Draw arrangements, repeats included."""
        lengths = torch.multinomial(
            self.length_probabilities, num_draws, replacement=True, generator=generator
        )
        rankings = draw_orderings(self.ranking, num_draws, generator)
        pairs = zip(rankings.tolist(), (lengths + self.min_length).tolist(), strict=True)
        return [tuple(ranking[:length][::-1]) for ranking, length in pairs]

    @property
    def mode(self) -> OrderedSubset:
        """The most probable arrangement of the most probable number of items.

        Few items have few arrangements, each the more probable for that: of all numbers of items, the least would
        mostly win. Of a mixture it is the best of its components' modes.
        """
        length = self.min_length + int(self.length_probabilities.argmax())
        if length == 0:
            return ()
        return tuple(most_probable_ordering(cut_off(self.ranking, length)).flip(-1).tolist())

    def marginals(self) -> Tensor:
        """Probability of each item at each place, counted from the end.

        Returns:
            Tensor ``[n, max_length]``: row i, column r is Pr(item i is shown, and r items after it). A column sums to
            the probability that there are so many items, and a row to that of the item being shown at all. Exact, or
            shares of draws, as of `position_probabilities`.
        """
        if self.max_length == 0:
            return torch.zeros(self.num_items, 0, dtype=torch.float64)
        at_least = self.length_probabilities.flip(0).cumsum(0).flip(0)  # of min_length, min_length + 1, ...
        reached = torch.ones(self.max_length, dtype=at_least.dtype)
        reached[self.min_length :] = at_least[1:]
        return position_probabilities(cut_off(self.ranking, self.max_length)) * reached

    def sharpened(self, factor: float) -> ArrangementDistribution:
        """The distribution with its logits multiplied: flatter below 1, at 0 as at the beginning."""
        powers = self.length_probabilities**factor
        return ArrangementDistribution(
            sharpened(self.ranking, factor), powers / powers.sum(), self.min_length
        )

    def lengths_of(self, arrangements: Sequence[Sequence[int]]) -> Tensor:
        """How many items each arrangement shows beyond the least number, ``[m]``.

        Raises:
            ValueError: when one has fewer than the least number of items, or more than the largest.
        """
        lengths = [len(arrangement) for arrangement in arrangements]
        if outside := {length for length in lengths if not self.min_length <= length <= self.max_length}:
            raise ValueError(
                f"arrangements must have {self.min_length} to {self.max_length} items; got {sorted(outside)}"
            )
        return torch.tensor(lengths, dtype=torch.long) - self.min_length

    def state_dict(self) -> dict[str, Any]:
        """The distribution as JSON data."""
        return {
            "ranking": distribution_state(self.ranking),
            "length_probabilities": self.length_probabilities.tolist(),
            "min_length": self.min_length,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> ArrangementDistribution:
        """The distribution that `state_dict` was taken of."""
        probabilities = torch.tensor(state["length_probabilities"], dtype=torch.float64)
        return cls(distribution_from_state(state["ranking"]), probabilities, state["min_length"])


class SmoothedRule(UpdateRule, Protocol):
    """An update rule that goes only part of the way to the elites."""

    @property
    def smoothing(self) -> float:
        """Share of the way, in (0, 1]."""


@dataclass(frozen=True)
class ArrangementUpdate:
    """Update of a distribution over arrangements: its Plackett-Luce by a rule, and its numbers of items alike.

    Attributes:
        rule: Updates the Plackett-Luce from what the elites show. The number of items goes the same share of the way
            to the elites' numbers.
        uniform_share: Share of the probability that all numbers of items have in equal parts, at least: none dies out.
    """

    rule: SmoothedRule = field(default_factory=MaximumLikelihood)
    uniform_share: float = 0.05

    def __post_init__(self) -> None:
        if not 0.0 <= self.uniform_share <= 1.0:
            raise ValueError(f"uniform_share must lie in [0, 1]; got {self.uniform_share!r}")

    def initial(self, num_items: int, *, min_length: int, max_length: int) -> ArrangementDistribution:
        """All numbers of items equally probable, and all arrangements of one number."""
        count = max_length - min_length + 1
        if count < 1:
            raise ValueError(f"max_length must be at least min_length={min_length}; got {max_length}")
        lengths = torch.full((count,), 1.0 / count, dtype=torch.float64)
        return ArrangementDistribution(self.rule.initial(num_items), lengths, min_length)

    def update(
        self,
        distribution: ArrangementDistribution,
        elites: Sequence[Sequence[int]],
        weights: Tensor | None = None,
    ) -> ArrangementDistribution:
        """The next distribution, from elites and their weights ``[m]`` (None: all 1); it changes neither."""
        before, lengths = distribution.length_probabilities, distribution.lengths_of(elites)
        ranking = self.rule.update(distribution.ranking, rankings_of(elites, distribution.num_items), weights)
        counted = torch.ones(len(lengths)) if weights is None else weights
        counts = torch.bincount(lengths, weights=counted.to(before), minlength=len(before))
        smoothed = (1.0 - self.rule.smoothing) * before + self.rule.smoothing * counts / counts.sum()
        probabilities = (1.0 - self.uniform_share) * smoothed + self.uniform_share / len(before)
        return ArrangementDistribution(ranking, probabilities, distribution.min_length)


def rankings_of(arrangements: Sequence[Sequence[int]], num_items: int) -> Tensor:
    """The rankings ``[m, n]`` that arrangements stand for: their items from the last one on.

    Raises:
        ValueError: when one is no arrangement of so many items.
    """
    for arrangement in arrangements:
        check_items(arrangement, num_items)
    return padded([arrangement[::-1] for arrangement in arrangements], num_items)
