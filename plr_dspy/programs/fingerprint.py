"""Compute digests of programs, metrics and examples, to detect changes that affect scores.

Digests are equal in every process with the same version of Python. They cover a function's
code, defaults, closure and global variables, and an object's class and public attributes.
Code of installed packages is identified by name. Settings for connecting to a service, such
as keys and addresses, are left out.
"""

import dis
import pickle
import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType

import dspy
import joblib
from pydantic import BaseModel

from plr_dspy.dspy_compat import COMPILED
from plr_dspy.programs.copying import attributes, is_language_model

ATOMS = (type(None), bool, int, float, str, bytes)
PLAIN = (*ATOMS, list, tuple, dict, set, frozenset)
# Names of settings for connecting to a model, which do not affect scores.
ACCESS = re.compile(r"key|secret|password|token$|credential|url|api_base|endpoint|region|headers|timeout|retries|cache")
SECRET = re.compile(r"api_key|secret|password|token$|credential|headers")
# Attributes of DSPy objects that do not affect scores, or differ by rounding errors.
IGNORED = ("callbacks", "history", "corpus_embeddings", "index")


def digest(value: object) -> str:
    """Return a value's digest: `#` and 16 hexadecimal digits."""
    return _Digests().of(value)


def digest_of_program(program: dspy.Module, predictors: list[dspy.Predict]) -> str:
    """Return a digest that tells a program apart from similar ones.

    Unlike `digest`, it covers private attributes that hold plain values, and the addresses of
    models. The default model's address is left out, so that runs can resume when its server
    has moved.
    """
    return _Digests(tells_apart=True).of([program, predictors])


class _Digests:
    """Computes digests of nested values, as `digest_of_program` does if `tells_apart`."""

    def __init__(self, *, tells_apart: bool = False) -> None:
        self._tells_apart = tells_apart
        # Keep the values, because Python may reuse the id of a deleted one.
        self._known: dict[int, tuple[object, str]] = {}

    def of(self, value: object) -> str:
        name = _name(type(value))
        if type(value) in ATOMS:
            return _hash([name, value])
        if id(value) in self._known:
            return self._known[id(value)][1]
        self._known[id(value)] = (value, name)  # A value may contain itself.
        try:
            result = _hash([name, self._content(value)])
        except Exception:  # User attributes may raise, and some objects cannot be pickled.
            result = name
        self._known[id(value)] = (value, result)
        return result

    def _content(self, value: object) -> object:
        if isinstance(value, (set, frozenset)):
            return sorted(map(self.of, value))
        parts = self._parts(value)
        if isinstance(parts, dict):
            return {self._atom(key): self._atom(part) for key, part in parts.items()}
        return [self._atom(part) for part in parts]

    def _atom(self, value: object) -> object:
        return value if type(value) in ATOMS else self.of(value)

    def _parts(self, value: object) -> dict[object, object] | list[object]:
        """Return the parts that distinguish a value from other values of its class."""
        if isinstance(value, FunctionType):
            return _parts_of_function(value)
        if isinstance(value, type(dspy.Signature)):
            fields = [[name, repr(f.rebuild_annotation()), f.json_schema_extra] for name, f in value.fields.items()]
            return [value.instructions, fields]
        if isinstance(value, type):
            return _parts_of_class(value)
        if isinstance(value, dspy.Predict):
            demos = [dict(demo.items()) for demo in value.demos]
            facts = getattr(getattr(value, "retrieval", None), "facts", None)
            return [type(value), value.signature, demos, facts, value.config, value.fields, value.lm]
        if is_language_model(value) or isinstance(value, dspy.Embedder):
            settings = getattr(value, "kwargs", getattr(value, "default_kwargs", {}))
            counts_address = self._tells_apart and value is not dspy.settings.lm
            ignored = SECRET if counts_address else ACCESS
            counted = {name: part for name, part in settings.items() if not ignored.search(name)}
            return [getattr(value, "model", None), getattr(value, "model_type", None), counted]
        if isinstance(value, (dict, dspy.Example)):
            return dict(value.items())
        if isinstance(value, BaseModel):
            return dict(value)
        if isinstance(value, (list, tuple)):
            return list(value)
        if isinstance(value, Enum):
            return [value.name, value.value]
        if isinstance(value, partial):
            return [value.func, value.args, value.keywords]
        if isinstance(value, MethodType):
            return [value.__func__, value.__self__]
        if hasattr(type(value), "__array__") or type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
            return [pickle.dumps(value)]
        return self._parts_of_object(value)

    def _parts_of_object(self, value: object) -> dict[object, object]:
        kind = type(value)
        is_of_dspy = any(base.__module__.startswith("dspy.") for base in kind.__mro__)
        is_of_library = is_library(kind.__module__)
        parts: dict[object, object] = {"": kind}
        for name, part in attributes(value).items():
            if name.startswith("_"):
                is_told_apart = self._tells_apart and not is_of_library and type(part) in PLAIN
                is_counted = is_told_apart and name != COMPILED and not SECRET.search(name)
            elif is_of_dspy:
                is_counted = name not in IGNORED
            else:
                is_counted = not is_of_library or (type(part) in ATOMS and not ACCESS.search(name))
            if is_counted:
                parts[name] = part
        return parts


def _parts_of_function(function: FunctionType) -> list[object]:
    """Return a function's code, its defaults and the variables that it may read."""
    code: object = _name(function)
    variables: dict[str, object] = {}
    if not is_library(function.__module__):
        codes = list(_nested_codes(function.__code__))
        code = list(map(_parts_of_code, codes))
        for part in codes:
            variables |= _global_variables(part, function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != type(cell)():  # A cell may be empty.
            variables[name] = cell.cell_contents
    return [code, function.__defaults__, function.__kwdefaults__, variables]


def _parts_of_code(code: CodeType) -> list[object]:
    """Return a code's content, without line numbers and nested functions."""
    constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
    return [code.co_code, code.co_names, code.co_varnames, constants]


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of all functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)


def _global_variables(code: CodeType, namespace: dict[str, object]) -> dict[str, object]:
    """Return the global variables that code reads; of a user's module, the attributes."""
    variables: dict[str, object] = {}
    for step in dis.get_instructions(code):
        if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME") or step.argval not in namespace:
            continue
        value = namespace[step.argval]
        if isinstance(value, ModuleType):
            members = {} if is_library(value.__name__) else vars(value)
            value = [members[name] for name in code.co_names if name in members]
        variables[step.argval] = value
    return variables


def _parts_of_class(kind: type) -> dict[object, object]:
    """Return a class's name, and its members that no library defines."""
    parts: dict[object, object] = {"": _name(kind)}
    members: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if not is_library(base.__module__):
            members |= vars(base)
    for name, member in members.items():
        if name in ("__call__", "__init__") or not name.startswith(("__", "_abc_")):
            # Static methods, properties and cached properties wrap a function.
            for holder in ("__func__", "fget", "func"):
                member = getattr(member, holder, member)
            parts[name] = member
    return parts


def is_library(module: str | None) -> bool:
    """Return whether a module belongs to Python or an installed package."""
    package = (module or "").partition(".")[0]
    if package == "__main__":
        return False
    if package in ("plr_dspy", "dspy") or package in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module or "") or sys.modules.get(package), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _name(value: object) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _hash(content: object) -> str:
    return f"#{joblib.hash(content)[:16]}"
