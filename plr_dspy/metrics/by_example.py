"""A metric by example: how it is called, and what its values may be."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import dspy
import numpy as np

from plr_dspy.errors import MetricError, UserError, UserTypeError

Metric: TypeAlias = Callable[..., Any]

LARGEST_SCORE = 1e30  # in size: fourth powers of scores are computed
SHOWN = 150  # characters of a reply, an answer or another value that messages show


def metric_caller(metric: Metric) -> Callable[[Any, Any], Any]:
    """The metric as a function of (example, prediction); further parameters it insists on get None. What cannot be
    called so is a TypeError."""
    if not callable(metric):
        raise UserTypeError(f"metric must be callable as metric(example, prediction); got {repr(metric)[:SHOWN]}")
    if inspect.isclass(metric):
        raise UserTypeError(f"metric must be an instance; {metric.__name__} is a class: pass {metric.__name__}()")
    called = function_of(metric)
    if any(map(inspect.iscoroutinefunction, (metric, type(metric).__call__, called))):
        cure = "pass metric=lambda example, prediction: run_async(metric(example, prediction))"
        raise UserTypeError(
            f"metric must not be async: {cure}, of dspy.utils.syncify; in notebooks it needs nest_asyncio"
        )
    if called is None:
        cure = "pass dspy.syncify(metric)" if hasattr(metric, "aforward") else "define one"
        raise UserTypeError(f"metric must have a forward method; {type(metric).__name__} has none: {cure}")
    for num_extra in range(4):  # trace, and GEPA's pred_name and pred_trace
        extra = [None] * num_extra
        if takes(called, 2 + num_extra) is not False:  # some built-in callables have no signature
            return lambda example, prediction: metric(example, prediction, *extra)
    signature = inspect.signature(called)
    raise UserTypeError(f"metric must be callable as metric(example, prediction); its signature is {signature}")


def takes(called: Any, number: int) -> bool | None:
    """Tell whether something can be called with so many arguments; None where it has no signature."""
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*[None] * number)
    except TypeError:
        return False
    return True


def function_of(metric: Metric) -> Callable[..., Any] | None:
    """What a call of the metric runs: of a judge, its forward method."""
    is_judge = isinstance(metric, dspy.Module) and type(metric).__call__ is dspy.Module.__call__
    return forward_of(metric) if is_judge else metric  # type: ignore[arg-type]


def forward_of(module: dspy.Module) -> Callable[..., Any] | None:
    """The method that a call of a module runs; DSPy warns where it is read as an attribute."""
    method = getattr(type(module), "forward", None)
    return vars(module).get("forward") or (method and partial(method, module))  # its own, as of dspy.syncify


def as_score(value: Any) -> float:
    """A metric's value as a float, never rounded; what is no number, such as None or an array of several, is a
    MetricError, and NaN, infinities, and what is too large to be squared are a ValueError."""
    number = value.get("score") if isinstance(value, dspy.Prediction) else value
    try:
        number = number.item() if isinstance(number, np.ndarray) else number
        score = None if isinstance(number, (str, bytes)) else float(number)
    except OverflowError:  # of an int
        score = math.inf
    except (TypeError, ValueError):  # of the value's own conversion, as of a tensor of several numbers
        score = None
    if score is None:
        raise MetricError(
            "metric must return a number, a bool or a Prediction with a score; "
            f"got {type(value).__name__}: {' '.join(repr(value).split())}"
        )
    if not abs(score) <= LARGEST_SCORE:  # NaN is not, either.
        limits = f"between {-LARGEST_SCORE:g} and {LARGEST_SCORE:g}"
        cure = "return one for this, too" if math.isnan(score) else "scale it"
        raise UserError(f"metric must return a finite number {limits}; got {score}: {cure}")
    return score
