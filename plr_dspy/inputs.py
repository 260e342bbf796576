"""Checks of what a user passes, made before any program call is paid for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import dspy
import orjson
from dspy.predict.predict import serialize_object


def check_count(name: str, value: Any, *, least: int = 1) -> None:
    """Raise unless the value is None or a whole number of at least `least`."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number or None; got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}")


def check_fraction(name: str, value: Any) -> None:
    """Raise unless the value is None or lies in (0, 1]."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number in (0, 1] or None; got {value!r}")
    if math.isnan(value) or not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must lie in (0, 1]; got {value}")


def check_examples(name: str, examples: Any) -> None:
    """Raise unless this is a sequence of `dspy.Example` with inputs set."""
    if isinstance(examples, (str, bytes, dict)) or not isinstance(examples, Sequence):
        raise TypeError(f"{name} must be a list of dspy.Example; got {type(examples).__name__}")
    for i, example in enumerate(examples):
        if not isinstance(example, dspy.Example):
            raise TypeError(
                f"{name}[{i}] must be a dspy.Example; got {type(example).__name__}: wrap it in dspy.Example"
            )
        if not getattr(example, "_input_keys", None):
            raise ValueError(
                f"{name}[{i}] has no inputs: call .with_inputs(...) on the examples with the input fields"
            )


def check_student(student: Any) -> None:
    """Raise unless this is a program with predictors."""
    if not isinstance(student, dspy.Module):
        raise TypeError(f"student must be a dspy.Module; got {type(student).__name__}")
    if not student.predictors():
        raise ValueError(
            "student has no predictors to order demos in: it holds none, or all of them lie in frozen (compiled) "
            "sub-modules, which are left alone; compile the sub-module itself, or set its _compiled to False"
        )


def check_language_model(student: dspy.Module) -> None:
    """Raise unless some LM is configured, for DSPy or on a module of the program."""
    attributes = (value for _, module in student.named_sub_modules() for value in vars(module).values())
    if dspy.settings.lm is None and not any(isinstance(value, dspy.BaseLM) for value in attributes):
        raise ValueError("no LM is configured: call dspy.configure(lm=dspy.LM(...)) before compile")


def check_demos_save(student: dspy.Module) -> None:
    """Raise when a demo holds a value that `program.save` could not write as JSON."""
    for name, predictor in student.named_predictors():
        for i, demo in enumerate(predictor.demos):
            for field, value in demo.items():
                try:
                    orjson.dumps(serialize_object(value))
                except TypeError as error:
                    raise ValueError(
                        f"demo {i} of predictor {name!r} cannot be saved as JSON: field {field!r} holds a "
                        f"{type(value).__name__} ({error}); convert it to plain data before compile"
                    ) from error
