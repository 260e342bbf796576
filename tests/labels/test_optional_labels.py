"""Outputs that may be None besides a label: it is an answer, which counts in what is said of their shares."""

from typing import Optional

import dspy
import pytest
from fakes import using
from label_engines import KIND, LABELS, classifier, exact
from label_world import Engine

from plr_dspy import BatchCalibration, PLReorder

QUIET = {"num_threads": 1, "display_progress": False}
OPTIONAL = Optional[KIND]  # noqa: UP045


def examples(*labels):
    return [dspy.Example(text=f"text {i}", label=label).with_inputs("text") for i, label in enumerate(labels)]


def with_demos(*labels):
    program = classifier(OPTIONAL)
    program.demos = [dspy.Example(text=f"demo {i}", label=label) for i, label in enumerate(labels)]
    return program


def calibrate(program, trainset):
    BatchCalibration(num_inputs=40, **QUIET).compile(program, trainset=trainset)


def reorder(program, trainset):
    PLReorder(exact, max_metric_calls=60, **QUIET).compile(program, trainset=trainset)


WAYS = [calibrate, reorder]
ONE, OTHER = LABELS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([ONE, ONE, ONE, None, None], "60 % of the 60 examples of trainset have 'negative'"),
        ([ONE, OTHER, None, None, None, None, None, None], "75 % of the 96 examples of trainset have None"),
        ([ONE, ONE, ONE, ONE, OTHER], "80 % of the 60 examples of trainset have 'negative'"),
        ([ONE, OTHER, ONE, OTHER, None], ""),
    ],
    ids=str,
)
def test_shares_of_examples_count_it(way, labels, told, caplog):
    with using(Engine()):
        way(with_demos(ONE, OTHER, None), examples(*labels * 12))
    warnings = [line for line in caplog.messages if "examples of trainset have" in line]
    assert [line.partition(":")[0] for line in warnings] == [told] * bool(told)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("demos", "told"), [([None] * 3, "None"), ([ONE] * 3, "'negative'"), ([ONE, ONE, None], "")])
def test_demos_that_are_all_of_one_label_are_told_with_it(way, demos, told, caplog):
    with using(Engine()):
        way(with_demos(*demos), examples(*[ONE, None] * 25))
    warnings = [line for line in caplog.messages if "demos have the label" in line]
    assert [line.partition(",")[0] for line in warnings] == [f"all 3 demos have the label {told}"] * bool(told)


def test_examples_that_calibrate_no_label_are_counted(caplog):
    caplog.set_level("INFO")
    with using(Engine()):
        calibrate(with_demos(ONE, OTHER), examples(*[ONE, OTHER, None] * 12))
    assert "12 examples have None at 'label', and calibrate no label" in caplog.text
