"""Digests of programs, metrics and examples, to detect changes that affect scores.

Digests are the same in every process. They cover a function's source, defaults, closure and
global variables, and an object's class and public attributes. They omit modules that a
function's body imports. Code of installed packages is represented by its name. Connection
settings, such as keys and addresses, are omitted, and so are the results that optimizers store in
programs.
`describe` also covers private attributes of the user's modules, except secrets and attributes that
calls may change. `digest_of_program` covers the private attributes of all of the user's objects,
except secrets. It also covers the addresses of models, except that of the default model,
because two programs may have no other difference.
"""

import ast
import dis
import inspect
import logging
import pickle
import random
import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from enum import Enum
from functools import cache, partial
from textwrap import dedent
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from urllib.parse import urlsplit

import dspy
import joblib
from pydantic import BaseModel

from plr_dspy.dspy_compat import COMPILED
from plr_dspy.programs.attached_results import result_attributes, sub_modules
from plr_dspy.programs.copying import attributes, is_language_model

logger = logging.getLogger(__name__)

ATOMS = (type(None), bool, int, float, str, bytes)
# Names of connection settings. `digest` omits these settings because they do not affect scores.
ACCESS = re.compile(
    r"key|secret|password|token$|credential|url|api_base|endpoint|region|headers|timeout|retries|cache"
)
ADDRESS = re.compile(r"api_base|base_url|endpoint")  # names of settings that contain a server's address
# Names of private attributes that digests omit.
SECRET = re.compile(r"api_key|secret|password|token$|credential")

CONTAINERS = (dict, list, set, deque)
# Types of private attributes that calls may change.
CHANGING = (*CONTAINERS, int, float, date, random.Random)
# Types whose private attributes digests omit, because these repeat other parts or do not affect scores.
WITHOUT_PRIVATE = (
    type,
    FunctionType,
    Enum,
    BaseModel,
    dspy.Example,
    dspy.BaseLM,
    dspy.Embedder,
    *CONTAINERS,
)

# Attributes of DSPy objects that digests omit: they do not affect scores, or vary with rounding errors.
IGNORED = ("callbacks", "history", "corpus_embeddings", "index")


def digest(value: object) -> str:
    """Return a value's digest: `#` and 16 hexadecimal digits, or the class's name if hashing fails."""
    return _Digests().of(value)


def digest_of_program(program: dspy.Module, *others: object) -> str:
    """Return one digest of a program and other values that affect its answers.

    Unlike `digest`, this function includes private attributes, except secrets, and the addresses
    of models. The address of the default model is omitted, so that runs can resume
    after the model's server has moved.
    """
    return _ProgramDigests().of([program, *others])


def describe(
    program: dspy.Module, metric: object, models: Sequence[object], adapter: object
) -> dict[str, str]:
    """Return digests of a program's modules, the metric, the adapter and the models, keyed by name."""
    modules = dict(sub_modules(program))
    facts = {}
    for name, module in modules.items():
        others = [other for other in modules.values() if other is not module]
        facts[name.replace("self", "program", 1)] = _ModuleDigests(others).of(module)
    return {
        **facts,
        "the metric": digest(metric),
        "the adapter": digest(adapter),
        "the models": digest(list(models)),
    }


class _Digests:
    """Digests of nested values. Modules in `by_class` are identified only by their class."""

    def __init__(self, by_class: Sequence[dspy.Module] = ()) -> None:
        # Keep the values, because Python may reuse the id of a deleted value.
        self._known: dict[int, tuple[object, str]] = {
            id(module): (module, _name(type(module))) for module in by_class
        }

    def of(self, value: object) -> str:
        name = _name(type(value))
        if type(value) in ATOMS:
            return _hash([name, value])
        if id(value) in self._known:
            return self._known[id(value)][1]
        self._known[id(value)] = (value, name)  # Prevent endless recursion if the value contains itself.
        try:
            result = _hash([name, self._content(value)])
        except Exception:  # The user's code may raise any exception, and some objects cannot be pickled.
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

    def _parts(self, value: object) -> Mapping[str, object] | dict[object, object] | list[object]:
        return _parts(value)

    def _atom(self, value: object) -> object:
        return value if type(value) in ATOMS else self.of(value)


class _ModuleDigests(_Digests):
    """Digests that also cover private attributes of the user's modules."""

    def _parts(self, value: object) -> Mapping[str, object] | dict[object, object] | list[object]:
        parts = super()._parts(value)
        private_parts = {}
        if not is_library(type(value).__module__) and not isinstance(value, WITHOUT_PRIVATE):
            for name, part in attributes(value).items():
                is_private = name.startswith("_") and name != COMPILED and not SECRET.search(name)
                if is_private and self._covers(value, part):
                    private_parts[name] = part
        if isinstance(parts, dict):
            return {**parts, **private_parts}
        return [*parts, private_parts] if private_parts else parts

    def _covers(self, owner: object, part: object) -> bool:
        """Return whether to cover a private attribute.

        Cover only attributes of modules. Omit those that may change with each call, such as caches,
        counters and random states.
        """
        return isinstance(owner, dspy.Module) and (isinstance(part, bool) or not isinstance(part, CHANGING))


