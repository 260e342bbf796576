"""Texts with their answers, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

LONGEST_SHOWN = 60
"""Most characters of a wrong value that an error message shows."""


class DataError(ValueError):
    """The data cannot be used; the message says why, and what to do."""


class LabelledText(NamedTuple):
    """A text and its answer.

    Attributes:
        text, answer: Both without blanks around them.
        place: The line or row that they come from, for messages.
    """

    text: str
    answer: str
    place: str


def read_fields(fields: Mapping[str, Any], columns: tuple[str, str], place: str) -> LabelledText:
    """Take a text and its answer from the fields of a line or row.

    Args:
        fields: Values by name; all but two are left aside.
        columns: Names of the text and of the answer.
        place: The line or row, for messages.

    Raises:
        DataError: when one of the two is not a string.
    """
    for column in columns:
        if not isinstance(fields[column], str):
            shown = repr(fields[column])
            shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[: LONGEST_SHOWN - 3]}..."
            raise DataError(f"{place}: {column!r} must be a string; got {shown}: mend or remove the row")
    return LabelledText(fields[columns[0]].strip(), fields[columns[1]].strip(), place)
