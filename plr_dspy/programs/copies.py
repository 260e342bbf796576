"""Copies of a program that differ in their demos, and share all that is not a module."""

from __future__ import annotations

import copy
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from functools import partial
from types import MethodType
from typing import Any

import dspy
from dspy.predict.parameter import Parameter
from dspy.primitives.base_module import BaseModule

from plr_dspy.programs.digest.objects import PLAIN, attributes

LARGE = 1_000
"""Items of a container that DSPy had better not look at one by one."""

CONTAINERS = {"collections", "types"}
"""Modules of Python whose objects may hold programs in attributes; those of others, such as queues, are shared."""


class ProgramFactory:
    """Copies a program, as often as there are orders to score.

    `Module.deepcopy` would copy everything that the program holds: a corpus, an index, each predictor's LM with its
    whole history. Here a copy has modules and predictors of its own, and so has whatever leads to them (lists, dicts,
    bound methods, objects that hold the program); all else is the very object that the original holds.

    Args:
        program: Never changed. What it holds is looked through once, here.
    """

    def __init__(self, program: dspy.Module) -> None:
        self._program = program
        self._predictors = dict(named_predictors(program))
        self._shared = _shared_parts(program)

    def build(self, demos: dict[str, list[Any]]) -> dspy.Module:
        """A copy of the program in which the named predictors have these demos, in new lists.

        Raises:
            TypeError: when the program cannot be copied without sharing its predictors.
        """
        memo = dict(self._shared)
        program: dspy.Module = _copy_module(self._program, memo)
        copies = {name: memo.get(id(original)) for name, original in self._predictors.items()}
        if any(duplicate is None for duplicate in copies.values()):  # made by a __deepcopy__ of the user's
            copies = dict(named_predictors(program))
        for name, predictor in copies.items():
            if predictor is None or predictor is self._predictors.get(name):
                raise TypeError(
                    f"the program cannot be copied: predictor {name!r} lies in an object that cannot be deep-copied, "
                    "so the copy would share it; make it an attribute of a dspy.Module"
                )
            predictor.demos = list(demos.get(name, predictor.demos))
        return program


def named_predictors(program: dspy.Module) -> list[tuple[str, dspy.Predict]]:
    """What DSPy's method of this name returns, without its look at each item of a large list or dict of data."""
    found: list[tuple[str, dspy.Predict]] = _without_data(program).named_predictors()
    return found


def _without_data(module: dspy.Module) -> dspy.Module:
    """The module as DSPy looks through it for predictors, which are the module's own: large data is left out."""
    if isinstance(module, Parameter):
        return module
    parts = {name: value for name, value in vars(module).items() if not _is_data(value)}
    parts = {n: _without_data(v) if isinstance(v, dspy.Module) else v for n, v in parts.items()}
    if all(parts.get(name) is value for name, value in vars(module).items()):
        return module
    view: dspy.Module = object.__new__(type(module))
    vars(view).update(parts)
    return view


def _is_data(value: Any) -> bool:
    """Whether it is a large container in which DSPy would find no predictor."""
    if not isinstance(value, (list, tuple, dict)) or len(value) <= LARGE:
        return False
    items = value.values() if isinstance(value, dict) else value
    return not any(issubclass(kind, (BaseModule, Parameter)) for kind in set(map(type, items)))


def named_modules(program: BaseModule) -> Iterator[tuple[str, BaseModule]]:
    """All modules of a program by their place in it, frozen ones too; the program itself comes first."""
    pending: deque[tuple[str, Any]] = deque([("self", program)])
    seen = set()
    while pending:
        name, value = pending.popleft()
        if id(value) in seen or type(value) in PLAIN or _is_flat(value):
            continue
        seen.add(id(value))
        if isinstance(value, BaseModule):
            yield name, value
            pending += ((f"{name}.{key}", part) for key, part in vars(value).items())
        elif isinstance(value, (list, tuple)):
            pending += ((f"{name}[{i}]", part) for i, part in enumerate(value))
        elif isinstance(value, dict):
            pending += ((f"{name}[{key}]", part) for key, part in value.items())


