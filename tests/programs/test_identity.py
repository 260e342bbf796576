"""Digests of metrics, programs and other values: equal for equal values, and different otherwise."""

import concurrent.futures
import enum
import functools
import itertools
import logging
import queue
import random
import re
import string
import tempfile
import threading
from pathlib import Path

import dspy
import fakes
import numpy as np
import openai
import pydantic
import pytest
from fakes import printed_with_other_hashes
from sklearn.linear_model import LogisticRegression

from plr_dspy import ConfusionMetric
from plr_dspy.labels.calibration import Calibration
from plr_dspy.programs.fingerprint import describe, digest


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


class Decorated:
    def __init__(self, weight):
        functools.update_wrapper(self, plain)
        self.weight = weight

    def __call__(self, example, prediction):
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


FOLDER = tempfile.TemporaryDirectory()
FILES = itertools.count()


def metric_in(source, **namespace):
    """Return the metric that a user's file with this source defines."""
    file = Path(FOLDER.name, f"users_{next(FILES)}.py")
    file.write_text(source)
    namespace = {"__name__": "users", "dspy": dspy, "functools": functools, **namespace}
    exec(compile(source, file, "exec"), namespace)
    return namespace["metric"]


def embed(texts):
    return np.array([[len(text), NOISE.random()] for text in texts])


TURNS = itertools.count()
NOISE = np.random.default_rng(0)

CALL = "    def __call__(self, e, p):\n        return N"
SOURCES = {
    "global constant": "LIMIT = N\ndef metric(e, p):\n    return LIMIT",
    "global function": "def limit():\n    return N\ndef metric(e, p):\n    return limit()",
    "global model": "LM = dspy.LM('openai/N')\ndef metric(e, p):\n    return LM",
    "default": "def metric(e, p, *, least=N):\n    return least",
    "global read by a helper": "LIMIT = N\ndef a():\n    return LIMIT\ndef metric(e, p):\n    return a()",
    "closure": "def of(limit):\n    def inner(e, p):\n        return limit\n    return inner\nmetric = of(N)",
    "lambda": "metric = lambda e, p: N",
    "global read by a method of a global class": (
        "LIMIT = N\nclass A:\n    def b(self):\n        return LIMIT\ndef metric(e, p):\n    A().b()"
    ),
    "class in a function": "def metric(e, p):\n    class A:\n        x = N\n    return A.x",
    "inherited method": "class A:\n    def b(self):\n        return N\nclass B(A):\n    pass\nmetric = B()",
    "static method": "class A:\n    b = staticmethod(lambda: N)\nmetric = A()",
    "property": "class A:\n    b = property(lambda self: N)\nmetric = A()",
    "partial": "metric = functools.partial(print, sep=N)",
    "function with a cache": "@functools.lru_cache\ndef a():\n    return N\ndef metric(e, p):\n    return a()",
    "call of a model": f"import pydantic\nclass A(pydantic.BaseModel):\n{CALL}\nmetric = A()",
    "call of a dict": f"class A(dict):\n{CALL}\nmetric = A()",
    "call of a named tuple": (
        f"import collections\nclass A(collections.namedtuple('B', 'x')):\n{CALL}\nmetric = A(0)"
    ),
    "name of an argument": "def metric(e, p, limitN=0):\n    return 1.0",
}
"""Sources of metrics. Two metrics with different numbers in place of N must have different digests."""


def fitted(labels):
    """Return a classifier whose digest must depend on the labels that it was fitted to."""
    return LogisticRegression().fit([[0.0], [1.0]], labels)


def two_metrics(source):
    return [metric_in(source.replace("N", number)) for number in "12"]


