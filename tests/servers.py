"""Local HTTP servers that replace providers in tests."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dspy


@dataclass
class Request:
    """A request to a server.

    Attributes:
        number: Index of the request.
        path, body, key: The path, the JSON body and the API key.
        connection: The connection on which `reply()` answers.
        at: Time of arrival by `time.monotonic()`.
    """

    number: int
    path: str
    body: Any
    key: str
    connection: http.server.BaseHTTPRequestHandler
    at: float = field(default_factory=time.monotonic)

    def reply(self, status: int, content: Any, **headers: Any) -> None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.connection.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.connection.send_header(name.replace("_", "-"), str(value))
        self.connection.send_header("content-length", str(len(data)))
        with contextlib.suppress(ConnectionError):
            self.connection.end_headers()
            self.connection.wfile.write(data)


class Server(http.server.ThreadingHTTPServer):
    """A server that records each request, and answers it by calling `answer`.

    Attributes:
        requests: All requests so far.
        released: An event that is set when the server stops, so that waiting requests can end.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer: Callable[[Request], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.lock = threading.Lock()
        self.requests: list[Request] = []
        self.released = threading.Event()

    @property
    def api_base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def num_requests(self) -> int:
        return len(self.requests)

    @property
    def bodies(self) -> list[Any]:
        return [request.body for request in self.requests]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.headers.get("authorization", "").removeprefix("Bearer ")
        with self.server.lock:
            request = Request(len(self.server.requests), self.path, body, key, self)
            self.server.requests.append(request)
        self.server.answer(request)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class ChatServer(Server):
    """A server that answers chats with an engine from `fakes`.

    `trouble` takes a request's index and last message. It returns None, or a function
    that handles the request instead of the engine.
    """

    def __init__(self, engine: Any, trouble: Callable[[int, str], Any]) -> None:
        super().__init__(self.answer_or_not)
        self.engine = engine
        self.trouble = trouble

    def answer_or_not(self, request: Request) -> None:
        system, *texts = [message["content"] for message in request.body["messages"]]
        trouble = self.trouble(request.number, texts[-1])
        if trouble:
            trouble(request)
        else:
            request.reply(200, completion(self.engine.answer(system, texts), plain=False))

    def lm(self, **options: Any) -> dspy.LM:
        options = {"num_retries": 0, "cache": False, **options}
        return dspy.LM("openai/test", api_base=self.api_base, api_key="sk-secret", **options)


def refusal(
    status: int, *, kind: str = "error", message: str = "no", **headers: Any
) -> Callable[[Request], None]:
    """Return a function that replies to a request with a provider's error."""
    content = {"error": {"message": message, "type": kind, "code": kind}}
    return lambda request: request.reply(status, content, **headers)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Any]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


def completion(
    text: str | None, *, plain: bool = True, logprobs: Any = None, finish_reason: str = "stop"
) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason}
    choice |= {"text": text} if plain else {"message": {"role": "assistant", "content": text}}
    if logprobs is not None:
        choice["logprobs"] = logprobs
    kind = "text_completion" if plain else "chat.completion"
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    reply = {"id": "x", "object": kind, "created": 1, "model": "m"}
    return {**reply, "choices": [choice], "usage": usage}


def llama_count(server: Any, name: str) -> float:
    """Return the value of a `LocalServer`'s counter, such as "prompt_tokens_total"."""
    with urllib.request.urlopen(f"{server.api_base.removesuffix('/v1')}/metrics") as reply:
        metrics = reply.read().decode()
    return float(re.search(rf"^llamacpp:{name} (\S+)$", metrics, re.M)[1])  # type: ignore[index]
