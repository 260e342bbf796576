"""The best arrangement of each number of demos, as a report prints them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plr_dspy.report.schema import BestOfNumber

if TYPE_CHECKING:
    from plr_dspy.report.report import Report


def numbers_of_demos(report: Report) -> list[str]:
    """Give the best arrangement of each number of demos, a line each, and say why one with a higher score lost."""
    chosen = {slot.predictor: slot.ordering for slot in report.slots}
    reached = [chosen, *(candidate.ordering for candidate in report.candidates)]
    score = max((best.score for best in report.best_by_number if best.ordering == chosen), default=math.inf)
    higher = [best.ordering for best in report.best_by_number if best.score > score]
    lines = [
        f"best of {best.num_demos} demos: score {best.score:.3f}{_interval(best)}, {best.tokens:,} tokens"
        f"{' (chosen)' * (best.ordering == chosen)}"
        for best in report.best_by_number
    ]
    if report.candidates and any(ordering not in reached for ordering in higher):
        lines.append(
            "higher scores than that of the chosen arrangement belong to arrangements that did not reach the final "
            "comparison: within these intervals they may be chance"
        )
    return lines


def _interval(best: BestOfNumber) -> str:
    """Say within which limits the score of an arrangement lies, where that is known."""
    if best.interval is None:
        return ""
    low, high = best.interval
    return f" [{low:.3f}, {high:.3f}] by {best.num_examples} examples"
