"""Which log-probabilities are learned from: those that belong to the answer that was scored."""

import dspy
import pytest
from label_engines import Around
from label_world import DEMOS, LABELS, Engine, exact, go

from plr_dspy.scoring.ledger import Ledger


def lenient(example, prediction, trace=None):
    return example.label == getattr(prediction, "label", "negative")


def fickle():
    """A metric that gives something else the second time."""
    seen = set()

    def metric(example, prediction):
        again = (example.text, prediction.label) in seen
        seen.add((example.text, prediction.label))
        return 0.5 if again else exact(example, prediction)

    return metric


@pytest.mark.parametrize(
    ("answer", "metric", "reason"),
    [
        (lambda label: dspy.Prediction(label=LABELS[LABELS[0] == label]), lenient, "answers something else"),
        (lambda label: label, lenient, "answers something else"),
        (lambda label: dspy.Prediction(verdict=label), lenient, "answers something else"),
        (lambda label: dspy.Prediction(label=label), fickle(), "scores the same answer differently"),
    ],
    ids=["another label", "no prediction", "another field", "another score"],
)
def test_others_are_left_alone_and_the_report_says_why(answer, metric, reason):
    program = Around(lambda classify, text: answer(classify(text=text).label))
    program.predict.demos = list(DEMOS)
    _, report = go(Engine(), program=program, metric=metric)
    assert report.signal.used == "score"
    assert reason in report.signal.reason


def test_the_label_is_what_the_program_answered_and_not_what_the_metric_makes_of_it():
    def metric(example, prediction):
        right = exact(example, prediction)
        prediction.label = "changed"
        return right

    _, report = go(Engine(), metric=metric)
    assert report.signal.used == "logprobs"


@pytest.mark.parametrize("values", ["[]", "1", "[null]", '["-1"]', "[true]", "[1e999]", "{}"])
def test_a_ledger_with_others_cannot_be_read(tmp_path, values):
    path = tmp_path / "cells.jsonl"
    path.write_text(f'{{"cell":["x",0],"score":1.0,"label_logprobs":{values}}}\n')
    with pytest.raises(ValueError, match="line 1 of"):
        Ledger(path)
