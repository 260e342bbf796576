"""Searches that do not learn what to ask for next: all orderings, or random ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from plr_dspy.orderings.space import Ordering, OrderingSpace
from plr_dspy.orderings.trials import ScoreEstimate
from plr_dspy.orderings.updates import UpdateRule
from plr_dspy.search.cross_entropy import CrossEntropySearch


class ExhaustiveSearch(CrossEntropySearch):
    """Ask for every distinct ordering once; the distributions are fitted to the best of all.

    Args:
        space, update, num_samples, elite_fraction, seed: As in `CrossEntropySearch`.
    """

    def __init__(
        self,
        space: OrderingSpace,
        *,
        update: str | UpdateRule = "mle",
        num_samples: int = 15,
        elite_fraction: float = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__(
            space,
            update=update,
            num_samples=num_samples,
            elite_fraction=elite_fraction,
            archive=True,
            seed=seed,
        )

    def ask(self) -> list[Ordering]:
        start = len(self._asked)
        batch = list(itertools.islice(self.space.enumerate(), start, start + self.num_samples))
        self._asked |= dict.fromkeys(batch)
        return batch

    def _num_elites(self, num_trials: int) -> int:
        return super()._num_elites(len(self._told))

    def _refit(self, elites: Sequence[ScoreEstimate]) -> None:
        # From the uniform distribution: the elites of earlier rounds are among these.
        self.distributions = [self.update.initial(size) for size in self.space.sizes]
        super()._refit(elites)


class RandomSearch(CrossEntropySearch):
    """Ask for random orderings, the identity first, each once; nothing is learnt.

    Args:
        space, num_samples, seed: As in `CrossEntropySearch`.
        num_orderings: How many in all; where there are no more, all are asked for.
    """

    def __init__(
        self, space: OrderingSpace, *, num_orderings: int, num_samples: int = 15, seed: int = 0
    ) -> None:
        super().__init__(space, num_samples=num_samples, archive=True, seed=seed)
        self._num_orderings = num_orderings

    def ask(self) -> list[Ordering]:
        wanted = min(self.num_samples, self._num_orderings - len(self._asked))
        if self.space.num_distinct > self._num_orderings:
            return super().ask()[: max(0, wanted)]
        rest = [ordering for ordering in self.space.enumerate() if ordering not in self._asked]
        batch = rest[: max(0, wanted)]
        self._asked |= dict.fromkeys(batch)
        return batch

    def _refit(self, elites: Sequence[ScoreEstimate]) -> None:
        """Stay uniform."""
