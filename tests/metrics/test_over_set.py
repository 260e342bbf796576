"""Metrics over a set: their values, and the influence of answers on them, against scikit-learn."""

import enum
import math

import dspy
import numpy as np
import pydantic
import pytest
from fakes import Program
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

import plr_dspy
from plr_dspy import F1, AverageScoreBy, DatasetMetric, RecallAtPrecision
from plr_dspy.scoring import influence
from plr_dspy.scoring.influence import Influence

LABELS = ("a", "b", "c")


def example(label, **more):
    return dspy.Example(text="t", label=label, **more).with_inputs("text", *more)


def value(metric, examples, predictions):
    """The value of a metric, by what it reads of examples and predictions."""
    examples = list(examples)
    told = [metric.outputs(*pair) for pair in zip(examples, predictions, strict=True)]
    return metric.value([metric.fact(each) for each in examples], told, [1.0] * len(told))


def f1_score(right, answers, weights, **options):
    return sklearn_metrics.f1_score(right, answers, sample_weight=weights, zero_division=0.0, **options)


BY_SKLEARN = {
    F1("a"): lambda t, p, w: f1_score(np.array(t) == "a", np.array(p) == "a", w),
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
BOTH = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from([*LABELS, "other"])), min_size=4, max_size=40)


@pytest.mark.parametrize("metric", BY_SKLEARN, ids=repr)
class TestLabels:
    @settings(deadline=None, max_examples=25)
    @given(both=BOTH)
    def test_values_are_those_of_scikit_learn(self, metric, both):
        right, answers = zip(*both, strict=True)
        assume("a" in right)
        found = value(metric, map(example, right), [dspy.Prediction(label=label) for label in answers])
        assert found == pytest.approx(BY_SKLEARN[metric](right, answers, [1.0] * len(both)))

    @settings(deadline=None, max_examples=10)
    @given(both=BOTH, moved=st.integers(0, 39), to=st.sampled_from(LABELS))
    def test_influence_is_the_derivative_and_its_mean_the_metric(self, metric, both, moved, to):
        """Against finite differences of scikit-learn, where some weight of an example goes to another answer."""
        both = [*both, *((t, p) for t in LABELS for p in LABELS)]
        right, answers = map(list, zip(*both, strict=True))
        moved %= len(both)
        found = Influence(metric, right)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(influence, "PSEUDO", 1e-9)
            found.refer(enumerate(answers))
        scores = [found.score(i, answer) for i, answer in enumerate(answers)]
        by_sklearn = BY_SKLEARN[metric]
        assert np.mean(scores) == pytest.approx(by_sklearn(right, answers, [1.0] * len(both)), abs=1e-9)
        step, weights = 1e-5, np.ones(len(both) + 1)
        weights[moved], weights[-1] = 1.0 - step, step
        ways, more = (weights, [1.0] * len(both) + [0.0]), ([*right, right[moved]], [*answers, to])
        after, before = (by_sklearn(*more, each) for each in ways)
        derivative = (after - before) / step * len(both)
        assert found.score(moved, to) - scores[moved] == pytest.approx(derivative, abs=1e-3)

    def test_nothing_is_answered(self, metric):
        """As where no reply can be read."""
        facts = ["a"] * 3 + ["b"] * 7
        found = Influence(metric, facts)
        found.refer((i, None) for i in range(10))
        assert found.value((i, None) for i in range(10)) == min(metric.bounds[0], 0.0)
        assert all(math.isfinite(found.score(i, told)) for i in range(10) for told in (None, "a", "b"))
        assert found.score(0, "a") > found.score(0, None)


