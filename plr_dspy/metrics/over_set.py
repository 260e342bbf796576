"""Metrics over a whole set of examples, such as F1, which are no mean of scores by example."""

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError
from numpy.typing import NDArray

from plr_dspy.errors import MetricError
from plr_dspy.lm.plain_text_adapter import name_of_label
from plr_dspy.metrics.by_example import SHOWN, as_score, metric_caller, takes
from plr_dspy.metrics.copies import check_copies, own_copy, own_value

logger = logging.getLogger(__name__)

MIN_OF_EACH = 10  # examples of each kind, in either part, from which on a metric is known well enough
MIN_SHARE = 0.2  # of all examples, that the smaller part has
TIE = 1e-4  # groups whose means differ by no more are equally bad
ABOVE_ALL = 1e9  # a confidence that no threshold of a probability excludes
NO_LABEL = "\0"  # stands for the answer of a reply that could not be read

Array: TypeAlias = NDArray[np.float64]


class SetMetric(ABC):
    """A metric over a set of examples; optimizers of this package take it wherever they take a metric by example.

    A call of it, ``metric(example, prediction)``, scores one example by itself: what DSPy's own optimizers, and
    bootstrapping, go by.
    """

    bounds: tuple[float, float] = (0.0, 1.0)  # the least and the largest value; where outputs are scores, at least
    # Whether `value` takes any weights, and depends on what it reads of examples and predictions alone; otherwise
    # weights are numbers of copies. And whether it has derivatives by these weights.
    weighted = smooth = True
    kind: type | tuple[type, ...] = str  # of its outputs
    label: str | None = None  # that it is about; None where it is about all facts

    @abstractmethod
    def __call__(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float:
        """Score one example by itself."""

    @abstractmethod
    def fact(self, example: dspy.Example) -> Any:
        """What the metric reads of an example, such as its label."""

    @abstractmethod
    def outputs(self, example: dspy.Example, prediction: Any) -> Any:
        """What the metric reads of a prediction, of any type; None stands for a reply that could not be read."""

    @abstractmethod
    def value(self, facts: Sequence[Any], outputs: Sequence[Any], weights: Sequence[float]) -> float:
        """The metric of so many examples, by what it reads of each, and the weight of each."""

    def facts(self, examples: Sequence[dspy.Example]) -> list[Any]:
        """What the metric reads of each of some examples, which a user's function cannot change."""
        return [self.fact(own_copy(example)) for example in examples]

    def alone(self, example: dspy.Example, prediction: Any) -> float:
        """The score that the ledger keeps beside outputs: 0 of a function, which may mean nothing of one example."""
        return self(example, prediction) if self.weighted else 0.0

    def answers(self, facts: Sequence[Any]) -> Sequence[Any]:
        """Outputs that any example with one of these facts may have; none where outputs have no end."""
        return ()

    def check(self, *parts: Sequence[dspy.Example]) -> None:
        """Warn where one of the parts has few examples of some kind; a ValueError where the metric can read nothing of
        an example, or none has what it is about."""
        counts = [Counter(self.facts(part)) for part in parts] if self.weighted else []
        facts = sum(counts, Counter[Any]())
        watched = list(facts) if self.label is None else [self.label]
        if self.label is not None and not facts[self.label]:
            others = ", ".join(repr(fact) for fact, _ in facts.most_common(5)) + ", ..." * (len(facts) > 5)
            raise ValueError(f"metric: no example has {self.label!r}, which {self!r} is about; they have {others}")
        few = min(watched, key=lambda fact: min(count[fact] for count in counts), default=None)
        if few is not None and (least := min(count[few] for count in counts)) < MIN_OF_EACH:
            kinds = (" to search", " to compare by") if len(parts) > 1 else ("",)
            told = [f"{c[few]} of the {c.total()} examples{kind}" for c, kind in zip(counts, kinds, strict=True)]
            needed = math.ceil(facts.total() * MIN_OF_EACH / max(least, facts[few] * MIN_SHARE))
            logger.warning(
                f"only {' and '.join(told)} have {few!r}, so that {self!r} is known to within large errors only. Of "
                f"{needed} examples, with the same share, {MIN_OF_EACH} would{' in either part' * bool(kinds[0])}"
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
        unread, rows, wrong = dspy.Prediction(), list[tuple[Any, Any]](), list[Exception]()

        def answered(**inputs: Any) -> Any:
            try:
                return program(**copy.deepcopy(inputs))
            except AdapterParseError:  # It answers nothing, which is no failure.
                return unread

        def alone(example: dspy.Example, prediction: Any) -> float:
            try:
                outputs = None if prediction is unread else self.outputs(own_copy(example), prediction)
                score = 0.0 if prediction is unread else self.alone(own_copy(example), prediction)
            except MetricError as error:
                wrong.append(error)
                raise
            rows.append((*self.facts([example]), outputs))
            return score

        try:
            dspy.Evaluate(devset=list(devset), metric=alone, **options)(answered)
        except Exception as error:  # that says of no call why it failed
            raise (wrong or [error])[0] from None
        if not rows:
            raise (wrong or [RuntimeError("all calls failed: dspy.Evaluate has logged why")])[0]
        if num_failed := len(devset) - len(rows):
            logger.warning("calls on %d of %d examples failed: they are left out", num_failed, len(devset))
        facts, told = zip(*rows, strict=True)
        value = self.value(facts, told, [1.0] * len(rows))
        logger.info("%r: %.4g on %d examples", self, value, len(rows))
        return value

    def __repr__(self) -> str:
        shown = [
            f"{name}={getattr(value, '__name__', repr(value))}"
            for name, value in vars(self).items()
            if value is not None and name[0] != "_" and name != "bounds"
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


class DatasetMetric(SetMetric):
    """Any metric over a set, such as corpus BLEU.

    Args:
        function: ``function(examples, predictions)`` returns a number, of lists of the same length in any order, in
            which an example may come several times; it must not grow with their length. Examples are copies of the
            user's, and predictions have the values that the program returned, of whatever type. A reply that could not
            be read has no fields: use ``prediction.get(name, "")``. The function is called often, once for each answer
            and round of a search, and must be quick.
        bounds: The least and the largest value, where these are known.
    """

    weighted = smooth = False
    kind = dict

    def __init__(
        self,
        function: Callable[[list[dspy.Example], list[dspy.Prediction]], float],
        *,
        bounds: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        if isinstance(function, SetMetric) or takes(function, 2) is False or not callable(function):
            raise TypeError(f"function must be callable as function(examples, predictions); got {function!r}")
        try:
            low, high = map(float, bounds)
        except (TypeError, ValueError):
            low = high = math.nan
        if not low < high:
            raise ValueError(f"bounds must be the least and the largest value, such as (0.0, 1.0); got {bounds!r}")
        self.function, self.bounds = function, (low, high)

    def __call__(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float:
        return self.value([self.fact(example)], [self.outputs(example, prediction)], [1.0])

    def fact(self, example: dspy.Example) -> Any:
        return own_copy(example)

    def outputs(self, example: dspy.Example, prediction: Any) -> Any:
        fields = prediction if isinstance(prediction, dspy.Prediction) else {"answer": prediction}
        return {name: own_value(value) for name, value in fields.items()}

    def value(self, facts: Sequence[Any], outputs: Sequence[Any], weights: Sequence[float]) -> float:
        rows = np.repeat(np.arange(len(facts)), np.asarray(weights, dtype=np.int64)).tolist()
        fields = [{name: own_value(value) for name, value in (outputs[row] or {}).items()} for row in rows]
        try:
            return as_score(self.function([own_copy(facts[row]) for row in rows], list(map(dspy.Prediction, fields))))
        except Exception as error:
            note = (
                f"(in the metric, on a set of {len(rows)} answers: mend it so that every set has a value; with log_dir "
                "the same compile then goes on with accept_changes=True)"
            )
            error.__notes__ = [*getattr(error, "__notes__", ()), note]
            raise


class LabelMetric(SetMetric):
    """A metric of the labels that a program answers, against those of the examples.

    Args:
        field: Name of the output, and of the examples' field, that has the label; None takes the only one.
    """

    _besides: Any = None  # a field of the examples that has no label

    def __init__(self, *, field: str | None = None) -> None:
        self.field = field

    def __call__(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float:
        return float(self.fact(example) == LabelMetric.outputs(self, example, prediction))

    def fact(self, example: dspy.Example) -> str:
        label = example[name := self._label_field(example)]
        if isinstance(label, (list, tuple, set, frozenset, Mapping)):
            raise ValueError(
                f"metric: there must be one label for each example, and {name!r} holds a {type(label).__name__}: pass "
                "DatasetMetric(function) for several"
            )
        return name_of_label(label)

    def outputs(self, example: dspy.Example, prediction: Any) -> Any:
        name = self._label_field(example)
        if not isinstance(prediction, dspy.Prediction) or name not in prediction:
            raise MetricError(
                f"the metric reads the label at {name!r}, as in the examples, and the program answers {prediction!r}: "
                "give both the same name, or pass field"
            )
        return name_of_label(prediction[name])

    def answers(self, facts: Sequence[str]) -> Sequence[str]:
        return sorted({*facts, NO_LABEL}) if self.kind is str else ()

    def label_of(self, outputs: Any) -> str:
        """The label among the outputs that were read."""
        return NO_LABEL if outputs is None else str(outputs if self.kind is str else outputs[0])

    def _label_field(self, example: dspy.Example) -> str:
        """The name of the field that has the label: the one that is given, or the only one beside inputs."""
        labels, field = list(example.labels().keys()), self.field
        names = [field] if field is not None else [name for name in labels if name != self._besides] or labels
        if not names or (len(names) == 1 and names[0] not in example):
            what = "label beside its inputs" if field is None else repr(field)
            told = repr(dict(example.items()))[:SHOWN]
            cure = "leave it out, give it one, or name the label's field as field='...'"
            raise ValueError(f"metric: an example has no {what}: {cure}; it holds {told}")
        if len(names) != 1:
            raise ValueError(
                f"metric: several fields beside the inputs may have the label, {names}: name the one that does, such "
                f"as F1(..., field={names[0]!r})"
            )
        return names[0]

    def value(self, facts: Sequence[str], outputs: Sequence[Any], weights: Sequence[float]) -> float:
        """Return the share of right answers; subclasses have metrics of their own."""
        counts = self.confusion(facts, outputs, weights)
        return float(counts.right.sum() / counts.of_label.sum())

    def confusion(self, facts: Sequence[str], outputs: Sequence[Any], weights: Sequence[float]) -> "ConfusionCounts":
        """Count the answers to the examples of each label."""
        return ConfusionCounts.of(facts, [self.label_of(output) for output in outputs], weights)


@dataclass(frozen=True)
class ConfusionCounts:
    """How often each label was answered to the examples of each label.

    Attributes:
        labels: Those of the examples first, then those that were answered alone, ``[K]``.
        answered: Weights by right label and answered label, ``[K, K]``.
        unread: Weights of the replies that could not be read, by right label, ``[K]``.
        num_right: Number of the labels that examples have.
    """

    labels: Sequence[str]
    answered: Array
    unread: Array
    num_right: int

    @classmethod
    def of(cls, facts: Sequence[str], answers: Sequence[str], weights: Sequence[float]) -> "ConfusionCounts":
        """Count answers, of which `NO_LABEL` stands for a reply that could not be read."""
        right_labels = sorted(set(facts))
        other_labels = sorted(set(answers) - set(right_labels) - {NO_LABEL})
        labels = [*right_labels, *other_labels]
        numbers = {label: number for number, label in enumerate([*labels, NO_LABEL])}
        rows = [numbers[fact] for fact in facts]
        columns = [numbers[answer] for answer in answers]
        counts = np.zeros((len(labels), len(numbers)))
        np.add.at(counts, (rows, columns), weights)
        return cls(labels, counts[:, :-1], counts[:, -1], len(right_labels))

    @property
    def right(self) -> Array:
        """Return the weights of right answers, by label, ``[K]``."""
        return np.diag(self.answered)

    @property
    def of_label(self) -> Array:
        """Return the weights of the examples of each label, ``[K]``."""
        return np.asarray(self.answered.sum(axis=1) + self.unread)

    @property
    def answers(self) -> Array:
        """Return the weights of the answers that name each label, ``[K]``, those of unread replies left out."""
        return np.asarray(self.answered.sum(axis=0))


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Divide, with 0 where there is nothing to divide by."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


class F1(LabelMetric):
    """The F1 score, with the values of `sklearn.metrics.f1_score` where all replies can be read.

    It is 0 if nothing is predicted and nothing is there to be found. A reply that cannot be read is a wrong answer for
    every label: it misses the right one, and counts as a false positive of each other one.

    Args:
        label: Whose F1 it is, for "binary".
        average: "binary" for one label against all others; "macro" for the mean over the labels of the examples, and
            "micro" for all labels counted together. None is "binary" with a label, and "macro" without one.
        field: As in `LabelMetric`.
    """

    def __init__(
        self, label: Any = None, *, average: Literal["binary", "macro", "micro"] | None = None, field: str | None = None
    ) -> None:
        super().__init__(field=field)
        average = average or ("macro" if label is None else "binary")
        if average not in ("binary", "macro", "micro"):
            raise ValueError(f"average must be 'binary', 'macro' or 'micro'; got {average!r}")
        if (average == "binary") == (label is None):
            raise ValueError(f"average={average!r} {'needs a' if label is None else 'takes no'} label; got {label!r}")
        self.label, self.average = None if label is None else name_of_label(label), average

    def value(self, facts: Sequence[str], outputs: Sequence[Any], weights: Sequence[float]) -> float:
        counts = self.confusion(facts, outputs, weights)
        if self.average == "micro":
            in_examples = slice(counts.num_right)
            answers = counts.answers[in_examples].sum() + counts.unread.sum()
            total = answers + counts.of_label.sum()
            return float(2.0 * counts.right.sum() / total)
        false_alarms = counts.unread.sum() - counts.unread
        scores = _ratio(2.0 * counts.right, counts.answers + false_alarms + counts.of_label)
        if self.label is None:
            return float(scores[: counts.num_right].mean())
        if self.label not in counts.labels:
            return 0.0
        return float(scores[counts.labels.index(self.label)])


class MatthewsCorrelation(LabelMetric):
    """Matthews' correlation coefficient of answers and labels.

    Its values are those of `sklearn.metrics.matthews_corrcoef` where all replies can be read. A reply that cannot be
    read counts as an answer that is spread evenly over the wrong labels
    of the examples.
    """

    bounds = (-1.0, 1.0)

    def value(self, facts: Sequence[str], outputs: Sequence[Any], weights: Sequence[float]) -> float:
        counts = self.confusion(facts, outputs, weights)
        if counts.num_right < 2:
            return 0.0
        in_examples = slice(counts.num_right)
        of_label = counts.of_label
        answers = counts.answers
        answers[in_examples] += (counts.unread.sum() - counts.unread[in_examples]) / (counts.num_right - 1)
        total = of_label.sum()
        covariance = counts.right.sum() * total - of_label @ answers
        variances = (total**2 - of_label @ of_label) * (total**2 - answers @ answers)
        if variances <= 1e-12 * total**4:
            return 0.0
        return float(covariance / math.sqrt(variances))


class BalancedAccuracy(LabelMetric):
    """The mean over labels of the share of their examples that is answered right (macro recall of scikit-learn)."""

    def value(self, facts: Sequence[str], outputs: Sequence[Any], weights: Sequence[float]) -> float:
        counts = self.confusion(facts, outputs, weights)
        recalls = _ratio(counts.right, counts.of_label)
        return float(recalls[: counts.num_right].mean())


class RecallAtPrecision(LabelMetric):
    """The largest share of the examples of a label that some threshold finds, with at least so much precision.

    Args:
        label: What is to be found.
        precision: Share of the findings, at least, that must be right.
        confidence: Name of the output that holds the probability of the label. None takes ``prediction.probabilities``,
            which calibrated programs give (`BatchCalibration`).
        field: As in `LabelMetric`.
    """

    smooth = False
    kind = list
    label: str

    def __init__(
        self, label: Any, precision: float, *, confidence: str | None = None, field: str | None = None
    ) -> None:
        super().__init__(field=field)
        if not 0.0 < precision <= 1.0:
            raise ValueError(f"precision must lie in (0, 1]; got {precision!r}")
        self.label, self.precision, self.confidence = name_of_label(label), precision, confidence

    def outputs(self, example: dspy.Example, prediction: Any) -> Any:
        answer = prediction if isinstance(prediction, dspy.Prediction) else {}
        if self.confidence is not None:
            found = answer.get(self.confidence)
        else:
            shares = answer.get("probabilities") or {}
            found = next((shares[each] for each in shares if name_of_label(each) == self.label), None)
        if found is None:
            raise MetricError(
                f"{self!r} needs the probability of its label: calibrate the program first (BatchCalibration(), "
                "without this metric), and pass what comes out; or name an output that holds the probability as "
                "confidence='...'"
            )
        return [super().outputs(example, prediction), round(as_score(found), 4)]

    def value(self, facts: Sequence[str], outputs: Sequence[Any], weights: Sequence[float]) -> float:
        from sklearn.metrics import precision_recall_curve

        right = np.array([fact == self.label for fact in facts])
        if not (right @ np.asarray(weights)):
            return 0.0
        # A reply that cannot be read is wrong at every threshold: it finds what it must not, and nothing else.
        confidences = []
        for fact, output in zip(facts, outputs, strict=True):
            if output is not None:
                confidences.append(output[1])
            elif fact == self.label:
                confidences.append(0.0)
            else:
                confidences.append(ABOVE_ALL)
        precisions, recalls, _ = precision_recall_curve(right, confidences, sample_weight=weights)
        return float(recalls[precisions >= self.precision].max(initial=0.0))


class AverageScoreBy(SetMetric):
    """The mean over groups, or the score of the worst group, of the mean score in each.

    Args:
        group: Name of the examples' field that says the group, or a function of an example.
        metric: A metric by example; None takes whether the label is right.
        worst: Take the worst group, and not the mean over groups.
        field: Where there is no metric, the name of the field that has the label; None takes the only one beside the
            inputs and the group.
    """

    kind = (int, float)

    def __init__(
        self,
        group: str | Callable[[dspy.Example], Any],
        metric: Callable[..., Any] | None = None,
        *,
        worst: bool = False,
        field: str | None = None,
    ) -> None:
        if isinstance(metric, SetMetric):
            raise ValueError(f"metric must be a metric by example; got {metric!r}, which is one over a set")
        self.group, self.metric, self.worst, self.field = group, metric, worst, field
        self._right = LabelMetric(field=field)
        self._right._besides = group
        self._ask = metric_caller(self._right if metric is None else metric)

    def __call__(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float:
        return as_score(self._ask(example, prediction))

    def fact(self, example: dspy.Example) -> str:
        if self.metric is None:
            self._right.fact(example)  # which raises where there is no label
        if not isinstance(self.group, str):
            return str(self.group(example))
        if self.group not in example:
            raise ValueError(f"metric: each example needs the field {self.group!r}, by which scores are grouped")
        return str(example[self.group])

    def outputs(self, example: dspy.Example, prediction: Any) -> Any:
        return self(example, prediction)

    def value(self, facts: Sequence[str], outputs: Sequence[Any], weights: Sequence[float]) -> float:
        names, groups = np.unique(facts, return_inverse=True)
        least = min([0.0, *(each for each in outputs if each is not None)])  # of replies that could not be read
        scores = np.array([least if each is None else each for each in outputs])
        totals = np.bincount(groups, weights, len(names))
        means = np.bincount(groups, scores * weights, len(names)) / totals
        # Of equally bad groups the first: the least of several has no derivative.
        return float(means[np.argmax(means <= means.min() + TIE)] if self.worst else means.mean())
