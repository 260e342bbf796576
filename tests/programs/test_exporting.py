"""Exported prompts: filled prompts equal the messages that the language model receives."""

import enum
import json
from contextlib import suppress

import dspy
import pytest
from dspy.experimental import Noul
from dspy.utils.exceptions import AdapterParseError
from fakes import OnlyAsync, engine_for, lm_of, questions
from pydantic import BaseModel

from plr_dspy import CalibratedProgram, ExportedPrompt, PlainTextAdapter, PLFewShot, export

AWKWARD = [
    "plain",
    "",
    " \n{question} {{question}} {{{}}} { }} %s \\1 $1 <b>&amp;</b>\r\n\r\n\n[[ ## answer ## ]] end \n",
    '{"a": ["{{", "}}"]}',
]
ADAPTERS = [dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter(), PlainTextAdapter()]


class Mood(enum.Enum):
    GOOD = "good"


class Row(BaseModel):
    name: str
    values: list[int]


class TwoSteps(dspy.Module):
    def __init__(self):
        super().__init__()
        self.draft = dspy.ChainOfThought("question -> draft")
        self.steps = [dspy.Predict("question, draft -> answer")]

    def forward(self, question):
        return self.steps[0](question=question, draft=self.draft(question=question).draft)


def with_demos(program, *values):
    """Give each predictor one demo for each value, with this value in all fields. Return the program."""
    for predictor in program.predictors():
        predictor.demos = [
            dspy.Example(dict.fromkeys(predictor.signature.fields, value)) for value in values
        ]
    return program


def check_calls(program, prompts, **inputs):
    """Check that the filled prompts equal the messages of all calls that a program makes for these inputs."""
    lm = lm_of(engine_for(questions(3)))
    names = {id(predictor): name for name, predictor in program.named_predictors()}
    with dspy.context(lm=lm, trace=[]):
        # The messages are recorded even if the adapter cannot parse the reply.
        with suppress(AdapterParseError):
            program(**inputs)
        calls = [(names[id(predictor)], values) for predictor, values, _ in dspy.settings.trace]
    for (name, values), entry in zip(calls or [("self", inputs)], lm.history, strict=False):
        assert prompts[name].fill(**values) == entry["messages"]
    return lm.history


@pytest.fixture(params=ADAPTERS, ids=lambda adapter: type(adapter).__name__)
def adapter(request):
    with dspy.context(adapter=request.param):
        yield request.param


@pytest.mark.parametrize("format", ["openai", "langchain"])
def test_braces_and_line_breaks_in_instructions_demos_and_inputs(adapter, format):
    signature = dspy.Signature("question -> answer", 'Reply as in {"answer": "{x}"}, {{}} or {}.')
    demos = [text.replace("{{question}}", "{{other}}") for text in AWKWARD[1:]]
    program = with_demos(dspy.Predict(signature), *demos)
    prompts = export(program, format)
    for text in AWKWARD:
        assert check_calls(program, prompts, question=text)


def test_each_predictor_of_a_program():
    program = with_demos(TwoSteps(), "a {b}", "c")
    prompts = export(program)
    assert list(prompts) == ["draft.predict", "steps[0]"]
    assert len(check_calls(program, prompts, question="question {1}")) == 2


def test_synchronous_versions_of_async_programs_are_exported():
    program = dspy.syncify(OnlyAsync(with_demos(dspy.Predict("question -> answer"), "a")))
    assert len(check_calls(program, export(program), question="b")) == 1


def test_predictors_of_compiled_modules_are_exported():
    program = TwoSteps()
    program.draft._compiled = True
    assert set(export(program)) == {"draft.predict", "steps[0]"}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 3),
        ("float", 2.5),
        ("bool", True),
        ("str", ["first", "second\n{line}"]),
        ("list[str]", ["a {b}", "ü"]),
        ("dict[str, list[int]]", {"a": [1]}),
        ("Row", Row(name="{x}", values=[1])),
        ("list[Row]", [Row(name="x", values=[])]),
        ("Mood", Mood.GOOD),
        ("Optional[str]", None),
        ("Literal['a', 'b']", "a"),
    ],
)
def test_inputs_that_are_not_text(adapter, kind, value):
    signature = dspy.Signature(f"value: {kind} -> answer", custom_types={"Row": Row, "Mood": Mood})
    program = dspy.Predict(signature)
    assert check_calls(program, export(program), value=value)


class WithDefault(dspy.Signature):
    question: str = dspy.InputField()
    language: str = dspy.InputField(default="Thai")
    answer: str = dspy.OutputField()


def test_an_input_with_a_default_may_be_omitted(adapter):
    program = dspy.Predict(WithDefault)
    prompts = export(program)
    assert check_calls(program, prompts, question="a")
    assert "Thai" in prompts["self"].fill(question="a")[-1]["content"]


class Decision(dspy.Signature):
    question: str = dspy.InputField()
    decision: Noul = dspy.OutputField(desc="Is it true?")


def test_outputs_that_are_decisions():
    program = dspy.Predict(Decision)
    program.demos = [dspy.Example(question="{q}", decision=True)]
    assert check_calls(program, export(program), question="a")


