"""What is visible before any call, and would cost all of them: tools that fail, and answers that no output can be."""

import contextlib
import enum
import math
from typing import Literal, Optional

import dspy
import fakes
import pytest
from fakes import engine_for, exact_match, questions, using

from plr_dspy import BatchCalibration, PLFewShot, PLReorder, evaluate_programs, order_sensitivity

EXAMPLES = questions(60)


async def search(query: str) -> str:
    """Look something up."""
    return "found"


def look_up(query: str) -> str:
    """Look something up."""
    return "found"


class Searching:
    """A tool that is an object."""

    __name__ = "searching"

    async def __call__(self, query: str) -> str:
        return "found"


def agent(tool, kind=dspy.ReAct):
    return kind("question -> answer", tools=[dspy.Tool(tool, name="search")], max_iters=1)


def wrapped(program):
    return fakes.Program(lambda self, question: self.inner(question=question), inner=program)


RUNS = {
    "PLReorder": lambda program, examples: PLReorder(exact_match, max_errors=1).compile(program, trainset=examples),
    "PLFewShot": lambda program, examples: PLFewShot(exact_match, max_errors=1).compile(program, trainset=examples),
    "evaluate_programs": lambda program, examples: evaluate_programs({"a": program}, exact_match, examples),
    "order_sensitivity": lambda program, examples: order_sensitivity(program, exact_match, examples, max_errors=1),
}


def warned(caplog, run, program, examples):
    """The warnings before the first call."""
    for predictor in program.predictors():
        predictor.demos = predictor.demos or [dspy.Example(question=f"demo {i}", answer="a") for i in range(4)]
    engine = engine_for(EXAMPLES, at=dict.fromkeys(range(20), fakes.interrupt))
    with using(engine), contextlib.suppress(KeyboardInterrupt):
        RUNS[run](program, examples)
    return caplog.messages


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("make", "fails"),
    [
        (lambda: agent(search), True),
        (lambda: wrapped(agent(search)), True),
        (lambda: agent(Searching()), True),
        (lambda: agent(look_up), False),
        (lambda: dspy.syncify(agent(search)), False),
        (lambda: dspy.syncify(agent(search), in_place=False), False),
    ],
)
def test_async_tools_of_an_agent_that_cannot_await_them(caplog, run, make, fails):
    messages = warned(caplog, run, make(), EXAMPLES[:20])
    told = [text for text in messages if "async tools ['search']" in text]
    assert bool(told) == fails
    assert not [text for text in messages if "discouraged" in text]
    assert all("allow_tool_async_sync_conversion=True" in text and "dspy.syncify" in text for text in told)


def test_async_tools_that_dspy_runs_are_not_told(caplog):
    with dspy.context(allow_tool_async_sync_conversion=True):
        messages = warned(caplog, "PLReorder", agent(search), EXAMPLES[:20])
    assert not [text for text in messages if "async tools" in text]


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


LABEL = Literal["yes", "no"]
MISSING = object()
# Of an output's type: what some examples hold instead of the value that is right, and how that is said.
STRANGE = [
    (LABEL, "yes", math.nan, "none of the labels ['yes', 'no'] at 'answer' (one has nan)"),
    (LABEL, "yes", None, "none of the labels ['yes', 'no'] at 'answer'"),
    (LABEL, "yes", MISSING, "none of the labels ['yes', 'no'] at 'answer'"),
    (LABEL, "yes", "Yes", "(one has 'Yes')"),
    (Literal["1", "2"], "1", 1, "none of the labels ['1', '2'] at 'answer' (one has 1)"),
    (Literal[1, 2], 1, "1", "none of the labels [1, 2] at 'answer' (one has '1')"),
    (bool, True, "True", "none of the labels [True, False] at 'answer' (one has 'True')"),
    (bool, True, "yes", "(one has 'yes')"),
    (Mood, Mood.GOOD, "fine", "none of the labels ['good', 'bad'] at 'answer' (one has 'fine')"),
    (int, 42, "forty-two", "no int at 'answer' (one has 'forty-two')"),
    (int, 42, None, "no int at 'answer'"),
    (float, 0.5, math.nan, "no float at 'answer' (one has nan)"),
    (str, "text", math.nan, "no str at 'answer' (one has nan)"),
    (str, "text", 42, "no str at 'answer' (one has 42)"),
    (str, "text", None, "no str at 'answer'"),
]
FITTING = [
    (Mood, Mood.GOOD, "good"),
    (Optional[LABEL], "yes", None),  # noqa: UP045
    (Optional[int], 3, None),  # noqa: UP045
    (str, "text", ["text", "or this"]),
    (float, 0.5, 1),
    (bool, True, False),
    (list[str], ["a"], "b"),
]


def program_of(kind):
    return dspy.Predict(dspy.Signature("question -> answer").with_updated_fields("answer", type_=kind))


def rows(value, other, every=3):
    """Examples with a value, and each so many with another one."""
    examples = []
    for i in range(60):
        held = {"answer": other if i % every == 0 else value}
        if held["answer"] is MISSING:
            held = {}
        examples.append(dspy.Example(question=f"question {i}", **held).with_inputs("question"))
    return examples


@pytest.mark.parametrize("run", ["PLReorder", "evaluate_programs"])
@pytest.mark.parametrize(("kind", "value", "other", "said"), STRANGE)
def test_answers_that_no_output_can_be(caplog, run, kind, value, other, said):
    messages = warned(caplog, run, program_of(kind), rows(value, other))
    (told,) = [text for text in messages if "at 'answer'" in text]
    name = "devset" if run == "evaluate_programs" else "trainset"
    assert told.startswith(f"{name}: 20 of 60 examples have {said.split('(')[0]}" if said[0] != "(" else name)
    assert said in told


@pytest.mark.parametrize(("kind", "value", "other"), FITTING)
def test_answers_that_outputs_can_be_are_not_told(caplog, kind, value, other):
    messages = warned(caplog, "PLReorder", program_of(kind), rows(value, other))
    assert not [text for text in messages if "at 'answer'" in text]


def test_outputs_that_no_example_has_are_not_told(caplog):
    examples = [dspy.Example(question=f"q {i}").with_inputs("question") for i in range(40)]
    assert not [text for text in warned(caplog, "PLReorder", program_of(LABEL), examples) if "at 'answer'" in text]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("other", [math.nan, None, 1])
def test_where_no_answer_can_be_right_it_is_an_error_before_any_call(run, other):
    program = program_of(LABEL)
    program.demos = [dspy.Example(question=f"demo {i}", answer="yes") for i in range(4)]
    told = r"60 of 60 examples have none of the labels.*Give each example one"
    with using(engine_for(EXAMPLES)) as engine, pytest.raises(ValueError, match=told):
        RUNS[run](program, rows(other, other))
    assert not engine.num_calls


def test_calibration_says_which_labels_it_cannot_use(caplog):
    with using(engine_for(EXAMPLES)), pytest.raises(Exception, match=r"."):
        BatchCalibration().compile(program_of(LABEL), trainset=rows(math.nan, math.nan))
    assert "60 of 60 examples have none of the labels ['yes', 'no'] at 'answer' (one has nan)" in caplog.text
