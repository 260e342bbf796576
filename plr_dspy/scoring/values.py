"""Values of any type as JSON, and back: tags stand for what JSON lacks, and a caller supplies the classes."""

import base64
import dataclasses
import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
from pydantic import BaseModel
from pydantic_core import TzInfo

PLAIN_KINDS = "biufcSUmM"  # kinds of numpy's types whose values are no objects
TAG = "$type"  # The key of a dict that stands for a value which JSON lacks.
SMALLEST, LARGEST = -(2**63), 2**64 - 1  # whole numbers that a file of JSON holds
AS_TEXT: dict[str, Any] = {kind.__name__: kind for kind in (Decimal, Fraction, UUID)}
AS_TEXT |= {kind.__name__: kind for kind in (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)}
CONTAINERS = {kind.__name__: kind for kind in (tuple, set, frozenset)}


class Unwritable(TypeError):
    """A value cannot be written as JSON and read back equal."""


class Unreadable(LookupError):
    """A written value needs a class that was not supplied, or that has other fields by now."""


class ValueCodec:
    """Writes values as JSON data, and reads them back equal, of the same types.

    Only exact types are written: an object of a subclass may hold more than its base does. Objects of pydantic models,
    dataclasses, enums and named tuples are written and read if their class was supplied. A file names no other class.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._classes: dict[str, type | None] = {}
        for kind in dict.fromkeys(classes):
            name = _name(kind)
            self._classes[name] = None if name in self._classes else kind  # None: The name is ambiguous.

    def encode(self, value: Any) -> Any:
        """Return JSON data that stands for a value, or raise `Unwritable`."""
        try:
            return self._encoded(value)
        except RecursionError:
            raise Unwritable("a value that holds itself") from None

    def decode(self, data: Any) -> Any:
        """Return the value that JSON data stands for; `Unreadable` if a class is missing, ValueError for other data."""
        if isinstance(data, list):
            return [self.decode(part) for part in data]
        if not isinstance(data, dict):
            return data
        if TAG not in data:
            return {key: self.decode(part) for key, part in data.items()}
        try:
            return self._decoded(data[TAG], data)
        except (KeyError, TypeError, AttributeError, ArithmeticError, NotImplementedError) as error:
            raise ValueError(f"a value of type {data[TAG]!r} cannot be read ({error!r})") from error

    def _encoded(self, value: Any) -> Any:
        """Return JSON data, by the exact type of the value."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return value if _is_unicode(value) else _tagged(kind, value.encode("utf-8", "surrogatepass").hex())
        if kind is int:
            return value if SMALLEST <= value <= LARGEST else _tagged(kind, hex(value))
        if kind is float:
            return value if math.isfinite(value) else _tagged(kind, repr(value))
        if kind is list:
            return [self._encoded(part) for part in value]
        if kind is dict:
            return self._encoded_dict(value)
        if kind in CONTAINERS.values():
            return _tagged(kind, [self._encoded(part) for part in value])
        if kind in (bytes, bytearray):
            return _tagged(kind, base64.b64encode(value).decode())
        if kind is complex:
            return _tagged(kind, [self._encoded(value.real), self._encoded(value.imag)])
        if kind in AS_TEXT.values():
            return _tagged(kind, str(value))
        if kind is timedelta:
            return _tagged(kind, [value.days, value.seconds, value.microseconds])
        if kind is date:
            return _tagged(kind, value.isoformat())
        if kind in (datetime, time):
            text = value.replace(tzinfo=None).isoformat()
            return _tagged(kind, [text, value.fold, _encoded_zone(value.tzinfo)])
        if kind is np.ndarray or isinstance(value, np.generic):
            return _encoded_array(value)
        return self._encoded_object(value)

    def _encoded_dict(self, value: Mapping[Any, Any]) -> Any:
        """Return JSON data of a dict; pairs if its keys are no texts."""
        if TAG not in value and all(type(key) is str and _is_unicode(key) for key in value):
            return {key: self._encoded(part) for key, part in value.items()}
        return _tagged(dict, [[self._encoded(key), self._encoded(part)] for key, part in value.items()])

    def _encoded_object(self, value: Any) -> Any:
        """Return JSON data of an object whose class was supplied, if the same data makes an equal object."""
        kind = type(value)
        if self._classes.get(_name(kind)) is not kind:
            raise Unwritable(f"a {_name(kind)}")
        try:
            state = _state_of(value)
            is_equal = _are_equal(_rebuilt(kind, state), value)
        except Unwritable:
            raise
        except Exception:  # Whatever the class's own code raises.
            is_equal = False
        if not is_equal:
            raise Unwritable(f"a {_name(kind)}")
        return {**_tagged(object, self._encoded(state)), "class": _name(kind)}

    def _decoded(self, tag: str, data: Mapping[str, Any]) -> Any:
        """Return the value of a tag."""
        told = data["of"]
        if tag in CONTAINERS:
            return CONTAINERS[tag](map(self.decode, told))
        if tag in AS_TEXT:
            return AS_TEXT[tag](told)
        match tag:
            case "str":
                return bytes.fromhex(told).decode("utf-8", "surrogatepass")
            case "int":
                return int(told, 16)
            case "float":
                return float(told)
            case "complex":
                return complex(*map(self.decode, told))
            case "dict":
                return {self.decode(key): self.decode(part) for key, part in told}
            case "bytes":
                return base64.b64decode(told)
            case "bytearray":
                return bytearray(base64.b64decode(told))
            case "timedelta":
                return timedelta(*told)
            case "date":
                return date.fromisoformat(told)
            case "datetime" | "time":
                text, fold, zone = told
                read = datetime.fromisoformat(text) if tag == "datetime" else time.fromisoformat(text)
                return read.replace(fold=fold, tzinfo=_decoded_zone(zone))
            case "ndarray" | "generic":
                content, dtype_name, shape = told
                dtype = np.dtype(dtype_name)
                # An array of objects would take the bytes of the file for addresses in memory.
                if dtype.kind not in PLAIN_KINDS or dtype.hasobject:
                    raise ValueError(f"arrays must hold plain numbers, texts or times; got the type {dtype_name!r}")
                array = np.ndarray(shape, dtype, base64.b64decode(content)).copy()
                return array if tag == "ndarray" else array[()]
            case "object":
                return self._decoded_object(data["class"], self.decode(told))
        raise ValueError(f"values have no type {tag!r}")

    def _decoded_object(self, name: str, state: Any) -> Any:
        """Return the object of a class with a state."""
        kind = self._classes.get(name)
        if kind is None:
            raise Unreadable(f"the class {name} is not among those of the program and its examples")
        try:
            rebuilt = _rebuilt(kind, state)
            if _state_of(rebuilt).keys() != state.keys():
                raise ValueError("it has other fields")
        except Exception as error:
            raise Unreadable(f"the class {name} has changed ({error})") from error
        return rebuilt


