"""What all searches over orderings have in common, the one that learns nothing, and the paper's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from numbers import Integral

from plr_dspy.plackett_luce.distribution import PlackettLuce
from plr_dspy.plackett_luce.updates import UpdateRule
from plr_dspy.search.model.ordering_model import OrderingModel
from plr_dspy.search.model.table import Scores
from plr_dspy.search.proposal import Proposal
from plr_dspy.search.space import Ordering, OrderingSpace, ScoreEstimate

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
        self.model = OrderingModel(space, with_features=False) if model is None else model
        self.proposal = Proposal(space, update=update, seed=seed)

    @abstractmethod
    def ask(self) -> list[Ordering]:
        """Return orderings to score next, one permutation for each block; empty when nothing is left to ask."""

    def tell(self, orderings: Sequence[Ordering], scores: Scores) -> list[ScoreEstimate]:
        """Learn from the scores of a round.

        Args:
            orderings: Of the round, those drawn several times included.
            scores: By example, all that are known; those of the orderings among them.

        Returns:
            The elites, best first.

        Raises:
            ValueError: when there are no orderings, or one is none of the space or has no finite scores by example;
                nothing is learnt then.
        """
        self.check(orderings, scores)
        told = [ScoreEstimate(ordering, mean_score(scores[ordering])) for ordering in orderings]
        return best_first(told)[: num_elites(len(told), self.elite_fraction)]

    def check(self, orderings: Sequence[Ordering], scores: Scores) -> None:
        """Refuse what a search cannot be told.

        Raises:
            ValueError: as `tell`.
        """
        if not orderings:
            raise ValueError("tell needs at least one ordering; got none")
        for ordering in orderings:
            row = scores.get(self.space.canonical(ordering))
            if not row:
                raise ValueError(
                    "scores must have those of each ordering by example, such as {ordering: {0: 1.0}}; "
                    f"got {row!r} for {ordering}"
                )
            for example, score in row.items():
                if isinstance(example, bool) or not isinstance(example, Integral) or example < 0:
                    raise ValueError(f"examples must be numbered from 0; got {example!r} for {ordering}")
                if not math.isfinite(score):
                    raise ValueError(f"scores must be finite; got {score} for {ordering} on {example}")

    def ranked(self, scores: Scores) -> list[ScoreEstimate]:
        """Estimates of the orderings that have scores, best first, the earlier of equals first; it changes nothing.

        Without a model of its own a search takes the mean scores for true.
        """
        return best_first([ScoreEstimate(ordering, mean_score(row)) for ordering, row in scores.items()])

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


class CrossEntropySearch(Search):
    """Cross-entropy search with one distribution for each block (PLR Algorithm 1).

    Each round is made of independent draws, repeats included, and alone decides the refit.

    Args:
        space: What to order.
        update: Refits the distributions: "ema", "mle", "mixture" or an update object.
        num_samples: Orderings asked for in each round (B).
        elite_fraction: Share of them that refits the distributions (rho).
        seed: Of the search's own generator.

    Raises:
        TypeError, ValueError: for arguments out of range.
    """

    def ask(self) -> list[Ordering]:
        """Return orderings to score next, one permutation for each block."""
        return self.draw(self.num_samples)

    def tell(self, orderings: Sequence[Ordering], scores: Scores) -> list[ScoreEstimate]:
        elites = super().tell(orderings, scores)
        self.proposal.refit(elites)
        return elites


def mean_score(row: Mapping[int, float]) -> float:
    """The mean of scores by example, whatever their order."""
    return math.fsum(row.values()) / len(row)


def best_first(estimates: Sequence[ScoreEstimate]) -> list[ScoreEstimate]:
    """The estimates in descending order, the earlier of equals first."""
    return sorted(estimates, key=lambda estimate: -estimate.score)


def num_elites(num_trials: int, elite_fraction: float) -> int:
    """ceil(rho B), at least 1, and safe against rounding: 0.1 of 30 is 3, not 4."""
    return max(1, math.ceil(elite_fraction * num_trials - 1e-9))


def as_ordering(data: Sequence[Sequence[int]]) -> Ordering:
    """The ordering that JSON made lists of."""
    return tuple(tuple(permutation) for permutation in data)
