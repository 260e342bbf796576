"""The space of arrangements: for each pool of items, which of them are shown, and in what order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from plr_dspy.orderings.arrangement_moves import Moves, OrderedSubset, check_items, moves
from plr_dspy.orderings.space import OrderingSpace

Arrangement: TypeAlias = tuple[OrderedSubset, ...]
"""An ordered subset for each pool, such as one slot's demos; ``arrangement[p][-1]`` is shown last."""

MAX_TRIES = 1_000
"""Draws or moves tried in the hope of one that is allowed."""


@dataclass(frozen=True)
class ArrangementSpace:
    """All arrangements of some pools of items within limits of their numbers.

    The items of a pool should look different: arrangements of items that look alike count as different ones here.

    Attributes:
        sizes: Number of items in each pool.
        limits: For each pool the least and the largest number of items shown; where the least is 0, showing none is
            an arrangement.
        identity: The arrangement that a search begins with, such as what a program shows now.
        allowed: Whether an arrangement is allowed, such as by a limit of tokens; None allows all.

    Raises:
        ValueError: for limits that do not fit, and an identity that is not in the space.
    """

    sizes: tuple[int, ...]
    limits: tuple[tuple[int, int], ...]
    identity: Arrangement
    allowed: Callable[[Arrangement], bool] | None = field(default=None, compare=False)

    @classmethod
    def of_sizes(
        cls,
        *sizes: int,
        min_length: int = 0,
        max_length: int | None = None,
        identity: Arrangement | None = None,
        allowed: Callable[[Arrangement], bool] | None = None,
    ) -> ArrangementSpace:
        """Pools of the given sizes with the same limits; a pool with fewer items than `max_length` can show all.

        Without an `identity`, it is the first items of each pool, as many as may be shown.
        """
        most = tuple(size if max_length is None else min(size, max_length) for size in sizes)
        limits = tuple((min_length, largest) for largest in most)
        first = tuple(tuple(range(largest)) for largest in most)
        return cls(sizes, limits, first if identity is None else identity, allowed)

    def __post_init__(self) -> None:
        if len(self.limits) != len(self.sizes):
            raise ValueError(
                f"limits must have a pair for each of {len(self.sizes)} pools; got {self.limits}"
            )
        for size, (least, most) in zip(self.sizes, self.limits, strict=True):
            if not 0 <= least <= most <= size:
                raise ValueError(
                    f"limits must be 0 <= least <= largest <= size; got {least} and {most} for {size} items"
                )
        if not self.allows(self.canonical(self.identity)):
            raise ValueError(
                f"identity must be allowed; got {self.identity}: pass one that is, such as a shorter one"
            )

    @property
    def num_distinct(self) -> int:
        """Number of arrangements within the limits, allowed or not."""
        return math.prod(
            sum(math.perm(size, length) for length in range(least, most + 1))
            for size, (least, most) in zip(self.sizes, self.limits, strict=True)
        )

    def canonical(self, arrangement: Sequence[Sequence[int]]) -> Arrangement:
        """The arrangement as tuples, allowed or not.

        Raises:
            ValueError: when it is none of these pools, or not within the limits.
        """
        if len(arrangement) != len(self.sizes):
            raise ValueError(
                f"an arrangement has an ordered subset of each of {len(self.sizes)} pools; got {arrangement!r}"
            )
        for items, size, (least, most) in zip(arrangement, self.sizes, self.limits, strict=True):
            check_items(items, size)
            if not least <= len(items) <= most:
                raise ValueError(f"expected {least} to {most} items; got {tuple(items)!r}")
        return tuple(tuple(items) for items in arrangement)

    def holds(self, arrangement: Arrangement) -> bool:
        """Whether ordered subsets of the pools are within the limits, allowed or not."""
        numbers = zip(arrangement, self.limits, strict=True)
        return all(least <= len(items) <= most for items, (least, most) in numbers)

    def allows(self, arrangement: Arrangement) -> bool:
        """Whether an arrangement of the space is allowed."""
        return self.allowed is None or self.allowed(arrangement)

    def enumerate(self) -> Iterator[Arrangement]:
        """Every allowed arrangement once: the identity first, then the short ones before the long ones."""
        yield self.identity
        for arrangement in self._every(0):
            if arrangement != self.identity and self.allows(arrangement):
                yield arrangement

    def draw(self, num_draws: int, rng: np.random.Generator) -> list[Arrangement]:
        """Draw arrangements, repeats included: uniformly the number of items of each pool, then which in what order.

        Of all arrangements together nearly all have the largest number of items, so that a uniform draw of these
        would hardly ever show fewer. Those that are not allowed are drawn again.

        Raises:
            ValueError: when hardly any is allowed.
        """
        return [self._draw(rng) for _ in range(num_draws)]

    def shortened(self, arrangement: Arrangement) -> Arrangement | None:
        """The arrangement without as many of its first items as it takes to be allowed; None where none helps.

        The first item of the pool that shows most beyond its least number goes first.
        """
        while not self.allows(arrangement):
            spare = [len(items) - least for items, (least, _) in zip(arrangement, self.limits, strict=True)]
            if not any(spare):
                return None
            pool = spare.index(max(spare))
            arrangement = (*arrangement[:pool], arrangement[pool][1:], *arrangement[pool + 1 :])
        return arrangement

    def neighbours(self, arrangement: Arrangement) -> Iterator[Arrangement]:
        """Every allowed arrangement one move away, once.

        Moves are within one pool: an item not shown in the place of one shown or between two of them, an item left
        out, an item elsewhere, two items in each other's place.
        """
        met = {arrangement}
        for pool, items in enumerate(arrangement):
            for kind in self._moves(pool, items):
                for number in range(kind.number):
                    reached = (*arrangement[:pool], kind.make(number), *arrangement[pool + 1 :])
                    if reached not in met and self.allows(reached):
                        yield reached
                    met.add(reached)

    def moved(self, arrangement: Arrangement, rng: np.random.Generator) -> Arrangement:
        """The arrangement after a random move, each kind of move as likely; itself where no allowed one was met."""
        kinds = [(pool, kind) for pool, items in enumerate(arrangement) for kind in self._moves(pool, items)]
        for _ in range(MAX_TRIES if kinds else 0):
            pool, kind = kinds[rng.integers(len(kinds))]
            reached = (
                *arrangement[:pool],
                kind.make(int(rng.integers(kind.number))),
                *arrangement[pool + 1 :],
            )
            if self.allows(reached):
                return reached
        return arrangement

    def _moves(self, pool: int, items: OrderedSubset) -> list[Moves]:
        least, most = self.limits[pool]
        return list(moves(items, self.sizes[pool], min_length=least, max_length=most).values())

    def _draw(self, rng: np.random.Generator) -> Arrangement:
        for _ in range(MAX_TRIES):
            arrangement = tuple(
                tuple(rng.permutation(size)[: rng.integers(least, most + 1)].tolist())
                for size, (least, most) in zip(self.sizes, self.limits, strict=True)
            )
            if self.allows(arrangement):
                return arrangement
        raise ValueError(
            f"allowed refused {MAX_TRIES:,} random arrangements: let fewer items be shown, or take shorter ones"
        )

    def _every(self, pool: int) -> Iterator[Arrangement]:
        """The arrangements of the pools from one on, one at a time: there may be very many."""
        if pool == len(self.sizes):
            yield ()
            return
        least, most = self.limits[pool]
        for length in range(least, most + 1):
            for items in itertools.permutations(range(self.sizes[pool]), length):
                for others in self._every(pool + 1):
                    yield (items, *others)


SearchSpace: TypeAlias = OrderingSpace | ArrangementSpace
"""What searches and their model take."""
