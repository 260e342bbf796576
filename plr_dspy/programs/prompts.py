"""Prompts as DSPy would render them in this context, by the adapter that will run, for the LM of a predictor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
from dspy.adapters.decision import DecisionAdapter, resolve_adapter

Messages = list[dict[str, Any]]


def decision_adapter(predictor: dspy.Predict) -> DecisionAdapter | None:
    """Return what DSPy puts before the adapter where an output is a decision; None where there is none.

    Such outputs are `dspy.experimental.Choice`, `Noul` and `Score`, and labels that the predictor's `fields` name; of
    clients that answer decision requests themselves all outputs are. DSPy then shows the demos in the instructions. It
    raises a ValueError where `fields` do not fit the outputs.
    """
    lm, adapter = predictor.lm or dspy.settings.lm, dspy.settings.adapter or dspy.ChatAdapter()
    found = resolve_adapter(lm, adapter, predictor.signature, predictor.fields, predictor.signature)
    return found if isinstance(found, DecisionAdapter) else None


def prompt_messages(predictor: dspy.Predict, demos: Sequence[Any], inputs: Mapping[str, Any]) -> Messages:
    """All messages of a call; DSPy raises a ValueError where there can be none."""
    signature, demos, adapter = predictor.signature, list(demos), dspy.settings.adapter or dspy.ChatAdapter()
    if (decision := decision_adapter(predictor)) is not None:
        request = decision._prepare(signature, demos, dict(inputs), {})
        if decision.system_one:
            return [{"role": "user", "content": json.dumps(request, default=repr)}]
        signature, demos = request["signature"], request["demos"]
    return list(adapter.format(_shown_signature(adapter, predictor, signature), demos, dict(inputs)))


def demo_messages(predictor: dspy.Predict, demos: Sequence[Any]) -> Messages:
    """The messages that the demos become, with all that those hold beside the demos, but for the inputs."""
    if decision_adapter(predictor) is not None:
        return prompt_messages(predictor, demos, {})
    adapter = dspy.settings.adapter or dspy.ChatAdapter()
    signature = _shown_signature(adapter, predictor, predictor.signature)
    return list(adapter.format_demos(signature, list(demos)))


def as_text(messages: Messages) -> str:
    """Messages as one string, which tells prompts apart."""
    return json.dumps(messages, default=repr, sort_keys=True)


def _shown_signature(adapter: Any, predictor: dspy.Predict, signature: Any) -> Any:
    """Return the signature that the adapter formats: native features take fields out of it for some LMs."""
    lm = predictor.lm or dspy.settings.lm
    if lm is None or not hasattr(adapter, "_call_preprocess"):
        return signature
    tools: dict[str, list[Any]] = {name: [] for name in signature.input_fields}
    return adapter._call_preprocess(lm, dict(predictor.config), signature, tools)
