"""The paper's way to the end: the distribution's draws meet on the selection split, which alone chooses."""

from __future__ import annotations

from plr_dspy.compilation.choice import Finalist
from plr_dspy.compilation.path import Compilation
from plr_dspy.search.model.table import Scores
from plr_dspy.search.space import Ordering


class PaperCompilation(Compilation):
    """PLR Algorithm 1: no race, and scores of the train split choose nothing.

    Deviation: the original order, the best orders seen and the mode join the draws; PLR Algorithm 1 compares the draws
    alone, and can end with an order worse than the original or than one it has seen.
    """

    def _finalists(self, share: float) -> list[Finalist]:
        plan, search = self.plan, self.search
        entries = [
            Finalist("original", self.original),
            *(Finalist("best seen", estimate.ordering) for estimate in self._best(plan.num_best_seen)),
            *([Finalist("mode", search.mode())] if plan.with_mode else []),
            *(Finalist("draw", ordering) for ordering in search.draw(plan.num_final_draws)),
        ]
        distinct: dict[Ordering, Finalist] = {}
        for entry in entries:
            distinct.setdefault(entry.ordering, entry)
        return list(distinct.values())

    def known_scores(self) -> Scores:
        return {}
