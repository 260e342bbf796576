"""Programs that hold data, indexes, threads and tools: what copies of them share, and what they own."""

import functools
import queue
import threading
from collections import deque

import dspy
import numpy as np
import pytest
from fakes import questions

from plr_dspy.programs.copies import ProgramFactory, language_models

EXAMPLES = questions(60)


class Holder(dspy.Module):
    """A program that holds something."""

    def __init__(self, **attributes):
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self.answer.demos = EXAMPLES[:5]
        vars(self).update(attributes)

    def forward(self, question):
        return self.answer(question=question)


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
    def test_what_is_no_module_is_shared(self, make):
        data = make()
        duplicate = ProgramFactory(Holder(data=data)).build({})
        assert duplicate.data is data

    def test_data_beside_modules_is_shared_and_the_modules_are_not(self):
        data, inner = ["a"], Holder()
        program = Holder(steps=[inner, {"last": (inner, data)}, data])
        duplicate = ProgramFactory(program).build({})
        assert duplicate.steps[0] is duplicate.steps[1]["last"][0] is not inner
        assert duplicate.steps[2] is duplicate.steps[1]["last"][1] is data


class Colleague:
    """Not a module, but it knows one."""

    def __init__(self, program):
        self.program = program
        self.notes = ["a"]

    def ask(self, question):
        return self.program.answer(question=question)


class Slotted:
    __slots__ = ("program",)

    def __init__(self, program):
        self.program = program


class TestOwned:
    """What leads to a module is copied: else a copy would answer with the demos of the original."""

    @pytest.mark.parametrize(
        ("make", "found"),
        [
            (Colleague, lambda held: held.program),
            (Slotted, lambda held: held.program),
            (lambda program: Colleague(program).ask, lambda held: held.__self__.program),
            (lambda program: functools.partial(program.forward, 1), lambda held: held.func.__self__),
            (lambda program: deque([program]), lambda held: held[0]),
            (
                lambda program: {"a": [dspy.Tool(Colleague(program).ask)]},
                lambda held: held["a"][0].func.__self__.program,
            ),
        ],
        ids=["object", "slots", "method", "partial", "deque", "tool"],
    )
    def test_what_leads_back_to_the_program(self, make, found):
        program = Holder()
        program.held = make(program)
        duplicate = ProgramFactory(program).build({"answer": EXAMPLES[4::-1]})
        assert found(duplicate.held) is duplicate
        assert found(program.held) is program
        assert duplicate.answer.demos == program.answer.demos[::-1] == EXAMPLES[4::-1]


def test_models_are_found():
    lms = [dspy.LM(f"openai/{name}") for name in "abc"]
    program = Holder(judge=lms[0], committee={"members": [(lms[1],)]}, colleague=Colleague(lms[2]))
    assert {lm.model for lm in language_models(program)} == {"openai/a", "openai/b", "openai/c"}
