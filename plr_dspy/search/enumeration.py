"""Searches that do not learn what to ask for next: all orderings, or random ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from plr_dspy.orderings.arrangement_space import SearchSpace
from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import ScoreEstimate, Trial
from plr_dspy.orderings.updates import UpdateRule
from plr_dspy.search.cross_entropy import fresh_draws
from plr_dspy.search.search import ScoreArchive, Search, check_trials, num_elites


class ExhaustiveSearch(Search):
    """Ask for every distinct ordering once; the distributions are fitted to the best of all.

    Args:
        space, update, num_samples, elite_fraction, seed: As in `CrossEntropySearch`.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        update: str | UpdateRule = "mle",
        num_samples: int = 15,
        elite_fraction: float = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__(
            space, update=update, num_samples=num_samples, elite_fraction=elite_fraction, seed=seed
        )
        self._archive = ScoreArchive()

    def ask(self) -> list[Ordering]:
        """Return the next orderings; empty after the last."""
        start = len(self._archive.asked)
        batch = list(itertools.islice(self.space.enumerate(), start, start + self.num_samples))
        self._archive.asked |= dict.fromkeys(batch)
        return batch

    def tell(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """Fit the distributions, from uniform ones, to the best of all orderings; returns these, best first."""
        pool = self.ranked(self._archive.tell(check_trials(self.space, trials)))
        elites = pool[: num_elites(len(pool), self.elite_fraction)]
        self.proposal.reset()
        self.proposal.refit(elites)
        return elites

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next, the generator included, as JSON data."""
        return {**self.proposal.state_dict(), **self._archive.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.proposal.load_state_dict(state)
        self._archive.load_state_dict(state)


class RandomSearch(Search):
    """Ask for random orderings, the identity first, each once; nothing is learnt.

    Args:
        space, num_samples, seed: As in `CrossEntropySearch`.
        num_orderings: How many in all; where there are no more, all are asked for.
    """

    def __init__(
        self, space: SearchSpace, *, num_orderings: int, num_samples: int = 15, seed: int = 0
    ) -> None:
        super().__init__(space, update="mle", num_samples=num_samples, elite_fraction=0.2, seed=seed)
        self._num_orderings = num_orderings
        self._archive = ScoreArchive()

    def ask(self) -> list[Ordering]:
        """Return the next orderings; empty after the last."""
        asked = self._archive.asked
        wanted = max(0, min(self.num_samples, self._num_orderings - len(asked)))
        if self.space.num_distinct > self._num_orderings:
            return fresh_draws(self.space, self.proposal, self._archive, self.num_samples)[:wanted]
        batch = [ordering for ordering in self.space.enumerate() if ordering not in asked][:wanted]
        self._archive.asked |= dict.fromkeys(batch)
        return batch

    def tell(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """Keep the scores; returns the elites, best first."""
        pool = self.ranked(self._archive.tell(check_trials(self.space, trials)))
        return pool[: num_elites(len(trials), self.elite_fraction)]

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next, the generator included, as JSON data."""
        return {**self.proposal.state_dict(), **self._archive.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.proposal.load_state_dict(state)
        self._archive.load_state_dict(state)
