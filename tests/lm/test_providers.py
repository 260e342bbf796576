"""PLReorder against a provider that misbehaves: a real HTTP server on loopback that answers in DSPy's format."""

import http.server
import json
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import dspy
import pytest
from dspy.utils import exceptions
from fakes import OrderSensitiveEngine, exact_match, questions

from plr_dspy import PLReorder

EXAMPLES = questions(40)
NUM_THREADS = 4


class Provider(http.server.ThreadingHTTPServer):
    """An OpenAI-style chat endpoint; `trouble(request number, prompt)` says what to do instead of answering."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, trouble=lambda number, prompt: None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine = OrderSensitiveEngine({example.question: example.answer for example in EXAMPLES})
        self.trouble = trouble
        self.lock = threading.Lock()
        self.prompts = []
        self.times = []
        self.released = threading.Event()

    @property
    def num_requests(self):
        return len(self.prompts)

    def lm(self, **options):
        options = {"num_retries": 2, "cache": False, "timeout": 20, **options}
        address = f"http://127.0.0.1:{self.server_port}/v1"
        return dspy.LM("openai/test", api_base=address, api_key="sk-secret", temperature=0.0, **options)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        system, *texts = [message["content"] for message in request["messages"]]
        server = self.server
        with server.lock:
            number = len(server.prompts)
            server.prompts.append(tuple(texts))
            server.times.append(time.monotonic())
        trouble = server.trouble(number, texts[-1])
        if trouble is None:
            usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
            message = {"role": "assistant", "content": server.engine.answer(system, texts)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "test"}
            self.reply(200, json.dumps({**reply, "choices": [choice], "usage": usage}))
        else:
            trouble(self)

    def reply(self, status, body, **headers):
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments):
        pass


def status(code, *, kind="error", message="no", **headers):
    body = json.dumps({"error": {"message": message, "type": kind, "code": kind}})
    return lambda handler: handler.reply(code, body, **headers)


def hang(handler):
    handler.server.released.wait(30)
    handler.close_connection = True


def cut(handler):
    """Half an answer, and the line is dead."""
    handler.send_response(200)
    handler.send_header("content-length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"id": "x", "choices": [')
    handler.wfile.flush()
    handler.connection.close()
    handler.close_connection = True


def garbage(handler):
    handler.reply(200, "<html>It works!</html>")


@contextmanager
def serving(trouble=lambda number, prompt: None):
    with Provider(trouble) as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield provider
        provider.released.set()
        provider.shutdown()
        thread.join()


def student():
    program = dspy.Predict("question -> answer")
    program.demos = EXAMPLES[:4]
    return program


def compiled(provider, *, lm=None, **options):
    """The optimizer after a compile, and the exception it ended in."""
    options = {"max_metric_calls": 120, "num_threads": NUM_THREADS, "display_progress": False, **options}
    reorder = PLReorder(exact_match, **options)
    adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
    error = None
    with dspy.context(lm=lm or provider.lm(), adapter=adapter):
        try:
            reorder.compile(student(), trainset=EXAMPLES)
        except Exception as caught:
            error = caught
    return SimpleNamespace(report=reorder.report, best=reorder.best_program, error=error)


@pytest.fixture(scope="module")
def clean():
    """The report where nothing goes wrong."""
    with serving() as provider:
        result = compiled(provider)
        assert result.error is None
        assert provider.num_requests == result.report.program_calls["total"]
        return result.report


@pytest.fixture(scope="module")
def asked():
    """Numbers of two questions that score orders in the search."""
    with serving() as provider:
        compiled(provider)
    counts = Counter(int(re.search(r"question (\d+)\n", prompt[-1])[1]) for prompt in provider.prompts)
    return [number for number, _ in counts.most_common(2)]


def once_each(trouble, every=12):
    """Trouble at every so manieth request, but never twice for one prompt."""
    seen = set()

    def at(number, prompt):
        if number % every == 2 and prompt not in seen:
            seen.add(prompt)
            return trouble
        return None

    return at, seen


ROUTES = pytest.mark.parametrize("route", [{}, {"engine": "litellm"}], ids=["dspy", "litellm"])


class TestPassing:
    """What the client's retries mend costs requests, and changes nothing else."""

    @ROUTES
    @pytest.mark.parametrize(
        "trouble",
        [status(429, retry_after=0.05), status(500, retry_after=0.05), status(503, retry_after=0.05)],
        ids=["429", "500", "503"],
    )
    def test_retried_by_the_client(self, clean, trouble, route):
        at, seen = once_each(trouble)
        with serving(at) as provider:
            result = compiled(provider, lm=provider.lm(**route))
        assert result.error is None
        assert result.report.errors == []
        assert result.report.slots == clean.slots
        assert result.report.comparison == clean.comparison
        assert result.report.program_calls == clean.program_calls
        assert provider.num_requests == clean.program_calls["total"] + len(seen)
        assert len(seen) > 2

    def test_cut_connections(self, clean):
        first = []

        def at(number, prompt):
            if number in (3, 20):
                first.append(number)
                return cut
            return None

        with serving(at) as provider:
            result = compiled(provider)
        assert result.error is None
        assert result.report.comparison == clean.comparison
        assert provider.num_requests == clean.program_calls["total"] + 2

    def test_hangs_end_by_the_client_s_timeout(self, clean):
        with serving(lambda number, prompt: hang if number == 7 else None) as provider:
            result = compiled(provider, lm=provider.lm(timeout=1.0))
        assert result.error is None
        assert result.report.comparison == clean.comparison
        assert provider.num_requests == clean.program_calls["total"] + 1

    def test_retry_after_is_waited_for(self):
        with serving(
            lambda number, prompt: status(429, retry_after=1.5) if number == 0 else None
        ) as provider:
            result = compiled(provider, num_threads=1)
        assert result.error is None
        assert provider.times[1] - provider.times[0] >= 1.5


