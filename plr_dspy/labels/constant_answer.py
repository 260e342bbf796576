"""Scores of answers that no model gave, such as the same answer to all inputs."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import dspy

from plr_dspy.labels.trials import scorer, tried
from plr_dspy.lm.plain_text_adapter import name_of_label
from plr_dspy.metrics.by_example import Metric
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.splits import Examples, answer_classes, value_key
from plr_dspy.report.evaluations import ConstantScore

MAX_SECONDS = 2.0  # maximum time for a metric's calls, in seconds


def constant_score(metric: Metric, program: dspy.Module, examples: Examples) -> ConstantScore | None:
    """Return the score of a constant answer, or None if the metric fails, is slow, or calls a model.

    The constant answer is the most frequent label. For a metric over a set, it is the label with
    the best score.
    """
    if isinstance(metric, SetMetric):
        right_labels = metric.right_labels(examples)
        labels = metric.output_labels(program, examples)
        scores = {}
        for label, _ in Counter(right_labels).most_common():
            scores[label] = metric.score(right_labels, [label for _ in examples], labels=labels)
        best = max(scores, key=scores.__getitem__)
        return ConstantScore(best, scores[best])
    answer = _most_frequent_answer(program, examples)
    results = metric_results(metric, examples, [answer for _ in examples])
    if not answer or not results:
        return None
    return ConstantScore(", ".join(map(name_of_label, answer.values())), sum(results) / len(results))


def _most_frequent_answer(program: dspy.Module, examples: Examples) -> dict[str, Any]:
    """Return the labels of the most frequent class, without fields whose values differ in the class."""
    rows = [dict(example.labels().items()) for example in examples]
    classes = answer_classes(rows, sorted({name for row in rows for name in row}))
    most_frequent = max(classes, key=Counter(classes).__getitem__)
    same_class = [row for row, own_class in zip(rows, classes, strict=True) if own_class == most_frequent]
    answer = {}
    for name, value in same_class[0].items():
        if len({value_key(row.get(name)) for row in same_class}) == 1:
            answer[name] = value
    predictors = program.predictors()
    all_outputs = {name for predictor in predictors for name in predictor.signature.output_fields}
    outputs = list(predictors[-1].signature.output_fields)
    if len(outputs) == 1 and len(answer) == 1 and not answer.keys() & all_outputs:
        # Name the answer after the output, because the metric may compare this output with a
        # label that has another name.
        answer = dict(zip(outputs, answer.values(), strict=True))
    return answer


def metric_results(metric: Metric, examples: Examples, answers: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the metric's score of each answer or, for a metric over a set, the label in each answer.

    Return an empty list if the metric is too slow, fails, or calls a language model.
    """
    if language_models(metric):
        return []
    deadline = time.monotonic() + MAX_SECONDS
    function = metric.answer if isinstance(metric, SetMetric) else scorer(metric)
    results: list[Any] = []
    with contextlib.suppress(Exception):  # A vote fails if an example has no neighbors.
        for example, answer in zip(examples, answers, strict=True):
            trial = tried(function, example, answer)
            if trial.error is not None or trial.calls_model or time.monotonic() > deadline:
                return []
            results.append(trial.result)
        return results
    return []