class _ProgramDigests(_ModuleDigests):
    """Digests that also cover all private attributes of the user's objects, and the addresses of model servers."""

    def _parts(self, value: object) -> Mapping[str, object] | dict[object, object] | list[object]:
        parts = super()._parts(value)
        if is_language_model(value) and isinstance(parts, list):
            addresses = _addresses(value)
            return parts if addresses == _addresses(dspy.settings.lm) else [*parts, addresses]
        return parts

    def _covers(self, owner: object, part: object) -> bool:
        return True


def _parts(value: object) -> Mapping[str, object] | dict[object, object] | list[object]:
    """Return the parts of a value that its digest depends on, such as items or attributes."""
    if isinstance(value, FunctionType):
        return _parts_of_function(value)
    if isinstance(value, type(dspy.Signature)):
        fields = [
            [name, repr(f.rebuild_annotation()), f.json_schema_extra] for name, f in value.fields.items()
        ]
        return [value.instructions, fields]
    if isinstance(value, type):
        return _parts_of_class(value)
    if isinstance(value, dspy.Predict):
        demos = [dict(demo.items()) for demo in value.demos]
        facts = getattr(getattr(value, "retrieval", None), "facts", None)
        parts_of_predictor = [
            type(value),
            value.signature,
            demos,
            facts,
            value.config,
            value.fields,
            value.lm,
        ]
        return parts_of_predictor + _added_attributes(value)
    if is_language_model(value) or isinstance(value, dspy.Embedder):
        all_settings = getattr(value, "kwargs", getattr(value, "default_kwargs", {}))
        parts_of_model: list[object] = [
            getattr(value, "model", None),
            getattr(value, "model_type", None),
            _without_access(all_settings),
        ]
        return parts_of_model + _parts_of_engine(value)
    kind = type(value)
    if isinstance(value, (dict, dspy.Example, list, tuple, BaseModel)):
        return [kind, _items(value)] if _has_own_call(kind) else _items(value)
    if isinstance(value, Enum):
        return [value.name, value.value]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if is_library(kind.__module__) and callable(value) and hasattr(value, "__qualname__"):
        if hasattr(value, "__wrapped__") and not is_library(value.__module__):
            return [value.__wrapped__]  # for example, a user's function with `functools.lru_cache`
        return [_name(value)]  # for example, a NumPy function
    if hasattr(kind, "__array__") or kind.__module__.partition(".")[0] in sys.stdlib_module_names:
        return [pickle.dumps(value)]
    is_of_dspy = any(base.__module__.startswith("dspy.") for base in kind.__mro__)
    is_of_package = kind.__module__.startswith("plr_dspy.")
    is_of_library = is_library(kind.__module__) and not is_of_dspy and not is_of_package
    ignored: list[str] = []
    if is_of_dspy:
        ignored += IGNORED
    if isinstance(value, dspy.Module):
        ignored += result_attributes(value)
    parts: dict[str, object] = {"": kind}
    for name, part in attributes(value).items():
        if is_of_library:
            # Other attributes of library objects, such as connections, may differ between processes.
            is_setting = type(part) in ATOMS and not name.startswith("_") and not ACCESS.search(name)
            is_covered = is_setting or hasattr(type(part), "__array__")
        else:
            is_covered = not name.startswith("_") and name not in ignored
        if is_covered:
            parts[name] = part
    return parts


def _items(
    value: Mapping[Any, object] | dspy.Example | Sequence[object] | BaseModel,
) -> dict[Any, object] | list[object]:
    """Return the contents of a container, an example or a pydantic model."""
    if isinstance(value, (dict, dspy.Example)):
        return dict(value.items())
    return dict(value) if isinstance(value, BaseModel) else list(value)


def _has_own_call(kind: type) -> bool:
    """Return whether the user's code defines a class's `__call__`."""
    return any("__call__" in vars(base) and not is_library(base.__module__) for base in kind.__mro__)


def _added_attributes(predictor: dspy.Predict) -> list[object]:
    """Return the public attributes that the user's subclass of `dspy.Predict` adds, as a list of at most one dict."""
    if is_library(type(predictor).__module__):
        return []
    ignored = {*attributes(dspy.Predict(predictor.signature)), *result_attributes(predictor)}
    added = {}
    for name, part in attributes(predictor).items():
        if name not in ignored and not name.startswith("_"):
            added[name] = part
    return [added] if added else []