DIFFERENT = {name: two_metrics(source) for name, source in SOURCES.items()} | {
    "pattern": (re.compile("a"), re.compile("b")),
    "answer key": (Weighted(1, answer_key="a"), Weighted(1, answer_key="b")),
    "model in an attribute": (Weighted(1, lm=dspy.LM("openai/a")), Weighted(1, lm=dspy.LM("openai/b"))),
    "value of a partial": tuple(functools.partial(plain, trace=threshold) for threshold in (0.5, 0.6)),
    "shape of an array": (np.zeros((2, 3)), np.zeros((3, 2))),
    "two texts and one text with a separator": (["a", "b"], ["a', 'b"]),
    "number and text": ([1], ["1"]),
    "bool and number": ([True], [1]),
    "settings of a retriever": tuple(dspy.retrievers.Embeddings(["a"], embed, k=k) for k in (1, 2)),
    "corpus of a retriever": tuple(dspy.retrievers.Embeddings([text], embed) for text in "ab"),
    "instructions of a judge": (Judge(), Judge("Judge harshly.")),
    "attribute of a judge named key": (Judge(key="a"), Judge(key="b")),
    "decorator": (plain, reversed_(plain)),
    "attribute of a callable with the name of a function": (Decorated(1), Decorated(2)),
    "signature": (dspy.Signature("a -> b"), dspy.Signature("a -> c")),
    "type of a field": (dspy.Signature("a -> b: int"), dspy.Signature("a -> b: Literal['x', 'y']")),
    "adapter": (dspy.ChatAdapter(), dspy.ChatAdapter(use_json_adapter_fallback=False)),
    "enum": (Color.RED, Color.BLUE),
    "model with sets": (Tags(tags={"a"}), Tags(tags={"b"})),
    "fitted model of a library": (fitted([0, 1]), fitted([1, 0])),
    "calibration": tuple(
        Calibration(("a", "b"), offsets, (0.5, 0.5)) for offsets in [(0.0, 1.0), (1.0, 0.0)]
    ),
    "function of a metric over a set": (ConfusionMetric(np.trace), ConfusionMetric(np.sum)),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_different_values_have_different_digests(one, other):
    assert digest(one) == digest(one)
    assert digest(one) != digest(other)


class Unreadable:
    def __repr__(self):
        raise RuntimeError("no")

    def __iter__(self):
        raise NotImplementedError


class Locked:
    def __init__(self):
        self.lock = threading.Lock()
        self.event = threading.Event()
        self.limit = 1
        self.queue = queue.Queue()
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.steps = (i for i in range(3))


def used(thing):
    thing.lock.acquire()
    thing.event.set()
    thing.queue.put(1)
    thing.pool.submit(int).result()
    next(thing.steps)
    return thing


def retriever():
    embeddings = dspy.retrievers.Embeddings(["a", "b"], embed)
    embeddings.search_fn.input_queue.unfinished_tasks = int(1000 * NOISE.random())
    return embeddings


def client():
    openai_client = openai.OpenAI(api_key="sk")
    # The client caches `chat` as an attribute, which must not change the digest.
    assert next(TURNS) % 2 == 0 or openai_client.chat
    return openai_client


def cyclic():
    tree = {"children": []}
    tree["children"].append({"parent": tree})
    return tree


SAME = {
    "private state": lambda: Weighted(1),
    "objects without a repr": lambda: dspy.Example(a=object()),
    "unreadable attributes": lambda: Weighted(
        1, session=Unreadable(), huge=10**5000, log=logging.getLogger("x")
    ),
    "value that contains itself": cyclic,
    "locks, queues and threads": lambda: used(Locked()) if next(TURNS) % 2 else Locked(),
    "retriever": retriever,
    "client of a library": client,
    "order of a dict": lambda: dict(sorted({"a": 1, "b": 2}.items(), key=lambda item: NOISE.random())),
    "attribute of a library's module": lambda: metric_in(
        "import string\ndef metric(e, p):\n    return string.stray", **stray()
    ),
}


def stray():
    string.stray = NOISE.random()
    return {}


def test_comments_and_blank_lines_do_not_change_the_digest():
    text = "def metric(e, p):\n    # COMMENT\n\n    return 1.0"
    assert digest(metric_in(text)) == digest(
        metric_in(text.replace("COMMENT", "Another.").replace("\n\n", "\n"))
    )


def test_other_code_on_the_line_of_a_lambda_does_not_change_the_digest():
    one, other = (
        metric_in(f"metric = dict(f=lambda e, p: 1.0, budget={budget})['f']") for budget in (1, 2)
    )
    assert digest(one) == digest(other)


def test_a_warning_names_a_function_without_source_code(caplog):
    namespace = {}
    exec("def sourceless(e, p):\n    return 1.0", namespace)
    assert digest(namespace["sourceless"]) != digest(plain)
    assert [record.message for record in caplog.records] == [
        "sourceless has no readable source code, so a resumed run cannot detect changes to it: define it in a file"
    ]


def test_editing_the_file_during_a_run_does_not_change_the_digest(tmp_path):
    file = tmp_path / "app.py"
    file.write_text("def metric(e, p):\n    return 1.0")
    namespace = {"__name__": "users"}
    exec(compile(file.read_text(), file, "exec"), namespace)
    before = digest(namespace["metric"])
    file.write_text("def metric(e, p):\n    return 0.5  # better")
    assert digest(namespace["metric"]) == before


@pytest.mark.parametrize("make", SAME.values(), ids=SAME.keys())
def test_equal_values_have_equal_digests(make):
    assert digest(make()) == digest(make())


def facts(metric, program=None, model="openai/a"):
    program = program or dspy.Predict("question -> answer")
    return describe(program, metric, [dspy.LM(model, api_key="sk-secret")], dspy.ChatAdapter())


def changed(before, after):
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def program_with(demos=(), instructions="Answer.", limit=1):
    program = dspy.ChainOfThought(dspy.Signature("question -> answer", instructions))
    program.predict.demos = list(demos)
    program.limit = limit
    return program


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"demos": [dspy.Example(question="a", answer="b")]}, {"program.predict"}),
        ({"instructions": "Answer well."}, {"program.predict"}),
        ({"limit": 2}, {"program"}),
    ],
)
def test_changed_parts_of_a_program_are_named(change, names):
    assert changed(facts(plain, program_with()), facts(plain, program_with(**change))) == names


