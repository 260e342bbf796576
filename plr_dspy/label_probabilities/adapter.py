"""An adapter that asks only for the probabilities of labels, where the program would ask for an answer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import dspy

from plr_dspy.label_probabilities.light_memory import light_memory
from plr_dspy.label_probabilities.servers import (
    NoProbabilities,
    TokenServers,
    asking_for_probabilities,
    refusals_told,
    without_probabilities,
)
from plr_dspy.label_probabilities.tokens import Array, masses_in_reply, positions_of
from plr_dspy.lm.engines import CompletionEngine
from plr_dspy.lm.finite_outputs import finite_output, label_text
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter


class NoLabel(Exception):
    """No label is among the likeliest tokens."""


class LabelProbe(dspy.Adapter):
    """Stands for a program's adapter, and finds p(label | prompt) instead of an answer.

    The program goes on with the likeliest label. How the probabilities are found depends on the endpoint:

    - Plain completions (`completion_lm` with `PlainTextAdapter`) of a server that can echo a prompt with its
      log-probabilities, such as vLLM: exact, the sum over each label's tokens. They are looked up among the likeliest
      tokens, or else echoed.
    - Plain completions of others, such as llama.cpp: the likeliest first tokens. Those that several labels begin
      with are followed by further calls.
    - Chat: the likeliest tokens where the label stands in the reply. Those that several labels begin with are
      followed where the reply goes through them, and shared evenly where it does not.

    All are normalised over the labels.

    Args:
        adapter: The adapter that it stands for.
        purpose: What needs the probabilities, for messages.
        servers: Knows what each LM's server can do; shared by all probes of a compile.

    Attributes:
        found: A distribution ``[L]`` for each call of a predictor.
    """

    def __init__(self, adapter: dspy.Adapter, *, purpose: str, servers: TokenServers) -> None:
        super().__init__(callbacks=[])
        self.found: list[Array] = []
        self._adapter = adapter
        self._purpose = purpose
        self._servers = servers

    def __call__(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Find the probabilities, and answer with the likeliest label.

        Raises:
            NoProbabilities: If the provider gives none.
            NoLabel: If no label is among the likeliest tokens.
        """
        name, labels = finite_output(signature, purpose=self._purpose)
        first = next(iter(signature.output_fields)) == name
        plain = isinstance(lm, dspy.LM) and isinstance(lm.engine, CompletionEngine)
        answer: dict[str, Any] = {}
        if first and plain and isinstance(self._adapter, PlainTextAdapter):
            messages = self._adapter.format(signature, demos, inputs)
            prompt = "\n\n".join(message["content"] for message in messages)
            masses = self._servers.masses(lm, prompt, list(labels))
        else:
            shown, reply = self._reply(lm, lm_kwargs, signature, demos, inputs)
            positions = positions_of(reply.get("logprobs") if isinstance(reply, Mapping) else None)
            if not positions:
                raise without_probabilities(lm, self._purpose)
            try:
                answer = dict(self._adapter.parse(shown, reply["text"]))
            except Exception:  # A reply that cannot be read may still tell what was likely.
                answer = {}
            told = label_text(labels, answer.get(name))
            masses, _ = masses_in_reply(positions, list(labels), told, name=name)
        if not masses.sum() > 0:
            raise NoLabel(f"none of the labels {list(labels)} is among the likeliest tokens of {lm.model}")
        self.found.append(masses / masses.sum())
        likeliest = labels[list(labels)[int(masses.argmax())]]
        return [{**dict.fromkeys(signature.output_fields), **answer, name: likeliest}]

    def _reply(self, lm: Any, lm_kwargs: dict[str, Any], *call: Any) -> tuple[Any, Any]:
        """Make the adapter's own call; return the signature that was shown, and the reply before it is parsed."""
        adapter, seen = copy.copy(self._adapter), []

        def postprocess(shown: Any, original: Any, replies: Any, *_: Any) -> list[dict[str, Any]]:
            seen.append((shown, replies[0]))
            return [{}]

        adapter._call_postprocess = postprocess  # No other place sees replies before they are parsed.
        with light_memory(), refusals_told(lm, self._purpose):
            adapter(lm, asking_for_probabilities(lm, lm_kwargs), *call)
        if not seen:
            raise NoProbabilities(
                f"{self._purpose} needs an adapter that makes one LM call; {type(self._adapter).__name__} does not: "
                "use dspy.ChatAdapter, dspy.JSONAdapter or PlainTextAdapter"
            )
        return seen[0]
