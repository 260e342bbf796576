"""CompletionEngine and completion_lm: against llama.cpp, and against a server that misbehaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils import exceptions
from servers import Request, Server, completion, llama_count, running

from plr_dspy.lm.engines import AsyncCompletionEngine, CompletionEngine, completion_lm
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter
from plr_dspy.local import LocalServer

DEMOS = [
    {"review": "a gripping , clever and moving film .", "sentiment": "positive"},
    {"review": "what a waste of time .", "sentiment": "negative"},
    {"review": "i laughed and cried .", "sentiment": "positive"},
    {"review": "boring from start to end .", "sentiment": "negative"},
]


class Stub(Server):
    """A completions endpoint that answers what it is told."""

    def __init__(self) -> None:
        super().__init__(self.reply_as_told)
        self.statuses = [200]
        self.retry_after: str | None = None
        self.reply: Any = completion(" positive")
        self.delay = 0.0

    def reply_as_told(self, request: Request) -> None:
        self.released.wait(self.delay)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        request.reply(status, self.reply, **({"retry_after": self.retry_after} if self.retry_after else {}))

    def lm(self, model: str = "stub", **kwargs: Any) -> dspy.LM:
        return completion_lm(model, **{"api_base": self.api_base, "cache": False, "num_retries": 0, **kwargs})


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running(Stub()) as server:
        yield server


def classifier() -> dspy.Predict:
    predict = dspy.Predict("review -> sentiment: Literal['negative', 'positive']")
    predict.demos = [dict(demo) for demo in DEMOS]
    return predict


def ask(lm: dspy.LM, review: str = "a joy .", **kwargs: Any) -> Any:
    with dspy.context(lm=lm, adapter=PlainTextAdapter()):
        return classifier()(review=review, **kwargs)


# Against llama.cpp


def test_a_program_answers_through_plain_completions(server: LocalServer) -> None:
    lm = completion_lm(server.model, api_base=server.api_base, cache=False)
    assert ask(lm, "a joy , simply wonderful .").sentiment == "positive"
    assert ask(lm, "dull , stupid and boring .").sentiment == "negative"
    (message,) = lm.history[-1]["messages"]
    assert message["content"].endswith("Review: dull , stupid and boring .\nSentiment:")


def test_the_demos_are_read_once(server: LocalServer) -> None:
    lm = server.lm()
    ask(lm, "first .")
    before = llama_count(server, "prompt_tokens_total")
    ask(lm, "second .")
    assert llama_count(server, "prompt_tokens_total") - before < 12


def test_logprobs_when_asked_for(server: LocalServer) -> None:
    (output,) = server.lm()("Review: great\nSentiment:", logprobs=True, top_logprobs=3, max_tokens=1)
    (token,) = output["logprobs"]["content"]
    assert token["logprob"] < 0
    assert len(token["top_logprobs"]) == 3
    assert "logprobs" not in ask(server.lm())


def test_a_context_that_is_too_long_is_named(server: LocalServer) -> None:
    with pytest.raises(exceptions.LMInvalidRequestError, match="context"):
        ask(server.lm(), "long " * 2000)


def test_a_program_with_the_lm_is_saved_and_loaded(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_KEY", "from-the-environment")
    program = classifier()
    program.lm = server.lm(api_key="very-secret", api_key_env="LOCAL_KEY")
    file = tmp_path / "program.json"
    program.save(str(file))
    assert "secret" not in file.read_text()
    assert "from-the-environment" not in file.read_text()
    with pytest.raises(ValueError, match="allow_unsafe_lm_state"):
        classifier().load(str(file))
    loaded = dspy.Predict(program.signature)
    loaded.load(str(file), allow_unsafe_lm_state=True)
    with dspy.context(adapter=PlainTextAdapter()):
        assert loaded(review="a joy .").sentiment == program(review="a joy .").sentiment
    assert repr(loaded.lm.engine) == repr(program.lm.engine)


# Against a stub


def test_the_request_is_a_plain_completion(stub: Stub) -> None:
    lm = stub.lm("org/stub", max_tokens=3, top_p=0.9, seed=5, frequency_penalty=0.1, presence_penalty=0.2)
    assert ask(lm, config={"temperature": 0.5}).sentiment == "positive"
    (body,) = stub.bodies
    assert [request.path for request in stub.requests] == ["/v1/completions"]
    assert body.pop("prompt").endswith("\nSentiment: negative\n\nReview: a joy .\nSentiment:")
    assert body == {
        "model": "org/stub",
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 5,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "stop": ["\n"],
    }


def test_the_prefix_of_the_name_chooses_the_provider(stub: Stub) -> None:
    lm = stub.lm("hosted_vllm/Qwen/stub")
    assert ask(lm).sentiment == "positive"
    assert lm.model == "hosted_vllm/Qwen/stub"
    assert [request.path for request in stub.requests] == ["/v1/completions"]
    assert stub.bodies[0]["model"] == "Qwen/stub"


def test_messages_are_joined_with_blank_lines(stub: Stub) -> None:
    lm15 = dspy.lm15
    request = lm15.Request(
        model="text-completion-openai/stub",
        system="Be brief.",
        messages=(lm15.Message.user("Hello."), lm15.Message.assistant("Hi."), lm15.Message.user("Bye.")),
        config=lm15.Config(top_k=4, extensions={"logit_bias": {"5": 1}}),
    )
    assert CompletionEngine(stub.api_base).complete(request).text == " positive"
    body = stub.bodies[0]
    assert body["prompt"] == "Be brief.\n\nHello.\n\nHi.\n\nBye."
    assert (body["model"], body["top_k"], body["logit_bias"]) == ("stub", 4, {"5": 1})


def test_extra_body_is_sent_and_kept_apart_in_the_cache(stub: Stub) -> None:
    free, bound = stub.lm(cache=True), stub.lm(cache=True, extra_body={"grammar": "root ::= x"})
    for lm in (free, bound, free, bound):
        assert lm("Q:") == [" positive"]
    assert [body.get("grammar") for body in stub.bodies] == [None, "root ::= x"]
    assert "metadata" not in stub.bodies[1]


def test_a_chat_lm_of_the_same_model_shares_no_cached_answer(stub: Stub) -> None:
    assert stub.lm(cache=True)("Q?") == [" positive"]
    stub.reply = completion("from chat", plain=False)
    chat = dspy.LM("openai/stub", api_base=stub.api_base, api_key="x", temperature=0.0, max_tokens=16)
    assert chat("Q?") == ["from chat"]


def test_the_lists_of_the_completions_endpoint_become_logprobs(stub: Stub) -> None:
    logprobs = {
        "tokens": [" pos", "itive"],
        "token_logprobs": [-0.5, -0.1],
        "top_logprobs": [{" pos": -0.5, " neg": -1.0}, None],
    }
    stub.reply = completion(" positive", logprobs=logprobs)
    (output,) = stub.lm()("Q:", logprobs=True)
    tokens = output["logprobs"]["content"]
    assert [(token["token"], token["logprob"]) for token in tokens] == [(" pos", -0.5), ("itive", -0.1)]
    assert [top["token"] for top in tokens[0]["top_logprobs"]] == [" pos", " neg"]
    assert stub.bodies[0]["logprobs"] == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, exceptions.LMInvalidRequestError),
        (401, exceptions.LMAuthError),
        (403, exceptions.LMAuthError),
        (404, exceptions.LMUnsupportedModelError),
        (429, exceptions.LMRateLimitError),
        (500, exceptions.LMServerError),
        (503, exceptions.LMServerError),
    ],
)
@pytest.mark.parametrize("provider", ["text-completion-openai", "hosted_vllm"])
def test_a_refusal_is_one_call_and_dspys_error(
    stub: Stub, provider: str, status: int, error: type[Exception]
) -> None:
    stub.statuses, stub.reply = [status], {"error": {"message": "no", "type": "refused"}}
    with pytest.raises(error):
        ask(stub.lm(provider=provider))
    assert len(stub.bodies) == 1


def test_the_servers_advice_on_when_to_retry_is_kept(stub: Stub) -> None:
    stub.statuses, stub.retry_after = [429], "0.1"
    with pytest.raises(exceptions.LMRateLimitError) as caught:
        ask(stub.lm())
    assert caught.value.retry_after == 0.1


@pytest.mark.parametrize(
    "reply",
    ["not json", "[]", "{}", {"choices": []}, {"error": {"message": "no"}}, {"choices": [{"text": None}]}],
)
def test_a_reply_without_a_completion_is_a_provider_error(stub: Stub, reply: Any) -> None:
    stub.reply = reply
    with pytest.raises(exceptions.LMProviderError):
        ask(stub.lm())


def test_async_calls_and_their_errors(stub: Stub) -> None:
    stub.statuses = [429]

    async def call() -> Any:
        return await stub.lm().acall("Q:")

    with pytest.raises(exceptions.LMRateLimitError):
        asyncio.run(call())
    stub.statuses, stub.reply = [200], "{}"
    with pytest.raises(exceptions.LMProviderError):
        asyncio.run(call())
    assert len(stub.bodies) == 2
    stub.reply = completion(" positive")
    assert asyncio.run(call()) == [" positive"]


def test_a_slow_server_times_out(stub: Stub) -> None:
    stub.delay = 0.6
    with pytest.raises(exceptions.LMTimeoutError):
        ask(stub.lm(timeout=0.2))


def test_what_a_plain_completion_cannot_carry_is_refused(stub: Stub) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with (
        pytest.raises(exceptions.LMUnsupportedFeatureError, match="not text"),
        pytest.warns(DeprecationWarning, match="message dictionaries"),
    ):
        stub.lm()(messages=[{"role": "user", "content": [image]}])
    with pytest.raises(exceptions.LMUnsupportedFeatureError, match="response_format"):
        stub.lm()("Q:", response_format={"type": "json_object"})
    assert stub.bodies == []


# Settings


def test_the_key_is_read_at_call_time_and_never_shown(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CompletionEngine(stub.api_base, api_key_env="STUB_KEY")
    lm = dspy.LM("stub", engine=engine, cache=False)
    monkeypatch.delenv("STUB_KEY", raising=False)
    lm("Q:")
    monkeypatch.setenv("STUB_KEY", "late")
    lm("Q:")
    stub.lm(api_key="explicit", api_key_env="STUB_KEY")("Q:")
    assert [request.key for request in stub.requests] == ["not-needed", "late", "explicit"]
    shown = CompletionEngine(stub.api_base, api_key="explicit")
    assert "explicit" not in repr(shown) + json.dumps(shown.dump_state())


@pytest.mark.parametrize("engine", [CompletionEngine, AsyncCompletionEngine])
def test_the_state_of_an_engine_makes_an_equal_one(engine: Any) -> None:
    settings = {"model": "m", "timeout": 3, "provider": "hosted_vllm", "extra_body": {"a": 1}}
    state = engine("http://x/v1", **settings).dump_state()
    assert settings.items() <= state.items()
    assert engine.load_state(json.loads(json.dumps(state))).dump_state() == state


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("api_base", "localhost:8000"),
        ("api_base", None),
        ("provider", "openai"),
        ("timeout", 0),
        ("timeout", float("inf")),
        ("model", ""),
        ("model", "hosted_vllm/"),
    ],
)
def test_bad_settings_are_named(argument: str, value: Any) -> None:
    settings = {"model": "stub", "api_base": "http://127.0.0.1:8000/v1", argument: value}
    with pytest.raises(ValueError, match=f"{argument}: expected"):
        completion_lm(**settings)
