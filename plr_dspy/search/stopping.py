"""What ends a search early: small callables that read its rounds and name a reason, or None to go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from plr_dspy.report.data import Iteration

Stopper: TypeAlias = Callable[[Sequence[Iteration]], "str | None"]


@dataclass(frozen=True)
class TargetScore:
    """Stops when some ordering has scored at least `score` on the train examples."""

    score: float

    def __call__(self, history: Sequence[Iteration]) -> str | None:
        if history and history[-1].best_score_so_far >= self.score:
            return f"stop_at_score={self.score:g} reached"
        return None


@dataclass(frozen=True)
class Patience:
    """Stops when the best ordering has stayed the same for `num_iterations` rounds."""

    num_iterations: int

    def __call__(self, history: Sequence[Iteration]) -> str | None:
        if len(history) <= self.num_iterations:
            return None
        if len({iteration.best_ordering for iteration in history[-1 - self.num_iterations :]}) > 1:
            return None
        return f"patience={self.num_iterations}: no better order"
