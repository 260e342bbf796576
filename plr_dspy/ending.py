"""How a compile ends: the race of the best orderings, and the final comparison with the original one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from plr_dspy.deadlines import Deadlines
from plr_dspy.finals import Finalist, affordable_examples, compare, finalists, winner
from plr_dspy.findings import Comparison
from plr_dspy.loop import Progress
from plr_dspy.plan import Plan
from plr_dspy.race import Scores, race
from plr_dspy.racing import RacingExamples
from plr_dspy.records import Trial
from plr_dspy.scoring import CellScorer, NothingRan
from plr_dspy.search import Search
from plr_dspy.space import Ordering

logger = logging.getLogger(__name__)

SURE = 0.9
"""Probability of being better than the original order that it takes to replace it."""


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
    """The final comparison of one compile: on the selection split, which chooses.

    Args:
        search: After its last round.
        scorer: Of the program's orderings.
        plan: The shape of the compile.
        selection: Examples of the comparison.
        deadlines: When it must end.

    Attributes:
        phase: What is going on, in words.
    """

    def __init__(
        self,
        search: Search,
        scorer: CellScorer,
        *,
        plan: Plan,
        selection: Sequence[int],
        deadlines: Deadlines,
    ) -> None:
        self.phase = "final comparison"
        self._search = search
        self._scorer = scorer
        self._plan = plan
        self._selection = selection
        self._deadlines = deadlines
        self._cut = False

    def run(self, progress: Progress, *, race_calls: int) -> Choice:
        """Compare.

        Args:
            progress: Of the search.
            race_calls: Program calls of a race before, at most.
        """
        entries = self._entries(progress, race_calls)
        examples, rows = self._compared([entry.ordering for entry in entries])
        if len(rows) < 2:
            return Choice(self._search.space.identity, None, [], self._cut)
        results = [
            Trial(entry.ordering, math.fsum(row) / len(row), len(row))
            for entry, row in zip(entries, rows, strict=False)
        ]
        estimates = self._estimates(results, examples, rows)
        best = winner(estimates)
        if not self._order_matters(list(progress.trials.values()), results):
            logger.warning(
                "every order scored the same: the demos may not reach the model, or decide nothing"
            )
            best = 0
        elif best and not self._likely(entries[best].ordering):
            best = 0
        chosen = entries[best].ordering
        comparison = compare(rows[0], rows[best], num_candidates=len(rows))
        return Choice(
            chosen,
            replace(comparison, probability=self._probability(chosen) if best else None),
            list(zip(entries, results, estimates, strict=False)),
            self._cut,
        )

    def _entries(self, progress: Progress, race_calls: int) -> list[Finalist]:
        """The orderings of the final comparison, the original first."""
        plan = self._plan
        best = progress.best(self._search, plan.num_best_seen)
        return finalists(self._search, best, num_draws=plan.num_final_draws, with_mode=plan.with_mode)

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

    def _order_matters(self, searched: Sequence[Trial], compared: Sequence[Trial]) -> bool:
        """Whether two orders differ in anything that has been scored."""
        return any(len({trial.score for trial in trials}) > 1 for trials in (searched, compared))

    def _likely(self, ordering: Ordering) -> bool:
        """Whether the ordering is better than the original one, as far as the search can tell."""
        probability = self._probability(ordering)
        return probability is None or probability >= SURE

    def _probability(self, ordering: Ordering) -> float | None:
        """Of being better than the original one, by the search's model; None where it has none."""
        return self._search.probability_better(ordering, self._search.space.identity)

    def _estimates(
        self, results: Sequence[Trial], examples: Sequence[int], rows: Sequence[Sequence[float]]
    ) -> list[float]:
        """What chooses among the entries: here their scores on the selection split."""
        return [trial.score for trial in results]


class RacingEnding(Ending):
    """The best orderings race on the train split; its winners meet the original one, and all scores choose.

    Args:
        objective: Has scored the orderings of the search.
        search, scorer, plan, selection, deadlines: As in `Ending`.
    """

    def __init__(
        self,
        search: Search,
        objective: RacingExamples,
        scorer: CellScorer,
        *,
        plan: Plan,
        selection: Sequence[int],
        deadlines: Deadlines,
    ) -> None:
        super().__init__(search, scorer, plan=plan, selection=selection, deadlines=deadlines)
        self._objective = objective
        self._final_rows: list[dict[int, float]] = []

    def _entries(self, progress: Progress, race_calls: int) -> list[Finalist]:
        winners = [Finalist("best seen", ordering) for ordering in self._race(progress, race_calls)]
        return [Finalist("original", self._search.space.identity), *winners]

    def _race(self, progress: Progress, num_calls: int) -> list[Ordering]:
        """The winners among the best of the search; the original has its place in the final comparison."""
        plan, objective = self._plan, self._objective
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
            guest=self._search.space.identity,
            estimate=self._estimated,
            on_heat=self._scorer.ledger.settle,
        )
        self._cut = objective.deadline is not None and time.monotonic() >= objective.deadline
        self.phase = "final comparison"
        return winners

    def _estimates(
        self, results: Sequence[Trial], examples: Sequence[int], rows: Sequence[Sequence[float]]
    ) -> list[float]:
        """The search's estimates from all scores."""
        known = self._objective.scores()
        self._final_rows = [dict(zip(examples, row, strict=True)) for row in rows]
        for trial, row in zip(results, self._final_rows, strict=True):
            known[trial.ordering] = known.get(trial.ordering, {}) | row
        estimates = self._estimated(known)
        return [estimates.get(trial.ordering, -math.inf) for trial in results]

    def _order_matters(self, searched: Sequence[Trial], compared: Sequence[Trial]) -> bool:
        """Whether an example has two scores: the means of orders differ in any case, by the examples they met."""
        first: dict[int, float] = {}
        rows = [*self._objective.scores().values(), *self._final_rows]
        return any(
            first.setdefault(example, score) != score for row in rows for example, score in row.items()
        )

    def _estimated(self, scores: Scores) -> dict[Ordering, float]:
        """What the search makes of scores by example, of those orderings that it has not ruled out."""
        trials = [Trial(o, 0.0, len(known), tuple(known.items())) for o, known in scores.items()]
        if trials:
            self._search.tell(trials)
        return {trial.ordering: trial.score for trial in self._search.ranked(trials)}


class CriterionEnding(Ending):
    """The best ordering of the search is chosen; the selection split only says how it does beside the original."""

    def run(self, progress: Progress, *, race_calls: int) -> Choice:
        best = progress.best(self._search, 1)
        if not best:
            return Choice(self._search.space.identity, None, [], self._cut)
        entries = [Finalist("original", self._search.space.identity), Finalist("best seen", best[0].ordering)]
        entries = entries[: 1 + (entries[0].ordering != entries[1].ordering)]
        try:
            _, rows = self._compared([entry.ordering for entry in entries])
        except NothingRan as error:  # the order needs no metric, the comparison does
            logger.warning("the order chosen could not be compared with the original one: %s", error)
            rows = []
        known = progress.trials
        candidates = [
            (entry, Trial(entry.ordering, math.fsum(row) / len(row), len(row)), known[entry.ordering].score)
            for entry, row in zip(entries, rows, strict=False)
        ]
        comparison = compare(rows[0], rows[-1], num_candidates=2) if len(rows) == len(entries) else None
        return Choice(best[0].ordering, comparison, candidates, self._cut)
