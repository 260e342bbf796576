"""Cross-entropy search: draw orderings, and refit the distributions to those that score best."""

from __future__ import annotations

from collections.abc import Sequence

from plr_dspy.search.search import Search, check_trials, num_elites
from plr_dspy.search.space import Ordering, ScoreEstimate, Trial


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

    def tell(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """Refit the distributions on the best of the scored orderings.

        Returns:
            The elites, best first.

        Raises:
            ValueError: when there are no trials, or one is no ordering of the space with a finite score.
        """
        elites = self.ranked(check_trials(self.space, trials))[: num_elites(len(trials), self.elite_fraction)]
        self.proposal.refit(elites)
        return elites
