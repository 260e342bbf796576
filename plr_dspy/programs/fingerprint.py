"""Fingerprints of programs, metrics and examples: a change that decides scores changes them, in any process.

Functions are known by their source text, their default values, what they close over and the global variables that they
name. Objects are known by their class and their public attributes, and what belongs to an installed package by its
name. Keys and addresses of services do not count.
"""

import ast
import inspect
import logging
import pickle
import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache, cached_property, partial, singledispatch
from random import Random
from textwrap import dedent
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import dspy
import joblib
import numpy as np
from pydantic import BaseModel

from plr_dspy.programs.copying import attributes, is_language_model

logger = logging.getLogger(__name__)

PLAIN = (type(None), bool, int, float, str, bytes)
DATA = (*PLAIN, dict, list, tuple, set, frozenset, deque, np.ndarray, dspy.Example, BaseModel, dspy.Embedder, partial)

# Names by which LMs and objects of libraries are told how to reach a service. The `answer_key` of a user is no key.
ACCESS = re.compile(
    r"(^|_)(key|secret|password|token|url|endpoint|credentials?)$|retries$|region|^aws_|^azure_|^vertex_"
    r"|^(api_base|cache|timeout|headers|extra_headers)$",
    re.IGNORECASE,
)
# Names of global variables that can only be such a key.
GLOBAL_KEY = re.compile(r"(^|_)api_key$", re.IGNORECASE)
# Attributes of DSPy's objects that record calls, or are computed from others and never twice to the last bit.
NOT_DECIDING = ("callbacks", "history", "corpus_embeddings", "index")
# The class alone stands for values that are nested more deeply.
DEEPEST = 30


def digest(value: Any) -> str:
    """Return `#` and 16 hexadecimal digits that stand for a value, the same in every process."""
    return _Digests().of(value)


def describe(program: dspy.Module, metric: Any, models: Sequence[Any], adapter: Any) -> dict[str, Any]:
    """Return what decides the scores of a program, by names for messages.

    Whole numbers, bools, None and the names of classes stand for themselves. Digests, which begin with `#`, stand for
    everything else, as it may be long or secret.
    """
    values = dict(program.named_sub_modules())
    values["the metric"] = metric
    if isinstance(metric, dspy.Module):
        for name, module in metric.named_sub_modules():
            values[name.replace("self", "the metric", 1)] = module
    values["the adapter"] = adapter
    modules = [value for value in values.values() if isinstance(value, dspy.Module)]
    digests = _Digests(modules)
    facts: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(value, FunctionType):
            facts[f"the class of {name}"] = type(value).__qualname__
        parts = _parts(value)
        if not isinstance(parts, dict):
            parts = {"{}": parts}
        for part, content in parts.items():
            is_short = type(content) in (bool, type(None)) or (type(content) is int and abs(content) < 2**53)
            facts[part.replace("{}", name)] = content if is_short else digests.of(content)
    facts["the settings of its models"] = digests.of(list(models))
    return facts


def is_library(module: str | None) -> bool:
    """Return whether a module of this name belongs to Python or an installed package, and not to the user."""
    package = (module or "").partition(".")[0]
    if package == "__main__":
        return False
    if package in ("plr_dspy", "dspy") or package in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module or "") or sys.modules.get(package), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


