"""Prompts as the adapter that will run renders them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
from dspy.adapters.decision import DecisionAdapter, resolve_adapter


def decision_adapter(predictor: dspy.Predict) -> DecisionAdapter | None:
    """Return what DSPy puts before the adapter where an output is a decision; None where there is none.

    Such outputs are `dspy.experimental.Choice`, `Noul` and `Score`, and labels that the predictor's `fields` name; of
    clients that answer decision requests themselves all outputs are. DSPy then shows the demos in the instructions. It
    raises a ValueError where `fields` do not fit the outputs.
    """
    lm, adapter = predictor.lm or dspy.settings.lm, dspy.settings.adapter or dspy.ChatAdapter()
    found = resolve_adapter(lm, adapter, predictor.signature, predictor.fields, predictor.signature)
    return found if isinstance(found, DecisionAdapter) else None


class PromptRenderer:
    """Renders demos as DSPy would in this context, for the LM that a predictor would call."""

    def __init__(self) -> None:
        self._adapter = dspy.settings.adapter or dspy.ChatAdapter()

    def render(self, predictor: dspy.Predict, demos: Sequence[Any]) -> str:
        """The part of the prompt that the demos decide, as one string."""
        return self.text(self.messages(predictor, demos))

    @staticmethod
    def text(messages: Sequence[Mapping[str, Any]]) -> str:
        """Messages as one string."""
        return json.dumps(messages, default=repr, sort_keys=True)

    def messages(self, predictor: dspy.Predict, demos: Sequence[Any]) -> list[dict[str, Any]]:
        """The messages that the demos become, with all that those hold beside the demos, but for the inputs."""
        if decision_adapter(predictor) is not None:
            return self.prompt(predictor, demos, {})
        signature = self._shown(predictor, predictor.signature)
        return list(self._adapter.format_demos(signature, list(demos)))

    def prompt(
        self, predictor: dspy.Predict, demos: Sequence[Any], inputs: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """All messages of a call; DSPy raises a ValueError where there can be none."""
        signature, demos = predictor.signature, list(demos)
        if (decision := decision_adapter(predictor)) is not None:
            request = decision._prepare(signature, demos, dict(inputs), {})
            if decision.system_one:
                return [{"role": "user", "content": json.dumps(request, default=repr)}]
            signature, demos = request["signature"], request["demos"]
        return list(self._adapter.format(self._shown(predictor, signature), demos, dict(inputs)))

    def _shown(self, predictor: dspy.Predict, signature: Any) -> Any:
        """Return the signature that the adapter formats: native features take fields out of it for some LMs."""
        lm = predictor.lm or dspy.settings.lm
        if lm is None or not hasattr(self._adapter, "_call_preprocess"):
            return signature
        tools: dict[str, list[Any]] = {name: [] for name in signature.input_fields}
        return self._adapter._call_preprocess(lm, dict(predictor.config), signature, tools)
