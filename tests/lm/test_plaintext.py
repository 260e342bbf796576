"""PlainTextAdapter: what it renders, what it reads, and what it refuses to guess."""

from __future__ import annotations

import asyncio
import enum
from typing import Any, Literal

import dspy
import pydantic
import pytest
from dspy import lm15
from dspy.utils.exceptions import AdapterParseError
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plr_dspy.lm.plain_text_adapter import PlainTextAdapter

SENTIMENT = dspy.Signature("review -> sentiment: Literal['negative', 'positive']")
DEMOS = [
    {"review": "a gripping film .", "sentiment": "positive"},
    {"review": "what a waste of time .", "sentiment": "negative"},
]


class Color(enum.Enum):
    RED = "red"
    BLUE = "dark blue"


class Point(pydantic.BaseModel):
    x: int
    y: int


class ScriptedEngine:
    """Answers in turn, and keeps the requests."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.requests: list[lm15.Request] = []

    def complete(self, request: lm15.Request) -> lm15.Response:
        self.requests.append(request)
        answer = {"message": {"content": self.answers.pop(0)}, "finish_reason": "stop"}
        return lm15.response_from_openai_chat({"choices": [answer]}, model=request.model)


class AsyncScriptedEngine(ScriptedEngine):
    async def complete(self, request: lm15.Request) -> lm15.Response:  # type: ignore[override]
        return super().complete(request)


def prompt(signature: Any, demos: list[Any], inputs: dict[str, Any], **kwargs: Any) -> str:
    (message,) = PlainTextAdapter(**kwargs).format(signature, demos, inputs)
    assert message["role"] == "user"
    return message["content"]


def parse(signature: Any, completion: str) -> dict[str, Any]:
    return PlainTextAdapter().parse(signature, completion)


def output(annotation: Any) -> Any:
    return dspy.Signature({"q": (str, dspy.InputField()), "a": (annotation, dspy.OutputField())})


# What is rendered


def test_the_prompt_is_the_papers_format() -> None:
    assert prompt(SENTIMENT, DEMOS, {"review": "dull ."}) == (
        "Review: a gripping film .\nSentiment: positive\n\n"
        "Review: what a waste of time .\nSentiment: negative\n\n"
        "Review: dull .\nSentiment:"
    )


def test_demos_keep_their_order_when_some_lack_a_field() -> None:
    signature = dspy.Signature("question -> reasoning, answer")
    demos = [
        {"question": "one", "reasoning": "r1", "answer": "a1"},
        {"question": "two", "answer": "a2"},
        {"question": "three", "reasoning": None, "answer": "a3"},
        dspy.Example(question="four", reasoning="r4", answer="a4", augmented=True),
    ]
    blocks = [message["content"] for message in PlainTextAdapter().format_demos(signature, demos)]
    assert blocks == [
        "Question: one\nReasoning: r1\nAnswer: a1",
        "Question: two\nAnswer: a2",
        "Question: three\nAnswer: a3",
        "Question: four\nReasoning: r4\nAnswer: a4",
    ]


@pytest.mark.parametrize(
    "demo", [{"review": "x"}, {"sentiment": "positive"}, {"review": "x", "sentiment": None}, {}]
)
def test_demos_without_any_input_or_output_are_left_out(demo: dict[str, Any]) -> None:
    assert PlainTextAdapter().format_demos(SENTIMENT, [demo]) == []


def test_several_inputs_and_outputs_come_in_signature_order() -> None:
    signature = dspy.Signature("context, user_question -> reasoning, is_true: bool")
    demo = {"is_true": True, "reasoning": "so", "user_question": "q", "context": "c"}
    assert prompt(signature, [demo], {"user_question": "Q", "context": "C"}) == (
        "Context: c\nUser Question: q\nReasoning: so\nIs True: True\n\n"
        "Context: C\nUser Question: Q\nReasoning:"
    )


def test_titles_are_the_fields_prefixes() -> None:
    signature = SENTIMENT.with_updated_fields("review", prefix="Text  from a\nviewer:")
    signature = signature.with_updated_fields("sentiment", prefix="")
    assert prompt(signature, [], {"review": "x"}) == "Text from a viewer: x\nSentiment:"


def test_instructions_are_shown_when_somebody_wrote_them() -> None:
    signature = SENTIMENT.with_instructions("Judge the film.\n\nOne word.")
    text = prompt(signature, DEMOS[:1], {"review": "x"})
    assert text.startswith("Judge the film.\n\nOne word.\n\nReview: a gripping film .")
    assert prompt(signature, DEMOS, {"review": "x"}, show_instructions=False) == (
        prompt(SENTIMENT, DEMOS, {"review": "x"})
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("one\n\ntwo\r\n \r\n\n three  ", "Review: one\ntwo\n three"),
        ("", "Review:"),
        (["a", "b"], "Review: [1] «a»\n[2] «b»"),
        (7, "Review: 7"),
    ],
)
def test_values_are_text_without_blank_lines(value: Any, shown: str) -> None:
    assert prompt(SENTIMENT, [], {"review": value}) == f"{shown}\nSentiment:"


def test_structured_values_are_rendered_as_json() -> None:
    signature = dspy.Signature(
        {
            "points": (list[Point], dspy.InputField()),
            "options": (dict[str, int], dspy.InputField()),
            "color": (Color, dspy.OutputField()),
        }
    )
    demo = {"points": [Point(x=1, y=2)], "options": {"é": 3}, "color": Color.BLUE}
    block = PlainTextAdapter().format_demos(signature, [demo])[0]["content"]
    assert block == 'Points: [{"x": 1, "y": 2}]\nOptions: {"é": 3}\nColor: dark blue'


def test_none_is_a_value_where_the_type_allows_it_and_no_line_elsewhere() -> None:
    signature = dspy.Signature("a: Optional[str], b -> c: Optional[int]")
    blocks = PlainTextAdapter().format_demos(
        signature, [{"a": None, "b": None, "c": None}, {"b": "x", "c": 1}]
    )
    assert [block["content"] for block in blocks] == ["A: None\nC: None", "B: x\nC: 1"]
    assert parse(signature, " None") == {"c": None}


@pytest.mark.parametrize(
    "annotation", [dspy.Image, dspy.History, list[dspy.Image], dspy.Image | None, dspy.Tool]
)
def test_types_that_are_not_text_are_refused_by_name(annotation: Any) -> None:
    signature = dspy.Signature({"evidence": (annotation, dspy.InputField()), "a": (str, dspy.OutputField())})
    with pytest.raises(ValueError, match=r"'evidence'.*use another adapter"):
        PlainTextAdapter().format(signature, [], {"evidence": None})
    with pytest.raises(ValueError, match="'evidence'"):
        PlainTextAdapter().format_demos(signature, [])


# What is read


@pytest.mark.parametrize(
    "completion",
    [
        " positive",
        "positive\n\nReview: next",
        " positive \nand more",
        "POSITIVE",
        " Sentiment: positive",
        "\nSentiment: positive",
    ],
)
def test_a_label_is_the_first_line(completion: str) -> None:
    assert parse(SENTIMENT, completion) == {"sentiment": "positive"}


@pytest.mark.parametrize(
    "completion",
    [
        " positively",
        "positive.",
        "very positive",
        "pos",
        "\npositive",
        " ",
        "'positive'",
        "positive negative",
        "sentiment: positive",
    ],
)
def test_a_label_is_never_guessed(completion: str) -> None:
    with pytest.raises(AdapterParseError):
        parse(SENTIMENT, completion)


def test_another_case_is_read_only_where_it_is_unambiguous() -> None:
    signature = output(Literal["US", "us", "Uk"])
    assert parse(signature, "us") == {"a": "us"}
    assert parse(signature, "UK") == {"a": "Uk"}
    with pytest.raises(AdapterParseError, match="'Us'"):
        parse(signature, "Us")


@pytest.mark.parametrize(
    ("annotation", "completion", "value"),
    [
        (bool, " True", True),
        (bool, "false", False),
        (int, " -12 ", -12),
        (float, "1e3", 1000.0),
        (Color, " dark blue", Color.BLUE),
        (Color, "Red", Color.RED),
        (Literal[1, 2], "2", 2),
        (Literal["x", "y"] | None, "y", "y"),
        (Literal["x", "y"] | None, "None", None),
        (int | None, "3", 3),
        (str | None, "text", "text"),
        (str, " one\n two\n\nQ: next", "one\n two"),
        (str, " None", "None"),
        (list[str], ' ["a", "b"]', ["a", "b"]),
        (Point, '{"x": 1,\n"y": 2}', Point(x=1, y=2)),
        (int | str, "4", 4),
        (int | str, "four", "four"),
        (dspy.Reasoning, " because", dspy.Reasoning(content="because")),
    ],
)
def test_typed_answers(annotation: Any, completion: str, value: Any) -> None:
    assert parse(output(annotation), completion) == {"a": value}


@pytest.mark.parametrize(
    ("annotation", "completion"),
    [
        (bool, "yes"),
        (bool, "1"),
        (int, "12.5"),
        (int, "12 apples"),
        (float, "nan"),
        (float, "inf"),
        (Color, "blue"),
        (Color, "BLUE"),
        (list[str], "a, b"),
        (Point, '{"x": 1}'),
        (str, " \n\nlate"),
        (int | None, "none of them"),
    ],
)
def test_answers_of_another_type_are_errors(annotation: Any, completion: str) -> None:
    with pytest.raises(AdapterParseError):
        parse(output(annotation), completion)


def test_several_outputs_are_split_at_their_titles() -> None:
    signature = dspy.Signature("question -> reasoning, answer_kind: Literal['a', 'b'], note")
    completion = " first\nAnswer Kind is not at a title\nAnswer Kind: b\nNote: x: y\nz\n\nQuestion: next"
    assert parse(signature, completion) == {
        "reasoning": "first\nAnswer Kind is not at a title",
        "answer_kind": "b",
        "note": "x: y\nz",
    }
    assert parse(signature, "Reasoning: r\nNote: n\nAnswer Kind: a")["answer_kind"] == "a"


@pytest.mark.parametrize(
    ("completion", "message"),
    [
        (" only the reasoning", "No value for answer"),
        ("Answer: 4", "No value for reasoning"),
        (" r\nAnswer:", "No value for answer"),
        (" r\n\nAnswer: 4", "No value for answer"),
        (" r\nAnswer: 4\nAnswer: 5", "more than once"),
    ],
)
def test_missing_and_repeated_outputs_are_errors(completion: str, message: str) -> None:
    with pytest.raises(AdapterParseError, match=message):
        parse(dspy.Signature("question -> reasoning, answer: int"), completion)


# Through an LM


@pytest.mark.parametrize(
    ("signature", "stop"),
    [
        ("q -> a: Literal['x', 'y']", ("\n",)),
        ("q -> a: bool", ("\n",)),
        ("q -> a: Optional[int]", ("\n",)),
        ("q -> a", ("\n\n",)),
        ("q -> a: list[str]", ("\n\n",)),
        ("q -> a: bool, b: bool", ("\n\n",)),
    ],
)
def test_generation_stops_where_the_answer_ends(signature: str, stop: tuple[str, ...]) -> None:
    engine = ScriptedEngine("?")
    with dspy.context(lm=dspy.LM("scripted", engine=engine, cache=False), adapter=PlainTextAdapter()):
        try:
            dspy.Predict(signature)(q="x")
        except AdapterParseError:
            assert signature != "q -> a"
    assert engine.requests[0].config.stop == stop


def test_the_callers_stop_wins() -> None:
    engine = ScriptedEngine("x", "x")
    predict = dspy.Predict("q -> a")
    with dspy.context(adapter=PlainTextAdapter()):
        predict(q="x", config={"stop": ["END"]}, lm=dspy.LM("scripted", engine=engine, cache=False))
        predict(q="x", lm=dspy.LM("scripted", engine=engine, cache=False, stop=["LM"]))
    assert [request.config.stop for request in engine.requests] == [("END",), ("LM",)]
    assert predict.config == {}


async def ask(lm: dspy.LM) -> str:
    with dspy.context(lm=lm, adapter=PlainTextAdapter()):
        return (await dspy.Predict(SENTIMENT).acall(review="x")).sentiment


def test_async_calls() -> None:
    engine = AsyncScriptedEngine(" positive")
    lm = dspy.LM("scripted", engine=ScriptedEngine(), async_engine=engine, cache=False)
    assert asyncio.run(ask(lm)) == "positive"
    assert engine.requests[0].config.stop == ("\n",)


def test_an_unparsable_answer_is_asked_for_once() -> None:
    engine = ScriptedEngine(" maybe", "unused")
    with (
        dspy.context(lm=dspy.LM("scripted", engine=engine, cache=False), adapter=PlainTextAdapter()),
        pytest.raises(AdapterParseError),
    ):
        dspy.Predict(SENTIMENT)(review="x")
    assert len(engine.requests) == 1


# Any text


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(), st.sampled_from(["negative", "positive"])), max_size=5), st.text())
def test_every_demo_is_in_the_prompt_in_order(pairs: list[tuple[str, str]], text: str) -> None:
    demos = [{"review": review, "sentiment": label} for review, label in pairs]
    rendered = prompt(SENTIMENT, demos, {"review": text})
    position = 0
    for (_, label), message in zip(pairs, PlainTextAdapter().format_demos(SENTIMENT, demos), strict=True):
        block = message["content"]
        assert "\n\n" not in block
        position = rendered.index(block + "\n\n", position) + len(block)
        assert parse(SENTIMENT, block.rpartition("Sentiment:")[2]) == {"sentiment": label}
    assert rendered.count("\n\n") == len(demos)
    assert rendered.endswith("Sentiment:")


@settings(deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=4, unique_by=str.strip), st.data())
def test_any_label_parses_back(labels: list[str], data: st.DataObject) -> None:
    assume(all(label.strip() and label.strip() != "None" for label in labels))
    signature = output(Literal[tuple(labels)])
    label = data.draw(st.sampled_from(labels))
    block = PlainTextAdapter().format_demos(signature, [{"q": "x", "a": label}])[0]["content"]
    assume(not label.strip().startswith("A:"))
    assert parse(signature, block.partition("\nA:")[2]) == {"a": label}
