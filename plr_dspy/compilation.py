"""One compile: a search on the train split, then the finalists on the selection split."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dspy

from plr_dspy.distributions import OrderingDistribution
from plr_dspy.finals import Finalist, compare, finalists, winner
from plr_dspy.loop import Progress, run
from plr_dspy.metrics import Metric
from plr_dspy.plan import Plan
from plr_dspy.progress import ProgressBar
from plr_dspy.records import Comparison, Iteration, Trial
from plr_dspy.scoring import CellScorer
from plr_dspy.search import CrossEntropySearch, ExhaustiveSearch
from plr_dspy.slots import ProgramSlots
from plr_dspy.space import Ordering
from plr_dspy.splits import Splits
from plr_dspy.updates import UpdateRule

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """Everything that is decided before the first program call.

    Attributes:
        program: A copy of the student.
        slots: What can be ordered in it.
        splits: The examples that score orders.
        plan: The shape of the compile.
        update: The update rule.
        seed: Of everything random.
    """

    program: dspy.Module
    slots: ProgramSlots
    splits: Splits
    plan: Plan
    update: UpdateRule
    seed: int

    def new_search(self) -> CrossEntropySearch:
        """The search that the plan asks for."""
        shape: dict[str, Any] = {
            "update": self.update,
            "num_samples": self.plan.num_samples,
            "elite_fraction": self.plan.elite_fraction,
            "seed": self.seed,
        }
        if self.plan.exhaustive:
            return ExhaustiveSearch(self.slots.space, **shape)
        return CrossEntropySearch(self.slots.space, archive=self.plan.archive, **shape)

    def new_scorer(
        self, metric: Metric, *, num_threads: int | None, max_errors: int | None, on_cell: Callable[[], None]
    ) -> CellScorer:
        """The scorer of the program's orderings, on the train split followed by the selection split."""
        return CellScorer(
            self.program,
            self.slots,
            metric=metric,
            examples=[*self.splits.train, *self.splits.selection],
            names=self.splits.names,
            num_threads=num_threads,
            max_errors=max_errors,
            max_metric_calls=self.plan.max_metric_calls,
            on_cell=on_cell,
        )


@dataclass(frozen=True)
class Outcome:
    """What a compile found.

    Attributes:
        ordering: The chosen one.
        distributions: The final distribution of each block.
        comparison: Chosen against original; None if nothing was scored.
        candidates: The finalists and their trials.
        history: Rounds of the search.
        search_calls: Program calls of the search.
        stopped: Why the search ended.
    """

    ordering: Ordering
    distributions: list[OrderingDistribution]
    comparison: Comparison | None
    candidates: list[tuple[Finalist, Trial]]
    history: list[Iteration]
    search_calls: int
    stopped: str


@dataclass(frozen=True)
class TrainObjective:
    """Mean score on a fixed prefix of the train split, the same for all orderings."""

    scorer: CellScorer
    num_examples: int

    @property
    def program_calls(self) -> int:
        return self.scorer.program_calls

    def cost(self, orderings: Sequence[Ordering]) -> int:
        return self.scorer.cost(orderings, range(self.num_examples))

    def __call__(self, orderings: Sequence[Ordering]) -> list[Trial]:
        return self.scorer.score(orderings, range(self.num_examples))


def nothing_to_order(job: Job) -> Outcome:
    """The outcome where every ordering gives the same prompt."""
    return Outcome(
        ordering=job.slots.space.identity,
        distributions=job.new_search().distributions,
        comparison=None,
        candidates=[],
        history=[],
        search_calls=0,
        stopped="all orders give the same prompt",
    )


def unfinished(job: Job, progress: Progress) -> Outcome:
    """The outcome of a compile that was interrupted: the best order of the search, not compared."""
    best = progress.best(1)
    searching = progress.stopped == "interrupted"
    return replace(
        nothing_to_order(job),
        ordering=best[0].ordering if best else job.slots.space.identity,
        history=progress.history,
        stopped="interrupted" if searching else "interrupted in the final comparison",
    )


def find_ordering(job: Job, scorer: CellScorer, bar: ProgressBar, progress: Progress) -> Outcome:
    """Search, then choose on the selection split; the original order wins ties.

    Args:
        job: What to order.
        scorer: Scores orderings.
        bar: Shows the best score.
        progress: Filled by the search.
    """
    plan = job.plan
    search = job.new_search()

    def on_iteration(iteration: Iteration) -> None:
        bar.show(f"best on train={iteration.best_score_so_far:.3f}")
        logger.info(
            "iteration %d: %d orders, %d new; mean score %.3f, best %.3f, best so far %.3f; %d program calls",
            iteration.index + 1,
            iteration.num_samples,
            iteration.num_new,
            iteration.mean_score,
            iteration.best_score,
            iteration.best_score_so_far,
            iteration.program_calls,
        )

    run(
        search,
        TrainObjective(scorer, plan.num_train_examples),
        num_iterations=plan.num_iterations,
        max_program_calls=None if plan.max_metric_calls is None else plan.max_metric_calls - plan.final_calls,
        on_iteration=on_iteration,
        progress=progress,
    )
    search_calls = scorer.program_calls
    entries = finalists(search, progress.best(plan.num_best_seen), num_draws=plan.num_final_draws)
    num_train = len(job.splits.train)
    examples = range(num_train, num_train + plan.num_selection_examples)
    rows = scorer.table([entry.ordering for entry in entries], examples, favoured=0)
    results = [
        Trial(entry.ordering, math.fsum(row) / len(row), len(row))
        for entry, row in zip(entries, rows, strict=True)
    ]
    best = winner(results)
    if len(entries) > 1 and len({trial.score for trial in [*progress.trials.values(), *results]}) == 1:
        logger.warning("every order scored the same: the demos may not reach the model, or decide nothing")
    return Outcome(
        ordering=entries[best].ordering,
        distributions=search.distributions,
        comparison=compare(rows[0], rows[best], num_candidates=len(entries)),
        candidates=list(zip(entries, results, strict=True)),
        history=progress.history,
        search_calls=search_calls,
        stopped=progress.stopped,
    )
