"""`CompletionEngine` and `completion_lm` with llama.cpp and with a server that returns errors."""

import asyncio
import json

import dspy
import pytest
from dspy.utils import exceptions
from servers import Server, completion, llama_count, running

from plr_dspy import CompletionEngine, PlainTextAdapter, completion_lm

DEMOS = [
    {"review": "a gripping , clever and moving film .", "sentiment": "positive"},
    {"review": "what a waste of time .", "sentiment": "negative"},
    {"review": "i laughed and cried .", "sentiment": "positive"},
    {"review": "boring from start to end .", "sentiment": "negative"},
]


class Stub(Server):
    def __init__(self):
        super().__init__(self.reply_as_told)
        self.status = 200
        self.headers = {}
        self.reply = completion(" positive")
        self.delay = 0.0

    def reply_as_told(self, request):
        self.released.wait(self.delay)
        request.reply(self.status, self.reply, **self.headers)

    def lm(self, model="stub", **kwargs):
        return completion_lm(
            model, **{"api_base": self.api_base, "cache": False, "num_retries": 0, **kwargs}
        )


@pytest.fixture
def stub():
    with running(Stub()) as server:
        yield server


def classifier():
    predict = dspy.Predict("review -> sentiment: Literal['negative', 'positive']")
    predict.demos = [dict(demo) for demo in DEMOS]
    return predict


def ask(lm, review="a joy .", **kwargs):
    with dspy.context(lm=lm, adapter=PlainTextAdapter()):
        return classifier()(review=review, **kwargs)


class TestLlamaCpp:
    def test_answers_come_from_plain_completions_with_cached_demos(self, server):
        lm = completion_lm(server.model, api_base=server.api_base, cache=False)
        assert ask(lm, "a joy , simply wonderful .").sentiment == "positive"
        before = llama_count(server, "prompt_tokens_total")
        assert ask(lm, "dull , stupid and boring .").sentiment == "negative"
        assert llama_count(server, "prompt_tokens_total") - before < 12
        assert "logprobs" not in lm.history[-1]["outputs"][0]
        (message,) = lm.history[-1]["messages"]
        assert message["content"].endswith("Review: dull , stupid and boring .\nSentiment:")

    def test_a_program_with_its_own_lm_is_saved_and_loaded(self, server, tmp_path, monkeypatch):
        monkeypatch.setenv("LOCAL_KEY", "from-the-environment")
        program = classifier()
        file = tmp_path / "program.json"
        program.lm = server.lm(api_key="very-secret", api_key_env="LOCAL_KEY")
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


class TestRequest:
    @pytest.mark.parametrize("prefix", ["", "hosted_vllm/"])
    def test_is_a_plain_completion_for_each_provider(self, stub, prefix):
        penalties = {"frequency_penalty": 0.1, "presence_penalty": 0.2}
        settings = {"max_tokens": 3, "top_p": 0.9, "seed": 5, **penalties}
        lm = stub.lm(f"{prefix}org/stub", **settings)
        assert lm.model == f"{prefix or 'text-completion-openai/'}org/stub"
        assert ask(lm, config={"temperature": 0.5}).sentiment == "positive"
        (body,) = stub.bodies
        assert [request.path for request in stub.requests] == ["/v1/completions"]
        assert body.pop("prompt").endswith("\nSentiment: negative\n\nReview: a joy .\nSentiment:")
        assert body == {"model": "org/stub", "temperature": 0.5, "stop": ["\n"], **settings}

    def test_joins_messages_with_blank_lines(self, stub):
        lm15 = dspy.lm15
        request = lm15.Request(
            model="text-completion-openai/stub",
            system="Be brief.",
            messages=(
                lm15.Message.user("Hello."),
                lm15.Message.assistant("Hi."),
                lm15.Message.user("Bye."),
            ),
            config=lm15.Config(top_k=4, extensions={"logit_bias": {"5": 1}}),
        )
        assert CompletionEngine(stub.api_base).complete(request).text == " positive"
        (body,) = stub.bodies
        assert body["prompt"] == "Be brief.\n\nHello.\n\nHi.\n\nBye."
        assert (body["model"], body["top_k"], body["logit_bias"]) == ("stub", 4, {"5": 1})

    def test_the_cache_distinguishes_extra_bodies_and_chat_lms(self, stub):
        free = stub.lm(cache=True)
        bound = stub.lm(cache=True, extra_body={"grammar": "root ::= x"})
        for lm in (free, bound, free, bound):
            assert lm("Q:") == [" positive"]
        assert [body.get("grammar") for body in stub.bodies] == [None, "root ::= x"]
        assert "metadata" not in stub.bodies[1]
        stub.reply = completion("from chat", plain=False)
        chat = dspy.LM("openai/stub", api_base=stub.api_base, api_key="x", temperature=0.0, max_tokens=16)
        assert chat("Q:") == ["from chat"]

    def test_requests_with_more_than_text_are_rejected(self, stub):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        with (
            pytest.raises(exceptions.LMUnsupportedFeatureError, match="not text"),
            pytest.warns(DeprecationWarning, match="message dictionaries"),
        ):
            stub.lm()(messages=[{"role": "user", "content": [image]}])
        with pytest.raises(exceptions.LMUnsupportedFeatureError, match="response_format"):
            stub.lm()("Q:", response_format={"type": "json_object"})
        assert stub.bodies == []


