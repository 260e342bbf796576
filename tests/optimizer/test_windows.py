"""The warning about prompts that may exceed the model's context window."""

import re

import dspy
import litellm
import pytest
from fakes import OrderSensitiveEngine, exact_match, questions, student, using

from plr_dspy import PLFewShot, PLReorder, choose_program

EXAMPLES = questions(60)
MODEL = "fake/small"
WARNING = re.compile(
    r"up to about ([\d,]+) tokens, but the context window of fake/small holds only ([\d,]*\d)"
)


class CountingEngine(OrderSensitiveEngine):
    """An engine that records the number of tokens in its longest prompt."""

    def __init__(self, **options):
        super().__init__({example.question: example.answer for example in EXAMPLES}, **options)
        self.most_tokens = 0

    def complete(self, request):
        messages = [{"role": "system", "content": request.system}]
        messages += [{"role": message.role, "content": message.text} for message in request.messages]
        tokens = litellm.token_counter("gpt-4o", messages=messages)
        with self._lock:
            self.most_tokens = max(self.most_tokens, tokens)
        return super().complete(request)


@pytest.fixture
def engine():
    with using(CountingEngine(), MODEL) as engine:
        yield engine


@pytest.fixture
def window(monkeypatch):
    """Return a function that sets the size of the model's context window."""

    def set_window(tokens):
        entry = {"max_input_tokens": tokens, "litellm_provider": "fake"}
        monkeypatch.setitem(litellm.model_cost, MODEL, entry)

    return set_window


def fewshot(**options):
    return PLFewShot(exact_match, **{"max_demos": 6, "max_metric_calls": 60, **options})


def reorder(**options):
    return PLReorder(exact_match, max_metric_calls=60, **options)


def warning_of(optimizer, program, **options):
    return optimizer.estimate(program, trainset=EXAMPLES, **options).warning


@pytest.mark.parametrize(
    ("make", "num_demos"),
    [(reorder, 6), (reorder, 0), (fewshot, 0), (fewshot, 12), (lambda: fewshot(demos="retrieved"), 0)],
)
def test_the_tokens_are_those_of_the_longest_prompt(engine, window, make, num_demos):
    window(150)
    program = student(num_demos)
    optimizer = make()
    tokens = int(WARNING.search(warning_of(optimizer, program))[1])
    optimizer.compile(program, trainset=EXAMPLES)
    assert 0.9 * tokens < engine.most_tokens <= tokens
    window(tokens - 1)
    assert WARNING.search(warning_of(optimizer, program))[2] == str(tokens - 1)
    window(tokens)
    assert not warning_of(optimizer, program)


def test_the_longest_inputs_and_instructions_are_counted(engine, window):
    window(400)
    assert not warning_of(fewshot(), student(0))
    assert warning_of(fewshot(instructions=["Think of the number. " * 30]), student(0))
    long = dspy.Example(question="why " * 500, answer="answer 0").with_inputs("question")
    warning = fewshot(candidates=EXAMPLES[:6]).estimate(student(0), trainset=[*EXAMPLES, long]).warning
    assert "the inputs of trainset[60]" in warning


def test_demos_are_counted_up_to_their_limits(engine, window):
    window(300)
    fix = "use fewer or shorter demos, with PLFewShot(max_demos=..., max_demo_tokens=...) or --max-demos on the"
    assert fix in warning_of(fewshot(), student(0))
    for limit in ({"max_demos": 1}, {"max_demo_tokens": 50}):
        assert not warning_of(fewshot(**limit), student(0))


def test_user_programs_are_named(engine, window, caplog):
    window(300)
    assert "prompts of 'long' may have" in warning_of(
        fewshot(max_demos=2), student(0), programs={"long": student(12)}
    )
    choose_program({"short": student(1), "long": student(12)}, exact_match, EXAMPLES, max_metric_calls=80)
    assert "prompts of 'long' may have" in caplog.text


def test_a_compile_warns_before_the_first_call(window, caplog):
    window(300)
    before = []
    with using(CountingEngine(at={0: lambda: before.extend(caplog.messages)}), MODEL):
        fewshot().compile(student(0), trainset=EXAMPLES)
    assert any(map(WARNING.search, before))
    assert len(list(filter(WARNING.search, caplog.messages))) == 1


def test_the_printed_estimate_contains_the_warning(engine, window):
    window(300)
    estimate = fewshot().estimate(student(0), trainset=EXAMPLES)
    assert str(estimate).splitlines()[-1] == f"warning: {estimate.warning}"


def test_there_is_no_warning_if_the_window_is_unknown(engine):
    assert not warning_of(fewshot(), student(0))
