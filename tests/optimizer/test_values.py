"""Values of any type in demos, metrics and logs, before and after a resume."""

import dataclasses
import enum
import math
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import dspy
import fakes
import numpy as np
import pandas as pd
import pydantic
import pytest
from typing_extensions import TypedDict, is_typeddict

from plr_dspy import PLFewShot, PLReorder


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    name: str
    founded: date = date(1900, 1, 1)
    moods: dict[Mood, int] = {}


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    tags: tuple[str, ...] = ()


class Pair(NamedTuple):
    first: int
    second: str


class Row(TypedDict):
    name: str
    size: int


VALUES: dict[str, tuple[Any, Any]] = {
    "str": (str, "a text"),
    "int": (int, 7),
    "large int": (int, 12345678901234567890136),
    "larger int": (int, -(10**400)),
    "float": (float, 0.1),
    "whole float": (float, 2.0),
    "large float": (float, 1e300),
    "negative zero": (float, -0.0),
    "nan": (float, math.nan),
    "infinity": (float, -math.inf),
    "bool": (bool, True),
    "None": (str | None, None),
    "optional": (int | None, 3),
    "bytes": (bytes, b"some bytes"),
    "tuple": (tuple[int, str], (1, "one")),
    "set": (set[str], {"Anna"}),
    "frozenset": (frozenset[int], frozenset({1, 2})),
    "list": (list[float], [1.0, math.inf, -2.5]),
    "dict": (dict[str, list[int]], {"b": [1], "a": []}),
    "dict with other keys": (dict[int, str], {2: "two", 1: "one"}),
    "dict with the key of a tag": (dict[str, str], {"$type": "tuple", "of": "x"}),
    "date": (date, date(2024, 2, 29)),
    "time": (time, time(12, 30, fold=1)),
    "datetime": (datetime, datetime(2024, 1, 1, 12, 0, 0, 5)),
    "datetime in UTC": (datetime, datetime(2024, 1, 1, tzinfo=timezone.utc)),
    "datetime of pydantic": (
        datetime,
        pydantic.TypeAdapter(datetime).validate_json('"2024-01-01T00:00:00+02:00"'),
    ),
    "datetime in a zone": (datetime, datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("UTC"))),
    "timedelta": (timedelta, timedelta(days=-1, seconds=3, microseconds=7)),
    "decimal": (Decimal, Decimal("1.10")),
    "uuid": (uuid.UUID, uuid.UUID(int=5)),
    "path": (Path, Path("/a/b")),
    "enum": (Mood, Mood.BAD),
    "flag": (Access, Access.WRITE),
    "literal": (Literal["a", 1], 1),
    "optional enum": (Mood | None, Mood.GOOD),
    "pydantic model": (City, City(name="Rom", founded=date(1, 4, 21), moods={Mood.GOOD: 2}, extra=(1, 2))),
    "list of pydantic models": (
        list[City],
        [City(name="Rom"), City.model_construct(name="Ulm", founded="once")],
    ),
    "dataclass": (Point, Point(1.5, ("a", "b"))),
    "named tuple": (Pair, Pair(1, "one")),
    "TypedDict": (Row, {"name": "x", "size": 10**30}),
    "image": (dspy.Image, dspy.Image(url="https://example.org/x.png")),
    "history": (dspy.History, dspy.History(messages=[{"given": "x", "answer": "y"}])),
    "several in one": (Any, {"a": [(1, {2, 3}), b"x", Decimal("1")], 5: frozenset()}),
}


SHARED = [
    [
        *("str", "int", "large int", "larger int", "float", "whole float", "large float"),
        *("negative zero", "nan", "infinity", "optional", "decimal"),
    ],
    [
        *("bytes", "tuple", "set", "frozenset", "list", "dict", "dict with other keys"),
        *("dict with the key of a tag", "uuid", "path"),
    ],
    [
        *("date", "time", "datetime", "datetime in UTC", "datetime of pydantic", "datetime in a zone"),
        "timedelta",
    ],
    ["dataclass", "named tuple", "TypedDict"],
]
"""Names of values that can be separate fields of one program, because they do not affect each other.

Each other value needs its own program. For example, a single output that is an enum has labels.
"""
ALONE = [[name] for name in VALUES if not any(name in names for names in SHARED)]


