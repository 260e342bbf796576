"""Copy users' values, so that a program or metric that modifies them does not affect other calls."""

import copy
from collections.abc import Sequence
from typing import Any

import dspy

from plr_dspy.errors import UserTypeError


def own_copy(example: dspy.Example) -> dspy.Example:
    """Return a copy of an example that shares nothing mutable with it."""
    return copy.deepcopy(example)


def own_value(value: Any) -> Any:
    """Return a copy of a field's value, or the value itself if it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:  # The value's own code may raise anything.
        return value


def check_copies(name: str, examples: Sequence[dspy.Example]) -> None:
    """Raise a TypeError for the first example that cannot be copied; `name` is the argument's."""
    checked: set[int] = set()  # ids of values, because examples may share large ones
    for number, example in enumerate(examples):
        for field, value in example.items(include_dspy=True):
            if id(value) not in checked:
                _check_copy(
                    value, f"{name}[{number}] must hold values that can be copied; its field {field!r}"
                )
                checked.add(id(value))
        if type(example) is not dspy.Example:
            _check_copy(example, f"{name}[{number}] must be an example that can be copied; it")


def _check_copy(value: Any, what: str) -> None:
    """Raise a TypeError unless a value can be copied."""
    try:
        copy.deepcopy(value)
    except Exception as error:
        raise UserTypeError(
            f"{what} is a {type(value).__name__} ({type(error).__name__}: {error}). Each call gets its own copy: pass "
            "plain data, or define __deepcopy__ in the class, which may return self if the program does not modify it"
        ) from error
