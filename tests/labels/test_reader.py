"""Log-probabilities of labels that come with a program's own calls, which must stay as they would be without."""

import asyncio
import enum
import http.server
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Literal

import dspy
import pytest
from dspy import lm15
from dspy.clients.cache import Cache
from dspy.utils.exceptions import AdapterParseError, LMInvalidRequestError
from fakes import chat_response, logprobs_of

from plr_dspy import PlainTextAdapter, completion_lm
from plr_dspy.labels.outputs import LabelOutput
from plr_dspy.labels.reader import LEAST, label_reader
from plr_dspy.labels.requests import LogprobRequests
from plr_dspy.lm.finite_outputs import labels_of

SENTIMENT = Literal["negative", "positive"]


class Scripted:
    """Says the same tokens to everyone, with the alternatives of each where it is asked for them.

    Args:
        *tokens: Each a text, or the probabilities of what might have stood there; the likeliest one is said.
        refusal: Raised where log-probabilities are asked for.
        logprobs: Off, replies come without.
    """

    def __init__(self, *tokens, refusal=None, logprobs=True):
        self.tokens = [token if isinstance(token, dict) else {token: 0.9, "Hm": 0.01} for token in tokens]
        self.refusal, self.logprobs = refusal, logprobs
        self.requests = []

    def complete(self, request):
        asked = request.config.logprobs
        self.requests.append(asked)
        if asked is not None and self.refusal is not None:
            raise self.refusal
        text = "".join(max(top, key=top.get) for top in self.tokens)
        told = asked is not None and self.logprobs
        return chat_response(text, logprobs=logprobs_of(self.tokens) if told else None)

    def lm(self, **options):
        return dspy.LM("fake/x", engine=self, async_engine=Async(self), **{"cache": False, **options})


class Async:
    def __init__(self, engine):
        self.engine = engine

    async def complete(self, request):
        return self.engine.complete(request)


def chat(*answer, name="label"):
    return Scripted(f"[[ ## {name} ## ]]\n", *answer, "\n\n[[ ## completed ## ]]")


REFUSAL = lm15.InvalidRequestError("logprobs are not supported by this model", status=400)
CONFIDENT = {"positive": 0.9, "negative": 0.06, "Positive": 0.02, "the": 0.001}


def reader_of(program, kind=SENTIMENT, requests=None, decision=None):
    """Of the adapter of the context."""
    (name, _), *_ = program.named_predictors()
    output = LabelOutput(name, "label", labels_of(kind))
    return label_reader(program, output, requests=requests or LogprobRequests(), decision=decision)


def classifier(kind=SENTIMENT, module=dspy.Predict, **config):
    return module(dspy.Signature("text -> label").with_updated_fields("label", type_=kind), **config)


def asked(engine, adapter=None, *, kind=SENTIMENT, program=None, requests=None, lm=None, **inputs):
    """What a program answers, and what was read on the way."""
    program = program or classifier(kind)
    with dspy.context(lm=lm or engine.lm(), adapter=adapter or dspy.ChatAdapter()):
        reader = reader_of(program, kind, requests)
        with dspy.context(adapter=reader):
            return program(**(inputs or {"text": "good"})), reader.readings


def probabilities(found):
    return [math.exp(value) for value in found.log_probabilities]


