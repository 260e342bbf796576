"""Predictors that retrieve demos: the demos shown and their order, calls, threads, saving, and leaks."""

import asyncio
import json
import pickle

import dspy
import numpy as np
import pytest
from dspy.utils import DummyLM
from fakes import Program

from plr_dspy import load_program
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.splits import source_of
from plr_dspy.retrieval.nearest import NearestDemos, Pool
from plr_dspy.retrieval.predict import Retrieval, RetrievingPredict, retrieve_in

TEXTS = ["the cat sat", "a dog ran", "the cat ran", "birds fly south", "the cat"]
LABELS = ["cat", "dog", "cat", "bird", "cat"]


def letters_of(text):
    return [text.count(letter) + 0.01 for letter in "abcdefghijklmnopqrst"]


def letters(texts):
    return np.array(list(map(letters_of, texts)))


def example(text, label):
    return dspy.Example(text=text, label=label).with_inputs("text")


def pool_of(texts=TEXTS, labels=LABELS, **options):
    examples = list(map(example, texts, labels))
    sources = [source_of(example.inputs()) for example in examples]
    return Pool(dspy.Predict("text -> label"), examples, sources, **options)


def shown(pool, text, num_demos=1, *, without=None, **options):
    nearest = NearestDemos(num_demos=num_demos, **options)
    places = pool.shown({"text": text}, nearest, without=without)
    return [pool.demos[i].text for i in places]


def compiled(student, name="predict", *, nearest=None, guarded=False, embedder=None, texts=TEXTS):
    predictor = dict(student.named_predictors())[name]
    (field,) = predictor.signature.input_fields
    outputs = list(predictor.signature.output_fields)

    def demo(text):
        answers = dict.fromkeys(outputs, f"answer to {text}")
        return dspy.Example({field: text, **answers}).with_inputs(field)

    demos = list(map(demo, texts))
    sources = [source_of(demo.inputs()) for demo in demos]
    pool = Pool(predictor, demos, sources, embedder=embedder)
    retrieval = Retrieval(pool, nearest or NearestDemos(num_demos=2), guarded)
    return retrieve_in(ProgramFactory(student).build({}), {name: retrieval})


def user_messages(entry):
    return [message["content"] for message in entry["messages"] if message["role"] == "user"]


def longest_text_in(message):
    texts = [text for text in TEXTS if text in message]
    return max(texts, key=len)


def asked(lm, number=-1):
    return list(map(longest_text_in, user_messages(lm.history[number])))


@pytest.fixture
def lm():
    model = DummyLM([{"reasoning": "so", "label": "x"}] * 200)
    with dspy.context(lm=model, adapter=dspy.ChatAdapter()):
        yield model


class Own(dspy.Predict):
    def forward(self, **inputs):
        return super().forward(**inputs)


def two_steps():
    first = dspy.Predict("text -> label")
    second = dspy.Predict("label -> reasoning")
    in_turn = lambda self, text: self.second(label=self.first(text=text).label)  # noqa: E731
    return Program(in_turn, first=first, second=second, again=[first])


@pytest.mark.parametrize("kind", [dspy.ChainOfThought, Own])
def test_each_call_shows_the_nearest_demos_and_makes_one_lm_call(lm, kind):
    student = kind("text -> label")
    program = compiled(student, dict(student.named_predictors()).popitem()[0])
    assert program(text="the cat").label == "x"
    assert asyncio.run(program.acall(text="a dog ran")).label == "x"
    assert asked(lm, 0)[-2:] == ["the cat", "the cat"]
    assert asked(lm, 1)[-2:] == ["a dog ran", "a dog ran"]
    assert len(lm.history) == 2
    assert len(asked(lm)) == 3
    (predictor,) = student.predictors()
    assert not isinstance(predictor, RetrievingPredict)
    assert type(program) in (type(student), RetrievingPredict) or isinstance(program, Own)


