"""Demos found for each input: which are shown, in what order; calls, threads, saving, and no leaks."""

import asyncio
import json
import threading

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


def letters(texts):
    return np.array([[t.count(letter) for letter in "abcdefghijklmnopqrst"] for t in texts], float) + 0.01


def pool_of(texts=TEXTS, labels=LABELS, **options):
    examples = [dspy.Example(text=t, label=y).with_inputs("text") for t, y in zip(texts, labels, strict=True)]
    sources = [source_of(example.inputs()) for example in examples]
    return Pool(dspy.Predict("text -> label"), examples, sources, **options)


def shown(pool, text, nearest, **options):
    return [pool.demos[i].text for i in pool.shown({"text": text}, nearest, **options)]


def compiled(student, name="predict", *, nearest=None, guarded=False, embedder=None, texts=TEXTS):
    predictor = dict(student.named_predictors())[name]
    (field,) = predictor.signature.input_fields
    outputs = list(predictor.signature.output_fields)
    shown = [{field: text, **dict.fromkeys(outputs, f"answer to {text}")} for text in texts]
    demos = [dspy.Example(**fields).with_inputs(field) for fields in shown]
    pool = Pool(predictor, demos, [source_of(demo.inputs()) for demo in demos], embedder=embedder)
    found = Retrieval(pool, nearest or NearestDemos(num_demos=2), guarded)
    return retrieve_in(ProgramFactory(student).build({}), {name: found})


def asked(lm, number=-1):
    users = [m["content"] for m in lm.history[number]["messages"] if m["role"] == "user"]
    return [next(text for text in sorted(TEXTS, key=len, reverse=True) if text in user) for user in users]


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


@pytest.mark.parametrize("make", [lambda: dspy.ChainOfThought("text -> label"), lambda: Own("text -> label")])
def test_each_call_shows_the_demos_nearest_to_its_input_and_is_one_call(lm, make):
    student = make()
    program = compiled(student, dict(student.named_predictors()).popitem()[0])
    assert program(text="the cat").label == "x"
    assert asyncio.run(program.acall(text="a dog ran")).label == "x"
    assert asked(lm, 0)[-2:] == ["the cat", "the cat"] and asked(lm, 1)[-2:] == ["a dog ran"] * 2
    assert len(lm.history) == 2 and len(asked(lm)) == 3
    assert not isinstance(dict(student.named_predictors()).popitem()[1], RetrievingPredict)  # it is not changed
    assert type(program) in (type(student), RetrievingPredict) or isinstance(program, Own)


def test_fixed_demos_come_first_and_a_callers_own_demos_win(lm):
    student = dspy.ChainOfThought("text -> label")
    student.predict.demos = [dspy.Example(text="birds fly south", label="y")]
    program = compiled(student, nearest=NearestDemos(num_demos=1))
    program(text="the cat")
    assert asked(lm) == ["birds fly south", "the cat", "the cat"]
    program.predict(text="the cat", demos=[])
    assert asked(lm) == ["the cat"]


def test_a_guarded_call_from_a_bare_thread_finds_no_demo(lm):
    program = compiled(dspy.ChainOfThought("text -> label"), guarded=True)

    def run():
        with dspy.context(lm=lm):
            program(text="the cat")

    with dspy.context(plr_dspy_scored={"text": "the cat"}):
        (thread := threading.Thread(target=run)).start()
        thread.join()
    assert asked(lm) == ["the cat"]


def test_predictors_find_demos_for_their_own_inputs(lm):
    program = compiled(compiled(two_steps(), "first"), "second", texts=["x", "y"], nearest=NearestDemos(num_demos=1))
    program(text="the cat")
    prompts = [[m["content"] for m in entry["messages"] if m["role"] == "user"] for entry in lm.history]
    assert len(prompts) == 2 and "the cat" in prompts[0][-2] and "\nx" in prompts[1][-2]
    assert program.again[0] is program.first


@pytest.mark.parametrize("how", ["words", "embeddings"])
def test_it_is_saved_with_its_pool_and_loaded_in_a_fresh_student(lm, tmp_path, how):
    vectorizer = dspy.Embedder(letters) if how == "embeddings" else None
    program = compiled(two_steps(), "first", embedder=vectorizer, nearest=NearestDemos(num_demos=2, nearest_last=False))
    program.save(tmp_path / "p.json")
    program.save(tmp_path / "whole", save_program=True)
    again = load_program(two_steps(), tmp_path / "p.json", embedder=vectorizer)
    for each in (program, again, dspy.load(tmp_path / "whole", allow_pickle=True)):
        each(text="the cat")
    assert lm.history[0]["messages"] == lm.history[2]["messages"] == lm.history[4]["messages"]
    again.save(tmp_path / "q.json")
    assert (tmp_path / "q.json").read_bytes() == (tmp_path / "p.json").read_bytes()
    if how == "embeddings":
        with pytest.raises(ValueError, match="embedder"):
            load_program(two_steps(), tmp_path / "p.json")


