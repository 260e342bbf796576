"""Trials of metrics on the answers in examples, to find errors before any program call."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import dspy

from plr_dspy.labels.work import NoCalls
from plr_dspy.lm.plain_text_adapter import Annotation, Value
from plr_dspy.metrics.by_example import Metric, as_score, metric_caller
from plr_dspy.metrics.copies import own_copy

WRONG_ANSWER = "..."  # an answer that is neither empty nor correct


class Trial(NamedTuple):
    """A trial of a metric on an answer."""

    error: BaseException | None  # the error that the metric raised, if any
    example: dspy.Example  # the example that was passed to the metric
    calls_model: bool = False  # whether the metric tried to call a language model


class Trials:
    """Trials of a metric on the answers in examples. Results are stored, because metrics may be slow."""

    def __init__(self, program: dspy.Module, metric: Metric) -> None:
        self._outputs = output_types(program)
        self._metric = metric
        self._known: dict[int, Trial] = {}  # keyed by `id(example)`, because the examples stay in memory

    def of(self, example: dspy.Example) -> Trial:
        """Return the trial of the metric on the answer in an example."""
        if id(example) not in self._known:
            self._known[id(example)] = tried(self._metric, example, as_answer(example, self._outputs))
        return self._known[id(example)]


def tried(metric: Metric, example: dspy.Example, answer: Mapping[str, Value]) -> Trial:
    """Return the trial of a metric on an answer.

    A metric that tries to call a language model is stopped before the call. The trial then has no
    error.
    """
    calls = NoCalls()
    call_metric = metric_caller(metric)
    example_copy = own_copy(example)
    try:
        with dspy.context(callbacks=[calls], trace=[]):
            as_score(call_metric(example_copy, dspy.Prediction(dict(answer))))
    except (Exception, SystemExit) as error:
        if not calls.stopped:
            return Trial(error, example_copy)
    return Trial(None, example_copy, calls.stopped)


def fails(metric: Metric, example: dspy.Example, answer: Mapping[str, Value]) -> bool:
    """Return whether a metric raises an error when it scores an answer."""
    return tried(metric, example, answer).error is not None


def calls_model(metric: Metric, example: dspy.Example, program: dspy.Module) -> bool:
    """Return whether a metric tries to call a language model to score a correct, empty or wrong answer."""
    outputs = output_types(program)
    answers = (as_answer(example, outputs), dict.fromkeys(outputs, ""), dict.fromkeys(outputs, WRONG_ANSWER))
    return any(tried(metric, example, answer).calls_model for answer in answers)


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
