"""Describes Python values by texts that are the same in every process, and differ where values act differently."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from functools import cached_property
from random import Random
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import dspy
import numpy as np
import torch
from pydantic import BaseModel

from plr_dspy.programs.digest.bytecode import behaviour, global_names
from plr_dspy.programs.digest.digests import digest_of_array, digest_of_texts
from plr_dspy.programs.digest.libraries import is_library, is_pythons_own
from plr_dspy.programs.digest.objects import PLAIN, attributes, pickled_parts
from plr_dspy.programs.digest.resources import is_resource
from plr_dspy.programs.splits import value_key

LM_ACCESS = re.compile(
    r"(^|_)(key|secret|password|token|url|endpoint|credentials?)$|retries$|region|^aws_|^azure_|^vertex_"
    r"|^(api_base|cache|timeout|headers|extra_headers)$",
    re.IGNORECASE,
)
"""Names of a model's arguments that say how it is reached, and do not shape its answers."""

ACCESS = {"api_key", "api_base", "base_url", "headers", "extra_headers", "timeout", "cache"}
"""Attributes by which objects of installed packages reach a service; the user's own objects may mean more by them."""

GLOBAL_KEY = re.compile(r"(^|_)api_key$", re.IGNORECASE)
"""Names of the user's global variables that can only be a key to a service."""

RECORDS = {"callbacks", "history"}
"""Attributes that DSPy gives its objects to watch and to record calls."""

DERIVED = {"corpus_embeddings", "index"}
"""Attributes that DSPy's retrievers compute from a corpus, never twice to the last bit."""

ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
"""The place in memory that Python writes for objects that have no text of their own."""

DEEPEST = 8
"""Of values that lie deeper than this inside others, only the class is named."""


def digest(value: Any) -> str:
    """Digest a value and the user's code that it needs: `#` and 64 bits in hexadecimal, the same in every process."""
    describer = Describer()
    texts = [describer.describe(value)]
    texts += [f"{name}: {describer.describe(known)}" for name, known in describer.globals().items()]
    return "#" + digest_of_texts(texts)[:16]


def public_attributes(value: Any) -> dict[str, Any]:
    """Collect the attributes that decide what an object does.

    Private ones are left out, what is computed from the others, what DSPy records, and of a library's objects how they
    reach a service. The user's own attributes count whatever they are called: an `answer_key` is no key.
    """
    kind = type(value)
    left_out = set(ACCESS) if is_library(kind.__module__) else set()
    if any(base.__module__.partition(".")[0] == "dspy" for base in kind.__mro__):
        left_out |= RECORDS
    if isinstance(value, dspy.retrievers.Embeddings):
        left_out |= DERIVED
    return {
        name: part
        for name, part in attributes(value).items()
        if not (name.startswith("_") or name in left_out)
        and not isinstance(getattr(kind, name, None), cached_property)
    }


