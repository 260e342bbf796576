"""The demos of a program that can be permuted, and the prompts of their orders, each told by its fingerprint."""

from __future__ import annotations

import hashlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from plr_dspy.orderings.arrangement_space import SearchSpace
from plr_dspy.orderings.space import WITHOUT_DEMOS, Ordering, OrderingSpace
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.prompts import PromptRenderer
from plr_dspy.programs.splits import answer_classes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Slot:
    """One predictor's list of demos.

    Attributes:
        predictor: The predictor's name in the program.
        demos: Its demos in their original order.
        blocks: Demo indices that can trade places: most adapters show incomplete demos before
            complete ones, so that only orders within either group are seen. Demos that the adapter
            drops are in no block.
        kinds: For each block, the kind of each of its demos; demos of one kind render alike.
        classes: For each block, the class of each of its demos; demos of one class give the same answer.
    """

    predictor: str
    demos: tuple[Any, ...]
    blocks: tuple[tuple[int, ...], ...]
    kinds: tuple[tuple[int, ...], ...]
    classes: tuple[tuple[int, ...], ...]

    @property
    def space(self) -> OrderingSpace:
        """The orders that can be told apart."""
        return OrderingSpace(self.kinds)


class PromptSlots(ABC):
    """The demos that orderings show in a program's prompts.

    Args:
        program: A DSPy program; it is read, never changed.

    Attributes:
        slots: The predictors with demos.
        space: Of the orderings, or arrangements, of all of them.
        classes: For each block of the space, the class of each of its demos.
        noun: What texts call an ordering.
    """

    noun = "order"
    slots: Sequence[Any]
    space: SearchSpace
    classes: Sequence[Sequence[int]]

    def __init__(self, program: dspy.Module) -> None:
        self._renderer = PromptRenderer()
        self._predictors = dict(named_predictors(program))

    @abstractmethod
    def permutations(self, ordering: Ordering) -> dict[str, tuple[int, ...]]:
        """Demo indices by position, for each slot."""

    @property
    def typical(self) -> Ordering:
        """An ordering whose prompts are about as long as those of a search."""
        return self.space.identity

    def longest(self, number: int, seed: int) -> list[Ordering]:
        """So many orderings that show as many demos as may be shown."""
        return [self.space.identity] * number

    def demos(self, ordering: Ordering) -> dict[str, list[Any]]:
        """The demos of each slot in a new order, in new lists."""
        permutations = self.permutations(ordering)
        return {slot.predictor: [slot.demos[i] for i in permutations[slot.predictor]] for slot in self.slots}

    def fingerprint(self, ordering: Ordering) -> str:
        """Digest (128 bits, hexadecimal) of the prompts that the ordering renders to."""
        digest = hashlib.sha256()
        for name, demos in self.demos(ordering).items():
            text = self._renderer.render(self._predictors[name], demos)
            digest.update(f"{name}\0{text}\0".encode())
        return digest.hexdigest()[:32]


class ProgramSlots(PromptSlots):
    """The slots of a program and the space of their orderings.

    Args:
        program: A DSPy program; it is read, never changed. Frozen (compiled) sub-modules are
            left alone, as DSPy does.
    """

    def __init__(self, program: dspy.Module) -> None:
        super().__init__(program)
        self.slots: tuple[Slot, ...] = tuple(
            slot
            for name, predictor in self._predictors.items()
            if (slot := _read_slot(name, predictor, self._renderer)).demos
        )
        self.space = OrderingSpace(tuple(kinds for slot in self.slots for kinds in slot.kinds))
        self.classes = tuple(classes for slot in self.slots for classes in slot.classes)

    def permutations(self, ordering: Ordering) -> dict[str, tuple[int, ...]]:
        """Demo indices by position, for each slot.

        Each block's demos take, in their new order, the places that the block had before. `WITHOUT_DEMOS` has none.
        """
        if ordering == WITHOUT_DEMOS:
            return {slot.predictor: () for slot in self.slots}
        blocks = iter(ordering)
        result = {}
        for slot in self.slots:
            permutation = list(range(len(slot.demos)))
            for block in slot.blocks:
                for place, item in zip(block, next(blocks), strict=True):
                    permutation[place] = block[item]
            result[slot.predictor] = tuple(permutation)
        return result


def _read_slot(name: str, predictor: dspy.Predict, renderer: PromptRenderer) -> Slot:
    """Find a predictor's blocks by rendering its demos alone and in pairs, so that no adapter's rule is assumed."""
    demos = tuple(predictor.demos)
    nothing = renderer.render(predictor, [])
    alone = [renderer.render(predictor, [demo]) for demo in demos]
    shown = [i for i, text in enumerate(alone) if text != nothing]
    if shown and (hidden := [i for i in range(len(demos)) if i not in shown]):
        logger.warning(
            "demos %s of predictor %r are in no prompt: the adapter leaves them out, such as for a missing field",
            hidden,
            name,
        )
    kind = {i: alone.index(alone[i]) for i in shown}
    block_of = {i: i for i in shown}  # each demo's block, named by its first member

    def merge(a: int, b: int) -> None:
        keep, drop = sorted((block_of[a], block_of[b]))
        for i, block in block_of.items():
            if block == drop:
                block_of[i] = keep

    for position, a in enumerate(shown):
        for b in shown[position + 1 :]:
            if block_of[a] != block_of[b] and kind[a] != kind[b]:
                pair = [renderer.render(predictor, [demos[a], demos[b]])]
                pair.append(renderer.render(predictor, [demos[b], demos[a]]))
                if pair[0] != pair[1]:
                    merge(a, b)
    names = sorted(set(block_of.values()))
    blocks = [tuple(i for i in shown if block_of[i] == block) for block in names]
    blocks = [block for block in blocks if len({kind[i] for i in block}) > 1]
    classes = answer_classes([dict(demo.items()) for demo in demos], list(predictor.signature.output_fields))
    return Slot(
        name,
        demos,
        blocks=tuple(blocks),
        kinds=tuple(tuple(kind[i] for i in block) for block in blocks),
        classes=tuple(tuple(classes[i] for i in block) for block in blocks),
    )


def add_labelled_demos(
    program: dspy.Module, trainset: Sequence[dspy.Example], num_demos: int, rng: random.Random
) -> list[str]:
    """Give the predictors of a program without any demos the same labelled examples.

    A program in which some predictor has demos stays as it is: the optimizer that chose them left the
    others without on purpose. So does a predictor whose prompt would not show the examples.

    Args:
        program: Changed in place.
        trainset: The examples to draw from; some are left for scoring.
        num_demos: Demos for a predictor, at most.
        rng: Decides the draw.

    Returns:
        Names of the predictors that got demos.
    """
    predictors = dict(named_predictors(program))
    if any(predictor.demos for predictor in predictors.values()):
        return []
    demos = rng.sample(list(trainset), max(0, min(num_demos, len(trainset) - 2)))
    renderer = PromptRenderer()
    filled = []
    for name, predictor in predictors.items():
        if demos and renderer.render(predictor, demos) != renderer.render(predictor, []):
            predictor.demos = list(demos)
            filled.append(name)
    if filled:
        logger.warning(
            "student has no demos: added %d labelled examples of the trainset to %s; num_demos sets how many (None "
            "refuses a student without demos), and PLFewShot chooses which",
            len(demos),
            filled,
        )
    return filled
