"""The distinct orders of a program's demos, and the parts that copies of a program share."""

import functools
import itertools
import queue
import random
import threading

import dspy
import numpy as np
import pytest
from fakes import Program, engine_for, questions, student
from hypothesis import given, settings
from hypothesis import strategies as st

from plr_dspy import PlainTextAdapter
from plr_dspy.programs.copying import ProgramFactory, language_models
from plr_dspy.programs.slots import ProgramSlots, add_labeled_demos

EXAMPLES = questions(60)


def demo(i, *, reasoning=True, **fields):
    extra = {"reasoning": f"because {i}"} if reasoning else {}
    return dspy.Example(question=f"question {i}", answer=f"answer {i}", **extra, **fields)


def chain_of_thought(demos):
    program = dspy.ChainOfThought("question -> answer")
    program.predict.demos = demos
    return program


class TestBlocks:
    def test_plain_text_prompts_keep_incomplete_demos_in_place(self):
        program = chain_of_thought([demo(0), demo(1, reasoning=False), demo(2)])
        with dspy.context(adapter=PlainTextAdapter()):
            assert ProgramSlots(program).space.num_distinct == 6
        slots = ProgramSlots(program)
        assert [slot.blocks for slot in slots.slots] == [((0, 2),)]
        assert slots.space.num_distinct == 2

    def test_native_reasoning_depends_on_the_lm(self):
        """With native reasoning, prompts omit the reasoning field, so demos without this field are complete."""
        program = dspy.ChainOfThought("question -> answer", rationale_field_type=dspy.Reasoning)
        program.predict.demos = [demo(0), demo(1, reasoning=False), demo(2)]
        reasoner = type("Reasoner", (dspy.LM,), {"supports_reasoning": True})
        assert ProgramSlots(program).space.num_distinct == 2
        with dspy.context(lm=reasoner("fake/reasoner", engine=engine_for([]))):
            assert ProgramSlots(program).space.num_distinct == 6

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.sampled_from(["full", "labeled", "dropped", "twin"]), min_size=1, max_size=5))
    def test_the_space_has_exactly_the_distinct_prompts(self, shapes):
        makers = {
            "full": lambda i: demo(i),
            "labeled": lambda i: demo(i, reasoning=False),
            "dropped": lambda i: dspy.Example(note=i),
            "twin": lambda i: demo("twin"),
        }
        program = chain_of_thought([makers[shape](i) for i, shape in enumerate(shapes)])
        slots = ProgramSlots(program)
        adapter = dspy.ChatAdapter()
        signature = program.predict.signature
        demos = program.predict.demos

        def prompt(demos):
            return str(adapter.format_demos(signature, list(demos)))

        prompts = {prompt(order) for order in itertools.permutations(demos)}
        orderings = list(slots.space.enumerate())
        listed = [slots.demos(ordering).get("predict", demos) for ordering in orderings]
        assert set(map(prompt, listed)) == prompts
        assert slots.space.num_distinct == len(prompts)
        assert len(set(map(slots.fingerprint, orderings))) == len(prompts)
        num_shown = sum(shape != "dropped" for shape in shapes)
        for ordering, ordered in zip(orderings, listed, strict=True):
            assert sorted(map(id, ordered)) == sorted(map(id, demos))
            reported = [demos[item] for item in slots.shown(ordering)["predict"]]
            assert reported == [demo for demo in ordered if "question" in demo]
            assert slots.num_demos(ordering) == num_shown


