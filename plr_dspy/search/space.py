"""The space of orderings of blocks of items, or of some of the items."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeGuard

if TYPE_CHECKING:
    import numpy as np

Ordering: TypeAlias = tuple[tuple[int, ...], ...]  # ordered items of each block
WITHOUT_DEMOS: Ordering = ((),)  # no demos at all; it is in the space only if one block may be empty
MAX_TRIES = 100  # moves in search of one that is allowed


@dataclass(frozen=True)
class WholeProgram:
    """A program as it is, which competes with orderings and has no features.

    Attributes:
        number: Its place in the list of programs that the demo space keeps.
        name: What a report calls it, such as "nearest last".
    """

    number: int
    name: str


Candidate: TypeAlias = Ordering | WholeProgram
Scores: TypeAlias = Mapping[Candidate, Mapping[int, float]]  # by example of each candidate


class ScoreEstimate(NamedTuple):
    """An ordering and its estimated mean score on new examples, or its mean score without a model."""

    ordering: Candidate
    score: float


def best_first(estimates: Iterable[tuple[Candidate, float]]) -> list[ScoreEstimate]:
    """Sort estimates in descending order; equal ones keep their order."""
    return sorted(itertools.starmap(ScoreEstimate, estimates), key=lambda estimate: -estimate.score)


@dataclass(frozen=True)
class OrderingSpace:
    """All orderings of some blocks of items: of all their items, or of numbers of them within limits.

    Attributes:
        kinds: For each block the kind of each item. Items of one kind look the same.
        limits: For each block the smallest and largest number of items; all items by
            default.
        identity: The ordering that a search begins with; the first items by default.
        allowed: Whether an ordering is allowed, such as by a limit of tokens; None
            allows all.
        programs: Whole programs, which compete with the orderings.
        from_end: Whether places count from the end, as they do with limits.

    Raises:
        ValueError: If limits do not fit, or the identity is not in the space.
    """

    kinds: tuple[tuple[int, ...], ...]
    limits: tuple[tuple[int, int], ...] = ()
    identity: Ordering = ()
    allowed: Callable[[Ordering], bool] | None = field(default=None, compare=False)
    programs: tuple[WholeProgram, ...] = ()
    from_end: bool = field(init=False)

    @classmethod
    def of_sizes(
        cls,
        *sizes: int,
        min_length: int | None = None,
        max_length: int | None = None,
        identity: Ordering = (),
        allowed: Callable[[Ordering], bool] | None = None,
    ) -> OrderingSpace:
        """Return the space of blocks of different items.

        Args:
            sizes: Number of items of each block.
            min_length: Smallest number of items in an ordering.
            max_length: Largest number; smaller blocks can show all. Without both, all
                items are shown.
        """
        kinds = tuple(tuple(range(size)) for size in sizes)
        if min_length is None and max_length is None:
            return cls(kinds, (), identity, allowed)
        limits = []
        for size in sizes:
            most = size if max_length is None else min(size, max_length)
            limits.append((min_length or 0, most))
        return cls(kinds, tuple(limits), identity, allowed)

    def __post_init__(self) -> None:
        object.__setattr__(self, "from_end", bool(self.limits))
        if not self.limits:
            object.__setattr__(self, "limits", tuple((size, size) for size in self.sizes))
        for size, (least, most) in zip(self.sizes, self.limits, strict=True):
            if not 0 <= least <= most <= size:
                raise ValueError(f"limits must be 0 <= least <= largest <= size; got {least} and {most} for {size}")
        first = self.identity or tuple(tuple(range(most)) for _, most in self.limits)
        object.__setattr__(self, "identity", self.canonical(first))
        if not self.allows(self.identity):
            raise ValueError(f"identity must be allowed; got {self.identity}: pass one that is, such as a shorter one")

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of items of each block."""
        return tuple(map(len, self.kinds))

    @cached_property
    def num_distinct(self) -> int:
        """Count the different orderings within the limits, allowed or not, and the whole programs."""
        total = 1
        for kinds, (least, most) in zip(self.kinds, self.limits, strict=True):
            ways = [int(length == 0) for length in range(most + 1)]  # by number of items, of the kinds so far
            for count in Counter(kinds).values():
                ways = [_ways_with_kind(ways, length, count) for length in range(most + 1)]
            total *= sum(ways[least:])
        return total + len(self.programs)

    def canonical(self, ordering: Sequence[Sequence[int]]) -> Ordering:
        """Return the representative of all orderings that look like this one, with like items ascending.

        Raises:
            ValueError: If it is not an ordering within the limits. It need not be allowed.
        """
        if len(ordering) != len(self.kinds):
            raise ValueError(f"an ordering has one permutation for each of {len(self.kinds)} blocks; got {ordering!r}")
        for items, size, (least, most) in zip(ordering, self.sizes, self.limits, strict=True):
            is_subset = len(set(items)) == len(items) and set(items) <= set(range(size))
            if not (is_subset and least <= len(items) <= most):
                expected = f"{least} to {most} different items" if least < size else "a permutation"
                raise ValueError(f"expected {expected} of 0..{size - 1}; got {tuple(items)!r}")
        return tuple(self._like_ascending(block, items) for block, items in enumerate(ordering))

    def contains(self, candidate: Candidate) -> TypeGuard[Ordering]:
        """Tell whether a candidate is an ordering within the limits, allowed or not."""
        if isinstance(candidate, WholeProgram) or len(candidate) != len(self.limits):
            return False
        return all(least <= len(items) <= most for items, (least, most) in zip(candidate, self.limits, strict=True))

    def allows(self, ordering: Ordering) -> bool:
        """Tell whether an ordering of the space is allowed."""
        return self.allowed is None or self.allowed(ordering)

    def shortened(self, ordering: Ordering) -> Ordering | None:
        """Drop first items of the block furthest above its limit until the ordering is allowed; None if it never is."""
        while not self.allows(ordering):
            spare = [len(items) - least for items, (least, _) in zip(ordering, self.limits, strict=True)]
            if not any(spare):
                return None
            block = spare.index(max(spare))
            ordering = self._with_block(ordering, block, ordering[block][1:])
        return ordering

    def enumerate(self) -> Iterator[Candidate]:
        """Yield each allowed candidate once: the identity, the programs, then the other orderings."""
        yield self.identity
        yield from self.programs
        blocks = []
        for kinds, (least, most) in zip(self.kinds, self.limits, strict=True):
            of_block: list[tuple[int, ...]] = []
            for length in range(least, most + 1):
                of_block += _distinct(kinds, length, range(len(kinds)))
            blocks.append(of_block)
        for ordering in itertools.product(*blocks):
            if ordering != self.identity and self.allows(ordering):
                yield ordering

    def draw(self, num_draws: int, rng: np.random.Generator, *, longest: bool = False) -> list[Ordering]:
        """Draw orderings, repeats included: a uniform or the largest number of items, then which in what order.

        Those that are not allowed are shortened.
        """
        orderings = []
        for _ in range(num_draws):
            blocks = []
            for size, (least, most) in zip(self.sizes, self.limits, strict=True):
                length = most if longest else rng.integers(least, most + 1)
                blocks.append(rng.permutation(size)[:length].tolist())
            orderings.append(self.shortened(self.canonical(blocks)) or self.identity)
        return orderings

    def moved(self, ordering: Ordering, rng: np.random.Generator) -> Ordering:
        """Make a random move in one block; without an allowed move, return the ordering as it is.

        Each kind of move is as likely: shift an item, swap two, replace one by another
        one, insert one, or drop one.
        """
        moves = []
        for block, (items, (least, most)) in enumerate(zip(ordering, self.limits, strict=True)):
            length = len(items)
            possible = {
                "shift": length > 1,
                "swap": length > 1,
                "replace": 0 < length < self.sizes[block],
                "insert": length < most,
                "drop": length > least,
            }
            moves += [(block, kind) for kind, is_possible in possible.items() if is_possible]
        for _ in range(MAX_TRIES if moves else 0):
            block, kind = moves[rng.integers(len(moves))]
            new_items = _move(ordering[block], kind, self.sizes[block], rng)
            moved = self._with_block(ordering, block, new_items)
            if self.allows(moved):
                return moved
        return ordering

    def _with_block(self, ordering: Ordering, block: int, items: Sequence[int]) -> Ordering:
        """Replace the items of a block."""
        return (*ordering[:block], self._like_ascending(block, items), *ordering[block + 1 :])

    def _like_ascending(self, block: int, items: Sequence[int]) -> tuple[int, ...]:
        """Return the items of a block with those of one kind replaced by its first ones, ascending."""
        kinds = self.kinds[block]
        if len(set(kinds)) == len(kinds):
            return tuple(items)
        unused = list(range(len(kinds)))
        like = []
        for item in items:
            first = next(other for other in unused if kinds[other] == kinds[item])
            unused.remove(first)
            like.append(first)
        return tuple(like)


