"""Reads what Python objects hold."""

from __future__ import annotations

import contextlib
import copyreg
from collections.abc import Iterator
from typing import Any

PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types of values that hold no other."""


def attributes(value: Any) -> dict[str, Any]:
    """Collect the attributes of an object itself, in slots too, without running code of the object's."""
    held: dict[str, Any] = {}
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(
                AttributeError, KeyError
            ):  # The slot is not set, or its name is private.
                held[name] = vars(base)[name].__get__(value, base)
    held.pop("__dict__", None)
    with contextlib.suppress(AttributeError, TypeError):
        held |= object.__getattribute__(value, "__dict__")
    return held


def pickled_parts(value: Any) -> list[Any]:
    """List what pickle would write of an object, such as a path or a pattern; nothing where it would fail."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        parts = reduce(value) if reduce is not None else value.__reduce_ex__(4)
    except Exception:  # This may be any error of the object's own.
        return []
    return [list(part) if isinstance(part, Iterator) else part for part in parts]
