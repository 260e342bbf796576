"""Cross-entropy search: draw orderings, and refit the distributions to those that score best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plr_dspy.orderings.arrangement_space import SearchSpace
from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import ScoreEstimate, Trial
from plr_dspy.orderings.updates import UpdateRule
from plr_dspy.search.proposal import Proposal
from plr_dspy.search.search import ScoreArchive, Search, check_trials, num_elites

MAX_REDRAWS = 50
"""Batches a search draws in the hope of new orderings before it gives up."""

FLATTENING = 0.9
"""Factor on the logits from one such batch to the next: ever further from what is known."""


class CrossEntropySearch(Search):
    """Cross-entropy search with one distribution for each block (PLR Algorithm 1).

    Args:
        space: What to order, or to arrange.
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
        space: SearchSpace,
        *,
        update: str | UpdateRule = "mle",
        num_samples: int = 15,
        elite_fraction: float = 0.2,
        archive: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            space, update=update, num_samples=num_samples, elite_fraction=elite_fraction, seed=seed
        )
        self._archive = ScoreArchive() if archive else None

    def ask(self) -> list[Ordering]:
        """Return orderings to score next, one permutation for each block; empty when none is left."""
        if self._archive is None:
            return self.draw(self.num_samples)
        return fresh_draws(self.space, self.proposal, self._archive, self.num_samples)

    def tell(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """Refit the distributions on the best of the scored orderings.

        Returns:
            The elites, best first.

        Raises:
            ValueError: when there are no trials, or one is no ordering of the space with a finite score.
        """
        trials = check_trials(self.space, trials)
        pool = self.ranked(trials if self._archive is None else self._archive.tell(trials))
        elites = pool[: num_elites(len(trials), self.elite_fraction)]
        self.proposal.refit(elites)
        return elites

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next, the generator included, as JSON data."""
        archive = {} if self._archive is None else self._archive.state_dict()
        return {**self.proposal.state_dict(), **archive}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            ValueError: when the state is of another space.
        """
        self.proposal.load_state_dict(state)
        if self._archive is not None:
            self._archive.load_state_dict(state)


def fresh_draws(
    space: SearchSpace, proposal: Proposal, archive: ScoreArchive, num_samples: int
) -> list[Ordering]:
    """Draw orderings that have not been asked for, and note them as asked; fewer when hardly any are left."""
    # The identity is in the first batch: what beats it is seen on the same examples.
    fresh = dict.fromkeys([] if archive.asked else [space.identity])
    for batch in range(MAX_REDRAWS):
        for ordering in proposal.draw(num_samples, sharpness=FLATTENING**batch):
            if len(fresh) < num_samples and ordering not in archive.asked:
                fresh[ordering] = None
        if len(fresh) == num_samples:
            break
    archive.asked |= fresh
    return list(fresh)