def language_models(program: dspy.Module) -> list[Any]:
    """The LMs that hang on the program's modules, in attributes, in containers and objects there."""
    found, _ = _reachable(program)
    return [value for value in found.values() if is_language_model(value)]


def is_language_model(value: Any) -> bool:
    """Tell whether predictors can call it: an LM, or a client that answers decision requests itself."""
    return isinstance(value, dspy.BaseLM) or getattr(type(value), "supports_decision_requests", None) is True


def _shared_parts(program: dspy.Module) -> dict[int, Any]:
    """What all copies of a program share, by its id, as `copy.deepcopy` takes it for copied already."""
    found, holders = _reachable(program)
    copied = {key: value for key, value in found.items() if isinstance(value, BaseModule)}
    pending = list(copied)
    while pending:
        for holder in holders[pending.pop()]:
            if holder not in copied:
                copied[holder] = found[holder]
                pending.append(holder)
    for predictor in [value for value in copied.values() if isinstance(value, dspy.Predict)]:
        # Its settings, demos and traces, which optimizers change in place.
        copied |= {id(value): value for value in vars(predictor).values() if type(value) in (list, dict)}
    parts = (part for value in copied.values() for part in _parts(value))
    return {id(part): part for part in parts if type(part) not in PLAIN and id(part) not in copied}


def _reachable(program: dspy.Module) -> tuple[dict[int, Any], dict[int, list[int]]]:
    """What a program holds, by its id, and the ids of what holds it; without what can hold no module."""
    found: dict[int, Any] = {id(program): program}
    holders: dict[int, list[int]] = defaultdict(list)
    pending: list[Any] = [program]
    while pending:
        value = pending.pop()
        for part in _parts(value):
            if type(part) in PLAIN or _is_flat(part):
                continue
            holders[id(part)].append(id(value))
            if id(part) not in found:
                found[id(part)] = part
                pending.append(part)
    return found, holders


def _is_flat(value: Any) -> bool:
    """Whether it is a container of plain values only; this is quick even for a million of them."""
    if type(value) is dict:
        value = value.values()
    elif type(value) not in (list, tuple, set, frozenset):
        return False
    return PLAIN.issuperset(map(type, list(value)))


def _parts(value: Any) -> Iterable[Any]:
    """What a value holds, if a copy of it would hold copies of that.

    Nothing of LMs and examples, and of what owns something that a copy must not end: threads, files, and whatever
    does something when it is thrown away.
    """
    kind = type(value)
    if issubclass(kind, (type, dspy.Example, threading.Thread)) or hasattr(kind, "__del__"):
        return []
    if is_language_model(value):
        return []
    if issubclass(kind, MethodType):
        return [value.__self__]
    if issubclass(kind, partial):
        return [value.func, *value.args, *value.keywords.values()]
    parts: list[Any] = []
    if issubclass(kind, dict):
        parts += dict.values(value)
    for container in (list, tuple, set, frozenset, deque):
        if issubclass(kind, container):
            parts += container.__iter__(value)
    package = kind.__module__.partition(".")[0]
    if package not in sys.stdlib_module_names or package in CONTAINERS:
        parts += attributes(value).values()
    return parts


def _copy_module(module: BaseModule, memo: dict[int, Any]) -> Any:
    """Deep copy; like DSPy's own, it goes on attribute by attribute where that fails."""
    if id(module) in memo:
        return memo[id(module)]
    attempt = dict(memo)  # a failed deepcopy leaves half-made objects in its memo
    try:
        duplicate = copy.deepcopy(module, attempt)
    except Exception:
        duplicate = memo[id(module)] = module.__class__.__new__(module.__class__)
        state = dspy.Module.__getstate__(module)
        dspy.Module.__setstate__(duplicate, {name: _copy_value(value, memo) for name, value in state.items()})
    else:
        memo.update(attempt)
    return duplicate


def _copy_value(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, BaseModule):
        return _copy_module(value, memo)
    if type(value) in (list, tuple):
        return type(value)(_copy_value(item, memo) for item in value)
    if type(value) is dict:
        return {key: _copy_value(item, memo) for key, item in value.items()}
    attempt = dict(memo)
    try:
        duplicate = copy.deepcopy(value, attempt)
    except Exception:
        return value
    memo.update(attempt)
    return duplicate
