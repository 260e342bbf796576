"""Copies of a program that differ in their demos, and share all that is not a module."""

import copy
import sys
import threading
from collections import defaultdict, deque
from contextlib import suppress
from functools import partial
from types import MethodType
from typing import Any

import dspy
from dspy.primitives.base_module import BaseModule

PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})  # types of values that hold no other
CONTAINERS = (list, tuple, set, frozenset, deque)

COPYABLE = (dict, *CONTAINERS, MethodType, partial)  # types of values that can be copied, whatever they hold


class ProgramFactory:
    """Copies a program, which is never changed, as often as there are orders to score.

    `Module.deepcopy` would copy a corpus, an index, each LM with its history. Here a copy has modules of its own, and
    whatever leads to them (lists, dicts, bound methods, objects that hold the program); all else is shared.
    """

    def __init__(self, program: dspy.Module) -> None:
        self._program = program
        self._predictors = {id(predictor) for _, predictor in program.named_predictors()}
        self._shared = _shared_parts(program)

    def build(self, demos: dict[str, list[Any]]) -> dspy.Module:
        """A copy in which the named predictors have these demos, in new lists; a TypeError if it would share them."""
        try:
            program: dspy.Module = copy.deepcopy(self._program, dict(self._shared))
        except Exception:  # of an object that leads to a module, and cannot be copied
            self._shared = _shared_parts(self._program, cautious=True)
            program = copy.deepcopy(self._program, dict(self._shared))
        for name, predictor in program.named_predictors():
            if id(predictor) in self._predictors:
                raise TypeError(
                    f"the program cannot be copied: predictor {name!r} lies in an object that cannot be deep-copied, "
                    "so the copy would share it; make it an attribute of a dspy.Module"
                )
            predictor.demos = list(demos.get(name, predictor.demos))
        return program


def language_models(program: Any) -> list[Any]:
    """The LMs that a program or another object holds: in attributes, in containers and objects there."""
    found, _ = _reachable(program)
    return [value for value in found.values() if is_language_model(value)]


def is_language_model(value: Any) -> bool:
    """Tell whether predictors can call it: an LM, or a client that answers decision requests itself."""
    return isinstance(value, dspy.BaseLM) or getattr(type(value), "supports_decision_requests", None) is True


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object itself, in slots too."""
    held: dict[str, Any] = {}
    slots = [vars(base).get("__slots__", ()) for base in type(value).__mro__]
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    with suppress(Exception):  # of proxies
        held |= {n: getattr(value, n) for n in names if not n.startswith("__") and hasattr(value, n)}
        held |= vars(value)
    return held


def _shared_parts(program: dspy.Module, *, cautious: bool = False) -> dict[int, Any]:
    """What all copies of a program share, by its id; cautious, also what leads to a module and may not be copyable."""
    found, holders = _reachable(program)
    copied = {key: value for key, value in found.items() if isinstance(value, BaseModule)}
    pending = list(copied)
    while pending:
        for holder in holders[pending.pop()]:
            if holder not in copied and (not cautious or type(found[holder]) in COPYABLE):
                copied[holder] = found[holder]
                pending.append(holder)
    for predictor in [value for value in copied.values() if isinstance(value, dspy.Predict)]:
        # Its settings, demos and traces, which optimizers change in place.
        copied |= {id(value): value for value in vars(predictor).values() if type(value) in (list, dict)}
    parts = (part for value in copied.values() for part in _parts(value))
    return {id(part): part for part in parts if type(part) not in PLAIN and id(part) not in copied}


def _reachable(program: Any) -> tuple[dict[int, Any], dict[int, list[int]]]:
    """What a program holds, by its id, and the ids of what holds it; without what can hold no module."""
    found: dict[int, Any] = {id(program): program}
    holders: dict[int, list[int]] = defaultdict(list)
    pending: list[Any] = [program]
    while pending:
        value = pending.pop()
        for part in _parts(value):
            held = part.values() if type(part) is dict else part if type(part) in CONTAINERS else [part]
            if PLAIN.issuperset(map(type, list(held))):  # quick even for a million of them
                continue
            holders[id(part)].append(id(value))
            if id(part) not in found:
                found[id(part)] = part
                pending.append(part)
    return found, holders


def _parts(value: Any) -> list[Any]:
    """What a copy of a value would hold copies of: nothing of LMs, examples, and what has an end (threads, files)."""
    kind = type(value)
    closed = issubclass(kind, (type, dspy.Example, threading.Thread)) or hasattr(kind, "__del__")
    if closed or is_language_model(value):
        return []
    if issubclass(kind, MethodType):
        return [value.__self__]
    if issubclass(kind, partial):
        return [value.func, *value.args, *value.keywords.values()]
    parts: list[Any] = list(dict.values(value)) if issubclass(kind, dict) else []
    for container in CONTAINERS:
        parts += container.__iter__(value) if issubclass(kind, container) else ()
    package = kind.__module__.partition(".")[0]
    if package in ("collections", "types") or package not in sys.stdlib_module_names:  # queues are shared
        parts += attributes(value).values()
    return parts
