"""Demos that the adapter does not show in any prompt: a warning before the first call."""

import contextlib

import dspy
import fakes
import pytest
from every_function import RUNS
from fakes import engine_for, exact_match, questions, student, using

from plr_dspy import PLFewShot, PLReorder

EXAMPLES = questions(60)
UNANSWERED = [dspy.Example(question=f"demo {i}", note="a") for i in range(3)]

ARGUMENTS = {
    "PLReorder": "student",
    "PLFewShot": "student",
    "PLFewShot, programs": "programs['given']",
    "headroom": "program",
    "choose_program": "programs['given']",
    "evaluate_programs": "programs['given']",
}
"""The argument in which each function receives the program."""


def warnings_before_calls(caplog, run):
    """Interrupt the first call, and return the warnings logged before it."""
    engine = engine_for(EXAMPLES, at=dict.fromkeys(range(40), fakes.interrupt))
    with using(engine), contextlib.suppress(KeyboardInterrupt):
        run()
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS.items())
def test_of_a_program_are_named_once(caplog, name, argument):
    program = student([*EXAMPLES[:3], *UNANSWERED])
    warnings = warnings_before_calls(caplog, lambda: RUNS[name](program, exact_match, EXAMPLES))
    expected = (
        f"in {argument}, the adapter leaves out 3 of 6 demos of predictor 'self' (demo 3 has no 'answer'): complete "
        "these demos, or remove them"
    )
    assert warnings.count(expected) == 1


def test_of_several_predictors_are_named_in_one_warning(caplog):
    program = dspy.Module()
    program.first = dspy.Predict("question -> topic, source")
    program.second = dspy.Predict("topic -> answer")
    program.third = dspy.Predict("question -> answer")
    program = dspy.LabeledFewShot(k=4).compile(program, trainset=EXAMPLES)
    run = PLReorder(exact_match)
    warnings = warnings_before_calls(caplog, lambda: run.estimate(program, trainset=EXAMPLES))
    (warning,) = [warning for warning in warnings if "demos of predictor" in warning]
    assert warning == (
        "in student, the adapter leaves out 4 of 4 demos of predictor 'first' (demo 0 has no 'topic' and no 'source'), "
        "4 of 4 demos of predictor 'second' (demo 0 has no 'topic'). Labeled examples often lack fields of inner "
        "predictors"
    )


def test_examples_that_cannot_become_demos_are_reported(caplog):
    def metric(example, prediction, trace=None):
        return example.gold == prediction.answer

    rows = [
        dspy.Example(question=row.question, gold=row.answer).with_inputs("question") for row in EXAMPLES
    ]
    program = dspy.Predict("question -> answer")
    warnings = warnings_before_calls(caplog, lambda: PLFewShot(metric).compile(program, trainset=rows))
    message = "can show none of the 15 examples that may become demos"
    assert sum(message in warning for warning in warnings) == 1
