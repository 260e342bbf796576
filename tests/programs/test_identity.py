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

from plr_dspy.programs.identity import digest, facts, is_library


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
    "pattern": (re.compile("a"), re.compile("b")),
    "inherited method": (inheriting(Base), inheriting(OtherBase)),
    "static method": (
        inheriting(Base, rule=staticmethod(lambda: 1)),
        inheriting(Base, rule=staticmethod(lambda: 2)),
    ),
    "property": (inheriting(Base, rule=property(lambda s: 1)), inheriting(Base, rule=property(lambda s: 2))),
    "answer key": (with_attributes(answer_key="a"), with_attributes(answer_key="b")),
    "attributes of a judge that are called like keys": (with_key(Judge(), "a"), with_key(Judge(), "b")),
    "model in an attribute": (
        with_attributes(judge=dspy.LM("openai/a")),
        with_attributes(judge=dspy.LM("openai/b")),
    ),
    "cached function": (functools.lru_cache(lambda e, p: 1), functools.lru_cache(lambda e, p: 2)),
    "global function": (metric_in(READS, NAME=plain), metric_in(READS, NAME=lambda e, p: 2.0)),
    "global model": (
        metric_in(READS, NAME=dspy.LM("openai/a")),
        metric_in(READS, NAME=dspy.LM("openai/b")),
    ),
    "function of a module of the user's": tuple(
        metric_in(
            "def metric(e, p):\n    return users.helpers.right(e)",
            users=users_module("users", helpers=users_module("users.helpers", right=lambda e, n=n: n)),
        )
        for n in (1, 2)
    ),
    "name of an argument": (lambda e, p, trace=None: 1.0, lambda e, p, limit=None: 1.0),
    "shape of an array": (np.zeros((2, 3)), np.zeros((3, 2))),
    "further arguments": (lambda e, p: 1.0, lambda e, p, *rest: 1.0),
    "texts that run together": (["a", "b"], ["a', 'b"]),
    "number and text": ([1], ["1"]),
    "truth and number": ([True], [1]),
    "settings of a retriever": tuple(dspy.retrievers.Embeddings(["a"], embed, k=k) for k in (1, 2)),
    "corpus of a retriever": tuple(dspy.retrievers.Embeddings([text], embed) for text in "ab"),
    "instructions of a judge": (Judge(), Judge("Judge harshly.")),
    "attribute of a judge": (Judge(), Judge(limit=0.9)),
    "decorator": (plain, reversed_(plain)),
    "closure over a function": (closing_over(plain), closing_over(reversed_(plain))),
    "partial": (functools.partial(plain, trace=1), functools.partial(plain, trace=2)),
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
    "model with sets": (Tags(tags={"a"}), Tags(tags={"b"})),
}

SOURCES = {
    "global constant": "LIMIT = N\ndef metric(e, p):\n    return LIMIT",
    "default": "def metric(e, p, *, least=N):\n    return least",
    "what a helper reads": "LIMIT = N\ndef a():\n    return LIMIT\ndef metric(e, p):\n    return a()",
    "what a nested function reads": "LIMIT = N\ndef metric(e, p):\n    return [(lambda: LIMIT)() for _ in p]",
    "what a method of a global class reads": (
        "LIMIT = N\nclass A:\n    def b(self):\n        return LIMIT\ndef metric(e, p):\n    A().b()"
    ),
    "class in a function": "def metric(e, p):\n    class A:\n        x = N\n    return A.x",
}
DIFFERENT |= {
    name: [metric_in(source.replace("N", number)) for number in "12"] for name, source in SOURCES.items()
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


@pytest.mark.parametrize("make", SAME.values(), ids=SAME.keys())
def test_copies_are_the_same(make):
    assert digest(make()) == digest(make())


def test_how_a_model_is_reached_and_keys_do_not_count():
    first = dspy.LM("openai/x", api_key="one", api_base="http://a", timeout=1, num_retries=1)
    second = dspy.LM("openai/x", api_key="two", api_base="http://b", timeout=2, num_retries=2)
    assert digest(first) == digest(second)
    assert digest(first) != digest(dspy.LM("openai/x", max_tokens=7))


def test_a_large_graph_is_one_fact_however_deep_the_stack_is():
    nodes = {i: Weighted(i) for i in range(3000)}
    for i, node in nodes.items():
        node.next = nodes[(i + 1) % 3000]

    def found(depth):
        return facts({"the metric": with_attributes(nodes=nodes)}) if depth == 0 else found(depth - 1)

    before = found(0)
    assert len(before) < 12
    assert found(300) == before
    nodes[2000].weight = -1
    changed = {name for name, fact in found(0).items() if fact != before[name]}
    assert changed == {"the metric.nodes"}


def test_a_closure_that_is_not_filled_and_one_that_holds_itself():
    def recursive(example, prediction):
        return recursive if prediction else later

    assert digest(recursive) == digest(recursive)
    later = 1
    assert later


def test_an_object_that_holds_locks_and_threads_is_told_by_the_rest():
    one, same, other = Locked(), used(Locked()), Locked()
    other.limit = 2
    assert digest(one) == digest(same)
    assert digest(one) != digest(other)


def test_the_same_in_processes_that_hash_otherwise():
    printed_whatever_the_hashes(
        "from test_identity import *;"
        "metric = lambda e, p, labels={'a', 'b', 'c'}: p in {'x', 'y', 'z'} or labels;"
        "things = [metric, functools.partial(plain, labels={'p', 'q', 'r'}), Tags(tags={'s', 't', 'u'}),"
        " dspy.Example(a=frozenset('abc'), b=Color.RED, c=object(), d=re.compile('x'), e=np.float32(1)),"
        " Judge(), Weighted(1).score, reversed_(plain), dspy.ReAct('a -> b', tools=[plain])];"
        "print([digest(thing) for thing in things])"
    )
