"""Calibration of the real local model, counted at its server."""

from typing import Literal

import dspy
import pytest
from brief import brief_reviews

from plr_dspy import BatchCalibration, PlainTextAdapter, load_program


class Sentiment(dspy.Signature):
    review: str = dspy.InputField()
    sentiment: Literal["negative", "positive"] = dspy.OutputField()


@pytest.fixture
def lm(server, monkeypatch):
    """The real model; it counts requests."""
    lm = server.lm(cache=False)
    complete, lm.requests = lm.engine.complete, 0

    def counted(request):
        lm.requests += 1
        return complete(request)

    monkeypatch.setattr(lm.engine, "complete", counted)
    return lm


def test_a_model_that_says_one_label_is_brought_to_its_senses(lm, tmp_path):
    reviews = brief_reviews("train", 60)
    program = dspy.Predict(Sentiment)
    by_label = {
        label: [each for each in reviews if each.sentiment == label] for label in ("positive", "negative")
    }
    program.demos = [*by_label["positive"][:2], *by_label["negative"][:2]]  # The last ones weigh more.
    held = brief_reviews("test", 24)
    with dspy.context(lm=lm, adapter=PlainTextAdapter()):
        compiled = BatchCalibration(display_progress=False, num_inputs=24).compile(program, trainset=reviews)
        assert lm.requests == compiled.calibration.num_inputs == 24
        told = [compiled(review=each.review) for each in held]
        assert lm.requests == 24 + len(held)
        raw = [program(review=each.review).sentiment for each in held]
        compiled.save(tmp_path / "program.json")
        loaded = load_program(dspy.Predict(Sentiment), tmp_path / "program.json")
        again = loaded(review=held[0].review)
    right = sum(one.sentiment == each.sentiment for one, each in zip(told, held, strict=True))
    right_raw = sum(one == each.sentiment for one, each in zip(raw, held, strict=True))
    assert right > right_raw - 3
    assert again.sentiment == told[0].sentiment
    assert again.probabilities == pytest.approx(told[0].probabilities, abs=0.02)