class _Digests:
    """Digests of nested values, where it makes no difference whether equal parts are one object.

    The class alone stands for the `named` modules, which are described on their own, inside other values.
    """

    def __init__(self, named: Sequence[dspy.Module] = ()) -> None:
        # The values are kept with their digests: Python may give the id of a deleted value to another.
        self._known: dict[int, tuple[Any, str]] = {id(module): (module, _name(type(module))) for module in named}
        self._depth = 0

    def of(self, value: Any) -> str:
        """Return the digest of a value."""
        name = _name(type(value))
        if type(value) in PLAIN:
            return _hash([name, value])
        if id(value) in self._known:
            return self._known[id(value)][1]
        if self._depth > DEEPEST:
            return name
        self._known[id(value)] = (value, name)  # It may contain itself.
        self._depth += 1
        try:
            result = _hash([name, self._content(value)])
        except Exception:  # Users' attributes may raise, and what runs cannot be pickled.
            result = name
        self._depth -= 1
        self._known[id(value)] = (value, result)
        return result

    def _content(self, value: Any) -> Any:
        """Return the parts of a value, with digests in the place of parts that have parts themselves."""
        if isinstance(value, (set, frozenset)):
            return sorted(self.of(part) for part in value)
        parts = _parts(value)
        if isinstance(parts, dict):
            return {self._plain(key): self._plain(part) for key, part in parts.items()}
        return [self._plain(part) for part in parts]

    def _plain(self, value: Any) -> Any:
        return value if type(value) in PLAIN else self.of(value)


@singledispatch
def _parts(value: Any) -> dict[Any, Any] | list[Any]:
    """Return what distinguishes a value from others of its class.

    Keys of objects and functions are the names of the parts in messages, with `{}` for the name of the whole.
    """
    kind = type(value)
    if is_language_model(value):
        return _settings(value)
    if hasattr(kind, "__array__"):
        array = np.asarray(value)
        return [str(array.dtype), list(array.shape), array.tolist() if array.dtype.hasobject else array.tobytes()]
    own = attributes(value)
    if "__wrapped__" in own:  # A functools.lru_cache has nothing else.
        return [own["__wrapped__"]]
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names:
        return [pickle.dumps(value)]
    of_library = is_library(kind.__module__)
    of_dspy = any(base.__module__.partition(".")[0] == "dspy" for base in kind.__mro__)
    is_closed = of_library and not isinstance(value, dspy.Module)
    parts: dict[Any, Any] = {"the code of {}": kind}
    for name, part in own.items():
        is_computed = isinstance(getattr(kind, name, None), cached_property)
        if name.startswith("_") or is_computed or (of_dspy and name in NOT_DECIDING):
            continue
        if of_library and ACCESS.search(name):
            continue
        if not is_closed or isinstance(part, (*DATA, FunctionType)) or is_language_model(part):
            parts[f"{{}}.{name}"] = part
    return parts


@_parts.register(dict)
def _(value: dict[Any, Any]) -> dict[Any, Any]:
    return value


@_parts.register(list)
@_parts.register(tuple)
@_parts.register(deque)
def _(value: Sequence[Any]) -> list[Any]:
    return list(value)


@_parts.register(str)
@_parts.register(bytes)
@_parts.register(int)
@_parts.register(float)
def _(value: Any) -> list[Any]:
    return [repr(value)]


@_parts.register(Enum)
def _(value: Enum) -> list[Any]:
    return [value.name, value.value]


@_parts.register(ModuleType)
def _(value: ModuleType) -> list[Any]:
    return [value.__name__]


@_parts.register(Random)
def _(value: Random) -> list[Any]:
    return []  # The calls decide which numbers come next.


@_parts.register(dspy.Example)
def _(value: dspy.Example) -> dict[Any, Any]:
    return dict(value.items())


@_parts.register(BaseModel)
def _(value: BaseModel) -> dict[Any, Any]:
    parts: dict[Any, Any] = {f"{{}}.{name}": part for name, part in dict(value).items()}
    if callable(value):
        parts["the code of {}"] = type(value)
    return parts


@_parts.register(partial)
def _(value: partial[Any]) -> list[Any]:
    return [value.func, value.args, value.keywords]


@_parts.register(MethodType)
@_parts.register(BuiltinFunctionType)
def _(value: Any) -> list[Any]:
    owner = getattr(value, "__self__", None)
    return [_name(value), getattr(value, "__func__", None), None if isinstance(owner, ModuleType) else owner]


@_parts.register(dspy.Embedder)
def _(value: dspy.Embedder) -> list[Any]:
    return _settings(value)


def _settings(value: Any) -> list[Any]:
    """Return the name of a model and its settings, without those that say how to reach it."""
    given = getattr(value, "kwargs", getattr(value, "default_kwargs", {}))
    arguments = {name: part for name, part in given.items() if not ACCESS.search(name)}
    return [getattr(value, "model", None), getattr(value, "model_type", None), arguments]