def _ways_with_kind(ways: Sequence[int], length: int, count: int) -> int:
    """Count the orderings of a length, given those without a kind by length, and `count` items of that kind."""
    total = 0
    for num_of_kind in range(min(count, length) + 1):
        total += ways[length - num_of_kind] * math.comb(length, num_of_kind)
    return total


def _distinct(kinds: tuple[int, ...], length: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield ordered subsets of the items left that look different, in lexicographic order."""
    if length == 0:
        yield ()
        return
    first_of_kind = {kinds[item]: item for item in reversed(left)}
    for item in sorted(first_of_kind.values()):
        others = [other for other in left if other != item]
        for rest in _distinct(kinds, length - 1, others):
            yield (item, *rest)


def _move(items: Sequence[int], kind: str, size: int, rng: np.random.Generator) -> list[int]:
    """Make a random move of a kind."""
    moved = list(items)
    if kind in ("shift", "swap"):
        place, other = rng.choice(len(moved), size=2, replace=False).tolist()
        if kind == "shift":
            moved.insert(other, moved.pop(place))
        else:
            moved[place], moved[other] = moved[other], moved[place]
        return moved
    if kind == "insert":
        place = rng.integers(len(moved) + 1)
    else:
        place = rng.integers(len(moved))
        del moved[place]
    if kind != "drop":
        unused = sorted(set(range(size)) - set(items))
        moved.insert(place, unused[rng.integers(len(unused))])
    return moved
