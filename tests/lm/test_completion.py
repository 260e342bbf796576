"""CompletionEngine and completion_lm: against llama.cpp, and against a server that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils import exceptions

from plr_dspy.lm.completion import completion_lm
from plr_dspy.lm.engines import AsyncCompletionEngine, CompletionEngine
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter
from plr_dspy.local import LocalServer

DEMOS = [
    {"review": "a gripping , clever and moving film .", "sentiment": "positive"},
    {"review": "what a waste of time .", "sentiment": "negative"},
    {"review": "i laughed and cried .", "sentiment": "positive"},
    {"review": "boring from start to end .", "sentiment": "negative"},
]
ANSWER = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "stub",
    "choices": [{"index": 0, "text": " positive", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
}


class Stub(http.server.ThreadingHTTPServer):
    """A completions endpoint that answers what it is told and records what it is asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StubHandler)
        self.status = 200
        self.statuses = [200]
        self.retry_after: str | None = None
        self.reply: Any = ANSWER
        self.delay = 0.0
        self.pause = threading.Event()
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def api_base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def lm(self, model: str = "stub", **kwargs: Any) -> dspy.LM:
        return completion_lm(model, **{"api_base": self.api_base, "cache": False, "num_retries": 0, **kwargs})


class StubHandler(http.server.BaseHTTPRequestHandler):
    server: Stub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.paths.append(self.path)
        self.server.bodies.append(json.loads(body))
        self.server.keys.append(self.headers["authorization"])
        self.server.pause.wait(self.server.delay)
        reply = self.server.reply
        data = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
        statuses = self.server.statuses
        self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
        self.send_header("content-type", "application/json")
        if self.server.retry_after is not None:
            self.send_header("retry-after", self.server.retry_after)
        self.send_header("content-length", str(len(data)))
        with contextlib.suppress(ConnectionError):
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.pause.set()
        server.shutdown()
        thread.join()


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


def test_usage_arrives_in_track_usage(server: LocalServer) -> None:
    lm = server.lm()
    with dspy.track_usage() as usage:
        ask(lm)
    (counts,) = usage.get_total_tokens().values()
    assert counts["prompt_tokens"] > 40
    assert 1 <= counts["completion_tokens"] <= 3
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]


def test_the_demos_are_read_once(server: LocalServer) -> None:
    lm = server.lm()
    ask(lm, "first .")
    before = server.metrics()
    ask(lm, "second .")
    after = server.metrics()
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] < 12
    assert after["prompt_tokens_cached_total"] - before["prompt_tokens_cached_total"] > 40


def test_async_calls(server: LocalServer) -> None:
    async def answer() -> str:
        with dspy.context(lm=server.lm(), adapter=PlainTextAdapter()):
            return (await classifier().acall(review="a joy .")).sentiment

    assert asyncio.run(answer()) == ask(server.lm()).sentiment


def test_streaming_yields_the_whole_answer(server: LocalServer) -> None:
    lm15 = dspy.lm15
    message, config = lm15.Message.user("One, two, three,"), lm15.Config(max_tokens=4)
    request = lm15.Request(model=server.model, messages=(message,), config=config)
    kinds = [event.type for event in CompletionEngine(server.api_base).stream(request)]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert "delta" in kinds


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


def test_copies_of_a_program_answer(server: LocalServer) -> None:
    program = classifier()
    program.lm = server.lm()
    with dspy.context(adapter=PlainTextAdapter()):
        expected = program(review="a joy .").sentiment
        assert program.deepcopy()(review="a joy .").sentiment == expected
        program.lm = pickle.loads(pickle.dumps(program.lm))
        assert program(review="a joy .").sentiment == expected


# Against a stub


def test_the_request_is_a_plain_completion(stub: Stub) -> None:
    lm = stub.lm("org/stub", max_tokens=3, top_p=0.9, seed=5, frequency_penalty=0.1, presence_penalty=0.2)
    assert ask(lm, config={"temperature": 0.5}).sentiment == "positive"
    (body,) = stub.bodies
    assert stub.paths == ["/v1/completions"]
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
    assert stub.paths == ["/v1/completions"]
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
    chat_reply = {"message": {"role": "assistant", "content": "from chat"}, "finish_reason": "stop"}
    stub.reply = {**ANSWER, "object": "chat.completion", "choices": [{"index": 0, **chat_reply}]}
    chat = dspy.LM("openai/stub", api_base=stub.api_base, api_key="x", temperature=0.0, max_tokens=16)
    assert chat("Q?") == ["from chat"]


def test_several_generations_are_several_calls(stub: Stub) -> None:
    assert stub.lm()("Q:", n=3, temperature=1.0) == [" positive"] * 3
    assert len(stub.bodies) == 3


def test_the_lists_of_the_completions_endpoint_become_logprobs(stub: Stub) -> None:
    logprobs = {
        "tokens": [" pos", "itive"],
        "token_logprobs": [-0.5, -0.1],
        "top_logprobs": [{" pos": -0.5, " neg": -1.0}, None],
    }
    stub.reply = {**ANSWER, "choices": [{**ANSWER["choices"][0], "logprobs": logprobs}]}
    (output,) = stub.lm()("Q:", logprobs=True)
    tokens = output["logprobs"]["content"]
    assert [(token["token"], token["logprob"]) for token in tokens] == [(" pos", -0.5), ("itive", -0.1)]
    assert [top["token"] for top in tokens[0]["top_logprobs"]] == [" pos", " neg"]
    assert stub.bodies[0]["logprobs"] == 1


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_answer_is_a_parse_error(stub: Stub, text: str) -> None:
    stub.reply = {**ANSWER, "choices": [{**ANSWER["choices"][0], "text": text}]}
    with pytest.raises(exceptions.AdapterParseError):
        ask(stub.lm())


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


def test_async_errors_are_the_same(stub: Stub) -> None:
    stub.statuses = [429]

    async def call() -> None:
        await stub.lm().acall("Q:")

    with pytest.raises(exceptions.LMRateLimitError):
        asyncio.run(call())
    stub.statuses, stub.reply = [200], "{}"
    with pytest.raises(exceptions.LMProviderError):
        asyncio.run(call())
    assert len(stub.bodies) == 2


def test_dspy_repeats_what_failed_for_a_passing_reason(stub: Stub) -> None:
    stub.statuses, stub.retry_after = [500, 200], "0"
    assert ask(stub.lm(num_retries=2)).sentiment == "positive"
    assert len(stub.bodies) == 2


def test_a_slow_server_times_out(stub: Stub) -> None:
    stub.delay = 0.6
    with pytest.raises(exceptions.LMTimeoutError):
        ask(stub.lm(timeout=0.2))


def test_a_server_that_is_not_there_is_worth_a_retry() -> None:
    lm = completion_lm("stub", api_base="http://127.0.0.1:9/v1", cache=False, num_retries=0)
    with pytest.raises(exceptions.LMError) as caught:
        ask(lm)
    assert exceptions.is_retryable_lm_error(caught.value)


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
    assert stub.keys == ["Bearer not-needed", "Bearer late", "Bearer explicit"]
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
    ],
)
def test_bad_settings_are_named(argument: str, value: Any) -> None:
    settings = {"api_base": "http://127.0.0.1:8000/v1", argument: value}
    with pytest.raises(ValueError, match=f"{argument}: expected"):
        completion_lm("stub", **settings)


@pytest.mark.parametrize("name", ["", "hosted_vllm/"])
def test_a_model_needs_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="model: expected"):
        completion_lm(name, api_base="http://127.0.0.1:8000/v1")
