"""Python values as text that is the same in every process, and differs where they would act differently."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import dspy
import numpy as np
import torch
from pydantic import BaseModel

from plr_dspy.programs.digest.bytecode import read_code
from plr_dspy.programs.digest.digests import digest_of_array, digest_of_plain, digest_of_text
from plr_dspy.programs.digest.libraries import is_library
from plr_dspy.programs.digest.objects import PLAIN, attributes
from plr_dspy.programs.digest.resources import is_resource
from plr_dspy.programs.splits import value_key

ACCESS = re.compile(
    r"(^|_)(key|secret|password|token|url|endpoint|credentials?)$"
    r"|^(api_base|callbacks|history|cache|timeout|headers|extra_headers)$",
    re.IGNORECASE,
)
"""Names of what does not shape an answer: how something is reached, secrets, records of what was called."""

LM_ACCESS = re.compile(ACCESS.pattern + r"|retries$|region|^aws_|^azure_|^vertex_", re.IGNORECASE)
"""The same among the arguments of an LM."""

DERIVED = {"corpus_embeddings", "index"}
"""What DSPy's retrievers compute from a corpus, never twice to the last bit."""

ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
"""In the repr of objects that have none of their own."""

DEEPEST = 8

LONGEST = 200
"""Characters of an object's description, of which longer ones are digested."""


def is_part(name: str, value: Any) -> bool:
    """Whether a module's attribute is part of what it does; its sub-modules are told elsewhere."""
    return not (name.startswith("_") or ACCESS.search(name) or isinstance(value, dspy.Module))


def digest(value: Any) -> str:
    """`#` and 64 bits in hexadecimal, the same in every process, of a value and the user's code that it needs."""
    describer = Describer()
    texts = [describer.describe(value)]
    texts += [f"{name}: {describer.describe(known)}" for name, known in describer.globals().items()]
    return "#" + digest_of_text("\n".join(texts))[:16]


