"""Probabilities that a reply states: DSPy's decision outputs ask for them, and no log-probabilities are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dspy.adapters.decision import evidence_type
from dspy.adapters.decision_state import DecisionState
from dspy.adapters.types.decision import Choice, Noul
from pydantic import BaseModel

from plr_dspy.label_probabilities.tokens import Array

LEAST_STATED = 0.005
"""What a stated probability of 0 may be at most: models state two decimals."""


@dataclass(frozen=True)
class StatedProbabilities:
    """How the probabilities that a reply states of an output become its answer.

    Attributes:
        kind: The output's type: a `dspy.experimental.Choice` or `Noul`.
        weights: What DSPy multiplies the probability of each label by before it takes the largest, ``[L]``. A
            threshold t of a `Noul` is the weights 1 - t of True and t of False.
    """

    kind: type[Choice] | type[Noul]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, state: DecisionState, name: str) -> StatedProbabilities:
        """Return those of an output by what DSPy knows of a predictor's outputs."""
        kind, settings = state.types[name], state.fields[name]
        if issubclass(kind, Noul):
            return cls(kind, (1.0 - settings["threshold"], settings["threshold"]))
        return cls(kind, tuple(settings["weights"].get(label, 1.0) for label in kind.criteria()))

    def are_asked_of(self, field: Any) -> bool:
        """Tell whether a reply with this output field states them."""
        return bool(field.annotation is evidence_type(self.kind))

    def weighted(self, evidence: Any) -> Array:
        """Return the weighted probabilities ``[L]``, up to a factor, of what a reply states."""
        told = _plain(evidence)
        yes = told.get("noul")
        stated = (
            [told["probabilities"][name] for name in self.kind.criteria()]
            if yes is None
            else [yes, 1.0 - yes]
        )
        return np.array(stated) * self.weights

    def evidence(self, evidence: Any, probabilities: Array) -> dict[str, Any]:
        """Return what a reply would have stated, had its weighted probabilities been these, ``[L]``."""
        told, weights = _plain(evidence), np.array(self.weights)
        stated = np.divide(probabilities, weights, out=np.zeros(len(weights)), where=weights > 0)
        shares = (stated / stated.sum()).tolist()
        if "noul" in told:
            return {**told, "noul": shares[0]}
        return {**told, "probabilities": dict(zip(self.kind.criteria(), shares, strict=True))}


def _plain(evidence: Any) -> dict[str, Any]:
    """Return evidence as a dict, its labels by their names."""
    return evidence.model_dump(by_alias=True) if isinstance(evidence, BaseModel) else dict(evidence)
