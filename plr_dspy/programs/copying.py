"""Copies of a program that share all but their modules, and the language models that a program holds."""

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
# The size up to which each copy of a module has lists, dicts and sets of its own.
LARGEST_OWN = 1_000


class ProgramFactory:
    """Copies a program, which is never changed, once for each order to score.

    `Module.deepcopy` would also copy corpora, indexes, and each LM with its history. Here a copy has modules of its
    own, with their small lists, dicts and sets, and copies of whatever leads to a module (containers, bound methods,
    objects that hold the program). Everything else is shared.
    """

    def __init__(self, program: dspy.Module) -> None:
        self._program = program
        self._shared = _shared_parts(program)

    def build(self, demos: dict[str, list[Any]]) -> dspy.Module:
        """Return a copy in which the named predictors have these demos, in new lists."""
        program: dspy.Module = copy.deepcopy(self._program, dict(self._shared))
        for name, predictor in program.named_predictors():
            predictor.demos = list(demos.get(name, predictor.demos))
        return program


def language_models(program: Any) -> list[Any]:
    """Return the LMs in the attributes of a program or another object, and in containers and objects there."""
    values, _ = _reachable(program)
    return [value for value in values.values() if is_language_model(value)]


def is_language_model(value: Any) -> bool:
    """Return whether predictors can call it: an LM, or a client that answers decision requests itself."""
    return isinstance(value, dspy.BaseLM) or getattr(type(value), "supports_decision_requests", None) is True


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of the object itself."""
    try:
        return dict(vars(value))
    except Exception:  # Proxies may raise anything.
        return {}


def _shared_parts(program: dspy.Module) -> dict[int, Any]:
    """Return what all copies of a program share, by its id."""
    values, holders = _reachable(program)
    copied = {key: value for key, value in values.items() if isinstance(value, BaseModule)}
    pending = list(copied)
    while pending:
        for holder in holders[pending.pop()]:
            if holder not in copied:
                copied[holder] = values[holder]
                pending.append(holder)
    for module in [value for value in copied.values() if isinstance(value, BaseModule)]:
        # Optimizers and calls change these in place, such as demos, traces or a cache of answers.
        for value in vars(module).values():
            if type(value) in (list, dict, set) and len(value) <= LARGEST_OWN:
                copied[id(value)] = value
    shared: dict[int, Any] = {}
    for value in copied.values():
        for part in _parts(value):
            if type(part) not in ATOMS and id(part) not in copied:
                shared[id(part)] = part
    return shared


def _reachable(program: Any) -> tuple[dict[int, Any], dict[int, list[int]]]:
    """Return what a program holds, by its id, and the ids of what holds it."""
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
    """Return what a copy of a value would hold copies of.

    That is nothing for LMs, examples, and what has to be closed (threads, files).
    """
    kind = type(value)
    is_closed = issubclass(kind, (type, dspy.Example, threading.Thread)) or hasattr(kind, "__del__")
    if is_closed or is_language_model(value):
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
    # Queues and other objects of Python's own are shared.
    if kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
        parts += attributes(value).values()
    return parts