class TestReading:
    @pytest.mark.parametrize(
        ("adapter", "engine", "program"),
        [
            (dspy.ChatAdapter(), chat(CONFIDENT), None),
            (dspy.JSONAdapter(), Scripted('{"', "label", '": "', CONFIDENT, '"}'), None),
            (PlainTextAdapter(), Scripted(CONFIDENT), None),
            (
                dspy.ChatAdapter(),
                Scripted(
                    "[[ ## reasoning ## ]]\n",
                    {"negative": 0.7, "positive": 0.3},
                    " words\n\n[[ ## label ## ]]\n",
                    CONFIDENT,
                ),
                classifier(module=dspy.ChainOfThought),
            ),
        ],
        ids=["chat", "JSON", "plain text", "after the reasoning"],
    )
    @pytest.mark.parametrize("endpoint", ["chat", "responses"])
    def test_of_each_adapter_and_endpoint(self, adapter, engine, program, endpoint):
        engine.requests.clear()
        answer, (found,) = asked(engine, adapter, program=program, lm=engine.lm(model_type=endpoint))
        assert answer.label == found.label == "positive"
        assert "logprobs" not in answer
        assert probabilities(found) == pytest.approx([0.06 / 0.98, 0.92 / 0.98])
        assert engine.requests == [20]

    def test_values_of_other_types(self):
        class Mood(enum.Enum):
            GOOD = "fine"
            BAD = "awful"

        for kind, told, value, label in [
            (bool, {"True": 0.25, "False": 0.75}, False, "False"),
            (Mood, {"fine": 0.25, "awful": 0.75}, Mood.BAD, "awful"),
        ]:
            answer, (found,) = asked(chat(told), kind=kind)
            assert answer.label is value
            assert (found.label, probabilities(found)) == (label, pytest.approx([0.25, 0.75]))

    def test_labels_that_share_their_first_token_are_followed(self):
        engine = chat({"very ": 0.8, "neutral": 0.2}, {"good": 0.75, "bad": 0.25})
        _, (found,) = asked(engine, kind=Literal["very bad", "very good", "neutral"])
        assert probabilities(found) == pytest.approx([0.2, 0.6, 0.2])

    def test_an_unlikely_label_has_what_the_unlikeliest_token_has(self):
        _, (found,) = asked(
            chat({"positive": 0.9, "negative": 0.09, "the": 0.01}),
            kind=Literal["negative", "positive", "mixed"],
        )
        assert probabilities(found) == pytest.approx([0.09, 0.9, 0.01])

    def test_what_a_server_does_not_compute_is_not_believed(self):
        _, (found,) = asked(chat({"positive": 1.0, "negative": 0.0}))
        assert found.log_probabilities == pytest.approx((LEAST, 0.0))

    def test_no_label_among_the_likeliest_tokens(self):
        tokens = {" ]]\npositive": 0.9, " ]]\nnegative": 0.1}  # None of them begins like a label.
        answer, readings = asked(Scripted("[[ ## label ##", tokens))
        assert (answer.label, readings) == ("positive", [None])

    def test_async(self):
        engine = chat(CONFIDENT)
        program = classifier()
        reader = reader_of(program)

        async def both():
            with dspy.context(lm=engine.lm(), adapter=reader):
                return await asyncio.gather(program.acall(text="a"), program.acall(text="b"))

        assert [answer.toDict() for answer in asyncio.run(both())] == [{"label": "positive"}] * 2
        assert [found.label for found in reader.readings] == ["positive"] * 2
        assert engine.requests == [20, 20]