def test_fixed_demos_come_first_and_demos_passed_by_the_caller_replace_all_others(lm):
    student = dspy.ChainOfThought("text -> label")
    student.predict.demos = [dspy.Example(text="birds fly south", label="y")]
    program = compiled(student, nearest=NearestDemos(num_demos=1))
    program(text="the cat")
    assert asked(lm) == ["birds fly south", "the cat", "the cat"]
    program.predict(text="the cat", demos=[])
    assert asked(lm) == ["the cat"]


def test_each_predictor_retrieves_demos_for_its_own_inputs(lm):
    nearest = NearestDemos(num_demos=1)
    program = compiled(two_steps(), "first")
    program = compiled(program, "second", texts=["x", "y"], nearest=nearest)
    program(text="the cat")
    first, second = map(user_messages, lm.history)
    assert "the cat" in first[-2]
    assert "\nx" in second[-2]
    assert program.again[0] is program.first


class Labeling(dspy.Signature):
    """Label the text."""

    text: str = dspy.InputField()
    label: str = dspy.OutputField()


def test_a_program_can_be_pickled(lm):
    program = compiled(dspy.Predict(Labeling), "self", nearest=NearestDemos(num_demos=2))
    restored = pickle.loads(pickle.dumps(program))
    for same_program in (program, restored):
        same_program(text="the cat")
    first, second = [entry["messages"] for entry in lm.history]
    assert first == second


@pytest.mark.parametrize("how", ["words", "embeddings"])
def test_a_program_is_saved_with_its_pool_and_loaded_into_a_new_student(lm, tmp_path, how):
    embedder = dspy.Embedder(letters) if how == "embeddings" else None
    nearest = NearestDemos(num_demos=2, nearest_last=False)
    program = compiled(two_steps(), "first", embedder=embedder, nearest=nearest)
    program.save(tmp_path / "p.json")
    program.save(tmp_path / "whole", save_program=True)
    loaded = load_program(two_steps(), tmp_path / "p.json", embedder=embedder)
    loaded_whole = dspy.load(tmp_path / "whole", allow_pickle=True)
    for same_program in (program, loaded, loaded_whole):
        same_program(text="the cat")
    first, second, third = [entry["messages"] for entry in lm.history[::2]]
    assert first == second == third
    loaded.save(tmp_path / "q.json")
    assert (tmp_path / "q.json").read_bytes() == (tmp_path / "p.json").read_bytes()
    if how == "embeddings":
        with pytest.raises(ValueError, match="embedder"):
            load_program(two_steps(), tmp_path / "p.json")
    else:  # An embedder has no effect on a program that was compiled without an embedder.
        same_program = load_program(two_steps(), tmp_path / "p.json", embedder=dspy.Embedder(letters))
        same_program(text="the cat")
        assert lm.history[-2]["messages"] == first


@pytest.mark.parametrize("kind", [dspy.Predict, type("Own", (dspy.Predict,), {})])
def test_demos_chosen_by_a_dspy_optimizer_replace_retrieved_demos(lm, kind):
    program = compiled(kind("text -> label"), "self")
    trainset = [dspy.Example(text="birds fly south", label="no")]
    chosen = dspy.LabeledFewShot(k=1).compile(program, trainset=trainset)
    chosen(text="the cat")
    assert asked(lm) == ["birds fly south", "the cat"]
    assert type(chosen) is kind
    assert "retrieval" not in chosen.dump_state()
    program(text="the cat")
    assert asked(lm)[-1] == "the cat"
    assert "birds fly south" not in asked(lm)


@pytest.mark.parametrize("how", ["words", "embeddings"])
def test_the_nearest_demos_are_shown_with_the_nearest_next_to_the_question(how):
    embedder = dspy.Embedder(letters) if how == "embeddings" else None
    pool = pool_of(embedder=embedder)
    second, first = shown(pool, "the cat", 2)
    assert first == "the cat"
    assert second in ("the cat sat", "the cat ran")
    assert shown(pool, "the cat", 2, nearest_last=False)[0] == "the cat"
    assert len(shown(pool, "the cat", 20)) == len(TEXTS)


