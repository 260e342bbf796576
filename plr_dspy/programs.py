"""Copies of a program that share its LMs and differ in their demos."""

from __future__ import annotations

import copy
from typing import Any

import dspy
from dspy.primitives.base_module import BaseModule


class ProgramFactory:
    """Copies a program, as often as there are orders to score.

    `Module.deepcopy` would copy each predictor's LM with its whole history; here every copy holds
    the very LM objects, and the demo objects, of the original.

    Args:
        program: Never changed.
    """

    def __init__(self, program: dspy.Module) -> None:
        self._program = program
        shared = language_models(program)
        shared += [demo for predictor in program.predictors() for demo in predictor.demos]
        self._shared = {id(value): value for value in shared}

    def build(self, demos: dict[str, list[Any]]) -> dspy.Module:
        """A copy of the program in which the named predictors have these demos, in new lists.

        Raises:
            TypeError: when the program cannot be copied without sharing its predictors.
        """
        program = _copy_module(self._program, dict(self._shared))
        originals = {id(predictor) for predictor in self._program.predictors()}
        predictors = dict(program.named_predictors())
        for name, predictor in predictors.items():
            if id(predictor) in originals:
                raise TypeError(
                    f"student cannot be copied: predictor {name!r} lies in an object that cannot be deep-copied, "
                    "so the copy would share it; make it an attribute of a dspy.Module"
                )
            predictor.demos = list(demos.get(name, predictor.demos))
        return program


def language_models(program: dspy.Module) -> list[Any]:
    """The LMs that hang on the program's modules, in attributes or in containers there."""

    def inside(value: Any) -> list[Any]:
        if isinstance(value, dspy.BaseLM):
            return [value]
        if isinstance(value, dict):
            return [lm for item in value.values() for lm in inside(item)]
        if isinstance(value, (list, tuple)):
            return [lm for item in value for lm in inside(item)]
        return []

    return [lm for _, module in program.named_sub_modules() for lm in inside(list(vars(module).values()))]


def _copy_module(module: BaseModule, memo: dict[int, Any]) -> Any:
    """Deep copy; like DSPy's own, it goes on attribute by attribute where that fails (locks, clients)."""
    if id(module) in memo:
        return memo[id(module)]
    attempt = dict(memo)  # a failed deepcopy leaves half-made objects in its memo
    try:
        duplicate = copy.deepcopy(module, attempt)
    except Exception:
        duplicate = memo[id(module)] = module.__class__.__new__(module.__class__)
        for name, value in vars(module).items():
            setattr(duplicate, name, _copy_value(value, memo))
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