class TestLabeledDemos:
    def test_are_not_added_to_optimized_programs_or_if_prompts_would_not_show_them(self):
        first = dspy.Predict("question -> hint")
        frozen = dspy.ChainOfThought("question -> answer")
        first.demos = [dspy.Example(question="q", hint="h")]
        frozen._compiled = True
        second = dspy.ChainOfThought("question, hint -> answer")
        program = Program(first=first, second=second, again=first, frozen=frozen)
        for unchanged in (program, dspy.Predict("topic -> poem")):
            assert add_labeled_demos(unchanged, questions(20), 8, random.Random(0)) == []
        assert program.second.predict.demos == []

    def test_each_predictor_gets_its_own_list_and_two_examples_remain(self):
        program = Program(one=dspy.Predict("question -> answer"), other=dspy.Predict("question -> answer"))
        assert add_labeled_demos(program, questions(9), 8, random.Random(0)) == ["one", "other"]
        assert program.one.demos == program.other.demos
        program.one.demos.reverse()
        assert program.one.demos == program.other.demos[::-1]
        assert len(program.one.demos) == 7


def holder(**attributes):
    return Program(answer=student(5), **attributes)


def retriever():
    embedder = dspy.Embedder(lambda texts: np.array([[len(text), 1.0] for text in texts], dtype=np.float32))
    return dspy.retrievers.Embeddings([f"passage {i}" for i in range(20)], embedder, k=2)


DATA = {
    "list": lambda: ["a", "b"],
    "nested": lambda: {"passages": [{"text": "a", "vector": np.zeros(2)}]},
    "set": lambda: {"a"},
    "object": object,
    "examples": lambda: questions(3),
    "lock": threading.Lock,
    "generator": lambda: (i for i in range(3)),
    "retriever": retriever,
    "queue": queue.Queue,
    "function": lambda: lambda text: text,
    "language model": lambda: dspy.LM("openai/a"),
}


class TestShared:
    @pytest.mark.parametrize("make", DATA.values(), ids=DATA.keys())
    def test_values_other_than_modules_are_shared_except_small_collections(self, make):
        data = make()
        duplicate = ProgramFactory(holder(data=data)).build({})
        copied = type(data) in (list, dict, set)
        assert (duplicate.data is data) is not copied
        if copied:
            assert [*map(id, duplicate.data)] == [*map(id, data)] and duplicate.data == data
            large = type(data)(zip(range(2_000), range(2_000), strict=True))
            assert ProgramFactory(holder(data=large)).build({}).data is large

    def test_data_next_to_modules_is_shared_but_the_modules_are_copied(self):
        data = ["a"]
        inner = holder()
        program = holder(steps=[inner, {"last": (inner, data)}, data])
        duplicate = ProgramFactory(program).build({})
        assert duplicate.steps[0] is duplicate.steps[1]["last"][0] is not inner
        assert duplicate.steps[2] is duplicate.steps[1]["last"][1] is data


class Colleague:
    def __init__(self, program):
        self.program = program
        self.notes = ["a"]

    def ask(self, question):
        return self.program.answer(question=question)


@pytest.mark.parametrize(
    ("make", "program_in"),
    [
        (Colleague, lambda held: held.program),
        (lambda program: Colleague(program).ask, lambda held: held.__self__.program),
        (lambda program: functools.partial(program.forward, 1), lambda held: held.func.__self__),
        (lambda program: [dspy.Tool(Colleague(program).ask)], lambda held: held[0].func.__self__.program),
    ],
    ids=["object", "method", "partial", "tool"],
)
def test_attributes_that_refer_to_the_program_are_copied(make, program_in):
    """Otherwise, a copy would answer with the demos of the original."""
    program = holder()
    program.held = make(program)
    duplicate = ProgramFactory(program).build({"answer": EXAMPLES[4::-1]})
    assert program_in(duplicate.held) is duplicate
    assert program_in(program.held) is program
    assert duplicate.answer.demos == program.answer.demos[::-1] == EXAMPLES[4::-1]


def test_language_models_are_found_in_nested_attributes():
    lms = [dspy.LM(f"openai/{name}") for name in "abc"]
    program = holder(judge=lms[0], committee={"members": [(lms[1],)]}, colleague=Colleague(lms[2]))
    assert {lm.model for lm in language_models(program)} == {"openai/a", "openai/b", "openai/c"}
