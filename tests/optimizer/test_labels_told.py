"""What is said of the labels of examples and demos: the same share everywhere, and of how many examples."""

import dspy
import pytest
from fakes import using
from label_engines import LABELS, exact
from label_world import Engine, go

from plr_dspy import PLFewShot, order_sensitivity
from plr_dspy.baselines import StaticOrder, TopKOrder

QUIET = {"num_threads": 1, "display_progress": False}


def rows(count=137, *, num_repeated=3):
    """As from a CSV: every fourth is negative, and some positive ones are given twice."""
    distinct = [dspy.Example(text=f"text {i}", label=LABELS[i % 4 > 0]).with_inputs("text") for i in range(count)]
    return [*distinct, *distinct[1 : num_repeated + 1]]


def student(labels=()):
    program = dspy.Predict("text -> label: Literal['negative', 'positive']")
    program.demos = [dspy.Example(text=f"demo {i}", label=label) for i, label in enumerate(labels)]
    return program


FOUR = student(["negative", "positive", "negative", "positive"])
COMPILES = {
    "PLFewShot": lambda trainset: go(Engine(), kind=PLFewShot, program=student(), trainset=trainset),
    "PLReorder": lambda trainset: go(Engine(), program=FOUR, trainset=trainset),
    "calibrate": lambda trainset: go(Engine(), program=FOUR, trainset=trainset, calibrate=True),
    "TopKOrder": lambda trainset: TopKOrder(exact, max_metric_calls=240, **QUIET).compile(FOUR, trainset=trainset),
    "StaticOrder": lambda trainset: StaticOrder(exact, **QUIET).compile(FOUR, trainset=trainset),
    "order_sensitivity": lambda trainset: order_sensitivity(FOUR, exact, trainset, max_metric_calls=100, **QUIET),
}


@pytest.mark.parametrize("name", COMPILES)
@pytest.mark.parametrize("num_repeated", [0, 1, 3])
def test_examples_that_are_given_twice_are_told_once(name, num_repeated, caplog):
    with using(Engine(), "fake/x"):
        COMPILES[name](rows(num_repeated=num_repeated))
    lines = [record.getMessage() for record in caplog.records if "given twice" in record.getMessage()]
    told = {0: [], 1: ["1 of 138", "are given twice and count once"], 3: ["3 of 140", "are given twice and count once"]}
    assert len(lines) == (num_repeated > 0)
    for words in told[num_repeated]:
        assert words in lines[0]


def test_those_of_the_valset_are_told_by_its_name(caplog):
    valset = [example.copy(text=f"other {example.text}").with_inputs("text") for example in rows(30, num_repeated=2)]
    _, report = go(Engine(), program=FOUR, trainset=rows(60), valset=valset)
    assert "3 of 63 examples of trainset are given twice and count once" in caplog.text
    assert "2 of 32 examples of valset are given twice and count once" in caplog.text
    assert report.settings["num_repeated"] == 5
    assert "5 more, given twice, count once" in report.details()


def test_shares_of_a_report_say_of_which_examples():
    _, report = go(Engine(), program=FOUR, trainset=rows(), calibrate=True)
    given = {"negative": 0.4, "positive": 0.6}
    _, other = go(Engine(), program=FOUR, trainset=rows(), calibrate=given)
    assert report.calibration.shares[0] < report.calibration.shares[1]
    assert other.calibration.shares == pytest.approx([0.4, 0.6])