@_parts.register(type(dspy.Signature))
def _(value: Any) -> list[Any]:
    fields = [[name, repr(f.rebuild_annotation()), f.json_schema_extra] for name, f in value.fields.items()]
    return [value.instructions, fields]


@_parts.register(dspy.Predict)
def _(value: dspy.Predict) -> dict[Any, Any]:
    try:
        state = value.dump_state()
    except Exception:  # Pydantic may be unable to dump a value in a demo.
        state = {"demos": value.demos}
    demos = state.pop("demos")
    further = {name: part for name, part in state.items() if name not in ("signature", "traces", "train", "lm")}
    return {
        "the code of {}": type(value),
        "the signature of {}": value.signature,
        "the demos of {}": list(demos),
        "the settings of {}": [further, value.config, value.lm],
    }


@_parts.register(FunctionType)
def _(value: FunctionType) -> dict[Any, Any]:
    if is_library(value.__module__):
        code = _name(value)
        variables = {}
    else:
        code = _source(value.__code__)
        variables = _global_variables(value)
    for number, default in enumerate(value.__defaults__ or ()):
        variables[f"default {number}"] = default
    variables |= value.__kwdefaults__ or {}
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        if cell != type(cell)():  # A cell may be empty.
            variables[name] = cell.cell_contents
    return {"the code of {}": [code], **{f"{name} of {{}}": part for name, part in variables.items()}}


@_parts.register(type)
def _(value: type) -> dict[Any, Any]:
    """Return the name of a class and what it and its bases define, unless they are a library's."""
    members: Mapping[str, Any] = {}
    for base in reversed(value.__mro__):
        if not is_library(base.__module__):
            members = {**members, **vars(base)}
    parts = {"{}": _name(value)}
    for name, member in members.items():
        if name in ("__call__", "__init__") or not name.startswith(("__", "_abc_")):
            # Static methods, properties and cached properties have their function in an attribute.
            for holder in ("__func__", "fget", "func"):
                member = getattr(member, holder, member)
            parts[f"{{}}.{name}"] = member
    return parts


def _global_variables(function: FunctionType) -> dict[str, Any]:
    """Return the global variables that a function may read, without keys.

    Of a module of the user's, these are the attributes that the function names.
    """
    names = [name for name in _names(function.__code__) if not GLOBAL_KEY.search(name)]
    variables: dict[str, Any] = {}
    for name in names:
        value = function.__globals__.get(name)
        if not isinstance(value, ModuleType):
            if name in function.__globals__:
                variables[name] = value
        elif not is_library(value.__name__):
            for attribute in names:
                part = vars(value).get(attribute)
                if part is not None and not isinstance(part, ModuleType):
                    variables[f"{name}.{attribute}"] = part
    return variables


def _names(code: CodeType) -> dict[str, None]:
    """Return the names that some code reads, also within the functions that it defines, each once."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


@cache  # The file may be edited while the program runs.
def _source(code: CodeType) -> str:
    """Return the source text of a function without its comments; its name if there is no source."""
    try:
        if code.co_name == "<lambda>":
            # The lines around a lambda may hold arguments that have nothing to do with it.
            tree = ast.parse("".join(inspect.findsource(code)[0]))
            lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
            texts = [ast.unparse(node) for node in lambdas if node.lineno == code.co_firstlineno]
            return "\n".join(texts)
        return ast.unparse(ast.parse(dedent(inspect.getsource(code))))
    except (OSError, SyntaxError, ValueError):
        if not code.co_name.startswith("__"):  # Python makes some methods of dataclasses.
            logger.warning("%s has no source text, so a log_dir will not notice changes of its code", code.co_name)
        return code.co_name


def _name(value: Any) -> str:
    """Return the name of a class, function or module, and of the module that defines it."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _hash(content: Any) -> str:
    return f"#{joblib.hash(content)[:16]}"
