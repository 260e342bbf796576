"""`PlainTextAdapter`: prompts, parsed answers, and errors for unclear replies."""

import asyncio
import enum
from typing import Literal

import dspy
import pydantic
import pytest
from dspy.utils.exceptions import AdapterParseError
from fakes import Async, ScriptedEngine, lm_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plr_dspy import PlainTextAdapter

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


def prompt(signature, demos, inputs, **kwargs):
    (message,) = PlainTextAdapter(**kwargs).format(signature, demos, inputs)
    assert message["role"] == "user"
    return message["content"]


def blocks(signature, demos):
    return [message["content"] for message in PlainTextAdapter().format_demos(signature, demos)]


def parse(signature, completion):
    return PlainTextAdapter().parse(signature, completion)


def output(annotation):
    return dspy.Signature({"q": (str, dspy.InputField()), "a": (annotation, dspy.OutputField())})


class TestPrompt:
    def test_is_the_papers_format(self):
        assert prompt(SENTIMENT, DEMOS, {"review": "dull ."}) == (
            "Review: a gripping film .\nSentiment: positive\n\n"
            "Review: what a waste of time .\nSentiment: negative\n\n"
            "Review: dull .\nSentiment:"
        )

    def test_demos_keep_their_order_when_some_lack_a_field(self):
        demos = [
            {"question": "one", "reasoning": "r1", "answer": "a1"},
            {"question": "two", "answer": "a2"},
            {"question": "three", "reasoning": None, "answer": "a3"},
            dspy.Example(question="four", reasoning="r4", answer="a4", augmented=True),
        ]
        assert blocks(dspy.Signature("question -> reasoning, answer"), demos) == [
            "Question: one\nReasoning: r1\nAnswer: a1",
            "Question: two\nAnswer: a2",
            "Question: three\nAnswer: a3",
            "Question: four\nReasoning: r4\nAnswer: a4",
        ]

    def test_demos_and_values_that_lack_a_field(self):
        """A value of None is shown if the field's type allows None. Otherwise, the field's line is omitted."""
        demos = [{"review": "x"}, {"sentiment": "positive"}, {"review": "x", "sentiment": None}, {}]
        assert blocks(SENTIMENT, demos) == []
        signature = dspy.Signature("a: Optional[str], b -> c: Optional[int]")
        demos = [{"a": None, "b": None, "c": None}, {"b": "x", "c": 1}]
        assert blocks(signature, demos) == ["A: None\nC: None", "B: x\nC: 1"]

    def test_fields_come_in_the_signature_s_order_with_their_titles(self):
        signature = dspy.Signature("context, user_question -> reasoning, is_true: bool")
        demo = {"is_true": True, "reasoning": "so", "user_question": "q", "context": "c"}
        assert prompt(signature, [demo], {"user_question": "Q", "context": "C"}) == (
            "Context: c\nUser Question: q\nReasoning: so\nIs True: True\n\nContext: C\nUser Question: Q\nReasoning:"
        )
        signature = SENTIMENT.with_updated_fields("review", prefix="Text  from a\nviewer:")
        signature = signature.with_updated_fields("sentiment", prefix="")
        assert prompt(signature, [], {"review": "x"}) == "Text from a viewer: x\nSentiment:"

    def test_only_custom_instructions_are_shown(self):
        signature = SENTIMENT.with_instructions("Judge the film.\n\nOne word.")
        text = prompt(SENTIMENT, DEMOS, {"review": "x"})
        inputs = {"review": "x"}
        assert prompt(signature, DEMOS, inputs) == f"Judge the film.\n\nOne word.\n\n{text}"
        assert prompt(signature, DEMOS, inputs, show_instructions=False) == text

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            ("one\n\ntwo\r\n \r\n\n three  ", "Review: one\ntwo\n three"),
            ("", "Review:"),
            (["a", "b"], "Review: [1] «a»\n[2] «b»"),
            (7, "Review: 7"),
        ],
    )
    def test_values_are_text_without_blank_lines(self, value, shown):
        assert prompt(SENTIMENT, [], {"review": value}) == f"{shown}\nSentiment:"

    def test_structured_values_are_json(self):
        inputs = {
            "points": (list[Point], dspy.InputField()),
            "options": (dict[str, int], dspy.InputField()),
        }
        signature = dspy.Signature({**inputs, "color": (Color, dspy.OutputField())})
        demo = {"points": [Point(x=1, y=2)], "options": {"é": 3}, "color": Color.BLUE}
        assert blocks(signature, [demo]) == [
            'Points: [{"x": 1, "y": 2}]\nOptions: {"é": 3}\nColor: dark blue'
        ]

    @pytest.mark.parametrize(
        "annotation", [dspy.Image, dspy.History, list[dspy.Image], dspy.Image | None, dspy.Tool]
    )
    def test_errors_name_fields_that_are_not_text(self, annotation):
        signature = dspy.Signature("seen -> a").with_updated_fields("seen", type_=annotation)
        with pytest.raises(ValueError, match=r"'seen'.*Use another adapter"):
            PlainTextAdapter().format(signature, [], {"seen": None})


LABELS = Literal["negative", "positive"]


