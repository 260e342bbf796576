"""Calibration after other optimizers, and the errors of other optimizers for calibrated students."""

import pytest
from fakes import LabelEngine, Program, using
from label_engines import LABELS, exact, normal
from label_world import EXAMPLES, number, student, two

from plr_dspy import F1, BatchCalibration, CalibratedProgram, PLFewShot, PLReorder, headroom
from plr_dspy.baselines import PDO, TopKOrder

QUIET = {"num_threads": 1, "display_progress": False}


def probabilities(demos, text):
    signal = 1 if number(text) % 2 else -1
    return two(signal + normal(text) + 2.0)


@pytest.fixture
def engine():
    with using(LabelEngine(LABELS, probabilities), "fake/x") as engine:
        yield engine


def calibrated(program=None):
    return BatchCalibration(**QUIET).compile(program or student(), trainset=EXAMPLES)


def compiling(optimizer, **options):
    def run(program):
        optimizer(exact, **options, **QUIET).compile(program, trainset=EXAMPLES)

    return run


WAYS = {
    "PLReorder": compiling(PLReorder),
    "calibrate": compiling(PLReorder, calibrate=True),
    "PLFewShot": compiling(PLFewShot),
    "TopKOrder": compiling(TopKOrder),
    "PDO": compiling(PDO),
    "headroom": lambda program: headroom(program, exact, EXAMPLES),
}


@pytest.mark.parametrize("way", WAYS)
def test_calibrated_students_are_rejected_before_any_call(engine, way):
    program = calibrated()
    before = engine.requests
    message = r"must not be calibrated.*: pass \w+\.program"
    with pytest.raises(ValueError, match=message):
        WAYS[way](program)
    assert engine.requests == before


@pytest.mark.parametrize(("metric", "warns"), [(F1("positive"), True), (exact, False)])
def test_the_metric_over_a_set_of_a_search_is_asked_for_again(engine, caplog, metric, warns):
    ordered = PLReorder(metric, max_metric_calls=100, **QUIET).compile(student(), trainset=EXAMPLES)
    calibrated(ordered)
    advice = "pass BatchCalibration(metric=F1(label='positive', average='binary'))"
    assert (advice in caplog.text) == warns
    caplog.clear()
    BatchCalibration(metric=F1("positive"), **QUIET).compile(ordered, trainset=EXAMPLES)
    assert "pass BatchCalibration" not in caplog.text


@pytest.mark.parametrize("optimizer", [PLReorder, TopKOrder])
def test_compiled_programs_can_be_calibrated(engine, optimizer):
    optimizer = optimizer(exact, max_metric_calls=100, **QUIET)
    ordered = optimizer.compile(student(), trainset=EXAMPLES)
    program = calibrated(ordered)
    assert isinstance(program, CalibratedProgram)
    texts = [demo["text"] for demo in program.program.demos]
    assert texts == [demo["text"] for demo in ordered.demos]
    assert program(text="text 7").probabilities


def test_a_program_with_a_calibrated_part_is_ordered_by_scores(engine):
    program = Program(lambda self, text: self.part(text=text), part=calibrated())
    optimizer = PLReorder(exact, max_metric_calls=60, **QUIET)
    compiled = optimizer.compile(program, trainset=EXAMPLES)
    assert optimizer.report.signal.reason == "a part of the program is calibrated"
    assert compiled.part.calibration == program.part.calibration
    with pytest.raises(
        ValueError, match="in a CalibratedProgram, which cannot be calibrated: pass the program"
    ):
        calibrated(program)