@pytest.mark.parametrize("metric", [*BY_SKLEARN, F1("b")], ids=repr)
@given(both=BOTH, unread=st.integers(0, 39))
def test_an_unread_reply_is_worth_no_more_than_any_wrong_label(metric, both, unread):
    if isinstance(metric, plr_dspy.MatthewsCorrelation):  # It spreads the reply over all wrong labels.
        both = [pair for pair in both if {*pair} <= {"a", "b"}]
    assume({"a", "b"} <= {label for label, _ in both})
    examples = [example(right) for right, _ in both]
    unread %= len(both)
    right = both[unread][0]

    def value_with(answer):
        answers = [label for _, label in both]
        answers[unread] = answer
        outputs = [None if label is None else metric.outputs(*pair) for pair, label in read(answers)]
        return metric.value([metric.fact(each) for each in examples], outputs, [1.0] * len(both))

    def read(answers):
        predictions = [dspy.Prediction(label=label) for label in answers]
        return zip(zip(examples, predictions, strict=True), answers, strict=True)

    labels = {label for label, _ in both}  # of the examples
    values_of_wrong_labels = [value_with(label) for label in labels - {right}]
    of_unread = value_with(None)
    assert of_unread <= min(values_of_wrong_labels) + 1e-9
    assert of_unread <= value_with(right) + 1e-9


def test_f1_of_a_label_counts_unread_replies_to_other_examples():
    """A program that reads one label well and loses all other replies must not look better than one that answers."""
    examples = [example("a")] * 2 + [example("b")] * 6
    metric = F1("a")
    facts = [metric.fact(each) for each in examples]
    broken = metric.value(facts, ["a", "a", *[None] * 6], [1.0] * 8)
    assert broken == metric.value(facts, ["a"] * 8, [1.0] * 8) == pytest.approx(0.4)
    recall = RecallAtPrecision("a", 0.5)
    certain = [["a", 0.9], ["a", 0.8]]
    assert recall.value(facts, [*certain, *[["b", 0.1]] * 6], [1.0] * 8) == 1.0
    assert recall.value(facts, [*certain, *[None] * 6], [1.0] * 8) == 0.0


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.floats(0, 1)), min_size=3, max_size=30), st.booleans())
def test_average_score_by_group(groups, worst):
    metric = AverageScoreBy("group", lambda example, prediction: prediction.points, worst=worst)
    examples = [dspy.Example(text="t", group=name).with_inputs("text") for name, _ in groups]
    means = [np.mean([s for name, s in groups if name == group]) for group in {name for name, _ in groups}]
    found = value(metric, examples, [dspy.Prediction(points=score) for _, score in groups])
    assert found == pytest.approx(min(means) if worst else np.mean(means), abs=1.01e-4)
    scored = Influence(metric, [name for name, _ in groups])
    assert scored.limited(70.0) == 1.0  # As far as is known.
    scored.refer(enumerate([50.0, *(score for _, score in groups[1:])]))
    assert (scored.limited(70.0), scored.limited(-1.0)) == (50.0, 0.0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1), st.booleans()), min_size=6, max_size=30))
def test_labels_count_in_the_shares_of_all_examples(rows):
    labels, scores, scored = (np.array(column) for column in zip(*rows, strict=True))
    found = Influence(F1(), list(labels))
    examples, known = np.arange(len(labels)), scored.astype(bool)
    table = np.where(known, scores, np.nan)[None]
    means = {each: scores[known & (labels == each)].mean() for each in set(labels[known])}
    expected = sum((labels == each).mean() * mean for each, mean in means.items())
    (weights,) = found.weights(known[None], examples)
    assert (weights > 0).tolist() == known.tolist()
    if known.any():
        assert np.nanmean(found.stratified(table, examples)) == pytest.approx(expected)
        assert weights[known].mean() == pytest.approx(np.isin(labels, list(means)).mean())


@pytest.mark.parametrize("counts", [(10, 10, 0), (2, 40, 8), (1, 1, 1)])
def test_scores_are_worth_what_the_variance_of_their_mean_says(counts):
    """Against answers that are drawn anew from those of the reference, for so many examples of each label."""
    rng, labels = np.random.default_rng(0), np.repeat([*"abc"], [60, 440, 100])
    answers = np.where(rng.random(600) < 0.6, labels, rng.choice([*"abc"], size=600))
    found = Influence(F1("a"), labels.tolist())
    found.refer(enumerate(answers.tolist()))
    told = np.array([found.score(i, each) for i, each in enumerate(answers)])
    there = [(np.flatnonzero(labels == name), count) for name, count in zip("abc", counts, strict=True) if count]
    examples = np.concatenate([each[:count] for each, count in there])
    drawn = np.concatenate([told[rng.choice(each, (8_000, count))] for each, count in there], axis=1)
    of_mean = found.stratified(drawn, examples).mean(axis=1).var() * (600 / sum(len(each) for each, _ in there)) ** 2
    at_random = np.average([told[each].var() for each, _ in there], weights=[len(each) for each, _ in there])
    (worth,) = found.worth(np.ones((1, len(examples)), dtype=bool), examples)
    assert worth == pytest.approx(at_random / len(examples) / of_mean, rel=0.1)


