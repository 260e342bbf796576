"""Recognizes objects that stand for something that runs or is open, and so have no lasting description."""

from __future__ import annotations

from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from plr_dspy.programs.digest.libraries import is_library, is_pythons_own
from plr_dspy.programs.digest.objects import PLAIN, attributes, pickled_parts

DEEPEST = 3
"""Attributes are looked through so deep: a thread has an event, in which a condition is, which has a lock."""

PICKLED_OTHERWISE = {"functools", "weakref"}
"""Modules of Python whose objects run nothing, though some cannot be pickled."""


def is_resource(value: Any) -> bool:
    """Tell whether a value is a lock, thread, queue, generator or the like, or an object of a library that holds one.

    Objects of the user's own classes are none: their other attributes count.
    """
    kind = type(value)
    if is_pythons_own(kind):
        return _runs(value, 0)
    return is_library(kind.__module__) and any(_runs(part, 0) for part in attributes(value).values())


def _runs(value: Any, depth: int) -> bool:
    """Tell whether an object of Python's own cannot be pickled, or holds another such one."""
    kind = type(value)
    if kind in PLAIN or not is_pythons_own(kind) or depth > DEEPEST or kind.__module__ in PICKLED_OTHERWISE:
        return False
    if kind.__module__ == "builtins":
        return issubclass(kind, (GeneratorType, CoroutineType, AsyncGeneratorType))
    if held := attributes(value):
        return any(_runs(part, depth + 1) for part in held.values())
    return not pickled_parts(value)
