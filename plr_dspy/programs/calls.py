"""What one program call does: run the program on an example, and score its answer with the user's metric."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError, ContextWindowExceededError

from plr_dspy.programs.copies import language_models
from plr_dspy.programs.splits import folded_key, source_of
from plr_dspy.report.data import Signal
from plr_dspy.scoring.cells import Cell

Metric: TypeAlias = Callable[..., Any]

LARGEST_SCORE = 1e30
"""In size: fourth powers of scores are computed."""

ASYNC_CURE = "pass metric=lambda example, prediction: asyncio.run(metric(example, prediction))"

WRONG_ANSWERS = (AdapterParseError, ContextWindowExceededError)
"""Of a program: there is no answer that a metric could call right, and the order is at fault."""

SHOWN = 150
"""Characters of a reply or an answer that messages show."""


@dataclass(frozen=True)
class Scored:
    """An example that is scored: no demo that is found for it is made of it, or asks the same."""

    source: str  # what identifies its inputs
    values: frozenset[bytes]  # what identifies each of them, whatever its name

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> Scored:
        """The example with these inputs."""
        return cls(source_of(inputs), frozenset(map(folded_key, dict(inputs.items()).values())))


def scored() -> Scored | None:
    """The example that is scored; None where that is not known, or there is none.

    It is in DSPy's settings, which reach threads that DSPy starts; other context variables do not.
    """
    inputs = dspy.settings.get("plr_dspy_scored")
    return None if inputs is None else Scored.of(inputs)


def metric_caller(metric: Metric) -> Callable[[Any, Any], Any]:
    """The metric as a function of (example, prediction); further parameters it insists on get None.

    Raises:
        TypeError: when it is not callable, is async, or cannot take an example and a prediction.
    """
    if not callable(metric):
        raise TypeError(f"metric must be callable as metric(example, prediction); got {repr(metric)[:SHOWN]}")
    if inspect.isclass(metric):
        raise TypeError(
            f"metric must be called with an example and a prediction; {metric.__name__} is a class: "
            "pass an instance of it"
        )
    called = _called(metric)
    if any(map(inspect.iscoroutinefunction, (metric, type(metric).__call__, called))):
        raise TypeError(f"metric must not be async: {ASYNC_CURE}")
    if called is None:
        cure = "pass dspy.syncify(metric)" if hasattr(metric, "aforward") else "define one"
        raise TypeError(f"metric must have a forward method; {type(metric).__name__} has none: {cure}")
    for num_extra in range(4):  # trace, and GEPA's pred_name and pred_trace
        extra = (None,) * num_extra
        if _takes(called, 2 + num_extra) is not False:  # some built-in callables have no signature
            return lambda example, prediction: metric(example, prediction, *extra)
    signature = inspect.signature(called)
    raise TypeError(f"metric must be callable as metric(example, prediction); its signature is {signature}")


def takes_trace(metric: Metric) -> bool:
    """Tell whether a metric can be called with a third argument, which DSPy's optimizers give a trace."""
    return _takes(_called(metric), 3) is True


def _takes(called: Any, number: int) -> bool | None:
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


def _called(metric: Metric) -> Callable[..., Any] | None:
    """What a call of the metric runs: of a judge, its forward method."""
    is_judge = isinstance(metric, dspy.Module) and type(metric).__call__ is dspy.Module.__call__
    return forward_of(metric) if is_judge else metric  # type: ignore[arg-type]


def forward_of(module: dspy.Module) -> Callable[..., Any] | None:
    """The method that a call of a module runs; DSPy warns where it is read as an attribute."""
    method = getattr(type(module), "forward", None)
    return vars(module).get("forward") or (method and partial(method, module))  # its own, as of dspy.syncify


class MetricTypeError(TypeError):
    """A metric returned a value of a type that is no score."""


def as_score(value: Any) -> float:
    """A metric's value as a float, never rounded.

    Raises:
        MetricTypeError: for anything that is no number, such as None, a dict, or an array of several.
        ValueError: for NaN, infinities, and what is too large to be squared.
    """
    if inspect.iscoroutine(value):
        value.close()
        raise MetricTypeError(
            f"metric must return a number, and not a coroutine, as async functions do: {ASYNC_CURE}"
        )
    number = value.get("score") if isinstance(value, dspy.Prediction) else value
    try:
        number = number.item() if isinstance(number, np.ndarray) else number
        score = None if isinstance(number, (str, bytes)) else float(number)
    except OverflowError:  # of an int
        score = math.inf
    except (TypeError, ValueError):  # of the value's own conversion, as of a tensor of several numbers
        score = None
    if score is None:
        raise MetricTypeError(
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


class WrongAnswer(Exception):
    """The program ended without an answer, by the fault of the order.

    Attributes:
        told: What the reply says all the same, as fields of a `Cell`.
    """

    def __init__(self, error: Exception) -> None:
        text = str(error)
        if isinstance(error, AdapterParseError):
            reply = " ".join(str(error.lm_response).split())
            text = f"{error.adapter_name} could not read the reply {reply[:SHOWN]!r}"
        super().__init__(text)
        self.error = error
        self.told: dict[str, Any] = {}


class MetricWork:
    """Makes program calls on examples, which cells name by index, and has a metric score the answers.

    Attributes:
        sample: The start of the program's first answer, with its score.
        models: The language models that the metric calls, as far as they can be found.
        signal: What a search learns from calls, as far as it is known; None where nothing is learned.
    """

    signal: Signal | None = None

    def __init__(self, metric: Metric, examples: Sequence[dspy.Example]) -> None:
        self.sample = ""
        self.models = models_of(metric)
        self._metric = metric_caller(metric)
        self._examples = examples

    def __call__(self, program: dspy.Module, example: int, usage: Any) -> Cell:
        """Call a program's copy on an example, with DSPy's tracker of its usage; a WrongAnswer where there is none."""
        return self._scored(*self._answered(program, example, usage))

    def inputs(self, example: int | None) -> dict[str, Any] | None:
        """Those of an example; None for none."""
        return None if example is None else dict(self._examples[example].inputs().items())

    def _answered(self, program: dspy.Module, example: int, usage: Any) -> tuple[dspy.Example, Any]:
        """Return the example as the program was shown it, and what the program answers."""
        shown = own_copy(self._examples[example])
        try:
            with dspy.context(plr_dspy_scored=shown.inputs()):
                prediction = program(**shown.inputs())
        except WRONG_ANSWERS as error:
            raise WrongAnswer(error) from error
        if dspy.settings.track_usage and isinstance(prediction, dspy.Prediction):
            # DSPy does this only where nobody else tracks usage, and metrics may ask for it.
            prediction.set_lm_usage(usage.get_total_tokens())
        return shown, prediction

    def _scored(self, shown: dspy.Example, prediction: Any) -> Cell:
        """Return the cell of an answer."""
        score = as_score(self._metric(shown, prediction))
        self.sample = self.sample or f"{repr(prediction)[:SHOWN]}, scored {score:g}"
        return Cell(score)


def own_copy(example: dspy.Example) -> dspy.Example:
    """Return an example for a program or metric that may write to it, which must not reach the trainset."""
    return example.copy() if type(example) is dspy.Example else example


def models_of(metric: Metric) -> list[dspy.BaseLM]:
    """The LMs of a judge, or those that a metric object holds."""
    if isinstance(metric, dspy.Module):
        return language_models(metric)
    held = getattr(metric, "__dict__", {}).values()
    models = [value for value in held if isinstance(value, dspy.BaseLM)]
    return models + [lm for value in held if isinstance(value, dspy.Module) for lm in language_models(value)]
