"""Per-example scores whose mean approximates a metric of the confusion matrix."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from plr_dspy.errors import UserError
from plr_dspy.scoring.drawn_answers import PSEUDO_EXAMPLES, add_unseen, draw_pairs
from plr_dspy.scoring.effective_scores import EffectiveScores, Labels, Records
from plr_dspy.scoring.run_log import FAILED, CallRecord
from plr_dspy.search.space import Scores
from plr_dspy.statistics.arrays import Array, Mask, Numbers

# An example's index and the predicted label, or None for an unparsable reply.
Answer: TypeAlias = tuple[int, str | None]
Answers: TypeAlias = Mapping[int, str | None]  # maps example indices to predicted labels
Pair: TypeAlias = tuple[int, str | None, str | None]  # an example's index and two programs' answers

# Minimum number of answers in a reference for each correct label. With fewer answers, the scores of
# rare labels would be too noisy.
ENOUGH_ANSWERS = 10
STEP = 1e-6  # step of finite differences, as a fraction of the number of examples
NUM_DRAWS = 1_000  # number of bootstrap samples


class MetricOfCounts(Protocol):
    """A function of a confusion matrix, such as a `plr_dspy.metrics.confusion.SetMetric`."""

    bounds: tuple[float, float]
    label: str | None

    def value(self, counts: Array, labels: Sequence[str]) -> float: ...


def possible_labels(right_labels: Iterable[str], labels: Iterable[str] = ()) -> list[str]:
    """Return the declared `labels`, followed by all other labels in `right_labels`, sorted."""
    declared = list(dict.fromkeys(labels))
    return declared + sorted(set(right_labels) - set(declared))


def confusion_matrix(
    right_labels: Sequence[str],
    answers: Sequence[str | None],
    labels: Sequence[str],
    weights: ArrayLike = 1.0,
) -> Array:
    """Return the confusion matrix of the weighted answers, in the format that `SetMetric.value` accepts."""
    index_of: dict[str | None, int] = {label: index for index, label in enumerate(labels)}
    rows = [index_of[label] for label in right_labels]
    columns = [index_of.get(answer, len(labels)) for answer in answers]
    counts = np.zeros((len(labels), len(labels) + 1))
    np.add.at(counts, (rows, columns), weights)
    return counts


def ratio(numerator: Array, denominator: Array) -> Array:
    """Return the elementwise quotient, with 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(denominator), where=denominator > 0)