class Said(dspy.ChatAdapter):
    """An adapter that parses the same answers from every reply."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(use_json_adapter_fallback=False)
        self.answers = answers

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        return self.answers


def asking(kinds: dict[str, Any]) -> dspy.Predict:
    """Return a program with an input and an output of each type. The keys of `kinds` name the outputs."""
    fields: dict[str, Any] = {"given": (str, dspy.InputField())}
    for name, kind in kinds.items():
        # DSPy does not accept a TypedDict as an input.
        fields[f"of_{name}"] = (dict if is_typeddict(kind) else kind, dspy.InputField())
    for name, kind in kinds.items():
        fields[name] = (kind, dspy.OutputField())
    return dspy.Predict(dspy.Signature(fields, "Answer."))


def examples(values: dict[str, Any], count: int = 12) -> list[dspy.Example]:
    """Return `count` examples with `values` as inputs and labels."""
    inputs = {f"of_{name}": value for name, value in values.items()}
    rows = []
    for i in range(count):
        example = dspy.Example(given=f"question {i}", **inputs, gold=list(values.values()))
        rows.append(example.with_inputs("given", *inputs))
    return rows


def shown(program: dspy.Predict, demos: list[Any]) -> list[str]:
    """Return each demo as a prompt shows it."""
    return [repr(dspy.settings.adapter.format_demos(program.signature, [demo])) for demo in demos]


def right(example: Any, prediction: Any, trace: Any = None) -> bool:
    return True


def bootstrapped(kinds: dict[str, Any], given: dict[str, Any], **options: Any) -> tuple[list[str], Any]:
    """Return two bootstrapped demos as a prompt shows them, and the report."""
    limits = {"max_metric_calls": 27, "min_demos": 2, "max_demos": 2, "max_bootstrapped": 3}
    plain = {"candidates": "bootstrapped", "display_progress": False, "num_threads": 1}
    optimizer = PLFewShot(right, **{**plain, **limits, **options})
    optimizer.compile(asking(kinds), trainset=examples(given))
    demos = optimizer.program_with(2).demos
    return shown(asking(kinds), demos), optimizer.report


@pytest.mark.parametrize("names", [*SHARED, *ALONE], ids=", ".join)
def test_bootstrapped_demos_look_like_those_of_dspy_before_and_after_a_resume(names, tmp_path):
    outputs = {name: f"answer_{number}" for number, name in enumerate(names)}
    kinds = {output: VALUES[name][0] for name, output in outputs.items()}
    values = {output: VALUES[name][1] for name, output in outputs.items()}
    engine = fakes.engine_for([])
    with fakes.using(engine), dspy.context(adapter=Said(**values)):
        options = {"metric": right, "max_bootstrapped_demos": 12, "max_labeled_demos": 0}
        optimizer = dspy.BootstrapFewShot(**options)
        of_dspy = optimizer.compile(asking(kinds), trainset=examples(values))
        expected = shown(of_dspy, of_dspy.demos)
        assert len(set(expected)) == 12
        fresh, _ = bootstrapped(kinds, values, log_dir=tmp_path)
        num_calls = engine.num_calls
        resumed, report = bootstrapped(kinds, values, log_dir=tmp_path)
    assert fresh == resumed
    assert set(fresh) <= set(expected)
    assert report.program_calls["resumed"] == report.program_calls["total"]
    assert engine.num_calls == num_calls


class Own:
    """A class whose objects DSPy shows as text."""

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f"<{self.name}>"


class Secret(pydantic.BaseModel):
    """A class that appears in no signature."""

    name: str


OTHERS = {
    "own class": Own("x"),
    "class of no signature": Secret(name="x"),
    "nested": [{"a": (Own("x"),)}],
    "array": np.array([[1.5, 2.0]]),
    "number of numpy": np.float64(1.5),
    "lone surrogate": {"\ud83d": ["\ud83d"]},
}


@pytest.mark.parametrize("answer", OTHERS.values(), ids=OTHERS)
def test_answers_of_any_class_are_logged(answer, tmp_path):
    engine = fakes.engine_for([])
    arguments = ({"answer": Any}, {"answer": "x"})
    with fakes.using(engine), dspy.context(adapter=Said(answer=answer)):
        fresh, _ = bootstrapped(*arguments, log_dir=tmp_path)
        resumed, report = bootstrapped(*arguments, log_dir=tmp_path)
    assert fresh == resumed
    assert report.program_calls["resumed"] == report.program_calls["total"] == engine.num_calls


class Stars(enum.Enum):
    ONE = 1
    TWO = 2


class Color(enum.Enum):
    RED = (255, 0, 0)
    BLUE = (0, 0, 255)


LABELS: dict[str, tuple[Any, Any]] = {
    "enum of tuples": (Color, Color.BLUE),
    "enum": (Mood, Mood.BAD),
    "enum of numbers": (Stars, Stars.TWO),
    "optional enum": (Mood | None, Mood.BAD),
    "bool": (bool, True),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_of_bootstrapped_demos_have_the_type_of_the_field(name, tmp_path):
    kind, label = LABELS[name]
    options = {"candidates": "bootstrapped", "max_metric_calls": 27, "min_demos": 2, "max_demos": 2}
    optimizer = PLFewShot(right, log_dir=tmp_path, display_progress=False, **options)
    with fakes.using(fakes.engine_for([])), dspy.context(adapter=Said(label=label)):
        for _ in ("fresh", "resumed"):
            optimizer.compile(asking({"label": kind}), trainset=examples({"label": "x"}))
            demos = optimizer.program_with(2).demos
            assert [demo["label"] for demo in demos] == [label, label]
            assert type(demos[0]["label"]) is type(label)


UNTYPED = {
    "tuple": lambda i: (i, i + 1),
    "tuple of tuples": lambda i: ((i, 1), (2, 3)),
    "set": lambda i: {i, i + 1},
    "dict": lambda i: {1: i},
    "array": lambda i: np.array([i, 2.5]),
    "number of numpy": np.int64,
    "int": lambda i: i,
    "frame": lambda i: pd.DataFrame({"a": [i, 2]}),
    "list of texts": lambda i: [str(i), "two"],
}


@pytest.mark.parametrize("candidates", [{"demos": "auto"}, {"candidates": "bootstrapped"}], ids=str)
@pytest.mark.parametrize("make", UNTYPED.values(), ids=UNTYPED)
def test_fields_without_a_type_accept_any_value(make, candidates, tmp_path):
    """The values are inputs, labels and the program's answers."""
    trainset = []
    for i in range(20):
        example = dspy.Example(point=make(i % 7), answer=make(i % 5), number=i)
        trainset.append(example.with_inputs("point", "number"))
    options = {"max_demos": 2, "max_metric_calls": 30, "display_progress": False, "num_threads": 1}
    options |= {"log_dir": tmp_path, "max_errors": 1, **candidates}
    engine = fakes.engine_for([])
    program = dspy.Predict("point, number -> answer")
    with fakes.using(engine), dspy.context(adapter=Said(answer=make(1))):
        PLFewShot(right, **options).compile(program, trainset=trainset)
        num_calls = engine.num_calls
        assert 0 < num_calls <= 30
        optimizer = PLFewShot(right, **options)
        optimizer.compile(program, trainset=trainset)
    calls = optimizer.report.program_calls
    assert engine.num_calls == num_calls + calls["total"] - calls["resumed"]
    assert calls["resumed"] > 0.5 * calls["total"]


