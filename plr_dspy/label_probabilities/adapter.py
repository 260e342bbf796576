"""Asks a language model for the probabilities of labels, in the place where a program asks it for an answer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import dspy

from plr_dspy.label_probabilities.endpoints import (
    NUM_ALTERNATIVES,
    Endpoints,
    NoProbabilities,
    refusals_told,
    without_probabilities,
)
from plr_dspy.label_probabilities.tokens import (
    Array,
    Position,
    from_alternatives,
    label_position,
    normalised,
    path,
)
from plr_dspy.lm.engines import CompletionEngine
from plr_dspy.lm.finite_outputs import finite_output
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
        adapter: What it stands for.
        purpose: What needs the probabilities, for messages.
        endpoints: Knows what each LM's server can do; shared by all probes of a compile.

    Attributes:
        found: A distribution ``[L]`` for each call of a predictor.
    """

    def __init__(self, adapter: dspy.Adapter, *, purpose: str, endpoints: Endpoints) -> None:
        super().__init__(callbacks=[])
        self.found: list[Array] = []
        self._adapter = adapter
        self._purpose = purpose
        self._endpoints = endpoints

    def __call__(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Find the probabilities, and answer with the likeliest label.

        Raises:
            NoProbabilities: when the provider gives none.
            NoLabel: when no label is among the likeliest tokens.
        """
        name, labels = finite_output(signature, purpose=self._purpose)
        first = next(iter(signature.output_fields)) == name
        if first and isinstance(self._adapter, PlainTextAdapter) and _is_plain(lm):
            messages = self._adapter.format(signature, demos, inputs)
            prompt = "\n\n".join(message["content"] for message in messages)
            masses = self._endpoints.masses(lm, prompt, list(labels))
            answer: dict[str, Any] = {}
        else:
            masses, answer = self._from_reply(lm, lm_kwargs, signature, demos, inputs, name, labels)
        if not masses.sum() > 0:
            raise NoLabel(f"none of the labels {list(labels)} is among the likeliest tokens of {lm.model}")
        self.found.append(normalised(masses))
        likeliest = labels[list(labels)[int(masses.argmax())]]
        return [{**dict.fromkeys(signature.output_fields), **answer, name: likeliest}]

    def _from_reply(
        self,
        lm: Any,
        lm_kwargs: dict[str, Any],
        signature: Any,
        demos: list[Any],
        inputs: dict[str, Any],
        name: str,
        labels: Mapping[str, Any],
    ) -> tuple[Array, dict[str, Any]]:
        """What the adapter's own call tells: the probabilities, and the reply where it could be read."""
        adapter, outputs = copy.copy(self._adapter), []

        def postprocess(shown: Any, original: Any, replies: Any, *_: Any) -> list[dict[str, Any]]:
            outputs.append((shown, replies[0]))
            return [{}]

        adapter._call_postprocess = postprocess  # the one place that sees replies before they are parsed
        wanted = {**lm_kwargs, "logprobs": True, "top_logprobs": NUM_ALTERNATIVES}
        with refusals_told(lm, self._purpose):
            adapter(lm, wanted, signature, demos, inputs)
        if not outputs:
            raise NoProbabilities(
                f"{self._purpose} needs an adapter that makes one LM call; {type(self._adapter).__name__} does not: "
                "use dspy.ChatAdapter, dspy.JSONAdapter or PlainTextAdapter"
            )
        shown, reply = outputs[0]
        positions = _positions(reply, lm, self._purpose)
        try:
            answer = dict(self._adapter.parse(shown, reply["text"]))
        except Exception:  # a reply that cannot be read may still tell what was likely
            answer = {}
        told = [text for text, value in labels.items() if name in answer and value == answer[name]]
        start = label_position(positions, list(labels), told[0] if told else None, name=name)
        follow = path(positions, start)
        return from_alternatives(positions[start].alternatives, list(labels), follow=follow), answer


def _positions(reply: Any, lm: Any, purpose: str) -> list[Position]:
    """The positions of a reply in any of DSPy's shapes."""
    logprobs = reply.get("logprobs") if isinstance(reply, Mapping) else None
    content = getattr(logprobs, "content", None) or []
    positions = [
        Position(
            place.token,
            {place.token: place.logprob, **{top.token: top.logprob for top in place.top_logprobs or ()}},
        )
        for place in content
    ]
    if not positions:
        raise without_probabilities(lm, purpose)
    return positions


def _is_plain(lm: Any) -> bool:
    return isinstance(lm, dspy.LM) and isinstance(lm.engine, CompletionEngine)
