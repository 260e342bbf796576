"""Metrics, such as F1, that are calculated from a confusion matrix and not averaged over examples."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import dspy
import numpy as np
from numpy.typing import ArrayLike

from plr_dspy.errors import MetricError, UserError, UserTypeError
from plr_dspy.lm.plain_text_adapter import labels_of, name_of_label, without_none
from plr_dspy.metrics.by_example import SHOWN, as_score, fix_for_metric, takes
from plr_dspy.report.formats import listed, shorten
from plr_dspy.scoring.confusion_scores import confusion_matrix, possible_labels, ratio
from plr_dspy.statistics.arrays import Array

MOST_LISTED = 5  # maximum number of labels that a message lists


class SetMetric(ABC):
    """A metric over a set of examples that compares predicted labels with true labels.

    For DSPy's optimizers and bootstrapping, ``metric(example, prediction)`` returns 1 if the label
    is correct, and 0 otherwise.

    Args:
        field: Name of the field that holds the label in predictions and examples. By default, the
            examples' only non-input field is used.
    """

    bounds: tuple[float, float] = (0.0, 1.0)  # lowest and highest possible values
    label: str | None = None  # the positive label, if the metric has one

    def __init__(self, *, field: str | None = None) -> None:
        self.field = field

    @abstractmethod
    def value(self, counts: Array, labels: Sequence[str]) -> float:
        """Return the metric's value for a confusion matrix.

        Subclasses must return the same value if all counts are multiplied by the same factor.

        Args:
            counts: True labels in rows, predicted labels in columns, ``[k, k + 1]``. The last
                column counts unparsable replies and answers that are not labels. Counts may
                be fractional, and all counts in a row may be 0.
            labels: The label names, ``[k]``.
        """

    def score(
        self,
        right_labels: Sequence[str],
        answers: Sequence[str | None],
        *,
        labels: Sequence[str] = (),
        weights: ArrayLike = 1.0,
    ) -> float:
        """Return the metric's value for `answers` to examples whose true labels are `right_labels`.

        The answer for an unparsable reply is None. `labels` are the labels that the output's type
        allows, and `weights` are the weights of the examples.
        """
        labels = possible_labels(right_labels, labels)
        return self.value(confusion_matrix(right_labels, answers, labels, weights), labels)

    def __call__(self, example: dspy.Example, prediction: object, trace: object = None) -> float:
        return float(self.right_label(example) == self.answer(example, prediction))

    def right_label(self, example: dspy.Example) -> str:
        """Return an example's true label as text, formatted as in demos."""
        name = self._label_field(example)
        label = example[name]
        if isinstance(label, (list, tuple, set, frozenset, Mapping)):
            raise UserError(
                f"for this metric, each example must have one label; field {name!r} holds a {type(label).__name__}: "
                "use a metric that scores single examples"
            )
        return name_of_label(label)

    def right_labels(self, examples: Sequence[dspy.Example]) -> list[str]:
        """Return the examples' true labels."""
        return [self.right_label(example) for example in examples]

    def answer(self, example: dspy.Example, prediction: object) -> str:
        """Return the predicted label as text, formatted as in demos."""
        name = self._label_field(example)
        if not isinstance(prediction, dspy.Prediction) or name not in prediction:
            raise MetricError(
                f"the metric needs predictions with a label in field {name!r}, as in the examples; got {prediction!r}: "
                f"rename the program's output to {name!r}, or pass another field to the metric"
            )
        return name_of_label(prediction[name])

    def output_labels(self, program: dspy.Module, examples: Sequence[dspy.Example]) -> list[str]:
        """Return the labels that the program's output type allows, or an empty list if it allows any text."""
        name = self._label_field(examples[0])
        labels: dict[str, None] = {}
        for predictor in program.predictors():
            field = predictor.signature.output_fields.get(name)
            if field is None:
                continue
            annotation = without_none(field.annotation)
            type_labels = labels_of(annotation) or {}
            labels |= dict.fromkeys(type_labels)
            if type_labels and annotation != field.annotation:
                labels[name_of_label(None)] = None
        return list(labels)

    def check(self, *splits: Sequence[dspy.Example]) -> None:
        """Raise a ValueError if an example has no label, or if no example has the metric's positive label."""
        counts: Counter[str] = Counter()
        for split in splits:
            counts.update(self.right_labels(split))
        if self.label is not None and not counts[self.label]:
            labels = listed(map(repr, counts), MOST_LISTED) or "none"
            raise UserError(
                f"for this metric, at least one example must have the label {self.label!r}, the positive label of "
                f"{self!r}; got the labels {labels}: pass one of these labels to the metric, or add examples with "
                f"the label {self.label!r}"
            )

    def check_value(self, examples: Sequence[dspy.Example], labels: Sequence[str]) -> None:
        """Raise an error if `value()` fails for a constant answer, for example because it divides by 0.

        Also raise an error if it fails both for correct answers and for unparsable replies.
        `labels` are as in `score()`.
        """
        right_labels = self.right_labels(examples)
        try:
            self.score(right_labels, right_labels, labels=labels)
        except Exception:  # The user's function may raise any exception.
            self.score(right_labels, [None for _ in right_labels], labels=labels)
        for label in dict.fromkeys([*labels, *right_labels]):
            try:
                self.score(right_labels, [label for _ in right_labels], labels=labels)
            except Exception as error:
                raise UserError(
                    f"{self!r} failed for a program that always answers {label!r} ({error}): return a finite "
                    "number for every confusion matrix, even if a row or a column contains only zeros"
                ) from error

    def _label_field(self, example: dspy.Example) -> str:
        names = [self.field] if self.field is not None else list(example.labels().keys())
        if len(names) != 1 or names[0] not in example:
            requirement = "exactly one non-input field, which holds the label"
            fix = (
                "pass the name of the label field, as in F1(..., field='label') (on the command line, write metric = "
                "F1(...) in a file, and pass --metric FILE.py:metric)"
            )
            if self.field is not None:
                requirement = f"a label in the field {self.field!r}"
                fix = "add this field, or pass the name of another field to the metric"
            fields = shorten(repr(dict(example.items())), SHOWN)
            raise UserError(
                f"for this metric, each example must have {requirement}; got the example {fields}: {fix}"
            )
        return str(names[0])

    def __repr__(self) -> str:
        arguments = []
        for name, value in vars(self).items():
            if value is not None and name != "bounds":
                arguments.append(f"{name}={getattr(value, '__name__', repr(value))}")
        return f"{type(self).__name__}({', '.join(arguments)})"


