"""Scores of answers that no model gave, such as the same answer to all inputs."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import dspy
import numpy as np

from plr_dspy.labels.outputs import LabelOutput, label_output
from plr_dspy.labels.trials import scorer, tried
from plr_dspy.lm.plain_text_adapter import name_of_label
from plr_dspy.metrics.by_example import Metric
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.splits import Examples, answer_classes, value_key

MAX_SECONDS = 5.0  # maximum time for a metric's calls, in seconds
MAX_LABELS = 2  # maximum number of labels to try with a metric that scores single examples


class Constant(NamedTuple):
    """An answer that is given to all inputs, and its score."""

    labels: list[str]  # the answer: a value for each output, as text
    score: float


def best_constant(metric: Metric, program: dspy.Module, examples: Examples) -> Constant | None:
    """Return the answer that scores best if it is given to all inputs, with its score.

    Try only the most frequent answers. However, for a metric over a set, try every label in the
    examples, because a rare label may score best. Return None if the examples have no answer, or if
    the metric fails, is slow, or calls a model.
    """
    if isinstance(metric, SetMetric):
        return _best_label(metric, program, examples)
    constants = []
    for answer in _frequent_answers(program, examples):
        results = metric_results(metric, examples, [answer for _ in examples])
        if not results and None in answer.values():
            continue  # The metric may accept only labels.
        if not results:
            return None
        labels = [name_of_label(value) for value in answer.values()]
        constants.append(Constant(labels, sum(results) / len(results)))
    return max(constants, key=lambda constant: constant.score, default=None)


def _best_label(metric: SetMetric, program: dspy.Module, examples: Examples) -> Constant | None:
    """Return the best label to give to all inputs, and its score. Return None if the metric fails."""
    right_labels = metric.right_labels(examples)
    all_labels = metric.output_labels(program, examples)
    constants = []
    with contextlib.suppress(Exception, SystemExit):
        for label, _ in Counter(right_labels).most_common():
            score = metric.score(right_labels, [label for _ in examples], labels=all_labels)
            constants.append(Constant([label], score))
        return max(constants, key=lambda constant: constant.score, default=None)
    return None


def _frequent_answers(program: dspy.Module, examples: Examples) -> list[dict[str, Any]]:
    """Return the most frequent answers in the examples. Labels are converted to the output's type."""
    output = label_output(program)
    if isinstance(output, LabelOutput) and output.counts(examples).any():
        values = [*output.labels.values(), None]
        counts = np.append(output.counts(examples), output.num_none(examples))
        most_frequent = np.argsort(-counts, kind="stable")[:MAX_LABELS]
        return [{output.name: values[index]} for index in most_frequent if counts[index]]
    answer = _most_frequent_row(program, examples)
    return [answer] if answer else []


def _most_frequent_row(program: dspy.Module, examples: Examples) -> dict[str, Any]:
    """Return the most frequent class's answer, without fields whose values differ within the class."""
    predictors = program.predictors()
    all_outputs = {name for predictor in predictors for name in predictor.signature.output_fields}
    rows = [dict(example.labels().items()) for example in examples]
    # Ignore columns that are not outputs, such as a user's name. If no column is an output, ignore only
    # columns with the same value everywhere, such as the name of the data set.
    names = set[str]().union(*rows)
    columns = names & all_outputs or {name for name in names if _varies(rows, name)}
    classes = answer_classes(rows, sorted(columns))
    most_frequent = max(classes, key=Counter(classes).__getitem__)
    same_class = [row for row, own_class in zip(rows, classes, strict=True) if own_class == most_frequent]
    answer = {}
    for name in sorted(columns):
        if len({value_key(row.get(name)) for row in same_class}) == 1:
            answer[name] = same_class[0].get(name)
    outputs = list(predictors[-1].signature.output_fields)
    if len(outputs) == 1 and len(answer) == 1 and not answer.keys() & all_outputs:
        # Name the answer after the output, because the metric may compare this output with a
        # label that has another name.
        answer = dict(zip(outputs, answer.values(), strict=True))
    return answer


def _varies(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return whether a column has more than one value."""
    return len({value_key(row.get(name)) for row in rows}) > 1


def metric_results(metric: Metric, examples: Examples, answers: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the metric's score of each answer or, for a metric over a set, the label in each answer.

    Return an empty list if the metric is too slow, fails, or calls a language model.
    """
    if language_models(metric):
        return []
    deadline = time.monotonic() + MAX_SECONDS
    function = metric.answer if isinstance(metric, SetMetric) else scorer(metric)
    results: list[Any] = []
    with contextlib.suppress(Exception):  # `answers` may be votes, and a vote without neighbors fails.
        for example, answer in zip(examples, answers, strict=True):
            trial = tried(function, example, answer)
            if trial.error is not None or trial.calls_model or time.monotonic() > deadline:
                return []
            results.append(trial.result)
        return results
    return []