class TestTheProgramStaysAsItIs:
    @pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter, PlainTextAdapter])
    def test_callbacks_are_called_as_often(self, adapter):
        class Counting(dspy.utils.BaseCallback):
            def __init__(self):
                self.calls = []

            def on_adapter_format_start(self, call_id, instance, inputs):
                self.calls.append("format")

            def on_adapter_parse_start(self, call_id, instance, inputs):
                self.calls.append("parse")

        engine = Scripted(
            *{
                dspy.ChatAdapter: ("[[ ## label ## ]]\npositive",),
                dspy.JSONAdapter: ('{"label": "positive"}',),
                PlainTextAdapter: ("positive",),
            }[adapter]
        )
        without, counted = Counting(), Counting()
        with dspy.context(lm=engine.lm(), adapter=adapter(callbacks=[without])):
            classifier()(text="good")
        asked(engine, adapter(callbacks=[counted]))
        assert counted.calls == without.calls != []

    def test_other_signatures_pass(self):
        for signature in ("text -> label", "text -> other: Literal['negative', 'positive']"):
            name = signature.split()[2].rstrip(":")
            engine = chat(CONFIDENT, name=name)
            _, readings = asked(engine, program=dspy.Predict(signature))
            assert (readings, engine.requests) == ([], [None])

    @pytest.mark.parametrize("where", ["program", "lm"])
    def test_log_probabilities_that_the_user_asked_for_stay(self, where):
        engine, wanted = chat(CONFIDENT), {"logprobs": True, "top_logprobs": 30}
        program = classifier(**(wanted if where == "program" else {}))
        answer, (found,) = asked(engine, program=program, lm=engine.lm(**(wanted if where == "lm" else {})))
        assert answer.logprobs.content[1].token == "positive"
        assert found.label == "positive"
        assert engine.requests == [30]

    def test_an_answer_cached_without_is_not_taken_for_one_with(self):
        engine = chat(CONFIDENT)
        lm = engine.lm(cache=True)
        program = classifier()
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            program(text="cached")
        for _ in range(2):
            _, (found,) = asked(engine, lm=lm, text="cached")
            assert found.label == "positive"
        assert engine.requests == [None, 20]

    def test_histories_tell_what_was_said_without_the_tokens(self, capsys):
        engine = chat(CONFIDENT)
        lm = engine.lm()
        program = classifier()
        asked(engine, program=program, lm=lm)
        (entry,) = lm.history
        assert program.history == [entry]
        assert "logprob" not in str(entry["outputs"]) + str(entry["response"])
        assert entry["outputs"] == ["[[ ## label ## ]]\npositive\n\n[[ ## completed ## ]]"]
        assert entry["usage"]["completion_tokens"] == 5
        lm.inspect_history()
        assert "positive" in capsys.readouterr().out

    def test_replies_of_async_calls_are_cached_on_the_disk_alone(self):
        before, engine = set(dspy.cache.memory_cache), chat(CONFIDENT)
        lm, text = engine.lm(cache=True), "on the disk"
        program = classifier()
        with dspy.context(lm=lm, adapter=reader_of(program)):
            reader = dspy.settings.adapter
            for _ in range(2):
                asyncio.run(program.acall(text=text))
        first, second = reader.readings
        assert first == second is not None
        assert engine.requests == [20]
        assert set(dspy.cache.memory_cache) == before

    def test_replies_that_cannot_be_read_raise_as_ever(self):
        engine = Scripted("no fields, no logprobs")
        requests = LogprobRequests()
        with pytest.raises(AdapterParseError):
            asked(engine, dspy.ChatAdapter(use_json_adapter_fallback=False), requests=requests)
        assert engine.requests == [20]
        assert requests.wanted


class TestEndpointsThatGiveNone:
    @pytest.mark.parametrize("error", [REFUSAL, lm15.UnsupportedFeatureError("no", feature="x")])
    def test_a_refusal_costs_one_request_in_all(self, error):
        engine = chat(CONFIDENT)
        engine.refusal = error
        requests = LogprobRequests()
        for _ in range(3):
            answer, readings = asked(engine, requests=requests)
            assert (answer.label, readings) == ("positive", [])
        assert engine.requests == [20, None, None, None]
        assert (requests.wanted, requests.reason) == (False, "fake/x refuses requests for log-probabilities")

    @pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")
    def test_an_lm_that_takes_no_such_arguments(self):
        class Old(dspy.BaseLM):
            def forward(self, prompt=None, messages=None, temperature=None, max_tokens=None):
                return chat_reply("[[ ## label ## ]]\npositive")

        requests = LogprobRequests()
        answer, _ = asked(None, lm=Old("old"), requests=requests)
        assert answer.label == "positive"
        assert requests.reason == "old refuses requests for log-probabilities"

    def test_many_threads_are_refused_once(self):
        engine, meeting = chat(CONFIDENT), threading.Barrier(2)

        class Slow(Scripted):
            def complete(self, request):
                if request.config.logprobs is not None:
                    with suppress(threading.BrokenBarrierError):
                        meeting.wait(0.2)  # for another that is refused
                return super().complete(request)

        slow = Slow(*engine.tokens, refusal=REFUSAL)
        requests = LogprobRequests()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: asked(slow, requests=requests)[0].label, range(8)))
        assert answers == ["positive"] * 8
        assert (slow.requests.count(20), slow.requests.count(None)) == (1, 8)

    def test_replies_without(self):
        engine = chat(CONFIDENT)
        engine.logprobs = False
        requests = LogprobRequests()
        for _ in range(3):
            asked(engine, requests=requests)
        assert engine.requests == [20, None, None]
        assert requests.reason == "fake/x gives no log-probabilities"

    def test_once_given_errors_are_errors(self):
        engine, requests = chat(CONFIDENT), LogprobRequests()
        asked(engine, requests=requests)
        engine.refusal = REFUSAL
        with pytest.raises(LMInvalidRequestError):
            asked(engine, requests=requests)
        assert requests.wanted

    def test_once_given_a_reply_without_has_no_reading(self):
        engine, requests = chat(CONFIDENT), LogprobRequests()
        asked(engine, requests=requests)
        engine.logprobs = False
        assert asked(engine, requests=requests)[1] == [None]
        assert requests.wanted

    def test_other_errors_are_errors(self):
        engine, requests = chat(CONFIDENT), LogprobRequests()
        engine.refusal = lm15.InvalidRequestError("the temperature is too high", status=400)
        with pytest.raises(LMInvalidRequestError):
            asked(engine, requests=requests)
        assert engine.requests == [20]


