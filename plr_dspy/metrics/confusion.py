"""Metrics of a confusion matrix, such as F1, which are no mean of scores by example."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import dspy
import numpy as np
from numpy.typing import ArrayLike, NDArray

from plr_dspy.dspy_compat import Choice, Noul
from plr_dspy.errors import MetricError, UserError, UserTypeError
from plr_dspy.lm.plain_text_adapter import labels_of, name_of_label, without_none
from plr_dspy.metrics.by_example import SHOWN, as_score, takes
from plr_dspy.scoring.confusion_scores import Array, confusion_matrix, possible_labels

STEP = 1e-6  # of finite differences, as a share of all examples


class SetMetric(ABC):
    """A metric over a set of examples, of the labels that a program answers against those of the examples.

    The optimizers of this package take it wherever they take a metric by example. A call, ``metric(example,
    prediction)``, returns whether a single label is right, for DSPy's own optimizers and for bootstrapping.

    Args:
        field: Name of the output, and of the examples' field, that has the label; None takes the only one.
    """

    bounds: tuple[float, float] = (0.0, 1.0)  # the least and the largest value
    label: str | None = None  # the only label that the metric is about, if any

    def __init__(self, *, field: str | None = None) -> None:
        self.field = field

    @abstractmethod
    def value(self, counts: Array, labels: Sequence[str]) -> float:
        """Return the metric of a confusion matrix, which must not depend on the total of the counts.

        Args:
            counts: Right labels in rows, answered labels in columns, ``[k, k + 1]``. The last column counts unread
                replies, and answers that are no label. Rows without examples are empty. Counts may be fractions.
            labels: Their names, ``[k]``.
        """

    def derivative(self, counts: Array, labels: Sequence[str]) -> Array:
        """Return the derivative of `value` by each count that is not 0, by central differences."""
        derivative = np.zeros_like(counts)
        for cell in zip(*np.nonzero(counts), strict=True):
            step = min(STEP * counts.sum(), counts[cell])
            values = []
            for change in (step, -step):
                changed = counts.copy()
                changed[cell] += change
                values.append(self.value(changed, labels))
            derivative[cell] = (values[0] - values[1]) / (2.0 * step)
        return derivative

    def score(
        self,
        right_labels: Sequence[str],
        answers: Sequence[str | None],
        *,
        labels: Sequence[str] = (),
        weights: ArrayLike = 1.0,
    ) -> float:
        """Return the metric of answers; None stands for an unread reply, and `labels` are those of the output."""
        labels = possible_labels(right_labels, labels)
        return self.value(confusion_matrix(right_labels, answers, labels, weights), labels)

    def __call__(self, example: dspy.Example, prediction: object, trace: object = None) -> float:
        return float(self.right_label(example) == self.answer(example, prediction))

    def right_label(self, example: dspy.Example) -> str:
        """Return the label of an example, as demos show it."""
        name = self._label_field(example)
        label = example[name]
        if isinstance(label, (list, tuple, set, frozenset, Mapping)):
            raise UserError(
                f"metric: each example must have one label; {name!r} holds a {type(label).__name__}: use a metric by "
                "example"
            )
        return name_of_label(label)

    def right_labels(self, examples: Sequence[dspy.Example]) -> list[str]:
        """Return the labels of examples."""
        return [self.right_label(example) for example in examples]

    def answer(self, example: dspy.Example, prediction: object) -> str:
        """Return the label that a program answers to an example, as demos show it."""
        name = self._label_field(example)
        if not isinstance(prediction, dspy.Prediction) or name not in prediction:
            raise MetricError(
                f"the metric reads the label at {name!r}, as in the examples, and the program answers {prediction!r}: "
                "give both the same name, or pass field"
            )
        return name_of_label(prediction[name])

    def output_labels(self, program: dspy.Module, examples: Sequence[dspy.Example]) -> list[str]:
        """Return the labels that the type of the program's output allows; empty if it allows any text."""
        name = self._label_field(examples[0])
        labels: dict[str, None] = {}
        for predictor in program.predictors():
            field = predictor.signature.output_fields.get(name)
            if field is None:
                continue
            annotation = without_none(field.annotation)
            allows_none = annotation is not field.annotation
            if isinstance(annotation, type) and issubclass(annotation, (Choice, Noul)):
                annotation = annotation.model_fields["value"].annotation  # type: ignore[attr-defined]
            of_type = labels_of(annotation) or {}
            labels |= dict.fromkeys(of_type)
            if of_type and allows_none:
                labels[name_of_label(None)] = None
        return list(labels)

    def check(self, *splits: Sequence[dspy.Example]) -> None:
        """Raise a ValueError if an example has no label, or no example has the one that the metric is about."""
        counts: Counter[str] = Counter()
        for split in splits:
            counts.update(self.right_labels(split))
        if self.label is not None and not counts[self.label]:
            raise UserError(
                f"metric: no example has {self.label!r}, which {self!r} is about; they have {list(counts)[:5]}"
            )

    def _label_field(self, example: dspy.Example) -> str:
        """Return the name of the field that has the label: the given one, or the only one beside inputs."""
        names = [self.field] if self.field is not None else list(example.labels().keys())
        if len(names) != 1 or names[0] not in example:
            wanted = "one field beside its inputs" if self.field is None else repr(self.field)
            fields = repr(dict(example.items()))[:SHOWN]
            raise UserError(
                f"metric: each example must have {wanted} for the label; one holds {fields}: leave it out, or name the "
                "field of the label, such as F1(..., field='label')"
            )
        return str(names[0])

    def __repr__(self) -> str:
        arguments = []
        for name, value in vars(self).items():
            if value is not None and name != "bounds":
                arguments.append(f"{name}={getattr(value, '__name__', repr(value))}")
        return f"{type(self).__name__}({', '.join(arguments)})"


