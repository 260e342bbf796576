"""The user's metric: how it is called, and what counts as a score."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import dspy

Metric: TypeAlias = Callable[..., Any]


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
        raise TypeError(
            "metric must not be async: wrap it, for example with dspy.utils.syncify or asyncio.run"
        )
    try:
        called = partial(type(metric).forward, metric) if isinstance(metric, dspy.Module) else metric
        signature = inspect.signature(called)
    except (AttributeError, TypeError, ValueError):  # some built-in callables have no signature
        return metric
    for num_extra in range(4):  # trace, and GEPA's pred_name and pred_trace
        extra = (None,) * num_extra
        try:
            signature.bind(None, None, *extra)
        except TypeError:
            continue
        return lambda example, prediction: metric(example, prediction, *extra)
    raise TypeError(f"metric must be callable as metric(example, prediction); its signature is {signature}")


def as_score(value: Any) -> float:
    """A metric's value as a float, never rounded.

    Raises:
        TypeError: for None, a dict, text, or anything else that is no number.
        ValueError: for NaN and infinities.
    """
    if isinstance(value, dspy.Prediction):
        value = value.get("score")
    if value is None or isinstance(value, (str, bytes, dict)) or not hasattr(value, "__float__"):
        raise TypeError(
            "metric must return a number, a bool or a Prediction with a score; "
            f"got {type(value).__name__}: {value!r}"
        )
    score = float(value)
    if not math.isfinite(score):
        raise ValueError(f"metric must return a finite number; got {score}")
    return score
