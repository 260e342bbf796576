"""Demos found for each input: which a rule shows, in what order; calls, threads, saving, and no leaks."""

import asyncio
import threading

import dspy
import numpy as np
import pytest
from dspy.utils import DummyLM
from fakes import Program

from plr_dspy import load_program
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.splits import source_of
from plr_dspy.retrieval.predict import FEATURES, Pool, Retrieval, RetrievingPredict, Rule, retrieve_in

TEXTS = ["the cat sat", "a dog ran", "the cat ran", "birds fly south", "the cat"]
LABELS = ["cat", "dog", "cat", "bird", "cat"]


def letters(texts):
    return np.array([[t.count(letter) for letter in "abcdefghijklmnopqrst"] for t in texts], float) + 0.01


def pool_of(texts=TEXTS, labels=LABELS, **options):
    examples = [dspy.Example(text=t, label=y).with_inputs("text") for t, y in zip(texts, labels, strict=True)]
    sources = [source_of(example.inputs()) for example in examples]
    return Pool(dspy.Predict("text -> label"), examples, sources, **options)


def shown(pool, text, rule, **options):
    return [pool.demos[i].text for i in pool.shown({"text": text}, rule, **options)]


def compiled(student, name="predict", *, rule=None, guarded=False, embedder=None, texts=TEXTS):
    predictor = dict(student.named_predictors())[name]
    (field,) = predictor.signature.input_fields
    outputs = list(predictor.signature.output_fields)
    shown = [{field: text, **dict.fromkeys(outputs, f"answer to {text}")} for text in texts]
    demos = [dspy.Example(**fields).with_inputs(field) for fields in shown]
    pool = Pool(predictor, demos, [source_of(demo.inputs()) for demo in demos], embedder=embedder)
    found = Retrieval(pool, rule or Rule(num_demos=2), guarded)
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
    first, second = dspy.Predict("text -> label"), dspy.Predict("label -> reasoning")
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
    program = compiled(student, rule=Rule(num_demos=1))
    program(text="the cat")
    assert asked(lm) == ["birds fly south", "the cat", "the cat"]
    program.predict(text="the cat", demos=[])
    assert asked(lm) == ["the cat"]


def test_a_guarded_call_from_a_bare_thread_is_an_error_and_no_leak(lm):
    program, errors = compiled(dspy.ChainOfThought("text -> label"), guarded=True), []

    def run():
        try:
            with dspy.context(lm=lm):
                program(text="the cat")
        except RuntimeError as error:
            errors.append(str(error))

    with dspy.context(plr_dspy_scored={"text": "the cat"}):
        (thread := threading.Thread(target=run)).start()
        thread.join()
    assert len(errors) == 1 and "dspy.Parallel" in errors[0] and not lm.history


def test_predictors_find_demos_for_their_own_inputs(lm):
    program = compiled(compiled(two_steps(), "first"), "second", texts=["x", "y"], rule=Rule(num_demos=1))
    program(text="the cat")
    prompts = [[m["content"] for m in entry["messages"] if m["role"] == "user"] for entry in lm.history]
    assert len(prompts) == 2 and "the cat" in prompts[0][-2] and "\nx" in prompts[1][-2]
    assert program.again[0] is program.first


@pytest.mark.parametrize("how", ["words", "embeddings"])
def test_it_is_saved_with_its_pool_and_loaded_in_a_fresh_student(lm, tmp_path, how):
    vectorizer = dspy.Embedder(letters) if how == "embeddings" else None
    program = compiled(two_steps(), "first", embedder=vectorizer, rule=Rule(num_demos=2, nearest_last=False))
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
    assert shown(pool, "the cat", Rule(num_demos=2)) in (["the cat sat", "the cat"], ["the cat ran", "the cat"])
    assert shown(pool, "the cat", Rule(num_demos=2, nearest_last=False))[0] == "the cat"
    assert len(shown(pool, "the cat", Rule(num_demos=20))) == 5  # all there are


def test_words_count_the_more_the_fewer_texts_have_them():
    pool = pool_of(["rare word", "common word", "common thing", "common place"], list("abcd"))
    assert shown(pool, "rare common", Rule(num_demos=1)) == ["rare word"]


def test_an_input_without_a_known_word_is_shown_the_first_demos_and_a_pool_without_words_gives_them():
    for text in ("", "zzz", "...", "12 %"):
        assert shown(pool_of(), text, Rule(num_demos=2)) == TEXTS[1::-1]
    for texts in (["", ""], ["!", "?"], ["...", ""]):
        assert shown(pool_of(texts, ["a", "b"]), "anything", Rule(num_demos=1)) == texts[:1]


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
    assert shown(pool_of(texts, ["x"] * len(texts)), asked, Rule(num_demos=1)) == [nearest]


def test_demos_of_the_example_that_is_scored_are_left_out_with_all_its_copies():
    texts = ["The  cat", "the cat", "a cat", *[f"the cat {i}" for i in range(100)], *["the CAT"] * 100]
    pool, own = pool_of(texts, ["x"] * len(texts)), {"text": "the cat "}
    found = shown(pool, "the cat", Rule(num_demos=30), without=own)
    assert len(found) == 30 and not {"the cat", "The  cat", "the CAT"} & set(found)
    assert shown(pool_of(["the cat"], ["x"]), "the cat", Rule(), without=own) == []
    # Of an inner predictor, one input of which the program has made of the other.
    demo = dspy.Example(text="the cat", hint="tail", label="x").with_inputs("text", "hint")
    inner = Pool(dspy.Predict("text, hint -> label"), [demo], ["of another example"])
    assert inner.shown({"text": "The cat", "hint": "tail"}, Rule(), without=own) == []


def test_features_are_what_they_are_said_to_be():
    candidates, features = pool_of().features({"text": "the cat"}, 4)
    fixed, after = (dict(zip(FEATURES, table.T, strict=True)) for table in (features([]), features([0, 1])))
    assert candidates[0] == 4 and fixed["similarity"][0] == pytest.approx(1.0)
    assert (np.diff(fixed["similarity"]) <= 0).all() and (np.diff(fixed["rank"]) < 0).all()
    labels = [LABELS[i] for i in candidates]
    np.testing.assert_allclose(fixed["label_share"], [labels.count(label) / 4 for label in labels])
    assert not fixed["repeated_label"].any() and not fixed["likeness"].any()
    np.testing.assert_allclose(after["repeated_label"], [labels[:2].count(label) / 2 for label in labels])
    assert after["likeness"][0] == pytest.approx(1.0) and (after["likeness"][2:] < 1.0).all()


def test_a_rule_can_balance_labels_and_prefer_short_demos_and_one_of_a_later_version_is_refused():
    pool = pool_of()
    balanced = Rule(num_demos=3, coefficients={"similarity": 0.5, "repeated_label": -10.0})
    assert {LABELS[i] for i in pool.shown({"text": "the cat"}, balanced)} == {"cat", "dog", "bird"}
    assert shown(pool, "the cat", Rule(num_demos=1, coefficients={"length": -1.0})) == ["the cat"]
    with pytest.raises(ValueError, match="simlarity"):
        Rule(coefficients={"simlarity": 1.0})
