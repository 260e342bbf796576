"""A compile run: search, race, comparison and decision.

A candidate is an `Ordering` or a `WholeProgram` (`search/space.py`). For each predictor, an
`Ordering` says which demos are shown, in which order, and with which instruction. A `WholeProgram`
is used unchanged. It is a program that the user passed in `programs`, or one that retrieves its
demos. The original is the student, the program that `compile` returns unless another one is
probably better.

Next, read `rounds.py`: its `SearchRounds` is the base class of `CompileRun`, and has the steps of
the search loop. Then read `race.py`, `choice.py`, and `optimizer/base.py`, which sets up a run and
turns its outcome into a program and a report. `docs/architecture.md` gives an overview.

Where to add (`CONTRIBUTING.md` has the details):

- A search: subclass `Search` (`search/search.py`), and create it in `LearningOptimizer.search`
  (`optimizer/learning.py`).
- A stopping rule: add a `StopReason` (`report/stop.py`), and return a `Stop` with this reason from
  `check_stoppers` (`rounds.py`). Decide whether the reason belongs in `STOPS_WITHOUT_SHORTENING`.
- A kind of candidate: build `WholeProgram` objects for it, and add them to the search's space.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from plr_dspy.compiling.choice import Decision, Outcome, compare_finalists, count_evidence
from plr_dspy.compiling.effect import estimate_effect
from plr_dspy.compiling.futility import UnreadableReplies
from plr_dspy.compiling.plan import MIN_EXAMPLES
from plr_dspy.compiling.race import first_of_each_kind, run_race
from plr_dspy.compiling.rounds import SearchRounds
from plr_dspy.report.schema import Evidence
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.evaluator import COMPARISON, PHASES, RACE, SEARCH, Wanted
from plr_dspy.scoring.observations import CallRecords, Observations
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

# Minimum number of examples in a shortened comparison, unless the limits allow fewer. With fewer than
# `MIN_EXAMPLES`, nothing is compared, unless the selection split is that small.
MIN_EXAMPLES_IF_SHORTENED = 8

# After these stops, the race and the comparison keep all of their planned calls that the limits still
# allow. TIME, COST and BUDGET leave the reserved calls, and NOTHING_NEW means that the search is
# complete. After any other stop, such as a high enough score, both phases are shortened in the same
# proportion as the search.
STOPS_WITHOUT_SHORTENING = {StopReason.TIME, StopReason.COST, StopReason.BUDGET, StopReason.NOTHING_NEW}


@dataclass(frozen=True)
class RemainingCalls:
    """The program calls that are left after the search."""

    race: int  # maximum number of calls in the race
    comparison: int  # number of calls that the race must leave for the comparison
    num_compared: int  # number of examples on which the comparison scores each finalist


@dataclass(frozen=True)
class FinalComparison:
    """Candidates that were scored on the same examples."""

    finalists: list[Candidate]  # at least two; the original program is first
    examples: list[int]
    # Number of programs that were dropped because of scores on these examples. This happens only in
    # `choose_program` (`EliminationRun`), whose race and comparison use the same examples.
    num_dropped: int = 0


@dataclass(kw_only=True)
class CompileRun(SearchRounds):
    """A compile run in progress, from the first round of the search to the decision.

    `SearchRounds` documents all fields. From this base class, `run` uses `next_candidates`,
    `score_round` and `check_stoppers`. The other methods use `observe`, `best` and
    `scores_for_search`.

    If `run` raises an exception, the caller (`optimizer/base.py`) gets the outcome so far from
    `unfinished`. The caller sets the optimizer's `report` and `best_program` from this outcome, and
    then raises the exception again.
    """

    decides_by_score: ClassVar[bool] = False  # whether the mean score in the comparison decides

    def run(self) -> Outcome:
        """Search, race the best candidates, compare the winners with the original, and decide."""
        stop = self.reason_not_to_begin()
        if stop is not None:
            return self.outcome(stop=stop)

        # 1. Search: ask for candidates, score them on some train examples, and update the search.
        # Once per run, `next_candidates` may widen the search space. For example, it adds
        # instructions that a prompt model writes after seeing examples of failures.
        plan = self.plan
        num_later = plan.race_calls + plan.comparison_calls
        # If money or time suffices for only half of the planned calls, only half of the later calls
        # are reserved.
        self.evaluator.begin_phase(SEARCH, reserved=num_later, planned=plan.program_calls)
        while stop is None:
            candidates = self.next_candidates()
            stop = self.score_round(candidates)
            if stop is None:
                stop = self.check_stoppers()
        self.stop = stop
        if self.found_no_difference():
            return self.outcome_without_difference()

        # 2. Race: score the best candidates on more and more train examples, and repeatedly drop the
        # worst. The original is scored too, but never dropped.
        remaining = self.remaining_calls()
        entrants = self.choose_entrants()
        self.evaluator.begin_phase(RACE, reserved=remaining.comparison)
        winners = run_race(
            entrants,
            original=self.original,
            observations=self.observations,
            schedule=self.schedule,
            score=self.score_affordable,
            estimate=self.estimated_scores,
            plan=plan,
            num_calls=remaining.race,
            user_programs=self.user_programs,
        )
        self.replace_stop_by_limit()

        # 3. Comparison: score the original and the winners on the selection split, which the search
        # has not seen.
        comparison = self.compare([self.original, *winners], remaining.num_compared)

        # 4. Decision: estimate each winner's gain over the original on new examples, from the
        # scores on both splits.
        return self.decide(comparison)

    def reason_not_to_begin(self) -> Stop | None:
        """Return a `Stop` if the search cannot start, or None if it can."""
        if self.search.space.num_distinct < 2:
            # The message starts with "all choices give the same prompt".
            logger.warning("%s, so there is nothing to compare", StopReason.ONE_PROMPT.value)
            return Stop(StopReason.ONE_PROMPT)
        if not self.plan.program_calls:
            return Stop(StopReason.NO_CALLS)
        return None

    def found_no_difference(self) -> bool:
        """Return whether the search ended because no score differed, and the original was scored.

        If only other candidates were scored, the original may still be worse than they are.
        """
        return self.stop.reason is StopReason.NO_DIFFERENCE and self.observations.count(self.original) > 0

    def replace_stop_by_limit(self) -> None:
        """If a limit ended the current phase, replace `stop` with this limit."""
        limit = self.evaluator.budget.limit_reached  # `begin_phase` resets it to None.
        if limit is not None:
            self.stop = Stop(limit)

    def remaining_calls(self) -> RemainingCalls:
        """Divide the calls that are left after the search between the race and the comparison."""
        plan = self.plan
        evaluator = self.evaluator
        # The plan does not count the calls that bootstrapped demos, but the budget does.
        num_left = min(
            plan.program_calls - evaluator.num_calls(SEARCH),
            evaluator.budget.max_calls - evaluator.num_calls(),
        )
        share = self.share_of_later_calls()
        if share < 1.0:
            return self.shortened_calls(share, num_left)
        # The race also gets the calls that the search did not use.
        return RemainingCalls(
            race=max(0, num_left - plan.comparison_calls),
            comparison=plan.comparison_calls,
            num_compared=plan.num_selection_examples,
        )

    def shortened_calls(self, share: float, num_left: int) -> RemainingCalls:
        """Divide this share of the later calls between the race and the comparison.

        The comparison comes first: it keeps at least `MIN_EXAMPLES_IF_SHORTENED` examples.
        """
        plan = self.plan
        min_compared = min(MIN_EXAMPLES_IF_SHORTENED, plan.num_selection_examples)
        min_comparison = max(plan.num_finalists * min_compared, round(share * plan.comparison_calls))
        allowed_by_share = round(share * plan.race_calls)
        allowed_by_plan = num_left - plan.comparison_calls
        allowed_by_limits = self.evaluator.budget.estimated_calls_left - min_comparison
        return RemainingCalls(
            race=max(0, min(allowed_by_share, allowed_by_plan, allowed_by_limits)),
            comparison=min_comparison,
            num_compared=max(min_compared, round(share * plan.num_selection_examples)),
        )

    def share_of_later_calls(self) -> float:
        """Return the share of the calls planned for the race and the comparison that should still be made.

        It is below 1 if the limits allow fewer calls, or if the search ended early.
        """
        plan = self.plan
        num_planned = plan.race_calls + plan.comparison_calls
        share = min(1.0, self.evaluator.budget.estimated_calls_left / max(1, num_planned))
        if self.stop.reason not in STOPS_WITHOUT_SHORTENING:
            share = min(share, self.evaluator.num_calls(SEARCH) / max(1, plan.search_calls))
        return share

    def choose_entrants(self) -> list[Candidate]:
        """Return the candidates for the race, without the original.

        They are the best candidates of the search, the mode of the Plackett-Luce distributions
        and, if planned, draws from these distributions.
        """
        others = [candidate for candidate in self.best() if candidate != self.original]
        # Include the best candidate of each kind, even if its estimate is low.
        best = first_of_each_kind(others, self.plan.num_entrants, self.user_programs)
        if not best:
            # No candidate except the original has scores, so the distributions have learned nothing,
            # and their mode would be a random order.
            return []
        entrants = dict.fromkeys([*best, self.search.mode(), *self.search.draw(self.plan.num_final_draws)])
        entrants.pop(self.original, None)
        return list(entrants)

    def score_affordable(self, wanted: Wanted) -> list[Candidate]:
        """Score the first candidates in `wanted`, as many as the unreserved calls allow.

        Return the candidates that now have scores on all wanted examples.
        """
        affordable = self.evaluator.affordable(wanted)
        return self.observe(affordable)

    def estimated_scores(self) -> Mapping[Candidate, float]:
        """Return the model's estimates of the candidates' scores, given all calls so far."""
        # Fit the model again, because `search.fitted` was fitted before the race.
        return dict(self.search.model.fit(self.scores_for_search()).estimates())

    def compare(self, finalists: list[Candidate], num_examples: int) -> FinalComparison | None:
        """Score the finalists on the first examples of the selection split.

        Args:
            finalists: The original, then the winners.
            num_examples: Maximum number of examples. The limits may allow fewer.

        Returns:
            The comparison, or None if the original is the only finalist, or if the limits allow
            too few examples.

        Raises:
            NothingRan: If every call failed.
        """
        self.evaluator.begin_phase(COMPARISON)
        min_examples = max(1, min(MIN_EXAMPLES, self.plan.num_selection_examples))
        num_examples = self._num_affordable(num_examples, len(finalists), min_examples)
        if len(finalists) < 2 or num_examples < min_examples:
            return None
        # The indices of train examples come before those of the selection split.
        examples = list(range(self.num_train, self.num_train + num_examples))
        # If a limit is reached, only the first finalists, starting with the original, are fully scored.
        fully_scored = list(self.evaluator.evaluate(dict.fromkeys(finalists, examples)))
        if len(fully_scored) < len(finalists):
            logger.warning(
                "only %d of %d finalists were scored on all examples before a limit was reached",
                len(fully_scored),
                len(finalists),
            )
            self.replace_stop_by_limit()
        compared = fully_scored
        if len(fully_scored) < 2:
            # Compare the original and the best winner on the examples that both were scored on.
            compared = finalists[:2]
        records = self.evaluator.known(dict.fromkeys(compared, examples))
        self.evaluator.raise_if_all_failed(records, phase="the final comparison")
        common, _ = self.observations.with_records(records).table(compared, examples)
        return FinalComparison(compared, common) if len(common) >= min_examples else None

    def _num_affordable(self, num_examples: int, num_finalists: int, min_examples: int) -> int:
        """Return the number of examples, at most `num_examples`, that all finalists can be scored on."""
        evaluator = self.evaluator
        allowed_by_calls = evaluator.unreserved_calls // num_finalists
        allowed_by_limits = evaluator.budget.estimated_calls_left // num_finalists
        # `allowed_by_limits` is estimated from the cost and time of earlier calls. If it is below the
        # minimum, try the minimum anyway. The budget stops any excess calls.
        return min(num_examples, allowed_by_calls, max(allowed_by_limits, min_examples))

    def decide(self, comparison: FinalComparison | None) -> Outcome:
        """Choose one of the finalists, or keep the original if nothing was compared."""
        if comparison is None:
            return self.outcome()
        finalists = comparison.finalists
        records = self.evaluator.known(dict.fromkeys(finalists, comparison.examples))
        # With a metric over a set, such as F1, the score of an answer depends on reference answers to
        # the other examples. From now on, the finalists' answers are the reference. If they are too few,
        # answers of the next best candidates are added. All observations share this reference.
        all_observations = self.observations.with_records(records)
        all_observations.set_reference(
            [*finalists, *self.best()], self.search.fitted, min_candidates=len(finalists)
        )
        decision = compare_finalists(
            finalists,
            comparison.examples,
            self.deciding_observations(all_observations, records),
            self.search.model,
            min_probability=self.min_probability,
            by_score=self.decides_by_score,
            num_dropped=comparison.num_dropped,
            user_programs=self.user_programs,
        )
        return self.outcome(decision)

    def deciding_observations(self, all_observations: Observations, compared: CallRecords) -> Observations:
        """Return the calls on which the decision is based: all calls, not only the `compared` ones."""
        return all_observations

    def outcome(self, decision: Decision | None = None, stop: Stop | None = None) -> Outcome:
        """Return the outcome of the run. If `decision` is None, the original is kept."""
        evaluator = self.evaluator
        counts = {phase: evaluator.num_calls(phase) for phase in PHASES}
        counts["total"] = evaluator.num_calls()
        # Calls that an earlier run logged in `log_dir` are also included in the other counts.
        counts["resumed"] = evaluator.log.num_recalled
        if decision is None:
            decision = self.decide_uncompared(self.original)
        return Outcome(
            decision,
            distributions=self.search.distributions,
            history=self._history,
            program_calls=counts,
            stop=stop or self.stop,
        )

    def outcome_without_difference(self) -> Outcome:
        """Return the outcome of a run in which no scores differed. It keeps the original."""
        # Count the metric's own scores, because the search's scores may be weighted.
        evidence = count_evidence(self.observations.scores())
        # Scores can differ only because of failed calls, but these do not show that candidates differ.
        evidence = evidence.model_copy(update={"num_differing": 0})
        return self.outcome(self.decide_uncompared(self.original, evidence))

    def unfinished(self, error: BaseException) -> Outcome:
        """Return the outcome after an error or an interrupt, with the best candidate so far."""
        stop = Stop(StopReason.ERROR, f"ended by {type(error).__name__}")
        if isinstance(error, UnreadableReplies):
            stop = Stop(StopReason.UNREADABLE)
        best = self.best()
        candidate = best[0] if best else self.original
        return self.outcome(self.decide_uncompared(candidate), stop)

    def decide_uncompared(self, candidate: Candidate, evidence: Evidence | None = None) -> Decision:
        """Return the decision for a candidate that was not compared with the original.

        If the search scores calibrated answers, the decision includes the calibration.
        """
        model = self.search.model
        if not model.calibrates_answers:
            return Decision(candidate, evidence=evidence)
        scores = self.scores_for_search()
        effect = None
        if self.original in scores or candidate in scores:
            # If only one of the two has scores, return the effect of calibrating this candidate.
            before = self.original if self.original in scores else candidate
            after = candidate if candidate in scores else self.original
            effect = estimate_effect(model.fit(scores), before, after, applied=candidate != self.original)
        return Decision(candidate, evidence=evidence, effect=effect)
