"""The language model of an experiment: the local one, or one behind an OpenAI-compatible server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import dspy

from .tasks import Format

LOCAL = "local"
"""Name of the local model, in place of a litellm name."""

MakeLM: TypeAlias = Callable[[int], dspy.LM]
"""Makes an LM whose answers have at most so many tokens."""


@dataclass(frozen=True)
class ServedModel:
    """Which model answers and where it is, as plain data, so that workers on other machines can open it.

    Attributes:
        model: "local" for SmolLM2-135M under llama.cpp, or a litellm name such as "hosted_vllm/Qwen/Qwen2.5-7B".
        api_bases: Addresses of servers that all serve the model. Each run keeps to one of them, so that the prefix
            cache of a server holds the orderings of few runs; a router would send each call of an ordering elsewhere.
        api_key_env: Environment variable that holds the key.
        cache: Whether DSPy caches the answers: then calls that several methods make cost once, and the seconds say
            nothing.
        temperature: Sampling temperature of the answers.
    """

    model: str = LOCAL
    api_bases: tuple[str, ...] = ()
    api_key_env: str | None = None
    cache: bool = False
    temperature: float = 0.0

    def check(self, format: Format) -> None:
        """Raise ValueError unless the key is set, and the address fits the model and the format of prompts."""
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
        """Yield what makes LMs for prompts of a format; the local model's server runs while this context lasts.

        The number picks one of several servers; the threads are those of the local model, by default one a core.
        """
        from plr_dspy.lm.engines import completion_lm
        from plr_dspy.local import LocalServer

        self.check(format)
        common: dict[str, Any] = {"cache": self.cache, "temperature": self.temperature}
        if self.model == LOCAL:
            route: Any = "completion" if format == "plain" else "chat"
            with LocalServer(num_threads=num_threads) as server:
                yield lambda max_tokens: server.lm(route, max_tokens=max_tokens, **common)
            return
        if self.api_bases:
            common["api_base"] = self.api_bases[number % len(self.api_bases)]
        if format == "plain":
            common["api_key_env"] = self.api_key_env
            yield lambda max_tokens: completion_lm(self.model, max_tokens=max_tokens, **common)
            return
        if self.api_bases or self.api_key_env is not None:
            # Clients refuse to have no key, and servers of one's own do not look at it.
            common["api_key"] = os.environ.get(self.api_key_env or "") or "not-needed"
        yield lambda max_tokens: dspy.LM(self.model, max_tokens=max_tokens, **common)
