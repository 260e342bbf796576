"""Trials of metrics on the answers in examples, to find errors before any program call."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import dspy

from plr_dspy.dspy_compat import BaseCallback
from plr_dspy.lm.plain_text_adapter import Annotation, Value
from plr_dspy.metrics.by_example import Metric, as_score, metric_caller
from plr_dspy.metrics.copies import own_copy, own_value

WRONG_ANSWER = "..."  # an answer that is neither empty nor correct


class Trial(NamedTuple):
    """A trial of a metric on an answer."""

    example: dspy.Example  # the copy of the example that was passed to the metric
    result: Value = None  # what the metric returned, or None after an error or an attempted model call
    error: BaseException | None = None  # the error that the metric raised, if any
    calls_model: bool = False  # whether the metric tried to call a language model


def scorer(metric: Metric) -> Callable[[dspy.Example, dspy.Prediction], float]:
    """Return a function that calls a metric and returns the score as a float."""
    call_metric = metric_caller(metric)
    return lambda example, prediction: as_score(call_metric(example, prediction))


def tried(
    function: Callable[[dspy.Example, dspy.Prediction], Value],
    example: dspy.Example,
    answer: Mapping[str, Value],
) -> Trial:
    """Return the trial of a function, such as a `scorer`, on copies of an example and an answer.

    A function that tries to call a language model is stopped before the call. The trial then has no
    error.
    """
    calls = NoCalls()
    example_copy = own_copy(example)
    prediction = dspy.Prediction({name: own_value(value) for name, value in answer.items()})
    try:
        with dspy.context(callbacks=[calls], trace=[]):
            result = function(example_copy, prediction)
    except (Exception, SystemExit) as error:
        if not calls.stopped:
            return Trial(example_copy, error=error)
    if calls.stopped:  # The metric may have caught the callback's exception.
        return Trial(example_copy, calls_model=True)
    return Trial(example_copy, result)


class NoCalls(BaseCallback):  # type: ignore[misc]
    """A callback that stops a metric before it calls a language model."""

    stopped = False

    def on_lm_start(self, call_id: str, instance: object, inputs: dict[str, Value]) -> None:
        self.stopped = True
        # Raise SystemExit, because `except Exception` in DSPy and in metrics does not catch it.
        raise SystemExit("the metric calls a language model")


def fails(metric: Metric, example: dspy.Example, answer: Mapping[str, Value]) -> bool:
    """Return whether a metric raises an error when it scores an answer."""
    return tried(scorer(metric), example, answer).error is not None


def calls_model(metric: Metric, example: dspy.Example, program: dspy.Module) -> bool:
    """Return whether a metric tries to call a language model to score a correct, empty or wrong answer."""
    outputs = output_types(program)
    answers = (
        as_answer(example, outputs),
        dict.fromkeys(outputs, ""),
        dict.fromkeys(outputs, WRONG_ANSWER),
    )
    return any(tried(scorer(metric), example, answer).calls_model for answer in answers)


def as_answer(example: dspy.Example, outputs: Iterable[str]) -> dict[str, Value]:
    """Return an example's outputs as a correct answer, with empty strings for missing outputs."""
    return {name: example.get(name, "") for name in outputs}


def output_types(program: dspy.Module) -> Mapping[str, Annotation]:
    """Return the types of all predictors' outputs, keyed by output name."""
    types: dict[str, Annotation] = {}
    for predictor in program.predictors():
        for name, field in predictor.signature.output_fields.items():
            types[name] = field.annotation
    return types
