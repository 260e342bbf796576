"""Confusion-matrix metrics: their values and scores of single answers, checked against scikit-learn."""

import enum
import itertools
import math
import tracemalloc
from typing import Literal

import dspy
import numpy as np
import pytest
from fakes import Program
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

import plr_dspy
from plr_dspy import F1, ConfusionMetric
from plr_dspy.compiling.comparison import compare_by_set_metric
from plr_dspy.scoring import confusion_scores
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.search.model.ordering_model import Gain

LABELS = ("a", "b", "c")


def example(label, **more):
    return dspy.Example(text="t", label=label, **more).with_inputs("text", *more)


def share_of_right(counts, labels):
    """Return the accuracy."""
    return np.trace(counts) / counts.sum()


def f1_of_a(counts, labels):
    a = labels.index("a")
    unread_others = counts[:, -1].sum() - counts[a, -1]
    return 2 * counts[a, a] / (counts[a].sum() + counts[:, a].sum() + unread_others)


def f1_score(right, answers, weights, **options):
    options = {"sample_weight": weights, "zero_division": 0.0, **options}
    return sklearn_metrics.f1_score(right, answers, **options)


def sklearn_f1_of_a(right, answers, weights):
    return f1_score(np.array(right) == "a", np.array(answers) == "a", weights)


def sklearn_f1(average):
    def score(right, answers, weights):
        labels = sorted(set(right))
        return f1_score(right, answers, weights, labels=labels, average=average)

    return score


def sklearn_accuracy(right, answers, weights):
    return sklearn_metrics.accuracy_score(right, answers, sample_weight=weights)


def sklearn_matthews(right, answers, weights):
    return sklearn_metrics.matthews_corrcoef(right, answers, sample_weight=weights)


def mean_recall(right, answers, weights):
    right = np.array(right)
    hits = right == np.array(answers)
    weights = np.array(weights)
    by_label = [right == label for label in set(right)]
    return np.mean([np.average(hits[of], weights=weights[of]) for of in by_label])


BY_SKLEARN = {
    F1("a"): sklearn_f1_of_a,
    ConfusionMetric(f1_of_a): sklearn_f1_of_a,
    ConfusionMetric(share_of_right, bounds=(0.0, 1.0)): sklearn_accuracy,
    F1(): sklearn_f1("macro"),
    F1(average="micro"): sklearn_f1("micro"),
    plr_dspy.MatthewsCorrelation(): sklearn_matthews,
    plr_dspy.BalancedAccuracy(): mean_recall,
}
ANSWERS = (*LABELS, "other")
PAIRS = st.tuples(st.sampled_from(LABELS), st.sampled_from(ANSWERS))
BOTH = st.lists(PAIRS, min_size=4, max_size=40)
ALL_PAIRS = [*itertools.product(LABELS, LABELS)]


