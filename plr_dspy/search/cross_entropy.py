"""Searches over orderings, asked for orderings and told scores; they know neither DSPy nor an LM."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from plr_dspy.orderings.plackett_luce import (
    OrderingDistribution,
    distribution_from_state,
    distribution_state,
    draw_orderings,
    most_probable_ordering,
    sharpened,
)
from plr_dspy.orderings.space import Ordering, OrderingSpace
from plr_dspy.orderings.trials import ScoreEstimate, Trial
from plr_dspy.orderings.updates import UpdateRule, update_rule
from plr_dspy.runtime.threads import one_thread
from plr_dspy.search.surrogate.model import OrderingModel

MAX_REDRAWS = 50
"""Batches a search draws in the hope of new orderings before it gives up."""

FLATTENING = 0.9
"""Factor on the logits from one such batch to the next: ever further from what is known."""


class Search(Protocol):
    """The ask/tell protocol that `plr_dspy.search.loop.run` drives."""

    space: OrderingSpace
    model: OrderingModel
    """Says what scores tell of new examples."""
    distributions: list[OrderingDistribution]

    def ask(self) -> list[Ordering]:
        """Orderings to score next; empty when nothing is left to ask."""

    def tell(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """Learn from scored orderings; returns the elites, best first."""

    def ranked(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """Estimates of the orderings of trials that it was told, best first; changes nothing."""

    def mode(self) -> Ordering:
        """The most probable ordering."""

    def draw(self, num_draws: int) -> list[Ordering]:
        """Draws from the current distributions."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next, as plain data."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""


def num_elites(num_trials: int, elite_fraction: float) -> int:
    """ceil(rho B), at least 1, and safe against rounding: 0.1 of 30 is 3, not 4."""
    return max(1, math.ceil(elite_fraction * num_trials - 1e-9))


class CrossEntropySearch:
    """Cross-entropy search with one distribution for each block (PLR Algorithm 1).

    Args:
        space: What to order.
        update: "ema", "mle", "mixture" or an update object.
        num_samples: Orderings asked for in each round (B).
        elite_fraction: Share of them that refits the distributions (rho).
        archive: Never ask for an ordering twice (where draws repeat what is known, they are drawn
            from ever flatter copies of the distribution), and refit on the best orderings of all
            rounds: scores of different rounds must be comparable. Off, each round is made of independent
            draws, repeats included, and alone decides the refit: the paper's algorithm.
        seed: Of the search's own generator.
    """

    def __init__(
        self,
        space: OrderingSpace,
        *,
        update: str | UpdateRule = "mle",
        num_samples: int = 15,
        elite_fraction: float = 0.2,
        archive: bool = False,
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
        self.model = OrderingModel(space, families=())
        self.update = update_rule(update)
        self.num_samples = num_samples
        self.elite_fraction = elite_fraction
        self.archive = archive
        self.distributions = [self.update.initial(size) for size in space.sizes]
        self._generator = torch.Generator().manual_seed(seed)
        self._told: list[Trial] = []  # best first; only with archive
        self._asked: dict[Ordering, None] = {}  # a set in order of asking; only with archive

    def ask(self) -> list[Ordering]:
        """Orderings to score next, one permutation for each block; empty when none is left."""
        if not self.archive:
            return self.draw(self.num_samples)
        # The identity is in the first batch: what beats it is seen on the same examples.
        fresh = dict.fromkeys([] if self._asked else [self.space.identity])
        for batch in range(MAX_REDRAWS):
            for ordering in self._draw(self.num_samples, FLATTENING**batch):
                if len(fresh) < self.num_samples and ordering not in self._asked:
                    fresh[ordering] = None
            if len(fresh) == self.num_samples:
                break
        self._asked |= fresh
        return list(fresh)

    def tell(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """Refit the distributions on the best of the scored orderings.

        Returns:
            The elites, best first.

        Raises:
            ValueError: when there are no trials, or one is no ordering of the space with a finite score.
        """
        if not trials:
            raise ValueError("tell needs at least one trial; got none")
        for trial in trials:
            self.space.canonical(trial.ordering)
            if not math.isfinite(trial.score):
                raise ValueError(f"trials must have finite scores; got {trial}")
        pool = [*self._told, *trials] if self.archive else list(trials)
        pool.sort(key=lambda trial: -trial.score)
        if self.archive:
            self._told = pool
        elites = self.ranked(pool[: self._num_elites(len(trials))])
        self._refit(elites)
        return elites

    def _num_elites(self, num_trials: int) -> int:
        return num_elites(num_trials, self.elite_fraction)

    def _refit(self, elites: Sequence[ScoreEstimate]) -> None:
        weights = elite_weights(elites) if self.update.weighted else None
        with one_thread():
            for block in range(len(self.distributions)):
                orderings = torch.tensor([elite.ordering[block] for elite in elites])
                self.distributions[block] = self.update.update(self.distributions[block], orderings, weights)

    def ranked(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """The mean scores of trials, best first; the earlier of equals comes first."""
        estimates = [ScoreEstimate(trial.ordering, trial.score) for trial in trials]
        return sorted(estimates, key=lambda estimate: -estimate.score)

    def mode(self) -> Ordering:
        """The most probable ordering."""
        return self.space.canonical([most_probable_ordering(d).tolist() for d in self.distributions])

    def draw(self, num_draws: int) -> list[Ordering]:
        """Draws from the current distributions, repeats included."""
        return self._draw(num_draws, 1.0)

    def _draw(self, num_draws: int, sharpness: float) -> list[Ordering]:
        if not num_draws:
            return []
        distributions = [sharpened(d, sharpness) for d in self.distributions]
        draws = [draw_orderings(d, num_draws, self._generator).tolist() for d in distributions]
        return [self.space.canonical(ordering) for ordering in zip(*draws, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next, the generator included, as JSON data."""
        return {
            "distributions": [distribution_state(d) for d in self.distributions],
            "generator": base64.b64encode(self._generator.get_state().numpy().tobytes()).decode(),
            "told": [[trial.ordering, trial.score, trial.num_examples] for trial in self._told],
            "asked": list(self._asked),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            ValueError: when the state is of another space.
        """
        distributions = [distribution_from_state(d) for d in state["distributions"]]
        sizes = tuple(d.event_shape[0] for d in distributions)
        if sizes != self.space.sizes:
            raise ValueError(f"the state is of blocks of {sizes} items; this search has {self.space.sizes}")
        self.distributions = distributions
        generator = bytearray(base64.b64decode(state["generator"]))
        self._generator.set_state(torch.frombuffer(generator, dtype=torch.uint8))
        self._told = [Trial(as_ordering(o), score, n) for o, score, n in state["told"]]
        self._asked = {as_ordering(ordering): None for ordering in state["asked"]}


def elite_weights(elites: Sequence[ScoreEstimate]) -> torch.Tensor | None:
    """Weights in proportion to the scores, with mean 1; None (all equal) where a score is not positive.

    Deviation: the paper's scores are accuracies; a share of a negative score has no meaning.
    """
    scores = torch.tensor([elite.score for elite in elites], dtype=torch.float64)
    if bool((scores <= 0).any()):
        return None
    return scores / scores.mean()


def as_ordering(data: Sequence[Sequence[int]]) -> Ordering:
    """The ordering that JSON made lists of."""
    return tuple(tuple(permutation) for permutation in data)
