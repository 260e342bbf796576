"""One compile: a search on the train split, then the finalists on the selection split."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from plr_dspy.compilation.calibration_effect import calibration_effect, effect_without_comparison
from plr_dspy.compilation.evidence import any_difference, weigh
from plr_dspy.compilation.final_comparison import (
    MIN_COMPARED,
    Finalist,
    choose,
    compare,
    comparison,
    finalists,
    make_results,
    merge_scores,
)
from plr_dspy.compilation.first_signs import FirstSigns
from plr_dspy.compilation.limits import Limits
from plr_dspy.compilation.outcome import Outcome
from plr_dspy.compilation.plan import Plan
from plr_dspy.compilation.sequential_halving import entrants, race
from plr_dspy.compilation.spending import Spending
from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import Iteration
from plr_dspy.report.text import MIN_PROBABILITY
from plr_dspy.runtime.progress_bar import ProgressBar
from plr_dspy.scoring.checkpoint import Checkpoint
from plr_dspy.scoring.objectives import SearchObjective
from plr_dspy.scoring.purse import Purse
from plr_dspy.scoring.scorer import CellScorer, NothingRan
from plr_dspy.scoring.staged_objective import RacingExamples
from plr_dspy.search.loop import TIME_LIMIT, Progress, run
from plr_dspy.search.search import Search
from plr_dspy.search.stopping import Stopper
from plr_dspy.search.surrogate.fitted_model import Scores

logger = logging.getLogger(__name__)


class Compilation:
    """A compile under way; what it has found can be had at any moment.

    Args:
        search: Proposes orderings.
        objective: Scores them for it; an attribute, too.
        scorer: Of the objective, on the train split followed by the selection split.
        plan: The shape of the compile.
        num_train: Examples of the train split.
        original: What the user has: an ordering, or `WITHOUT_DEMOS`; None takes the identity.
        min_probability: Of being better on new examples that it takes to replace the original.
        sample: Says one of the program's answers, for messages.
        stoppers: What ends the search early.
        max_seconds: No program call begins later than this; None for no limit.
        purse: Holds the money; None for no limit.
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
        min_probability: float = MIN_PROBABILITY,
        sample: Callable[[], str] = str,
        stoppers: Sequence[Stopper],
        max_seconds: float | None,
        purse: Purse | None = None,
        checkpoint: Checkpoint,
        bar: ProgressBar,
    ) -> None:
        self._search = search
        self._scorer = scorer
        self._plan = plan
        by_scores = not search.model.calibrating  # calibrated answers may differ where scores do not
        self._signs = FirstSigns(scorer.ledger, num_train=num_train, sample=sample, by_scores=by_scores)
        self._stoppers: list[Stopper] = [*stoppers] if plan.by_criterion else [self._signs, *stoppers]
        self._checkpoint = checkpoint
        self._bar = bar
        self._limits = Limits(max_seconds, purse or Purse(), plan, scorer.ledger)
        self._progress = Progress()
        self._searched = False
        self.objective = objective
        self._original = search.space.identity if original is None else original
        self._spending = Spending(plan, scorer, num_train=num_train, original=self._original)
        self._min_probability, self._phase = min_probability, "final comparison"
        self._cut = False  # whether the time was up before all was done
        if checkpoint.state is not None:
            self._restore(checkpoint.state)

    def run(self) -> Outcome:
        """Search, then choose on the selection split; the original order wins ties."""
        if self._search.space.num_distinct < 2:
            logger.warning("all choices of demos and order give the same prompt: there is nothing to compare")
            return replace(self._keep_original(), stopped="all choices give the same prompt")
        if not self._searched:
            self.objective.deadline = self._limits.search()
            run(
                self._search,
                self.objective,
                num_iterations=self._plan.num_iterations,
                max_program_calls=self._spending.search_limit,
                stoppers=self._stoppers,
                on_iteration=self._on_iteration,
                progress=self._progress,
            )
            self._spending.note_search(self._progress.stopped)
            if self._progress.stopped != TIME_LIMIT:
                self._save(searched=True)
        outcome = self._calibrated(self._end())
        self._note_end()
        return replace(outcome, stopped=self._limits.named(outcome.stopped))

    def _end(self) -> Outcome:
        if self._signs.nothing_found and self._search.space.holds(self._original):
            return replace(self._keep_original(), evidence=self._signs.evidence())
        plan = self._plan
        share = min(self._limits.share, self._spending.share_searched(self._progress.stopped))
        entries = self._finalists(share)
        if not entries:
            return self._keep_original()
        num_examples = max(MIN_COMPARED, round(share * plan.num_selection_examples))
        try:
            examples, rows, cut = compare(
                self._scorer,
                [entry.ordering for entry in entries],
                self._spending.selection[: num_examples * (plan.by_criterion or len(entries) > 1)],
                max_program_calls=self._limits.call_limit,
                deadline=self._limits.end(),
            )
        except NothingRan as error:
            if not plan.by_criterion:
                raise
            logger.warning("what was chosen could not be compared with the original: %s", error)
            examples, rows, cut = [], [], False
        self._cut = self._cut or cut
        if len(rows) < (len(entries) if plan.by_criterion else 2):
            kept = entries[-1].ordering if plan.by_criterion else self._original
            return replace(
                self._keep_original(), ordering=kept, stopped=f"{self._stopped()}, nothing compared"
            )
        compared = {
            entry.ordering: dict(zip(examples, row, strict=True))
            for entry, row in zip(entries, rows, strict=False)
        }
        return self._conclude(entries, compared, merge_scores(self.objective.scores(), compared))

    def _finalists(self, share: float) -> list[Finalist]:
        """The orderings of the final comparison, the original first; the share is that of the plan's calls to use."""
        plan, search, original = self._plan, self._search, self._original
        if plan.racing:
            winners = self._race(self._spending.race_limit(share))
            return [Finalist("original", original), *(Finalist("best seen", winner) for winner in winners)]
        best = self._progress.best(search, plan.num_best_seen)
        if plan.by_criterion and not best:
            return []
        return finalists(
            search, best, original=original, num_draws=plan.num_final_draws, with_mode=plan.with_mode
        )

    def _race(self, num_calls: int) -> list[Ordering]:
        """The winners among the best orderings of the search."""
        plan, search, objective = self._plan, self._search, self.objective
        assert isinstance(objective, RacingExamples)
        self._phase = "race of the best"
        objective.deadline = self._limits.race()
        objective.max_program_calls = plan.call_limit - plan.final_calls
        best = self._progress.best(search, plan.num_entrants)
        winners = race(
            objective,
            entrants(search, best, original=self._original, num_draws=plan.num_final_draws),
            num_examples=plan.num_train_examples,
            num_calls=num_calls,
            num_winners=plan.num_best_seen,
            guest=self._original,
            estimate=lambda scores: dict(search.model.fit(scores).estimates()),
            on_heat=self._scorer.ledger.settle,
        )
        self._cut = self._limits.is_over(objective.deadline)
        self._phase = "final comparison"
        return winners

    def _conclude(self, entries: Sequence[Finalist], compared: Scores, known: Scores) -> Outcome:
        """The outcome of a final comparison, by what all scores known let one expect on new examples."""
        by_criterion, original = self._plan.by_criterion, self._original
        fitted = self._search.model.fit(known, kept=[entry.ordering for entry in entries])
        counted = fitted.counted(known)
        if fitted.calibrating:
            entries = [entries[0], Finalist("calibrated", original), *entries[1:]]
        rows = [
            [(counted if i else known)[entry.ordering][example] for example in compared[entry.ordering]]
            for i, entry in enumerate(entries)
            if entry.ordering in compared
        ]
        known = counted
        results = make_results(entries, rows, fitted)
        differ = fitted.calibrating or any_difference(known)
        chosen = choose(results, min_probability=self._min_probability) if differ else 0
        best = len(rows) - 1 if by_criterion else chosen
        promising = max(range(1, len(results)), key=lambda i: results[i].gain.probability, default=0)
        before = fitted.as_it_is(original)
        after, ordering = before + results[best].gain.expected, entries[best].ordering
        effect = calibration_effect(fitted, original, ordering)
        return replace(
            self._keep_original(),
            ordering=ordering,
            comparison=comparison(
                rows[0],
                rows[best],
                num_candidates=max(2, len(rows)),
                gain=results[best].gain,
                expected_original=(before, *fitted.interval(original, before, reference=original)),
                expected_chosen=(after, *fitted.interval(ordering, after, reference=original)),
            ),
            candidates=results,
            chosen=best,
            offsets=results[best].offsets if fitted.calibrating else (),
            evidence=None if by_criterion else weigh(known, original, entries[best or promising].ordering),
            stopped=self._stopped(),
            leaning=fitted.leaning(original, entries[best].ordering),
            calibration=effect and replace(effect, applied=fitted.calibrating and best > 0),
            fitted=fitted,
        )

    def _calibrated(self, outcome: Outcome) -> Outcome:
        """The outcome with what calibrates its ordering, where a compile that calibrates has compared nothing."""
        model, scores = self._search.model, self.objective.scores()
        if outcome.calibration is None and model.calibrating:
            effect = effect_without_comparison(model, scores, self._original, outcome.ordering)
            if effect is not None and outcome.ordering != self._original:
                effect = replace(effect, applied=True)
                outcome = replace(outcome, offsets=tuple(effect.offsets))
            outcome = replace(outcome, calibration=effect)
        return outcome

    def _stopped(self) -> str:
        """What ended the search, or the time that ended what followed it."""
        return TIME_LIMIT if self._cut else self._progress.stopped

    def unfinished(self, error: BaseException) -> Outcome:
        """What is known where the compile ended in an exception: the best order of the search, not compared."""
        if not self._progress.history and (trials := self.objective.salvage()):
            self._search.tell(trials)
            self._progress.trials.update({trial.ordering: trial for trial in trials})
        best = self._progress.best(self._search, 1)
        searching = self._progress.stopped == "interrupted"
        ended = "interrupted" if isinstance(error, KeyboardInterrupt) else f"ended by {type(error).__name__}"
        stopped = ended if searching else f"{ended} in the {self._phase}"
        ordering = best[0].ordering if best else self._original
        return self._calibrated(replace(self._keep_original(), ordering=ordering, stopped=stopped))

    def _restore(self, state: dict[str, Any]) -> None:
        extended = "extended" in state
        try:
            # With another budget, only a racing search can go on: others are laid out for one.
            racing = isinstance(self.objective, RacingExamples) and "asked" in state.get("objective", {})
            if "search" in state and (racing or not extended):
                self._search.load_state_dict(state["search"])
                self._progress = Progress.from_state(state["progress"])
                self.objective.load_state_dict(state["objective"])
                if not extended:
                    self._signs.nothing_found = str(state["nothing_found"])
                    self._progress.stopped, self._searched = state["stopped"], bool(state["searched"])
                    self._spending.search_calls = int(state["search_calls"])
            self._spending.restore(state, extended=extended)
        except Exception as error:  # of whatever somebody wrote there
            message = f"state.json in log_dir cannot be read ({error!r}): pass another log_dir"
            raise ValueError(message) from error

    def _note_end(self) -> None:
        """Keep what a later part must know: calls made, and those of a final comparison of too early a search."""
        if self._progress.stopped == TIME_LIMIT:
            self._spending.earlier_finals = self._spending.final_calls
        state = {"earlier_finals": self._spending.earlier_finals, "program_calls": self._scorer.program_calls}
        self._checkpoint.save({**(self._checkpoint.state or {}), **state})

    def _keep_original(self) -> Outcome:
        """The outcome that keeps the original order, with nothing compared."""
        return Outcome(
            ordering=self._original,
            distributions=self._search.distributions,
            comparison=None,
            candidates=[],
            evidence=None,
            history=self._progress.history,
            program_calls=self._spending.by_phase(searching=self._progress.stopped == "interrupted"),
            stopped=self._progress.stopped,
        )

    def _save(self, *, searched: bool) -> None:
        """Keep the state of the search; what failed so far stays failed."""
        self._scorer.ledger.settle()
        self._checkpoint.save(
            {
                "search": self._search.state_dict(),
                "progress": self._progress.state_dict(),
                "objective": self.objective.state_dict(),
                "stopped": self._progress.stopped,
                "searched": searched,
                "nothing_found": self._signs.nothing_found,
                "search_calls": self._spending.search_calls,
                "earlier_finals": self._spending.earlier_finals,
                "program_calls": self._scorer.program_calls,
            }
        )

    def _on_iteration(self, iteration: Iteration) -> None:
        self._save(searched=False)
        self.objective.deadline = self._limits.search()
        self._bar.show(f"estimated best={iteration.best_score_so_far:.3f}")
        logger.info("%s", iteration)
