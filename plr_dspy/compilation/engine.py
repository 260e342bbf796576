"""One compile: a search on the train split, then the finalists on the selection split."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plr_dspy.compilation.budget import FINAL_SHARE, RACE_SHARE, Plan
from plr_dspy.compilation.deadlines import Deadlines
from plr_dspy.compilation.ending import CriterionEnding, Ending, RacingEnding
from plr_dspy.compilation.final_comparison import Result
from plr_dspy.compilation.first_signs import FirstSigns
from plr_dspy.orderings.plackett_luce import OrderingDistribution
from plr_dspy.orderings.space import WITHOUT_DEMOS, Ordering
from plr_dspy.orderings.trials import Iteration
from plr_dspy.report.schema import Comparison, Evidence
from plr_dspy.report.text import BUDGET
from plr_dspy.runtime.progress_bar import ProgressBar
from plr_dspy.scoring.checkpoint import Checkpoint
from plr_dspy.scoring.objectives import SearchObjective
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.scoring.staged_objective import RacingExamples
from plr_dspy.search.cross_entropy import Search
from plr_dspy.search.loop import ALL_ROUNDS, NOTHING_LEFT, TIME_LIMIT, Progress, run
from plr_dspy.search.stopping import Stopper

logger = logging.getLogger(__name__)

MIN_COMPARED = 8
"""Examples of the final comparison, at least, where there are so many."""


@dataclass(frozen=True)
class Outcome:
    """What a compile found.

    Attributes:
        ordering: The chosen one.
        distributions: The final distribution of each block.
        comparison: Chosen against original; None if nothing was compared.
        candidates: The finalists, with what chose among them.
        evidence: What there was to tell orderings apart by; None if the metric did not score them.
        history: Rounds of the search.
        program_calls: Program calls by phase, as in `Report`.
        stopped: Why the search ended.
    """

    ordering: Ordering
    distributions: list[OrderingDistribution]
    comparison: Comparison | None
    candidates: list[Result]
    evidence: Evidence | None
    history: list[Iteration]
    program_calls: dict[str, int]
    stopped: str


class Compilation:
    """A compile under way; what it has found can be had at any moment.

    Args:
        search: Proposes orderings.
        objective: Scores them for it.
        scorer: Of the objective, on the train split followed by the selection split.
        plan: The shape of the compile.
        num_train: Examples of the train split.
        original: What the user has: an ordering, or `WITHOUT_DEMOS`; None takes the identity.
        min_probability: Of being better on new examples that it takes to replace the original.
        sample: Says one of the program's answers, for messages.
        stoppers: What ends the search early.
        max_seconds: No program call begins later than this; None for no limit.
        checkpoint: Opened; what it holds is not done again.
        bar: Shows how far it is.
    """

    def __init__(
        self,
        search: Search,
        objective: SearchObjective,
        scorer: CellScorer,
        *,
        plan: Plan,
        num_train: int,
        original: Ordering | None = None,
        min_probability: float = 0.0,
        sample: Callable[[], str] = str,
        stoppers: Sequence[Stopper],
        max_seconds: float | None,
        checkpoint: Checkpoint,
        bar: ProgressBar,
    ) -> None:
        self._search = search
        self._scorer = scorer
        self._plan = plan
        self._train = range(num_train)
        self._selection = range(num_train, num_train + plan.num_selection_examples)
        self._signs = FirstSigns(scorer.ledger, num_train=num_train, sample=sample)
        self._stoppers: list[Stopper] = [*stoppers] if plan.by_criterion else [self._signs, *stoppers]
        self._checkpoint = checkpoint
        self._bar = bar
        self._deadlines = Deadlines(max_seconds, plan, scorer.ledger)
        self._progress = Progress()
        self._earlier_finals = 0
        self._earlier_race = 0
        self._extended_from = -1
        self._searched = False
        self._search_calls = 0
        self._objective = objective
        self._original = search.space.identity if original is None else original
        end: dict[str, Any] = {
            "plan": plan,
            "original": self._original,
            "num_train": num_train,
            "deadlines": self._deadlines,
            "min_probability": min_probability,
        }
        self._ending: Ending
        if isinstance(objective, RacingExamples):
            self._ending = RacingEnding(search, objective, scorer, **end)
        elif plan.by_criterion:
            self._ending = CriterionEnding(search, scorer, **end)
        else:
            self._ending = Ending(search, scorer, **end)
        if checkpoint.state is not None:
            self._restore(checkpoint.state)
        bar.advance(checkpoint.ledger.num_resumed)

    def run(self) -> Outcome:
        """Search, then choose on the selection split; the original order wins ties."""
        if self._search.space.num_distinct < 2:
            logger.warning("all orders of the demos give the same prompt: nothing to order, no call made")
            return replace(self._unchanged(), stopped="all orders give the same prompt")
        plan = self._plan
        if not self._searched:
            self._objective.deadline = self._deadlines.search()
            run(
                self._search,
                self._objective,
                num_iterations=plan.num_iterations,
                max_program_calls=self._train_limit - self._kept_for_race,
                stoppers=self._stoppers,
                on_iteration=self._on_iteration,
                progress=self._progress,
            )
            if self._objective.program_calls == self._extended_from:
                self._warn_of_small_extension()
            self._search_calls = self._objective.program_calls
            if self._progress.stopped != TIME_LIMIT:
                self._save(searched=True)
        outcome = self._end()
        self._note_end()
        return outcome

    def _end(self) -> Outcome:
        if self._signs.nothing_found and self._original != WITHOUT_DEMOS:
            return replace(self._unchanged(), evidence=self._signs.evidence())
        plan, share = self._plan, self._share_searched()
        left = self._train_limit - self._search_calls
        choice = self._ending.run(
            self._progress,
            race_calls=left if share == 1.0 else min(left, round(share * plan.race_calls)),
            num_selection=min(
                plan.num_selection_examples, max(MIN_COMPARED, round(share * plan.num_selection_examples))
            ),
        )
        stopped = TIME_LIMIT if choice.cut else self._progress.stopped
        return replace(
            self._unchanged(),
            ordering=choice.ordering,
            comparison=choice.comparison,
            candidates=choice.results,
            evidence=choice.evidence,
            stopped=stopped if choice.comparison else f"{stopped}, nothing compared",
        )

    def _share_searched(self) -> float:
        """The share of its calls that a search made which was ended early; 1 for others.

        What follows it shrinks with it: who ends a search early wants to spend less.
        """
        # A racing plan ends with its calls; other plans are laid out for so many rounds.
        planned = {TIME_LIMIT, BUDGET, NOTHING_LEFT} | (set() if self._plan.racing else {ALL_ROUNDS})
        if self._progress.stopped in planned:
            return 1.0
        return min(1.0, self._search_calls / max(1, self._plan.search_calls))

    @property
    def _train_limit(self) -> int:
        """Program calls that the search and the race may make."""
        ends = self._plan.final_calls + self._earlier_finals + self._scorer.ledger.num_lost
        return self._plan.call_limit - ends

    @property
    def _kept_for_race(self) -> int:
        """Program calls that the search leaves to the race; where a smaller budget has paid for one, the rest."""
        planned = self._plan.race_calls
        return max(planned // 2, planned - self._earlier_race)

    def _warn_of_small_extension(self) -> None:
        """Say what budget would let a search go on that a smaller one has ended."""
        plan = self._plan
        needed = (
            self._objective.program_calls + self._earlier_finals + plan.num_samples * plan.num_more_examples
        )
        logger.warning(
            "max_metric_calls=%d pays for no further order beside what is kept for race and final comparison: to let "
            "the search go on, pass %d or more",
            plan.call_limit,
            math.ceil(needed / (1 - FINAL_SHARE) / (1 - RACE_SHARE)),
        )

    def unfinished(self, error: BaseException) -> Outcome:
        """What is known where the compile ended in an exception: the best order of the search, not compared."""
        if not self._progress.history and (trials := self._objective.salvaged()):
            self._search.tell(trials)
            self._progress.trials.update({trial.ordering: trial for trial in trials})
        best = self._progress.best(self._search, 1)
        searching = self._progress.stopped == "interrupted"
        ended = "interrupted" if isinstance(error, KeyboardInterrupt) else f"ended by {type(error).__name__}"
        return replace(
            self._unchanged(),
            ordering=best[0].ordering if best else self._original,
            stopped=ended if searching else f"{ended} in the {self._ending.phase}",
        )

    def _restore(self, state: dict[str, Any]) -> None:
        extended = "extended" in state
        try:
            # With another budget, only a racing search can go on: others are laid out for one.
            racing = isinstance(self._objective, RacingExamples) and "asked" in state.get("objective", {})
            if "search" in state and (racing or not extended):
                self._search.load_state_dict(state["search"])
                self._progress = Progress.from_state(state["progress"])
                self._objective.load_state_dict(state["objective"])
                if not extended:
                    self._signs.nothing_found = str(state["nothing_found"])
                    self._progress.stopped, self._searched = state["stopped"], bool(state["searched"])
                    self._search_calls = int(state["search_calls"])
            if extended:
                self._extended_from = paid = self._objective.program_calls
                self._earlier_race = max(0, paid - int(state.get("search_calls") or paid))
            finals = self._finals_paid - self._originals_paid if extended else state["earlier_finals"]
            self._earlier_finals = max(0, int(finals))
        except Exception as error:  # of whatever somebody wrote there
            message = f"state.json in log_dir cannot be read ({error!r}): pass another log_dir"
            raise ValueError(message) from error

    @property
    def _finals_paid(self) -> int:
        """Program calls of final comparisons so far."""
        return self._scorer.ledger.calls(self._selection)

    @property
    def _originals_paid(self) -> int:
        """Selection examples that the original order has been scored on; the next comparison needs them, too."""
        return len(self._selection) - self._scorer.cost([self._original], self._selection)

    def _note_end(self) -> None:
        """Keep what a later part must know: calls made, and those of a final comparison of too early a search."""
        if self._progress.stopped == TIME_LIMIT:
            self._earlier_finals = self._finals_paid
        state = {"earlier_finals": self._earlier_finals, "program_calls": self._scorer.program_calls}
        self._checkpoint.save({**(self._checkpoint.state or {}), **state})

    def _unchanged(self) -> Outcome:
        """The outcome that keeps the original order, with nothing compared."""
        return Outcome(
            ordering=self._original,
            distributions=self._search.distributions,
            comparison=None,
            candidates=[],
            evidence=None,
            history=self._progress.history,
            program_calls=self._program_calls(),
            stopped=self._progress.stopped,
        )

    def _program_calls(self) -> dict[str, int]:
        """Program calls by phase."""
        ledger = self._scorer.ledger
        total, train = ledger.calls(), ledger.calls(self._train)
        train += ledger.num_lost  # most likely: nobody knows
        search = train if self._progress.stopped == "interrupted" else self._search_calls
        race = max(0, train - search)
        return {
            "search": search,
            "race": race,
            "final": total - search - race - self._originals_paid,
            "original": self._originals_paid,
            "total": total,
            "resumed": ledger.num_resumed,
        }

    def _save(self, *, searched: bool) -> None:
        """Keep the state of the search; what failed so far stays failed."""
        self._scorer.ledger.settle()
        self._checkpoint.save(
            {
                "search": self._search.state_dict(),
                "progress": self._progress.state_dict(),
                "objective": self._objective.state_dict(),
                "stopped": self._progress.stopped,
                "searched": searched,
                "nothing_found": self._signs.nothing_found,
                "search_calls": self._search_calls,
                "earlier_finals": self._earlier_finals,
                "program_calls": self._scorer.program_calls,
            }
        )

    def _on_iteration(self, iteration: Iteration) -> None:
        self._save(searched=False)
        self._objective.deadline = self._deadlines.search()
        self._bar.show(f"estimated best={iteration.best_score_so_far:.3f}")
        logger.info(
            "iteration %d: %d orders, %d new; mean score %.3f, best %.3f, estimated best so far %.3f; %d program calls",
            iteration.index + 1,
            iteration.num_samples,
            iteration.num_new,
            iteration.mean_score,
            iteration.best_score,
            iteration.best_score_so_far,
            iteration.program_calls,
        )
