"""The order of demos that a program finds for each input, by how near they are to it."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import dspy
import numpy as np

from plr_dspy.programs.identity import digest
from plr_dspy.programs.slots import ProgramSlots, Slot
from plr_dspy.retrieval.predict import Retrieval, RetrievingPredict, retrieve_in
from plr_dspy.search.space import Ordering, OrderingSpace


class FoundSlots(ProgramSlots):
    """The orders of the demos that a program finds for each input, and of those that it shows before them.

    Found demos are the last block of their predictor's slot, which holds stand-ins that say how near each of them is.
    """

    @property
    def embedder(self) -> Any:  # type: ignore[override]
        return next((e for each in self._retrieving if (e := each.retrieval.pool.embedder) is not None), None)

    @property
    def reverse(self) -> Ordering:
        """The program's own order, but for found demos, which are the other way round."""
        blocks = [(slot, block) for slot in self.slots for block in slot.blocks]
        return tuple(
            items[::-1] if block[0] >= self._num_fixed(slot) else items
            for (slot, block), items in zip(blocks, self.space.identity, strict=True)
        )

    def build(self, ordering: Ordering, *, guarded: bool = False) -> dspy.Module:
        demos, retrievals = self._shown(ordering)
        program = self._factory.build(demos)
        return retrieve_in(program, {name: replace(each, guarded=guarded) for name, each in retrievals.items()})

    def fingerprint(self, ordering: Ordering, inputs: Any = None) -> str:
        """Digest of the demos that all inputs have, and of rules and pools that decide the others."""
        demos, retrievals = self._shown(ordering)
        return digest([self._digest(demos), {n: asdict(each.rule) for n, each in retrievals.items()}, self._content])

    def _shown(self, ordering: Ordering) -> tuple[dict[str, list[Any]], dict[str, Retrieval]]:
        """By predictor, the demos that all inputs have, and where and in what order others are found."""
        demos, retrievals, permutations = {}, {}, self.permutations(ordering)
        for slot in self.slots:
            predictor, number = self._predictors[slot.predictor], self._num_fixed(slot)
            shown = permutations[slot.predictor]
            demos[slot.predictor] = [slot.demos[i] for i in shown if i < number]
            if isinstance(predictor, RetrievingPredict):
                own = _nearness(predictor.retrieval)
                order = tuple(own[i - number] for i in shown if i >= number)
                rule = predictor.retrieval.rule
                rule = rule if order == own else replace(rule, order=order)
                retrievals[slot.predictor] = replace(predictor.retrieval, rule=rule)
        return demos, retrievals

    @property
    def _retrieving(self) -> list[RetrievingPredict]:
        """The predictors that find demos."""
        return [each for each in self._predictors.values() if isinstance(each, RetrievingPredict)]

    @cached_property
    def _content(self) -> str:
        """Digest of what decides which demos are found."""
        return digest([each.retrieval.facts for each in self._retrieving])

    def _num_fixed(self, slot: Slot) -> int:
        """Demos of a slot that all inputs have."""
        return len(self._predictors[slot.predictor].demos)

    def _slot(self, name: str, predictor: dspy.Predict) -> Slot:
        slot = super()._slot(name, predictor)
        if not isinstance(predictor, RetrievingPredict):
            return slot
        said, nearness = next(iter(predictor.signature.input_fields)), _nearness(predictor.retrieval)
        stand_ins = [dspy.Example({said: f"(number {place + 1} by nearness to the input)"}) for place in nearness]
        slot = replace(slot, demos=(*slot.demos, *stand_ins))
        if len(nearness) < 2:
            return slot
        items, classes = tuple(range(len(nearness))), (0,) * len(nearness)
        block = tuple(len(predictor.demos) + item for item in items)
        space = OrderingSpace((*slot.space.kinds, items))
        return replace(slot, blocks=(*slot.blocks, block), space=space, classes=(*slot.classes, classes))


def _nearness(retrieval: Retrieval) -> tuple[int, ...]:
    """How near the demo at each place is, the nearest 0, as they are shown now: of as many as there may be."""
    rule, pool = retrieval.rule, retrieval.pool
    number = min(rule.num_demos, len(pool))
    if rule.max_tokens is not None:  # The shortest ones, which need not be found.
        number = min(number, int((np.cumsum(sorted(pool.tokens)) <= rule.max_tokens).sum()))
    return rule.arranged(range(number))