class Prefixing(dspy.Predict):
    def __init__(self, prefix):
        super().__init__("question -> answer")
        self.prefix = prefix


class Remembering(dspy.Module):
    def __init__(self, style, cache=()):
        super().__init__()
        self._style = style
        self._cache = dict(cache)


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        (Remembering("brief"), Remembering("long"), {"program"}),
        (Remembering(Weighted(1)), Remembering(Weighted(2)), {"program"}),
        (Remembering(np.zeros(2)), Remembering(np.ones(2)), {"program"}),
        (Remembering("brief"), Remembering("brief", cache={"question": "answer"}), set()),
        (Remembering(1), Remembering(2), set()),
        (Remembering(False), Remembering(True), {"program"}),
        (Remembering(random.Random()), Remembering(random.Random()), set()),
        (Prefixing("a"), Prefixing("b"), {"program"}),
        (Prefixing("a"), Prefixing("a"), set()),
    ],
)
def test_changed_attributes_of_modules_are_named(one, other, names):
    """Private containers, numbers and random states may change with each call, so they are ignored."""
    assert changed(facts(plain, one), facts(plain, other)) == names


def test_changes_of_the_metric_or_the_model_are_named():
    before = facts(Weighted(1))
    assert changed(before, facts(Weighted(1))) == set()
    assert changed(before, facts(Weighted(2))) == {"the metric"}
    assert changed(before, facts(Weighted(1), model="openai/b")) == {"the models"}
    assert changed(before, facts(plain)) == {"the metric"}
    assert changed(facts(Judge()), facts(Judge("Judge harshly."))) == {"the metric"}
    assert "sk-secret" not in repr(before)


def digests_of_values():
    def metric(example, prediction, labels={"a", "b", "c"}):  # noqa: B006
        return prediction in {"x", "y", "z"} or labels

    values = {
        "a": frozenset("abc"),
        "b": Color.RED,
        "c": object(),
        "d": re.compile("x"),
        "e": np.float32(1),
    }
    values_to_digest = [
        metric,
        functools.partial(plain, labels={"p", "q", "r"}),
        Tags(tags={"s", "t", "u"}),
    ]
    values_to_digest += [dspy.Example(values), Judge(), Weighted(1).score, reversed_(plain)]
    values_to_digest += [dspy.ReAct("a -> b", tools=[plain])]
    return list(map(digest, values_to_digest))


def test_digests_are_equal_in_a_process_with_another_hash_seed():
    code = "import test_identity; print(test_identity.digests_of_values())"
    assert printed_with_other_hashes(code) == f"{digests_of_values()}\n"


LIMIT = 1


def reads_within(example, prediction):
    return sorted([example], key=lambda part: part + LIMIT)


def reads_of_a_module(example, prediction):
    return fakes.WANTED.match(prediction)


@pytest.mark.parametrize(
    ("metric", "owner", "name"),
    [(reads_within, None, "LIMIT"), (reads_of_a_module, fakes, "WANTED")],
    ids=["nested code", "module of the user"],
)
def test_global_variables_that_a_metric_reads_change_the_digest(monkeypatch, metric, owner, name):
    before = digest(metric)
    if owner is None:
        monkeypatch.setitem(globals(), name, 2)
    else:
        monkeypatch.setattr(owner, name, re.compile("other"))
    assert digest(metric) != before


def test_a_global_variable_with_the_name_of_an_attribute_does_not_change_the_digest(monkeypatch):
    def labels(example, prediction):
        return prediction.label == example.label

    before = digest(labels)
    monkeypatch.setitem(globals(), "label", "something else")
    assert digest(labels) == before
