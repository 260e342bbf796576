"""Prefixes that prompts share, which a server with a prefix cache processes only once."""

import itertools
from collections.abc import Iterable, Sequence

from plr_dspy.search.space import Candidate, Ordering, WholeProgram


def by_prefix(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates in an order in which neighbors share long prompt prefixes.

    Whole programs come first. The last blocks are compared first, because they hold the
    instructions, with which prompts begin.
    """
    programs = []
    orderings = []
    for candidate in candidates:
        if isinstance(candidate, WholeProgram):
            programs.append(candidate)
        else:
            orderings.append(candidate)
    return [*programs, *sorted(orderings, key=lambda ordering: ordering[::-1])]


def num_new_items(previous: Ordering, ordering: Ordering) -> int:
    """Return the number of items of an ordering that come after shared prefixes.

    In each block, the shared prefix is the longest beginning that `previous` has too.
    """
    number = 0
    for before, items in zip(previous, ordering, strict=True):
        number += len(items) - shared_length(before, items)
    return number


def shared_length(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the length of the longest common prefix of two sequences."""
    equal = (item == other for item, other in zip(first, second, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, equal))
