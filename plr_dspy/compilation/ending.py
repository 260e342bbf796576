"""How a compile ends: the race of the best orderings, and the final comparison with the original one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from plr_dspy.compilation.budget import Plan
from plr_dspy.compilation.deadlines import Deadlines
from plr_dspy.compilation.evidence import weigh
from plr_dspy.compilation.final_comparison import (
    Finalist,
    Result,
    affordable_examples,
    choose,
    compare,
    finalists,
)
from plr_dspy.compilation.sequential_halving import race
from plr_dspy.orderings.space import Ordering
from plr_dspy.report.schema import Comparison, Evidence
from plr_dspy.scoring.scorer import CellScorer, NothingRan
from plr_dspy.scoring.staged_objective import RacingExamples
from plr_dspy.search.cross_entropy import Search
from plr_dspy.search.loop import Progress
from plr_dspy.search.surrogate.model import Scores

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What the end of a compile came to.

    Attributes:
        ordering: The chosen one.
        comparison: Chosen against original; None if nothing could be compared.
        results: Of the finalists, the original first.
        evidence: What there was to tell orderings apart by; None if the metric did not score them.
        cut: Whether the time was up before all was done.
    """

    ordering: Ordering
    comparison: Comparison | None
    results: list[Result]
    evidence: Evidence | None
    cut: bool


class Ending:
    """The final comparison of one compile: on the selection split, which chooses.

    Args:
        search: After its last round.
        scorer: Of the program's orderings.
        plan: The shape of the compile.
        original: What the user has: an ordering of the search's space, or `WITHOUT_DEMOS`.
        num_train: Examples of the train split.
        deadlines: When it must end.
        min_probability: Of being better on new examples that it takes to replace the original.

    Attributes:
        phase: What is going on, in words.
    """

    def __init__(
        self,
        search: Search,
        scorer: CellScorer,
        *,
        plan: Plan,
        original: Ordering,
        num_train: int,
        deadlines: Deadlines,
        min_probability: float = 0.0,
    ) -> None:
        self.phase = "final comparison"
        self._search = search
        self._scorer = scorer
        self._plan = plan
        self._original = original
        self._num_train = num_train
        self._deadlines = deadlines
        self._min_probability = min_probability
        self._cut = False

    def run(self, progress: Progress, *, race_calls: int, num_selection: int) -> Choice:
        """Compare.

        Args:
            progress: Of the search.
            race_calls: Program calls of a race before, at most.
            num_selection: Examples of the comparison, at most.
        """
        entries = self._entries(progress, race_calls)
        examples, rows = self._compared([entry.ordering for entry in entries], num_selection)
        if len(rows) < 2:
            return Choice(self._original, None, [], None, self._cut)
        compared = {
            entry.ordering: dict(zip(examples, row, strict=True))
            for entry, row in zip(entries, rows, strict=False)
        }
        known = self._evidence(compared)
        results = self._results(entries, rows, known)
        best = choose(results, min_probability=self._min_probability)
        promising = max(range(1, len(results)), key=lambda i: results[i].gain.probability)
        return Choice(
            entries[best].ordering,
            compare(rows[0], rows[best], num_candidates=len(rows), gain=results[best].gain),
            results,
            weigh(known, self._original, entries[best or promising].ordering),
            self._cut,
        )

    def _entries(self, progress: Progress, race_calls: int) -> list[Finalist]:
        """The orderings of the final comparison, the original first."""
        plan = self._plan
        best = progress.best(self._search, plan.num_best_seen)
        return finalists(
            self._search,
            best,
            original=self._original,
            num_draws=plan.num_final_draws,
            with_mode=plan.with_mode,
        )

    def _evidence(self, compared: Scores) -> Scores:
        """The scores by example that choose, from those of the comparison: here these alone."""
        return compared

    def _results(
        self, entries: Sequence[Finalist], rows: Sequence[Sequence[float]], known: Scores
    ) -> list[Result]:
        """The entries that have rows, with what the scores known let one expect of them."""
        gains = self._search.model.fit(known, kept=[entry.ordering for entry in entries]).gains(
            self._original
        )
        return [
            Result(entry, math.fsum(row) / len(row), gains[entry.ordering])
            for entry, row in zip(entries, rows, strict=False)
        ]

    def _compared(self, orderings: list[Ordering], num_examples: int) -> tuple[list[int], list[list[float]]]:
        """The examples of the comparison, and rows of scores: of the first orderings only, where the time was up."""
        scorer = self._scorer
        left = max(0, self._plan.call_limit - scorer.program_calls)
        selection = range(self._num_train, self._num_train + num_examples)
        examples = affordable_examples(selection, lambda some: scorer.cost(orderings, some), left)
        if not examples:
            return [], []
        ran, rows = scorer.table(orderings, examples, favoured=0, deadline=self._deadlines.end())
        if len(rows) == len(orderings):
            scorer.ledger.settle()
        else:
            self._cut = True
            logger.warning("%d of %d orders could be compared before the end", len(rows), len(orderings))
        return ran, rows


