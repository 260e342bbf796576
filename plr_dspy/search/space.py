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
MAX_TRIES = 1_000  # draws or moves in search of one that is allowed


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
        limits: For each block the smallest and largest number of items; all items by default.
        identity: The ordering that a search begins with; the first items by default.
        allowed: Whether an ordering is allowed, such as by a limit of tokens; None allows all.
        programs: Whole programs, which compete with the orderings.
        choices: The last blocks, from which exactly one item is chosen, such as an instruction. For each, the number of
            the block that it belongs to; None if there is no such block.
        from_end: Whether places count from the end, as they do with limits.

    Raises:
        ValueError: If limits do not fit, or the identity is not in the space.
    """

    kinds: tuple[tuple[int, ...], ...]
    limits: tuple[tuple[int, int], ...] = ()
    identity: Ordering = ()
    allowed: Callable[[Ordering], bool] | None = field(default=None, compare=False)
    programs: tuple[WholeProgram, ...] = ()
    choices: tuple[int | None, ...] = ()
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
            max_length: Largest number; smaller blocks can show all. Without both, all items are shown.
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
        if len(self.limits) != len(self.sizes):
            raise ValueError(f"limits must have a pair for each of {len(self.sizes)} blocks; got {self.limits}")
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
            ways = [1] + [0 for _ in range(most)]  # by number of items, of the kinds so far
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
            is_known = set(items) <= set(range(size))
            is_distinct = len(set(items)) == len(items)
            if not (is_known and is_distinct and least <= len(items) <= most):
                expected = f"{least} to {most} different items" if least < size else "a permutation"
                raise ValueError(f"expected {expected} of 0..{size - 1}; got {tuple(items)!r}")
        return tuple(self._like_ascending(block, items) for block, items in enumerate(ordering))

    def contains(self, candidate: Candidate) -> TypeGuard[Ordering]:
        """Tell whether a candidate is an ordering within the limits, allowed or not."""
        if isinstance(candidate, WholeProgram) or len(candidate) != len(self.limits):
            return False
        return all(least <= len(items) <= most for items, (least, most) in zip(candidate, self.limits, strict=True))

    def shows_items(self, ordering: Ordering) -> bool:
        """Tell whether an ordering shows any items, choices aside."""
        return any(ordering[: len(ordering) - len(self.choices)])

    @property
    def first_candidates(self) -> list[Candidate]:
        """Return the identity, the whole programs, and the identity with another item in one of the choices."""
        candidates: list[Candidate] = [self.identity, *self.programs]
        for block in range(len(self.sizes) - len(self.choices), len(self.sizes)):
            for item in range(self.sizes[block]):
                changed = self._with_block(self.identity, block, [item])
                if changed != self.identity:
                    candidates.append(changed)
        return candidates

    def with_first_choices(self, ordering: Ordering) -> Ordering:
        """Return an ordering with the first item of each choice."""
        items = ordering[: len(ordering) - len(self.choices)]
        return (*items, *((0,) for _ in self.choices))

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
        """Yield each allowed candidate once: the identity, the programs, then short before long orderings."""
        yield self.identity
        yield from self.programs
        for ordering in _orderings(self.kinds, self.limits):
            if ordering != self.identity and self.allows(ordering):
                yield ordering

    def draw(self, num_draws: int, rng: np.random.Generator) -> list[Ordering]:
        """Draw orderings, repeats included: a uniform number of items of each block, then which in what order.

        Raises:
            ValueError: If hardly any ordering is allowed.
        """
        return [self._draw_allowed(rng) for _ in range(num_draws)]

    def _draw_allowed(self, rng: np.random.Generator) -> Ordering:
        for _ in range(MAX_TRIES):
            blocks = []
            for size, (least, most) in zip(self.sizes, self.limits, strict=True):
                items = rng.permutation(size).tolist()
                blocks.append(items[: rng.integers(least, most + 1)])
            ordering = self.canonical(blocks)
            if self.allows(ordering):
                return ordering
        raise ValueError(
            f"allowed refused {MAX_TRIES:,} random orderings: let fewer items be shown, or take shorter ones"
        )

    def draw_longest(self, num_draws: int, rng: np.random.Generator) -> list[Ordering]:
        """Draw random orderings that show as many items as are allowed, repeats included."""
        orderings = []
        for _ in range(num_draws):
            blocks = []
            for size, (_, most) in zip(self.sizes, self.limits, strict=True):
                blocks.append(rng.permutation(size)[:most].tolist())
            orderings.append(self.shortened(self.canonical(blocks)) or self.identity)
        return orderings

    def moved(self, ordering: Ordering, rng: np.random.Generator) -> Ordering:
        """Make a random move in one block; without an allowed move, return the ordering as it is.

        If all items are shown, one of them goes elsewhere. Else each kind of move is as likely: replace an item by
        another one, insert one, drop one, shift one, or swap two.
        """
        if not self.from_end:
            places = [(block, place) for block, size in enumerate(self.sizes) for place in range(size)]
            block, place = places[rng.integers(len(places))]
            items = _shifted(ordering[block], place, int(rng.integers(self.sizes[block])))
            moved = self._with_block(ordering, block, items)
            return moved if self.allows(moved) else ordering
        counts = self._count_moves(ordering)
        moves = [move for move, count in counts.items() if count]
        for _ in range(MAX_TRIES if moves else 0):
            block, kind = moves[rng.integers(len(moves))]
            number = int(rng.integers(counts[block, kind]))
            items = _move(ordering[block], kind, number, self.sizes[block])
            moved = self._with_block(ordering, block, items)
            if self.allows(moved):
                return moved
        return ordering

    def _count_moves(self, ordering: Ordering) -> dict[tuple[int, str], int]:
        """Count the moves of each kind in each block."""
        counts = {}
        for block, (items, (least, most)) in enumerate(zip(ordering, self.limits, strict=True)):
            length = len(items)
            num_left = self.sizes[block] - length
            counts[block, "replace"] = length * num_left
            counts[block, "insert"] = (length + 1) * num_left if length < most else 0
            counts[block, "drop"] = length if length > least else 0
            counts[block, "shift"] = length * (length - 1)
            counts[block, "swap"] = length * (length - 1)
        return counts

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


def _orderings(kinds: Sequence[tuple[int, ...]], limits: Sequence[tuple[int, int]]) -> Iterator[Ordering]:
    """Yield the different orderings of blocks one by one, because there may be very many."""
    if not kinds:
        yield ()
        return
    *other_limits, (least, most) = limits
    of_block = kinds[-1]
    for ordering in _orderings(kinds[:-1], other_limits):
        for length in range(least, most + 1):
            for items in _distinct(of_block, length, range(len(of_block))):
                yield (*ordering, items)


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


def _move(items: tuple[int, ...], kind: str, number: int, size: int) -> tuple[int, ...]:
    """Make a move, given by its number among those of its kind."""
    if kind == "drop":
        return (*items[:number], *items[number + 1 :])
    if kind in ("replace", "insert"):
        left = sorted(set(range(size)) - set(items))
        place, new = divmod(number, len(left))
        end = place + 1 if kind == "replace" else place
        return (*items[:place], left[new], *items[end:])
    place, other = divmod(number, len(items) - 1)
    other += other >= place  # Skip the place itself.
    if kind == "shift":
        return _shifted(items, place, other)
    swapped = list(items)
    swapped[place] = items[other]
    swapped[other] = items[place]
    return tuple(swapped)


def _shifted(items: tuple[int, ...], place: int, to: int) -> tuple[int, ...]:
    rest = (*items[:place], *items[place + 1 :])
    return (*rest[:to], items[place], *rest[to:])