@pytest.mark.parametrize("format", ["openai", "langchain"])
def test_messages_are_json_and_can_be_filled_without_the_package(format):
    prompt = export(with_demos(dspy.Predict("question -> answer"), "{a}", "{{b}}"), format)["self"]
    expected = prompt.fill(question="{c}")
    messages = json.loads(json.dumps(prompt.messages))
    for message in messages:
        if format == "langchain":
            message["content"] = message["content"].format(question="{c}")
        else:
            message["content"] = message["content"].replace("{{question}}", "{c}")
    assert messages == expected


def test_langchain_fills_the_messages():
    prompts = pytest.importorskip(
        "langchain_core.prompts", reason="needs langchain-core, from the extra `dev`"
    )
    prompt = export(with_demos(dspy.Predict("question -> answer"), *AWKWARD[1:]), "langchain")["self"]
    template = prompts.ChatPromptTemplate.from_messages(prompt.messages)
    assert template.input_variables == ["question"]
    for text in AWKWARD:
        messages = template.format_messages(question=text)
        assert [message.content for message in messages] == [
            m["content"] for m in prompt.fill(question=text)
        ]
        roles = {"system": "system", "human": "user", "ai": "assistant"}
        assert [roles[message.type] for message in messages] == [
            message["role"] for message in prompt.messages
        ]


def test_a_loaded_prompt_equals_the_saved_prompt(adapter, tmp_path):
    prompt = export(with_demos(dspy.Predict("question, values: list[int] -> answer"), "{a}"))["self"]
    prompt.save(tmp_path / "prompt.json")
    loaded = ExportedPrompt.load(tmp_path / "prompt.json")
    assert loaded == prompt
    inputs = {"question": AWKWARD[2], "values": [1, 2]}
    assert loaded.fill(**inputs) == prompt.fill(**inputs)
    (tmp_path / "prompt.json").write_text('{"messages": []}')
    with pytest.raises(ValueError, match=r"prompt\.json is not an exported prompt: pass a file"):
        ExportedPrompt.load(tmp_path / "prompt.json")


def retrieving():
    optimizer = PLFewShot(lambda e, p: 1.0, demos="retrieved", max_metric_calls=0, display_progress=False)
    return optimizer.compile(dspy.Predict("question -> answer"), trainset=questions(20))


def nearest_by_dspy():
    vectorizer = dspy.Embedder(lambda texts: [[float(len(text))] for text in texts])
    optimizer = dspy.KNNFewShot(k=1, trainset=questions(3), vectorizer=vectorizer)
    return optimizer.compile(dspy.Predict("question -> answer"))


class FirstWordsAdapter(dspy.ChatAdapter):
    def format(self, signature, demos, inputs):
        return super().format(signature, demos, {name: str(value)[:40] for name, value in inputs.items()})


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: CalibratedProgram(dspy.Predict("text -> label: bool")), "export program.program"),
        (retrieving, "compile the program with PLFewShot"),
        (nearest_by_dspy, "compile the program with an optimizer that keeps forward"),
        (
            lambda: dspy.Predict("photo: dspy.Image -> label"),
            "'photo' of predictor 'self' is of type Image",
        ),
        (lambda: dspy.Predict("history: dspy.History, question -> answer"), "is of type History"),
        (lambda: dspy.Predict("tools: list[dspy.Tool] -> answer"), "is of type Tool"),
        (
            lambda: with_demos(dspy.Predict("question -> answer"), "as {{question}}"),
            r"contains the literal text '{{question}}'.*pass format='langchain'",
        ),
        (dspy.Module, "has no predictors"),
    ],
)
def test_errors_for_programs_that_cannot_be_exported_name_a_fix(make, fix):
    with dspy.context(lm=lm_of(engine_for(questions(3)))), pytest.raises(ValueError, match=fix):
        export(make())


def test_an_adapter_that_shortens_inputs_is_rejected():
    with (
        dspy.context(adapter=FirstWordsAdapter()),
        pytest.raises(ValueError, match="FirstWordsAdapter writes input"),
    ):
        export(dspy.Predict("question -> answer"))


def test_arguments_are_checked():
    program = dspy.Predict("question -> answer")
    with pytest.raises(ValueError, match="format must be 'openai' or 'langchain'; got 'chat'"):
        export(program, "chat")
    with pytest.raises(TypeError, match=r"program must be a dspy\.Module; got str"):
        export("program")
    prompt = export(program)["self"]
    with pytest.raises(ValueError, match=r"fill accepts only the inputs .*; got 'text': omit 'text'"):
        prompt.fill(question="a", text="b")
    for inputs in ({}, {"question": None}):
        with pytest.raises(ValueError, match="fill needs a value for the input 'question'"):
            prompt.fill(**inputs)
    with pytest.raises(ValueError, match="has a value of type Image, which is not text"):
        prompt.fill(question=dspy.Image(url="https://example.com/a.png"))


def test_exporting_makes_no_call_and_leaves_no_trace():
    engine = engine_for(questions(3))
    lm = lm_of(engine)
    with dspy.context(lm=lm, trace=[]):
        export(TwoSteps())
        assert dspy.settings.trace == []
    assert engine.num_calls == 0
    assert lm.history == []