class ConfusionMetric(SetMetric):
    """Any metric of a confusion matrix.

    Args:
        function: ``function(counts, labels)`` returns a number. ``counts`` is an array ``[k, k + 1]``: right labels in
            rows, answered labels in columns. The last column counts unread replies, and answers that are no label.
            ``labels`` has their ``k`` names: those of the output's type (a Literal, an enum or a bool), then others
            that examples have. Counts may be fractions, and rows may be empty. The value must not depend on the total
            of the counts.
        output: Name of the output, and of the examples' field, that has the label; None takes the only one.
        name: What messages and reports call the metric; None names it by its arguments.
        bounds: The least and the largest value, if these are known: intervals end there.
    """

    def __init__(
        self,
        function: Callable[[Array, list[str]], float],
        output: str | None = None,
        name: str | None = None,
        *,
        bounds: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        super().__init__(field=output)
        if not callable(function) or isinstance(function, SetMetric) or takes(function, 2) is False:
            raise UserTypeError(f"function must be callable as function(counts, labels); got {function!r}")
        low, high = map(float, bounds)
        if not low < high:
            raise UserError(f"bounds must be the least and the largest value, such as (0.0, 1.0); got {bounds!r}")
        self.function = function
        self.name = name
        self.bounds = (low, high)

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        return as_score(self.function(counts.copy(), list(labels)))

    def __repr__(self) -> str:
        return self.name or super().__repr__()


def _has_examples(counts: Array) -> NDArray[np.bool_]:
    """Return which labels examples have, ``[k]``."""
    return np.asarray(counts.sum(axis=1) > 0)


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Divide, with 0 if there is nothing to divide by."""
    return np.divide(numerator, denominator, out=np.zeros_like(denominator), where=denominator > 0)


class F1(SetMetric):
    """The F1 score, with the values of `sklearn.metrics.f1_score` if all answers are labels.

    It is 0 if nothing is predicted and nothing is there to be found. A reply that cannot be read is a wrong answer for
    every label: it misses the right one, and counts as a false positive of each other one.

    Args:
        label: Whose F1 it is, for "binary".
        average: "binary" for one label against all others; "macro" for the mean over the labels of the examples, and
            "micro" for all labels counted together. None is "binary" with a label, and "macro" without one.
        field: As in `SetMetric`.
    """

    def __init__(
        self, label: Any = None, *, average: Literal["binary", "macro", "micro"] | None = None, field: str | None = None
    ) -> None:
        super().__init__(field=field)
        average = average or ("macro" if label is None else "binary")
        if average not in ("binary", "macro", "micro"):
            raise UserError(f"average must be 'binary', 'macro' or 'micro'; got {average!r}")
        if (average == "binary") != (label is not None):
            raise UserError(f"a label goes with average='binary' alone; got label={label!r}, average={average!r}")
        self.label = None if label is None else name_of_label(label)
        self.average = average

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        has_examples = _has_examples(counts)
        unread = counts[:, -1]
        answers = counts[:, :-1].sum(axis=0)
        if self.average == "micro":
            return float(2.0 * np.trace(counts) / (answers[has_examples].sum() + unread.sum() + counts.sum()))
        # Unread replies to examples of other labels are false positives.
        false_or_right = answers + unread.sum() - unread
        scores = _ratio(2.0 * np.diag(counts), counts.sum(axis=1) + false_or_right)
        if self.label is None:
            return float(scores[has_examples].mean())
        return float(sum(score for label, score in zip(labels, scores, strict=True) if label == self.label))


class MatthewsCorrelation(SetMetric):
    """Matthews' correlation coefficient of answers and labels.

    Its values are those of `sklearn.metrics.matthews_corrcoef` if all answers are labels. A reply that cannot be read
    counts as an answer that is spread evenly over the wrong labels of the examples.
    """

    bounds = (-1.0, 1.0)

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        has_examples = _has_examples(counts)
        of_label = counts.sum(axis=1)
        unread = counts[:, -1]
        spread = has_examples * (unread.sum() - unread) / max(1, has_examples.sum() - 1)
        answers = counts[:, :-1].sum(axis=0) + spread
        total = counts.sum()
        covariance = np.trace(counts) * total - of_label @ answers
        variances = (total**2 - of_label @ of_label) * (total**2 - answers @ answers)
        if variances <= 1e-12 * total**4:
            return 0.0
        return float(covariance / math.sqrt(variances))


class BalancedAccuracy(SetMetric):
    """The mean over labels of the share of their examples that is answered right (macro recall of scikit-learn)."""

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        recalls = _ratio(np.diag(counts), counts.sum(axis=1))
        return float(recalls[_has_examples(counts)].mean())
