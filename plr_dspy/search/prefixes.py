"""Functions for prefixes that prompts share.

A server with a prefix cache processes each shared prefix only once.
"""

from collections.abc import Iterable, Sequence

from plr_dspy.search.space import Candidate, Ordering, WholeProgram


def by_prefix(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sort candidates so that the prompts of adjacent candidates share long prefixes.

    Whole programs come first. Orderings are compared from the last block to the first, because
    the last blocks hold any instructions, and prompts begin with these.
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
    """Return the number of items in `ordering` after the prefixes that its blocks share with `previous`."""
    number = 0
    for before, items in zip(previous, ordering, strict=True):
        number += len(items) - shared_length(before, items)
    return number


def shared_length(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the length of the longest common prefix of two sequences."""
    length = 0
    for item, other in zip(first, second, strict=False):
        if item != other:
            break
        length += 1
    return length
