"""Programs and metrics that modify their inputs: the user's examples and other calls' inputs stay unchanged."""

import sqlite3
import threading
from dataclasses import dataclass, field

import dspy
import numpy as np
import pydantic
import pytest
from every_function import QUIET, RUNS
from fakes import Program, using
from label_engines import exact
from label_world import DEMOS, EXAMPLES, Engine, student

from plr_dspy import F1, PLFewShot, PLReorder, evaluate_programs
from plr_dspy.baselines import PerInputOrder


class Notebook:
    def __init__(self):
        self.lines = ["one"]

    def __repr__(self):
        return f"Notebook({self.lines})"


class Slotted:
    __slots__ = ("lines",)

    def __init__(self):
        self.lines = ["one"]

    def __repr__(self):
        return f"Slotted({self.lines})"


class Record(pydantic.BaseModel):
    lines: list[str]


@dataclass
class Note:
    lines: list[str] = field(default_factory=lambda: ["one"])


class Row(dspy.Example):
    """A user's subclass of `dspy.Example`."""


def add(memory):
    memory.lines.append("two")


MEMORIES = {
    "dict": (lambda: {"first": "one"}, lambda memory: memory.update(second="two")),
    "list": (lambda: ["one"], lambda memory: memory.append("two")),
    "set": (lambda: {"one"}, lambda memory: memory.add("two")),
    "bytearray": (lambda: bytearray(b"one"), lambda memory: memory.extend(b"two")),
    "array": (lambda: np.zeros(2), lambda memory: memory.fill(1.0)),
    "history": (
        lambda: dspy.History(messages=[{"text": "one", "label": "negative"}]),
        lambda memory: memory.messages.append({"text": "two", "label": "positive"}),
    ),
    "pydantic model": (lambda: Record(lines=["one"]), add),
    "dataclass": (Note, add),
    "own class": (Notebook, add),
    "own class with slots": (Slotted, add),
    "example": (lambda: dspy.Example(lines=["one"]), add),
    "nested in a list": (lambda: [[{"deep": Notebook()}]], lambda memory: add(memory[0][0]["deep"])),
    "nested in a tuple": (lambda: (Record(lines=["one"]), "other"), lambda memory: add(memory[0])),
}


OVER_A_SET = F1("positive", field="label")


class World:
    """Examples with a memory that the program and the metric modify, and the memories in all calls."""

    def __init__(self, make, write, kind=dspy.Example):
        self.write = write
        self.seen = set()
        self.original = repr(make())
        fields = [{**dict(example), "memory": make()} for example in EXAMPLES]
        self.trainset = [kind(row).with_inputs("text", "memory") for row in fields]

    def program(self, demos=DEMOS):
        return Program(self.run, predict=student(demos=demos))

    def run(self, program, text, memory):
        self.seen.add(repr(memory))
        self.write(memory)
        return program.predict(text=text)

    def metric(self, example, prediction, trace=None):
        self.seen.add(repr(example.memory))
        self.write(example.memory)
        return exact(example, prediction)


def ask_in_orders(world):
    """Call a program of the kind that DEmO returns: it calls the model with several orders."""
    orders = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]
    kept = [{"permutations": {"predict": order}, "content_free": [0.5, 0.5]} for order in orders]
    PerInputOrder(world.program(), kept)(**world.trainset[0].inputs())


LIMIT = {"max_metric_calls": 60}
FEW_DEMOS = {"max_metric_calls": 60, "max_demos": 2}
WAYS = {
    "PLReorder": ("PLReorder", LIMIT),
    "PLReorder, score": ("PLReorder", {**LIMIT, "signal": "score"}),
    "PLReorder, calibrated": ("PLReorder, calibrated", LIMIT),
    "PLFewShot, labeled": ("PLFewShot", {**FEW_DEMOS, "candidates": "labeled"}),
    "PLFewShot, bootstrapped": ("PLFewShot", {**FEW_DEMOS, "candidates": "bootstrapped"}),
    "PLFewShot, retrieved": ("PLFewShot", {**FEW_DEMOS, "demos": "auto"}),
    "TopKOrder": ("TopKOrder", {"num_candidates": 4, "max_metric_calls": 120}),
    "headroom": ("headroom", {}),
    "evaluate_programs": ("evaluate_programs", {}),
    "BatchCalibration": ("BatchCalibration", {"num_inputs": 20}),
    "BatchCalibration, F1": ("BatchCalibration", {"num_inputs": 20, "metric": OVER_A_SET}),
}


def call(world, way, metric=None):
    name, options = WAYS[way]
    RUNS[name](world.program(), metric or world.metric, world.trainset, **options)


