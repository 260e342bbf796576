"""What a metric gives to each label, found without a call of a language model, or why it cannot be found."""

import dspy
import numpy as np
import pytest
from dspy.utils import BaseCallback
from dspy.utils.dummies import DummyLM
from label_engines import LABELS, exact

from plr_dspy.labels import work as module
from plr_dspy.labels.outputs import LabelOutput, label_output, needed_output
from plr_dspy.labels.work import label_scores

OUTPUT = LabelOutput("self", "label", {label: label for label in LABELS})
EXAMPLES = [
    dspy.Example(text=f"text {i}", label=LABELS[i % 2], weights=[1]).with_inputs("text") for i in range(4)
]
TABLE = [[1, 0], [0, 1], [1, 0], [0, 1]]


class Two(dspy.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = dspy.Predict(first), dspy.Predict(second)


class TestLabelOutput:
    @pytest.mark.parametrize(
        ("program", "reason"),
        [
            (dspy.Predict("text -> label"), "no output is a Literal, an enum or a bool"),
            (Two("text -> a: bool", "text -> a: bool"), "2 predictors have an output that is"),
            (dspy.Predict("text -> a: bool, b: bool"), "2 outputs are a Literal, an enum or a bool"),
            (dspy.Predict("text -> a: Literal['x']"), "the output 'a' does not have two labels with a text"),
            (dspy.Predict("text -> a: Literal['x', '']"), "the output 'a' does not have two labels"),
        ],
    )
    def test_reasons(self, program, reason):
        assert reason in label_output(program)
        with pytest.raises(ValueError, match=r"LocalE needs an output with few.*(a|label): .*use another"):
            needed_output(program, "LocalE", cure=", or use another")


class TestLabelScores:
    @pytest.mark.parametrize(
        "metric",
        [
            exact,
            lambda gold, pred, trace, name, pred_trace: dspy.Prediction(score=gold.label == pred.label),
        ],
    )
    def test_every_way_to_the_label(self, metric):
        np.testing.assert_array_equal(label_scores(metric, EXAMPLES, OUTPUT), TABLE)

    def test_examples_are_not_written_to(self):
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
    def test_are_stopped_before_they_do(self, metric):
        heard = []

        class Listening(BaseCallback):
            def on_lm_start(self, call_id, instance, inputs):
                heard.append("start")

        lm, callbacks = DummyLM([{"verdict": "yes"}] * 100), [Listening()]
        lm.callbacks = list(callbacks)
        with dspy.context(lm=lm, callbacks=callbacks, trace=[]):
            assert label_scores(metric, EXAMPLES, OUTPUT) == "the metric calls a language model"
            assert lm.history == dspy.settings.trace == heard == []
            assert dspy.settings.callbacks == callbacks

    @pytest.mark.parametrize("times", [range(100), [0, 9, *[9] * 100]], ids=["always", "at first"])
    def test_unseen_ones_by_the_time_they_take(self, monkeypatch, times):
        """One that loads something first is not taken for them."""
        now, calls = iter(times), []
        monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))

        def metric(example, prediction):
            calls.append(prediction.label)
            return example.label == prediction.label

        found = label_scores(metric, EXAMPLES, OUTPUT)
        if len(calls) == 2:
            assert found == "the metric takes too long to be asked for every label"
        else:
            np.testing.assert_array_equal(found, TABLE)
        assert len(calls) == (2 if times == range(100) else 8)


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
            (lambda e, p: float("nan"), "ValueError"),
            (lambda e, p: p.label, "MetricTypeError"),
            (None, "TypeError"),
        ],
    )
    def test_are_refused(self, metric, name):
        reason = label_scores(metric, EXAMPLES, OUTPUT)
        assert reason == f"the metric raises {name} for a prediction that holds 'label' alone"

    def test_an_interrupt_passes(self):
        with pytest.raises(KeyboardInterrupt):
            label_scores(raising(KeyboardInterrupt()), EXAMPLES, OUTPUT)

    @pytest.mark.parametrize("examples", [EXAMPLES, []])
    def test_all_labels_alike(self, examples):
        reason = label_scores(lambda e, p: e.text == "text 1", examples, OUTPUT)
        assert reason == "the metric gives every label the same score"
