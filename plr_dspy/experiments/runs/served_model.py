"""The language model of an experiment: the local one, or one behind an OpenAI-compatible server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from plr_dspy.experiments.names import LOCAL, Format

if TYPE_CHECKING:
    import dspy

MakeLM: TypeAlias = "Callable[[int], dspy.LM]"
"""Makes an LM whose answers have at most so many tokens."""


@dataclass(frozen=True)
class ServedModel:
    """Which model answers and where it is, as plain data, so that workers on other machines can open it.

    Attributes:
        model: "local" for SmolLM2-135M under llama.cpp, or a litellm name such as "hosted_vllm/Qwen/Qwen2.5-7B".
        api_bases: Addresses of servers that all serve the model. Each worker keeps to one of them, so that the prefix
            cache of a server holds the orderings of few runs; a router would send each call of an ordering elsewhere.
        api_key_env: Environment variable that holds the key.
        cache: Whether DSPy caches the answers: then calls that several methods make cost once, and the seconds say
            nothing.
        temperature: Sampling temperature of the answers.

    Raises:
        ValueError: for the local model with an address, or a vLLM server without one.
    """

    model: str = LOCAL
    api_bases: tuple[str, ...] = ()
    api_key_env: str | None = None
    cache: bool = False
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.model == LOCAL and self.api_bases:
            raise ValueError(f"api_bases: the local model has no address; got {self.api_bases}: pass a model")
        if self.model.startswith("hosted_vllm/") and not self.api_bases:
            raise ValueError(
                f"api_bases: {self.model} needs the address of its server, such as http://127.0.0.1:8000/v1"
            )

    def settings(self) -> dict[str, Any]:
        """What decides the answers, as plain data."""
        return {"model": self.model, "temperature": self.temperature}

    def check_key(self) -> None:
        """Raise unless the variable that should hold a key does.

        Raises:
            ValueError: with the name of the variable.
        """
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):
            raise ValueError(f"api_key_env: the variable {self.api_key_env} is not set")

    @contextmanager
    def open(self, *, format: Format, worker: int = 0, num_workers: int = 1) -> Iterator[MakeLM]:
        """Yield what makes LMs; the local model's server runs while this context lasts.

        Args:
            format: Format of the prompts.
            worker: Number of the worker that makes the calls, which picks one of several servers.
            num_workers: Number of workers; local models share the cores.

        Raises:
            ValueError: for plain prompts to a model whose address is not known, or a key that is not set.
        """
        import dspy

        from plr_dspy.lm.completion import completion_lm
        from plr_dspy.local.server import LocalServer

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
            common |= {"api_base": base, "api_key_env": self.api_key_env}
            yield lambda max_tokens: completion_lm(self.model, max_tokens=max_tokens, **common)
            return
        if base is not None:
            common["api_base"] = base
        if base is not None or self.api_key_env is not None:
            # Clients refuse to have no key, and servers of one's own do not look at it.
            common["api_key"] = os.environ.get(self.api_key_env or "") or "not-needed"
        yield lambda max_tokens: dspy.LM(self.model, max_tokens=max_tokens, **common)