class TestReply:
    def test_log_probabilities_are_converted_to_the_chat_format(self, stub):
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
            (400, exceptions.ContextWindowExceededError),
            (401, exceptions.LMAuthError),
            (404, exceptions.LMUnsupportedModelError),
            (429, exceptions.LMRateLimitError),
            (503, exceptions.LMServerError),
        ],
    )
    @pytest.mark.parametrize("provider", ["text-completion-openai", "hosted_vllm"])
    def test_http_errors_raise_dspys_errors_after_one_call(self, stub, provider, status, error):
        message = (
            "This model's maximum context length is 10 tokens." if "Window" in error.__name__ else "no"
        )
        stub.status = status
        stub.reply = {"error": {"message": message, "type": "refused"}}
        with pytest.raises(error):
            ask(stub.lm(provider=provider))
        assert len(stub.bodies) == 1

    @pytest.mark.parametrize(
        "reply", ["not json", "[]", "{}", {"choices": []}, {"choices": [{"text": None}]}]
    )
    def test_a_reply_without_a_completion_is_a_provider_error(self, stub, reply):
        stub.reply = reply
        with pytest.raises(exceptions.LMProviderError):
            ask(stub.lm())

    def test_async_calls_and_time_outs(self, stub):
        async def call():
            return await stub.lm().acall("Q:")

        assert asyncio.run(call()) == [" positive"]
        stub.reply = "{}"
        with pytest.raises(exceptions.LMProviderError):
            asyncio.run(call())
        stub.status = 429
        with pytest.raises(exceptions.LMRateLimitError):
            asyncio.run(call())
        assert len(stub.bodies) == 3
        stub.delay = 0.6
        with pytest.raises(exceptions.LMTimeoutError):
            ask(stub.lm(timeout=0.2))


class TestSettings:
    def test_the_key_is_read_at_call_time_and_never_shown(self, stub, monkeypatch):
        lm = dspy.LM("stub", engine=CompletionEngine(stub.api_base, api_key_env="STUB_KEY"), cache=False)
        monkeypatch.delenv("STUB_KEY", raising=False)
        lm("Q:")
        monkeypatch.setenv("STUB_KEY", "late")
        lm("Q:")
        stub.lm(api_key="explicit", api_key_env="STUB_KEY")("Q:")
        assert [request.key for request in stub.requests] == ["not-needed", "late", "explicit"]
        shown = CompletionEngine(stub.api_base, api_key="explicit")
        assert "explicit" not in repr(shown) + json.dumps(shown.dump_state())

    @pytest.mark.parametrize(("argument", "value"), [("api_base", "localhost:8000"), ("api_base", None)])
    def test_errors_name_the_invalid_setting(self, argument, value):
        settings = {"model": "stub", "api_base": "http://127.0.0.1:8000/v1", argument: value}
        with pytest.raises(ValueError, match=f"{argument} must start with http"):
            completion_lm(**settings)