class TestRecallAtPrecision:
    def test_takes_the_best_threshold(self):
        metric = RecallAtPrecision("a", 0.75)
        shares = [0.9, 0.8, 0.7, 0.6, 0.2, 0.1]
        right = ["a", "a", "b", "a", "a", "b"]
        predictions = [dspy.Prediction(label="a", probabilities={"a": p, "b": 1 - p}) for p in shares]
        told = [metric.outputs(example(label), p) for label, p in zip(right, predictions, strict=True)]
        assert metric.value(right, told, [1.0] * 6) == 1.0, "4 of the 5 likeliest are right"
        assert RecallAtPrecision("a", 0.9).value(right, told, [1.0] * 6) == 0.5
        assert metric.value(["b"] * 6, told, [1.0] * 6) == 0.0

    def test_says_where_probabilities_come_from(self):
        with pytest.raises(TypeError, match="calibrate the program first"):
            RecallAtPrecision("a", 0.5).outputs(example("a"), dspy.Prediction(label="a"))
        metric = RecallAtPrecision("a", 0.5, confidence="sure")
        assert metric.outputs(example("a"), dspy.Prediction(label="a", sure=0.4)) == ["a", 0.4]


class Mood(enum.Enum):
    GOOD = "good"


class TestAnyFunction:
    def test_gets_lists_of_examples_and_plain_predictions(self):
        def share_of_longest(examples, predictions):
            assert len(examples) == len(predictions)
            lengths = [len(each.get("label", "")) for each in predictions]
            return max(lengths) / sum(lengths) if sum(lengths) else 0.0

        metric, examples = DatasetMetric(share_of_longest), [example("a"), example("b"), example("a")]
        found = Influence(metric, examples)
        told = [{"label": "xx"}, {"label": "x"}, {"label": "x"}]
        found.refer(enumerate(told))
        assert found.value(enumerate(told)) == 0.5
        assert np.mean([found.score(i, each) for i, each in enumerate(told)]) == pytest.approx(0.5)
        assert found.score(0, {"label": "xxxx"}) > found.score(0, {"label": "x"})

    def test_may_have_values_beyond_its_bounds(self):
        found = Influence(DatasetMetric(lambda examples, predictions: 50.0, bounds=(0.0, 1.0)), [example("a")])
        found.refer([(0, {"label": "a"})])
        assert (found.limited(-1.0), found.limited(70.0)) == (0.0, 50.0)

    def test_may_write_to_what_it_gets(self):
        def once(examples, predictions):
            right, examples[0].label = examples[0].label == predictions[0].label, "seen"
            return float(right)

        metric = DatasetMetric(once)
        facts, outputs = [metric.fact(example("a"))], [{"label": "a"}]
        assert [metric.value(facts, outputs, [1.0]) for _ in range(2)] == [1.0, 1.0]

    @pytest.mark.parametrize("value", [math.nan, math.inf, None, "high"])
    def test_that_returns_no_number_is_an_error(self, value):
        with pytest.raises((ValueError, TypeError), match="metric must return a"):
            DatasetMetric(lambda examples, predictions: value)(example("a"), dspy.Prediction(label="a"))


def len_of(examples, predictions):
    return len(examples)


