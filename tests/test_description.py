"""What counts as the same compile: descriptions of metrics and programs."""

import enum
import functools
import logging
from pathlib import Path  # noqa: F401

import dspy
import numpy as np
import pydantic
import pytest
import torch
from fakes import printed_whatever_the_hashes

from plr_dspy.identity import digest


class Weighted:
    def __init__(self, weight):
        self.weight = weight
        self._calls = 0

    def __call__(self, example, prediction):
        self._calls += 1
        return self.weight

    def score(self, example, prediction):
        return self.weight


class Judge(dspy.Module):
    def __init__(self, instructions="Judge.", limit=0.5):
        super().__init__()
        self.limit = limit
        self.verdict = dspy.Predict(dspy.Signature("answer -> good: bool", instructions))

    def forward(self, example, prediction):
        return self.verdict(answer=prediction.answer).good


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Tags(pydantic.BaseModel):
    tags: set[str] = set()


def plain(example, prediction, trace=None):
    return 1.0


def reversed_(metric):
    @functools.wraps(metric)
    def wrapper(example, prediction, trace=None):
        return 1.0 - metric(example, prediction)

    return wrapper


def closing_over(value):
    return lambda example, prediction: value


def limited(limit):
    def metric(example, prediction, *, least=limit):
        return least

    return metric


class Slotted:
    __slots__ = ("limit",)

    def __init__(self, limit):
        self.limit = limit


class Base:
    def __call__(self, example, prediction):
        return 1.0


class OtherBase:
    def __call__(self, example, prediction):
        return 2.0


def inheriting(base, **attributes):
    return type("Metric", (base,), attributes)()


def with_attributes(**attributes):
    metric = Weighted(1)
    vars(metric).update(attributes)
    return metric


DIFFERENT = {
    "slots": (Slotted(1), Slotted(2)),
    "inherited method": (inheriting(Base), inheriting(OtherBase)),
    "class attribute": (inheriting(Base, limit=1), inheriting(Base, limit=2)),
    "static method": (
        inheriting(Base, rule=staticmethod(lambda: 1)),
        inheriting(Base, rule=staticmethod(lambda: 2)),
    ),
    "property": (inheriting(Base, rule=property(lambda s: 1)), inheriting(Base, rule=property(lambda s: 2))),
    "names that only look like access": (
        with_attributes(keywords=1, knowledge_base=1, base_prompt=1, max_retries=1, author=1),
        with_attributes(keywords=1, knowledge_base=1, base_prompt=1, max_retries=1, author=2),
    ),
    "model in an attribute": (
        with_attributes(judge=dspy.LM("openai/a")),
        with_attributes(judge=dspy.LM("openai/b")),
    ),
    "tensor": (torch.tensor([1.0]), torch.tensor([2.0])),
    "bound built-in": ({"a": 1}.get, {"a": 2}.get),
    "cached function": (functools.lru_cache(lambda e, p: 1), functools.lru_cache(lambda e, p: 2)),
    "object array": (np.array([{1}] * 2000), np.array([{1}] * 1999 + [{2}])),
    "state": (Weighted(1), Weighted(2)),
    "method": (Weighted(1).score, Weighted(2).score),
    "instructions of a judge": (Judge(), Judge("Judge harshly.")),
    "attribute of a judge": (Judge(), Judge(limit=0.9)),
    "decorator": (plain, reversed_(plain)),
    "closure over a dict": (closing_over({"a": 1}), closing_over({"a": 2})),
    "closure over a function": (closing_over(plain), closing_over(reversed_(plain))),
    "partial": (functools.partial(plain, trace=1), functools.partial(plain, trace=2)),
    "default": (limited(1), limited(2)),
    "constant": (lambda e, p: 1.0, lambda e, p: 2.0),
    "nested constant": (lambda e, p: [x + 1 for x in (1, 2)], lambda e, p: [x + 2 for x in (1, 2)]),
    "class": (Weighted(1), Judge()),
    "signature": (dspy.Signature("a -> b"), dspy.Signature("a -> c")),
    "type of a field": (dspy.Signature("a -> b: int"), dspy.Signature("a -> b: Literal['x', 'y']")),
    "judge of the library": (
        dspy.evaluate.SemanticF1(threshold=0.5),
        dspy.evaluate.SemanticF1(threshold=0.9),
    ),
    "adapter": (dspy.ChatAdapter(), dspy.ChatAdapter(use_json_adapter_fallback=False)),
    "temperature": (dspy.LM("openai/x", temperature=0.0), dspy.LM("openai/x", temperature=1.0)),
    "enum": (Color.RED, Color.BLUE),
    "array": (np.array([1, 2]), np.array([1, 3])),
    "set": ({"a", "b"}, {"a", "c"}),
    "example": (dspy.Example(a=1), dspy.Example(a=2)),
    "model with sets": (Tags(tags={"a"}), Tags(tags={"b"})),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_different_things_differ(one, other):
    assert digest(one) == digest(one)
    assert digest(one) != digest(other)


class Unreadable:
    def __repr__(self):
        raise RuntimeError("no")

    def __iter__(self):
        raise NotImplementedError


def cyclic():
    tree = {"children": []}
    tree["children"].append({"parent": tree})
    return tree


SAME = {
    "state that is private": lambda: Weighted(1),
    "nan": lambda: float("nan"),
    "objects without a repr": lambda: dspy.Example(a=object()),
    "what cannot be read": lambda: with_attributes(
        session=Unreadable(), huge=10**5000, log=logging.getLogger("x")
    ),
    "what holds itself": cyclic,
    "judge": Judge,
    "closure": lambda: closing_over({"b": {1, 2}, "a": object()}),
    "literal": lambda: dspy.Signature("a -> b: Literal['x', 'y']"),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME.keys())
def test_copies_are_the_same(make):
    assert digest(make()) == digest(make())


def test_how_a_model_is_reached_and_keys_do_not_count():
    first = dspy.LM("openai/x", api_key="one", api_base="http://a", timeout=1, num_retries=1)
    second = dspy.LM("openai/x", api_key="two", api_base="http://b", timeout=2, num_retries=2)
    assert digest(first) == digest(second)
    assert digest(first) != digest(dspy.LM("openai/x", max_tokens=7))


def test_calls_do_not_count():
    metric = Weighted(1)
    before = digest(metric)
    metric(None, None)
    assert digest(metric) == before


def test_a_closure_that_is_not_filled_and_one_that_holds_itself():
    def recursive(example, prediction):
        return recursive if prediction else later

    assert digest(recursive) == digest(recursive)
    later = 1
    assert later


def test_the_same_in_processes_that_hash_otherwise():
    printed_whatever_the_hashes(
        "from test_description import *;"
        "metric = lambda e, p, labels={'a', 'b', 'c'}: p in {'x', 'y', 'z'} or labels;"
        "things = [metric, functools.partial(plain, labels={'p', 'q', 'r'}), Tags(tags={'s', 't', 'u'}),"
        " dspy.Example(a=frozenset('abc'), b=Color.RED, c=object(), d=Path('x'), e=np.float32(1)),"
        " Judge(), Weighted(1).score, reversed_(plain), dspy.ReAct('a -> b', tools=[plain])];"
        "print([digest(thing) for thing in things])"
    )
