"""`PLReorder` with a provider that returns errors: an HTTP server on loopback."""

import json
import re
from types import SimpleNamespace

import dspy
import pytest
from dspy.utils import exceptions
from fakes import engine_for, exact_match, questions, student
from servers import ChatServer, completion, refusal, running

from plr_dspy import PLReorder

EXAMPLES = questions(40)
NUM_THREADS = 4
OPTIONS = {"num_retries": 2, "timeout": 20, "temperature": 0.0}


def provider(trouble):
    return running(ChatServer(engine_for(EXAMPLES), trouble))


def compiled(lm, **options):
    reorder = PLReorder(exact_match, max_metric_calls=120, num_threads=NUM_THREADS, **options)
    adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
    error = None
    with dspy.context(lm=lm, adapter=adapter):
        try:
            reorder.compile(student(4), trainset=EXAMPLES)
        except Exception as caught:
            error = caught
    return SimpleNamespace(report=reorder.report, error=error)


@pytest.mark.parametrize(
    ("trouble", "error", "route"),
    [
        (refusal(401, kind="invalid_api_key"), exceptions.LMAuthError, {}),
        (refusal(402, kind="billing"), exceptions.LMBillingError, {}),
        (refusal(429, kind="insufficient_quota"), exceptions.LMBillingError, {"engine": "litellm"}),
        (refusal(404, kind="model_not_found"), exceptions.LMUnsupportedModelError, {}),
    ],
    ids=["401", "402", "quota of litellm", "404"],
)
def test_a_fatal_error_ends_the_compile_at_once(trouble, error, route, caplog):
    with provider(lambda number, prompt: trouble if number >= 10 else None) as server:
        result = compiled(server.lm(**OPTIONS, **route), max_errors=1000)
    assert isinstance(result.error, error)
    assert server.num_requests <= 10 + 1 + NUM_THREADS
    assert result.report.program_calls["total"] == server.num_requests
    assert result.report.errors[0].type == error.__name__
    assert "sk-secret" not in caplog.text + json.dumps(result.report.to_dict())


@pytest.mark.parametrize("route", [{}, {"engine": "litellm"}], ids=["dspy", "litellm"])
def test_a_prompt_that_is_too_long_counts_as_incorrect_and_is_reported(route):
    """The first example's prompt is too long in every order, so all orders are scored as incorrect on it."""
    asked = []

    def trouble(number, prompt):
        asked.append(int(re.search(r"question (\d+)\n", prompt)[1]))
        message = "This model's maximum context length is 10 tokens."
        fits = asked[-1] != asked[0]
        return None if fits else refusal(400, kind="context_length_exceeded", message=message)

    with provider(trouble) as server:
        result = compiled(server.lm(**OPTIONS, **route), max_errors=1)
    assert result.error is None
    (error,) = result.report.errors
    assert (error.type, error.outcome) == ("ContextWindowExceededError", "counted as wrong")
    assert error.examples == [f"trainset[{asked[0]}]"]
    assert server.num_requests == result.report.program_calls["total"]


@pytest.mark.parametrize("route", [{}, {"engine": "litellm"}], ids=["dspy", "litellm"])
def test_replies_that_max_tokens_cuts_off_are_counted_also_when_resumed(route, tmp_path):
    def cut_off(request):
        request.reply(200, completion("[[ ## answer ## ]]\na", plain=False, finish_reason="length"))

    def trouble(number, prompt):
        return cut_off if int(re.search(r"question (\d+)\n", prompt)[1]) % 2 else None

    with provider(trouble) as server:
        first, resumed = [compiled(server.lm(**OPTIONS, **route), log_dir=tmp_path) for _ in range(2)]
    state = first.report.original
    assert 0 < state.num_truncated < state.num_calls
    assert resumed.report.original == state
    warning = (
        f"{state.num_truncated} of {state.num_calls} replies of your program were cut off at max_tokens"
    )
    assert str(resumed.report).startswith(warning)
