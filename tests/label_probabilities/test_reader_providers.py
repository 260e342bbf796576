"""Log-probabilities with a program's own calls, over HTTP: chat and plain completions."""

import http.server
import json
import math
import threading
from contextlib import contextmanager

import dspy
import pytest
from dspy.clients.cache import Cache
from fakes import logprobs_of

from plr_dspy import PlainTextAdapter
from plr_dspy.label_probabilities.reader import reading
from plr_dspy.label_probabilities.requests import LogprobRequests
from plr_dspy.lm.completion import completion_lm

LABELS = {"negative": "negative", "positive": "positive"}
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


def asked(lm, requests=None, *, text="good"):
    reader = reading(PlainTextAdapter(), "label", LABELS, requests=requests or LogprobRequests())
    with dspy.context(lm=lm, adapter=reader):
        answer = dspy.Predict("text -> label: Literal['negative', 'positive']")(text=text)
    assert answer.toDict() == {"label": "positive"}
    return reader.readings


ROUTES = pytest.mark.parametrize("route", ["dspy", "litellm", "text", "plain"])


@ROUTES
def test_are_read(route):
    with serving() as provider:
        (found,) = asked(lm_of(provider, route))
    assert [math.exp(value) for value in found.log_probabilities] == pytest.approx([1 / 3, 2 / 3])
    assert len(provider.bodies) == 1


@ROUTES
def test_are_read_from_the_cache(route):
    with serving() as provider:
        lm = lm_of(provider, route, cache=True)
        assert asked(lm) == asked(lm)
        dspy.cache.reset_memory_cache()
        assert asked(lm) == asked(lm)
    assert len(provider.bodies) == 1


@ROUTES
def test_stay_in_the_cache_on_the_disk_alone(route):
    """In memory one reply of 150 tokens takes 3 MB."""
    before = set(dspy.cache.memory_cache)
    with serving() as provider:
        lm = lm_of(provider, route, cache=True)
        first = asked(lm, text="kept")
        assert set(dspy.cache.memory_cache) == before
        assert asked(lm, text="kept") == first
        assert set(dspy.cache.memory_cache) == before
        assert len(provider.bodies) == 1


@ROUTES
def test_stay_in_memory_where_there_is_no_disk_cache(route, monkeypatch):
    memory = Cache(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None)
    monkeypatch.setattr(dspy, "cache", memory)
    with serving() as provider:
        lm = lm_of(provider, route, cache=True)
        assert asked(lm, text="kept") == asked(lm, text="kept")
        assert len(provider.bodies) == 1


@ROUTES
@pytest.mark.parametrize("status", ["400", "403"])
def test_are_refused(route, status):
    requests = LogprobRequests()
    with serving(status) as provider:
        lm = lm_of(provider, route)
        for _ in range(3):
            assert asked(lm, requests) == []
    assert requests.reason == f"{lm.model} refuses requests for log-probabilities"
    assert len(provider.bodies) == 4
