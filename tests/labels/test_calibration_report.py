"""The report of BatchCalibration: what answers were calibrated to, by which examples, and what else was compared."""

import json
import logging

import dspy
import pytest
from fakes import Program
from label_engines import LABELS, Classifier, leaning
from label_engines import classifier as student

from plr_dspy import F1, BatchCalibration

LEANING = leaning(LABELS, 2.0)


def labelled(count, *, num_negative, first=0):
    """Examples of which the first ones are negative."""
    texts = [f"text {i}" for i in range(first, first + count)]
    labels = ["negative"] * num_negative + ["positive"] * (count - num_negative)
    return [dspy.Example(text=t, label=each).with_inputs("text") for t, each in zip(texts, labels, strict=True)]


def unlabelled(count):
    return [each.without("label").with_inputs("text") for each in labelled(count, num_negative=0)]


def reported(trainset, *, probabilities=LEANING, program=None, adapter=None, unreadable=lambda text: False, **options):
    """The optimizer after a compile, and the program."""
    optimizer = BatchCalibration(num_threads=1, display_progress=False, **options)
    engine = Classifier(probabilities, unreadable=unreadable)
    with dspy.context(lm=engine.lm(), adapter=adapter or dspy.ChatAdapter()):
        calibrated = optimizer.compile(program or student(), trainset=trainset)
    return optimizer, calibrated


MIXED = labelled(60, num_negative=20)


@pytest.mark.parametrize(
    ("trainset", "options", "words"),
    [
        (MIXED, {}, "the best of"),
        (MIXED, {"metric": F1("negative")}, "by the labels of 60 inputs"),
        (MIXED, {"prior": {"negative": 0.2, "positive": 0.8}}, "your prior"),
        (MIXED, {"method": "contextual"}, "the same for each label"),
        (MIXED, {"method": "linear"}, "none, for "),
        (unlabelled(30), {}, "no labels decide: all are taken to be equally frequent"),
    ],
    ids=["labels", "metric", "prior", "contextual", "linear", "no labels"],
)
def test_says_which_shares_answers_were_calibrated_to_and_why(trainset, options, words):
    optimizer, program = reported(trainset, **options)
    report, calibration = optimizer.report, program.calibration
    shares = calibration.shares if calibration else ()
    assert (report.shares is None) == (not shares)
    assert tuple((report.shares or {}).values()) == shares
    assert words in report.shares_from
    assert optimizer.prior == options.get("prior"), "an argument stays as it was set"
    assert list(report.mean_probabilities) == LABELS
    assert sum(report.mean_probabilities.values()) == pytest.approx(1.0)
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict() == program.calibration_report
    assert words in str(report)
    for label, share in (report.shares or {}).items():
        assert f"{label!r} {share:.2f}" in str(report).splitlines()[0]


@pytest.mark.parametrize("metric", [None, F1("negative")])
def test_has_each_way_that_was_compared_and_the_one_that_was_chosen(metric):
    optimizer, program = reported(labelled(60, num_negative=15), metric=metric)
    report = optimizer.report
    compared = {**report.scores, f"always {report.always!r}": report.always_score}
    assert compared == optimizer.accuracies
    assert report.scores[report.chosen] == max(report.scores.values())
    assert report.metric == ("accuracy" if metric is None else "F1(label='negative', average='binary')")
    assert f"{report.metric} on 60 inputs:" in str(report)
    for way, score in compared.items():
        assert f"    {way}: {score:.3f}" in str(report)
    assert str(report).count("(chosen)") == 1
    assert report.calibrated == (program.calibration is not None and program.calibration.method != "none")


def test_answers_that_stay_as_they_are():
    right = {each.text: each.label for each in MIXED}
    sure = lambda text: {label: 0.99 if right[text] == label else 0.01 for label in LABELS}  # noqa: E731
    optimizer, program = reported(MIXED, probabilities=sure)
    assert program.calibration is None
    assert (optimizer.report.shares, optimizer.report.chosen) == (None, "as it is")
    assert "answers stay as they are" in str(optimizer.report)


def test_counts_the_examples_that_were_left_out_and_why(caplog):
    """Of examples that are given twice one is used; each has one reason, so that the numbers add up."""
    distinct = labelled(60, num_negative=20)
    without = [each.without("label").with_inputs("text") for each in distinct[-5:]]
    program = student()
    program.demos = distinct[18:22]
    trainset = [*distinct[:-5], *without, *distinct[:3]]
    optimizer, _ = reported(trainset, program=program, num_inputs=32)
    report = optimizer.report
    expected = {"given twice": 3, "shown by demos": 4, "without a label": 5, "beyond num_inputs": 19}
    assert report.left_out == expected
    assert report.num_examples == len(trainset) == sum(expected.values()) + report.num_inputs
    assert report.label_counts == {"negative": 23, "positive": 35}
    assert "32 of 63 of trainset were used; left out: 3 given twice, 4 shown by demos" in str(report)
    assert "labels of the 58 labelled examples of trainset: 'negative' 0.40, 'positive' 0.60" in str(report)
    assert caplog.text.count("3 of 63 examples of trainset are given twice and count once") == 1


def test_counts_calls_that_failed_and_replies_that_could_not_be_read():
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
    assert (report.program_calls, report.num_inputs, report.num_scored) == (60, 58, 59)
    assert (report.num_failed, report.num_unread, report.num_silent) == (1, 3, 1)
    said = (
        "60 program calls (1 failed, 3 with a reply that could not be read, 1 with a reply that says nothing of labels)"
    )
    assert said in str(report)


def test_no_report_is_of_an_earlier_compile():
    optimizer, _ = reported(MIXED)
    engine = Classifier(LEANING)
    with dspy.context(lm=engine.lm()), pytest.raises(ValueError, match="at least 2 different inputs"):
        optimizer.compile(student(), trainset=[])
    assert optimizer.report is None


def test_the_log_line_says_of_how_many_examples(caplog):
    with caplog.at_level(logging.INFO, "plr_dspy"):
        reported(labelled(60, num_negative=15), num_inputs=30)
    assert "by 30 of 60 examples of trainset; mean probabilities before" in caplog.text
    assert "75 % of the 60 examples of trainset have 'positive'" in caplog.text
