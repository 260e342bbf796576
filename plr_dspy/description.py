"""Python values as text that is the same in every process, and differs where they would act differently."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import dspy
from pydantic import BaseModel

from plr_dspy.splits import value_key

ACCESS = re.compile(
    r"(^|_)(key|secret|password|token|url|endpoint|credentials?)$"
    r"|^(api_base|callbacks|history|cache|timeout|headers|extra_headers)$"
)
"""Names of what does not shape an answer: how something is reached, secrets, records of what was called."""

LM_ACCESS = re.compile(ACCESS.pattern + r"|retries$|region|^aws_|^azure_|^vertex_")
"""The same among the arguments of an LM."""

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""In the repr of objects that have none of their own."""

DEEPEST = 8

LIBRARIES = ("builtins.", "dspy.", "logging.", "numpy.", "pydantic.", "torch.", "threading.")


def is_part(name: str, value: Any) -> bool:
    """Whether a module's attribute is part of what it does; its sub-modules are told elsewhere."""
    return not (name.startswith("_") or ACCESS.search(name) or isinstance(value, dspy.Module))


class Describer:
    """Describes functions by their code and what they close over, objects by their public attributes."""

    def __init__(self) -> None:
        self._under_way: list[int] = []

    def describe(self, value: Any) -> str:
        """The value as text."""
        if id(value) in self._under_way or len(self._under_way) > DEEPEST:
            return f"<{type(value).__qualname__}>"
        self._under_way.append(id(value))
        try:
            return self._describe(value)
        except Exception:  # of the value's own: it cannot be told from others of its class
            return f"<{type(value).__qualname__}>"
        finally:
            self._under_way.pop()

    def _describe(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return repr(value)
        if isinstance(value, CodeType):
            return self._all(_code_parts(value))
        if isinstance(value, FunctionType):
            cells = [_contents(cell) for cell in value.__closure__ or ()]
            return self._all([value.__code__, value.__defaults__, value.__kwdefaults__, *cells])
        if isinstance(value, (staticmethod, classmethod)):
            return self.describe(value.__func__)
        if isinstance(value, property):
            return self._all([value.fget, value.fset])
        if isinstance(value, MethodType):
            return self._all([value.__func__, value.__self__])
        if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, ModuleType):
            return self._all([value.__qualname__, value.__self__])
        if isinstance(value, partial):
            return self._all([value.func, value.args, value.keywords])
        if isinstance(value, (type, ModuleType, BuiltinFunctionType)):
            return self._named(value)
        if isinstance(value, (set, frozenset)):
            return "{" + ",".join(sorted(map(self.describe, value))) + "}"
        if isinstance(value, dspy.Example):
            return self._mapping(dict(value.items()))
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, (list, tuple)):
            return self._all(value)
        return self._object(value)

    def _all(self, values: Any) -> str:
        return "[" + ",".join(map(self.describe, values)) + "]"

    def _mapping(self, values: Mapping[Any, Any]) -> str:
        return (
            "{" + ",".join(sorted(f"{self.describe(k)}:{self.describe(v)}" for k, v in values.items())) + "}"
        )

    def _named(self, value: Any) -> str:
        """A class, a module or a function: its name, and of a class that is no library's what it defines."""
        name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
        if isinstance(value, type(dspy.Signature)):
            fields = {k: [repr(f.annotation), f.json_schema_extra] for k, f in value.fields.items()}
            return self._all([value.instructions, fields, list(fields)])
        if not inspect.isclass(value) or name.startswith(LIBRARIES):
            return name
        defined: dict[str, Any] = {}
        for base in reversed(value.__mro__):
            if not f"{base.__module__}.".startswith(LIBRARIES):
                defined |= {k: v for k, v in vars(base).items() if not _is_bookkeeping(k)}
        return name + self._mapping(defined)

    def _object(self, value: Any) -> str:
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, dspy.BaseLM):
            arguments = {k: v for k, v in value.kwargs.items() if not LM_ACCESS.search(k)}
            return self._all([name, value.model, value.model_type, arguments])
        if isinstance(value, dspy.Predict):
            return self._all([name, value.signature, list(value.demos), value.config, value.lm])
        if isinstance(value, BaseModel):
            return name + self._mapping(dict(value))
        if isinstance(value, logging.Logger):
            return name + value.name
        if hasattr(value, "__wrapped__"):  # functools.lru_cache and its like
            return name + self.describe(value.__wrapped__)
        if callable(getattr(value, "tolist", None)):  # arrays and tensors
            return name + self.describe(value.tolist())
        if callable(getattr(value, "to_dict", None)):  # data frames
            return name + self.describe(value.to_dict())
        slots = [k for base in kind.__mro__ for k in getattr(base, "__slots__", ()) if hasattr(value, k)]
        state = {**{k: getattr(value, k) for k in slots}, **getattr(value, "__dict__", {})}
        if isinstance(value, Enum) or not state:
            return self._named(kind) + ADDRESS.sub("", value_key(value).decode(errors="replace"))
        public = {k: v for k, v in state.items() if not k.startswith("_") and not ACCESS.search(k)}
        return self._named(kind) + self._mapping(public)


def _is_bookkeeping(name: str) -> bool:
    """Of a class: what Python and DSPy write there, and what holds no behaviour."""
    return name.startswith(("__", "_abc_")) and name not in ("__call__", "__init__")


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _code_parts(code: CodeType) -> Iterator[Any]:
    """What the code does: not its file, lines or the name of the file."""
    yield code.co_code
    yield from (code.co_names, code.co_varnames, code.co_freevars)
    yield from code.co_consts
