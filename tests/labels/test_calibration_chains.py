"""Calibration after other optimizers, and the errors of other optimizers for calibrated students."""

import pytest
from every_function import QUIET, RUNS, compiled
from fakes import LabelEngine, Program, using
from label_engines import LABELS, exact, normal
from label_world import EXAMPLES, number, student, two

from plr_dspy import F1, BatchCalibration, CalibratedProgram, PLReorder
from plr_dspy.baselines import TopKOrder

REJECTING = [
    "PLReorder",
    "PLReorder, calibrated",
    "PLFewShot",
    "TopKOrder",
    "StaticOrder",
    "PDO",
    "headroom",
]


def probabilities(demos, text):
    signal = 1 if number(text) % 2 else -1
    return two(signal + normal(text) + 2.0)


@pytest.fixture
def engine():
    with using(LabelEngine(LABELS, probabilities), "fake/x") as engine:
        yield engine


def calibrated(program=None):
    return BatchCalibration(**QUIET).compile(program or student(), trainset=EXAMPLES)


@pytest.mark.parametrize("name", REJECTING)
def test_calibrated_students_are_rejected_before_any_call(engine, name):
    program = calibrated()
    before = engine.requests
    message = r"must not be calibrated.*: pass \w+\.program"
    with pytest.raises(ValueError, match=message):
        RUNS[name](program, exact, EXAMPLES)
    assert engine.requests == before


@pytest.mark.parametrize(("metric", "warns"), [(F1("positive"), True), (exact, False)])
def test_the_metric_over_a_set_of_a_search_is_asked_for_again(engine, caplog, metric, warns):
    ordered, _ = compiled(PLReorder, metric, student(), EXAMPLES, max_metric_calls=100)
    calibrated(ordered)
    advice = "pass BatchCalibration(metric=F1(label='positive', average='binary'))"
    assert (advice in caplog.text) == warns
    caplog.clear()
    BatchCalibration(metric=F1("positive"), **QUIET).compile(ordered, trainset=EXAMPLES)
    assert "pass BatchCalibration" not in caplog.text


@pytest.mark.parametrize("optimizer", [PLReorder, TopKOrder])
def test_compiled_programs_can_be_calibrated(engine, optimizer):
    ordered, _ = compiled(optimizer, exact, student(), EXAMPLES, max_metric_calls=100)
    program = calibrated(ordered)
    assert isinstance(program, CalibratedProgram)
    texts = [demo["text"] for demo in program.program.demos]
    assert texts == [demo["text"] for demo in ordered.demos]
    assert program(text="text 7").probabilities


def test_a_program_with_a_calibrated_part_is_ordered_by_scores(engine):
    program = Program(lambda self, text: self.part(text=text), part=calibrated())
    ordered, optimizer = compiled(PLReorder, exact, program, EXAMPLES, max_metric_calls=60)
    assert optimizer.report.signal.reason == "a part of the program is calibrated"
    assert ordered.part.calibration == program.part.calibration
    with pytest.raises(
        ValueError, match="in a CalibratedProgram, which cannot be calibrated: pass the program"
    ):
        calibrated(program)