@pytest.mark.parametrize("name", ["answer", "augmented", "base", "reasoning"])
@pytest.mark.parametrize("is_input", [True, False])
def test_outputs_with_any_name_become_demos(name, is_input):
    """The output may have the name of an input, or of an argument of `dspy.Example`."""
    inputs = ["question", name] if is_input else ["question"]
    rows = []
    for i in range(20):
        example = dspy.Example({"question": f"question {i}", name: "old"})
        rows.append(example.with_inputs(*inputs))
    optimizer = PLFewShot(
        lambda example, prediction: prediction[name] == "new",
        candidates="bootstrapped",
        max_metric_calls=30,
        max_demos=2,
        min_demos=2,
        max_bootstrapped=3,
        display_progress=False,
    )

    class Named(dspy.ChatAdapter):
        def parse(self, signature, completion):
            return {name: "new"}

    with fakes.using(fakes.engine_for([])), dspy.context(adapter=Named()):
        optimizer.compile(dspy.Predict(f"question -> {name}"), trainset=rows)
    assert {demo[name] for demo in optimizer.program_with(2).demos} == {"new"}


def calls_of_compiles_of_sets(folder):
    """Return the number of calls in two compiles that log to `folder`, on examples with sets."""
    names = ["amber", "birch", "cedar", "daisy", "elder"]
    rows = []
    for number in range(40):
        tags = {*names[: 2 + number % 4], f"row {number}"}
        rows.append(dspy.Example(tags=tags, answer=frozenset(tags)).with_inputs("tags"))
    fields = {"tags": (set[str], dspy.InputField()), "answer": (frozenset[str], dspy.OutputField())}
    program = dspy.Predict(dspy.Signature(fields, "Answer."))
    engine = fakes.engine_for([])
    options = {"max_metric_calls": 40, "num_threads": 1, "display_progress": False}
    with fakes.using(engine), dspy.context(adapter=Said(answer=frozenset("a"))):
        PLFewShot(right, max_demos=3, log_dir=f"{folder}/few", **options).compile(program, trainset=rows)
        program.demos = rows[:4]
        PLReorder(right, log_dir=f"{folder}/order", **options).compile(program, trainset=rows)
    return engine.num_calls


def test_logged_sets_are_recognized_in_a_process_with_other_hashes(tmp_path):
    assert calls_of_compiles_of_sets(tmp_path) >= 40
    code = "import sys, test_values; print(test_values.calls_of_compiles_of_sets(sys.argv[1]))"
    assert fakes.printed_with_other_hashes(code, str(tmp_path)).splitlines()[-1] == "0"
