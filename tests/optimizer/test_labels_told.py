"""What is said of the labels of examples and demos: the same share everywhere, and of how many examples."""

import re

import dspy
import pytest
from fakes import using
from label_engines import LABELS, exact
from label_world import Engine, go

from plr_dspy import PLFewShot, Report, order_sensitivity
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
    shares = "'negative' {:.2f}, 'positive' {:.2f}".format(*report.calibration.shares)
    assert report.calibration.shares[0] < report.calibration.shares[1]
    told = f"calibration is to these shares of labels: {shares} (from the labels of 137 examples that score)\n"
    assert told in report.details()
    assert "these shares of labels: 'negative' 0.40, 'positive' 0.60\n" in other.details()
    always = r"always answering 'positive' 0\.\d\d \(on {} examples\)"
    assert re.search(always.format(report.constant.num_examples), report.details())


@pytest.mark.parametrize("kind", ["Literal", "str"])
@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["positive", "positive"], "all 2 demos have the label 'positive'"),
        (["negative", "negative", "negative"], "all 3 demos have the label 'negative'"),
        (["positive", "negative"], None),
        (["positive"], None),
    ],
)
def test_demos_of_one_label_are_told(labels, told, kind, tmp_path):
    program = student(labels)
    if kind == "str":
        program.signature = program.signature.with_updated_fields("label", type_=str)
    _, report = go(Engine(), program=program, trainset=rows(), num_demos=None)
    report.save(tmp_path / "report.json")
    for each in (report, Report.load(tmp_path / "report.json")):
        assert (
            each.slots[0].only_labels == ({} if told is None else {"label": labels[0]}) if each.slots else told is None
        )
        for text in (str(each), each.details()):
            assert ("demos have the label" in text) == (told is not None)
            assert (told or "") in text


def test_demos_of_one_label_are_no_news_where_there_is_one(tmp_path):
    one = [row.copy(label="positive").with_inputs("text") for row in rows()]
    _, report = go(Engine(), program=student(["positive", "positive"]), trainset=one)
    assert "demos have the label" not in report.details()
    free = [row.copy(label=f"{row.label} {row.text}").with_inputs("text") for row in rows()]
    program = dspy.Predict("text -> label")
    program.demos = [dspy.Example(text=f"demo {i}", label="a text of its own") for i in range(3)]
    _, report = go(Engine(), program=program, trainset=free)
    assert "demos have the label" not in report.details()