class TestLasting:
    """What the retries do not mend is a failed call: counted, listed, and at `max_errors` the end."""

    @pytest.mark.parametrize(
        ("trouble", "error"),
        [
            (status(429, retry_after=0.01), exceptions.LMRateLimitError),
            (status(500, retry_after=0.01), exceptions.LMServerError),
            (hang, exceptions.LMTransportError),
            (cut, exceptions.LMTransportError),
            (garbage, exceptions.LMError),
        ],
        ids=["429", "500", "hang", "cut", "garbage"],
    )
    def test_some_examples(self, asked, trouble, error):
        """Two examples never run: they count for no order, and everything else as before."""

        def at(number, prompt):
            return trouble if any(f"question {i}\n" in prompt for i in asked) else None

        with serving(at) as provider:
            result = compiled(provider, lm=provider.lm(num_retries=0, timeout=1.0), max_errors=1000)
        report = result.report
        assert result.error is None
        assert issubclass(getattr(exceptions, report.errors[0].type), error)
        assert [e.outcome for e in report.errors] == ["not scored"] * len(report.errors)
        failed = sum(e.count for e in report.errors)
        assert failed == sum(at(0, prompt[-1]) is not None for prompt in provider.prompts) > 0
        assert {name for e in report.errors for name in e.examples} <= {f"trainset[{i}]" for i in asked}
        assert provider.num_requests == report.program_calls["total"] <= 120
        assert report.comparison.chosen >= report.comparison.original

    @pytest.mark.parametrize(
        ("trouble", "error"),
        [
            (status(429, retry_after=0.01), exceptions.LMRateLimitError),
            (status(500, retry_after=0.01), exceptions.LMServerError),
            (cut, exceptions.LMTransportError),
            (garbage, exceptions.LMError),
        ],
        ids=["429", "500", "cut", "garbage"],
    )
    def test_all_of_them(self, trouble, error):
        """The compile ends with the provider's own error; the report says what failed."""
        lasting = {"num_retries": 1} if trouble is not cut else {"num_retries": 0}
        with serving(lambda number, prompt: trouble if number > 40 else None) as provider:
            result = compiled(provider, lm=provider.lm(**lasting), max_errors=3)
        assert isinstance(result.error, error)
        assert result.report.stopped == f"ended by {type(result.error).__name__}"
        failed = sum(e.count for e in result.report.errors)
        assert 3 <= failed <= 3 + NUM_THREADS
        assert provider.num_requests <= 41 + 2 * failed
        assert len(result.best.demos) == 4

    def test_paid_again_when_the_provider_is_back(self, tmp_path, clean):
        with serving(lambda number, prompt: status(500) if number > 40 else None) as provider:
            result = compiled(provider, lm=provider.lm(num_retries=0), max_errors=3, log_dir=tmp_path)
            assert isinstance(result.error, exceptions.LMServerError)
        with serving() as another:
            resumed = compiled(another, log_dir=tmp_path)
        assert resumed.error is None
        assert resumed.report.errors == []
        answered = Counter(provider.engine.requests) + Counter(another.engine.requests)
        assert set(answered.values()) == {1}
        calls = resumed.report.program_calls
        assert provider.num_requests + another.num_requests == calls["total"] <= 120
        assert calls["resumed"] == provider.num_requests


class TestHopeless:
    """Every further call would fail in the same way."""

    @ROUTES
    @pytest.mark.parametrize(
        ("trouble", "error"),
        [
            (status(401, kind="invalid_api_key"), exceptions.LMAuthError),
            (status(403, kind="permission_error"), exceptions.LMAuthError),
            (status(402, kind="billing"), exceptions.LMBillingError),
            (status(429, kind="insufficient_quota"), exceptions.LMBillingError),
            (status(404, kind="model_not_found"), exceptions.LMUnsupportedModelError),
        ],
        ids=["401", "403", "402", "quota", "404"],
    )
    def test_ends_at_once(self, trouble, error, route, caplog):
        with serving(lambda number, prompt: trouble if number >= 10 else None) as provider:
            result = compiled(provider, lm=provider.lm(**route), max_errors=1000)
        assert isinstance(result.error, error)
        assert provider.num_requests <= 10 + 1 + NUM_THREADS
        assert result.report.program_calls["total"] == provider.num_requests
        assert result.report.errors[0].type == error.__name__
        assert "sk-secret" not in caplog.text + json.dumps(result.report.to_dict())


class TestTooLong:
    @ROUTES
    def test_is_wrong_and_says_which(self, asked, route, caplog):
        """The prompts of one example do not fit: it counts as wrong for every order."""
        message = "This model's maximum context length is 10 tokens."
        trouble = status(400, kind="context_length_exceeded", message=message)

        with serving(
            lambda number, prompt: trouble if f"question {asked[0]}\n" in prompt else None
        ) as provider:
            result = compiled(provider, lm=provider.lm(**route), max_errors=1)
        assert result.error is None
        (error,) = result.report.errors
        assert (error.type, error.outcome) == ("ContextWindowExceededError", "counted as wrong")
        assert error.examples == [f"trainset[{asked[0]}]"]
        assert (
            f"trainset[{asked[0]}] exceeds the context window with the demos in the order self: ["
            in caplog.text
        )
        assert provider.num_requests == result.report.program_calls["total"]
