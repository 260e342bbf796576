"""The adapter and the model that a program was made with: saved with it, and told if another one loads it."""

import json
import logging

import dspy
import pytest
from fakes import engine_for, exact_match, lm_of, questions, student, two_predictors

from plr_dspy import PlainTextAdapter, PLFewShot, PLReorder, load_program

EXAMPLES = questions(40)
OPTIONS = {"max_metric_calls": 40, "num_threads": 1, "display_progress": False}
ADAPTER = dspy.ChatAdapter(use_json_adapter_fallback=False)


class OtherAdapter(dspy.ChatAdapter):
    """An adapter of another name that the fake model can follow."""


OTHER = OtherAdapter(use_json_adapter_fallback=False)


def lm(model="fake/x"):
    return lm_of(engine_for(EXAMPLES), model)


def ordered():
    return PLReorder(exact_match, **OPTIONS).compile(student(), trainset=EXAMPLES)


def chosen():
    options = {**OPTIONS, "candidates": "labeled"}
    return PLFewShot(exact_match, **options).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)


def found_for_each_input():
    options = {**OPTIONS, "candidates": "labeled", "demos": "retrieved", "max_metric_calls": 0}
    return PLFewShot(exact_match, **options).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)


def larger():
    program = two_predictors()
    program.answer.predict.demos = [dspy.Example(reasoning="r", hint="h", **e) for e in EXAMPLES[:4]]
    return PLReorder(exact_match, **OPTIONS).compile(program, trainset=EXAMPLES)


MADE = {
    "ordered": (ordered, student),
    "chosen": (chosen, student),
    "found for each input": (found_for_each_input, student),
    "larger": (larger, two_predictors),
}


@pytest.fixture(scope="module", params=MADE)
def saved(request, tmp_path_factory):
    """Return a saved file and the function that makes its student."""
    make, student_of_it = MADE[request.param]
    path = tmp_path_factory.mktemp("programs") / "program.json"
    with dspy.context(lm=lm(), adapter=ADAPTER):
        make().save(path)
    return path, student_of_it


def said(caplog, path, program, **settings):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="plr_dspy"), dspy.context(**settings):
        load_program(program, path)
    return [record.getMessage() for record in caplog.records]


class TestIsTold:
    def test_of_another_adapter(self, saved, caplog):
        path, make = saved
        (message,) = said(caplog, path, make(), lm=lm(), adapter=PlainTextAdapter())
        assert message.startswith(
            f"{path} was made with the adapter ChatAdapter, but is used with PlainTextAdapter"
        )
        assert message.endswith("configure ChatAdapter, or compile it again")

    def test_of_another_model(self, saved, caplog):
        path, make = saved
        (message,) = said(caplog, path, make(), lm=lm("fake/y"), adapter=ADAPTER)
        assert "the model fake/x, but is used with fake/y: configure fake/x" in message

    def test_of_both_in_one_message(self, saved, caplog):
        path, make = saved
        (message,) = said(caplog, path, make(), lm=lm("fake/y"), adapter=dspy.JSONAdapter())
        assert "the adapter ChatAdapter" in message
        assert "with the model fake/x" in message

    def test_of_none_as_chat_adapter(self, tmp_path, caplog):
        with dspy.context(lm=lm(), adapter=OTHER):
            chosen().save(tmp_path / "program.json")
        (message,) = said(caplog, tmp_path / "program.json", student(), lm=lm(), adapter=None)
        assert "the adapter OtherAdapter, but is used with ChatAdapter" in message

    def test_of_the_last_compile(self, saved, tmp_path, caplog):
        path, make = saved
        optimizer = PLReorder(exact_match, **OPTIONS)
        if "retrieval" in json.loads(path.read_text()):
            pytest.skip("Such programs are not compiled again.")
        with dspy.context(lm=lm(), adapter=OTHER):
            program = optimizer.compile(load_program(make(), path), trainset=EXAMPLES)
        program.save(tmp_path / "again.json")
        assert not said(caplog, tmp_path / "again.json", make(), lm=lm(), adapter=OTHER)
        assert said(caplog, tmp_path / "again.json", make(), lm=lm(), adapter=ADAPTER)


class TestIsNotTold:
    @pytest.mark.parametrize("adapter", [ADAPTER, None])
    def test_of_the_same(self, saved, caplog, adapter):
        path, make = saved
        assert not said(caplog, path, make(), lm=lm(), adapter=adapter)

    def test_before_anything_is_configured(self, saved, caplog):
        path, make = saved
        assert not said(caplog, path, make(), lm=None, adapter=None)

    def test_of_a_model_where_none_is_configured(self, saved, caplog):
        path, make = saved
        assert not said(caplog, path, make(), lm=None, adapter=ADAPTER)

    def test_of_programs_that_nothing_is_known_of(self, tmp_path, caplog):
        student().save(tmp_path / "program.json")
        assert not said(caplog, tmp_path / "program.json", student(), lm=lm(), adapter=PlainTextAdapter())


def test_dspy_itself_loads_and_saves_the_same(saved, tmp_path):
    path, make = saved
    program = make()
    if "retrieval" in path.read_text():  # DSPy refuses it, and says what loads it.
        program = load_program(program, path)
    else:
        program.load(path)
    program.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(path.read_text())


def test_nothing_of_it_holds_a_key_or_an_address(tmp_path):
    with dspy.context(lm=dspy.LM("openai/x", api_key="sk-secret", api_base="http://10.0.0.1")):
        found_for_each_input().save(tmp_path / "program.json")
    text = (tmp_path / "program.json").read_text()
    assert "openai/x" in text
    assert "secret" not in text
    assert "10.0.0.1" not in text
