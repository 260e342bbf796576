"""One compile: a search on the train split, then the finalists on the selection split."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from plr_dspy.checkpoint import Checkpoint
from plr_dspy.distributions import OrderingDistribution
from plr_dspy.finals import Finalist, compare, finalists, winner
from plr_dspy.loop import TIME_LIMIT, Progress, num_affordable, run
from plr_dspy.plan import Plan
from plr_dspy.progress import ProgressBar
from plr_dspy.records import Iteration, Trial
from plr_dspy.report import Comparison
from plr_dspy.scoring import CellScorer
from plr_dspy.search import CrossEntropySearch, ExhaustiveSearch, Search
from plr_dspy.space import Ordering, OrderingSpace
from plr_dspy.stopping import Stopper
from plr_dspy.updates import UpdateRule

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What a compile found.

    Attributes:
        ordering: The chosen one.
        distributions: The final distribution of each block.
        comparison: Chosen against original; None if nothing was compared.
        candidates: The finalists and their trials.
        history: Rounds of the search.
        stopped: Why the search ended.
    """

    ordering: Ordering
    distributions: list[OrderingDistribution]
    comparison: Comparison | None
    candidates: list[tuple[Finalist, Trial]]
    history: list[Iteration]
    stopped: str


def new_search(
    plan: Plan, space: OrderingSpace, *, update: str | UpdateRule, seed: int
) -> CrossEntropySearch:
    """The search that a plan asks for."""
    shape: dict[str, Any] = {
        "update": update,
        "num_samples": plan.num_samples,
        "elite_fraction": plan.elite_fraction,
        "seed": seed,
    }
    if plan.exhaustive:
        return ExhaustiveSearch(space, **shape)
    return CrossEntropySearch(space, archive=plan.archive, **shape)


class TrainObjective:
    """Mean score on a fixed prefix of the train split, the same for all orderings.

    Examples that ran for no ordering when they were first met leave it: later rounds would else be
    scored on other examples than the first.

    Attributes:
        examples: Those that score orderings.
        deadline: When to stop, by `time.monotonic`.
    """

    def __init__(self, scorer: CellScorer, *, num_examples: int, num_train: int) -> None:
        self.examples = list(range(num_examples))
        self.deadline: float | None = None
        self._train = range(num_train)
        self._scorer = scorer

    @property
    def program_calls(self) -> int:
        return self._scorer.ledger.calls(self._train)

    def cost(self, orderings: Sequence[Ordering]) -> int:
        return self._scorer.cost(orderings, self.examples)

    def __call__(self, orderings: Sequence[Ordering]) -> list[Trial]:
        trials = self._scorer.score(orderings, self.examples, deadline=self.deadline)
        known = self._scorer.ledger.examples_that_ran()
        ran = [example for example in self.examples if example in known]
        if trials and len(ran) < len(self.examples):
            lost = len(self.examples) - len(ran)
            if lost > len(ran):
                self._scorer.ledger.retry()
                raise RuntimeError(
                    f"only {len(ran)} of {len(self.examples)} train examples ran for any order: mend the program, the "
                    "metric or what they call, and compile again (with log_dir, from here)"
                )
            logger.warning(
                "%d of %d train examples ran for no order and are left out", lost, len(self.examples)
            )
            self.examples = ran
        return trials


