"""Metrics of a confusion matrix: their values, and the scores of answers by them, against scikit-learn."""

import enum
import math
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
from plr_dspy.scoring import confusion_scores
from plr_dspy.scoring.confusion_scores import ConfusionScores

LABELS = ("a", "b", "c")


def example(label, **more):
    return dspy.Example(text="t", label=label, **more).with_inputs("text", *more)


def share_of_right(counts, labels):
    """Accuracy, of which the derivative is known."""
    return np.trace(counts) / counts.sum()


def f1_of_a(counts, labels):
    a = labels.index("a")
    unread_others = counts[:, -1].sum() - counts[a, -1]
    return 2 * counts[a, a] / (counts[a].sum() + counts[:, a].sum() + unread_others)


def f1_score(right, answers, weights, **options):
    return sklearn_metrics.f1_score(right, answers, sample_weight=weights, zero_division=0.0, **options)


BY_SKLEARN = {
    F1("a"): lambda t, p, w: f1_score(np.array(t) == "a", np.array(p) == "a", w),
    ConfusionMetric(f1_of_a): lambda t, p, w: f1_score(np.array(t) == "a", np.array(p) == "a", w),
    ConfusionMetric(share_of_right, bounds=(0.0, 1.0)): lambda t, p, w: sklearn_metrics.accuracy_score(
        t, p, sample_weight=w
    ),
    F1(): lambda t, p, w: f1_score(t, p, w, labels=sorted(set(t)), average="macro"),
    F1(average="micro"): lambda t, p, w: f1_score(t, p, w, labels=sorted(set(t)), average="micro"),
    plr_dspy.MatthewsCorrelation(): lambda t, p, w: sklearn_metrics.matthews_corrcoef(t, p, sample_weight=w),
    plr_dspy.BalancedAccuracy(): lambda t, p, w: np.mean(
        [
            np.average(np.array(p)[np.array(t) == label] == label, weights=np.array(w)[np.array(t) == label])
            for label in set(t)
        ]
    ),
}
ANSWERS = (*LABELS, "other")
BOTH = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(ANSWERS)), min_size=4, max_size=40)


@pytest.mark.parametrize("metric", BY_SKLEARN, ids=repr)
class TestLabels:
    @settings(deadline=None, max_examples=25)
    @given(both=BOTH)
    def test_values_are_those_of_scikit_learn(self, metric, both):
        right, answers = zip(*both, strict=True)
        assume("a" in right)
        found = metric.score(right, answers, labels=ANSWERS)
        assert found == pytest.approx(BY_SKLEARN[metric](right, answers, [1.0] * len(both)))

    @settings(deadline=None, max_examples=10)
    @given(both=BOTH, moved=st.integers(0, 39), to=st.sampled_from(LABELS))
    def test_scores_are_the_derivative_and_their_mean_the_metric(self, metric, both, moved, to):
        """Against finite differences of scikit-learn, where some weight of an example goes to another answer."""
        both = [*both, *((t, p) for t in LABELS for p in LABELS)]
        right, answers = map(list, zip(*both, strict=True))
        moved %= len(both)
        found = ConfusionScores(metric, right, ANSWERS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(confusion_scores, "PSEUDO_EXAMPLES", 1e-9)
            found.linearize_at(enumerate(answers))
        scores = [found.score(i, answer) for i, answer in enumerate(answers)]
        by_sklearn = BY_SKLEARN[metric]
        assert np.mean(scores) == pytest.approx(by_sklearn(right, answers, [1.0] * len(both)), abs=1e-9)
        step = 1e-5
        weights = np.ones(len(both) + 1)
        weights[moved] = 1.0 - step
        weights[-1] = step
        ways = (weights, [1.0] * len(both) + [0.0])
        more = ([*right, right[moved]], [*answers, to])
        after, before = (by_sklearn(*more, each) for each in ways)
        derivative = (after - before) / step * len(both)
        assert found.score(moved, to) - scores[moved] == pytest.approx(derivative, abs=1e-3)

    def test_nothing_is_answered(self, metric):
        """As if no reply can be read."""
        right_labels = ["a"] * 3 + ["b"] * 7
        found = ConfusionScores(metric, right_labels)
        found.linearize_at((i, None) for i in range(10))
        assert found.value((i, None) for i in range(10)) == (-1.0 if metric.bounds[0] == -1.0 else 0.0)
        assert all(math.isfinite(found.score(i, answer)) for i in range(10) for answer in (None, "a", "b"))
        assert found.score(0, "a") > found.score(0, None)

    def test_an_answer_that_is_no_label_is_an_unread_reply(self, metric):
        right_labels = ["a", "a", "b", "c"]
        answers = ["a", "b", "b", "other"]
        assert metric.score(right_labels, answers) == metric.score(right_labels, [*answers[:3], None])
        scores = ConfusionScores(metric, right_labels)
        scores.linearize_at(enumerate(answers))
        assert scores.labels == ["a", "b", "c"]
        assert scores.score(0, "other") == scores.score(0, None)


@pytest.mark.parametrize("metric", [*BY_SKLEARN, F1("b")], ids=repr)
@given(both=BOTH, unread=st.integers(0, 39))
def test_an_unread_reply_is_worth_no_more_than_any_wrong_label(metric, both, unread):
    if isinstance(metric, plr_dspy.MatthewsCorrelation):  # It spreads the reply over all wrong labels.
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


def test_f1_of_a_label_counts_unread_replies_to_other_examples():
    """A program that reads one label well and loses all other replies must not look better than one that answers."""
    right_labels = ["a"] * 2 + ["b"] * 6
    broken = F1("a").score(right_labels, ["a", "a", *[None] * 6])
    assert broken == F1("a").score(right_labels, ["a"] * 8) == pytest.approx(0.4)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1), st.booleans()), min_size=6, max_size=30))