class TestBadInput:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: F1(average="binary"), "needs a label"),
            (lambda: F1("a", average="macro"), "takes no label"),
            (lambda: F1(average="weighted"), "average must be"),
            (lambda: RecallAtPrecision("a", 1.5), r"precision must lie in \(0, 1\]"),
            (lambda: DatasetMetric(3), "function must be callable"),
            (lambda: DatasetMetric(lambda examples: 1.0), "function must be callable"),
            (lambda: DatasetMetric(F1("a")), "function must be callable"),
            (lambda: DatasetMetric(len_of, bounds=(1, 0)), "bounds must be the least and the largest value"),
            (lambda: DatasetMetric(len_of, bounds=0.5), "bounds must be the least and the largest value"),
            (lambda: AverageScoreBy("text", F1("a")), "must be a metric by example"),
            (lambda: AverageScoreBy("group").fact(example("a")), "each example needs the field 'group'"),
            (lambda: F1("A").evaluate(dspy.Predict("text -> label"), [example("a")]), "no example has 'A'"),
            (lambda: F1("d").check([example("a")] * 20), "no example has 'd'"),
            (lambda: F1("a").fact(example("a").copy(other="b")), "name the one that does, such as F1"),
            (lambda: F1().fact(example(["a", "b"])), r"one label .*'label' holds a list: pass DatasetMetric"),
            (lambda: F1("a").outputs(example("a"), dspy.Prediction(answer="a")), "give both the same name"),
        ],
    )
    def test_is_refused_with_a_cure(self, make, message):
        with pytest.raises((ValueError, TypeError), match=message):
            make()

    def test_few_of_a_label_are_warned_of(self, caplog):
        parts = [example("a")] * 8 + [example("b")] * 72, [example("a")] * 2 + [example("b")] * 18
        F1("a").check(*parts)
        assert "only 8 of the 80 examples to search and 2 of the 20 examples to compare by have 'a', so" in caplog.text
        assert "Of 500 examples, with the same share, 10 would in either part" in caplog.text
        F1("a").check(parts[0])
        assert "only 8 of the 80 examples have 'a', so that" in caplog.text
        assert "Of 100 examples, with the same share, 10 would" in caplog.text


def test_evaluate_scores_a_program(caplog):
    def echo(self, text):
        if text == "fails":
            raise ValueError("no answer")
        return dspy.Prediction(label=text)

    texts = ["a", "a", "b", "fails"]
    devset = [dspy.Example(text=t, label=label).with_inputs("text") for t, label in zip(texts, "abba", strict=True)]
    options = {"num_threads": 2, "display_progress": False, "max_errors": 10}
    assert F1("a").evaluate(Program(echo), devset, **options) == pytest.approx(2 / 3)  # without the call that failed
    assert "calls on 1 of 4 examples failed: they are left out" in caplog.text
    with pytest.raises(RuntimeError, match="all calls failed"):
        F1("a").evaluate(Program(echo), devset[3:], **options)
    for size in (1, 10):  # dspy.Evaluate goes on, or gives up
        with pytest.raises(TypeError, match="the metric reads the label at 'label'"):
            F1("a").evaluate(Program(lambda self, text: dspy.Prediction(other=text)), devset[:1] * size, **options)


def test_evaluate_calls_a_function_once_on_all_and_changes_no_example():
    """It may mean nothing of one example alone, and write to what it gets; objects are those that were returned."""

    class Answer(pydantic.BaseModel):
        label: str

    def share(examples, predictions):
        if len(examples) < 2:
            raise ValueError("too few")
        right = [e.label is Mood.GOOD and p.answer.label == "good" for e, p in zip(examples, predictions, strict=True)]
        for each in examples:
            each.label = "gone"
        return sum(right) / len(right)

    program = Program(lambda self, text: dspy.Prediction(answer=Answer(label="good")))
    devset = [dspy.Example(text=f"t{i}", label=Mood.GOOD).with_inputs("text") for i in range(12)]
    assert DatasetMetric(share).evaluate(program, devset, num_threads=1, display_progress=False) == 1.0
    assert all(each.label is Mood.GOOD for each in devset)


def test_labels_are_compared_by_what_demos_call_them_and_no_group_is_one():
    assert F1(Mood.GOOD)(example("good"), dspy.Prediction(label=Mood.GOOD)) == 1.0
    assert F1(True)(example(True), dspy.Prediction(label=True)) == 1.0
    assert F1("x", field="kind")(example("a", kind="x"), dspy.Prediction(label="b", kind="x")) == 1.0
    metric = AverageScoreBy("group")
    assert metric(example("a").copy(group="x"), dspy.Prediction(label="a")) == 1.0
