"""The language model of an experiment: the local one, or one behind an OpenAI-compatible server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import dspy

from plr_dspy import completion_lm
from plr_dspy.local import LocalServer, Route

from .tasks import Format

LOCAL = "local"
"""Name of the local model, in place of a litellm name."""

MakeLM: TypeAlias = Callable[[int], dspy.LM]
"""Makes an LM whose answers have at most this many tokens."""


@dataclass(frozen=True)
class ServedModel:
    """A model and its addresses, as plain data that can be sent to workers on other machines.

    Attributes:
        model: "local" for SmolLM2-135M under llama.cpp, or a litellm name such as "hosted_vllm/Qwen/Qwen2.5-7B".
        api_bases: Addresses of servers of the model. Each worker keeps to one of them, so that the prefix cache of a
            server holds the orderings of few runs. A router would spread the calls of an ordering over all servers.
        api_key_env: Environment variable that holds the key.
        cache: Whether DSPy caches answers. Calls that several methods make then cost once, and times mean nothing.
    """

    model: str = LOCAL
    api_bases: tuple[str, ...] = ()
    api_key_env: str | None = None
    cache: bool = False

    def check(self, format: Format) -> None:
        """Raise ValueError if the key is not set, or if the address does not fit the model and the prompt format."""
        if self.model == LOCAL and self.api_bases:
            raise ValueError(f"api_bases: the local model has no address; got {self.api_bases}: pass a model")
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):
            raise ValueError(f"api_key_env: the variable {self.api_key_env} is not set")
        needs_address = format == "plain" or self.model.startswith("hosted_vllm/")
        if needs_address and self.model != LOCAL and not self.api_bases:
            raise ValueError(
                f"api_bases: pass the address of the server of {self.model}, such as http://127.0.0.1:8000/v1: plain "
                "prompts go to its completions endpoint"
            )

    @contextmanager
    def open(self, *, format: Format, number: int = 0, num_threads: int | None = None) -> Iterator[MakeLM]:
        """Yield a function that makes LMs; the local model's server runs while this context lasts.

        Args:
            format: Prompt format of the LMs.
            number: Number of the worker, which picks one of several servers.
            num_threads: Threads of the local model; None takes one for each core.
        """
        self.check(format)
        if self.model == LOCAL:
            with LocalServer(num_threads=num_threads) as server:
                yield lambda max_tokens: self._local_lm(server, format, max_tokens)
        else:
            yield lambda max_tokens: self._served_lm(format, number, max_tokens)

    def _local_lm(self, server: LocalServer, format: Format, max_tokens: int) -> dspy.LM:
        route: Route = "completion" if format == "plain" else "chat"
        return server.lm(route, max_tokens=max_tokens, cache=self.cache)

    def _served_lm(self, format: Format, number: int, max_tokens: int) -> dspy.LM:
        options: dict[str, Any] = {"max_tokens": max_tokens, "cache": self.cache, "temperature": 0.0}
        if self.api_bases:
            options["api_base"] = self.api_bases[number % len(self.api_bases)]
        if format == "plain":
            return completion_lm(self.model, api_key_env=self.api_key_env, **options)
        if self.api_key_env is not None:
            options["api_key"] = os.environ[self.api_key_env]
        elif self.api_bases:
            options["api_key"] = "not-needed"  # Clients refuse to have none, and local servers ignore it.
        return dspy.LM(self.model, **options)
