"""A compile run: search, race, comparison and decision.

A candidate is an `Ordering` or a `WholeProgram` (`search/space.py`). For each predictor, an
`Ordering` says which demos are shown, in which order, and with which instruction. A `WholeProgram`
is used unchanged. It is a program that the user passed, or a program that retrieves its demos.

Next, read `optimizer/base.py`, which sets up a run and turns its outcome into a program and a
report. Then read `rounds.py` (`SearchRounds` is the base class of `CompileRun`), `race.py` and
`choice.py`. `docs/architecture.md` gives an overview.

"Where to add" in `CONTRIBUTING.md` explains how to extend a run. A new search subclasses `Search`
(`search/search.py`), and `LearningOptimizer.search` creates it. A new stopping rule needs a
`StopReason`, see `STOPS_WITHOUT_SHORTENING`. A new kind of candidate should be a `WholeProgram`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from plr_dspy.compiling.choice import Decision, Outcome, compare_finalists, count_evidence
from plr_dspy.compiling.effect import estimate_effect
from plr_dspy.compiling.futility import UnreadableReplies
from plr_dspy.compiling.plan import MIN_EXAMPLES
from plr_dspy.compiling.race import first_of_each_kind, run_race
from plr_dspy.compiling.rounds import SearchRounds
from plr_dspy.report.schema import Evidence
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.evaluator import COMPARISON, PHASES, RACE, SEARCH, Wanted
from plr_dspy.scoring.observations import Observations
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

# Minimum number of examples in a shortened comparison, unless the limits allow fewer. If they allow
# fewer than `MIN_EXAMPLES`, nothing is compared.
MIN_COMPARED = 8

# After these stops, the race and the comparison get all planned calls that the limits still allow. If
# a limit ended the search, these calls were reserved. If no new candidates were left, the search is
# complete. After any other stop, both phases are shortened in the same proportion as the search.
STOPS_WITHOUT_SHORTENING = {StopReason.TIME, StopReason.COST, StopReason.BUDGET, StopReason.NOTHING_NEW}


@dataclass(frozen=True)
class RemainingCalls:
    """The program calls that are left after the search."""

    race: int  # maximum number of calls in the race
    comparison: int  # number of calls that the race must leave for the comparison
    # Number of examples on which the comparison scores each finalist. If there are fewer finalists
    # than planned, the comparison makes fewer calls than `comparison`.
    num_compared: int


@dataclass(frozen=True)
class FinalComparison:
    """Candidates that were scored on the same examples."""

    finalists: list[Candidate]  # at least two; the original program is first
    examples: list[int]
    # Number of programs that a race dropped because of scores on these examples. Only
    # `choose_program` runs a race that drops programs.
    num_dropped: int = 0


@dataclass(kw_only=True)
class CompileRun(SearchRounds):
    """A compile run in progress, from the first round of the search to the decision.

    `SearchRounds` documents all fields. The original is the program that the user passed to
    `compile`. If `run` raises an exception, the caller (`optimizer/base.py`) gets the outcome so
    far from `unfinished`. The caller sets the optimizer's `report` and `best_program` from this
    outcome, and then raises the exception again.
    """

    def run(self) -> Outcome:
        """Search, race the best candidates, compare the winners with the original, and decide."""
        stop = self.reason_not_to_begin()
        if stop is not None:
            return self.outcome(stop=stop)

        # 1. Search: score candidates on some train examples. At most once per run, `next_candidates`
        # widens the search space, for example with new instructions.
        plan = self.plan
        num_later = plan.race_calls + plan.comparison_calls
        # Reserve calls, money and time for the later phases. For example, if money or time suffices
        # for only half of all planned calls, reserve enough for half of the later calls.
        self.evaluator.begin_phase(SEARCH, reserved=num_later, planned=plan.program_calls)
        while stop is None:
            candidates = self.next_candidates()
            stop = self.score_round(candidates) or self.check_stoppers()
        self.stop = stop
        if self.found_no_difference():
            return self.outcome_without_difference()

        # 2. Race: score the best candidates on more train examples.
        remaining = self.remaining_calls()
        entrants = self.choose_entrants()
        # `remaining` respects the limits on money and time, so reserve all calls of the comparison.
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

        # 3. Comparison: the search has not seen the selection split.
        comparison = self.compare([self.original, *winners], remaining.num_compared)

        # 4. Decision: choose by the expected gain on new examples.
        return self.decide(comparison)

    def reason_not_to_begin(self) -> Stop | None:
        """Return a `Stop` if the search cannot start, or None if it can."""
        if self.search.space.num_distinct < 2:
            # The value is "all choices give the same prompt".
            logger.warning("%s, so there is nothing to compare", StopReason.ONE_PROMPT.value)
            return Stop(StopReason.ONE_PROMPT)
        if not self.plan.program_calls:
            return Stop(StopReason.NO_CALLS)
        return None

    def found_no_difference(self) -> bool:
        """Return whether the original was scored and the search ended because no score differed."""
        return self.stop.reason is StopReason.NO_DIFFERENCE and self.observations.count(self.original) > 0

    def replace_stop_by_limit(self) -> None:
        """If a limit ended the current phase, replace `stop` with this limit."""
        limit = self.evaluator.budget.refused  # None at the beginning of each phase
        if limit is not None:
            self.stop = Stop(limit)

    def remaining_calls(self) -> RemainingCalls:
        """Divide the calls that are left after the search between the race and the comparison."""
        plan = self.plan
        evaluator = self.evaluator
        budget = evaluator.budget
        # The plan does not count the calls that bootstrapped demos, but the budget does.
        num_left = min(
            plan.program_calls - evaluator.num_calls(SEARCH), budget.max_calls - evaluator.num_calls()
        )
        num_race_calls = num_left - plan.comparison_calls
        share = self.share_of_later_calls()
        if share == 1.0:
            # The race also gets the calls that the search did not use.
            return RemainingCalls(
                race=max(0, num_race_calls),
                comparison=plan.comparison_calls,
                num_compared=plan.num_selection_examples,
            )
        min_compared = min(MIN_COMPARED, plan.num_selection_examples)
        num_reserved = max(plan.num_finalists * min_compared, round(share * plan.comparison_calls))
        num_race_calls = min(
            num_race_calls, round(share * plan.race_calls), budget.estimated_calls_left - num_reserved
        )
        return RemainingCalls(
            race=max(0, num_race_calls),
            comparison=num_reserved,
            num_compared=max(min_compared, round(share * plan.num_selection_examples)),
        )

    def share_of_later_calls(self) -> float:
        """Return the share of the calls planned for the race and the comparison that can still be made."""
        plan = self.plan
        num_planned = plan.race_calls + plan.comparison_calls
        share = min(1.0, self.evaluator.budget.estimated_calls_left / max(1, num_planned))
        if self.stop.reason not in STOPS_WITHOUT_SHORTENING:
            share = min(share, self.evaluator.num_calls(SEARCH) / max(1, plan.search_calls))
        return share

    def choose_entrants(self) -> list[Candidate]:
        """Return the candidates for the race.

        They are the best candidates of the search, the mode of the Plackett-Luce distributions
        and, if planned, draws from these distributions.
        """
        others = [candidate for candidate in self.best() if candidate != self.original]
        # Include the best candidate of each kind, even if its estimate is low. The kinds are orderings
        # and whole programs or, if the user passed programs, these programs and all other candidates.
        best = first_of_each_kind(others, self.plan.num_entrants, self.user_programs)
        if not best:
            # Only the original has scores, so the distributions have learned nothing, and their
            # mode would be a random order.
            return []
        candidates = [*best, self.search.mode(), *self.search.draw(self.plan.num_final_draws)]
        return [candidate for candidate in dict.fromkeys(candidates) if candidate != self.original]

    def score_affordable(self, wanted: Wanted) -> list[Candidate]:
        """Score the first candidates in `wanted`, as many as the unreserved calls allow.

        Return the candidates that now have scores on all wanted examples.
        """
        return self.observe(self.evaluator.affordable(wanted))

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
        # Compare at least the original and the best winner, on the examples that both were scored on.
        compared = fully_scored if len(fully_scored) > 1 else finalists[:2]
        records = self.evaluator.known(dict.fromkeys(compared, examples))
        self.evaluator.raise_if_all_failed(records, phase="the final comparison")
        common, _ = self.observations.with_records(records).table(compared, examples)
        return FinalComparison(compared, common) if len(common) >= min_examples else None

    def _num_affordable(self, num_examples: int, num_finalists: int, min_examples: int) -> int:
        """Return the number of examples, at most `num_examples`, that all finalists can be scored on."""
        evaluator = self.evaluator
        # If the estimate is below the minimum, try the minimum anyway. The estimate may be too low,
        # and the limits stop any excess calls.
        num_estimated = max(evaluator.budget.estimated_calls_left // num_finalists, min_examples)
        return min(num_examples, num_estimated, evaluator.unreserved_calls // num_finalists)

    def decide(self, comparison: FinalComparison | None, *, by_score: bool = False) -> Outcome:
        """Choose one of the finalists, or keep the original if nothing was compared.

        Args:
            by_score: Whether to choose by the mean score in the comparison, as PLR Algorithm 1
                does (`PaperRun`, a subclass). Otherwise, choose by the expected gain, estimated
                from both splits.
        """
        if comparison is None:
            return self.outcome()
        finalists = comparison.finalists
        records = self.evaluator.known(dict.fromkeys(finalists, comparison.examples))
        observations = self.observations.with_records(records)
        # With a metric over a set, such as F1, the score of an answer depends on reference answers.
        # From now on, these are the answers of the finalists, calibrated if the search calibrates
        # answers. If these answers are too few, add answers of the next best candidates.
        observations.set_reference(
            [*finalists, *self.best()], self.search.fitted, min_candidates=len(finalists)
        )
        if by_score:
            # Algorithm 1 decides by the scores in the comparison alone, so omit all other scores.
            observations = Observations(self.evaluator.effective_scores)
            observations.add(records)
        decision = compare_finalists(
            finalists,
            comparison.examples,
            observations,
            self.search.model,
            min_probability=self.min_probability,
            by_score=by_score,
            num_dropped=comparison.num_dropped,
            user_programs=self.user_programs,
        )
        return self.outcome(decision)

    def outcome(self, decision: Decision | None = None, stop: Stop | None = None) -> Outcome:
        """Return the outcome of the run. If `decision` is None, the original is kept."""
        evaluator = self.evaluator
        counts = {phase: evaluator.num_calls(phase) for phase in PHASES}
        counts["total"] = evaluator.num_calls()
        # The other counts also include these calls, which an earlier run logged in `log_dir`.
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
        """Return the outcome of a run in which all scores were equal. It keeps the original."""
        # Count the scores of the metric itself, because `scores_for_search` may weight equal scores
        # differently.
        evidence = count_evidence(self.observations.scores())
        # Failed calls can make scores differ, but they are no evidence that candidates differ.
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
        # Fit the model to the original and the candidate. If only one of them has scores, use it for both.
        scores = self.scores_for_search()
        scored = [known for known in dict.fromkeys([self.original, candidate]) if known in scores]
        effect = None
        if scored:
            fitted = model.fit(scores)
            effect = estimate_effect(fitted, scored[0], scored[-1], applied=candidate != self.original)
        return Decision(candidate, evidence=evidence, effect=effect)
