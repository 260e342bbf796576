"""The language model of an experiment: the local one, or one behind an OpenAI-compatible server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import dspy

from plr_dspy.lm.completion import completion_lm
from plr_dspy.local import LocalServer

LOCAL = "local"


class MakeLM(Protocol):
    """Builds an LM whose answers have so many tokens at most."""

    def __call__(self, max_tokens: int) -> dspy.LM:
        """Build it."""


@dataclass(frozen=True)
class Endpoint:
    """Where a model is, as plain data, so that workers on other machines can open it.

    Attributes:
        model: "local" for SmolLM2-135M under llama.cpp, or a litellm name such as "hosted_vllm/Qwen/Qwen2.5-7B".
        api_bases: Addresses of servers that all serve it. Each worker keeps to one of them, so that the prefix cache
            of a server holds the orderings of few runs; a router would send each call of an ordering elsewhere.
        api_key_env: Environment variable that holds the key.
        cache: Whether DSPy caches the answers: then calls that several methods make cost once, and the seconds say
            nothing.
        temperature: Of the answers.
    """

    model: str = LOCAL
    api_bases: tuple[str, ...] = ()
    api_key_env: str | None = None
    cache: bool = False
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.model == LOCAL and self.api_bases:
            raise ValueError(f"api_bases: the local model has no address; got {self.api_bases}: pass a model")
        if self.model != LOCAL and not self.api_bases and self.model.startswith("hosted_vllm/"):
            raise ValueError(
                f"api_bases: {self.model} needs the address of its server, such as http://127.0.0.1:8000/v1"
            )

    def settings(self) -> dict[str, Any]:
        """What decides the answers, as plain data."""
        return {name: value for name, value in asdict(self).items() if name in ("model", "temperature")}

    def check_key(self) -> None:
        """Raise unless the variable that should hold a key does.

        Raises:
            ValueError: with its name.
        """
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):
            raise ValueError(f"api_key_env: the variable {self.api_key_env} is not set")

    @contextmanager
    def open(self, *, format: str, worker: int = 0, num_workers: int = 1) -> Iterator[MakeLM]:
        """Yield what builds LMs.

        Args:
            format: Of the prompts: "plain" or "chat".
            worker: Whose LMs they are.
            num_workers: How many there are; local models share the cores.

        Raises:
            ValueError: for plain prompts to a model whose address is not known, or a key that is not set.
        """
        self.check_key()
        common: dict[str, Any] = {"cache": self.cache, "temperature": self.temperature}
        if self.model == LOCAL:
            threads = None if num_workers == 1 else max(1, (os.cpu_count() or 1) // num_workers)
            with LocalServer(num_threads=threads) as server:
                route: Any = "completion" if format == "plain" else "chat"
                yield lambda max_tokens: server.lm(route, max_tokens=max_tokens, **common)
            return
        base = self.api_bases[worker % len(self.api_bases)] if self.api_bases else None
        if format == "plain":
            if base is None:
                raise ValueError(
                    f"api_bases: plain prompts go to a completions endpoint, whose address must be known; pass that "
                    f"of {self.model}, or format='chat'"
                )
            yield lambda max_tokens: completion_lm(
                self.model, api_base=base, api_key_env=self.api_key_env, max_tokens=max_tokens, **common
            )
            return
        if base is not None:
            common["api_base"] = base
        if base is not None or self.api_key_env is not None:
            common["api_key"] = _key(self.api_key_env)
        yield lambda max_tokens: dspy.LM(self.model, max_tokens=max_tokens, **common)


def _key(variable: str | None) -> str:
    # Clients refuse to have none, and servers of one's own do not look at it.
    return os.environ.get(variable or "") or "not-needed"
