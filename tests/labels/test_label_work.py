"""A metric's scores for labels, found without LM calls, and the log-probabilities for a search."""

import itertools
from typing import Literal

import dspy
import label_world
import numpy as np
import pytest
from dspy.utils import BaseCallback
from dspy.utils.dummies import DummyLM
from label_engines import LABELS, around, exact
from label_world import DEMOS, Engine, go

from plr_dspy.labels import work as module
from plr_dspy.labels.outputs import LabelOutput
from plr_dspy.labels.work import label_scores

OUTPUT = LabelOutput("self", "label", {label: label for label in LABELS}, Literal[LABELS])
EXAMPLES = [example.copy(weights=[1]).with_inputs("text") for example in label_world.EXAMPLES[:4]]
TABLE = [[1, 0], [0, 1], [1, 0], [0, 1]]


class TestLabelScores:
    @pytest.mark.parametrize(
        "metric",
        [
            exact,
            lambda gold, pred, trace, name, pred_trace: dspy.Prediction(score=gold.label == pred.label),
        ],
    )
    def test_scores_of_all_labels(self, metric):
        np.testing.assert_array_equal(label_scores(metric, EXAMPLES, OUTPUT), TABLE)

    def test_examples_are_not_modified(self):
        def metric(example, prediction):
            example.label = "changed" if example.label == prediction.label else "other"
            return example.label == "changed"

        np.testing.assert_array_equal(label_scores(metric, EXAMPLES, OUTPUT), TABLE)
        assert {example.label for example in EXAMPLES} == set(LABELS)


def judge(lm=None):
    predict = dspy.Predict("text, label -> verdict: bool")
    predict.lm = lm
    return lambda example, prediction: predict(text=example.text, label=prediction.label).verdict


def catching(example, prediction):
    try:
        return judge(dspy.settings.lm)(example, prediction)
    except:  # noqa: E722
        return 0.0


class TestMetricsThatCallAModel:
    @pytest.mark.parametrize("metric", [judge(), catching, lambda e, p: bool(dspy.settings.lm(p.label))])
    def test_are_stopped_before_the_call(self, metric):
        heard = []

        class Listening(BaseCallback):
            def on_lm_start(self, call_id, instance, inputs):
                heard.append("start")

        lm = DummyLM([{"verdict": "yes"}] * 100)
        callbacks = [Listening()]
        lm.callbacks = list(callbacks)
        with dspy.context(lm=lm, callbacks=callbacks, trace=[]):
            assert label_scores(metric, EXAMPLES, OUTPUT) == "the metric calls a language model"
            assert lm.history == dspy.settings.trace == heard == []
            assert dspy.settings.callbacks == callbacks

    @pytest.mark.parametrize(
        ("durations", "seconds", "asked"),
        [([1] * 8, None, 2), ([9] + [0] * 7, None, 8), ([0, 1] * 4, None, 4), ([0.04] * 8, 1.0, 3)],
        ids=["all", "first", "every second", "together"],
    )
    def test_are_detected_by_their_duration(self, monkeypatch, durations, seconds, asked):
        """A slow first call does not make a metric too slow."""
        starts_and_ends = itertools.chain.from_iterable((0, duration) for duration in durations)
        now = iter([*starts_and_ends])
        calls = []
        monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))

        def metric(example, prediction):
            calls.append(prediction.label)
            return example.label == prediction.label

        scores = label_scores(metric, EXAMPLES, OUTPUT, max_seconds=seconds)
        if asked < len(durations):
            assert scores == "the metric is too slow to score every label"
        else:
            np.testing.assert_array_equal(scores, TABLE)
        assert len(calls) == asked


def raising(error):
    def metric(example, prediction):
        raise error

    return metric


class TestMetricsThatFail:
    @pytest.mark.parametrize(
        ("metric", "name"),
        [
            (lambda e, p: exact(e, p) and p.reasoning, "AttributeError"),
            (raising(SystemExit()), "SystemExit"),
            (lambda e, p: float("nan"), "ScoreError"),
            (lambda e, p: p.label, "MetricError"),
        ],
    )
    def test_the_reason_names_the_error(self, metric, name):
        reason = label_scores(metric, EXAMPLES, OUTPUT)
        assert reason == f"the metric raises {name} for a prediction whose only field is 'label'"

    def test_interrupts_are_raised(self):
        with pytest.raises(KeyboardInterrupt):
            label_scores(raising(KeyboardInterrupt()), EXAMPLES, OUTPUT)

    @pytest.mark.parametrize("examples", [EXAMPLES, []])
    def test_equal_scores_for_all_labels(self, examples):
        reason = label_scores(lambda e, p: e.text == "text 1", examples, OUTPUT)
        assert reason == "the metric gives every label the same score"


def lenient(example, prediction, trace=None):
    return example.label == getattr(prediction, "label", "negative")


def fickle():
    seen = set()

    def metric(example, prediction):
        again = (example.text, prediction.label) in seen
        seen.add((example.text, prediction.label))
        return 0.5 if again else exact(example, prediction)

    return metric


@pytest.mark.parametrize(
    ("answer", "metric", "reason"),
    [
        (
            lambda label: dspy.Prediction(label=LABELS[LABELS[0] == label]),
            lenient,
            "answer differs from the classifier's label",
        ),
        (lambda label: label, lenient, "answer differs from the classifier's label"),
        (
            lambda label: dspy.Prediction(verdict=label),
            lenient,
            "answer differs from the classifier's label",
        ),
        (lambda label: dspy.Prediction(label=label), fickle(), "gives the same answer a different score"),
    ],
    ids=["another label", "no prediction", "another field", "another score"],
)
def test_labels_that_do_not_explain_the_score_are_ignored(answer, metric, reason):
    program = around(lambda classify, text: answer(classify(text=text).label))
    program.predict.demos = list(DEMOS)
    _, report = go(Engine(), program=program, metric=metric)
    assert report.signal.used == "score"
    assert reason in report.signal.reason


def test_the_label_is_read_before_the_metric_modifies_the_answer():
    def metric(example, prediction):
        right = exact(example, prediction)
        prediction.label = "changed"
        return right

    _, report = go(Engine(), metric=metric)
    assert report.signal.used == "logprobs"
