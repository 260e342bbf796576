"""What all searches over orderings have in common, and the one that learns nothing."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Sequence

from plr_dspy.plackett_luce.distribution import PlackettLuce
from plr_dspy.plackett_luce.updates import UpdateRule
from plr_dspy.search.proposal import Proposal
from plr_dspy.search.space import Ordering, OrderingSpace, ScoreEstimate, Trial
from plr_dspy.search.surrogate.model import OrderingModel

MAX_REDRAWS = 50
"""Batches a search draws in the hope of new orderings before it gives up."""


class Search(ABC):
    """A search that is asked for orderings and told their scores (ask and tell); it knows nothing of language models.

    Args:
        space, update, num_samples, elite_fraction, seed: As in `CrossEntropySearch`.
        model: Says what scores tell of new examples; None takes one that knows no features of orderings.

    Attributes:
        space, num_samples, elite_fraction, model: The same.
        proposal: The distributions.
    """

    def __init__(
        self,
        space: OrderingSpace,
        *,
        update: str | UpdateRule = "mle",
        num_samples: int = 15,
        elite_fraction: float = 0.2,
        model: OrderingModel | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(space, OrderingSpace):
            raise TypeError(
                f"space must be an OrderingSpace, such as OrderingSpace.of_sizes(8); got {space!r}"
            )
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
            raise ValueError(f"num_samples must be a whole number of at least 1; got {num_samples!r}")
        if not 0.0 < elite_fraction <= 1.0:
            raise ValueError(f"elite_fraction must lie in (0, 1]; got {elite_fraction!r}")
        self.space = space
        self.num_samples = num_samples
        self.elite_fraction = elite_fraction
        self.model = OrderingModel(space, families=()) if model is None else model
        self.proposal = Proposal(space, update=update, seed=seed)

    @abstractmethod
    def ask(self) -> list[Ordering]:
        """Return orderings to score next, one permutation for each block; empty when nothing is left to ask."""

    @abstractmethod
    def tell(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """Learn from scored orderings.

        Returns:
            The elites, best first.

        Raises:
            ValueError: when there are no trials, or one is no scored ordering of the space.
        """

    def ranked(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """Estimates of the orderings of trials that it was told, best first, the earlier of equals first.

        It changes nothing. Without a model of its own a search takes the mean scores for true.
        """
        estimates = [ScoreEstimate(trial.ordering, trial.score) for trial in trials]
        return sorted(estimates, key=lambda estimate: -estimate.score)

    @property
    def distributions(self) -> Sequence[PlackettLuce]:
        """The current distribution of each block."""
        return self.proposal.distributions

    def mode(self) -> Ordering:
        """The most probable ordering."""
        return self.proposal.mode()

    def draw(self, num_draws: int) -> list[Ordering]:
        """Draws from the current distributions, repeats included."""
        return self.proposal.draw(num_draws)

    def fresh(self, number: int, known: Container[Ordering]) -> list[Ordering]:
        """Random orderings that are not known, each once and the identity first; fewer when hardly any are left."""
        found = dict.fromkeys(ordering for ordering in [self.space.identity] if ordering not in known)
        for _ in range(MAX_REDRAWS):
            for ordering in self.proposal.draw(number, sharpness=0.0):
                if len(found) < number and ordering not in known:
                    found[ordering] = None
            if len(found) == number:
                break
        return list(found)


class RandomSearch(Search):
    """Ask for random orderings, the identity first, each once; nothing is learnt.

    Args:
        space, num_samples, seed: As in `CrossEntropySearch`.
        num_orderings: How many in all; where there are no more, all are asked for.
    """

    def __init__(
        self, space: OrderingSpace, *, num_orderings: int, num_samples: int = 15, seed: int = 0
    ) -> None:
        super().__init__(space, num_samples=num_samples, seed=seed)
        self._num_orderings = num_orderings
        self._asked: dict[Ordering, None] = {}  # a set that keeps its order

    def ask(self) -> list[Ordering]:
        wanted = max(0, min(self.num_samples, self._num_orderings - len(self._asked)))
        if self.space.num_distinct > self._num_orderings:
            batch = self.fresh(self.num_samples, self._asked)[:wanted]
        else:
            batch = [ordering for ordering in self.space.enumerate() if ordering not in self._asked][:wanted]
        self._asked |= dict.fromkeys(batch)
        return batch

    def tell(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        return self.ranked(check_trials(self.space, trials))[: num_elites(len(trials), self.elite_fraction)]


def check_trials(space: OrderingSpace, trials: Sequence[Trial]) -> list[Trial]:
    """Return trials that a search can be told.

    Raises:
        ValueError: when there are none, or one is no ordering of the space with a finite score.
    """
    if not trials:
        raise ValueError("tell needs at least one trial; got none")
    for trial in trials:
        space.canonical(trial.ordering)
        if not math.isfinite(trial.score):
            raise ValueError(f"trials must have finite scores; got {trial}")
    return list(trials)


def num_elites(num_trials: int, elite_fraction: float) -> int:
    """ceil(rho B), at least 1, and safe against rounding: 0.1 of 30 is 3, not 4."""
    return max(1, math.ceil(elite_fraction * num_trials - 1e-9))


def as_ordering(data: Sequence[Sequence[int]]) -> Ordering:
    """The ordering that JSON made lists of."""
    return tuple(tuple(permutation) for permutation in data)
