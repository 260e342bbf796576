"""Calibration among other optimizers: orders are searched under it and keep it, and it comes after any of them."""

import math

import numpy as np
import pytest
from fakes import LabelEngine, using
from label_engines import LABELS, exact, normal
from label_world import EXAMPLES, number, student, two

from plr_dspy import BatchCalibration, CalibratedProgram, PLReorder
from plr_dspy.baselines import TopKOrder
from plr_dspy.labels.calibrated_program import warn_once


def probabilities(demos, text):
    """Orders lean to "positive", and tell the labels apart the better the more demos ascend."""
    ascending = np.mean(np.diff([*map(number, demos)]) > 0) if len(demos) > 1 else 0.5
    return two((1 if number(text) % 2 else -1) * (0.2 + 1.5 * ascending) + normal(text) + 2.0)


@pytest.fixture
def engine():
    with using(LabelEngine(LABELS, probabilities), "fake/x") as engine:
        yield engine


def calibrated():
    return BatchCalibration(display_progress=False, num_threads=1).compile(student(), trainset=EXAMPLES)


def numbers(program):
    (predictor,) = program.predictors()
    return [number(demo["text"]) for demo in predictor.demos]


@pytest.mark.parametrize("signal", ["score", "auto"])
@pytest.mark.parametrize("optimizer", [PLReorder, TopKOrder])
def test_orders_are_searched_under_a_calibration(engine, optimizer, signal, tmp_path, caplog):
    program = calibrated()
    before, state = engine.requests, program.dump_state()
    options = {"signal": signal} if optimizer is PLReorder else {"num_candidates": 10}
    reorder = optimizer(exact, max_metric_calls=400, num_threads=2, display_progress=False, **options)
    compiled = reorder.compile(program, trainset=EXAMPLES)
    assert engine.requests - before == reorder.report.program_calls["total"]
    assert isinstance(compiled, CalibratedProgram)
    assert compiled.calibration == program.calibration
    assert sorted(numbers(compiled)) == sorted(numbers(program))
    assert program.dump_state() == state
    if optimizer is PLReorder:
        assert reorder.report.signal is not None
        assert reorder.report.signal.used == {"auto": "logprobs", "score": "score"}[signal]
    prediction = compiled(text="text 7")
    raw = dict(zip(LABELS, probabilities([f"demo {i}" for i in numbers(compiled)], "text 7"), strict=True))
    offsets = dict(zip(LABELS, program.calibration.offsets, strict=True))
    weighed = {label: raw[label] * math.exp(offset) for label, offset in offsets.items()}
    assert prediction.probabilities["positive"] == pytest.approx(weighed["positive"] / sum(weighed.values()))
    compiled.save(tmp_path / "program.json")
    loaded = CalibratedProgram(student())
    loaded.load(tmp_path / "program.json")
    assert numbers(loaded) == numbers(compiled)
    assert loaded(text="text 7").probabilities == prediction.probabilities
    warn_once.cache_clear()
    assert "anew" not in caplog.text  # The calibration is of the order that was found under it.
    loaded.program.demos.reverse()
    loaded(text="text 7")
    assert "calibrate the program anew" in caplog.text


def test_what_is_scored_is_the_calibrated_answer(engine):
    """Nearly every raw answer is "positive", which is right for one half."""
    program = calibrated()
    raw, told = (np.mean([exact(e, one(text=e.text)) for e in EXAMPLES]) for one in (student(), program))
    assert told > raw + 0.1
    reorder = TopKOrder(exact, num_candidates=2, num_threads=2, display_progress=False)
    reorder.compile(program, trainset=EXAMPLES[:30], valset=EXAMPLES[30:])
    held = np.mean([exact(each, program(text=each.text)) for each in EXAMPLES[30:]])
    assert reorder.report.comparison.original == pytest.approx(held)