@pytest.mark.parametrize("kind", [dspy.Predict, type("Own", (dspy.Predict,), {})])
def test_what_an_optimizer_of_dspy_chooses_takes_the_place_of_demos_that_are_found(lm, kind):
    program = compiled(kind("text -> label"), "self")
    chosen = dspy.LabeledFewShot(k=1).compile(program, trainset=[dspy.Example(text="birds fly south", label="no")])
    chosen(text="the cat")
    assert asked(lm) == ["birds fly south", "the cat"]
    assert type(chosen) is kind
    assert "retrieval" not in chosen.dump_state()
    program(text="the cat")
    assert asked(lm)[-1] == "the cat" and "birds fly south" not in asked(lm)


@pytest.mark.parametrize("how", ["words", "embeddings"])
def test_the_likest_demos_are_shown_the_nearest_next_to_the_question(how):
    pool = pool_of(embedder=dspy.Embedder(letters) if how == "embeddings" else None)
    assert shown(pool, "the cat", NearestDemos(num_demos=2)) in (["the cat sat", "the cat"], ["the cat ran", "the cat"])
    assert shown(pool, "the cat", NearestDemos(num_demos=2, nearest_last=False))[0] == "the cat"
    assert len(shown(pool, "the cat", NearestDemos(num_demos=20))) == 5  # all there are


def test_words_count_the_more_the_fewer_texts_have_them():
    pool = pool_of(["rare word", "common word", "common thing", "common place"], list("abcd"))
    assert shown(pool, "rare common", NearestDemos(num_demos=1)) == ["rare word"]


def test_an_input_without_a_known_word_is_shown_the_first_demos_and_a_pool_without_words_gives_them():
    for text in ("", "zzz", "...", "12 %"):
        assert shown(pool_of(), text, NearestDemos(num_demos=2)) == TEXTS[1::-1]
    for texts in (["", ""], ["!", "?"], ["...", ""]):
        assert shown(pool_of(texts, ["a", "b"]), "anything", NearestDemos(num_demos=1)) == texts[:1]


@pytest.mark.parametrize(
    ("texts", "asked", "nearest"),
    [
        (["我爱北京", "今天下雨", "天气很好"], "今天天气", "今天下雨"),
        (["สวัสดีครับ", "ขอบคุณมาก"], "ขอบคุณ", "ขอบคุณมาก"),
        (["Guten Tag", "Grüß Gott"], "GRÜSS gott", "Grüß Gott"),
        (["добрый день", "спокойной ночи"], "доброй ночи", "спокойной ночи"),
    ],
)
def test_scripts_without_spaces_are_compared_too(texts, asked, nearest):
    assert shown(pool_of(texts, ["x"] * len(texts)), asked, NearestDemos(num_demos=1)) == [nearest]


def test_demos_of_the_example_that_is_scored_are_left_out_with_all_its_copies():
    texts = ["The  cat", "the cat", "a cat", *[f"the cat {i}" for i in range(100)], *["the CAT"] * 100]
    pool = pool_of(texts, ["x"] * len(texts))
    own = {"text": "the cat "}
    found = shown(pool, "the cat", NearestDemos(num_demos=30), without=own)
    assert len(found) == 30 and not {"the cat", "The  cat", "the CAT"} & set(found)
    assert shown(pool_of(["the cat"], ["x"]), "the cat", NearestDemos(), without=own) == []
    # Of an inner predictor, one input of which the program has made of the other.
    demo = dspy.Example(text="the cat", hint="tail", label="x").with_inputs("text", "hint")
    inner = Pool(dspy.Predict("text, hint -> label"), [demo], ["of another example"])
    assert inner.shown({"text": "The cat", "hint": "tail"}, NearestDemos(), without=own) == []


def test_labels_that_are_frequent_among_the_candidates_count():
    """All three are as like the input; two of them are cats."""
    pool = pool_of(["the cat one", "the cat two", "the cat three"], ["bird", "cat", "cat"])
    assert shown(pool, "the cat", NearestDemos(num_demos=1)) == ["the cat one"]
    assert shown(pool, "the cat", NearestDemos(num_demos=1, prefer="frequent labels")) == ["the cat two"]
    few = NearestDemos(num_demos=1, prefer="frequent labels", num_candidates=1)
    assert shown(pool, "the cat", few) == ["the cat one"]


def test_demos_may_be_chosen_unlike_each_other():
    pool = pool_of(["red green", "red green red", "blue sky", "grey"], list("abcd"))
    assert shown(pool, "red green blue", NearestDemos(num_demos=2)) == ["red green red", "red green"]
    unlike = NearestDemos(num_demos=2, prefer="unlike each other")
    assert shown(pool, "red green blue", unlike) == ["blue sky", "red green"]
    assert len(shown(pool, "red green blue", NearestDemos(num_demos=9, prefer="unlike each other"))) == 4


def test_the_worst_demos_are_left_out_for_want_of_tokens():
    pool = pool_of(tokens=[3, 3, 3, 3, 3])
    assert shown(pool, "the cat", NearestDemos(num_demos=3, max_tokens=5)) == ["the cat"]


def test_a_file_of_another_version_is_refused(lm, tmp_path):
    path = tmp_path / "p.json"
    compiled(dspy.Predict("text -> label"), "self").save(path)
    state = json.loads(path.read_text())
    del state["retrieval"]["version"]
    path.write_text(json.dumps(state))
    with pytest.raises(ValueError, match=r"version 1.*reads version 2: compile it again"):
        load_program(dspy.Predict("text -> label"), path)