def check_over_set(metric: Any) -> SetMetric:
    """Return `metric`, or raise a ValueError if it is not a metric over a set of examples."""
    if isinstance(metric, SetMetric):
        return metric
    fix = "pass a metric such as F1() or ConfusionMetric(function), or omit metric to maximize accuracy"
    raise UserError(
        f"metric must be a metric over a set of examples; got {shorten(repr(metric), SHOWN)}: "
        f"{fix_for_metric(metric, otherwise=fix)}"
    )


class ConfusionMetric(SetMetric):
    """A metric that the user's function calculates from a confusion matrix.

    Args:
        function: A function that is called as ``function(counts, labels)`` and returns a number.
            The arguments are as in `SetMetric.value()`. `labels` starts with the labels of the
            output's type (a Literal, an enum or a bool). Other labels in the examples follow.
        field: As in `SetMetric`.
        bounds: Lowest and highest possible values, if known. Confidence intervals do not extend
            beyond these bounds.
    """

    def __init__(
        self,
        function: Callable[[Array, list[str]], float],
        *,
        field: str | None = None,
        bounds: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        super().__init__(field=field)
        if not callable(function) or isinstance(function, SetMetric) or takes(function, 2) is False:
            raise UserTypeError(
                f"function must be callable as function(counts, labels); got {function!r}: pass a function of two "
                "arguments"
            )
        low, high = map(float, bounds)
        if not low < high:
            raise UserError(
                f"bounds must be two numbers, the lower one first; got {bounds!r}: pass bounds such as (0.0, 1.0)"
            )
        self.function = function
        self.bounds = (low, high)

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        return as_score(self.function(counts.copy(), list(labels)))


class F1(SetMetric):
    """The F1 score, equal to `sklearn.metrics.f1_score` if all answers are labels of the examples.

    The score of a label that is neither predicted nor present is 0. An unparsable reply is a
    false negative for the true label, and a false positive for every other label. In the "micro"
    average, such a reply adds only one false positive.

    Args:
        label: The positive label for the average "binary".
        average: "binary" for one label against all others; "macro" for the mean over the
            examples' labels; "micro" for the pooled counts of the examples' labels. The default
            is "binary" if `label` is passed, else "macro".
        field: As in `SetMetric`.
    """

    def __init__(
        self,
        label: Any = None,
        *,
        average: Literal["binary", "macro", "micro"] | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(field=field)
        allowed = ("macro", "micro") if label is None else ("binary",)
        self.label = None if label is None else name_of_label(label)
        self.average = average or allowed[0]
        if self.average not in allowed:
            fix = (
                "omit average, or pass the positive label as label"
                if label is None
                else "omit average or label"
            )
            raise UserError(
                f"average must be {' or '.join(map(repr, allowed))} if label={label!r}; got {average!r}: {fix}"
            )

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        label_counts = counts.sum(axis=1)
        has_examples = label_counts > 0
        unread = counts[:, -1]
        answers = counts[:, :-1].sum(axis=0)
        right = np.diagonal(counts)
        if self.average == "micro":
            predicted = answers[has_examples].sum() + unread.sum()
            return float(2.0 * right.sum() / (predicted + counts.sum()))
        # Unparsable replies to examples with other labels are false positives.
        predicted = answers + unread.sum() - unread
        scores = ratio(2.0 * right, label_counts + predicted)
        if self.label is None:
            return float(scores[has_examples].mean())
        is_positive = np.array([label == self.label for label in labels], dtype=bool)
        return float(scores[is_positive].sum())


class MatthewsCorrelation(SetMetric):
    """The Matthews correlation coefficient between answers and true labels.

    The value equals `sklearn.metrics.matthews_corrcoef` if all answers are labels. An
    unparsable reply is divided equally among the incorrect labels that occur in the examples.
    """

    bounds = (-1.0, 1.0)

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        label_counts = counts.sum(axis=1)
        has_examples = label_counts > 0
        unread = counts[:, -1]
        unread_share = has_examples * (unread.sum() - unread) / max(1, has_examples.sum() - 1)
        answers = counts[:, :-1].sum(axis=0) + unread_share
        total = counts.sum()
        covariance = np.trace(counts) * total - label_counts @ answers
        variances = (total**2 - label_counts @ label_counts) * (total**2 - answers @ answers)
        if variances <= 1e-12 * total**4:
            return 0.0
        return float(covariance / math.sqrt(variances))


class BalancedAccuracy(SetMetric):
    """The mean recall over labels that have examples, as in `sklearn.metrics.balanced_accuracy_score`."""

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        label_counts = counts.sum(axis=1)
        recalls = ratio(np.diagonal(counts), label_counts)
        return float(recalls[label_counts > 0].mean())
