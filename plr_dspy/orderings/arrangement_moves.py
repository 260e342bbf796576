"""Ordered subsets of a pool, and the moves from one to those next to it, by kind of move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

OrderedSubset: TypeAlias = tuple[int, ...]
"""Different items of a pool by position; the first is shown first."""


def check_items(items: Sequence[int], size: int) -> None:
    """Refuse what is no ordered subset of a pool.

    Raises:
        ValueError: when an item comes twice or is none of the pool.
    """
    if len(set(items)) != len(items) or not set(items) <= set(range(size)):
        raise ValueError(f"expected different items of 0..{size - 1}; got {tuple(items)!r}")


class Moves(NamedTuple):
    """All moves of one kind.

    Attributes:
        number: How many there are.
        make: The ordered subset that a move leads to, by the move's number from 0 on.
    """

    number: int
    make: Callable[[int], OrderedSubset]


def moves(items: OrderedSubset, size: int, *, min_length: int, max_length: int) -> dict[str, Moves]:
    """The moves that keep the limits, by kind; kinds without any are left out.

    Two moves may lead to the same ordered subset: an item that goes one place on, and its neighbour one place back.

    Args:
        items: Where to begin.
        size: Items in the pool.
        min_length, max_length: Limits of the number of items shown.
    """
    length, left = len(items), sorted(set(range(size)) - set(items))

    def replace(number: int) -> OrderedSubset:
        place, new = divmod(number, len(left))
        return (*items[:place], left[new], *items[place + 1 :])

    def insert(number: int) -> OrderedSubset:
        place, new = divmod(number, len(left))
        return (*items[:place], left[new], *items[place:])

    def drop(place: int) -> OrderedSubset:
        return (*items[:place], *items[place + 1 :])

    def shift(number: int) -> OrderedSubset:
        place, to = divmod(number, length - 1)
        rest = drop(place)
        to += to >= place  # everywhere but where it was
        return (*rest[:to], items[place], *rest[to:])

    def swap(number: int) -> OrderedSubset:
        place, other = divmod(number, length - 1)
        other += other >= place
        swapped = list(items)
        swapped[place], swapped[other] = items[other], items[place]
        return tuple(swapped)

    kinds = {
        "replace": Moves(length * len(left), replace),  # one shown by one not shown
        "insert": Moves((length + 1) * len(left) if length < max_length else 0, insert),
        "drop": Moves(length if length > min_length else 0, drop),
        "shift": Moves(length * (length - 1), shift),  # an item elsewhere
        "swap": Moves(length * (length - 1), swap),  # two items
    }
    return {name: kind for name, kind in kinds.items() if kind.number}
