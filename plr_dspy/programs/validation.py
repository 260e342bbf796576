"""Checks of what a user passes, made before any program call is paid for."""

from __future__ import annotations

import inspect
import logging
import math
import numbers
import operator
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy
import numpy as np

from plr_dspy.programs.copies import is_language_model, language_models, named_predictors
from plr_dspy.programs.inputs import forward_of
from plr_dspy.programs.saving import json_obstacle

logger = logging.getLogger(__name__)


def whole_number(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int | None:
    """The value as an int, or None for None.

    Raises:
        TypeError: when it is no whole number; bools are none.
        ValueError: when it is out of range.
    """
    return (
        None if value is None else count(name, value, least=least, most=most, kind="a whole number or None")
    )


def count(
    name: str, value: Any, *, least: int = 1, most: int | None = None, kind: str = "a whole number"
) -> int:
    """The value as an int.

    Raises:
        TypeError: when it is no whole number; bools are none.
        ValueError: when it is out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be {kind}; got {value!r}") from None
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be {kind}; got {value!r}")
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{name} must be {bounds}; got {number}")
    return number


def flag(name: str, value: Any) -> bool:
    """The value as a bool.

    Raises:
        TypeError: when it is none: any text, such as "no", would count as True.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False; got {value!r}")
    return bool(value)


def fraction(name: str, value: Any) -> float | None:
    """The value as a float in (0, 1], or None for None.

    Raises:
        TypeError: when it is no number.
        ValueError: when it is out of range.
    """
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number in (0, 1] or None; got {value!r}")
    number = float(value)
    if not 0.0 < number <= 1.0:
        raise ValueError(f"{name} must lie in (0, 1]; got {number}")
    return number


def number(name: str, value: Any, *, above: float | None = None) -> float | None:
    """The value as a finite float, or None for None.

    Raises:
        TypeError: when it is no number.
        ValueError: when it is out of range.
    """
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number or None; got {value!r}")
    result = float(value)
    if not math.isfinite(result) or (above is not None and result <= above):
        bounds = "" if above is None else f" above {above:g}"
        raise ValueError(f"{name} must be a finite number{bounds}; got {result}")
    return result


def check_student(student: Any, name: str = "student") -> None:
    """Raise unless this is a program with predictors; the name is what the user knows it by."""
    if not isinstance(student, dspy.Module):
        hint = ": pass an instance, not the class" if isinstance(student, type) else ""
        raise TypeError(f"{name} must be a dspy.Module; got {type(student).__name__}{hint}")
    if "KNNFewShot" in getattr(vars(student).get("forward"), "__qualname__", ""):
        raise TypeError(
            f"{name} was compiled by KNNFewShot, which picks demos anew at each call: there is no order to learn; "
            "use an optimizer that leaves demos in the program, such as dspy.BootstrapFewShot"
        )
    if type(student).__qualname__.startswith("Ensemble.compile."):
        raise TypeError(
            f"{name} is an Ensemble: compile its members with PLReorder first, then ensemble them"
        )
    forward = forward_of(student)
    is_async = inspect.iscoroutinefunction(forward)
    if is_async or (forward is None and hasattr(student, "aforward")):
        raise TypeError(
            f"{name} is an async program, which cannot run in worker threads as it is: "
            f"{'rename its forward to aforward, ' * is_async}wrap it with dspy.syncify(program) and compile that"
        )
    if forward is None and type(student).__call__ is dspy.Module.__call__:
        raise TypeError(f"{name} must have a forward method; {type(student).__name__} has none: define one")
    names = [predictor for predictor, _ in named_predictors(student)]
    if len(set(names)) < len(names):
        raise ValueError(
            f"{name} has several predictors of one name: {sorted(names)}; rename dict keys that print alike"
        )
    if not names:
        raise ValueError(
            f"{name} has no predictors to order demos in: it holds none, or all of them lie in frozen (compiled) "
            "sub-modules, which are left alone; compile the sub-module itself, or set its _compiled to False"
        )


def check_language_model(student: dspy.Module) -> None:
    """Raise unless some LM is configured, for DSPy or on a module of the program, and an adapter if any."""
    lm, adapter = dspy.settings.lm, dspy.settings.adapter
    if lm is None and not language_models(student):
        raise ValueError("no LM is configured: call dspy.configure(lm=dspy.LM(...)) before compile")
    if lm is not None and not is_language_model(lm):
        named = f"dspy.LM({lm!r})" if isinstance(lm, str) else "dspy.LM(...)"
        raise TypeError(f"lm must be a dspy.LM; got {lm!r}: call dspy.configure(lm={named})")
    if adapter is not None and not isinstance(adapter, dspy.Adapter):
        raise TypeError(
            f"adapter must be a dspy.Adapter; got {adapter!r}: pass one, such as dspy.ChatAdapter(), to dspy.configure"
        )


def check_demos(student: dspy.Module) -> None:
    """Raise unless all demos are examples or dicts; warn when `program.save` cannot write them as JSON."""
    for name, predictor in named_predictors(student):
        if not isinstance(predictor.demos, Sequence):
            raise TypeError(
                f"demos of predictor {name!r} must be a list; got {type(predictor.demos).__name__}: pass [] for none"
            )
        for i, demo in enumerate(predictor.demos):
            if not isinstance(demo, (dspy.Example, Mapping)):
                raise TypeError(
                    f"demo {i} of predictor {name!r} must be a dspy.Example or a dict; got {type(demo).__name__}"
                )
    if obstacle := json_obstacle(student):
        logger.warning("%s", obstacle)


def as_folder(name: str, value: Any) -> Path | None:
    """The value as a path, or None for None.

    Raises:
        TypeError: when it is neither text nor a path.
    """
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise TypeError(f"{name} must be the path of a folder, or None; got {value!r}")
    return Path(value).expanduser().absolute()


def check_log_dir(log_dir: Path) -> None:
    """Make the folder, and raise unless files can be written there."""
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=log_dir):
            pass
    except (OSError, ValueError) as error:  # ValueError: of a null byte
        raise ValueError(f"log_dir must be a folder that can be written to; {log_dir}: {error}") from error
