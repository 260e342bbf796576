"""The space that a search explores: orderings of blocks of items, some of them interchangeable."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

Permutation: TypeAlias = tuple[int, ...]
Ordering: TypeAlias = tuple[Permutation, ...]
"""One permutation for each block; ``ordering[b][0]`` is the item of block b that comes first."""

WITHOUT_DEMOS: Ordering = ((),)
"""Stands for a program that shows no demos at all; in no `OrderingSpace`. Of one pool, it is the empty arrangement."""


@dataclass(frozen=True)
class OrderingSpace:
    """All orderings of some blocks of items.

    Attributes:
        kinds: For each block the kind of each of its items. Items of one kind look the same, so
            that orderings which differ only in those are one candidate.
    """

    kinds: tuple[tuple[int, ...], ...]

    @classmethod
    def of_sizes(cls, *sizes: int) -> OrderingSpace:
        """Blocks of the given sizes in which all items differ."""
        return cls(tuple(tuple(range(size)) for size in sizes))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of items of each block."""
        return tuple(len(block) for block in self.kinds)

    @property
    def num_distinct(self) -> int:
        """Number of orderings that can be told apart."""
        total = 1
        for block in self.kinds:
            repeats = math.prod(math.factorial(count) for count in Counter(block).values())
            total *= math.factorial(len(block)) // repeats
        return total

    @property
    def identity(self) -> Ordering:
        """The ordering that leaves everything where it is."""
        return tuple(tuple(range(size)) for size in self.sizes)

    def holds(self, ordering: Ordering) -> bool:
        """Whether an ordering is one of this space, and not `WITHOUT_DEMOS`."""
        return ordering != WITHOUT_DEMOS

    def canonical(self, ordering: Sequence[Sequence[int]]) -> Ordering:
        """The representative of all orderings that look like this one: like items ascending.

        Raises:
            ValueError: when it is no ordering of this space.
        """
        if len(ordering) != len(self.kinds):
            raise ValueError(
                f"an ordering has one permutation for each of {len(self.kinds)} blocks; got {ordering!r}"
            )
        for permutation, kinds in zip(ordering, self.kinds, strict=True):
            if sorted(permutation) != list(range(len(kinds))):
                raise ValueError(f"expected a permutation of 0..{len(kinds) - 1}; got {tuple(permutation)!r}")
        return tuple(_canonical(perm, kinds) for perm, kinds in zip(ordering, self.kinds, strict=True))

    def moved(self, ordering: Ordering, rng: np.random.Generator) -> Ordering:
        """The ordering with one item put elsewhere in its block."""
        place, block = int(rng.integers(sum(self.sizes))), 0
        while place >= len(ordering[block]):
            place, block = place - len(ordering[block]), block + 1
        items = list(ordering[block])
        item = items.pop(place)
        items.insert(int(rng.integers(len(items) + 1)), item)
        return (*ordering[:block], _canonical(items, self.kinds[block]), *ordering[block + 1 :])

    def enumerate(self) -> Iterator[Ordering]:
        """Every distinct ordering once, the identity first."""
        return itertools.product(*(tuple(_distinct_permutations(kinds)) for kinds in self.kinds))


def _canonical(permutation: Sequence[int], kinds: tuple[int, ...]) -> Permutation:
    if len(set(kinds)) == len(kinds):
        return tuple(permutation)
    waiting: dict[int, deque[int]] = {}
    for item, kind in enumerate(kinds):
        waiting.setdefault(kind, deque()).append(item)
    return tuple(waiting[kinds[item]].popleft() for item in permutation)


def _distinct_permutations(kinds: tuple[int, ...]) -> Iterator[Permutation]:
    """Distinct permutations of a multiset, in lexicographic order of the items."""
    if not kinds:
        yield ()
        return
    remaining = list(range(len(kinds)))

    def extend(prefix: list[int]) -> Iterator[Permutation]:
        if not remaining:
            yield tuple(prefix)
            return
        tried = set()
        for position, item in enumerate(list(remaining)):
            if kinds[item] in tried:
                continue
            tried.add(kinds[item])
            remaining.pop(position)
            yield from extend([*prefix, item])
            remaining.insert(position, item)

    yield from extend([])
