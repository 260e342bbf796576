"""Warnings at loading if the adapter or the model differs from the record in the saved program."""

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
    """An adapter with another name, but with a format that the fake model follows."""


OTHER = OtherAdapter(use_json_adapter_fallback=False)


def lm(model="fake/x"):
    return lm_of(engine_for(EXAMPLES), model)


def ordered():
    return PLReorder(exact_match, **OPTIONS).compile(student(), trainset=EXAMPLES)


def chosen():
    options = {**OPTIONS, "candidates": "labeled"}
    return PLFewShot(exact_match, **options).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)


def retrieved_for_each_input():
    options = {**OPTIONS, "candidates": "labeled", "demos": "retrieved", "max_metric_calls": 0}
    return PLFewShot(exact_match, **options).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)


def larger():
    program = two_predictors()
    program.answer.predict.demos = [dspy.Example(reasoning="r", hint="h", **e) for e in EXAMPLES[:4]]
    return PLReorder(exact_match, **OPTIONS).compile(program, trainset=EXAMPLES)


MADE = {
    "ordered": (ordered, student),
    "chosen": (chosen, student),
    "retrieved for each input": (retrieved_for_each_input, student),
    "larger": (larger, two_predictors),
}


@pytest.fixture(scope="module", params=MADE)
def saved(request, tmp_path_factory):
    """Return the path of a saved program and the function that creates its student."""
    make, student_of_it = MADE[request.param]
    path = tmp_path_factory.mktemp("programs") / "program.json"
    with dspy.context(lm=lm(), adapter=ADAPTER):
        make().save(path)
    return path, student_of_it


def warnings_on_loading(caplog, path, program, **settings):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="plr_dspy"), dspy.context(**settings):
        load_program(program, path)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("model", "adapter", "words"),
    [
        ("fake/x", PlainTextAdapter(), ["the adapter ChatAdapter, but is used with PlainTextAdapter"]),
        ("fake/y", ADAPTER, ["the model fake/x, but is used with fake/y: configure fake/x"]),
        ("fake/y", dspy.JSONAdapter(), ["the adapter ChatAdapter", "with the model fake/x"]),
    ],
)
def test_a_warning_names_all_differences(saved, caplog, model, adapter, words):
    path, make = saved
    (message,) = warnings_on_loading(caplog, path, make(), lm=lm(model), adapter=adapter)
    assert message.startswith(f"{path} was made with ")
    assert message.endswith(", or compile the program again")
    for part in words:
        assert part in message


@pytest.mark.parametrize(
    ("model", "adapter"), [(lm(), ADAPTER), (lm(), None), (None, None), (None, ADAPTER)]
)
def test_there_is_no_warning_without_a_difference(saved, caplog, model, adapter):
    path, make = saved
    assert not warnings_on_loading(caplog, path, make(), lm=model, adapter=adapter)


def test_there_is_no_warning_for_programs_without_a_record(tmp_path, caplog):
    path = tmp_path / "program.json"
    student().save(path)
    assert not warnings_on_loading(caplog, path, student(), lm=lm(), adapter=PlainTextAdapter())


def test_the_default_adapter_has_the_name_chat_adapter(tmp_path, caplog):
    with dspy.context(lm=lm(), adapter=OTHER):
        chosen().save(tmp_path / "program.json")
    (message,) = warnings_on_loading(caplog, tmp_path / "program.json", student(), lm=lm(), adapter=None)
    assert "the adapter OtherAdapter, but is used with ChatAdapter" in message


def test_the_last_compile_counts(saved, tmp_path, caplog):
    path, make = saved
    optimizer = PLReorder(exact_match, **OPTIONS)
    if "retrieval" in json.loads(path.read_text()):
        pytest.skip("Programs with retrieved demos cannot be compiled again.")
    with dspy.context(lm=lm(), adapter=OTHER):
        program = optimizer.compile(load_program(make(), path), trainset=EXAMPLES)
    program.save(tmp_path / "again.json")
    assert not warnings_on_loading(caplog, tmp_path / "again.json", make(), lm=lm(), adapter=OTHER)
    assert warnings_on_loading(caplog, tmp_path / "again.json", make(), lm=lm(), adapter=ADAPTER)


def test_dspy_loads_and_saves_the_record_unchanged(saved, tmp_path):
    path, make = saved
    program = make()
    if "retrieval" in path.read_text():  # DSPy rejects programs with retrieved demos.
        program = load_program(program, path)
    else:
        program.load(path)
    program.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(path.read_text())


def test_the_record_contains_no_key_and_no_address(tmp_path):
    with dspy.context(lm=dspy.LM("openai/x", api_key="sk-secret", api_base="http://10.0.0.1")):
        retrieved_for_each_input().save(tmp_path / "program.json")
    text = (tmp_path / "program.json").read_text()
    assert "openai/x" in text
    assert "secret" not in text
    assert "10.0.0.1" not in text
