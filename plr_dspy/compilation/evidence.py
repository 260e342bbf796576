"""How much there was to tell orderings apart by: what limits a compile that is not sure."""

from __future__ import annotations

from collections import defaultdict

from plr_dspy.orderings.space import Ordering
from plr_dspy.report.schema import Evidence
from plr_dspy.search.surrogate.fitted_model import Scores


def any_difference(scores: Scores) -> bool:
    """Whether two orderings have different scores on any example: without that, none can be better than another.

    Args:
        scores: By example, of all orderings.
    """
    seen: dict[int, float] = {}
    return any(
        seen.setdefault(example, score) != score for row in scores.values() for example, score in row.items()
    )


def weigh(scores: Scores, original: Ordering, other: Ordering) -> Evidence:
    """Count the examples that could tell orderings apart, and those that did.

    Args:
        scores: By example, of all orderings.
        original, other: Two of them.
    """
    by_example: dict[int, list[float]] = defaultdict(list)
    for row in scores.values():
        for example, score in row.items():
            by_example[example].append(score)
    met = [seen for seen in by_example.values() if len(seen) > 1]
    return Evidence(
        num_met=len(met),
        num_differing=sum(min(seen) < max(seen) for seen in met),
        num_compared=len(scores[original].keys() & scores[other].keys()),
    )
