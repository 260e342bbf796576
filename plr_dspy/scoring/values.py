"""Conversion of a program's values to JSON and back.

Tags mark types that JSON lacks. Values of unsupported types are refused, and the next run
repeats their calls.
"""

import base64
import copyreg
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PosixPath, WindowsPath
from typing import Any
from uuid import UUID

from pydantic import BaseModel

TAG = "$type"
"""Key of the tag in a dict that encodes a value of a type that JSON lacks."""
SMALLEST_INT = -(2**63)
LARGEST_INT = 2**64 - 1
CONTAINERS: dict[str, Any] = {kind.__name__: kind for kind in (tuple, set, frozenset)}
WRITTEN_AS_TEXT: tuple[Any, ...] = (float, Decimal, UUID, PosixPath, WindowsPath, date, time, datetime)
FROM_TEXT: dict[str, Callable[[str], Any]] = {
    kind.__name__: getattr(kind, "fromisoformat", kind) for kind in WRITTEN_AS_TEXT
}
"""Inverse of `str` for each type that is written as text, by type name."""


class Unwritable(TypeError):
    """An error raised if a value cannot be written as JSON and read back unchanged."""


class Unreadable(LookupError):
    """An error raised if a stored value's class is missing or has changed its fields."""


class ValueCodec:
    """A codec that writes values as JSON data and reads them back, so that prompts show them unchanged.

    Subclasses of supported types are refused. Pydantic models, dataclasses, enums and named
    tuples are supported if their class is in `classes`; files can load no others. Time zones
    are reduced to their offset.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        kinds = set(classes)
        num_named = Counter(map(_name, kinds))
        self._classes = {_name(kind): kind for kind in kinds if num_named[_name(kind)] == 1}

    def encode(self, value: Any) -> Any:
        """Encode a value as JSON data.

        Raises:
            Unwritable: If the value cannot be read back equal.
        """
        try:
            return self._encode(value)
        except RecursionError:
            raise Unwritable("a value that is nested too deeply or contains itself") from None

    def decode(self, data: Any) -> Any:
        """Decode a value from JSON data.

        Raises:
            Unreadable: If a class is missing or has changed.
            ValueError: If `encode` did not write the data.
        """
        if isinstance(data, list):
            return [self.decode(part) for part in data]
        if not isinstance(data, dict):
            return data
        if TAG not in data:
            return {key: self.decode(part) for key, part in data.items()}
        try:
            return self._decode(data[TAG], data["of"])
        except (KeyError, TypeError, AttributeError, ArithmeticError, NotImplementedError) as error:
            raise ValueError(f"a value of type {data[TAG]!r} cannot be read ({error!r})") from error

    def _encode(self, value: Any) -> Any:
        """Encode a value according to its exact type."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            # Replies may contain a lone surrogate, which UTF-8 cannot encode.
            return value if _is_unicode(value) else _tagged("str", value.encode("utf-8", "surrogatepass").hex())
        if kind is int:
            return value if SMALLEST_INT <= value <= LARGEST_INT else _tagged("int", hex(value))
        if kind is float and math.isfinite(value):
            return value
        if kind is list:
            return [self._encode(part) for part in value]
        if kind is dict:
            return self._encode_dict(value)
        if kind in CONTAINERS.values():
            return _tagged(kind.__name__, [self._encode(part) for part in value])
        if kind is bytes:
            return _tagged("bytes", base64.b64encode(value).decode())
        if kind is timedelta:
            return _tagged("timedelta", [value.days, value.seconds, value.microseconds])
        if kind in WRITTEN_AS_TEXT and str(FROM_TEXT[kind.__name__](str(value))) == str(value):
            return _tagged(kind.__name__, str(value))
        return self._encode_object(value)

    def _encode_dict(self, value: Mapping[Any, Any]) -> Any:
        """Encode a dict; as a list of pairs if JSON cannot hold its keys."""
        if TAG not in value and all(type(key) is str and _is_unicode(key) for key in value):
            return {key: self._encode(part) for key, part in value.items()}
        return _tagged("dict", [[self._encode(key), self._encode(part)] for key, part in value.items()])

    def _encode_object(self, value: Any) -> Any:
        """Encode an object whose class was supplied, if an equal object can be rebuilt."""
        kind = type(value)
        name = _name(kind)
        try:
            arguments, state = _parts_of(value)
            is_equal = _are_equal(_rebuild(kind, arguments, state), value)
        except Exception:  # The class's own code may raise any exception.
            is_equal = False
        if self._classes.get(name) is not kind or not is_equal:
            raise Unwritable(f"a {name}")
        return _tagged("object", [name, self._encode(arguments), self._encode(state)])

    def _decode(self, tag: str, content: Any) -> Any:
        """Decode a tagged value."""
        match tag:
            case "tuple" | "set" | "frozenset":
                return CONTAINERS[tag](map(self.decode, content))
            case "str":
                return bytes.fromhex(content).decode("utf-8", "surrogatepass")
            case "int":
                return int(content, 16)
            case "bytes":
                return base64.b64decode(content)
            case "timedelta":
                return timedelta(*content)
            case "dict":
                return {self.decode(key): self.decode(part) for key, part in content}
            case "object":
                name, arguments, state = content
                return self._decode_object(name, self.decode(arguments), self.decode(state))
        return FROM_TEXT[tag](content)

    def _decode_object(self, name: str, arguments: list[Any], state: Any) -> Any:
        """Rebuild an object of a supplied class."""
        kind = self._classes.get(name)
        if kind is None:
            raise Unreadable(f"the program has no class {name}")
        try:
            return _rebuild(kind, arguments, state)
        except Exception as error:
            raise Unreadable(f"the class {name} has changed ({error})") from error


def _tagged(tag: str, content: Any) -> dict[str, Any]:
    """Return JSON data with a tag for its type."""
    return {TAG: tag, "of": content}


def _is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _parts_of(value: Any) -> tuple[list[Any], Any]:
    """Return the arguments of `__new__` and the state of an object, as pickle does."""
    if isinstance(value, Enum):
        return [value.value], None
    reduced: tuple[Any, ...] = (*value.__reduce_ex__(2), None, None, None)
    make, arguments, state, items, pairs = reduced[:5]
    if make is not copyreg.__newobj__ or items is not None or pairs is not None:  # type: ignore[attr-defined]
        raise TypeError("the object has contents besides its fields")
    return list(arguments[1:]), state


def _rebuild(kind: Any, arguments: list[Any], state: Any) -> Any:
    """Rebuild an object from its state, without calling `__init__`."""
    if issubclass(kind, Enum):
        return kind(*arguments)
    value = kind.__new__(kind, *arguments)
    contents = state["__dict__"] if issubclass(kind, BaseModel) else state
    if dataclasses.is_dataclass(kind):
        names = {field.name for field in dataclasses.fields(kind)}
    else:
        names = set(getattr(kind, "model_fields", ()))
    if not names <= set(contents or ()):
        raise ValueError("its fields differ")
    if hasattr(value, "__setstate__"):
        value.__setstate__(state)
    elif state is not None:
        vars(value).update(state)
    return value


def _are_equal(rebuilt: Any, value: Any) -> bool:
    """Return whether two objects have equal attributes and, if they define equality, are equal."""
    if getattr(rebuilt, "__dict__", None) != getattr(value, "__dict__", None):
        return False
    has_equality = type(value).__eq__ is not object.__eq__  # type: ignore[comparison-overlap]
    return not has_equality or bool(rebuilt == value)
