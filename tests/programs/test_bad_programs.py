"""Errors about the argument `programs`, raised before any call."""

import dspy
import pytest
from every_function import QUIET
from fakes import using
from label_world import EXAMPLES, Engine, exact, student

from plr_dspy import CalibratedProgram, PLFewShot, PLReorder, choose_program, evaluate_programs
from plr_dspy.baselines import TopKOrder


def choose(programs):
    choose_program(programs, exact, EXAMPLES, **QUIET)


def evaluate(programs):
    evaluate_programs(programs, exact, EXAMPLES, **QUIET)


def compile_with(optimizer):
    def run(programs):
        optimizer.compile(student(), trainset=EXAMPLES, programs=programs)

    return run


FUNCTIONS = {
    "choose_program": choose,
    "evaluate_programs": evaluate,
    "PLFewShot": compile_with(PLFewShot(exact)),
    "PLReorder": compile_with(PLReorder(exact)),
}
NO_DICT = "programs must be a dict that maps names to programs, or a list"
OTHER_INPUTS = dspy.Predict("headline -> label: bool")
OTHER_OUTPUTS = dspy.Predict("text -> mood: bool")
OTHER_LABELS = dspy.Predict("text -> label: Literal['A', 'B']")
WITHOUT_LABEL = (
    r"programs\['b'\] must have the outputs of .* because the metric fails without \['label'\]; got"
)
BAD_PROGRAMS = [
    (student(), NO_DICT),
    ("ab", NO_DICT),
    ({"a": student(), "b": "saved.json"}, r"programs\['b'\] must be a dspy.Module; got str"),
    ([student(), dspy.Predict], r"programs\['program 2'\] must be a dspy.Module"),
    ({"a": student(), 2: student()}, "programs must have non-empty strings as names; got 2"),
    ({"a": student(), "": student()}, "programs must have non-empty strings as names; got ''"),
    ({"a": student(), "b": OTHER_INPUTS}, r"\['headline'\] of programs\['b'\];"),
    ({"b": OTHER_INPUTS, "a": student()}, r"\['headline'\] of programs\['b'\];"),
    ({"a": student(), "b": CalibratedProgram(OTHER_INPUTS)}, r"\['headline'\] of programs\['b'\];"),
    ({"a": student(), "b": OTHER_OUTPUTS}, WITHOUT_LABEL),
    ({"a": student(), "b": CalibratedProgram(OTHER_OUTPUTS)}, WITHOUT_LABEL),
    ([student(), OTHER_LABELS], r"no example has .*\['A', 'B'\] of programs\['program 2'\] in"),
]


def check_error(run, programs, message):
    with using(Engine(), "fake/x") as engine, pytest.raises((TypeError, ValueError), match=message):
        run(programs)
    assert not engine.prompts


@pytest.mark.parametrize(("programs", "message"), BAD_PROGRAMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_that_cannot_be_scored_are_rejected(name, programs, message):
    check_error(FUNCTIONS[name], programs, message)


@pytest.mark.parametrize(
    ("run", "programs", "least"),
    [(evaluate, {}, 1), (choose, {}, 2), (choose, [], 2), (choose, {"a": student()}, 2)],
)
def test_there_must_be_enough_programs(run, programs, least):
    message = f"the number of programs must be at least {least}; got {len(programs)}"
    check_error(run, programs, message)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (PLFewShot(exact, calibrate=True), "omit calibrate"),
        (PLReorder(exact, auto="paper"), "cannot compare programs"),
        (TopKOrder(exact), "cannot compare programs"),
    ],
)
def test_optimizers_that_cannot_compare_programs_reject_them(optimizer, message):
    check_error(compile_with(optimizer), [student()], message)
