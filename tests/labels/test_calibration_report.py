"""The report of `BatchCalibration`: target shares, scores of strategies, and numbers of examples and calls."""

import json

import dspy
import numpy as np
import pytest
from fakes import Program
from label_engines import LABELS, Classifier, leaning
from label_engines import classifier as student

from plr_dspy import F1, BatchCalibration

LEANING = leaning(LABELS, 2.0)


def labeled(count, *, num_negative, first=0):
    """Return `count` examples. The first `num_negative` of them are negative."""
    texts = [f"text {i}" for i in range(first, first + count)]
    labels = np.repeat(["negative", "positive"], [num_negative, count - num_negative]).tolist()
    pairs = zip(texts, labels, strict=True)
    return [dspy.Example(text=text, label=label).with_inputs("text") for text, label in pairs]


def unlabeled(count):
    return [example.without("label").with_inputs("text") for example in labeled(count, num_negative=0)]


def reported(
    trainset, *, probabilities=LEANING, program=None, adapter=None, unreadable=lambda text: False, **options
):
    """Return the optimizer after a compile, and the calibrated program."""
    optimizer = BatchCalibration(num_threads=1, display_progress=False, **options)
    engine = Classifier(probabilities, unreadable=unreadable)
    with dspy.context(lm=engine.lm(), adapter=adapter or dspy.ChatAdapter()):
        calibrated = optimizer.compile(program or student(), trainset=trainset)
    return optimizer, calibrated


MIXED = labeled(60, num_negative=20)


@pytest.mark.parametrize(
    ("trainset", "options"),
    [
        (MIXED, {}),
        (MIXED, {"metric": F1("negative")}),
        (MIXED, {"prior": {"negative": 0.2, "positive": 0.8}}),
        (unlabeled(30), {}),
    ],
    ids=["labels", "metric", "prior", "no labels"],
)
def test_target_shares(trainset, options):
    optimizer, program = reported(trainset, **options)
    report = optimizer.report
    calibration = program.calibration
    shares = calibration.shares if calibration else ()
    assert (report.shares is None) == (not shares)
    assert tuple((report.shares or {}).values()) == shares
    assert optimizer.prior == options.get("prior"), "the compile must not change the optimizer's arguments"
    assert list(report.mean_probabilities) == LABELS
    assert sum(report.mean_probabilities.values()) == pytest.approx(1.0, abs=1e-3)
    plain = json.loads(json.dumps(program.calibration_report))
    assert plain["mean_probabilities"] == report.mean_probabilities
    assert report.calibration == calibration
    for label, share in (report.shares or {}).items():
        assert f"{label!r} {share:.2f}" in str(report).splitlines()[0]


@pytest.mark.parametrize("metric", [None, F1("negative")])
def test_scores_of_all_strategies_and_the_choice(metric):
    optimizer, _ = reported(labeled(60, num_negative=15), metric=metric)
    report = optimizer.report
    *ways, always = report.scores
    assert always.startswith("always ")
    assert report.scores[report.chosen] == max(report.scores[way] for way in ways)
    assert report.metric == ("accuracy" if metric is None else "F1(label='negative', average='binary')")
    assert f"{report.metric} on 60 inputs:" in str(report)
    for way, score in report.scores.items():
        assert f"    {way}: {score:.3f}" in str(report)
    assert str(report).count("(chosen)") == 1
    if metric is None:
        low, high = report.gain_interval
        assert low <= report.scores[report.chosen] - report.scores["as it is"] <= high
        assert f"gain over the uncalibrated program: between {low:+.3f} and {high:+.3f}" in str(report)


def test_answers_that_stay_unchanged():
    right = {example.text: example.label for example in MIXED}
    sure = lambda text: {label: 0.99 if right[text] == label else 0.01 for label in LABELS}  # noqa: E731
    optimizer, program = reported(MIXED, probabilities=sure)
    assert program.calibration is None
    assert (optimizer.report.shares, optimizer.report.chosen) == (None, "as it is")
    assert "answers stay unchanged" in str(optimizer.report)


def test_counts_the_examples(caplog):
    """Duplicates, unlabeled examples and examples used as demos are not among the inputs."""
    distinct = labeled(60, num_negative=20)
    without = [example.without("label").with_inputs("text") for example in distinct[-5:]]
    program = student()
    program.demos = distinct[18:22]
    trainset = [*distinct[:-5], *without, *distinct[:3]]
    report = reported(trainset, program=program)[0].report
    assert report.num_examples == len(trainset) == 63
    assert report.num_inputs == 60 - 4 - 5
    assert "5 of 56 examples have none of the labels" in caplog.text


def test_counts_calls_that_failed_and_replies_with_label_probabilities():
    def answer(self, text):
        if text == "text 1":
            raise ConnectionError("no route")
        return self.step(text=text)

    optimizer, _ = reported(
        MIXED,
        program=Program(answer, step=student()),
        unreadable=lambda text: text in ("text 30", "text 31"),
        probabilities=lambda text: {"neither": 1.0} if text == "text 40" else LEANING(text),
        adapter=dspy.ChatAdapter(use_json_adapter_fallback=False),
    )
    report = optimizer.report
    assert (report.program_calls, report.num_inputs) == (60, 58)
    assert report.num_failed == 1
    assert "60 program calls (1 failed, 58 with label probabilities)" in str(report)


def test_a_failed_compile_discards_the_previous_report():
    optimizer, _ = reported(MIXED)
    engine = Classifier(LEANING)
    with dspy.context(lm=engine.lm()), pytest.raises(ValueError, match="at least 2 distinct inputs"):
        optimizer.compile(student(), trainset=[])
    assert optimizer.report is None
