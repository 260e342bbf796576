"""Values of a program as JSON, and back.

A tag stands for what JSON lacks. Values of other types are refused: their calls are made again by the next run.
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
"""The key of a dict that stands for a value which JSON lacks."""
SMALLEST_INT = -(2**63)
LARGEST_INT = 2**64 - 1
CONTAINERS: dict[str, Any] = {kind.__name__: kind for kind in (tuple, set, frozenset)}
WRITTEN_AS_TEXT: tuple[Any, ...] = (float, Decimal, UUID, PosixPath, WindowsPath, date, time, datetime)
FROM_TEXT: dict[str, Callable[[str], Any]] = {
    kind.__name__: getattr(kind, "fromisoformat", kind) for kind in WRITTEN_AS_TEXT
}
"""What makes a value of the text that `str` makes of it."""


class Unwritable(TypeError):
    """A value cannot be written as JSON and read back equal."""


class Unreadable(LookupError):
    """A written value needs a class that was not supplied, or that has other fields now."""


class ValueCodec:
    """Writes values as JSON data, and reads them back, so that prompts show them as before.

    Only exact types are written. Objects of pydantic models, dataclasses, enums and named tuples are written and read
    if their class was supplied. A file cannot name any other class. Time zones are reduced to their offset.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        kinds = set(classes)
        num_named = Counter(map(_name, kinds))
        self._classes = {_name(kind): kind for kind in kinds if num_named[_name(kind)] == 1}

    def encode(self, value: Any) -> Any:
        """Return JSON data that stands for a value, or raise `Unwritable`."""
        try:
            return self._encoded(value)
        except RecursionError:
            raise Unwritable("a value that contains itself") from None

    def decode(self, data: Any) -> Any:
        """Return the value that JSON data stands for.

        Raises:
            Unreadable: If a class is missing, or has changed.
            ValueError: If it is no data of this class.
        """
        if isinstance(data, list):
            return [self.decode(part) for part in data]
        if not isinstance(data, dict):
            return data
        if TAG not in data:
            return {key: self.decode(part) for key, part in data.items()}
        try:
            return self._decoded(data[TAG], data["of"])
        except (KeyError, TypeError, AttributeError, ArithmeticError, NotImplementedError) as error:
            raise ValueError(f"a value of type {data[TAG]!r} cannot be read ({error!r})") from error

    def _encoded(self, value: Any) -> Any:
        """Return JSON data, by the exact type of the value."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            # Replies may contain half of a surrogate pair, which no file in UTF-8 can hold.
            return value if _is_unicode(value) else _tagged("str", value.encode("utf-8", "surrogatepass").hex())
        if kind is int:
            return value if SMALLEST_INT <= value <= LARGEST_INT else _tagged("int", hex(value))
        if kind is float and math.isfinite(value):
            return value
        if kind is list:
            return [self._encoded(part) for part in value]
        if kind is dict:
            return self._encoded_dict(value)
        if kind in CONTAINERS.values():
            return _tagged(kind.__name__, [self._encoded(part) for part in value])
        if kind is bytes:
            return _tagged("bytes", base64.b64encode(value).decode())
        if kind is timedelta:
            return _tagged("timedelta", [value.days, value.seconds, value.microseconds])
        if kind in WRITTEN_AS_TEXT and str(FROM_TEXT[kind.__name__](str(value))) == str(value):
            return _tagged(kind.__name__, str(value))
        return self._encoded_object(value)

    def _encoded_dict(self, value: Mapping[Any, Any]) -> Any:
        """Return JSON data of a dict: pairs if JSON cannot hold its keys."""
        if TAG not in value and all(type(key) is str and _is_unicode(key) for key in value):
            return {key: self._encoded(part) for key, part in value.items()}
        return _tagged("dict", [[self._encoded(key), self._encoded(part)] for key, part in value.items()])

    def _encoded_object(self, value: Any) -> Any:
        """Return JSON data of an object whose class was supplied, if the same data makes an equal object."""
        kind = type(value)
        name = _name(kind)
        try:
            arguments, state = _parts_of(value)
            is_equal = _are_equal(_rebuilt(kind, arguments, state), value)
        except Exception:  # The class's own code may raise anything.
            is_equal = False
        if self._classes.get(name) is not kind or not is_equal:
            raise Unwritable(f"a {name}")
        return _tagged("object", [name, self._encoded(arguments), self._encoded(state)])

    def _decoded(self, tag: str, content: Any) -> Any:
        """Return the value of a tag."""
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
                return self._decoded_object(name, self.decode(arguments), self.decode(state))
        return FROM_TEXT[tag](content)

    def _decoded_object(self, name: str, arguments: list[Any], state: Any) -> Any:
        """Return the object of a class with a state."""
        kind = self._classes.get(name)
        if kind is None:
            raise Unreadable(f"the class {name} is not among those of the program")
        try:
            return _rebuilt(kind, arguments, state)
        except Exception as error:
            raise Unreadable(f"the class {name} has changed ({error})") from error


def _tagged(tag: str, content: Any) -> dict[str, Any]:
    """Return the JSON data of a value that JSON lacks."""
    return {TAG: tag, "of": content}


def _is_unicode(text: str) -> bool:
    """Return whether a file in UTF-8 can hold the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _parts_of(value: Any) -> tuple[list[Any], Any]:
    """Return what makes an object, and its state, as pickle takes them."""
    if isinstance(value, Enum):
        return [value.value], None
    reduced: tuple[Any, ...] = (*value.__reduce_ex__(2), None, None, None)
    make, arguments, state, items, pairs = reduced[:5]
    if make is not copyreg.__newobj__ or items is not None or pairs is not None:  # type: ignore[attr-defined]
        raise TypeError("it is more than its fields")
    return list(arguments[1:]), state


def _rebuilt(kind: Any, arguments: list[Any], state: Any) -> Any:
    """Return an object of a class with this state, without a call of the class's constructor."""
    if issubclass(kind, Enum):
        return kind(*arguments)
    rebuilt = kind.__new__(kind, *arguments)
    contents = state["__dict__"] if issubclass(kind, BaseModel) else state
    if dataclasses.is_dataclass(kind):
        names = {field.name for field in dataclasses.fields(kind)}
    else:
        names = set(getattr(kind, "model_fields", ()))
    if not names <= set(contents or ()):
        raise ValueError("it has other fields")
    if hasattr(rebuilt, "__setstate__"):
        rebuilt.__setstate__(state)
    elif state is not None:
        vars(rebuilt).update(state)
    return rebuilt


def _are_equal(rebuilt: Any, value: Any) -> bool:
    """Return whether two objects are equal; without an equality of their own, whether they contain the same."""
    if getattr(rebuilt, "__dict__", None) != getattr(value, "__dict__", None):
        return False
    has_equality = type(value).__eq__ is not object.__eq__  # type: ignore[comparison-overlap]
    return not has_equality or bool(rebuilt == value)