@pytest.mark.parametrize("metric", BY_SKLEARN, ids=repr)
class TestLabels:
    @settings(deadline=None, max_examples=25)
    @given(both=BOTH)
    def test_values_equal_those_of_scikit_learn(self, metric, both):
        right, answers = zip(*both, strict=True)
        assume("a" in right)
        score = metric.score(right, answers, labels=ANSWERS)
        expected = BY_SKLEARN[metric](right, answers, np.ones(len(both)))
        assert score == pytest.approx(expected)

    @settings(deadline=None, max_examples=10)
    @given(both=BOTH, moved=st.integers(0, 39), to=st.sampled_from(LABELS))
    def test_scores_follow_the_derivative_and_average_to_the_metric(self, metric, both, moved, to):
        """Compare with scikit-learn after part of an example's weight moves to another answer."""
        both = [*both, *ALL_PAIRS]
        right, answers = map(list, zip(*both, strict=True))
        moved %= len(both)
        confusion = ConfusionScores(metric, right, ANSWERS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(confusion_scores, "PSEUDO_EXAMPLES", 1e-9)
            confusion.linearize_at(enumerate(answers))
        scores = [confusion.score(i, answer) for i, answer in enumerate(answers)]
        by_sklearn = BY_SKLEARN[metric]
        expected = by_sklearn(right, answers, np.ones(len(both)))
        assert np.mean(scores) == pytest.approx(expected, abs=1e-9)
        step = 1e-5
        weights_before = np.append(np.ones(len(both)), 0.0)
        weights_after = weights_before.copy()
        weights_after[moved] = 1.0 - step
        weights_after[-1] = step
        more = ([*right, right[moved]], [*answers, to])
        difference = by_sklearn(*more, weights_after) - by_sklearn(*more, weights_before)
        derivative = difference / step * len(both)
        change = confusion.score(moved, to) - scores[moved]
        assert change == pytest.approx(derivative, abs=1e-3)

    def test_no_reply_is_parsable(self, metric):
        right_labels = ["a"] * 3 + ["b"] * 7
        unread = [(i, None) for i in range(10)]
        scores = ConfusionScores(metric, right_labels)
        scores.linearize_at(unread)
        assert scores.value(unread) == (-1.0 if metric.bounds[0] == -1.0 else 0.0)
        for i, answer in itertools.product(range(10), (None, "a", "b")):
            assert math.isfinite(scores.score(i, answer))
        assert scores.score(0, "a") > scores.score(0, None)

    def test_answers_that_are_not_labels_count_as_unparsable(self, metric):
        right_labels = ["a", "a", "b", "c"]
        answers = ["a", "b", "b", "other"]
        unread = [*answers[:3], None]
        assert metric.score(right_labels, answers) == metric.score(right_labels, unread)
        scores = ConfusionScores(metric, right_labels)
        scores.linearize_at(enumerate(answers))
        assert scores.labels == ["a", "b", "c"]
        assert scores.score(0, "other") == scores.score(0, None)


@pytest.mark.parametrize("metric", [*BY_SKLEARN, F1("b")], ids=repr)
@given(both=BOTH, unread=st.integers(0, 39))
def test_an_unparsable_reply_scores_no_higher_than_an_incorrect_label(metric, both, unread):
    # Matthews' correlation divides an unparsable reply among the incorrect labels, so use only two labels.
    if isinstance(metric, plr_dspy.MatthewsCorrelation):
        both = [pair for pair in both if {*pair} <= {"a", "b"}]
    right_labels = [label for label, _ in both]
    assume({"a", "b"} <= {*right_labels})
    unread %= len(both)

    def value_with(answer):
        answers = [label for _, label in both]
        answers[unread] = answer
        return metric.score(right_labels, answers, labels=ANSWERS)

    wrong_labels = {*right_labels} - {right_labels[unread]}
    of_unread = value_with(None)
    assert of_unread <= min(value_with(label) for label in wrong_labels) + 1e-9
    assert of_unread <= value_with(right_labels[unread]) + 1e-9


def test_f1_of_a_label_counts_unparsable_replies_to_other_examples():
    """A program must not score higher if all its replies with other labels are unparsable."""
    right_labels = ["a"] * 2 + ["b"] * 6
    broken = F1("a").score(right_labels, ["a", "a", *[None] * 6])
    assert broken == F1("a").score(right_labels, ["a"] * 8) == pytest.approx(0.4)


ROWS = st.tuples(st.sampled_from("abc"), st.floats(0, 1), st.booleans())


@given(st.lists(ROWS, min_size=6, max_size=30))
def test_weights_restore_the_label_shares_of_all_examples(rows):
    labels, scores, scored = map(np.array, zip(*rows, strict=True))
    confusion = ConfusionScores(F1(), list(labels))
    examples = np.arange(len(labels))
    known = scored.astype(bool)
    table = np.where(known, scores, np.nan)[None]
    means = {label: scores[known & (labels == label)].mean() for label in set(labels[known])}
    expected = sum((labels == label).mean() * mean for label, mean in means.items())
    (weights,) = confusion.weights(known[None], examples)
    assert (weights > 0).tolist() == known.tolist()
    if known.any():
        assert np.nanmean(confusion.reweighted(table, examples)) == pytest.approx(expected)
        share = np.isin(labels, list(means)).mean()
        assert weights[known].mean() == pytest.approx(share)


@pytest.mark.parametrize("counts", [(10, 10, 0), (2, 40, 8), (1, 1, 1)])
def test_information_weights_match_the_variance_of_the_mean(counts):
    """Compare with the variance of the mean over resampled answers."""
    rng = np.random.default_rng(0)
    labels = np.repeat([*"abc"], [60, 440, 100])
    answers = np.where(rng.random(600) < 0.6, labels, rng.choice([*"abc"], size=600))
    confusion = ConfusionScores(F1("a"), labels.tolist())
    confusion.linearize_at(enumerate(answers.tolist()))
    scores = np.array([confusion.score(i, answer) for i, answer in enumerate(answers)])
    examples = []
    drawn = []
    sizes = []
    variances = []
    for label, count in zip("abc", counts, strict=True):
        if count == 0:
            continue
        with_label = np.flatnonzero(labels == label)
        examples.append(with_label[:count])
        drawn.append(scores[rng.choice(with_label, (8_000, count))])
        sizes.append(len(with_label))
        variances.append(scores[with_label].var())
    examples = np.concatenate(examples)
    means = confusion.reweighted(np.concatenate(drawn, axis=1), examples).mean(axis=1)
    of_mean = means.var() * (600 / sum(sizes)) ** 2
    at_random = np.average(variances, weights=sizes)
    known = np.ones((1, len(examples)), dtype=bool)
    (weight,) = confusion.information_weights(known, examples)
    assert weight == pytest.approx(at_random / len(examples) / of_mean, rel=0.1)


def test_answers_to_examples_with_an_unseen_label_are_unknown():
    """Both programs always answer "a". Only two of the four labels were seen."""
    confusion = ConfusionScores(plr_dspy.BalancedAccuracy(), [*"abcd"] * 10)
    assert confusion.unscored_labels([0, 1, 4, 0]) == ["c", "d"]
    seen = [(example, "a", "a") for example in range(40) if example % 4 < 2]
    assert confusion.value((example, answer) for example, answer, _ in seen) == 0.5
    of_seen, draws = confusion.resampled(seen)
    assert of_seen.mean() == pytest.approx(0.5, abs=0.05)
    lows, highs = np.quantile(draws, [0.025, 0.975], axis=0)
    assert (lows <= 0.25).all()
    assert (highs >= 0.7).all()
    everything = [(example, "a", "a") for example in range(40)]
    for draws in confusion.resampled(everything):
        lows, highs = np.quantile(draws, [0.025, 0.975], axis=0)
        assert (highs - lows < 0.2).all()


def guesses(examples, labels, share_right, seed):
    """Return answers, keyed by the examples' indices. Wrong answers are random labels."""
    rng = np.random.default_rng(seed)
    answers = {}
    for example in examples:
        wrong = [label for label in set(labels) if label != labels[example]]
        is_right = rng.random() < share_right
        answers[example] = labels[example] if is_right else str(rng.choice(sorted(wrong)))
    return answers


@pytest.mark.parametrize(("num_labels", "num_unseen"), [(6, 1), (10, 2)])
def test_unseen_labels_leave_the_evidence_for_a_gain(num_labels, num_unseen):
    """Two programs answer the same 50 or 80 examples. One is right on 55%, and the other on 80%."""
    labels = [f"label {index % num_labels}" for index in range(12 * num_labels)]
    num_seen = num_labels - num_unseen
    seen = [index for index in range(10 * num_labels) if index % num_labels < num_seen]
    before = guesses(seen, labels, 0.55, seed=1)
    after = guesses(seen, labels, 0.8, seed=2)
    confusion = ConfusionScores(F1(), labels)
    confusion.linearize_at([*before.items(), *after.items()])
    gain = Gain(expected=0.2, probability=1.0, worse=0.0, deviation=0.05)
    corrected, comparison = compare_by_set_metric(
        confusion, before, after, gain, num_orderings=10, num_candidates=2
    )
    assert len(comparison.unseen_labels) == num_unseen
    assert corrected.probability > 0.95
    assert comparison.interval[0] > -0.01
    assert comparison.interval[1] - comparison.interval[0] < 0.45
    # The interval includes the score even if unseen labels are always or never answered correctly.
    for score, low, high in (comparison.expected_original, comparison.expected_chosen):
        assert low < score * num_seen / num_labels + 0.01
        assert high > score + (1 - score) * num_unseen / num_labels - 0.01


@pytest.mark.parametrize("metric", [F1("c"), F1(), plr_dspy.MatthewsCorrelation()])
@given(st.lists(st.tuples(*[st.sampled_from("abc")] * 3), min_size=3, max_size=20), st.floats(0.01, 1.0))
@settings(max_examples=30)
def test_the_expected_gain_is_positive_and_at_most_the_observed_gain(metric, rows, expected):
    labels, answers_before, answers_after = zip(*rows, strict=True)
    before = dict(enumerate(answers_before))
    after = dict(enumerate(answers_after))
    confusion = ConfusionScores(metric, labels)
    confusion.linearize_at([*before.items(), *after.items()])
    gain = Gain(expected=expected, probability=0.9, worse=0.0, deviation=0.05)
    corrected, comparison = compare_by_set_metric(
        confusion, before, after, gain, num_orderings=2, num_candidates=2
    )
    assert corrected.expected <= max(0.0, comparison.gain) + 1e-6
    if comparison.gain > 0.01:
        assert corrected.expected > 0.0


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class TestOwnFunction:
    def test_gets_counts_and_the_labels_of_the_output(self):
        """The metric gets all labels of the output's type. The last column counts all other answers."""
        calls = []

        def cost(counts, labels):
            calls.append((counts.tolist(), labels))
            return share_of_right(counts, labels)

        replies = iter(["a", "c", "other", "b"])
        program = Program(
            lambda self, text: dspy.Prediction(label=next(replies)),
            predict=dspy.Predict(dspy.Signature("text -> label: Literal['c', 'a']")),
        )
        devset = [example(label) for label in "aabb"]
        metric = ConfusionMetric(cost)
        answers = [program(text="t").label for _ in devset]
        right_labels = metric.right_labels(devset)
        labels = metric.output_labels(program, devset)
        assert metric.score(right_labels, answers, labels=labels) == 0.5
        assert calls == [([[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]], ["c", "a", "b"])]

    @pytest.mark.parametrize(
        ("kind", "labels"),
        [
            (bool, ["True", "False"]),
            (Mood, ["good", "bad"]),
            (Literal["x", "y"] | None, ["x", "y", "None"]),
            (Literal["x", None], ["x", "None"]),
            (Literal["x", None] | None, ["x", "None"]),
            (str, []),
        ],
    )
    def test_knows_the_labels_of_a_type(self, kind, labels):
        signature = dspy.Signature("text -> label").with_updated_fields("label", type_=kind)
        assert F1().output_labels(dspy.Predict(signature), [example("x")]) == labels

    def test_may_modify_its_arguments(self):
        def once(counts, labels):
            value = share_of_right(counts, labels)
            counts[:] = 0.0
            labels.clear()
            return value

        for _ in range(2):
            assert ConfusionMetric(once).score(["a", "b"], ["a", "a"]) == 0.5

    def test_may_have_values_beyond_its_bounds(self):
        metric = ConfusionMetric(lambda counts, labels: 50.0, bounds=(0.0, 1.0))
        scores = ConfusionScores(metric, ["a"])
        assert scores.clip(-1.0) == 0.0
        assert scores.clip(70.0) == 1.0
        scores.linearize_at([(0, "a")])
        assert scores.clip(-1.0) == 0.0
        assert scores.clip(70.0) == 50.0

    def test_repr_shows_the_function(self):
        metric = ConfusionMetric(share_of_right, field="mood")
        assert repr(metric) == "ConfusionMetric(field='mood', function=share_of_right)"

    @pytest.mark.parametrize("value", [math.nan, math.inf, None, "high"])
    def test_that_returns_no_number_is_an_error(self, value):
        metric = ConfusionMetric(lambda counts, labels: value)
        with pytest.raises((ValueError, TypeError), match="metric must return a"):
            metric.score(["a", "b"], ["a", None])


REVERSED = {"bounds": (1, 0)}
TWO_FIELDS = example("a").copy(other="b")
OTHER_NAME = dspy.Prediction(answer="a")
BAD_INPUT = [
    (lambda: F1(average="binary"), "average must be 'macro' or 'micro' if label=None; got 'binary'"),
    (lambda: F1("a", average="macro"), "average must be 'binary' if label='a'; got 'macro'"),
    (lambda: F1(average="weighted"), "average must be 'macro' or 'micro' if label=None"),
    (lambda: ConfusionMetric(3), "function must be callable"),
    (lambda: ConfusionMetric(lambda counts: 1.0), "function must be callable"),
    (lambda: ConfusionMetric(F1("a")), "function must be callable"),
    (
        lambda: ConfusionMetric(share_of_right, **REVERSED),
        "bounds must be two numbers, the lower one first",
    ),
    (
        lambda: F1("d").check([example(name) for name in "abcefg"]),
        "got the labels 'a', .* and 1 more: pass",
    ),
    (lambda: F1("a").right_label(example("a").copy(other="b" * 200)), "got the example {.*b…: pass"),
    (lambda: F1("a").right_label(TWO_FIELDS), "pass the name of the label field"),
    (lambda: F1().right_label(example(["a", "b"])), "field 'label' holds a list: use a metric that scores"),
    (lambda: F1("a").answer(example("a"), OTHER_NAME), "rename the program's output to 'label'"),
]


class TestBadInput:
    @pytest.mark.parametrize(("make", "message"), BAD_INPUT)
    def test_errors_state_the_fix(self, make, message):
        with pytest.raises((ValueError, TypeError), match=message):
            make()


def test_labels_are_compared_as_text_in_demos():
    assert F1(Mood.GOOD)(example("good"), dspy.Prediction(label=Mood.GOOD)) == 1.0
    assert F1(True)(example(True), dspy.Prediction(label=True)) == 1.0
    by_kind = F1("x", field="kind")
    assert by_kind(example("a", kind="x"), dspy.Prediction(label="b", kind="x")) == 1.0


def test_draws_with_many_labels_need_little_memory():
    """Together, the drawn confusion matrices of 150 labels would take 360 MB."""
    labels = [f"label {number}" for number in range(150)]
    right_labels = labels * 2
    confusion = ConfusionScores(plr_dspy.BalancedAccuracy(), right_labels)
    answered = [(example, right_labels[example], right_labels[example - 1]) for example in range(200)]
    tracemalloc.start()
    try:
        confusion.resampled(answered)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40e6
