"""The outcome of one program call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

CellKey: TypeAlias = tuple[str, int]
"""Fingerprint of a prompt, and index of an example."""

WRONG, FAILED = "counted as wrong", "not scored"
"""Outcomes of a cell without a score."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The outcome of one program call.

    Attributes:
        score: As the metric gave it; None if there was an exception.
        outcome: `WRONG`, `FAILED`, or empty.
        error: Class name of the exception.
        message: First line of its message.
        value: JSON data, where the call was not made for a score.
        label_logprobs: Of all labels that the program might have answered with, where the call told them.
        unseen_labels: Numbers of those of them that are known to be small, and no more.
    """

    score: float | None
    outcome: str = ""
    error: str = ""
    message: str = ""
    value: Any = None
    label_logprobs: tuple[float, ...] | None = None
    unseen_labels: tuple[int, ...] = ()