def test_labels_count_in_the_shares_of_all_examples(rows):
    labels, scores, scored = (np.array(column) for column in zip(*rows, strict=True))
    found = ConfusionScores(F1(), list(labels))
    examples = np.arange(len(labels))
    known = scored.astype(bool)
    table = np.where(known, scores, np.nan)[None]
    means = {each: scores[known & (labels == each)].mean() for each in set(labels[known])}
    expected = sum((labels == each).mean() * mean for each, mean in means.items())
    (weights,) = found.weights(known[None], examples)
    assert (weights > 0).tolist() == known.tolist()
    if known.any():
        assert np.nanmean(found.reweighted(table, examples)) == pytest.approx(expected)
        assert weights[known].mean() == pytest.approx(np.isin(labels, list(means)).mean())


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class TestOwnFunction:
    def test_gets_counts_and_the_labels_of_the_output(self):
        """Labels that no example has are those of the type, and answers beside them count in the last column."""
        calls = []

        def cost(counts, labels):
            calls.append((counts.tolist(), labels))
            return share_of_right(counts, labels)

        answers = iter(["a", "c", "other", "b"])
        program = Program(
            lambda self, text: dspy.Prediction(label=next(answers)),
            predict=dspy.Predict(dspy.Signature("text -> label: Literal['c', 'a']")),
        )
        devset = [example(label) for label in "aabb"]
        metric = ConfusionMetric(cost)
        answers = [program(text="t").label for _ in devset]
        right_labels = metric.right_labels(devset)
        assert metric.score(right_labels, answers, labels=metric.output_labels(program, devset)) == 0.5
        assert calls == [([[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]], ["c", "a", "b"])]

    @pytest.mark.parametrize(
        ("kind", "labels"),
        [(bool, ["True", "False"]), (Mood, ["good", "bad"]), (Literal["x", "y"] | None, ["x", "y", "None"]), (str, [])],
    )
    def test_knows_the_labels_of_a_type(self, kind, labels):
        signature = dspy.Signature("text -> label").with_updated_fields("label", type_=kind)
        assert F1().output_labels(dspy.Predict(signature), [example("x")]) == labels

    def test_may_write_to_what_it_gets(self):
        def once(counts, labels):
            value = share_of_right(counts, labels)
            counts[:] = 0.0
            labels.clear()
            return value

        assert [ConfusionMetric(once).score(["a", "b"], ["a", "a"]) for _ in range(2)] == [0.5, 0.5]

    def test_may_have_values_beyond_its_bounds(self):
        found = ConfusionScores(ConfusionMetric(lambda counts, labels: 50.0, bounds=(0.0, 1.0)), ["a"])
        assert (found.clip(-1.0), found.clip(70.0)) == (0.0, 1.0)
        found.linearize_at([(0, "a")])
        assert (found.clip(-1.0), found.clip(70.0)) == (0.0, 50.0)

    def test_is_called_by_its_name(self):
        assert repr(ConfusionMetric(share_of_right, name="accuracy")) == "accuracy"
        assert repr(ConfusionMetric(share_of_right, "mood")) == "ConfusionMetric(field='mood', function=share_of_right)"

    @pytest.mark.parametrize("value", [math.nan, math.inf, None, "high"])
    def test_that_returns_no_number_is_an_error(self, value):
        with pytest.raises((ValueError, TypeError), match="metric must return a"):
            ConfusionMetric(lambda counts, labels: value).score(["a", "b"], ["a", None])


class TestBadInput:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: F1(average="binary"), "a label goes with"),
            (lambda: F1("a", average="macro"), "a label goes with"),
            (lambda: F1(average="weighted"), "average must be"),
            (lambda: ConfusionMetric(3), "function must be callable"),
            (lambda: ConfusionMetric(lambda counts: 1.0), "function must be callable"),
            (lambda: ConfusionMetric(F1("a")), "function must be callable"),
            (lambda: ConfusionMetric(share_of_right, bounds=(1, 0)), "bounds must be the least and the largest value"),
            (lambda: F1("d").check([example("a")] * 20), "no example has 'd'"),
            (lambda: F1("a").right_label(example("a").copy(other="b")), "name the field of the label"),
            (lambda: F1().right_label(example(["a", "b"])), "'label' holds a list: use a metric by example"),
            (lambda: F1("a").answer(example("a"), dspy.Prediction(answer="a")), "give both the same name"),
        ],
    )
    def test_is_refused_with_a_cure(self, make, message):
        with pytest.raises((ValueError, TypeError), match=message):
            make()


def test_labels_are_compared_by_what_demos_call_them():
    assert F1(Mood.GOOD)(example("good"), dspy.Prediction(label=Mood.GOOD)) == 1.0
    assert F1(True)(example(True), dspy.Prediction(label=True)) == 1.0
    assert F1("x", field="kind")(example("a", kind="x"), dspy.Prediction(label="b", kind="x")) == 1.0
