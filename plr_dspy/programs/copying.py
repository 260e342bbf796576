"""Tools that copy a program without its models and data, or find the models of a program."""

import copy
import sys
import threading
from collections import defaultdict
from functools import partial
from types import MethodType
from typing import Any

import dspy

from plr_dspy.dspy_compat import BaseModule

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
CONTAINERS = (list, tuple, set, frozenset)
# Maximum size of a module's list, dict or set that is copied. Copies share larger ones without modules.
LARGEST_COPIED = 1_000


class ProgramFactory:
    """A factory that copies a program for each candidate and never changes the original.

    `Module.deepcopy` would also copy corpora, indexes, and each LM with its history. This factory
    copies only modules, their small lists, dicts and sets, and all objects that refer directly or
    indirectly to a module. Copies share everything else.
    """

    def __init__(self, program: dspy.Module) -> None:
        self._program = program
        self._shared = _shared_parts(program)

    def build(self, demos: dict[str, list[Any]]) -> dspy.Module:
        """Return a copy of the program with the given demos.

        `demos` maps predictor names to demos. Predictors not in `demos` keep their own demos.
        """
        program: dspy.Module = copy.deepcopy(self._program, dict(self._shared))
        for name, predictor in program.named_predictors():
            predictor.demos = list(demos.get(name, predictor.demos))
        return program


def language_models(program: Any) -> list[Any]:
    """Return the LMs that a program or another object refers to, directly or indirectly."""
    values, _ = _reachable(program)
    return [value for value in values.values() if is_language_model(value)]


def is_language_model(value: Any) -> bool:
    """Return whether a value is an LM or another client that handles DSPy's decision requests."""
    return (
        isinstance(value, dspy.BaseLM) or getattr(type(value), "supports_decision_requests", None) is True
    )


def attributes(value: Any) -> dict[str, Any]:
    """Return an object's instance attributes, or an empty dict if they cannot be read."""
    try:
        return dict(vars(value))
    except Exception:  # Proxy objects may raise any exception.
        return {}


def _shared_parts(program: dspy.Module) -> dict[int, Any]:
    """Return the objects that all copies of a program share, keyed by `id`."""
    copied = _copied_parts(program)
    shared: dict[int, Any] = {}
    for value in copied.values():
        for part in _parts(value):
            if type(part) not in ATOMS and id(part) not in copied:
                shared[id(part)] = part
    return shared


def _copied_parts(program: dspy.Module) -> dict[int, Any]:
    """Return the objects that are copied with a program, keyed by `id`.

    These are the program's modules, their small lists, dicts and sets, and all objects that refer
    directly or indirectly to a module.
    """
    values, holders = _reachable(program)
    modules = {key: value for key, value in values.items() if isinstance(value, BaseModule)}
    copied = dict(modules)
    pending = list(modules)
    while pending:
        for holder in holders[pending.pop()]:
            if holder not in copied:
                copied[holder] = values[holder]
                pending.append(holder)
    for module in modules.values():
        # Copy collections that optimizers or calls may modify in place, such as demos, traces and caches.
        for value in vars(module).values():
            if type(value) in (list, dict, set) and len(value) <= LARGEST_COPIED:
                copied[id(value)] = value
    return copied


def _reachable(program: Any) -> tuple[dict[int, Any], dict[int, list[int]]]:
    """Return the objects that are reachable from a program, and the ids of each object's holders.

    An object's holders are the objects that refer to it directly. Both dicts are keyed by `id`.
    """
    values: dict[int, Any] = {id(program): program}
    holders: dict[int, list[int]] = defaultdict(list)
    pending: list[Any] = [program]
    while pending:
        value = pending.pop()
        for part in _parts(value):
            if type(part) in ATOMS:
                continue
            holders[id(part)].append(id(value))
            if id(part) not in values:
                values[id(part)] = part
                pending.append(part)
    return values, holders


def _parts(value: Any) -> list[Any]:
    """Return the parts of a value that may have to be copied with the value.

    Return no parts for values that are never copied: LMs, classes, examples, threads, and objects
    with a finalizer (such as files).
    """
    kind = type(value)
    is_shared = issubclass(kind, (type, dspy.Example, threading.Thread)) or hasattr(kind, "__del__")
    if is_shared or is_language_model(value):
        return []
    if issubclass(kind, MethodType):
        return [value.__self__]
    if issubclass(kind, partial):
        return [value.func, *value.args, *value.keywords.values()]
    parts: list[Any] = []
    if issubclass(kind, dict):
        parts += dict.values(value)
    for container in CONTAINERS:
        if issubclass(kind, container):
            parts += container.__iter__(value)
    # Share queues and other objects of the standard library, because some cannot be copied.
    if kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
        parts += attributes(value).values()
    return parts
