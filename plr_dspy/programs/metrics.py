"""The user's metric: how it is called, and what counts as a score."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import dspy
import numpy as np

Metric: TypeAlias = Callable[..., Any]

LARGEST_SCORE = 1e30
"""In size: fourth powers of scores are computed."""

_ASYNC_CURE = "pass metric=lambda example, prediction: asyncio.run(metric(example, prediction))"


def metric_caller(metric: Metric) -> Callable[[Any, Any], Any]:
    """The metric as a function of (example, prediction); further parameters it insists on get None.

    Raises:
        TypeError: when it is not callable, is async, or cannot take an example and a prediction.
    """
    if not callable(metric):
        raise TypeError(f"metric must be callable as metric(example, prediction); got {metric!r}")
    if inspect.isclass(metric):
        raise TypeError(
            f"metric must be called with an example and a prediction; {metric.__name__} is a class: "
            "pass an instance of it"
        )
    if inspect.iscoroutinefunction(metric) or inspect.iscoroutinefunction(type(metric).__call__):
        raise TypeError(f"metric must not be async: {_ASYNC_CURE}")
    is_judge = isinstance(metric, dspy.Module) and type(metric).__call__ is dspy.Module.__call__
    called = _forward(metric) if is_judge else metric
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return metric
    for num_extra in range(4):  # trace, and GEPA's pred_name and pred_trace
        extra = (None,) * num_extra
        try:
            signature.bind(None, None, *extra)
        except TypeError:
            continue
        return lambda example, prediction: metric(example, prediction, *extra)
    raise TypeError(f"metric must be callable as metric(example, prediction); its signature is {signature}")


def _forward(judge: dspy.Module) -> Callable[..., Any]:
    """The method that a call of a judge runs.

    Raises:
        TypeError: when it has none, or only an async one.
    """
    own = vars(judge).get("forward")  # as of dspy.syncify
    forward = own or getattr(type(judge), "forward", None)
    if inspect.iscoroutinefunction(forward):
        raise TypeError(f"metric must not be async: {_ASYNC_CURE}")
    if forward is None:
        cure = "pass dspy.syncify(metric)" if hasattr(judge, "aforward") else "define one"
        raise TypeError(f"metric must have a forward method; {type(judge).__name__} has none: {cure}")
    return own or partial(forward, judge)


def as_score(value: Any) -> float:
    """A metric's value as a float, never rounded.

    Raises:
        TypeError: for None, a dict, text, an array of several numbers, or anything else that is no number.
        ValueError: for NaN, infinities, and what is too large to be squared.
    """
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(
            f"metric must return a number, and not a coroutine, as async functions do: {_ASYNC_CURE}"
        )
    number = value.get("score") if isinstance(value, dspy.Prediction) else value
    if isinstance(number, np.ndarray) and number.size == 1:
        number = number.item()
    try:
        score = None if isinstance(number, (str, bytes)) else float(number)
    except OverflowError:  # of an int
        score = math.inf
    except (TypeError, ValueError):  # of the value's own conversion, as of a tensor of several numbers
        score = None
    if score is None:
        raise TypeError(
            "metric must return a number, a bool or a Prediction with a score; "
            f"got {type(value).__name__}: {' '.join(repr(value).split())}"
        )
    if not math.isfinite(score):
        raise ValueError(f"metric must return a finite number; got {score}")
    if abs(score) > LARGEST_SCORE:
        raise ValueError(
            f"metric must return a number between {-LARGEST_SCORE:g} and {LARGEST_SCORE:g}; got {score}: scale it"
        )
    return score