def _tagged(kind: type, told: Any) -> dict[str, Any]:
    """Return the JSON data of a value that JSON lacks."""
    return {TAG: kind.__name__, "of": told}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_unicode(text: str) -> bool:
    """Tell whether a file can hold a text: half of a pair of characters is none."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _encoded_zone(zone: tzinfo | None) -> Any:
    """Return JSON data of a time zone."""
    if zone is None:
        return None
    if type(zone) is ZoneInfo and zone.key is not None:
        return {"zone": zone.key}
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return {"seconds": offset.total_seconds(), "name": name}
    if type(zone) is TzInfo:
        return {"seconds": zone.utcoffset(None).total_seconds()}  # type: ignore[union-attr]
    raise Unwritable(f"a time zone of type {_name(type(zone))}")


def _decoded_zone(data: Any) -> tzinfo | None:
    """Return the time zone that JSON data stands for."""
    if data is None:
        return None
    if "zone" in data:
        return ZoneInfo(data["zone"])
    if "name" in data:
        return timezone(timedelta(seconds=data["seconds"]), *data["name"])
    return TzInfo(data["seconds"])


def _encoded_array(value: Any) -> dict[str, Any]:
    """Return JSON data of an array or a number of numpy's."""
    if value.dtype.kind not in PLAIN_KINDS:
        raise Unwritable(f"an array of dtype {value.dtype}")
    if isinstance(value, (np.bytes_, np.str_)) and np.asarray(value)[()] != value:
        raise Unwritable("a text that ends in null characters, which numpy's arrays lose")
    content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    kind = np.ndarray if type(value) is np.ndarray else np.generic
    return _tagged(kind, [content, value.dtype.str, list(value.shape)])


def _state_of(value: Any) -> dict[str, Any]:
    """Return what an object holds, by the names of its fields."""
    kind = type(value)
    if isinstance(value, Enum):
        return {"member": value.name, "value": value.value}
    if isinstance(value, BaseModel):
        state: dict[str, Any] = dict(value.__getstate__())
        held = {f"field {name}": part for name, part in state.pop("__dict__").items()}
        return {**state, **held}
    if dataclasses.is_dataclass(kind) and not issubclass(kind, (dict, list, set, str, bytes, int, float)):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return dict(zip(kind._fields, value, strict=True))
    raise Unwritable(f"a {_name(kind)}")


def _rebuilt(kind: type, state: Mapping[str, Any]) -> Any:
    """Return an object of a class that holds this state, without a call of the class's constructor."""
    if issubclass(kind, Enum):
        member = kind[state["member"]]
        if member.value != state["value"]:
            raise ValueError("it has other values")
        return member
    if issubclass(kind, tuple):
        return tuple.__new__(kind, state.values())
    rebuilt = kind.__new__(kind)
    if issubclass(kind, BaseModel):
        held = {name.removeprefix("field "): part for name, part in state.items() if name.startswith("field ")}
        if not kind.model_fields.keys() <= held.keys():
            raise ValueError("it has other fields")
        others = {name: part for name, part in state.items() if not name.startswith("field ")}
        rebuilt.__setstate__({**others, "__dict__": held})  # type: ignore[attr-defined]
        return rebuilt
    for name, part in state.items():
        object.__setattr__(rebuilt, name, part)
    return rebuilt


def _are_equal(rebuilt: Any, value: Any) -> bool:
    """Tell whether two objects are equal; of a class without an equality of its own, whether they hold the same."""
    if isinstance(value, Enum):
        return rebuilt is value
    if getattr(rebuilt, "__dict__", None) != getattr(value, "__dict__", None):
        return False
    has_equality = type(value).__eq__ is not object.__eq__  # type: ignore[comparison-overlap]
    return not has_equality or bool(rebuilt == value)