class Describer:
    """Describes functions by their code and what they close over, objects by their public attributes.

    Global variables of the user's that the code reads are not described in its place, but gathered: see `globals`.
    """

    def __init__(self) -> None:
        self._under_way: list[int] = []
        self._known: dict[
            int, tuple[Any, str]
        ] = {}  # with the values, whose ids stay theirs as long as they live
        self._read: dict[tuple[str, str], Any] = {}
        self._written: set[tuple[str, str]] = set()

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

    def globals(self) -> dict[str, Any]:
        """The global variables, functions and classes of the user's that all code described so far reads, by name.

        Those that such code writes itself are left out: counters, caches made on demand.
        """
        seen: set[tuple[str, str]] = set()
        while new := [key for key in self._read if key not in seen]:
            seen.update(new)
            for key in new:
                self.describe(self._read[key])  # whose code may read others
        return {
            f"{name} of {module}": value
            for (module, name), value in sorted(self._read.items(), key=lambda read: read[0])
            if (module, name) not in self._written
        }

    def _describe(self, value: Any) -> str:
        if type(value) in PLAIN:
            return repr(value)
        if isinstance(value, (bool, int, float, str, bytes)):
            return f"{type(value).__qualname__} {value!r}"
        if isinstance(value, (list, tuple, deque)):
            return digest_of_plain(list(value)) or self._all(value)
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, (set, frozenset)):
            return "{" + ",".join(sorted(map(self.describe, value))) + "}"
        if isinstance(value, dspy.Example):
            return self._mapping(dict(value.items()))
        if isinstance(value, CodeType):
            code = read_code(value)
            return self._all([[[name, used] for name, used in code.steps], code.arguments])
        if isinstance(value, MethodType):
            return self._all([value.__func__, value.__self__])
        if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, ModuleType):
            return self._all([value.__qualname__, value.__self__])
        if isinstance(value, (ModuleType, BuiltinFunctionType)):
            return _name(value)
        return self._once(value, self._composed)

    def _once(self, value: Any, describe: Callable[[Any], str]) -> str:
        """The text, short, and made once: objects hold one another in many ways."""
        if id(value) not in self._known:
            text = describe(value)
            self._known[id(value)] = value, text if len(text) <= LONGEST else digest_of_text(text)
        return self._known[id(value)][1]

    def _composed(self, value: Any) -> str:
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, (staticmethod, classmethod)):
            return self.describe(value.__func__)
        if isinstance(value, property):
            return self._all([value.fget, value.fset])
        if isinstance(value, partial):
            return self._all([value.func, value.args, value.keywords])
        if isinstance(value, type):
            return self._class(value)
        return self._object(value)

    def _all(self, values: Any) -> str:
        return "[" + ",".join(map(self.describe, values)) + "]"

    def _mapping(self, values: Mapping[Any, Any]) -> str:
        if {*map(type, values)} == {str} and PLAIN.issuperset(map(type, values.values())):
            names = sorted(values)
            if text := digest_of_plain([part for name in names for part in (name, values[name])]):
                return "{" + text + "}"
        pairs = (f"{self.describe(name)}:{self.describe(value)}" for name, value in values.items())
        return "{" + ",".join(sorted(pairs)) + "}"

    def _function(self, function: FunctionType) -> str:
        """What it does and closes over; of a library's, its name and what it closes over."""
        cells = [_contents(cell) for cell in function.__closure__ or ()]
        rest = [function.__defaults__, function.__kwdefaults__, *cells]
        if is_library(function.__module__):
            return _name(function) + self._all(rest)
        code = read_code(function.__code__)
        module = function.__globals__.get("__name__", "")
        self._written |= {(module, name) for name in code.writes}
        for name in sorted(code.reads & function.__globals__.keys()):
            self._gather(module, name, function.__globals__[name], code.names)
        return self._all([function.__code__, *rest])

    def _gather(self, module: str, name: str, value: Any, names: frozenset[str]) -> None:
        """Note a global variable that code reads; of a module of the user's, what code takes from it."""
        if ACCESS.search(name) or (module, name) in self._read:
            return
        if not isinstance(value, ModuleType):
            self._read[module, name] = value
        elif not is_library(value.__name__):
            for attribute in sorted(names & vars(value).keys() - {name}):
                self._gather(value.__name__, attribute, vars(value)[attribute], names - {name})

    def _class(self, kind: type) -> str:
        """A class: its name, and what it and its bases define that is no library's."""
        if isinstance(kind, type(dspy.Signature)):
            signature: Any = kind
            fields = {k: [repr(f.annotation), f.json_schema_extra] for k, f in signature.fields.items()}
            return self._all([signature.instructions, fields, list(fields)])
        defined: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            if not is_library(base.__module__):
                defined |= {k: v for k, v in vars(base).items() if not _is_bookkeeping(k)}
        return _name(kind) + (self._mapping(defined) if defined else "")

    def _object(self, value: Any) -> str:
        kind = type(value)
        name = _name(kind)
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
        if isinstance(value, (np.ndarray, torch.Tensor)) and (text := digest_of_array(value)):
            return name + text
        for method in ("tolist", "to_list", "to_dict") if is_library(kind.__module__) else ():
            if callable(getattr(kind, method, None)):  # numbers, columns and tables
                return name + self.describe(getattr(value, method)())
        if is_resource(value) and not isinstance(value, dspy.Module):
            return name
        state = attributes(value)
        if isinstance(value, Enum) or not state:
            return self._class(kind) + ADDRESS.sub("", value_key(value).decode(errors="replace"))
        left_out = DERIVED if isinstance(value, dspy.retrievers.Embeddings) else set()
        public = {k: v for k, v in state.items() if k not in left_out and _is_public(kind, k)}
        return self._class(kind) + self._mapping(public)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"


def _is_public(kind: type, name: str) -> bool:
    """Whether an attribute is part of an object: not private, not how it is reached, not made from the others."""
    derived = isinstance(getattr(kind, name, None), cached_property)
    return not (name.startswith("_") or ACCESS.search(name) or derived)


def _is_bookkeeping(name: str) -> bool:
    """Of a class: what Python and DSPy write there, and what holds no behaviour."""
    return name.startswith(("__", "_abc_")) and name not in ("__call__", "__init__")


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
