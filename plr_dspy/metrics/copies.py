"""Functions that copy the user's values, so that a call cannot modify the values of other calls."""

import copy
from collections.abc import Sequence
from typing import Any

import dspy

from plr_dspy.errors import UserTypeError


def own_copy(example: dspy.Example) -> dspy.Example:
    """Return a deep copy of an example."""
    return copy.deepcopy(example)


def own_value(value: Any) -> Any:
    """Return a copy of a field's value, or the value itself if it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:  # User-defined classes may raise any exception.
        return value


def check_copies(name: str, examples: Sequence[dspy.Example]) -> None:
    """Raise a TypeError if an example cannot be copied. In the message, `examples` are called `name`."""
    checked: set[int] = set()  # ids of checked values, because examples may share large values
    for index, example in enumerate(examples):
        for field, value in example.items(include_dspy=True):
            if id(value) not in checked:
                _check_copy(value, f"field {field!r} of {name}[{index}]")
                checked.add(id(value))
        if type(example) is not dspy.Example:
            _check_copy(example, f"{name}[{index}]")


def _check_copy(value: Any, place: str) -> None:
    try:
        copy.deepcopy(value)
    except Exception as error:
        raise UserTypeError(
            f"{place} cannot be copied for each call: it is a {type(value).__name__} ({type(error).__name__}: "
            f"{error}). Pass plain data, or define __deepcopy__ in the class. If the program does not modify the "
            "value, __deepcopy__ may return self."
        ) from error