def check(world, call, *arguments):
    with using(Engine()):
        call(world, *arguments)
    assert {repr(example.memory) for example in world.trainset} == {world.original}
    assert world.seen == {world.original}


@pytest.mark.parametrize("way", WAYS)
def test_no_call_receives_a_memory_that_another_call_modified(way):
    check(World(*MEMORIES["history"]), call, way)


@pytest.mark.parametrize("way", ["PLReorder", "evaluate_programs"])
def test_metrics_over_a_set_do_not_share_a_memory(way):
    check(World(*MEMORIES["history"]), call, way, OVER_A_SET)


def test_a_program_that_asks_in_several_orders_shares_no_memory():
    check(World(*MEMORIES["history"]), ask_in_orders)


@pytest.mark.parametrize("memory", MEMORIES)
def test_values_of_every_type_are_copied_for_each_call(memory):
    check(World(*MEMORIES[memory]), call, "evaluate_programs")


@pytest.mark.parametrize("way", ["PLReorder", "PLFewShot, bootstrapped", "evaluate_programs"])
def test_values_in_a_subclass_of_example_are_copied_for_each_call(way):
    check(World(*MEMORIES["nested in a list"], Row), call, way)


def test_an_input_that_the_program_modifies_is_still_excluded_from_its_demos():
    """The program modifies its input before it calls its predictor."""
    world = World(*MEMORIES["history"])
    shown = []

    def run(program, text, memory):
        memory.messages.append({"text": text, "label": "positive"})
        return program.predict(text=text)

    def probabilities(demos, text):
        shown.append(text in demos)
        return [0.5, 0.5]

    optimizer = PLFewShot(
        exact, demos="retrieved", max_metric_calls=60, max_demos=2, signal="score", **QUIET
    )
    with using(Engine(probabilities=probabilities)):
        optimizer.compile(Program(run, predict=student(demos=())), trainset=world.trainset)
    assert shown
    assert not any(shown)


class Unshared:
    """A class whose copies are the original object."""

    def __init__(self):
        self.lock = threading.Lock()

    def __deepcopy__(self, memo):
        return self


class Locked:
    def __init__(self):
        self.lock = threading.Lock()


REFUSED = {
    "a connection": lambda: sqlite3.connect(":memory:", check_same_thread=False),
    "a generator": lambda: (i for i in range(3)),
    "a lock in an object": Locked,
    "a lock in a list": lambda: [threading.Lock()],
}
CHECKED = ["PLReorder", "PLFewShot, labeled", "evaluate_programs", "headroom", "BatchCalibration"]


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("way", CHECKED)
def test_a_value_that_cannot_be_copied_is_rejected_before_any_call(make, way):
    world = World(*MEMORIES["list"])
    engine = Engine()
    world.trainset[7].memory = make()
    with using(engine), pytest.raises(TypeError) as error:
        call(world, way)
    dataset = "devset" if way == "evaluate_programs" else "trainset"
    kind = type(world.trainset[7].memory).__name__
    message = f"field 'memory' of {dataset}[7] cannot be copied for each call: it is a {kind}"
    assert str(error.value).startswith(message)
    assert "__deepcopy__" in str(error.value)
    assert not engine.prompts


def test_a_label_in_the_valset_that_cannot_be_copied_is_rejected_before_any_call():
    world = World(*MEMORIES["list"])
    engine = Engine()
    locked = [dspy.Example(row, notes=threading.Lock()) for row in world.trainset[:3]]
    data = {
        "trainset": world.trainset,
        "valset": [example.with_inputs("text", "memory") for example in locked],
    }
    message = r"field 'notes' of valset\[0\] cannot be copied for each call: it is a lock"
    with using(engine), pytest.raises(TypeError, match=message):
        PLReorder(exact, **QUIET).compile(world.program(), **data)
    assert not engine.prompts


def test_a_class_may_define_its_own_copies():
    world = World(*MEMORIES["list"])
    shared = Unshared()
    for example in world.trainset:
        example.memory = shared
    seen = set()

    def run(program, text, memory):
        seen.add(id(memory))
        return program.predict(text=text)

    with using(Engine()):
        evaluate_programs({"a": Program(run, predict=student())}, exact, world.trainset, **QUIET)
    assert seen == {id(shared)}


def test_the_check_of_examples_copies_a_shared_value_only_once():
    class Counted:
        copies = 0

        def __deepcopy__(self, memo):
            Counted.copies += 1
            return self

    world = World(*MEMORIES["list"])
    shared = Counted()
    for example in world.trainset:
        example.memory = shared
    with using(Engine()):
        PLReorder(exact, max_metric_calls=60, **QUIET).estimate(world.program(), trainset=world.trainset)
    assert Counted.copies == 1