def chat_reply(text):
    choice = SimpleNamespace(message=SimpleNamespace(content=text), finish_reason="stop")
    return SimpleNamespace(choices=[choice], usage={}, model="old")


LIKELY = {" positive": 0.6, " negative": 0.3, " the": 0.001}


class Provider(http.server.ThreadingHTTPServer):
    """Says " positive", with what might have stood there, in the shape of the endpoint that was asked."""

    daemon_threads = True

    def __init__(self, refuses):
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuses = refuses
        self.bodies = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        asked = bool(body.get("logprobs") or body.get("top_logprobs"))
        if asked and self.server.refuses:
            message = "You are not allowed to request logprobs from this model."
            error = {"message": message, "type": "invalid_request_error", "code": None}
            return self.reply(403 if self.server.refuses == "403" else 400, {"error": error})
        plain = "prompt" in body
        choice = {"index": 0, "finish_reason": "stop"}
        choice |= (
            {"text": " positive"} if plain else {"message": {"role": "assistant", "content": " positive"}}
        )
        if asked:
            choice["logprobs"] = in_plain() if plain else logprobs_of([LIKELY])
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        kind = "text_completion" if plain else "chat.completion"
        reply = {"id": "x", "object": kind, "created": 1, "model": "m", "choices": [choice], "usage": usage}
        return self.reply(200, reply)

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


def in_plain():
    top = {token: math.log(p) for token, p in LIKELY.items()}
    return {
        "tokens": [" positive"],
        "token_logprobs": [top[" positive"]],
        "top_logprobs": [top],
        "text_offset": [0],
    }


@contextmanager
def serving(refuses=""):
    with Provider(refuses) as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()


def lm_of(provider, route, **options):
    options = {"cache": False, "num_retries": 0, **options}
    address = f"http://127.0.0.1:{provider.server_port}/v1"
    if route == "plain":
        return completion_lm(route, api_base=address, **options)
    means = {"dspy": {}, "litellm": {"engine": "litellm"}, "text": {"model_type": "text"}}[route]
    return dspy.LM(f"openai/{route}", api_base=address, api_key="k", **means, **options)


ROUTES = pytest.mark.parametrize("route", ["dspy", "litellm", "text", "plain"])


@ROUTES
class TestOverHTTP:
    """Chat and plain completions, by DSPy's own client and litellm."""

    def asked(self, lm, requests=None):
        answer, found = asked(None, PlainTextAdapter(), lm=lm, requests=requests, text="good")
        assert answer.toDict() == {"label": "positive"}
        return found

    def test_are_read_and_cached_on_the_disk_alone(self, route):
        """In memory one reply of 150 tokens takes 3 MB."""
        before = set(dspy.cache.memory_cache)
        with serving() as provider:
            lm = lm_of(provider, route, cache=True)
            (found,) = first = self.asked(lm)
            assert probabilities(found) == pytest.approx([1 / 3, 2 / 3])
            assert set(dspy.cache.memory_cache) == before
            assert self.asked(lm) == first
            assert set(dspy.cache.memory_cache) == before
        assert len(provider.bodies) == 1

    def test_stay_in_memory_where_there_is_no_disk_cache(self, route, monkeypatch):
        memory = Cache(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None)
        monkeypatch.setattr(dspy, "cache", memory)
        with serving() as provider:
            lm = lm_of(provider, route, cache=True)
            assert self.asked(lm) == self.asked(lm)
        assert len(provider.bodies) == 1

    @pytest.mark.parametrize("status", ["400", "403"])
    def test_are_refused(self, route, status):
        requests = LogprobRequests()
        with serving(status) as provider:
            lm = lm_of(provider, route)
            for _ in range(3):
                assert self.asked(lm, requests) == []
        assert requests.reason == f"{lm.model} refuses requests for log-probabilities"
        assert len(provider.bodies) == 4
