"""The search space: orderings of some or all items in one or more blocks."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeGuard

if TYPE_CHECKING:
    import numpy as np

Ordering: TypeAlias = tuple[tuple[int, ...], ...]  # the items of each block, in order

# The ordering without demos. It is valid only in a space with a single block that may be empty.
WITHOUT_DEMOS: Ordering = ((),)
MAX_TRIES = 1_000  # maximum number of draws or moves to try until an ordering is allowed


@dataclass(frozen=True)
class WholeProgram:
    """A fixed program that competes with orderings, such as a program that retrieves demos.

    Attributes:
        number: Index among all whole programs of the search.
        name: Name in the report, such as "nearest last".
    """

    number: int
    name: str


Candidate: TypeAlias = Ordering | WholeProgram
# Each candidate's scores, keyed by example index.
Scores: TypeAlias = Mapping[Candidate, Mapping[int, float]]


class ScoreEstimate(NamedTuple):
    """A candidate and its estimated mean score on new examples.

    If the search fits no model, the score is the mean of the candidate's known scores.
    """

    ordering: Candidate
    score: float


def best_first(estimates: Iterable[tuple[Candidate, float]]) -> list[ScoreEstimate]:
    """Return the estimates in descending order of score. Tied estimates keep their order."""
    return sorted(itertools.starmap(ScoreEstimate, estimates), key=lambda estimate: -estimate.score)


@dataclass(frozen=True)
class OrderingSpace:
    """The possible orderings of items in one or more blocks.

    If there are limits, an ordering may show only some of the items.

    Attributes:
        kinds: For each block, the kind of each item. Items of the same kind look the same.
        limits: For each block, the minimum and maximum number of items shown. By default, all
            items are shown.
        identity: The ordering with which a search begins. By default, it shows the first items
            of each block, up to the maximum number.
        allowed: A function that returns whether an ordering is allowed, for example by a token
            limit. None allows all orderings.
        programs: Whole programs that compete with the orderings.
        choices: One entry for each choice. Choices are the last blocks, and show exactly one item
            each, such as an instruction. An entry is the index of the block with the demos
            of the choice's predictor, or None if there is no such block.
        from_end: Whether positions are counted from the end. This is the case if limits are given.

    Raises:
        ValueError: If the limits do not fit the blocks, or the identity is not in the space or not
            allowed.
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
        """Return a space whose blocks contain only distinct items.

        If neither `min_length` nor `max_length` is given, all items are shown.

        Args:
            sizes: Number of items in each block.
            min_length, max_length: Minimum and maximum number of items shown from each block.
            identity, allowed: As in `OrderingSpace`.
        """
        kinds = tuple(tuple(range(size)) for size in sizes)
        if min_length is None and max_length is None:
            return cls(kinds, (), identity, allowed)
        limits = [
            (min_length or 0, size if max_length is None else min(size, max_length)) for size in sizes
        ]
        return cls(kinds, tuple(limits), identity, allowed)

    def __post_init__(self) -> None:
        object.__setattr__(self, "from_end", bool(self.limits))
        if not self.limits:
            object.__setattr__(self, "limits", tuple((size, size) for size in self.sizes))
        if len(self.limits) != len(self.sizes):
            raise ValueError(
                f"limits must contain one pair per block, {len(self.sizes)} in total; got {self.limits!r}"
            )
        for size, (lower, upper) in zip(self.sizes, self.limits, strict=True):
            if not 0 <= lower <= upper <= size:
                raise ValueError(
                    f"limits must satisfy 0 <= minimum <= maximum <= {size} for a block of size {size}; "
                    f"got {lower} and {upper}"
                )
        identity = self.identity or tuple(tuple(range(upper)) for _, upper in self.limits)
        object.__setattr__(self, "identity", self.canonical(identity))
        if not self.allows(self.identity):
            raise ValueError(
                f"identity must be an ordering that the function `allowed` accepts; got {self.identity}: pass such an "
                "ordering as identity, for example a shorter one"
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of items in each block."""
        return tuple(map(len, self.kinds))

    @cached_property
    def _has_lookalikes(self) -> tuple[bool, ...]:
        """For each block, whether any of its items look alike."""
        return tuple(len(set(kinds)) < len(kinds) for kinds in self.kinds)

    @cached_property
    def _positions(self) -> tuple[tuple[int, int], ...]:
        """The block and position of each item in an ordering that shows all items."""
        positions: list[tuple[int, int]] = []
        for block, size in enumerate(self.sizes):
            positions += zip(itertools.repeat(block), range(size))
        return tuple(positions)

    @cached_property
    def num_distinct(self) -> int:
        """The number of distinct orderings within the limits, plus the number of whole programs.

        The number includes orderings that `allowed` rejects.
        """
        total = 1
        for kinds, (lower, upper) in zip(self.kinds, self.limits, strict=True):
            num_by_length = [1] + [0 for _ in range(upper)]
            for num_alike in Counter(kinds).values():
                num_by_length = _with_items(num_by_length, num_alike)
            total *= sum(num_by_length[lower:])
        return total + len(self.programs)

    def canonical(self, ordering: Sequence[Sequence[int]]) -> Ordering:
        """Return an ordering's canonical form. Orderings that look alike have the same canonical form.

        Raises:
            ValueError: If the ordering does not fit the blocks and limits.
        """
        if len(ordering) != len(self.kinds):
            raise ValueError(
                f"ordering must contain a sequence of items per block, {len(self.kinds)} in total; got {ordering!r}"
            )
        for items, size, (lower, upper) in zip(ordering, self.sizes, self.limits, strict=True):
            is_known = set(items) <= set(range(size))
            is_distinct = len(set(items)) == len(items)
            if not (is_known and is_distinct and lower <= len(items) <= upper):
                expected = f"{lower} to {upper} different items" if lower < size else "a permutation"
                raise ValueError(
                    f"each block of ordering must be {expected} of 0..{size - 1}; got {tuple(items)!r}"
                )
        return tuple(self._canonical_items(block, items) for block, items in enumerate(ordering))

    def contains(self, candidate: Candidate) -> TypeGuard[Ordering]:
        """Return whether a candidate is an ordering with block lengths within the limits.

        The items and `allowed` are not checked.
        """
        if isinstance(candidate, WholeProgram) or len(candidate) != len(self.limits):
            return False
        return all(
            lower <= len(items) <= upper
            for items, (lower, upper) in zip(candidate, self.limits, strict=True)
        )

    @property
    def num_lists(self) -> int:
        """The number of blocks that are not choices. These blocks come first."""
        return len(self.kinds) - len(self.choices)

    def shows_items(self, ordering: Ordering) -> bool:
        """Return whether an ordering shows any items besides its choices."""
        return any(ordering[: self.num_lists])

    @property
    def first_candidates(self) -> list[Candidate]:
        """The identity, the whole programs, and all variants of the identity in which one choice differs."""
        candidates: list[Candidate] = [self.identity, *self.programs]
        for block in range(self.num_lists, len(self.sizes)):
            for item in range(self.sizes[block]):
                changed = self._with_block(self.identity, block, [item])
                if changed != self.identity:
                    candidates.append(changed)
        return candidates

    def with_first_choices(self, ordering: Ordering) -> Ordering:
        """Return the ordering with each choice replaced by the first item of its block."""
        return (*ordering[: self.num_lists], *((0,) for _ in self.choices))

    def chosen(self, ordering: Ordering) -> Ordering:
        """Return the choices in an ordering."""
        return ordering[self.num_lists :]

    def with_choices(self, sizes: Sequence[int]) -> OrderingSpace:
        """Return a copy of the space in which the choices have the given numbers of items."""
        lists = self.kinds[: self.num_lists]
        return replace(self, kinds=(*lists, *(tuple(range(size)) for size in sizes)))

    def with_new_items(self, ordering: Ordering, earlier: OrderingSpace) -> list[Ordering]:
        """Return the allowed variants of an ordering in which one block shows only one new item.

        New items are items that the space `earlier` does not contain.
        """
        changed = []
        for block, size in enumerate(earlier.sizes):
            changed += [
                self._with_block(ordering, block, [item]) for item in range(size, self.sizes[block])
            ]
        return list(filter(self.allows, changed))

    def allows(self, ordering: Ordering) -> bool:
        """Return whether `allowed` accepts an ordering within the limits."""
        return self.allowed is None or self.allowed(ordering)

    def shortened(self, ordering: Ordering) -> Ordering | None:
        """Return the ordering after dropping items until it is allowed, or None if this fails.

        Each step drops the first item of the block whose length exceeds its minimum by the most.
        """
        while not self.allows(ordering):
            num_spare = [
                len(items) - lower for items, (lower, _) in zip(ordering, self.limits, strict=True)
            ]
            if not any(num_spare):
                return None
            block = num_spare.index(max(num_spare))
            ordering = self._with_block(ordering, block, ordering[block][1:])
        return ordering

    def enumerate(self) -> Iterator[Candidate]:
        """Yield each allowed candidate once: the identity, the whole programs, then all other orderings."""
        yield self.identity
        yield from self.programs
        blocks = []
        for kinds, (lower, upper) in zip(self.kinds, self.limits, strict=True):
            arrangements: list[tuple[int, ...]] = []
            for length in range(lower, upper + 1):
                arrangements += _arrangements(kinds, length, range(len(kinds)))
            blocks.append(arrangements)
        for ordering in itertools.product(*blocks):
            if ordering != self.identity and self.allows(ordering):
                yield ordering

    def draw(self, num_draws: int, rng: np.random.Generator, *, longest: bool = False) -> list[Ordering]:
        """Draw allowed orderings with replacement.

        For each block, draw random items. Their number is drawn from a uniform distribution or, if
        `longest` is true, is the maximum. If a draw is not allowed, items are dropped as in
        `shortened()`. If that fails, draw again. After `MAX_TRIES` failures, use the identity.
        """
        return [self._draw_allowed(rng, longest=longest) for _ in range(num_draws)]

    def _draw_allowed(self, rng: np.random.Generator, *, longest: bool) -> Ordering:
        for _ in range(MAX_TRIES):
            blocks = []
            for size, (lower, upper) in zip(self.sizes, self.limits, strict=True):
                items = rng.permutation(size).tolist()
                length = upper if longest else rng.integers(lower, upper + 1)
                blocks.append(items[:length])
            ordering = self.shortened(self.canonical(blocks))
            if ordering is not None:
                return ordering
        return self.identity

    def moved(self, ordering: Ordering, rng: np.random.Generator) -> Ordering:
        """Return the ordering after a random move in one block.

        If the space has no limits, a move shifts one item. Otherwise, a move replaces, inserts,
        drops or shifts an item, or swaps two items. The possible combinations of a block and a kind
        of move are equally likely. If no allowed move is found, return the ordering unchanged.
        """
        if not self.from_end:
            block, position = self._positions[rng.integers(len(self._positions))]
            items = _shift(ordering[block], position, int(rng.integers(self.sizes[block])))
            moved = self._with_block(ordering, block, items)
            return moved if self.allows(moved) else ordering
        moves = self._moves(ordering)
        for _ in range(MAX_TRIES if moves else 0):
            block, kind, number = moves[rng.integers(len(moves))]
            items = _move(ordering[block], kind, int(rng.integers(number)), self.sizes[block])
            moved = self._with_block(ordering, block, items)
            if self.allows(moved):
                return moved
        return ordering

    def _moves(self, ordering: Ordering) -> list[tuple[int, str, int]]:
        """Return each possible pair of a block and a kind of move, with the number of possible moves.

        Possible moves respect the limits.
        """
        moves: list[tuple[int, str, int]] = []
        for block, (items, (lower, upper)) in enumerate(zip(ordering, self.limits, strict=True)):
            length = len(items)
            num_unused = self.sizes[block] - length
            moves.append((block, "replace", length * num_unused))
            if length < upper:
                moves.append((block, "insert", (length + 1) * num_unused))
            if length > lower:
                moves.append((block, "drop", length))
            moves.append((block, "shift", length * (length - 1)))
            moves.append((block, "swap", length * (length - 1)))
        return [(block, kind, number) for block, kind, number in moves if number]

    def _with_block(self, ordering: Ordering, block: int, items: Sequence[int]) -> Ordering:
        """Return the ordering with the items of one block replaced."""
        return (*ordering[:block], self._canonical_items(block, items), *ordering[block + 1 :])

    def _canonical_items(self, block: int, items: Sequence[int]) -> tuple[int, ...]:
        """Replace each item with the first unused item of its kind."""
        if not self._has_lookalikes[block]:
            return tuple(items)
        kinds = self.kinds[block]
        unused_of_kind = defaultdict(list)
        for item in reversed(range(len(kinds))):
            unused_of_kind[kinds[item]].append(item)
        return tuple(unused_of_kind[kinds[item]].pop() for item in items)


def _with_items(num_by_length: Sequence[int], num_alike: int) -> list[int]:
    """Return the number of distinct sequences of each length after adding items that look alike.

    ``num_by_length[n]`` is the number of sequences of length n without these items. A sequence may
    show up to `num_alike` of them, in any positions.
    """
    totals = []
    for length in range(len(num_by_length)):
        total = 0
        for num_added in range(min(length, num_alike) + 1):
            total += num_by_length[length - num_added] * math.comb(length, num_added)
        totals.append(total)
    return totals


def _arrangements(kinds: tuple[int, ...], length: int, unused: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the arrangements of `length` unused items in lexicographic order.

    Among arrangements that look alike, only the first is yielded.
    """
    if length == 0:
        yield ()
        return
    first_of_kind = {kinds[item]: item for item in reversed(unused)}
    for item in sorted(first_of_kind.values()):
        others = [other for other in unused if other != item]
        for rest in _arrangements(kinds, length - 1, others):
            yield (item, *rest)


def _move(items: tuple[int, ...], kind: str, number: int, size: int) -> tuple[int, ...]:
    """Return a block's items after a move.

    `number` is the index of the move among all moves of this `kind`. The block has `size` items.
    """
    if kind == "drop":
        return (*items[:number], *items[number + 1 :])
    if kind in ("replace", "insert"):
        unused = _unused(items, size)
        position, index = divmod(number, len(unused))
        end = position + 1 if kind == "replace" else position
        return (*items[:position], unused[index], *items[end:])
    position, other = divmod(number, len(items) - 1)
    other += other >= position  # An item cannot move to its own position.
    if kind == "shift":
        return _shift(items, position, other)
    result = list(items)
    result[position] = items[other]
    result[other] = items[position]
    return tuple(result)


def _unused(items: Sequence[int], size: int) -> list[int]:
    """Return the items that a block of `size` items contains in addition to `items`."""
    return sorted(set(range(size)) - set(items))


def _shift(items: tuple[int, ...], start: int, end: int) -> tuple[int, ...]:
    """Return the items after moving the item at position `start` to position `end`."""
    rest = (*items[:start], *items[start + 1 :])
    return (*rest[:end], items[start], *rest[end:])