class Compilation:
    """A compile under way; what it has found can be had at any moment.

    Args:
        search: Proposes orderings.
        scorer: Scores them, on the train split followed by the selection split.
        plan: The shape of the compile.
        num_train: Examples of the train split.
        stoppers: What ends the search early.
        max_seconds: No program call begins later than this; None for no limit.
        checkpoint: Opened; what it holds is not done again.
        bar: Shows how far it is.
    """

    def __init__(
        self,
        search: Search,
        scorer: CellScorer,
        *,
        plan: Plan,
        num_train: int,
        stoppers: Sequence[Stopper],
        max_seconds: float | None,
        checkpoint: Checkpoint,
        bar: ProgressBar,
    ) -> None:
        self._search = search
        self._scorer = scorer
        self._plan = plan
        self._train = range(num_train)
        self._stoppers = stoppers
        self._max_seconds = max_seconds
        self._checkpoint = checkpoint
        self._bar = bar
        self._started = time.monotonic()
        self._progress = Progress()
        self._earlier_finals = 0
        self._objective = TrainObjective(scorer, num_examples=plan.num_train_examples, num_train=num_train)
        if checkpoint.state is not None:
            self._restore(checkpoint.state)
        bar.advance(checkpoint.ledger.num_resumed)

    def run(self) -> Outcome:
        """Search, then choose on the selection split; the original order wins ties."""
        if self._search.space.num_distinct < 2:
            logger.warning("all orders of the demos give the same prompt: nothing to order, no call made")
            return replace(self._original(), stopped="all orders give the same prompt")
        plan = self._plan
        self._objective.deadline = self._deadline(plan.search_calls / (plan.search_calls + plan.final_calls))
        run(
            self._search,
            self._objective,
            num_iterations=plan.num_iterations,
            max_program_calls=plan.call_limit
            - plan.final_calls
            - self._earlier_finals
            - self._scorer.ledger.num_lost,
            stoppers=self._stoppers,
            on_iteration=self._on_iteration,
            progress=self._progress,
        )
        outcome = self._choose()
        self._note_end()
        return outcome

    def unfinished(self, error: BaseException) -> Outcome:
        """What is known where the compile ended in an exception: the best order of the search, not compared."""
        best = self._progress.best(1)
        searching = self._progress.stopped == "interrupted"
        ended = "interrupted" if isinstance(error, KeyboardInterrupt) else f"ended by {type(error).__name__}"
        return replace(
            self._original(),
            ordering=best[0].ordering if best else self._search.space.identity,
            stopped=ended if searching else f"{ended} in the final comparison",
        )

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            if "search" in state:
                self._search.load_state_dict(state["search"])
                self._progress = Progress.from_state(state["progress"])
                self._objective.examples = [int(example) for example in state["examples"]]
            self._earlier_finals = int(state["earlier_finals"])
        except Exception as error:  # of whatever somebody wrote there
            raise ValueError(
                f"state.json in log_dir cannot be read ({error!r}): pass another log_dir"
            ) from error

    def _note_end(self) -> None:
        """Keep what a later part must know: calls made, and those of a final comparison of too early a search."""
        ledger = self._scorer.ledger
        if self._progress.stopped == TIME_LIMIT:
            self._earlier_finals = ledger.calls() - ledger.calls(self._train) - ledger.num_lost
        state = {"earlier_finals": self._earlier_finals, "program_calls": ledger.calls()}
        self._checkpoint.save({**(self._checkpoint.state or {}), **state})

    def _deadline(self, share: float = 1.0) -> float | None:
        """When so large a share of the time is over, by `time.monotonic`."""
        return None if self._max_seconds is None else self._started + share * self._max_seconds

    def _original(self) -> Outcome:
        """The outcome that keeps the original order, with nothing compared."""
        return Outcome(
            ordering=self._search.space.identity,
            distributions=self._search.distributions,
            comparison=None,
            candidates=[],
            history=self._progress.history,
            stopped=self._progress.stopped,
        )

    def _on_iteration(self, iteration: Iteration) -> None:
        self._scorer.ledger.settle()
        self._checkpoint.save(
            {
                "search": self._search.state_dict(),
                "progress": self._progress.state_dict(),
                "examples": self._objective.examples,
                "earlier_finals": self._earlier_finals,
                "program_calls": self._scorer.program_calls,
            }
        )
        self._bar.show(f"best on train={iteration.best_score_so_far:.3f}")
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

    def _choose(self) -> Outcome:
        plan, progress, scorer = self._plan, self._progress, self._scorer
        entries = finalists(self._search, progress.best(plan.num_best_seen), num_draws=plan.num_final_draws)
        examples = range(len(self._train), len(self._train) + plan.num_selection_examples)
        orderings = [entry.ordering for entry in entries]
        left = plan.call_limit - scorer.program_calls
        count = num_affordable(orderings, lambda some: scorer.cost(some, examples), left)
        rows = scorer.table(orderings[:count], examples, favoured=0, deadline=self._deadline())
        stopped = progress.stopped
        if len(rows) == count:
            scorer.ledger.settle()
        else:
            stopped = TIME_LIMIT
        if len(rows) < len(entries):
            logger.warning("%d of %d orders could be compared before the end", len(rows), len(entries))
            if len(rows) < 2:
                return replace(self._original(), stopped=f"{stopped}, nothing compared")
        results = [
            Trial(entry.ordering, math.fsum(row) / len(row), len(row))
            for entry, row in zip(entries, rows, strict=False)
        ]
        best = winner(results)
        scores = {trial.score for trial in [*progress.trials.values(), *results]}
        if len(results) > 1 and len(scores) == 1:
            logger.warning(
                "every order scored the same: the demos may not reach the model, or decide nothing"
            )
        return replace(
            self._original(),
            ordering=entries[best].ordering,
            comparison=compare(rows[0], rows[best], num_candidates=len(rows)),
            candidates=list(zip(entries, results, strict=False)),
            stopped=stopped,
        )
