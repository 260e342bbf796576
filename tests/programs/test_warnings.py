"""Errors and warnings about labels and demos that appear before any call is made."""

import contextlib
import math
from typing import Literal

import dspy
import fakes
import pytest
from fakes import engine_for, exact_match, questions, using

from plr_dspy import BatchCalibration, PLFewShot, PLReorder, evaluate_programs, headroom

EXAMPLES = questions(60)


RUNS = {
    "PLReorder": lambda program, examples: PLReorder(exact_match, max_errors=1).compile(
        program, trainset=examples
    ),
    "PLFewShot": lambda program, examples: PLFewShot(exact_match, max_errors=1).compile(
        program, trainset=examples
    ),
    "evaluate_programs": lambda program, examples: evaluate_programs({"a": program}, exact_match, examples),
    "headroom": lambda program, examples: headroom(program, exact_match, examples, max_errors=1),
}


def warned(caplog, run, program, examples):
    """Return the warnings before the first call."""
    for predictor in program.predictors():
        predictor.demos = predictor.demos or [
            dspy.Example(question=f"demo {i}", answer="a") for i in range(4)
        ]
    engine = engine_for(EXAMPLES, at=dict.fromkeys(range(20), fakes.interrupt))
    with using(engine), contextlib.suppress(KeyboardInterrupt):
        RUNS[run](program, examples)
    return caplog.messages


LABEL = Literal["yes", "no"]


def program_of(kind):
    return dspy.Predict(dspy.Signature("question -> answer").with_updated_fields("answer", type_=kind))


def rows(value):
    return [dspy.Example(question=f"question {i}", answer=value).with_inputs("question") for i in range(60)]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("kind", "value"), [(LABEL, math.nan), (LABEL, None), (LABEL, "Yes"), (bool, "True")]
)
def test_examples_without_a_possible_label_are_an_error_before_any_call(run, kind, value):
    program = program_of(kind)
    program.demos = [dspy.Example(question=f"demo {i}", answer="yes") for i in range(4)]
    message = r"no example has one of the labels.*Give each example a label"
    with using(engine_for(EXAMPLES)) as engine, pytest.raises(ValueError, match=message):
        RUNS[run](program, rows(value))
    assert not engine.num_calls


def test_outputs_that_no_example_has_cause_no_warning(caplog):
    examples = [dspy.Example(question=f"q {i}").with_inputs("question") for i in range(40)]
    assert not [text for text in warned(caplog, "PLReorder", program_of(LABEL), examples) if "answer" in text]


def test_calibration_warns_of_examples_without_a_usable_label(caplog):
    with using(engine_for(EXAMPLES)), pytest.raises(Exception, match=r"."):
        BatchCalibration().compile(program_of(LABEL), trainset=rows(math.nan))
    assert "60 of 60 examples have none of the labels ['yes', 'no'] in field 'answer'" in caplog.text


def test_a_warning_names_chosen_demos_that_json_cannot_store(caplog):
    demos = [dspy.Example(question=f"demo {i}", answer="a", note=complex(i, 1)) for i in range(4)]
    optimizer = PLFewShot(exact_match, candidates=demos, demos="fixed", min_demos=1, max_metric_calls=60)
    with using(engine_for(EXAMPLES)):
        program = optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    assert program.demos
    assert "holds a complex in field 'note'" in caplog.text
    assert "save_program=True" in caplog.text
