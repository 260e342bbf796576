"""What counts as the same compile: descriptions of metrics and programs."""

import collections
import concurrent.futures
import datetime
import enum
import fractions
import functools
import itertools
import logging
import queue
import random
import re
import string
import threading
import types
from pathlib import Path

import dspy
import numpy as np
import openai
import pydantic
import pytest
import torch
from fakes import printed_whatever_the_hashes

from plr_dspy.programs.digest.description import digest
from plr_dspy.programs.digest.libraries import is_library


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


def metric_in(source, **namespace):
    """The metric of a user's module."""
    namespace = {"__name__": "users", **namespace}
    exec(source, namespace)
    return namespace["metric"]


def users_module(name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    return module


READS = "def metric(example, prediction):\n    return NAME"


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


def with_key(judge, key):
    judge.key = key
    return judge


def embed(texts):
    return np.array([[len(text), NOISE.random()] for text in texts])


TURNS = itertools.count()
NOISE = np.random.default_rng(0)


DIFFERENT = {
    "slots": (Slotted(1), Slotted(2)),
    "pattern": (re.compile("a"), re.compile("b")),
    "flags of a pattern": (re.compile("a"), re.compile("a", re.IGNORECASE)),
    "path": (Path("a"), Path("b")),
    "fraction": (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    "date": (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
    "counter": (collections.Counter("ab"), collections.Counter("abb")),
    "type that is one of two": (int | str, int | None),
    "read-only dict": (types.MappingProxyType({1: 2}), types.MappingProxyType({1: 3})),
    "namespace with a function": (
        types.SimpleNamespace(a=lambda: 1),
        types.SimpleNamespace(a=lambda: 2),
    ),
    "global pattern": (metric_in(READS, NAME=re.compile("a")), metric_in(READS, NAME=re.compile("b"))),
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
    "answer key": (with_attributes(answer_key="a"), with_attributes(answer_key="b")),
    "global answer key": tuple(
        metric_in("def metric(e, p):\n    return ANSWER_KEY", ANSWER_KEY=key) for key in "ab"
    ),
    "attributes of a judge that are called like keys": (with_key(Judge(), "a"), with_key(Judge(), "b")),
    "model in an attribute": (
        with_attributes(judge=dspy.LM("openai/a")),
        with_attributes(judge=dspy.LM("openai/b")),
    ),
    "tensor": (torch.tensor([1.0]), torch.tensor([2.0])),
    "bound built-in": ({"a": 1}.get, {"a": 2}.get),
    "cached function": (functools.lru_cache(lambda e, p: 1), functools.lru_cache(lambda e, p: 2)),
    "object array": (np.array([{1}] * 2000), np.array([{1}] * 1999 + [{2}])),
    "global constant": (metric_in(READS, NAME=1), metric_in(READS, NAME=2)),
    "global list": (metric_in(READS, NAME=["a"]), metric_in(READS, NAME=["b"])),
    "global dict": (metric_in(READS, NAME={"a": {1}}), metric_in(READS, NAME={"a": {2}})),
    "global function": (metric_in(READS, NAME=plain), metric_in(READS, NAME=lambda e, p: 2.0)),
    "global class": (metric_in(READS, NAME=Base), metric_in(READS, NAME=OtherBase)),
    "global object": (metric_in(READS, NAME=Weighted(1)), metric_in(READS, NAME=Weighted(2))),
    "global model": (
        metric_in(READS, NAME=dspy.LM("openai/a")),
        metric_in(READS, NAME=dspy.LM("openai/b")),
    ),
    "global judge": (
        metric_in(READS, NAME=dspy.Predict("a -> b")),
        metric_in(READS, NAME=dspy.Predict("a -> c")),
    ),
    "what a helper reads": tuple(
        metric_in(f"LIMIT = {limit}\ndef a():\n    return LIMIT\ndef metric(e, p):\n    return a()")
        for limit in (1, 2)
    ),
    "what a nested function reads": tuple(
        metric_in(f"LIMIT = {limit}\ndef metric(e, p):\n    return [(lambda: LIMIT)() for _ in p]")
        for limit in (1, 2)
    ),
    "what a method of a global class reads": tuple(
        metric_in(
            f"LIMIT = {limit}\nclass A:\n    def b(self):\n        return LIMIT\ndef metric(e, p):\n    A().b()"
        )
        for limit in (1, 2)
    ),
    "function of a module of the user's": tuple(
        metric_in(
            "def metric(e, p):\n    return users.helpers.right(e)",
            users=users_module("users", helpers=users_module("users.helpers", right=lambda e, n=n: n)),
        )
        for n in (1, 2)
    ),
    "what a function in a function takes from a module of the user's": tuple(
        metric_in(
            "def metric(e, p):\n    def limit():\n        return users.LIMIT\n    return limit()",
            users=users_module("users", LIMIT=limit),
        )
        for limit in (1, 2)
    ),
    "class in a function": tuple(
        metric_in(f"def metric(e, p):\n    class A:\n        x = {x}\n    return A.x") for x in (1, 2)
    ),
    "name of an argument": (lambda e, p, trace=None: 1.0, lambda e, p, limit=None: 1.0),
    "type of an array": (np.zeros(2, np.int32), np.zeros(2, np.float32)),
    "shape of an array": (np.zeros((2, 3)), np.zeros((3, 2))),
    "shape of a tensor": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "further arguments": (lambda e, p: 1.0, lambda e, p, *rest: 1.0),
    "further named arguments": (lambda e, p, *rest: 1.0, lambda e, p, **rest: 1.0),
    "type of a tensor": (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float16)),
    "list of texts": (["a"] * 20_000 + ["b"], ["a"] * 20_000 + ["c"]),
    "texts that run together": (["a", "b"], ["a', 'b"]),
    "number and text": ([1], ["1"]),
    "truth and number": ([True], [1]),
    "dict of texts": ({"a": "1", "b": "2"}, {"a": "2", "b": "1"}),
    "settings of a retriever": tuple(dspy.retrievers.Embeddings(["a"], embed, k=k) for k in (1, 2)),
    "corpus of a retriever": tuple(dspy.retrievers.Embeddings([text], embed) for text in "ab"),
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


class Locked:
    def __init__(self):
        self.lock, self.event, self.limit = threading.Lock(), threading.Event(), 1
        self.queue, self.pool = queue.Queue(), concurrent.futures.ThreadPoolExecutor(1)
        self.steps = (i for i in range(3))


def used(thing):
    """A thing like Locked that has been at work."""
    thing.lock.acquire()
    thing.event.set()
    thing.queue.put(1)
    thing.pool.submit(int).result()
    next(thing.steps)
    return thing


def retriever():
    found = dspy.retrievers.Embeddings(["a", "b"], embed)
    found.search_fn.input_queue.unfinished_tasks = int(1000 * NOISE.random())
    return found


def client():
    found = openai.OpenAI(api_key="sk")
    assert next(TURNS) % 2 == 0 or found.chat  # which it keeps
    return found


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
    "what runs": lambda: used(Locked()) if next(TURNS) % 2 else Locked(),
    "random numbers": random.Random,
    "retriever": retriever,
    "client of a library's": client,
    "order of a dict": lambda: dict(sorted({"a": 1, "b": 2}.items(), key=lambda item: NOISE.random())),
    "functions that call each other": lambda: metric_in(
        "def a(n):\n    return metric(n, n)\ndef metric(e, p):\n    return a(e)"
    ),
    "counter": lambda: metric_in(
        "def metric(e, p):\n    global COUNT\n    COUNT += 1\n    return 1.0", COUNT=NOISE.random()
    ),
    "global key": lambda: metric_in("def metric(e, p):\n    return API_KEY", API_KEY=f"sk-{NOISE.random()}"),
    "what a library's module holds": lambda: metric_in(
        "import string\ndef metric(e, p):\n    return string.stray", **stray()
    ),
    "judge": Judge,
    "closure": lambda: closing_over({"b": {1, 2}, "a": object()}),
    "literal": lambda: dspy.Signature("a -> b: Literal['x', 'y']"),
}


def stray():
    string.stray = NOISE.random()
    return {}


DOCUMENTED = """
def metric(example, prediction):
    DOC
    def inner():
        DOC
        return 1.0

    class Local:
        DOC
        limit = inner()

    return None if prediction else Local.limit


class Judge:
    DOC

    def __call__(self, example, prediction):
        DOC
        return metric(example, prediction)
"""


@pytest.mark.parametrize("name", ["metric", "Judge"])
def test_what_is_said_about_code_does_not_count(name):
    texts = ["'Says one thing.'", "'Says another.'", "'In more'\n\n# And more lines.\n", ""]
    source = f"{DOCUMENTED}\n{'metric = Judge()' * (name == 'Judge')}"
    sources = [source.replace("DOC\n", f"{text}\n") for text in texts]
    assert len({digest(metric_in(source)) for source in sources}) == 1


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("json", True),
        ("builtins", True),
        ("numpy.linalg", True),
        ("dspy.evaluate", True),
        ("plr_dspy.compilation.budget", True),
        ("_pytest.python", True),
        ("__main__", False),
        (__name__, False),
        ("nowhere", False),
    ],
)
def test_whose_code_it_is(name, library):
    assert is_library(name) is library


def test_objects_that_hold_one_another_in_many_ways_take_no_time():
    layers = [[Weighted(i) for i in range(8)] for _ in range(8)]
    for upper, lower in itertools.pairwise(layers):
        for held in upper:
            held.others = lower
    assert digest(layers[0]) == digest(layers[0])


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


def test_an_object_of_the_users_that_holds_locks_and_threads_is_told_by_the_rest():
    one, same, other = Locked(), used(Locked()), Locked()
    other.limit = 2
    assert digest(one) == digest(same)
    assert digest(one) != digest(other)


def test_the_same_in_processes_that_hash_otherwise():
    printed_whatever_the_hashes(
        "from test_description import *;"
        "metric = lambda e, p, labels={'a', 'b', 'c'}: p in {'x', 'y', 'z'} or labels;"
        "things = [metric, functools.partial(plain, labels={'p', 'q', 'r'}), Tags(tags={'s', 't', 'u'}),"
        " dspy.Example(a=frozenset('abc'), b=Color.RED, c=object(), d=Path('x'), e=np.float32(1)),"
        " Judge(), Weighted(1).score, reversed_(plain), dspy.ReAct('a -> b', tools=[plain])];"
        "print([digest(thing) for thing in things])"
    )
