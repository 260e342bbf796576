"""The local model's server as a context, and the language model behind it for DSPy."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

import dspy

from plr_dspy.lm.completion import completion_lm
from plr_dspy.local.weights import find_weights

Route = Literal["completion", "chat", "litellm"]

_CHILD = Path(__file__).with_name("llama_child.py")


class LocalServer:
    """llama.cpp's OpenAI-compatible server in a child process, on 127.0.0.1 and a free port, as a context.

    Args:
        weights: A GGUF file; None asks `find_weights`.
        num_threads: CPU threads of the model; None takes one where the variable CI is set, since those
            machines are shared, else one for each core, up to 8.
        parallel: Calls served at a time. More callers wait their turn. Each further one reads the demos of a
            new ordering for itself, and answers are a little less repeatable: few cores do best with one.
        context_length: Longest prompt and answer of one call, in tokens.
        verbose: Whether llama.cpp reports to stderr more than its errors.

    Raises:
        ValueError: If a number is not positive.
    """

    def __init__(
        self,
        weights: str | os.PathLike[str] | None = None,
        *,
        num_threads: int | None = None,
        parallel: int = 1,
        context_length: int = 4096,
        verbose: bool = False,
    ) -> None:
        self.num_threads = _default_threads() if num_threads is None else num_threads
        self.parallel = parallel
        self.context_length = context_length
        for name in ("num_threads", "parallel", "context_length"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a positive integer, got {value!r}")
        self.weights = find_weights(weights)
        self.verbose = verbose
        self._child: subprocess.Popen[str] | None = None
        self._address = ""

    @property
    def model(self) -> str:
        """The model's name at the server: the weights file's name."""
        return self.weights.stem

    @property
    def api_base(self) -> str:
        """The server's address for OpenAI clients, ending in /v1."""
        return f"{self._running()}/v1"

    def __enter__(self) -> LocalServer:
        if self._child is not None:
            raise RuntimeError("this LocalServer is already running; make another one")
        if importlib.util.find_spec("xllamacpp") is None:
            raise ImportError("LocalServer needs xllamacpp: pip install 'plr-dspy[local]'")
        # litellm looks up a price table on the network when it is first used, which has no use here.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        self._child = subprocess.Popen(
            [sys.executable, "-I", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Threads that spin while they wait make calls fifty times slower when they lack a free core.
            env={"OMP_WAIT_POLICY": "passive", **os.environ},
            # An interrupt at the keyboard is the parent's to handle.
            start_new_session=True,
        )
        try:
            self._address = self._start(self._child)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def lm(self, route: Route = "completion", **kwargs: Any) -> dspy.LM:
        """Build an LM that this server answers.

        Args:
            route: "completion" for plain prompts, for `PlainTextAdapter`; "chat" for DSPy's own client, which
                applies the model's chat template; "litellm" for the same through litellm.
            **kwargs: Arguments of `completion_lm` or `dspy.LM`. Unless given, the temperature is 0, an answer
                has 16 tokens at most, and DSPy caches nothing, as its cache does not tell servers apart.

        Returns:
            The LM, of use while the server runs.

        Raises:
            ValueError: If there is no such route.
            RuntimeError: If the server is not running.
        """
        settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 16, "cache": False, **kwargs}
        if route == "completion":
            return completion_lm(self.model, api_base=self.api_base, **settings)
        if route == "litellm":
            settings["engine"] = "litellm"
        elif route != "chat":
            raise ValueError(f"route: expected 'completion', 'chat' or 'litellm', got {route!r}")
        return dspy.LM(f"openai/{self.model}", api_base=self.api_base, api_key="local", **settings)

    def metrics(self) -> dict[str, float]:
        """Return llama.cpp's counters by name, such as "prompt_tokens_total" (those not from the cache)."""
        address = urlsplit(self._running())
        connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name.removeprefix("llamacpp:"): float(value) for name, value in pairs}

    def _running(self) -> str:
        if self._child is None:
            raise RuntimeError("the server is not running; use it inside 'with LocalServer() as server:'")
        return self._address

    def _start(self, child: subprocess.Popen[str]) -> str:
        assert child.stdin is not None and child.stdout is not None
        settings = {
            "sys_path": sys.path,
            "weights": str(self.weights),
            "model": self.model,
            "parallel": self.parallel,
            "context_length": self.context_length,
            "num_threads": self.num_threads,
            "verbose": self.verbose,
        }
        # A child that ended early is noticed below, by its missing answer.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(settings) + "\n")
            child.stdin.flush()
        line = next((line for line in child.stdout if line.startswith("{")), "{}")
        reply = json.loads(line)
        if "address" not in reply:
            reason = reply.get("error", "its process ended")
            raise RuntimeError(f"llama.cpp could not serve {self.weights}: {reason}")
        return str(reply["address"])

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            # There is nothing to save, and calls that are still running must not delay the end.
            child.kill()
            child.communicate()


@contextlib.contextmanager
def local_lm(
    route: Route = "completion",
    *,
    weights: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
    parallel: int = 1,
    context_length: int = 4096,
    verbose: bool = False,
    **kwargs: Any,
) -> Iterator[dspy.LM]:
    """Start a `LocalServer` and yield an LM that it answers, as a context.

    Args:
        route: See `LocalServer.lm`.
        weights: See `LocalServer`.
        num_threads: See `LocalServer`.
        parallel: See `LocalServer`.
        context_length: See `LocalServer`.
        verbose: See `LocalServer`.
        **kwargs: Arguments of the LM, see `LocalServer.lm`.
    """
    server = LocalServer(
        weights,
        num_threads=num_threads,
        parallel=parallel,
        context_length=context_length,
        verbose=verbose,
    )
    with server:
        yield server.lm(route, **kwargs)


def _default_threads() -> int:
    if os.environ.get("CI"):
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(cores, 8)
