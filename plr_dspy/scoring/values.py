"""Conversion of a program's values to JSON and back.

Tags mark types that JSON does not have. Values of unsupported types are not written, so the next
run repeats the calls that returned them.
"""

import dataclasses
import json
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter

TAG = "$type"
"""Key of the type tag in the JSON data of values whose types JSON does not have."""
AS_TEXT = "json"
"""Tag of strings and numbers that orjson cannot write unchanged."""
CONTAINERS: dict[str, Any] = {kind.__name__: kind for kind in (tuple, set, frozenset, dict)}
BUILT_IN = frozenset({bytes, date, datetime, time, timedelta, Decimal, UUID, type(Path())})
BYTES = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Unwritable(TypeError):
    """An error raised if a value cannot be written as JSON and read back unchanged."""


class Unreadable(LookupError):
    """An error raised if a stored value's class is missing or has changed."""


class ValueCodec:
    """A codec that encodes values as JSON data, and decodes the data so that prompts stay the same.

    A value is rejected if its class is only a subclass of a supported type. Pydantic models,
    dataclasses, enums and named tuples are supported if their class is in `classes`. A file cannot
    make the codec use any other class. Only the UTC offset of a time zone is kept.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._kinds = {_name(kind): kind for kind in (*BUILT_IN, *classes)}

    def encode(self, value: Any) -> Any:
        """Encode a value as JSON data.

        Raises:
            Unwritable: If `decode()` could not restore an equal value.
        """
        try:
            return self._encode(value)
        except RecursionError:
            raise Unwritable("a value that is nested too deeply or contains itself") from None

    def _encode(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind in (str, int, float):
            return value if _is_json(value) else _tagged(AS_TEXT, json.dumps(value))
        if kind is list:
            return [self._encode(part) for part in value]
        if kind is dict:
            if TAG not in value and all(type(key) is str and _is_json(key) for key in value):
                return {key: self._encode(part) for key, part in value.items()}
            return _tagged(kind.__name__, [self._encode(list(item)) for item in value.items()])
        if kind in CONTAINERS.values():
            return _tagged(kind.__name__, [self._encode(part) for part in value])
        name = _name(kind)
        if self._kinds.get(name) is not kind:
            raise Unwritable(f"a value of type {name}")
        try:
            contents = _contents(value)
        except Exception:  # The class's own code may raise any exception.
            raise Unwritable(f"a value of type {name}") from None
        return _tagged(name, self._encode(contents))

    def decode(self, data: Any) -> Any:
        """Decode a value from JSON data.

        Raises:
            Unreadable: If a class is missing or has changed.
        """
        if isinstance(data, list):
            return [self.decode(part) for part in data]
        if not isinstance(data, dict):
            return data
        if TAG not in data:
            return {key: self.decode(part) for key, part in data.items()}
        tag = data[TAG]
        if tag == AS_TEXT:
            return json.loads(data["of"])
        contents = self.decode(data["of"])
        if tag in CONTAINERS:
            return CONTAINERS[tag](contents)
        if tag not in self._kinds:
            raise Unreadable(f"the program has no class {tag}")
        try:
            return _rebuild(self._kinds[tag], contents)
        except Exception as error:
            raise Unreadable(f"the class {tag} has changed ({error})") from error


def _tagged(tag: str, contents: Any) -> dict[str, Any]:
    return {TAG: tag, "of": contents}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_json(value: str | int | float) -> bool:
    """Return whether orjson can write a value and read it back unchanged. NaN, for example, becomes null."""
    try:
        return bool(orjson.loads(orjson.dumps(value)) == value)
    except TypeError:
        return False


def _contents(value: Any) -> Any:
    """Return the contents that `_rebuild()` needs to make an equal object."""
    if type(value) in BUILT_IN:
        return TypeAdapter(type(value), config=BYTES).dump_json(value).decode()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, BaseModel):
        return value.__getstate__()
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return fields | getattr(value, "__dict__", {})


def _rebuild(kind: Any, contents: Any) -> Any:
    """Rebuild an object from its contents, without calling `__init__` of models and dataclasses."""
    if kind in BUILT_IN:
        return TypeAdapter(kind, config=BYTES).validate_json(contents)
    if issubclass(kind, Enum):
        return kind(contents)
    if issubclass(kind, tuple):
        return kind(*contents)
    value = kind.__new__(kind)
    if issubclass(kind, BaseModel):
        value.__setstate__(contents)
        return value
    missing = [field.name for field in dataclasses.fields(kind) if field.name not in contents]
    if missing:
        raise ValueError(f"the stored value does not have the fields {missing}")
    for name, content in contents.items():
        # Unlike setattr, `object.__setattr__` works for frozen dataclasses.
        object.__setattr__(value, name, content)
    return value
