"""Pools of demos to choose from, and the prompts that arrangements of them render to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dspy
import numpy as np

from plr_dspy.orderings.arrangement_space import Arrangement, ArrangementSpace
from plr_dspy.orderings.space import Ordering
from plr_dspy.programs.slots import PromptSlots
from plr_dspy.programs.splits import answer_classes

OWN = "student"
"""The origin of demos that the student came with."""


@dataclass(frozen=True)
class PooledDemo:
    """A demo that an arrangement may show.

    Attributes:
        demo: An example or a dict.
        origin: Where it comes from: "student", "trainset[3]", "bootstrapped from trainset[3]", "candidates[0]".
        tokens: Of its text in the prompt.
    """

    demo: Any
    origin: str
    tokens: int


@dataclass(frozen=True)
class PoolSlot:
    """One predictor's pool of demos.

    Attributes:
        predictor: The predictor's name in the program.
        pool: The demos; the student's own come first.
        space: The arrangements of this pool alone.
        classes: The class of each demo, as one block; demos of one class give the same answer.
    """

    predictor: str
    pool: tuple[PooledDemo, ...]
    space: ArrangementSpace
    classes: tuple[tuple[int, ...], ...]

    @property
    def demos(self) -> tuple[Any, ...]:
        """The demos."""
        return tuple(pooled.demo for pooled in self.pool)

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the demos, which are one block."""
        return (tuple(range(len(self.pool))),)

    @property
    def own(self) -> tuple[int, ...]:
        """The numbers of the student's own demos, in their order."""
        return tuple(number for number, pooled in enumerate(self.pool) if pooled.origin == OWN)


class PoolSlots(PromptSlots):
    """The pools of a program, and the space of their arrangements.

    Args:
        program: A DSPy program; it is read, never changed.
        pools: Of some predictors, by their names.
        min_demos, max_demos: Demos that a predictor shows.
        max_tokens: Of all demos that are shown together; None for no limit.

    Raises:
        ValueError: when no arrangement keeps to the limits.
    """

    noun = "arrangement"
    space: ArrangementSpace

    def __init__(
        self,
        program: dspy.Module,
        pools: Mapping[str, Sequence[PooledDemo]],
        *,
        min_demos: int,
        max_demos: int,
        max_tokens: int | None,
    ) -> None:
        super().__init__(program)
        self._max_tokens = max_tokens
        self.slots: tuple[PoolSlot, ...] = tuple(
            _read_pool(name, self._predictors[name], pool, (min_demos, max_demos))
            for name, pool in self._within(pools).items()
            if pool
        )
        self.classes = tuple(classes for slot in self.slots for classes in slot.classes)
        sizes = tuple(len(slot.pool) for slot in self.slots)
        limits = tuple(limit for slot in self.slots for limit in slot.space.limits)
        shortest = tuple(
            tuple(sorted(range(size), key=lambda number, slot=slot: slot.pool[number].tokens)[:least])  # type: ignore[misc]
            for slot, size, (least, _) in zip(self.slots, sizes, limits, strict=True)
        )
        self._check(shortest, min_demos)
        within = [least <= len(own) <= most for own, (least, most) in zip(self.original, limits, strict=True)]
        fits = all(within) and self._allows(self.original)
        self.space = ArrangementSpace(sizes, limits, self.original if fits else shortest, self._allows)

    @cached_property
    def original(self) -> Arrangement:
        """What the student shows, which need not be within the limits."""
        return tuple(slot.own for slot in self.slots)

    @property
    def typical(self) -> Ordering:
        """Half as many demos as there may be, from the beginning of each pool."""
        limits = [slot.space.limits[0] for slot in self.slots]
        half = tuple(tuple(range(max(least, -(-most // 2)))) for least, most in limits)
        return self.space.shortened(half) or self.space.identity

    def longest(self, number: int, seed: int) -> list[Ordering]:
        """So many random arrangements that show as many demos as may be shown."""
        rng = np.random.default_rng(seed)
        shapes = [(len(slot.pool), slot.space.limits[0][1]) for slot in self.slots]
        drawn = [tuple(tuple(rng.permutation(n)[:k].tolist()) for n, k in shapes) for _ in range(number)]
        return [self.space.shortened(arrangement) or self.space.identity for arrangement in drawn]

    def permutations(self, ordering: Ordering) -> dict[str, tuple[int, ...]]:
        """Numbers of the demos shown by position, for each slot."""
        return {slot.predictor: items for slot, items in zip(self.slots, ordering, strict=True)}

    def tokens(self, ordering: Ordering) -> int:
        """Tokens of the demos that an arrangement shows."""
        return sum(
            slot.pool[item].tokens for slot, items in zip(self.slots, ordering, strict=True) for item in items
        )

    def _allows(self, arrangement: Arrangement) -> bool:
        return self._max_tokens is None or self.tokens(arrangement) <= self._max_tokens

    def _within(self, pools: Mapping[str, Sequence[PooledDemo]]) -> dict[str, list[PooledDemo]]:
        """The pools without demos that alone are over the limit of tokens, but for the student's own.

        Raises:
            ValueError: when all demos are.
        """
        most = self._max_tokens
        if most is None:
            return {name: list(pool) for name, pool in pools.items()}
        least = min((pooled.tokens for pool in pools.values() for pooled in pool), default=0)
        if least > most:
            raise ValueError(
                f"max_demo_tokens must be at least {least}, the tokens of the shortest demo; got {most}"
            )
        return {
            name: [pooled for pooled in pool if pooled.origin == OWN or pooled.tokens <= most]
            for name, pool in pools.items()
        }

    def _check(self, shortest: Arrangement, min_demos: int) -> None:
        """Raise where so many demos are always over the limit of tokens."""
        if not self._allows(shortest):
            raise ValueError(
                f"max_demo_tokens must be at least {self.tokens(shortest)}, the tokens of the shortest demos with "
                f"{min_demos=}; got {self._max_tokens}: raise it, or lower min_demos"
            )


def _read_pool(
    name: str, predictor: dspy.Predict, pool: Sequence[PooledDemo], limits: tuple[int, int]
) -> PoolSlot:
    """Make the slot of a predictor; a pool with fewer demos than the limits shows them all."""
    least, most = (min(limit, len(pool)) for limit in limits)
    fields = [dict(pooled.demo.items()) for pooled in pool]
    classes = tuple(answer_classes(fields, list(predictor.signature.output_fields)))
    space = ArrangementSpace.of_sizes(len(pool), min_length=least, max_length=most)
    return PoolSlot(name, tuple(pool), space, (classes,))