class Describer:
    """Describes functions by their code and what they close over, objects by their public attributes.

    Global variables of the user's that the code reads are not described in its place, but gathered: see `globals`.
    """

    def __init__(self) -> None:
        self._depth = 0
        # By id, with the values themselves: an id stays theirs as long as they live.
        self._known: dict[int, tuple[Any, str]] = {}
        self._read: dict[tuple[str, str], Any] = {}
        self._written: set[tuple[str, str]] = set()

    def describe(self, value: Any) -> str:
        """Describe a value by a short text, which is made once: objects hold one another in many ways."""
        if type(value) in PLAIN:
            return hex(value) if type(value) is int else repr(value)  # Python writes no very long decimals.
        text = f"<{type(value).__qualname__}>"
        if id(value) not in self._known and self._depth <= DEEPEST:
            self._known[id(value)] = value, text  # A value that holds itself finds this.
            self._depth += 1
            with suppress(Exception):  # Of the value's own: it cannot be told from others of its class.
                self._known[id(value)] = value, self._joined(self._parts(value))
            self._depth -= 1
        return self._known.get(id(value), (value, text))[1]

    def globals(self) -> dict[str, Any]:
        """Collect by name the global variables, functions and classes of the user's that the described code reads.

        Those that such code writes itself are left out: counters, caches made on demand.
        """
        seen: set[tuple[str, str]] = set()
        while new := [key for key in self._read if key not in seen]:
            seen.update(new)
            for key in new:
                self.describe(self._read[key])  # Its code may read others.
        return {
            f"{name} of {module}": value
            for (module, name), value in sorted(self._read.items(), key=lambda read: read[0])
            if (module, name) not in self._written
        }

    def _joined(self, parts: Any) -> str:
        """Describe a list, set or dict of values by one text; order counts in lists alone. A text stays itself."""
        if isinstance(parts, str):
            return parts
        if isinstance(parts, Mapping):
            texts = sorted(f"{self.describe(name)}:{self.describe(part)}" for name, part in parts.items())
            return f"{{{digest_of_texts(texts)}}}"
        if isinstance(parts, (set, frozenset)):
            return f"{{{digest_of_texts(sorted(map(self.describe, parts)))}}}"
        return f"[{digest_of_texts(map(self.describe, parts))}]"

    def _parts(self, value: Any) -> Any:
        """Take a value apart into what tells it from others: a text, or a list, set or dict of simpler values."""
        match value:
            case bool() | int() | float() | str() | bytes():
                return [type(value).__qualname__, repr(value)]
            case list() | tuple() | deque() | dict() | set() | frozenset():
                return value
            case dspy.Example():
                return dict(value.items())
            case CodeType():
                return behaviour(value)
            case FunctionType():
                return self._function(value)
            case MethodType():
                return [value.__func__, value.__self__]
            case BuiltinFunctionType() if not isinstance(value.__self__, ModuleType):
                return [value.__qualname__, value.__self__]
            case ModuleType() | BuiltinFunctionType():
                return _name(value)
            case staticmethod() | classmethod():
                return [value.__func__]
            case property():
                return [value.fget, value.fset]
            case type():
                return _class(value)
            case _:
                return _object(value)

    def _function(self, function: FunctionType) -> list[Any]:
        """Take a function apart into its code and what it closes over; of a library's, the name stands for the code."""
        cells = [_contents(cell) for cell in function.__closure__ or ()]
        rest = [function.__defaults__, function.__kwdefaults__, *cells]
        if is_library(function.__module__):
            return [_name(function), *rest]
        names = global_names(function.__code__)
        module = function.__globals__.get("__name__", "")
        self._written |= {(module, name) for name in names.written}
        for name in sorted(names.read & function.__globals__.keys()):
            self._gather(module, name, function.__globals__[name], names.all)
        return [function.__code__, *rest]

    def _gather(self, module: str, name: str, value: Any, names: set[str]) -> None:
        """Note a global variable that code reads; of a module of the user's, what code takes from it."""
        if GLOBAL_KEY.search(name) or (module, name) in self._read:
            return
        if not isinstance(value, ModuleType):
            self._read[module, name] = value
        elif not is_library(value.__name__):
            for attribute in sorted(names & vars(value).keys() - {name}):
                self._gather(value.__name__, attribute, vars(value)[attribute], names - {name})


def _class(kind: type) -> list[Any]:
    """Take a class apart into its name, and what it and its bases define that is no library's."""
    if isinstance(kind, type(dspy.Signature)):
        signature: Any = kind
        fields = {k: [repr(f.rebuild_annotation()), f.json_schema_extra] for k, f in signature.fields.items()}
        return [signature.instructions, fields, list(fields)]
    defined: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if not is_library(base.__module__):
            defined |= {k: v for k, v in vars(base).items() if not _is_bookkeeping(k)}
    return [_name(kind), defined]


def _object(value: Any) -> list[Any]:
    """Take an object apart into its class, and what it holds as far as that decides what it does."""
    kind = type(value)
    if isinstance(value, (dspy.BaseLM, dspy.Embedder)):
        given = value.kwargs if isinstance(value, dspy.BaseLM) else value.default_kwargs
        arguments = {name: part for name, part in given.items() if not LM_ACCESS.search(name)}
        return [_name(kind), value.model, getattr(value, "model_type", None), arguments]
    if getattr(kind, "supports_decision_requests", None) is True:  # A client, which keeps what it was asked.
        return [_name(kind), getattr(value, "model", None)]
    if isinstance(value, dspy.Predict):
        return [_name(kind), value.signature, list(value.demos), value.config, value.fields, value.lm]
    if isinstance(value, BaseModel):
        return [_name(kind), dict(value)]
    if hasattr(value, "__wrapped__"):  # A functools.lru_cache is one.
        return [_name(kind), value.__wrapped__]
    if isinstance(value, (np.ndarray, torch.Tensor)) and (text := digest_of_array(value)):
        return [_name(kind), text]
    for method in ("tolist", "to_list", "to_dict") if is_library(kind.__module__) else ():
        if callable(getattr(kind, method, None)):  # Numbers, columns and tables have one of these.
            return [_name(kind), getattr(value, method)()]
    if isinstance(value, Random) or (is_resource(value) and not isinstance(value, dspy.Module)):
        return [_name(kind)]  # What random numbers come next, calls decide.
    if is_pythons_own(kind) and (parts := pickled_parts(value)):
        return [_name(kind), *parts]
    if isinstance(value, Enum) or not attributes(value):
        return [kind, ADDRESS.sub("", value_key(value).decode(errors="replace"))]
    return [kind, public_attributes(value)]


def _name(value: Any) -> str:
    """Name a class, function or module together with the module that defines it."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"


def _is_bookkeeping(name: str) -> bool:
    """Tell whether an attribute of a class is what Python and DSPy write there, and holds no behaviour."""
    return name.startswith(("__", "_abc_")) and name not in ("__call__", "__init__")


def _contents(cell: Any) -> Any:
    """Read a variable that a function closes over; it is None before it is set."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
