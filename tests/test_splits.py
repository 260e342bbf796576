import random
from collections import Counter

import dspy
from fakes import questions
from hypothesis import given, settings
from hypothesis import strategies as st

from plr_dspy.splits import interleave, split, without_demos


def test_leaves_out_what_demos_show_whatever_their_kind():
    examples = questions(10)
    demos = [
        examples[0],
        dict(examples[1]),
        dspy.Example(augmented=True, reasoning="r", question="question 2", answer="something else"),
        dspy.Example(hint="another predictor's demo"),
    ]
    assert without_demos(examples, demos) == examples[3:]


def test_same_inputs_twice_are_both_left_out():
    examples = [*questions(3), *questions(3)]
    assert without_demos(examples, [examples[0]]) == [*examples[1:3], *examples[4:]]


def test_values_that_cannot_be_hashed_or_compared():
    examples = [dspy.Example(rows=[{"a": i}], n=i).with_inputs("rows") for i in range(3)]
    assert without_demos(examples, [{"rows": [{"a": 1}], "n": 1}]) == [examples[0], examples[2]]


@settings(deadline=None)
@given(st.integers(2, 120), st.integers(0, 5), st.booleans())
def test_splits_are_a_partition_of_four_to_one(count, seed, balanced):
    examples = questions(count)
    train, selection = split(examples, random.Random(seed), balanced=balanced)
    assert sorted(e.question for e in [*train, *selection]) == sorted(e.question for e in examples)
    assert train
    assert len(selection) == min(max(1, round(count / 5)), count - 1)


@given(st.integers(0, 20))
def test_balanced_splits_keep_the_classes_proportions_in_every_prefix(seed):
    examples = [
        dspy.Example(question=str(i), answer="yes" if i % 4 else "no").with_inputs("question")
        for i in range(200)
    ]
    for part in split(examples, random.Random(seed), balanced=True):
        for size in range(8, len(part) + 1):
            share = Counter(e.answer for e in part[:size])["no"] / size
            assert abs(share - 0.25) <= 1.5 / size


def test_open_ended_labels_are_left_as_shuffled():
    examples = [dspy.Example(question=str(i), answer=str(i)).with_inputs("question") for i in range(30)]
    assert interleave(examples) == examples


def test_same_seed_same_split():
    examples = questions(50)
    assert split(examples, random.Random(1), balanced=True) == split(
        examples, random.Random(1), balanced=True
    )
    assert split(examples, random.Random(1), balanced=True) != split(
        examples, random.Random(2), balanced=True
    )
