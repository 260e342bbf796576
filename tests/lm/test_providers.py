"""PLReorder against a provider that misbehaves: a real HTTP server on loopback that answers in DSPy's format."""

import json
import re
from types import SimpleNamespace

import dspy
import pytest
from dspy.utils import exceptions
from fakes import OrderSensitiveEngine, exact_match, questions, student
from servers import Server, completion, running

from plr_dspy import PLReorder

EXAMPLES = questions(40)
NUM_THREADS = 4


class Provider(Server):
    """An OpenAI-style chat endpoint; `trouble(request number, prompt)` says what to do instead of answering."""

    def __init__(self, trouble):
        super().__init__(self.answer_or_not)
        self.engine = OrderSensitiveEngine({example.question: example.answer for example in EXAMPLES})
        self.trouble = trouble

    def lm(self, **options):
        options = {"num_retries": 2, "cache": False, "timeout": 20, **options}
        return dspy.LM("openai/test", api_base=self.api_base, api_key="sk-secret", temperature=0.0, **options)

    def answer_or_not(self, request):
        system, *texts = [message["content"] for message in request.body["messages"]]
        if trouble := self.trouble(request.number, texts[-1]):
            trouble(request)
        else:
            request.reply(200, completion(self.engine.answer(system, texts), plain=False))


def status(code, *, kind="error", message="no", **headers):
    content = {"error": {"message": message, "type": kind, "code": kind}}
    return lambda request: request.reply(code, content, **headers)


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
        (status(401, kind="invalid_api_key"), exceptions.LMAuthError, {}),
        (status(402, kind="billing"), exceptions.LMBillingError, {}),
        (status(429, kind="insufficient_quota"), exceptions.LMBillingError, {"engine": "litellm"}),
        (status(404, kind="model_not_found"), exceptions.LMUnsupportedModelError, {}),
    ],
    ids=["401", "402", "quota of litellm", "404"],
)
def test_where_every_further_call_would_fail_it_ends_at_once(trouble, error, route, caplog):
    with running(Provider(lambda number, prompt: trouble if number >= 10 else None)) as provider:
        result = compiled(provider.lm(**route), max_errors=1000)
    assert isinstance(result.error, error)
    assert provider.num_requests <= 10 + 1 + NUM_THREADS
    assert result.report.program_calls["total"] == provider.num_requests
    assert result.report.errors[0].type == error.__name__
    assert "sk-secret" not in caplog.text + json.dumps(result.report.to_dict())


@pytest.mark.parametrize("route", [{}, {"engine": "litellm"}], ids=["dspy", "litellm"])
def test_a_prompt_that_is_too_long_is_wrong_and_the_report_says_which(route):
    """The first example does not fit and counts as wrong for every order."""
    asked = []

    def trouble(number, prompt):
        asked.append(int(re.search(r"question (\d+)\n", prompt)[1]))
        message = "This model's maximum context length is 10 tokens."
        fits = asked[-1] != asked[0]
        return None if fits else status(400, kind="context_length_exceeded", message=message)

    with running(Provider(trouble)) as provider:
        result = compiled(provider.lm(**route), max_errors=1)
    assert result.error is None
    (error,) = result.report.errors
    assert (error.type, error.outcome) == ("ContextWindowExceededError", "counted as wrong")
    assert error.examples == [f"trainset[{asked[0]}]"]
    assert provider.num_requests == result.report.program_calls["total"]
