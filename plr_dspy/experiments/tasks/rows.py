"""Texts with their answers, wherever they come from."""

from __future__ import annotations

from typing import NamedTuple


class DataError(ValueError):
    """The data cannot be used; the message says why, and what to do."""


class Row(NamedTuple):
    """A text and its answer.

    Attributes:
        text, answer: Without blanks around them.
        place: Where they stand, for messages.
    """

    text: str
    answer: str
    place: str


def new_row(text: object, answer: object, *, columns: tuple[str, str], place: str) -> Row:
    """A row of two values that must be texts.

    Args:
        text, answer: The values.
        columns: What they are called there.
        place: Where they stand.

    Raises:
        DataError: when one is no text.
    """
    for column, value in zip(columns, (text, answer), strict=True):
        if not isinstance(value, str):
            raise DataError(
                f"{place}: {column!r} must be a string; got {_shown(value)}: mend or remove the row"
            )
    return Row(str(text).strip(), str(answer).strip(), place)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
