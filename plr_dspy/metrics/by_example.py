"""Functions that call metrics on single examples and check their scores."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import dspy
import numpy as np

from plr_dspy.errors import MetricError, ScoreError, UserTypeError
from plr_dspy.report.formats import one_line

Metric: TypeAlias = Callable[..., Any]

LARGEST_SCORE = 1e30  # maximum absolute value of a score; its fourth power must not overflow
SHOWN = 150  # maximum length of a value's repr in messages


def metric_caller(metric: Metric) -> Callable[[dspy.Example, object], object]:
    """Return a function that calls the metric with an example and a prediction.

    If the metric has up to three other required parameters, the function passes None for each.

    Raises:
        TypeError: If the metric cannot be called in this way, is async, or is a class.
    """
    if callable(metric) and not inspect.isclass(metric) and not inspect.iscoroutinefunction(metric):
        # The other parameters may be `trace` and, for GEPA, `pred_name` and `pred_trace`.
        for num_extra in range(4):
            extra = [None for _ in range(num_extra)]
            if takes(function_of(metric), 2 + num_extra) is not False:
                return lambda example, prediction: metric(example, prediction, *extra)
    fix = fix_for_metric(metric, otherwise="pass a function of an example and a prediction")
    raise UserTypeError(
        "metric must be callable as metric(example, prediction), and must be neither async nor a class; got "
        f"{one_line(repr(metric), SHOWN)}: {fix}"
    )


def fix_for_metric(metric: object, *, otherwise: str) -> str:
    """Return a fix for an invalid metric: `otherwise`, unless the metric is a class or a string."""
    if inspect.isclass(metric):
        return f"pass an instance of this class, as in metric={metric.__name__}(...)"
    if isinstance(metric, str):
        return "pass the metric itself, not its name, as in metric=F1('positive')"
    return otherwise


def takes(function: Callable[..., object] | None, number: int) -> bool | None:
    """Return whether a function accepts `number` positional arguments, or None if its signature is unknown."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]  # fails for some built-in functions
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*range(number))
    except TypeError:
        return False
    return True


def function_of(called: Callable[..., object]) -> Callable[..., object] | None:
    """Return the function that runs when `called` is called.

    For a DSPy module, return its `forward` method, or None if the module has no `forward`.
    """
    if not isinstance(called, dspy.Module):
        return called
    # Read `forward` from `vars` and the class, because DSPy warns if it is read from the module.
    own: Callable[..., object] | None = vars(called).get("forward")  # dspy.syncify sets this attribute
    method = getattr(type(called), "forward", None)
    if own is not None or method is None:
        return own
    return partial(method, called)


def as_score(value: object) -> float:
    """Return a metric's value as a float.

    The value may also be a `dspy.Prediction` with a score, or an array with one element.

    Raises:
        MetricError: If the value is not a number.
        ScoreError: If the value is not finite, or its absolute value exceeds `LARGEST_SCORE`.
    """
    number: Any = value
    if isinstance(value, dspy.Prediction):
        number = value.get("score")
    elif isinstance(value, np.ndarray) and value.size == 1:
        number = value.item()
    try:
        if isinstance(number, (str, bytes)):
            raise TypeError
        score = float(number)
    except OverflowError:
        score = math.inf
    except (TypeError, ValueError):
        raise MetricError(
            "metric must return a number, a bool or a Prediction with a score; "
            f"got {type(value).__name__} {' '.join(repr(value).split())}: return a score, such as 1.0"
        ) from None
    if not abs(score) <= LARGEST_SCORE:  # "not <=" also rejects NaN
        raise ScoreError(
            f"metric must return a finite number of at most {LARGEST_SCORE:g} in absolute value; got {score}: rescale "
            "the metric, or avoid divisions by 0"
        )
    return score
