"""What is found for an input, what a rule shows of it, and in which order."""

import dspy
import numpy as np
import pytest

from plr_dspy.programs.splits import source_of
from plr_dspy.retrieval.rule import FEATURES, Pool, Rule

TEXTS = ["the cat sat", "a dog ran", "the cat ran", "birds fly south", "the cat"]
LABELS = ["cat", "dog", "cat", "bird", "cat"]


def embedder(texts):
    """By letters: close to one another where texts share many."""
    return (
        np.array([[text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts], float)
        + 0.01
    )


def pool_of(texts=TEXTS, labels=LABELS, **options):
    examples = [dspy.Example(text=t, label=y).with_inputs("text") for t, y in zip(texts, labels, strict=True)]
    sources = [source_of(example.inputs()) for example in examples]
    return Pool(dspy.Predict("text -> label"), examples, sources, **options)


def shown(pool, text, rule, **options):
    return [pool.demos[i].text for i in pool.shown({"text": text}, rule, **options)]


@pytest.mark.parametrize("how", ["words", "embeddings"])
def test_the_likest_demos_are_shown_the_nearest_next_to_the_question(how):
    pool = pool_of(embedder=dspy.Embedder(embedder) if how == "embeddings" else None)
    assert shown(pool, "the cat", Rule(num_demos=2)) in (
        ["the cat sat", "the cat"],
        ["the cat ran", "the cat"],
    )
    assert shown(pool, "the cat", Rule(num_demos=2, nearest_last=False))[0] == "the cat"
    assert len(shown(pool, "the cat", Rule(num_demos=20))) == 5  # all there are


def test_words_count_the_more_the_fewer_texts_have_them():
    pool = pool_of(["rare word", "common word", "common thing", "common place"], list("abcd"))
    assert shown(pool, "rare common", Rule(num_demos=1)) == ["rare word"]


@pytest.mark.parametrize("text", ["", "zzz", "...", "12 %"])
def test_an_input_without_a_known_word_is_shown_the_first_demos(text):
    assert shown(pool_of(), text, Rule(num_demos=2)) == TEXTS[1::-1]


@pytest.mark.parametrize("texts", [["", ""], ["!", "?"], ["...", ""]])
def test_a_pool_without_words_gives_its_first_demos(texts):
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


def test_a_rule_can_balance_labels_and_prefer_short_demos():
    pool = pool_of()
    balanced = Rule(num_demos=3, coefficients={"similarity": 0.5, "repeated_label": -10.0})
    assert {LABELS[i] for i in pool.shown({"text": "the cat"}, balanced)} == {"cat", "dog", "bird"}
    assert shown(pool, "the cat", Rule(num_demos=1, coefficients={"length": -1.0})) == ["the cat"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"coefficients": {"simlarity": 1.0}}, "simlarity"),
        ({"num_demos": 0}, "num_demos"),
        ({"num_demos": 64}, "num_candidates"),
    ],
)
def test_a_bad_rule_is_refused(arguments, word):
    with pytest.raises(ValueError, match=word):
        Rule(**arguments)
