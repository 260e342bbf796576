"""What Python objects hold."""

from __future__ import annotations

import contextlib
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