class TestAnswer:
    @pytest.mark.parametrize(
        ("annotation", "completion", "value"),
        [
            (LABELS, " positive", "positive"),
            (LABELS, " positive \nand more", "positive"),
            (LABELS, "POSITIVE", "positive"),
            (LABELS, "\nA: positive", "positive"),
            (Literal["US", "us", "Uk"], "us", "us"),
            (Literal["US", "us", "Uk"], "UK", "Uk"),
            (bool, " True", True),
            (int, " -12 ", -12),
            (float, "1e3", 1000.0),
            (Color, " dark blue", Color.BLUE),
            (Color, "Red", Color.RED),
            (Literal["x", "y"] | None, "None", None),
            (int | None, "3", 3),
            (str, " one\n two\n\nQ: next", "one\n two"),
            (str, " None", "None"),
            (list[str], ' ["a", "b"]', ["a", "b"]),
            (Point, '{"x": 1,\n"y": 2}', Point(x=1, y=2)),
            (int | str, "4", 4),
            (int | str, "four", "four"),
            (dspy.Reasoning, " because", dspy.Reasoning(content="because")),
        ],
    )
    def test_is_parsed_as_the_field_s_type(self, annotation, completion, value):
        assert parse(output(annotation), completion) == {"a": value}

    @pytest.mark.parametrize(
        ("annotation", "completion"),
        [
            *((LABELS, t) for t in (" positively", "positive.", "very positive", "pos", "\npositive", " ")),
            *((LABELS, text) for text in ("'positive'", "positive negative", "a: positive")),
            *((bool, text) for text in ("yes", "1")),
            *((int, text) for text in ("12.5", "12 apples")),
            *((float, text) for text in ("nan", "inf")),
            *((Color, text) for text in ("blue", "BLUE")),
            (Literal["US", "us", "Uk"], "Us"),
            (list[str], "a, b"),
            (Point, '{"x": 1}'),
            (str, " \n\nlate"),
            (int | None, "none of them"),
        ],
    )
    def test_ambiguous_replies_are_errors(self, annotation, completion):
        with pytest.raises(AdapterParseError):
            parse(output(annotation), completion)

    def test_of_several_outputs_is_split_at_their_titles(self):
        signature = dspy.Signature("question -> reasoning, answer_kind: Literal['a', 'b'], note")
        completion = (
            " first\nAnswer Kind is not at a title\nAnswer Kind: b\nNote: x: y\nz\n\nQuestion: next"
        )
        assert parse(signature, completion) == {
            "reasoning": "first\nAnswer Kind is not at a title",
            "answer_kind": "b",
            "note": "x: y\nz",
        }
        assert parse(signature, "Reasoning: r\nNote: n\nAnswer Kind: a")["answer_kind"] == "a"

    @pytest.mark.parametrize(
        ("completion", "message"),
        [
            (" only the reasoning", "has no value for answer"),
            (" r\nAnswer:", "has no value for answer"),
            (" r\n\nAnswer: 4", "has no value for answer"),
            (" r\nAnswer: 4\nAnswer: 5", "more than once"),
        ],
    )
    def test_missing_and_repeated_outputs_are_errors(self, completion, message):
        with pytest.raises(AdapterParseError, match=message):
            parse(dspy.Signature("question -> reasoning, answer: int"), completion)

    @settings(max_examples=20)
    @given(st.lists(st.text(min_size=1), min_size=1, max_size=4, unique_by=str.strip), st.data())
    def test_any_label_parses_back(self, labels, data):
        assume(all(label.strip() and label.strip() != "None" for label in labels))
        signature = output(Literal[tuple(labels)])
        label = data.draw(st.sampled_from(labels))
        assume(not label.strip().startswith("A:"))
        (block,) = blocks(signature, [{"q": "x", "a": label}])
        assert parse(signature, block.partition("\nA:")[2]) == {"a": label}


class TestCalls:
    @pytest.mark.parametrize(
        ("signature", "stop"),
        [
            ("q -> a: Literal['x', 'y']", ("\n",)),
            ("q -> a: Optional[int]", ("\n",)),
            ("q -> a", ("\n\n",)),
            ("q -> a: list[str]", ("\n\n",)),
            ("q -> a: bool, b: bool", ("\n\n",)),
        ],
    )
    def test_generation_stops_where_the_answer_ends(self, signature, stop):
        engine = ScriptedEngine("?", "unused")
        with dspy.context(lm=lm_of(engine), adapter=PlainTextAdapter()):
            try:
                dspy.Predict(signature)(q="x")
            except AdapterParseError:
                assert signature != "q -> a"
        assert [request.config.stop for request in engine.requests] == [stop]

    def test_the_callers_stop_wins(self):
        engine = ScriptedEngine("x", "x")
        predict = dspy.Predict("q -> a")
        with dspy.context(adapter=PlainTextAdapter()):
            predict(q="x", config={"stop": ["END"]}, lm=lm_of(engine))
            predict(q="x", lm=lm_of(engine, stop=["LM"]))
        assert [request.config.stop for request in engine.requests] == [("END",), ("LM",)]
        assert predict.config == {}

    def test_async(self):
        async def ask(lm):
            with dspy.context(lm=lm, adapter=PlainTextAdapter()):
                return (await dspy.Predict(SENTIMENT).acall(review="x")).sentiment

        engine = ScriptedEngine(" positive")
        assert asyncio.run(ask(lm_of(ScriptedEngine(), async_engine=Async(engine)))) == "positive"
        assert engine.requests[0].config.stop == ("\n",)
