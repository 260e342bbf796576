"""Values of a program as JSON, and back.

A tag stands for what JSON lacks. Values of other types are refused: their calls are made again by the next run.
"""

import base64
import dataclasses
import math
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
FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "float": float,
    "Decimal": Decimal,
    "UUID": UUID,
    "PosixPath": PosixPath,
    "WindowsPath": WindowsPath,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "datetime": datetime.fromisoformat,
}
"""What makes a value of the text that `str` makes of it."""
WRITTEN_AS_TEXT = frozenset({float, Decimal, UUID, PosixPath, WindowsPath, date, time, datetime})


class Unwritable(TypeError):
    """A value cannot be written as JSON and read back equal."""


class Unreadable(LookupError):
    """A written value needs a class that was not supplied, or that has other fields now."""


class ValueCodec:
    """Writes values as JSON data, and reads them back, so that prompts show them as before.

    Only exact types are written: an object of a subclass may contain more than its base does. Objects of pydantic
    models, dataclasses, enums and named tuples are written and read if their class was supplied. A file cannot name
    any other class. Time zones are reduced to their offset.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._classes: dict[str, type] = {}
        ambiguous = set()
        for kind in set(classes):
            if _name(kind) in self._classes:
                ambiguous.add(_name(kind))
            self._classes[_name(kind)] = kind
        for name in ambiguous:
            del self._classes[name]

    def encode(self, value: Any) -> Any:
        """Return JSON data that stands for a value, or raise `Unwritable`."""
        try:
            return self._encoded(value)
        except RecursionError:
            raise Unwritable("a value that contains itself") from None

    def decode(self, data: Any) -> Any:
        """Return the value that JSON data stands for.

        Raises:
            Unreadable: if a class is missing, or has changed.
            ValueError: if it is no data of this class.
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
        if self._classes.get(_name(kind)) is not kind:
            raise Unwritable(f"a {_name(kind)}")
        try:
            state = _state_of(value)
            is_equal = _are_equal(_rebuilt(kind, state), value)
        except Exception:  # The class's own code may raise anything.
            is_equal = False
        if not is_equal:
            raise Unwritable(f"a {_name(kind)}")
        return _tagged("object", [_name(kind), self._encoded(state)])

    def _decoded(self, tag: str, content: Any) -> Any:
        """Return the value of a tag."""
        if tag in CONTAINERS:
            return CONTAINERS[tag](map(self.decode, content))
        if tag in FROM_TEXT:
            return FROM_TEXT[tag](content)
        if tag == "str":
            return bytes.fromhex(content).decode("utf-8", "surrogatepass")
        if tag == "int":
            return int(content, 16)
        if tag == "bytes":
            return base64.b64decode(content)
        if tag == "timedelta":
            return timedelta(*content)
        if tag == "dict":
            return {self.decode(key): self.decode(part) for key, part in content}
        if tag == "object":
            name, state = content
            return self._decoded_object(name, self.decode(state))
        raise ValueError(f"values have no type {tag!r}")

    def _decoded_object(self, name: str, state: Any) -> Any:
        """Return the object of a class with a state."""
        kind = self._classes.get(name)
        if kind is None:
            raise Unreadable(f"the class {name} is not among those of the program")
        try:
            rebuilt = _rebuilt(kind, state)
            if _state_of(rebuilt).keys() != state.keys():
                raise ValueError("it has other fields")
        except Exception as error:
            raise Unreadable(f"the class {name} has changed ({error})") from error
        return rebuilt


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


def _state_of(value: Any) -> dict[str, Any]:
    """Return what an object contains, by the names of its fields."""
    kind = type(value)
    if isinstance(value, Enum):
        return {"member": value.name, "value": value.value}
    if isinstance(value, BaseModel):
        state: dict[str, Any] = dict(value.__getstate__())
        contents = state.pop("__dict__")
        for name, part in contents.items():
            state[f"field {name}"] = part
        return state
    if dataclasses.is_dataclass(kind) and not issubclass(kind, (dict, list, set, str, bytes, int, float)):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return dict(zip(kind._fields, value, strict=True))
    raise Unwritable(f"a {_name(kind)}")


def _rebuilt(kind: type, state: Mapping[str, Any]) -> Any:
    """Return an object of a class with this state, without a call of the class's constructor."""
    if issubclass(kind, Enum):
        member = kind[state["member"]]
        if member.value != state["value"]:
            raise ValueError("it has other values")
        return member
    if issubclass(kind, tuple):
        return tuple.__new__(kind, state.values())
    rebuilt = kind.__new__(kind)
    if issubclass(kind, BaseModel):
        contents: dict[str, Any] = {}
        model_state: dict[str, Any] = {"__dict__": contents}
        for name, part in state.items():
            if name.startswith("field "):
                contents[name.removeprefix("field ")] = part
            else:
                model_state[name] = part
        if not kind.model_fields.keys() <= contents.keys():
            raise ValueError("it has other fields")
        rebuilt.__setstate__(model_state)  # type: ignore[attr-defined]
        return rebuilt
    for name, part in state.items():
        object.__setattr__(rebuilt, name, part)
    return rebuilt


def _are_equal(rebuilt: Any, value: Any) -> bool:
    """Return whether two objects are equal; without an equality of their own, whether they contain the same."""
    if isinstance(value, Enum):
        return rebuilt is value
    if getattr(rebuilt, "__dict__", None) != getattr(value, "__dict__", None):
        return False
    has_equality = type(value).__eq__ is not object.__eq__  # type: ignore[comparison-overlap]
    return not has_equality or bool(rebuilt == value)
