"""What all searches over orderings have in common; they know neither DSPy nor a language model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from plr_dspy.orderings.arrangement_space import ArrangementSpace, SearchSpace
from plr_dspy.orderings.space import Ordering, OrderingSpace
from plr_dspy.orderings.trials import ScoreEstimate, Trial
from plr_dspy.orderings.updates import UpdateRule
from plr_dspy.search.arrangement_proposal import ArrangementProposal
from plr_dspy.search.proposal import Distribution, PlackettLuceProposal, Proposal
from plr_dspy.search.surrogate.model import OrderingModel


class Search(ABC):
    """A search that is asked for orderings and told their scores (ask and tell).

    Args:
        space: What to order, or to arrange.
        update: Refits the distributions: "ema", "mle", "mixture" or an update object.
        num_samples: Orderings asked for in each round, at most (B).
        elite_fraction: Share of the orderings that refit the distributions (rho).
        model: Says what scores tell of new examples; None takes one that knows no features of orderings.
        seed: Of the draws.

    Attributes:
        space, num_samples, elite_fraction, model: The same.
        proposal: The distributions.

    Raises:
        TypeError, ValueError: for arguments out of range.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        update: str | UpdateRule,
        num_samples: int,
        elite_fraction: float,
        model: OrderingModel | None = None,
        seed: int,
    ) -> None:
        if not isinstance(space, (OrderingSpace, ArrangementSpace)):
            raise TypeError(
                "space must be an OrderingSpace, such as OrderingSpace.of_sizes(8), or an ArrangementSpace; "
                f"got {space!r}"
            )
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
            raise ValueError(f"num_samples must be a whole number of at least 1; got {num_samples!r}")
        if not 0.0 < elite_fraction <= 1.0:
            raise ValueError(f"elite_fraction must lie in (0, 1]; got {elite_fraction!r}")
        self.space = space
        self.num_samples = num_samples
        self.elite_fraction = elite_fraction
        self.model = OrderingModel(space, families=()) if model is None else model
        self.proposal: Proposal = (
            ArrangementProposal(space, update=update, seed=seed)
            if isinstance(space, ArrangementSpace)
            else PlackettLuceProposal(space, update=update, seed=seed)
        )

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

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next, the generator included, as JSON data."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            ValueError: when the state is of another space.
        """

    @property
    def distributions(self) -> Sequence[Distribution]:
        """The current distribution of each block."""
        return self.proposal.distributions

    def mode(self) -> Ordering:
        """The most probable ordering."""
        return self.proposal.mode()

    def draw(self, num_draws: int) -> list[Ordering]:
        """Draws from the current distributions, repeats included."""
        return self.proposal.draw(num_draws)


class ScoreArchive:
    """The orderings that a search has asked for and was told the scores of, for searches that ask for each once.

    Attributes:
        asked: In order of asking.
        told: Trials, best first.
    """

    def __init__(self) -> None:
        self.asked: dict[Ordering, None] = {}  # a set that keeps its order
        self.told: list[Trial] = []

    def tell(self, trials: Sequence[Trial]) -> list[Trial]:
        """Add trials; returns all, best first."""
        self.told = sorted([*self.told, *trials], key=lambda trial: -trial.score)
        return self.told

    def state_dict(self) -> dict[str, Any]:
        """Both as JSON data."""
        return {
            "told": [[trial.ordering, trial.score, trial.num_examples] for trial in self.told],
            "asked": list(self.asked),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.told = [Trial(as_ordering(o), score, n) for o, score, n in state["told"]]
        self.asked = {as_ordering(ordering): None for ordering in state["asked"]}


def check_trials(space: SearchSpace, trials: Sequence[Trial]) -> list[Trial]:
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
