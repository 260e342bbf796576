"""Train and selection splits, and the examples that demos show."""

import datetime
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path

import dspy
import pydantic
import pytest
from fakes import questions
from hypothesis import given, settings
from hypothesis import strategies as st

from plr_dspy.programs.splits import make_splits, mixed, shown_by


def splits(examples, valset=(), demos=(), *, seed=0, balanced=True):
    return make_splits(examples, list(valset), list(demos), random.Random(seed), balanced=balanced)


def with_input(values, **fixed):
    def example(number, value):
        row = dspy.Example(question=value, answer=str(number), **fixed)
        return row.with_inputs("question", *fixed)

    return [example(number, value) for number, value in values]


def two_classes(answers):
    rows = [dspy.Example(question=f"q{i}", answer=answer) for i, answer in enumerate(answers)]
    return [row.with_inputs("question") for row in rows]


class TestExamplesThatDemosShow:
    def test_are_recognized_for_all_kinds_of_demos_and_names(self):
        """Predictors may rename an input or use only some of the inputs."""
        examples = questions(10)
        demos = [
            examples[0],
            dict(examples[1]),
            dspy.Example(augmented=True, reasoning="r", question="question 2", answer="something else"),
            dspy.Example(hint="another predictor's demo"),
        ]
        assert shown_by(demos, examples) == {0, 1, 2}
        assert shown_by([{"query": "question 5", "passages": "p"}], questions(60)) == {5}
        examples = with_input([(i, f"question {i}") for i in range(60)], style="short")
        assert shown_by([{"question": "question 7", "answer": "a"}], examples) == {7}
        # The demo has only one of the two inputs, under another name.
        assert shown_by([{"query": "question 7", "answer": "a"}], examples) == set()

    @pytest.mark.parametrize(("number", "shown"), [(1, {0}), (2, {0, 1}), (3, set())])
    def test_are_not_recognized_by_a_common_input_alone(self, number, shown):
        """An input value is common if more than a tenth of the examples have it."""

        def example(i):
            language = "en" if i < number else f"language {i}"
            row = dspy.Example(question=str(i), language=language)
            return row.with_inputs("question", "language")

        examples = [example(i) for i in range(20)]
        assert shown_by([{"language": "en", "topic": "t"}], examples) == shown
        copies = examples[:1] * number + examples[number:]
        assert shown_by([dict(examples[0])], copies) == set(range(number))

    def test_are_recognized_if_demos_of_a_loaded_program_are_plain_data(self):
        class Ticket(pydantic.BaseModel):
            number: int
            opened: datetime.date

        day = datetime.date(2026, 1, 1)
        values = [Ticket(number=i, opened=day) for i in range(5)]
        examples = with_input(list(enumerate(values)))
        ticket = {"opened": "2026-01-01", "number": 3}
        assert shown_by([{"question": ticket, "answer": "x"}], examples) == {3}

    @pytest.mark.parametrize(
        ("value", "recorded"),
        [
            (b"x", "x"),
            (Decimal("1.10"), "1.10"),
            (datetime.timedelta(seconds=3), "PT3S"),
            (datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), "2026-01-01T00:00:00Z"),
            (Path("/a/b"), "/a/b"),
        ],
    )
    def test_are_recognized_if_bootstrapped_demos_are_plain_data(self, value, recorded):
        examples = with_input([(0, "other"), (1, value)])
        assert shown_by([{"question": recorded, "answer": "x"}], examples) == {1}

    def test_are_recognized_by_the_inputs_in_prompts(self):
        """Inputs that no prompt shows are ignored."""
        examples = with_input([(i, f"question {i}") for i in range(20)], style="short")
        demos = [{"question": "question 7", "style": "long", "answer": "a"}]
        options = {"balanced": True, "prompted": ["question"]}
        parts = make_splits(examples, [], demos, random.Random(0), **options)
        assert "trainset[7]" not in parts.names
        assert len(parts.names) == 19


class TestSplits:
    def test_a_rare_class_is_spread_evenly(self):
        is_rare = [n % 10 == 0 for n in range(100)]
        order = mixed(range(100), is_rare, random.Random(0), balanced=True)
        places = [place for place, n in enumerate(order) if is_rare[n]]
        assert [place // 10 for place in places] == list(range(10))
        assert {place % 10 for place in places} <= {4, 5}

    @settings(deadline=None)
    @given(st.integers(2, 120), st.integers(0, 5), st.booleans())
    def test_are_a_partition_in_the_ratio_four_to_one(self, count, seed, balanced):
        examples = questions(count)
        parts = splits(examples, seed=seed, balanced=balanced)
        everything = [*parts.train, *parts.selection]
        asked = sorted(example.question for example in everything)
        assert asked == sorted(example.question for example in examples)
        assert parts.train
        assert len(parts.selection) == min(max(1, round(count / 5)), count - 1)
        assert [examples[int(name[9:-1])] for name in parts.names] == everything

    @settings(deadline=None)
    @given(st.integers(2, 60), st.integers(2, 5), st.integers(0, 5), st.booleans())
    def test_examples_with_the_same_input_are_in_the_same_part(self, count, repeats, seed, balanced):
        """Examples with the same question have different answers."""
        examples = with_input((number, f"q{number % count}") for number in range(count * repeats))
        parts = splits(examples, seed=seed, balanced=balanced)
        asked = [{example.question for example in part} for part in (parts.train, parts.selection)]
        assert asked[0].isdisjoint(asked[1])
        assert len(parts.train) + len(parts.selection) == len(examples)
        assert len(asked[1]) == min(max(1, round(count / 5)), count - 1)

    def test_examples_without_inputs_are_split(self):
        examples = [dspy.Example(answer=str(number)).with_inputs() for number in range(10)]
        parts = splits(examples)
        assert (len(parts.train), len(parts.selection)) == (8, 2)

    def test_a_valset_is_the_selection_split_and_its_examples_are_removed_from_the_train_split(
        self, caplog
    ):
        examples = questions(50)
        parts = splits(examples, [*examples[40:], examples[40]], [examples[0], examples[41]])
        # Duplicates and examples used as demos are omitted.
        assert len(parts.train) == 39
        assert len(parts.selection) == 9
        places = [40 + int(name[7:-1]) for name in parts.names[39:]]
        assert [examples[place] for place in places] == parts.selection
        assert "9 examples in trainset cannot be used" in caplog.text

    @settings(deadline=None, max_examples=15)
    @given(st.integers(0, 20), st.booleans())
    def test_every_prefix_has_the_shares_of_all_classes(self, seed, with_valset):
        """The examples are sorted by class, as in many files."""
        examples = two_classes("no" if i % 200 < 50 else "yes" for i in range(400))
        valset = examples[200:] if with_valset else []
        parts = splits(examples[:200], valset, seed=seed)
        for part in (parts.train, parts.selection):
            for size in range(8, len(part) + 1):
                share = Counter(e.answer for e in part[:size])["no"] / size
                assert abs(share - 0.25) <= 1.5 / size

    @given(count=st.integers(20, 120), share=st.floats(0.05, 0.5), seed=st.integers(0, 99))
    def test_both_parts_have_the_share_of_a_rare_class(self, count, share, seed):
        rare = max(1, round(share * count))
        examples = two_classes("yes" if i < rare else "no" for i in range(count))
        parts = splits(examples, seed=seed)
        for part in (parts.train, parts.selection):
            num_rare = sum(example.answer == "yes" for example in part)
            assert abs(num_rare - rare * len(part) / count) <= 1