def _without_access(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that are not connection settings."""
    return {name: part for name, part in settings.items() if not ACCESS.search(name)}


def _own_engine(lm: object) -> object:
    """Return the engine object that was passed to a model, or None if DSPy chooses the engine."""
    engine = getattr(lm, "engine", None)
    return None if isinstance(engine, str) else engine


def _parts_of_engine(lm: object) -> list[object]:
    """Return the class name and the saved settings of a model's own engine, or [] if it has none."""
    engine = _own_engine(lm)
    if engine is None:
        return []
    state: Mapping[str, object] = {}
    # Other attributes, such as counters, may change with each call. Some engines cannot be saved.
    with suppress(Exception):
        state = engine.dump_state()  # type: ignore[attr-defined]
    return [_name(type(engine)), _without_access(state)]


def _addresses(lm: object) -> dict[str, str]:
    """Return the addresses of a model's servers, keyed by setting. Omit user names, passwords and queries."""
    addresses = {}
    for name, setting in {**attributes(_own_engine(lm)), **getattr(lm, "kwargs", {})}.items():
        if ADDRESS.search(name) and isinstance(setting, str):
            address = urlsplit(setting)
            addresses[name] = address.netloc.rpartition("@")[2] + address.path
    return addresses


def _parts_of_function(function: FunctionType) -> dict[str, object]:
    """Return a function's source (or a library function's name) and the values of variables it may read."""
    variables: dict[str, object] = {}
    code = _name(function)
    if not is_library(function.__module__):
        code = _source(function.__code__)
        variables |= _global_variables(function)
    variables |= {
        f"default {number}": default for number, default in enumerate(function.__defaults__ or ())
    }
    variables |= function.__kwdefaults__ or {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != type(cell)():  # Reading the contents of an empty cell raises a ValueError.
            variables[name] = cell.cell_contents
    return {"": code, **variables}


def _parts_of_class(kind: type) -> dict[str, object]:
    """Return a class's name and members. Omit members of library classes and most special methods."""
    parts: dict[str, object] = {"": _name(kind)}
    members: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if not is_library(base.__module__):
            members |= vars(base)
    for name, member in members.items():
        if name in ("__call__", "__init__") or not name.startswith(("__", "_abc_")):
            # Unwrap the functions of static methods, properties and cached properties.
            for holder in ("__func__", "fget", "func"):
                member = getattr(member, holder, member)
            parts[name] = member
    return parts


def _global_variables(function: FunctionType) -> dict[str, object]:
    """Return the global variables that a function uses.

    For each of the user's modules, return only the attributes that the function uses. Omit library modules.
    """
    variables: dict[str, object] = {}
    global_names, attributes = _names(function.__code__)
    for name in global_names & function.__globals__.keys():
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            variables[name] = value
        elif not is_library(value.__name__):
            parts = {attribute: vars(value)[attribute] for attribute in attributes & vars(value).keys()}
            variables |= {
                f"{name}.{part}": member
                for part, member in parts.items()
                if not isinstance(member, ModuleType)
            }
    return variables


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names of the globals that `code` reads, and all names in it except local variables.

    Both sets include names in nested code, such as inner functions.
    """
    global_names = {
        step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    every_name = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_globals, inner_names = _names(constant)
            global_names |= inner_globals
            every_name |= inner_names
    return global_names, every_name


def is_library(module: str | None) -> bool:
    """Return whether a module belongs to the standard library or an installed package."""
    package = (module or "").partition(".")[0]
    if package == "__main__":
        return False
    if package in ("plr_dspy", "dspy") or package in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module or "") or sys.modules.get(package), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


@cache  # Read the source only once, because the file may be edited while the program runs.
def _source(code: CodeType) -> str:
    """Return a function's source without comments, or the function's name if there is no source."""
    try:
        if code.co_name == "<lambda>":
            # A lambda's source lines may contain unrelated code, so keep only the lambdas that start there.
            tree = ast.parse("".join(inspect.findsource(code)[0]))
            lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
            return "\n".join(ast.unparse(node) for node in lambdas if node.lineno == code.co_firstlineno)
        return ast.unparse(ast.parse(dedent(inspect.getsource(code))))
    except (OSError, SyntaxError, ValueError):
        # Methods that Python generates for dataclasses have no source.
        if not code.co_name.startswith("__"):
            logger.warning(
                "%s has no readable source code, so a resumed run cannot detect changes to it: define it in a file",
                code.co_name,
            )
        return code.co_name


def _name(value: object) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _hash(content: object) -> str:
    return f"#{joblib.hash(content)[:16]}"
