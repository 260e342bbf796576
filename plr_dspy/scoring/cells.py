"""The outcome of one program call, and the counts of those that ended in an exception."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from plr_dspy.report.data import ErrorCount

CellKey: TypeAlias = tuple[str, int]
"""Fingerprint of a prompt, and index of an example."""

LogProbability = Annotated[float, Field(strict=True, allow_inf_nan=False)]

WRONG, FAILED = "counted as wrong", "not scored"
"""Outcomes of a cell without a score."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The outcome of one program call.

    Attributes:
        score: As the metric gave it; None if there was an exception: then `outcome` is `WRONG` or `FAILED`.
        error, message: Class name of the exception, and the first line of its message.
        value: JSON data, where the call was not made for a score.
        label_logprobs: Of all labels that the program might have answered with, where the call told them.
        unseen_labels: Numbers of those of them that are known to be small, and no more.
    """

    score: float | None
    outcome: str = ""
    error: str = ""
    message: str = ""
    value: Any = None
    label_logprobs: Annotated[tuple[LogProbability, ...], Field(min_length=1)] | None = None
    unseen_labels: tuple[int, ...] = ()


def error_counts(cells: Collection[tuple[CellKey, Cell]], names: Sequence[str] | Mapping[int, str]) -> list[ErrorCount]:
    """Count the cells that raised, by exception type and outcome, most frequent first; examples have these names."""
    groups: dict[tuple[str, str], list[tuple[int, str, str]]] = defaultdict(list)
    for (fingerprint, example), cell in cells:
        if cell.error:
            groups[cell.error, cell.outcome].append((example, fingerprint, cell.message))
    errors = [
        ErrorCount(
            type=name,
            outcome=outcome,
            count=len(group),
            message=min(group)[2],
            examples=[names[example] for example in sorted({example for example, *_ in group})[:5]],
        )
        for (name, outcome), group in groups.items()
    ]
    return sorted(errors, key=lambda error: (-error.count, error.type, error.outcome))
