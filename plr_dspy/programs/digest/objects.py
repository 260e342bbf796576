"""What Python objects hold."""

from __future__ import annotations

import contextlib
import copyreg
from collections.abc import Iterator
from typing import Any

PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types of values that hold no other."""


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object itself, in slots too; no code of the object's runs."""
    held: dict[str, Any] = {}
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError, KeyError):  # not set, or of a private name
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
    except Exception:  # of the object's own
        return []
    return [list(part) if isinstance(part, Iterator) else part for part in parts]