def test_rare_words_have_more_weight():
    texts = ["rare word", "common word", "common thing", "common place"]
    pool = pool_of(texts, list("abcd"))
    assert shown(pool, "rare common") == ["rare word"]


@pytest.mark.parametrize("text", ["", "zzz", "...", "12%"])
def test_an_input_without_known_words_retrieves_the_first_demos(text):
    assert shown(pool_of(), text, 2) == TEXTS[1::-1]


@pytest.mark.parametrize("texts", [["", ""], ["!", "?"], ["...", ""]])
def test_a_pool_without_words_shows_the_first_demos(texts):
    pool = pool_of(texts, ["a", "b"])
    assert shown(pool, "anything") == texts[:1]


@pytest.mark.parametrize(
    ("texts", "asked", "nearest"),
    [
        (["我爱北京", "今天下雨", "天气很好"], "今天天气", "今天下雨"),
        (["สวัสดีครับ", "ขอบคุณมาก"], "ขอบคุณ", "ขอบคุณมาก"),
        (["Guten Tag", "Grüß Gott"], "GRÜSS gott", "Grüß Gott"),
        (["добрый день", "спокойной ночи"], "доброй ночи", "спокойной ночи"),
    ],
)
def test_texts_in_other_scripts_are_compared(texts, asked, nearest):
    pool = pool_of(texts, ["x" for _ in texts])
    assert shown(pool, asked) == [nearest]


def test_demos_made_from_the_scored_example_or_its_duplicates_are_skipped():
    numbered = [f"the cat {i}" for i in range(100)]
    texts = ["The  cat", "the cat", "a cat", *numbered, *["the CAT"] * 100]
    pool = pool_of(texts, ["x" for _ in texts])
    own = {"text": "the cat "}
    others = shown(pool, "the cat", 30, without=own)
    assert len(others) == 30
    assert not {"the cat", "The  cat", "the CAT"} & set(others)
    pool = pool_of(["the cat"], ["x"])
    assert pool.shown({"text": "the cat"}, NearestDemos(), without=own) == []
    # The program derived the inner predictor's second input, `hint`, from its first, `text`.
    demo = dspy.Example(text="the cat", hint="tail", label="x").with_inputs("text", "hint")
    inner = Pool(dspy.Predict("text, hint -> label"), [demo], ["of another example"])
    inputs = {"text": "The cat", "hint": "tail"}
    assert inner.shown(inputs, NearestDemos(), without=own) == []


def test_labels_that_are_frequent_among_the_candidates_can_be_preferred():
    """All three demos are equally similar to the input, and two of them have the label "cat"."""
    texts = ["the cat one", "the cat two", "the cat three"]
    pool = pool_of(texts, ["bird", "cat", "cat"])
    assert shown(pool, "the cat") == ["the cat one"]
    options = {"prefer": "frequent labels"}
    assert shown(pool, "the cat", **options) == ["the cat two"]
    assert shown(pool, "the cat", num_candidates=1, **options) == ["the cat one"]


def test_diverse_demos_can_be_preferred():
    text = "red green blue"
    pool = pool_of(["red green", "red green red", "blue sky", "grey"], list("abcd"))
    assert shown(pool, text, 2) == ["red green red", "red green"]
    unlike = {"prefer": "unlike each other"}
    assert shown(pool, text, 2, **unlike) == ["blue sky", "red green"]
    assert len(shown(pool, text, 9, **unlike)) == 4


def test_the_lowest_ranked_demos_are_dropped_to_stay_within_max_tokens():
    pool = pool_of(tokens=[3, 3, 3, 3, 3])
    assert shown(pool, "the cat", 3, max_tokens=5) == ["the cat"]


def test_a_file_of_another_version_is_rejected(lm, tmp_path):
    path = tmp_path / "p.json"
    compiled(dspy.Predict("text -> label"), "self").save(path)
    state = json.loads(path.read_text())
    del state["retrieval"]["version"]
    path.write_text(json.dumps(state))
    with pytest.raises(ValueError, match=r"format version 2 .*; got 1: compile the program again"):
        load_program(dspy.Predict("text -> label"), path)
