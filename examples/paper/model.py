"""The language model of an experiment: the local model, or a model on an OpenAI-compatible server."""

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
"""The name of the local model. Other models have litellm names."""

MakeLM: TypeAlias = Callable[[int], dspy.LM]
"""A function that builds an LM, given the maximum number of tokens in an answer."""


@dataclass(frozen=True)
class ServedModel:
    """A model and the addresses of its servers, as plain data to send to workers on other machines.

    Attributes:
        model: "local" for SmolLM2-135M on llama.cpp, or a litellm name such as
            "hosted_vllm/Qwen/Qwen2.5-7B".
        api_bases: Addresses of the model's servers. Each worker uses a single server, so that all
            calls with an ordering share a prefix cache. A router would spread the calls over all
            servers.
        api_key_env: Environment variable that holds the API key.
        cache: Whether DSPy caches answers. If so, methods share identical calls, and times are meaningless.
    """

    model: str = LOCAL
    api_bases: tuple[str, ...] = ()
    api_key_env: str | None = None
    cache: bool = False

    def check(self, format: Format) -> None:
        """Raise a ValueError if the API key or address is missing, or if the local model gets an address."""
        if self.model == LOCAL and self.api_bases:
            raise ValueError(
                f"api_bases (--api-base) must be empty for the local model; got {self.api_bases}. Omit --api-base, "
                "or pass the served model's name as --model."
            )
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):
            raise ValueError(
                f"api_key_env must name an environment variable with the API key; {self.api_key_env!r} is not set. Set "
                "this variable."
            )
        needs_address = format == "plain" or self.model.startswith("hosted_vllm/")
        if needs_address and self.model != LOCAL and not self.api_bases:
            raise ValueError(
                f"api_bases (--api-base) must contain the address of a server for {self.model}; got no address. Pass "
                "an address such as http://127.0.0.1:8000/v1."
            )

    @contextmanager
    def open(self, *, format: Format, number: int = 0, num_threads: int | None = None) -> Iterator[MakeLM]:
        """Yield a function that builds LMs. The local model's server runs until the context ends.

        Args:
            format: Prompt format of the LMs.
            number: Index of the worker. It selects one of several servers.
            num_threads: Number of CPU threads for the local model. If None, use one per core, up to 8.
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
            options["api_key"] = "not-needed"  # Clients require a key, but local servers ignore it.
        return dspy.LM(self.model, **options)