class RacingEnding(Ending):
    """The best orderings race on the train split; its winners meet the original one, and all scores choose.

    Args:
        objective: Has scored the orderings of the search.
        search, scorer, plan, original, num_train, deadlines, min_probability: As in `Ending`.
    """

    def __init__(
        self,
        search: Search,
        objective: RacingExamples,
        scorer: CellScorer,
        *,
        plan: Plan,
        original: Ordering,
        num_train: int,
        deadlines: Deadlines,
        min_probability: float = 0.0,
    ) -> None:
        super().__init__(
            search,
            scorer,
            plan=plan,
            original=original,
            num_train=num_train,
            deadlines=deadlines,
            min_probability=min_probability,
        )
        self._objective = objective

    def _entries(self, progress: Progress, race_calls: int) -> list[Finalist]:
        winners = [Finalist("best seen", ordering) for ordering in self._race(progress, race_calls)]
        return [Finalist("original", self._original), *winners]

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
            [entrant for entrant in dict.fromkeys(entrants) if entrant != self._original],
            num_examples=plan.num_train_examples,
            num_calls=num_calls,
            num_winners=plan.num_best_seen,
            guest=self._original,
            estimate=self._estimates,
            on_heat=self._scorer.ledger.settle,
        )
        self._cut = objective.deadline is not None and time.monotonic() >= objective.deadline
        self.phase = "final comparison"
        return winners

    def _estimates(self, scores: Scores) -> dict[Ordering, float]:
        """What the search's model makes of scores by example, of those orderings that it has not ruled out."""
        return {trial.ordering: trial.score for trial in self._search.model.fit(scores).estimates()}

    def _evidence(self, compared: Scores) -> Scores:
        """All scores, those of the search and the race included."""
        known = {ordering: dict(row) for ordering, row in self._objective.scores().items()}
        for ordering, row in compared.items():
            known[ordering] = known.get(ordering, {}) | dict(row)
        return known


class CriterionEnding(Ending):
    """The best ordering of the search is chosen; the selection split only says how it does beside the original."""

    def run(self, progress: Progress, *, race_calls: int, num_selection: int) -> Choice:
        best = progress.best(self._search, 1)
        if not best:
            return Choice(self._original, None, [], None, self._cut)
        entries = [Finalist("original", self._original), Finalist("best seen", best[0].ordering)]
        entries = entries[: 1 + (entries[0].ordering != entries[1].ordering)]
        try:
            examples, rows = self._compared([entry.ordering for entry in entries], num_selection)
        except NothingRan as error:  # the order needs no metric, the comparison does
            logger.warning("the order chosen could not be compared with the original one: %s", error)
            examples, rows = [], []
        if len(rows) < len(entries):
            return Choice(best[0].ordering, None, [], None, self._cut)
        known = {
            entry.ordering: dict(zip(examples, row, strict=True))
            for entry, row in zip(entries, rows, strict=True)
        }
        results = self._results(entries, rows, known)
        comparison = compare(rows[0], rows[-1], num_candidates=2, gain=results[-1].gain)
        return Choice(best[0].ordering, comparison, results, None, self._cut)
