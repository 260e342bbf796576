"""How a compile ends: the race of the best orderings, and the final comparison with the original one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from plr_dspy.deadlines import Deadlines
from plr_dspy.finals import Finalist, affordable_examples, compare, finalists, winner
from plr_dspy.loop import Progress
from plr_dspy.objectives import CommonExamples, RacingExamples
from plr_dspy.plan import Plan
from plr_dspy.race import Scores, race
from plr_dspy.records import Trial
from plr_dspy.report import Comparison
from plr_dspy.scoring import CellScorer
from plr_dspy.search import Search
from plr_dspy.space import Ordering

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What the end of a compile came to.

    Attributes:
        ordering: The chosen one.
        comparison: Chosen against original; None if nothing could be compared.
        candidates: The finalists, their trials, and what chose among them.
        cut: Whether the time was up before all was done.
    """

    ordering: Ordering
    comparison: Comparison | None
    candidates: list[tuple[Finalist, Trial, float]]
    cut: bool


class Ending:
    """The race and the final comparison of one compile.

    Args:
        search: After its last round.
        objective: Has scored its orderings.
        scorer: Of the objective.
        plan: The shape of the compile.
        selection: Examples of the final comparison.
        deadlines: Of race and comparison.

    Attributes:
        phase: What is going on, in words.
    """

    def __init__(
        self,
        search: Search,
        objective: CommonExamples | RacingExamples,
        scorer: CellScorer,
        *,
        plan: Plan,
        selection: Sequence[int],
        deadlines: Deadlines,
    ) -> None:
        self.phase = "final comparison"
        self._search = search
        self._objective = objective
        self._scorer = scorer
        self._plan = plan
        self._selection = selection
        self._deadlines = deadlines
        self._cut = False

    def run(self, progress: Progress, *, race_calls: int) -> Choice:
        """Race and compare.

        Args:
            progress: Of the search.
            race_calls: Program calls of the race, at most.
        """
        entries = self._entries(progress, race_calls)
        examples, rows = self._compared([entry.ordering for entry in entries])
        if len(rows) < 2:
            return Choice(self._search.space.identity, None, [], self._cut)
        results = [
            Trial(entry.ordering, math.fsum(row) / len(row), len(row))
            for entry, row in zip(entries, rows, strict=False)
        ]
        scores = {trial.score for trial in [*progress.trials.values(), *results]}
        if len(scores) == 1:
            logger.warning(
                "every order scored the same: the demos may not reach the model, or decide nothing"
            )
        estimates = self._estimates(results, examples, rows)
        best = winner(estimates)
        return Choice(
            entries[best].ordering,
            compare(rows[0], rows[best], num_candidates=len(rows)),
            list(zip(entries, results, estimates, strict=False)),
            self._cut,
        )

    def _entries(self, progress: Progress, race_calls: int) -> list[Finalist]:
        """The orderings of the final comparison, the original first."""
        plan = self._plan
        if not plan.racing:
            best = progress.best(self._search, plan.num_best_seen)
            return finalists(self._search, best, num_draws=plan.num_final_draws)
        winners = [Finalist("best seen", ordering) for ordering in self._race(progress, race_calls)]
        return [Finalist("original", self._search.space.identity), *winners]

    def _race(self, progress: Progress, num_calls: int) -> list[Ordering]:
        """The winners among the best of the search; the original has its place in the final comparison."""
        plan, objective = self._plan, self._objective
        assert isinstance(objective, RacingExamples)
        self.phase = "race of the best orders"
        objective.deadline = self._deadlines.race()
        objective.max_program_calls = plan.call_limit - plan.final_calls
        entrants = [trial.ordering for trial in progress.best(self._search, plan.num_entrants)]
        if entrants:
            entrants += [self._search.mode(), *self._search.draw(plan.num_final_draws)]
        winners = race(
            objective,
            [entrant for entrant in dict.fromkeys(entrants) if entrant != self._search.space.identity],
            num_examples=plan.num_train_examples,
            num_calls=num_calls,
            num_winners=plan.num_best_seen,
            estimate=self._estimated,
            on_heat=self._scorer.ledger.settle,
        )
        self._cut = objective.deadline is not None and time.monotonic() >= objective.deadline
        self.phase = "final comparison"
        return winners

    def _compared(self, orderings: list[Ordering]) -> tuple[list[int], list[list[float]]]:
        """The examples of the comparison, and rows of scores: of the first orderings only, where the time was up."""
        scorer, left = self._scorer, self._plan.call_limit - self._scorer.program_calls
        examples = affordable_examples(self._selection, lambda some: scorer.cost(orderings, some), left)
        if not examples:
            return [], []
        ran, rows = scorer.table(orderings, examples, favoured=0, deadline=self._deadlines.end())
        if len(rows) == len(orderings):
            scorer.ledger.settle()
        else:
            self._cut = True
            logger.warning("%d of %d orders could be compared before the end", len(rows), len(orderings))
        return ran, rows

    def _estimates(
        self, results: Sequence[Trial], examples: Sequence[int], rows: Sequence[Sequence[float]]
    ) -> list[float]:
        """What chooses among the entries: the scores of the final comparison, or in a racing plan all scores."""
        if not isinstance(self._objective, RacingExamples):
            return [trial.score for trial in results]
        known = self._objective.scores()
        for trial, row in zip(results, rows, strict=True):
            known[trial.ordering] = known.get(trial.ordering, {}) | dict(zip(examples, row, strict=True))
        estimates = self._estimated(known)
        return [estimates.get(trial.ordering, -math.inf) for trial in results]

    def _estimated(self, scores: Scores) -> dict[Ordering, float]:
        """What the search makes of scores by example, of those orderings that it has not ruled out."""
        trials = [Trial(o, 0.0, len(known), tuple(known.items())) for o, known in scores.items()]
        if trials:
            self._search.tell(trials)
        return {trial.ordering: trial.score for trial in self._search.ranked(trials)}
