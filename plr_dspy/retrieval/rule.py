"""Which demos of its pool a predictor shows for an input, and in what order: features of demos, and a rule on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from plr_dspy.plackett_luce.covariates import CovariatePlackettLuce, Features
from plr_dspy.programs.calls import Scored
from plr_dspy.programs.splits import answer_classes, folded_key, source_of
from plr_dspy.retrieval.similarity import Similarity, text_of
from plr_dspy.statistics.calibration import Array

FEATURES = ("similarity", "rank", "label_share", "length", "repeated_label", "likeness")
"""What the logit of a demo is made of, as `Pool.features` gives it."""

NEAREST = {"similarity": 1.0}
"""The coefficients of a rule that shows what is most like the input."""


@dataclass(frozen=True)
class Rule:
    """Shows the demos of the largest logits, which their features give.

    The default shows the demos whose inputs are most like the input, the nearest last. Source: J. Liu et al., "What
    makes good in-context examples for GPT-3?", DeeLIO 2022.

    Attributes:
        num_demos: How many are shown, where the pool has so many.
        coefficients: Of the features, by their names; others are 0. Among equals the demo that comes first in the pool
            has the larger logit.
        nearest_last: Whether the demo of the largest logit stands last, next to the question, or first.
        num_candidates: The features are those among so many demos that are most like the input.
        max_tokens: Of the demos shown together; those of the smallest logits are left out until they have no more.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # Of files from later versions.

    num_demos: int = 8
    coefficients: Mapping[str, float] = field(default_factory=lambda: dict(NEAREST))
    nearest_last: bool = True
    num_candidates: int = 32
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if unknown := sorted(self.coefficients.keys() - set(FEATURES)):
            raise ValueError(f"coefficients must be of features among {list(FEATURES)}; got {unknown}")
        if not 0 < self.num_demos <= self.num_candidates:
            raise ValueError(
                f"num_demos must be from 1 to num_candidates={self.num_candidates}; got {self.num_demos}"
            )

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {value:+g}" for name, value in self.coefficients.items())
        order = "last" if self.nearest_last else "first"
        how = f"{self.num_demos} demos found for each input, the nearest {order}"
        return how if self.coefficients == NEAREST else f"{how} (nearest by {terms})"

    @property
    def logits(self) -> CovariatePlackettLuce:
        """The distribution over choices of demos whose mode is shown."""
        return CovariatePlackettLuce([self.coefficients.get(name, 0.0) for name in FEATURES])


class Pool:
    """The demos that a predictor may show.

    Args:
        demos: Examples or dicts.
        names: Of the input fields, by which demos and inputs are compared.
        outputs: Of the output fields, by which demos are of one class or not.
        similarity: Of inputs to those of the demos.
        sources: What identifies the inputs of the program that each demo is made of ``[n]``.
        tokens: Of each demo in a prompt, ``[n]``; empty where that is not known.
    """

    def __init__(
        self,
        demos: Sequence[Any],
        *,
        names: Sequence[str],
        outputs: Sequence[str],
        similarity: Similarity,
        sources: Sequence[str],
        tokens: Sequence[int] = (),
    ) -> None:
        self.demos, self.names, self.outputs = list(demos), list(names), list(outputs)
        self.similarity, self.sources = similarity, list(sources)
        rows = [dict(demo.items()) for demo in demos]
        self._asked = [self._inputs(row) for row in rows]
        self.classes = np.array(answer_classes(rows, list(outputs)), dtype=int)
        self.tokens = list(tokens) or [0] * len(rows)
        sizes = np.log1p([len(text_of(row, [*names, *outputs])) for row in rows])
        self._lengths: Array = sizes - sizes.mean() if len(sizes) else sizes

    def __len__(self) -> int:
        return len(self.demos)

    def nearest(self, inputs: Mapping[str, Any], number: int, *, without: Scored | None = None) -> list[int]:
        """The demos whose inputs are most like some inputs, the likest first; of equals the first.

        Args:
            inputs: Of a call.
            number: How many.
            without: An example that is scored: demos of its source are left out, and those of the same inputs.
        """
        like, _ = self._ranked(inputs, number, without)
        return like

    def vote(
        self, inputs: Mapping[str, Any], number: int, *, without: Scored | None = None
    ) -> dict[str, Any]:
        """The most frequent answer of the nearest demos, of equals the nearest one's; arguments as in `nearest`."""
        near = self.nearest(inputs, number, without=without)
        votes = Counter(self.classes[near].tolist())
        winner = next(i for i in near if votes[int(self.classes[i])] == max(votes.values()))
        return {name: self.demos[winner].get(name) for name in self.outputs}

    def shown(self, inputs: Mapping[str, Any], rule: Rule, *, without: Scored | None = None) -> list[int]:
        """The demos that a rule shows, in the order of the prompt; arguments are those of `nearest`."""
        candidates, features = self.features(inputs, rule.num_candidates, without=without)
        length = min(rule.num_demos, len(candidates))
        chosen = [candidates[i] for i in rule.logits.mode(features, length)]
        while rule.max_tokens is not None and sum(self.tokens[i] for i in chosen) > rule.max_tokens:
            chosen.pop()
        return chosen[::-1] if rule.nearest_last else chosen

    def features(
        self, inputs: Mapping[str, Any], number: int, *, without: Scored | None = None
    ) -> tuple[list[int], Features]:
        """The demos that are most like some inputs, and their features, ``[c, f]`` of `FEATURES`.

        These are: the cosine of the vectors; less the logarithm of the place among the likest; the share of the
        candidates that have the demo's label; the logarithm of its length less the mean of the pool; and of what is
        shown already, the share that has its label, and the largest cosine to it.

        Args:
            inputs, number, without: As in `nearest`.
        """
        candidates, like = self._ranked(inputs, number, without)
        classes = self.classes[candidates]
        same = classes[:, None] == classes[None, :]
        fixed = [like, -np.log1p(np.arange(len(candidates))), same.mean(axis=1) if candidates else like]
        fixed.append(self._lengths[candidates])
        cosines: list[Array] = []  # Computed where something needs them, and once.

        def features(chosen: Sequence[int]) -> Array:
            repeated = likeness = np.zeros(len(candidates))
            if len(chosen):
                cosines.extend([] if cosines else [self.similarity.among(candidates)])
                repeated, likeness = same[:, chosen].mean(axis=1), cosines[0][:, chosen].max(axis=1)
            return np.stack([*fixed, repeated, likeness], axis=1)

        return candidates, features

    def _ranked(
        self, inputs: Mapping[str, Any], number: int, without: Scored | None
    ) -> tuple[list[int], Array]:
        """The likest demos and how like they are."""
        like, source, asked = self.similarity.to(text_of(inputs, self.names)), None, None
        if without is not None:
            source = without.source
            # What follows from its inputs, others may share: only these tell that it is asked.
            if any(folded_key(inputs[name]) in without.values for name in self.names if name in inputs):
                asked = self._inputs(inputs)
        best = np.argsort(-like, kind="stable")
        left = (int(i) for i in best if self.sources[i] != source and self._asked[i] != asked)
        found = list(islice(left, number))
        return found, like[found]

    def _inputs(self, fields: Mapping[str, Any]) -> str:
        """What identifies the inputs of a demo or a call."""
        return source_of({name: fields[name] for name in self.names if name in fields})

    def __deepcopy__(self, memo: Any) -> Pool:
        """The pool itself, which nothing changes: copies of programs share it."""
        return self


RULES = TypeAdapter(Rule)
"""Reads rules from files."""
