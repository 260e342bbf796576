"""Texts with their answers, wherever they come from."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple


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
            shown = reprlib.repr(fields[column])
            raise DataError(f"{place}: {column!r} must be a string; got {shown}: mend or remove the row")
    return LabelledText(fields[columns[0]].strip(), fields[columns[1]].strip(), place)
