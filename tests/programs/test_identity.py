"""What counts as the same compile: facts about metrics and programs."""

import concurrent.futures
import enum
import functools
import itertools
import logging
import queue
import random
import re
import string
import threading
import types

import dspy
import numpy as np
import openai
import pydantic
import pytest
from fakes import printed_whatever_the_hashes

from plr_dspy.programs.objects import Facts, digest


class Weighted:
    def __init__(self, weight, **attributes):
        self.weight = weight
        self._calls = 0
        vars(self).update(attributes)

    def __call__(self, example, prediction):
        self._calls += 1
        return self.weight

    def score(self, example, prediction):
        return self.weight


class Judge(dspy.Module):
    def __init__(self, instructions="Judge.", **attributes):
        super().__init__()
        vars(self).update(attributes)
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


def metric_in(source, **namespace):
    namespace = {"__name__": "users", "dspy": dspy, "functools": functools, **namespace}
    exec(source, namespace)
    return namespace["metric"]


def users_module(name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    return module


def embed(texts):
    return np.array([[len(text), NOISE.random()] for text in texts])


TURNS = itertools.count()
NOISE = np.random.default_rng(0)

SOURCES = {
    "global constant": "LIMIT = N\ndef metric(e, p):\n    return LIMIT",
    "global function": "def limit():\n    return N\ndef metric(e, p):\n    return limit()",
    "global model": "LM = dspy.LM('openai/N')\ndef metric(e, p):\n    return LM",
    "default": "def metric(e, p, *, least=N):\n    return least",
    "what a helper reads": "LIMIT = N\ndef a():\n    return LIMIT\ndef metric(e, p):\n    return a()",
    "what a nested function reads": "LIMIT = N\ndef metric(e, p):\n    return [(lambda: LIMIT)() for _ in p]",
    "what a method of a global class reads": (
        "LIMIT = N\nclass A:\n    def b(self):\n        return LIMIT\ndef metric(e, p):\n    A().b()"
    ),
    "class in a function": "def metric(e, p):\n    class A:\n        x = N\n    return A.x",
    "inherited method": "class A:\n    def b(self):\n        return N\nclass B(A):\n    pass\nmetric = B()",
    "static method": "class A:\n    b = staticmethod(lambda: N)\nmetric = A()",
    "property": "class A:\n    b = property(lambda self: N)\nmetric = A()",
    "cached function": "metric = functools.lru_cache(lambda e, p: N)",
    "partial": "metric = functools.partial(print, sep=N)",
    "name of an argument": "def metric(e, p, limitN=0):\n    return 1.0",
}
"""Code of users, in which a number makes the difference."""

DIFFERENT = {name: [metric_in(s.replace("N", number)) for number in "12"] for name, s in SOURCES.items()} | {
    "pattern": (re.compile("a"), re.compile("b")),
    "answer key": (Weighted(1, answer_key="a"), Weighted(1, answer_key="b")),
    "model in an attribute": (Weighted(1, lm=dspy.LM("openai/a")), Weighted(1, lm=dspy.LM("openai/b"))),
    "function of a module of the user's": tuple(
        metric_in(
            "def metric(e, p):\n    return users.helpers.right(e)",
            users=users_module("users", helpers=users_module("users.helpers", right=lambda e, n=n: n)),
        )
        for n in (1, 2)
    ),
    "further arguments": (lambda e, p: 1.0, lambda e, p, *rest: 1.0),
    "shape of an array": (np.zeros((2, 3)), np.zeros((3, 2))),
    "texts that run together": (["a", "b"], ["a', 'b"]),
    "number and text": ([1], ["1"]),
    "truth and number": ([True], [1]),
    "settings of a retriever": tuple(dspy.retrievers.Embeddings(["a"], embed, k=k) for k in (1, 2)),
    "corpus of a retriever": tuple(dspy.retrievers.Embeddings([text], embed) for text in "ab"),
    "instructions of a judge": (Judge(), Judge("Judge harshly.")),
    "attribute of a judge that is called like a key": (Judge(key="a"), Judge(key="b")),
    "decorator": (plain, reversed_(plain)),
    "signature": (dspy.Signature("a -> b"), dspy.Signature("a -> c")),
    "type of a field": (dspy.Signature("a -> b: int"), dspy.Signature("a -> b: Literal['x', 'y']")),
    "adapter": (dspy.ChatAdapter(), dspy.ChatAdapter(use_json_adapter_fallback=False)),
    "enum": (Color.RED, Color.BLUE),
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
    "objects without a repr": lambda: dspy.Example(a=object()),
    "what cannot be read": lambda: Weighted(1, session=Unreadable(), huge=10**5000, log=logging.getLogger("x")),
    "what holds itself": cyclic,
    "what runs": lambda: used(Locked()) if next(TURNS) % 2 else Locked(),
    "random numbers": random.Random,
    "retriever": retriever,
    "client of a library's": client,
    "order of a dict": lambda: dict(sorted({"a": 1, "b": 2}.items(), key=lambda item: NOISE.random())),
    "global key": lambda: metric_in("def metric(e, p):\n    return API_KEY", API_KEY=f"sk-{NOISE.random()}"),
    "what a library's module holds": lambda: metric_in(
        "import string\ndef metric(e, p):\n    return string.stray", **stray()
    ),
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


@pytest.mark.parametrize("make", SAME.values(), ids=SAME.keys())
def test_copies_are_the_same(make):
    assert digest(make()) == digest(make())


def test_a_large_graph_is_one_fact_however_deep_the_stack_is():
    nodes = {i: Weighted(i) for i in range(3000)}
    for i, node in nodes.items():
        node.next = nodes[(i + 1) % 3000]

    def found(depth):
        return Facts({"the metric": Weighted(1, nodes=nodes)}).found if depth == 0 else found(depth - 1)

    before = found(0)
    assert len(before) < 12
    assert found(300) == before
    nodes[2000].weight = -1
    changed = {name for name, fact in found(0).items() if fact != before[name]}
    assert changed == {"the metric.nodes"}


def test_the_same_in_processes_that_hash_otherwise():
    printed_whatever_the_hashes(
        "from test_identity import *;"
        "metric = lambda e, p, labels={'a', 'b', 'c'}: p in {'x', 'y', 'z'} or labels;"
        "things = [metric, functools.partial(plain, labels={'p', 'q', 'r'}), Tags(tags={'s', 't', 'u'}),"
        " dspy.Example(a=frozenset('abc'), b=Color.RED, c=object(), d=re.compile('x'), e=np.float32(1)),"
        " Judge(), Weighted(1).score, reversed_(plain), dspy.ReAct('a -> b', tools=[plain])];"
        "print([digest(thing) for thing in things])"
    )
