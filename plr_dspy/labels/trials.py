"""Trials: answers that a metric scores before any program call, to find out whether it raises an error."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import dspy

from plr_dspy.labels.work import NoCalls
from plr_dspy.lm.plain_text_adapter import Annotation, Value
from plr_dspy.metrics.by_example import Metric, as_score, metric_caller
from plr_dspy.metrics.copies import own_copy


class Trial(NamedTuple):
    """The error that a metric raised for an answer, if any, and the example that was passed to the metric."""

    error: BaseException | None
    example: dspy.Example


class Trials:
    """Trials of a metric on the answers in examples. Each answer is scored only once, because metrics may be slow."""

    def __init__(self, program: dspy.Module, metric: Metric) -> None:
        self._outputs = output_types(program)
        self._metric = metric
        self._known: dict[int, Trial] = {}  # keyed by `id` of the example, which stays in memory

    def of(self, example: dspy.Example) -> Trial:
        """Score the answer in an example, unless it has been scored before."""
        if id(example) not in self._known:
            self._known[id(example)] = tried(self._metric, example, as_answer(example, self._outputs))
        return self._known[id(example)]


def tried(metric: Metric, example: dspy.Example, answer: Mapping[str, Value]) -> Trial:
    """Score an answer with a metric.

    If the metric tries to call a language model, stop it before the call, and return no error.
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
    return Trial(None, example_copy)


def fails(metric: Metric, example: dspy.Example, answer: Mapping[str, Value]) -> bool:
    """Return whether a metric raises an error when it scores an answer."""
    return tried(metric, example, answer).error is not None


def as_answer(example: dspy.Example, outputs: Iterable[str]) -> dict[str, Value]:
    """Return the fields of a correct answer. Outputs that the example does not have are empty text."""
    return {name: example.get(name, "") for name in outputs}


def output_types(program: dspy.Module) -> Mapping[str, Annotation]:
    """Return the types of all predictors' outputs, keyed by output name."""
    types: dict[str, Annotation] = {}
    for predictor in program.predictors():
        for name, field in predictor.signature.output_fields.items():
            types[name] = field.annotation
    return types