class ConfusionScores(EffectiveScores):
    """Scores of single answers. To first order, their mean equals a metric M of the confusion matrix.

    The metric is linearized at a reference: a set of answers, such as the best programs' answers.
    In the confusion matrix C of the reference, C[i, j] counts the answers j to examples with label
    i. The rows of C are weighted so that each label is as frequent as among all n examples. An
    answer j to an example with label i then scores

        s(i, j) = M(C) + n (D[i, j] - sum_j C[i, j] D[i, j] / sum_j C[i, j]),    D = dM / dC.

    For each label, the mean score over the reference is M(C). The label frequencies of a sample
    therefore do not affect the sample's mean score. Before D is calculated, artificial answers with
    a total weight of `PSEUDO_EXAMPLES` are added to C for each label that has examples.

    Source: F. R. Hampel, "The influence curve and its role in robust estimation", JASA 69,
        1974.

    Args:
        metric: The metric M.
        right_labels: The correct label of each example, ``[n]``.
        labels: Labels that the program can predict. Other labels in `right_labels` are added.

    Attributes:
        labels: All labels, ``[k]``.
        num_examples: Number of examples, n.
        table: Score of each label as the answer to each example, ``[n, k]``, updated in place.
        bounds: Lowest and highest known values of the metric.
        positive_label: The metric's positive label, or None.
    """

    def __init__(
        self, metric: MetricOfCounts, right_labels: Sequence[str], labels: Iterable[str] = ()
    ) -> None:
        self.labels = possible_labels(right_labels, labels)
        self.bounds = metric.bounds
        self.positive_label = metric.label
        self._metric = metric
        self.num_examples = len(right_labels)
        self._right_labels = list(right_labels)
        self._columns: dict[str | None, int] = {label: index for index, label in enumerate(self.labels)}
        self._rows = np.array([self._columns[label] for label in right_labels], dtype=np.int64)
        # 1 for each example's label, and 0 for all other labels, [n, k].
        self._is_of_label = np.eye(len(self.labels))[self._rows]
        self._num_of_label = self._is_of_label.sum(axis=0)
        self._shares = self._is_of_label.mean(axis=0)
        self._scores = np.zeros((len(self.labels), len(self.labels) + 1))
        self._value = 0.0
        self._means = np.zeros(len(self.labels))  # mean of n * D over the reference, for each label
        self._variances = np.ones(len(self.labels))  # variance of scores for each label
        self.table = np.zeros((len(right_labels), len(self.labels)))

    def linearize_at(self, answers: Iterable[Answer]) -> None:
        """Linearize the metric at `answers`. If `answers` is empty, do nothing."""
        counts = self._count(answers)
        if not counts.any():
            return
        has_examples = self._num_of_label > 0
        pseudo_counts = np.zeros_like(counts)
        pseudo_counts[has_examples] = PSEUDO_EXAMPLES / counts.shape[1]
        smoothed = self._weighted(counts + pseudo_counts)
        reference = smoothed
        if counts[has_examples].any(axis=1).all():
            reference = self._weighted(counts)
        influences = self._derivative(smoothed) * self.num_examples
        self._value = self._value_of(reference)
        self._means = _mean_by_row(influences, reference)
        self._scores = self._value + influences - self._means[:, None]
        # Smoothing keeps the variance above 0 even if all answers agree.
        deviations = influences - _mean_by_row(influences, smoothed)[:, None]
        self._variances = _mean_by_row(deviations**2, smoothed)
        self.table[:] = self._scores[self._rows, :-1]

    def set_reference(
        self, best_first: Iterable[tuple[Records, Labels, set[int]]], *, min_candidates: int = 1
    ) -> None:
        """Linearize the metric at the answers of the best candidates.

        `best_first` yields each candidate's records, the labels that replace recorded answers, and
        the examples on which failed calls count. Use at least `min_candidates` candidates. Add others
        until there are at least as many answers as examples, and `ENOUGH_ANSWERS` answers for each
        correct label.
        """
        reference: list[Answer] = []
        for number, (records, labels, failures) in enumerate(best_first, start=1):
            reference += self.answers(records, labels, failures=failures).items()
            counts = Counter(self._right_labels[example] for example, _ in reference)
            is_enough = all(counts[label] >= ENOUGH_ANSWERS for label in set(self._right_labels))
            if number >= min_candidates and is_enough and len(reference) >= self.num_examples:
                break
        self.linearize_at(reference)

    def answers(
        self, records: Records, labels: Labels, *, failures: Iterable[int] = ()
    ) -> dict[int, str | None]:
        """Return a candidate's answers. `labels` replace recorded answers.

        Failed calls on the examples in `failures` count as answers without a label. Other failed
        calls are omitted.
        """
        answers = {example: record.value for example, record in records.items() if record.outcome != FAILED}
        for example in answers.keys() & labels.keys():
            answers[example] = self.labels[labels[example]]
        return {**answers, **dict.fromkeys(failures)}

    def score_of(self, example: int, record: CallRecord) -> float | None:
        if not (record.outcome or isinstance(record.value, str)):
            raise UserError(
                "log_dir must hold calls with predicted labels; got calls made for another metric: pass another log_dir"
            )
        return self.score(example, record.value)

    def score(self, example: int, answer: str | None) -> float:
        """Return the score of an answer to an example, or 0 before a reference is set."""
        return float(self._scores[self._rows[example], self._columns.get(answer, -1)])

    def value(self, answers: Iterable[Answer]) -> float:
        """Return the metric's value for `answers`, weighted to the label frequencies of all examples."""
        return self._value_of(self._weighted(self._count(answers)))

    def value_between(self, answered: Sequence[Pair], share: float) -> float:
        """Return the metric's value if the second program gave a `share` of the answers, and the first the rest."""
        before = self._count((example, label) for example, label, _ in answered)
        after = self._count((example, label) for example, _, label in answered)
        return self._value_of(self._weighted((1.0 - share) * before + share * after))

    def clip(self, value: float) -> float:
        return min(max(self.bounds[0], value), self.bounds[1])

    def strata(self, num_examples: int) -> list[list[int]]:
        examples: dict[str, list[int]] = {}
        for example, label in enumerate(self._right_labels[:num_examples]):
            examples.setdefault(label, []).append(example)
        return list(examples.values())

    def alternate_labels(self, num_examples: int) -> list[int]:
        """Return the indices of the first `num_examples` examples, reordered so that labels alternate.

        The metric's positive label, if any, comes first.
        """
        groups = self.strata(num_examples)
        groups.sort(key=lambda group: self._right_labels[group[0]] != self._metric.label)
        turns = itertools.zip_longest(*groups)
        return [example for example in itertools.chain.from_iterable(turns) if example is not None]

    def weights(self, known: Mask, examples: Numbers) -> Array:
        """Return weights ``[m, e]`` that restore each label's frequency among all examples.

        Rows are candidates, and columns are examples. Unknown scores have weight 0. If a row covers
        all labels, the mean weight of its known scores is 1.
        """
        is_of_label = self._is_of_label[examples]
        num_known = known.sum(axis=1, keepdims=True)
        weight_of_label = num_known * self._shares / np.maximum(1, known @ is_of_label)
        return np.where(known, weight_of_label @ is_of_label.T, 0.0)

    def reweighted(self, table: Array, examples: Numbers) -> Array:
        """Return the scores ``[m, e]``, rescaled so that each row's plain mean equals its weighted mean.

        The weights are those that `weights()` returns. Unknown scores are NaN.
        """
        weights = self.weights(~np.isnan(table), examples)
        return np.asarray(self._value + weights * (table - self._value))

    def counted(self, scores: Scores) -> Scores:
        counted = {}
        for candidate, row in scores.items():
            (values,) = self.reweighted(np.array([[*row.values()]]), np.array([*row])).tolist()
            counted[candidate] = dict(zip(row, values, strict=True))
        return counted

    def information_weights(self, known: Mask, examples: Numbers) -> Array:
        # A value above 1 means that the scored examples are more informative than random examples,
        # for instance because their labels are rare.
        counts = known @ self._is_of_label[examples]
        shares = self._shares * (counts > 0)
        shares /= shares.sum(axis=1, keepdims=True)
        errors = (shares**2 / np.maximum(1, counts)) @ self._variances
        errors_at_random = shares @ self._variances / counts.sum(axis=1)
        return np.asarray(np.divide(errors_at_random, errors, out=np.ones_like(errors), where=errors > 0))

    def gains(self, answered: Sequence[Pair]) -> Array:
        """Return the second program's reweighted score minus the first program's on each example, ``[e]``."""
        examples = np.array([example for example, *_ in answered])
        before = [self.score(example, label) for example, label, _ in answered]
        after = [self.score(example, label) for example, _, label in answered]
        counted_before, counted_after = self.reweighted(np.array([before, after]), examples)
        return np.asarray(counted_after - counted_before)

    def resampled(self, answered: Sequence[Pair]) -> tuple[Array, Array]:
        """Return the metric's values for two programs on bootstrap samples, in two arrays ``[draws, 2]``.

        For each sample, first draw the number of examples with each label. Then draw pairs of
        answers for each label from the examples that both programs answered. The first array
        ignores labels without an answered example. The second array also includes random answers to
        examples with these labels.
        """
        size = len(self.labels)
        rng = np.random.default_rng(0)
        pairs_of: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
        for example, before, after in answered:
            pair = (self._columns.get(before, size), self._columns.get(after, size))
            pairs_of[int(self._rows[example])][pair] += 1
        both_programs = [(example, answer) for example, *answers in answered for answer in answers]
        of_both = self._count(both_programs).sum(axis=0)
        drawn = {
            label: draw_pairs(pairs, label, of_both, rng, num_draws=NUM_DRAWS)
            for label, pairs in pairs_of.items()
        }
        totals = np.maximum(1, rng.multinomial(self.num_examples, self._shares, size=NUM_DRAWS))
        unseen = [label for label in np.flatnonzero(self._num_of_label).tolist() if label not in pairs_of]
        # Accuracies on examples with unseen labels, from an uninformative prior.
        accuracies = rng.beta(PSEUDO_EXAMPLES, PSEUDO_EXAMPLES, size=(2, NUM_DRAWS)).T
        values = np.zeros((NUM_DRAWS, 2))
        values_with_unseen = np.zeros((NUM_DRAWS, 2))
        # Calculate one draw at a time, because all confusion matrices for 150 labels would take 360 MB.
        for draw in range(NUM_DRAWS):
            counts = np.zeros((2, size, size + 1))
            for label, (pair_counts, answers_of_programs) in drawn.items():
                counts[:, label] = pair_counts[draw] @ answers_of_programs
            counts *= ratio(totals[draw], counts.sum(axis=2))[..., None]
            values[draw] = [self._value_of(of_program) for of_program in counts]
            values_with_unseen[draw] = values[draw]
            if unseen:
                for of_program, accuracy in zip(counts, accuracies[draw], strict=True):
                    add_unseen(of_program, totals[draw], unseen, accuracy)
                values_with_unseen[draw] = [self._value_of(of_program) for of_program in counts]
        return values, values_with_unseen

    def unscored_labels(self, examples: Iterable[int]) -> list[str]:
        """Return the labels that no example in `examples` has. Omit labels that no example at all has."""
        counts = self._is_of_label[[*set(examples)]].sum(axis=0)
        is_unscored = (counts == 0) & (self._num_of_label > 0)
        return [self.labels[number] for number in np.flatnonzero(is_unscored)]

    def largest_change(self) -> float:
        """Return the largest difference that one answer can make to its example's score."""
        changes = self._scores.max(axis=1) - self._scores.min(axis=1)
        return float(changes[self._num_of_label > 0].max())

    def mean_with_error(self, scores: Sequence[float], value: float) -> tuple[float, float]:
        """Return the center of the metric's confidence interval, and its standard error.

        `scores` are the scores of all examples, and `value` is the metric's value.

        For each of the K labels that affect the metric, add 2 / K artificial answers with the
        highest score and as many with the lowest score. This keeps the error above 0 even if all
        answers are correct (R. Price and D. Bonett, Computational Statistics & Data Analysis 45,
        2004). If a label has a single example, the error is infinite.
        """
        deviations = np.array(scores) - value
        lowest = (self._scores - self._value).min(axis=1)
        highest = (self._scores - self._value).max(axis=1)
        matters = (self._num_of_label > 0) & ((lowest != 0.0) | (highest != 0.0))
        num_pseudo = 2.0 / max(1, int(matters.sum()))
        shift = 0.0
        variance = 0.0
        for row in np.flatnonzero(self._num_of_label):
            label_deviations = deviations[self._rows == row]
            num_examples = len(label_deviations)
            if num_examples == 1:
                return value, math.inf
            total = num_examples + 2.0 * num_pseudo
            mean = num_pseudo * (lowest[row] + highest[row]) / total
            # Subtracting the label's mean costs one degree of freedom.
            squares = np.square(label_deviations).sum() * num_examples / (num_examples - 1)
            squares += num_pseudo * (lowest[row] ** 2 + highest[row] ** 2)
            shift += self._shares[row] * mean
            variance += self._shares[row] ** 2 * max(0.0, squares / total - mean**2) / total
        error_of_shares = math.sqrt(self._shares @ self._means**2 / self.num_examples)
        return value + shift, math.hypot(math.sqrt(variance), error_of_shares)

    def _count(self, answers: Iterable[Answer]) -> Array:
        counts = np.zeros_like(self._scores)
        for example, answer in answers:
            counts[self._rows[example], self._columns.get(answer, -1)] += 1.0
        return counts

    def _weighted(self, counts: Array) -> Array:
        """Scale each row so that it sums to the number of examples with its label. Keep rows of zeros."""
        return np.asarray(counts * ratio(self._num_of_label, counts.sum(axis=1))[:, None])

    def _derivative(self, counts: Array) -> Array:
        """Differentiate the metric with respect to each nonzero count, by central differences."""
        derivative = np.zeros_like(counts)
        for cell in zip(*np.nonzero(counts), strict=True):
            step = min(STEP * counts.sum(), counts[cell])
            values = []
            for change in (step, -step):
                changed_counts = counts.copy()
                changed_counts[cell] += change
                values.append(self._metric.value(changed_counts, self.labels))
            derivative[cell] = (values[0] - values[1]) / (2.0 * step)
        return derivative

    def _value_of(self, counts: Array) -> float:
        """Return the metric's value for `counts`, and widen `bounds` to include this value."""
        value = float(self._metric.value(counts, self.labels))
        low, high = self.bounds
        self.bounds = min(value, low), max(value, high)
        return value


def _mean_by_row(values: Array, weights: Array) -> Array:
    """Return the weighted mean of each row, or 0 if all weights of the row are 0."""
    return ratio((values * weights).sum(axis=1), weights.sum(axis=1))
