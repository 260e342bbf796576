"""Duplicates, contradictory labels and label shares in warnings and reports."""

import random

import dspy
import pytest
from every_function import RUNS
from fakes import using
from label_engines import LABELS, exact
from label_world import Engine, go, labeled

from plr_dspy.programs.splits import make_splits

FEW = {"max_metric_calls": 60}


def rows(count=57, *, num_repeated=3):
    """Return distinct examples, followed by duplicates. Every fourth distinct example is negative."""
    distinct = [labeled(f"text {i}", LABELS[i % 4 > 0]) for i in range(count)]
    return [*distinct, *distinct[1 : num_repeated + 1]]


def student(labels=()):
    program = dspy.Predict("text -> label: Literal['negative', 'positive']")
    for i, label in enumerate(labels):
        program.demos.append(dspy.Example(text=f"demo {i}", label=label))
    return program


FOUR = student(["negative", "positive", "negative", "positive"])


CHECKING = ["PLFewShot", "PLReorder", "PLReorder, calibrated", "TopKOrder", "StaticOrder", "headroom"]


@pytest.mark.parametrize(("name", "num_repeated"), [*((name, 3) for name in CHECKING), ("PLReorder", 0)])
def test_duplicates_are_reported_once(name, num_repeated, caplog):
    with using(Engine()):
        options = {} if name == "StaticOrder" else {"max_metric_calls": 120}
        RUNS[name](FOUR, exact, rows(num_repeated=num_repeated), **options)
    lines = [message for message in caplog.messages if "duplicates" in message]
    assert len(lines) == (num_repeated > 0)
    if num_repeated:
        assert f"{num_repeated} of {57 + num_repeated}" in lines[0]
        assert "are duplicates and are not used" in lines[0]


def test_duplicates_in_the_valset_are_reported_separately(caplog):
    repeated = rows(30, num_repeated=2)
    valset = [labeled(f"other {example.text}", example.label) for example in repeated]
    _, report = go(Engine(), program=FOUR, trainset=rows(60), valset=valset, **FEW)
    assert "3 of 63 examples in trainset are duplicates and are not used" in caplog.text
    assert "2 of 32 examples in valset are duplicates and are not used" in caplog.text
    assert report.settings["num_repeated"] == 5
    assert "5 duplicates ignored" in report.details()


def test_reports_contain_the_label_shares_of_calibration():
    _, report = go(Engine(), program=FOUR, trainset=rows(), calibrate=True, **FEW)
    given = {"negative": 0.4, "positive": 0.6}
    _, other = go(Engine(), program=FOUR, trainset=rows(), calibrate=given, **FEW)
    assert report.calibration.shares[0] < report.calibration.shares[1]
    assert other.calibration.shares == pytest.approx([0.4, 0.6])


@pytest.mark.parametrize("empty", [None, ""])
def test_examples_without_inputs_are_reported(empty, caplog):
    trainset = [*rows(60, num_repeated=0), labeled(empty, LABELS[0]), labeled(empty, LABELS[1])]
    go(Engine(), program=FOUR, trainset=trainset, **FEW)
    assert "in trainset, all inputs are empty in 2 of 62 examples, such as trainset[60]" in caplog.text


def test_contradictory_labels_are_reported(caplog):
    trainset = rows(60, num_repeated=0)
    other = {LABELS[0]: LABELS[1], LABELS[1]: LABELS[0]}
    contradictory = [labeled(example.text, other[example.label]) for example in trainset[:2]]
    go(Engine(), program=FOUR, trainset=[*trainset, *contradictory], **FEW)
    message = "trainset[0] and trainset[60] have the same inputs, but different values of label (pairs like this: 2)"
    assert caplog.text.count(message) == 1
    assert caplog.text.count("have the same inputs") == 1


def test_duplicates_and_programs_without_varying_inputs_are_not_contradictory(caplog):
    go(Engine(), program=FOUR, trainset=rows(), **FEW)
    make_splits([labeled("text", label) for label in LABELS], [], [], random.Random(0), balanced=False)
    assert "have the same inputs" not in caplog.text
