"""Metrics of a confusion matrix, such as F1, which are no mean of scores by example."""

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import dspy
import numpy as np
from numpy.typing import ArrayLike

from plr_dspy.dspy_compat import AdapterParseError, Choice, Noul
from plr_dspy.errors import MetricError, UserError, UserTypeError
from plr_dspy.lm.plain_text_adapter import labels_of, name_of_label, without_none
from plr_dspy.metrics.by_example import SHOWN, as_score, takes
from plr_dspy.metrics.copies import check_copies
from plr_dspy.scoring.confusion_scores import Array, confusion_matrix, possible_labels

logger = logging.getLogger(__name__)

ENOUGH_EXAMPLES = 10  # of each label, in the train and in the selection split, to know the metric well
MIN_SHARE = 0.2  # of all examples, in the smaller split
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

    def __call__(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float:
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

    def answer(self, example: dspy.Example, prediction: Any) -> str:
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
        labels: list[str] = []
        for predictor in program.predictors():
            field = predictor.signature.output_fields.get(name)
            if field is None:
                continue
            annotation = without_none(field.annotation)
            if isinstance(annotation, type) and issubclass(annotation, (Choice, Noul)):
                value = annotation.model_fields["value"]  # type: ignore[attr-defined]
                annotation = value.annotation
            labels += labels_of(annotation) or {}
            if labels and without_none(field.annotation) is not field.annotation:
                labels.append(name_of_label(None))
        return list(dict.fromkeys(labels))

    def check(self, *splits: Sequence[dspy.Example]) -> None:
        """Warn if a split has few examples of a label.

        Raises:
            ValueError: if an example has no label, or none has the label that the metric is about.
        """
        counts = [Counter(self.right_labels(split)) for split in splits]
        total = sum(counts, Counter[str]())
        if self.label is not None and not total[self.label]:
            others = ", ".join(repr(label) for label, _ in total.most_common(5))
            if len(total) > 5:
                others += ", ..."
            raise UserError(f"metric: no example has {self.label!r}, which {self!r} is about; they have {others}")
        watched = list(total) if self.label is None else [self.label]
        rarest = min(watched, key=lambda label: min(count[label] for count in counts), default=None)
        if rarest is None or min(count[rarest] for count in counts) >= ENOUGH_EXAMPLES:
            return
        purposes = [""]
        in_each = ""
        if len(splits) > 1:
            purposes = [" to search", " to compare by"]
            in_each = " in either part"
        parts = [
            f"{count[rarest]} of the {count.total()} examples{purpose}"
            for count, purpose in zip(counts, purposes, strict=True)
        ]
        least = min(count[rarest] for count in counts)
        needed = math.ceil(total.total() * ENOUGH_EXAMPLES / max(least, total[rarest] * MIN_SHARE))
        logger.warning(
            f"only {' and '.join(parts)} have {rarest!r}, so that {self!r} is known to within large errors only. Of "
            f"{needed} examples, with the same share, {ENOUGH_EXAMPLES} would{in_each}"
        )

    def evaluate(self, program: dspy.Module, devset: Sequence[dspy.Example], **options: Any) -> float:
        """Score a program by the metric on examples, with `dspy.Evaluate`.

        Args:
            program, devset: The program, and examples with inputs and labels.
            **options: Of `dspy.Evaluate`, such as num_threads. It logs the mean score of single examples.

        Returns:
            The metric on the examples that ran; a warning counts those that are left out, as a call on them failed.
        """
        check_copies("devset", devset)
        self.check(devset)
        pairs = self._answered(program, devset, **options)
        if num_failed := len(devset) - len(pairs):
            logger.warning("calls on %d of %d examples failed: they are left out", num_failed, len(devset))
        right_labels = [right_label for right_label, _ in pairs]
        answers = [answer for _, answer in pairs]
        value = self.score(right_labels, answers, labels=self.output_labels(program, devset))
        logger.info("%r: %.4g on %d examples", self, value, len(pairs))
        return value

    def _answered(
        self, program: dspy.Module, devset: Sequence[dspy.Example], **options: Any
    ) -> list[tuple[str, str | None]]:
        """Return the right label and the answer of each call that did not fail, by `dspy.Evaluate`."""
        unread = dspy.Prediction()
        pairs: list[tuple[str, str | None]] = []
        errors: list[Exception] = []

        def answered(**inputs: Any) -> Any:
            try:
                return program(**copy.deepcopy(inputs))
            except AdapterParseError:  # An unread reply is a wrong answer, and no failed call.
                return unread

        def record(example: dspy.Example, prediction: Any) -> float:
            right_label = self.right_label(example)
            answer = None
            if prediction is not unread:
                try:
                    answer = self.answer(example, prediction)
                except MetricError as error:
                    errors.append(error)
                    raise
            pairs.append((right_label, answer))
            return float(right_label == answer)

        try:
            dspy.Evaluate(devset=list(devset), metric=record, **options)(answered)
        except Exception as error:  # DSPy's own, which does not say why calls failed.
            errors.append(error)
            raise errors[0] from None
        if not pairs:
            raise (errors or [RuntimeError("all calls failed: dspy.Evaluate has logged why")])[0]
        return pairs

    def _label_field(self, example: dspy.Example) -> str:
        """Return the name of the field that has the label: the given one, or the only one beside inputs."""
        names = [self.field]
        if self.field is None:
            names = list(example.labels().keys())
        if not names or (len(names) == 1 and names[0] not in example):
            missing = "label beside its inputs" if self.field is None else repr(self.field)
            fields = repr(dict(example.items()))[:SHOWN]
            cure = "leave it out, give it one, or name the label's field as field='...'"
            raise UserError(f"metric: an example has no {missing}: {cure}; it holds {fields}")
        if len(names) != 1:
            raise UserError(
                f"metric: several fields beside the inputs may have the label, {names}: name the one that does, such "
                f"as F1(..., field={names[0]!r})"
            )
        return str(names[0])

    def __repr__(self) -> str:
        arguments = [
            f"{name}={getattr(value, '__name__', repr(value))}"
            for name, value in vars(self).items()
            if value is not None and name != "bounds"
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"


class ConfusionMetric(SetMetric):
    """Any metric of a confusion matrix.

    Args:
        function: ``function(counts, labels)`` returns a number. ``counts`` is an array ``[k, k + 1]``: right labels in
            rows, answered labels in columns. The last column counts unread replies, and answers that are no label.
            ``labels`` has their ``k`` names: those of the output's type (a Literal, an enum or a bool), then others
            that examples have. Counts may be fractions, and rows may be empty. The value must not depend on the total
            of the counts. The function is called some ``2 k (k + 1)`` times in each round of a search.
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
        try:
            low, high = map(float, bounds)
        except (TypeError, ValueError):
            low = high = math.nan
        if not low < high:
            raise UserError(f"bounds must be the least and the largest value, such as (0.0, 1.0); got {bounds!r}")
        self.function = function
        self.name = name
        self.bounds = (low, high)

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        try:
            return as_score(self.function(counts.copy(), list(labels)))
        except Exception as error:
            note = (
                f"(in the metric {self!r}, of the counts {counts.tolist()} of the labels {list(labels)}: return a "
                "number for all counts. With log_dir the same compile then goes on with accept_changes=True)"
            )
            error.__notes__ = [*getattr(error, "__notes__", ()), note]
            raise

    def __repr__(self) -> str:
        return self.name or super().__repr__()


def _has_examples(counts: Array) -> Any:
    """Return which labels examples have, ``[k]``."""
    return counts.sum(axis=1) > 0


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
        if average == "binary" and label is None:
            raise UserError(f"average={average!r} needs a label; got {label!r}")
        if average != "binary" and label is not None:
            raise UserError(f"average={average!r} takes no label; got {label!r}")
        self.label = None if label is None else name_of_label(label)
        self.average = average

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        if self.average == "micro":
            right = 2.0 * np.trace(counts)
            answers = counts[:, :-1].sum(axis=0)[_has_examples(counts)].sum() + counts[:, -1].sum()
            return float(right / (answers + counts.sum()))
        weights = self._weights(counts, labels)
        return float(weights @ _ratio(2.0 * np.diag(counts), self._denominators(counts)))

    def derivative(self, counts: Array, labels: Sequence[str]) -> Array:
        if self.average == "micro":
            return super().derivative(counts, labels)
        # F1 is 2 C[l, l] / d: a right answer adds 2 (1 - F1) / d, a miss and a false alarm add -F1 / d each.
        denominators = self._denominators(counts)
        per_count = _ratio(self._weights(counts, labels), denominators)
        losses = per_count * _ratio(2.0 * np.diag(counts), denominators)
        derivative = np.full(counts.shape, -losses.sum())
        derivative[:, :-1] = np.diag(2.0 * per_count) - losses[:, None] - losses
        return derivative

    def _weights(self, counts: Array, labels: Sequence[str]) -> Array:
        """Return what the F1 of each label counts, ``[k]``."""
        if self.label is None:
            has_examples = _has_examples(counts).astype(np.float64)
            return np.asarray(has_examples / has_examples.sum())
        return np.array([label == self.label for label in labels], dtype=np.float64)

    def _denominators(self, counts: Array) -> Array:
        """Return the examples of each label and the answers that name it, ``[k]``; unread replies to others do, too."""
        unread = counts[:, -1]
        answers = counts[:, :-1].sum(axis=0) + unread.sum() - unread
        return np.asarray(counts.sum(axis=1) + answers)


class MatthewsCorrelation(SetMetric):
    """Matthews' correlation coefficient of answers and labels.

    Its values are those of `sklearn.metrics.matthews_corrcoef` if all answers are labels. A reply that cannot be read
    counts as an answer that is spread evenly over the wrong labels of the examples.
    """

    bounds = (-1.0, 1.0)

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        of_label = counts.sum(axis=1)
        answers = self._answers(counts)
        total = counts.sum()
        covariance = np.trace(counts) * total - of_label @ answers
        variances = (total**2 - of_label @ of_label) * (total**2 - answers @ answers)
        if variances <= 1e-12 * total**4:
            return 0.0
        return float(covariance / math.sqrt(variances))

    def derivative(self, counts: Array, labels: Sequence[str]) -> Array:
        of_label = counts.sum(axis=1)
        answers = self._answers(counts)
        total = counts.sum()
        label_variance = total**2 - of_label @ of_label
        answer_variance = total**2 - answers @ answers
        if label_variance * answer_variance <= 1e-12 * total**4:
            return np.zeros_like(counts)
        # One more count in a column changes `answers`; these are the products of that change with both vectors.
        with_labels = self._of_columns(of_label, counts)
        with_answers = self._of_columns(answers, counts)
        change_of_covariance = np.eye(*counts.shape) * total + np.trace(counts) - answers[:, None] - with_labels
        relative_changes = (total - of_label)[:, None] / label_variance + (total - with_answers) / answer_variance
        change = change_of_covariance / math.sqrt(label_variance * answer_variance)
        return np.asarray(change - self.value(counts, labels) * relative_changes)

    def _answers(self, counts: Array) -> Array:
        """Return how often each label is answered, ``[k]``, with unread replies spread over the wrong labels."""
        has_examples = _has_examples(counts)
        unread = counts[:, -1]
        answers = counts[:, :-1].sum(axis=0)
        spread = has_examples * (unread.sum() - unread) / max(1, has_examples.sum() - 1)
        return np.asarray(answers + spread)

    def _of_columns(self, values: Array, counts: Array) -> Array:
        """Return the value of the label that each cell answers, ``[k, k + 1]``; unread, the mean of wrong labels."""
        has_examples = _has_examples(counts)
        others = (values @ has_examples - values) / max(1, has_examples.sum() - 1)
        return np.column_stack([np.tile(values, (len(values), 1)), others])


class BalancedAccuracy(SetMetric):
    """The mean over labels of the share of their examples that is answered right (macro recall of scikit-learn)."""

    def value(self, counts: Array, labels: Sequence[str]) -> float:
        has_examples = _has_examples(counts)
        recalls = _ratio(np.diag(counts), counts.sum(axis=1))
        return float(recalls[has_examples].mean())

    def derivative(self, counts: Array, labels: Sequence[str]) -> Array:
        of_label = counts.sum(axis=1)
        per_example = _ratio(np.ones_like(of_label), of_label * _has_examples(counts).sum())
        recalls = _ratio(np.diag(counts), of_label)
        is_right = np.eye(*counts.shape)
        return np.asarray((is_right - recalls[:, None]) * per_example[:, None])
