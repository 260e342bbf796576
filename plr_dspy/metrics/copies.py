"""Copies of what users pass: programs and metrics may write to what they get, which no other call must see."""

import copy
from typing import Any

import dspy

IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes})
FLAT = (list, set)  # containers that are copied at once if they hold nothing but such values


def own_copy(example: dspy.Example) -> dspy.Example:
    """Return a copy of an example that shares nothing with it that can be changed."""
    if type(example) is dspy.Example and IMMUTABLE.issuperset(map(type, example.values(include_dspy=True))):
        return example.copy()
    return copy.deepcopy(example)


def own_value(value: Any) -> Any:
    """Return a deep copy of a value, or the value itself if it has none."""
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind in FLAT and IMMUTABLE.issuperset(map(type, value)):
        return kind(value)
    try:
        return copy.deepcopy(value)
    except Exception:  # The value's own code may raise anything.
        return value
