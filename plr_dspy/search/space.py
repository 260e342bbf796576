"""What is searched: orderings of blocks of items, or of some of them; and what orderings have scored."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

if TYPE_CHECKING:
    import numpy as np

Ordering: TypeAlias = tuple[tuple[int, ...], ...]  # the items of each block, or some of them, the first one first
WITHOUT_DEMOS: Ordering = ((),)  # a program that shows no demos at all; of one block that may show none, an ordering
MAX_TRIES = 1_000  # draws or moves tried in the hope of one that is allowed


@dataclass(frozen=True)
class WholeProgram:
    """A candidate that is a program taken as it is; it competes with orderings, and has no features.

    Attributes:
        number: Its place in the list of programs that the demo space keeps.
        name: What a report calls it, such as "nearest last".
    """

    number: int
    name: str


Candidate: TypeAlias = Ordering | WholeProgram
Scores: TypeAlias = Mapping[Candidate, Mapping[int, float]]  # by example of each candidate


def candidate_from_json(saved: Any) -> Candidate:
    """Return the candidate that was written as JSON."""
    if isinstance(saved, Mapping):
        return WholeProgram(**saved)
    return tuple(map(tuple, saved))


class ScoreEstimate(NamedTuple):
    """An ordering with what a search takes for its mean score on new examples; without a model, its mean score."""

    ordering: Candidate
    score: float


def best_first(estimates: Iterable[tuple[Candidate, float]]) -> list[ScoreEstimate]:
    """The estimates in descending order, the earlier of equals first."""
    return sorted(itertools.starmap(ScoreEstimate, estimates), key=lambda estimate: -estimate.score)


@dataclass(frozen=True)
class OrderingSpace:
    """All orderings of some blocks of items: of all their items, or of as many as the limits allow.

    Attributes:
        kinds: For each block the kind of each of its items. Items of one kind look the same, so that orderings which
            differ only in those are one candidate.
        limits: For each block the least and the largest number of items shown; without any, all items are.
        identity: The ordering that a search begins with, such as what a program shows now; without one, the first items
            of each block as they are, as many as may be shown.
        allowed: Whether an ordering is allowed, such as by a limit of tokens; None allows all.
        from_end: Whether places count from the end, as where limits are given: the last item is the nearest to the
            question, however many there are.
        sizes: Number of items of each block.
        programs: Whole programs, which compete with the orderings.

    Raises:
        ValueError: for limits that do not fit, and an identity that is not in the space.
    """

    kinds: tuple[tuple[int, ...], ...]
    limits: tuple[tuple[int, int], ...] = ()
    identity: Ordering = ()
    allowed: Callable[[Ordering], bool] | None = field(default=None, compare=False)
    programs: tuple[WholeProgram, ...] = ()
    from_end: bool = field(init=False)
    sizes: tuple[int, ...] = field(init=False, repr=False)

    @classmethod
    def of_sizes(
        cls,
        *sizes: int,
        min_length: int | None = None,
        max_length: int | None = None,
        identity: Ordering = (),
        allowed: Callable[[Ordering], bool] | None = None,
    ) -> OrderingSpace:
        """Blocks of the given sizes in which all items differ, of which `min_length` to `max_length` are shown, or all
        without either. A block of fewer items than `max_length` can show all."""
        kinds = tuple(tuple(range(size)) for size in sizes)
        if min_length is None and max_length is None:
            return cls(kinds, (), identity, allowed)
        most = [size if max_length is None else min(size, max_length) for size in sizes]
        return cls(kinds, tuple((min_length or 0, largest) for largest in most), identity, allowed)

    def __post_init__(self) -> None:
        object.__setattr__(self, "from_end", bool(self.limits))
        object.__setattr__(self, "sizes", tuple(map(len, self.kinds)))
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
    def num_distinct(self) -> int:
        """Number of orderings within the limits that can be told apart, allowed or not, and of whole programs."""
        total = 1
        for kinds, (least, most) in zip(self.kinds, self.limits, strict=True):
            ways = [1] + [0] * most  # of so many items, of the kinds so far
            for count in Counter(kinds).values():
                ways = [
                    sum(ways[length - own] * math.comb(length, own) for own in range(min(count, length) + 1))
                    for length in range(most + 1)
                ]
            total *= sum(ways[least:])
        return total + len(self.programs)

    def canonical(self, ordering: Sequence[Sequence[int]]) -> Ordering:
        """The representative of all orderings that look like this one, like items ascending; allowed or not. A
        ValueError where it is no ordering of this space."""
        if len(ordering) != len(self.kinds):
            raise ValueError(f"an ordering has one permutation for each of {len(self.kinds)} blocks; got {ordering!r}")
        for items, size, (least, most) in zip(ordering, self.sizes, self.limits, strict=True):
            if not set(items) <= set(range(size)) or not least <= len(set(items)) == len(items) <= most:
                expected = f"{least} to {most} different items" if least < size else "a permutation"
                raise ValueError(f"expected {expected} of 0..{size - 1}; got {tuple(items)!r}")
        return tuple(self._like_ascending(block, items) for block, items in enumerate(ordering))

    def holds(self, candidate: Candidate) -> TypeGuard[Ordering]:
        """Whether ordered subsets of blocks are within the limits, allowed or not."""
        if isinstance(candidate, WholeProgram) or len(candidate) != len(self.limits):
            return False
        shown = zip(map(len, candidate), self.limits, strict=True)
        return all(least <= length <= most for length, (least, most) in shown)

    def allows(self, ordering: Ordering) -> bool:
        """Whether an ordering of the space is allowed."""
        return self.allowed is None or self.allowed(ordering)

    def shortened(self, ordering: Ordering) -> Ordering | None:
        """The ordering without as many first items as it takes to be allowed, of the blocks that show most beyond their
        least number; None where none helps."""
        while not self.allows(ordering):
            spare = [len(items) - least for items, (least, _) in zip(ordering, self.limits, strict=True)]
            if not any(spare):
                return None
            block = spare.index(max(spare))
            ordering = self._with_block(ordering, block, ordering[block][1:])
        return ordering

    def enumerate(self) -> Iterator[Candidate]:
        """Every distinct allowed candidate once: the identity, the programs, then short before long orderings."""
        yield self.identity
        yield from self.programs
        yield from (o for o in _orderings(self.kinds, self.limits) if o != self.identity and self.allows(o))

    def draw(self, num_draws: int, rng: np.random.Generator) -> list[Ordering]:
        """Draw orderings, repeats included: uniformly the number of items of each block, of which most orderings have
        the largest, then which in what order; a ValueError where hardly any is allowed."""
        found: list[Ordering] = []
        for _ in range(num_draws):
            for _ in range(MAX_TRIES):
                drawn = tuple(
                    rng.permutation(size)[: rng.integers(least, most + 1)].tolist()
                    for size, (least, most) in zip(self.sizes, self.limits, strict=True)
                )
                if self.allows(ordering := self.canonical(drawn)):
                    found.append(ordering)
                    break
            else:
                raise ValueError(
                    f"allowed refused {MAX_TRIES:,} random orderings: let fewer items be shown, or take shorter ones"
                )
        return found

    def draw_longest(self, num_draws: int, rng: np.random.Generator) -> list[Ordering]:
        """Draw random orderings that show as many items as are allowed, repeats included."""
        orderings = []
        for _ in range(num_draws):
            items = [
                rng.permutation(size)[:most].tolist() for size, (_, most) in zip(self.sizes, self.limits, strict=True)
            ]
            ordering = self.shortened(self.canonical(items))
            orderings.append(self.identity if ordering is None else ordering)
        return orderings

    def moved(self, ordering: Ordering, rng: np.random.Generator) -> Ordering:
        """The ordering after a random move in one block; as it is where no allowed move was met.

        Where all items are shown, one of them goes elsewhere. Else each kind of move is as likely: one is replaced by
        one not shown, put in between the others, left out, put elsewhere, or two swap their places.
        """
        if not self.from_end:
            places = [(block, place) for block, size in enumerate(self.sizes) for place in range(size)]
            block, place = places[rng.integers(len(places))]
            to = int(rng.integers(self.sizes[block]))
            reached = self._with_block(ordering, block, _put_elsewhere(ordering[block], place, to))
            return reached if self.allows(reached) else ordering
        numbers = {}  # of moves of each kind
        for block, (items, (least, most)) in enumerate(zip(ordering, self.limits, strict=True)):
            length, left = len(items), self.sizes[block] - len(items)
            numbers[block, "replace"] = length * left
            numbers[block, "insert"] = (length + 1) * left if length < most else 0
            numbers[block, "drop"] = length if length > least else 0
            numbers[block, "shift"] = numbers[block, "swap"] = length * (length - 1)
        moves = [move for move, number in numbers.items() if number]
        for _ in range(MAX_TRIES if moves else 0):
            block, kind = move = moves[rng.integers(len(moves))]
            items = _move(ordering[block], kind, int(rng.integers(numbers[move])), self.sizes[block])
            reached = self._with_block(ordering, block, items)
            if self.allows(reached):
                return reached
        return ordering

    def _with_block(self, ordering: Ordering, block: int, items: Sequence[int]) -> Ordering:
        """The ordering with other items in a block."""
        return (*ordering[:block], self._like_ascending(block, items), *ordering[block + 1 :])

    def _like_ascending(self, block: int, items: Sequence[int]) -> tuple[int, ...]:
        """The items of a block with like ones ascending, the first of each kind first."""
        kinds = self.kinds[block]
        if len(set(kinds)) == len(kinds):
            return tuple(items)
        waiting = {kind: iter([i for i, other in enumerate(kinds) if other == kind]) for kind in set(kinds)}
        return tuple(next(waiting[kinds[item]]) for item in items)


def _orderings(kinds: Sequence[tuple[int, ...]], limits: Sequence[tuple[int, int]]) -> Iterator[Ordering]:
    """Every distinct ordering of blocks, one at a time: there may be very many."""
    if not kinds:
        yield ()
        return
    for ordering in _orderings(kinds[:-1], limits[:-1]):
        for length in range(limits[-1][0], limits[-1][1] + 1):
            yield from ((*ordering, items) for items in _distinct(kinds[-1], length, range(len(kinds[-1]))))


def _distinct(kinds: tuple[int, ...], length: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ordered subsets of so many of the items left that look different, in lexicographic order."""
    if length == 0:
        yield ()
        return
    first = {kinds[item]: item for item in reversed(left)}  # of each kind
    for item in sorted(first.values()):
        for rest in _distinct(kinds, length - 1, [other for other in left if other != item]):
            yield (item, *rest)


def _move(items: tuple[int, ...], kind: str, number: int, size: int) -> tuple[int, ...]:
    """The items after a move, which is told by its number among those of its kind."""
    if kind in ("replace", "insert"):
        left = sorted(set(range(size)) - set(items))
        place, new = divmod(number, len(left))
        return (*items[:place], left[new], *items[place + (kind == "replace") :])
    if kind == "drop":
        return (*items[:number], *items[number + 1 :])
    place, other = divmod(number, len(items) - 1)
    other += other >= place  # everywhere but where it was
    if kind == "shift":
        return _put_elsewhere(items, place, other)
    swapped = list(items)
    swapped[place], swapped[other] = items[other], items[place]
    return tuple(swapped)


def _put_elsewhere(items: tuple[int, ...], place: int, to: int) -> tuple[int, ...]:
    rest = (*items[:place], *items[place + 1 :])
    return (*rest[:to], items[place], *rest[to:])
