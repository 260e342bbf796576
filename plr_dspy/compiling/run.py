"""A compile run: search, race, comparison and decision.

A candidate is an ordering of demos or a whole program. Read next: `rounds.py`, whose
`SearchRounds` is the base class of `CompileRun`, then `Search` in `search/search.py`, which
proposes the candidates, `race.py` and `choice.py`. `paper.py` has PLR Algorithm 1, a separate
loop without a race.

`docs/architecture.md` shows what happens before and after a run. "Where to add" in
`CONTRIBUTING.md` says how to extend it.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from plr_dspy.compiling.choice import Decision, Outcome, compare_finalists, count_evidence
from plr_dspy.compiling.effect import estimate_effect
from plr_dspy.compiling.plan import MIN_EXAMPLES
from plr_dspy.compiling.race import first_of_each_kind, run_race
from plr_dspy.compiling.rounds import SearchRounds
from plr_dspy.report.schema import Evidence
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.evaluator import BOOTSTRAP, COMPARISON, PHASES, RACE, SEARCH
from plr_dspy.scoring.observations import Observations
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

# Even a shortened comparison uses this many examples, if the selection split and the budget
# allow it.
MIN_COMPARED = 8

# If the search stops for one of these reasons, race and comparison are as long as the plan and
# the limits allow. Otherwise, they are shortened like the search: if the search used half of
# its planned calls, race and comparison get half of theirs.
STOPS_WITHOUT_SHORTENING = {StopReason.TIME, StopReason.COST, StopReason.BUDGET, StopReason.NOTHING_NEW}


@dataclass(frozen=True)
class RemainingCalls:
    """The program calls that the race and the final comparison may make."""

    fraction: float  # share of the calls planned for race and comparison that may still be made
    race: int
    comparison: int


@dataclass(frozen=True)
class FinalComparison:
    """Candidates that were scored on the same examples."""

    finalists: list[Candidate]  # at least two; the original program is first
    examples: list[int]
    num_dropped: int = 0  # number of programs that `EliminationRun` dropped because of these scores


@dataclass(kw_only=True)
class CompileRun(SearchRounds):
    """A compile run in progress, from the first round of the search to the decision.

    If `run` raises an error, the caller (`optimizer/base.py`) calls `unfinished`, which returns
    the outcome so far.
    """

    def run(self) -> Outcome:
        """Search, race the best candidates, compare the winners with the original, and decide."""
        stop = self.reason_not_to_begin()
        if stop is not None:
            return self.outcome(stop=stop)

        # 1. Search: ask for candidates, score them on some train examples, and update the
        # search. Once, `next_candidates` may widen the search space, such as by instructions
        # that a prompt model writes after it has seen failures.
        self.begin_phase(SEARCH, reserved_calls=self.plan.race_calls + self.plan.comparison_calls)
        while stop is None:
            candidates = self.next_candidates()
            stop = self.score_round(candidates) or self.check_stoppers()
        self.stop = stop
        original_is_scored = self.observations.count(self.original) > 0
        if stop.reason is StopReason.NO_DIFFERENCE and original_is_scored:
            return self.outcome_without_difference()

        # 2. Race: score the best candidates on more and more train examples, and drop the
        # worst. The original is scored as well, but always reaches the comparison.
        remaining = self.remaining_calls()
        entrants = self.entrants()
        self.begin_phase(RACE, reserved_calls=remaining.comparison)
        winners = run_race(
            entrants,
            original=self.original,
            observations=self.observations,
            schedule=self.schedule,
            score=lambda wanted: self.observe(
                self.evaluator.affordable(wanted, reserved=remaining.comparison)
            ),
            estimate=self.estimated_scores,
            plan=self.plan,
            num_calls=remaining.race,
            user_programs=self.user_programs,
        )
        self.replace_stop_by_limit()

        # 3. Comparison: score the original and the winners on the selection split, which the
        # search has not seen.
        comparison = self.compare([self.original, *winners], remaining.fraction)

        # 4. Decision: estimate each winner's gain over the original on new examples, from the
        # scores on both splits.
        return self.decide(comparison)

    def reason_not_to_begin(self) -> Stop | None:
        """Return the reason not to start the search, or None if the search can start."""
        if self.search.space.num_distinct < 2:
            logger.warning("%s, so there is nothing to compare", StopReason.ONE_PROMPT.value)
            return Stop(StopReason.ONE_PROMPT)
        if not self.plan.program_calls:
            return Stop(StopReason.NO_CALLS)
        return None

    def begin_phase(self, phase: str, *, reserved_calls: int = 0) -> None:
        """Begin a phase, and reserve cost and time for the calls of later phases.

        If the limits on cost or time allow half of all planned calls, the search reserves half
        of the later calls, and so on for other shares.
        """
        self.evaluator.phase = phase
        planned = self.plan.program_calls if phase == SEARCH else 0
        self.evaluator.budget.reserve(reserved_calls, planned=planned)

    def replace_stop_by_limit(self) -> None:
        """If a limit ended the current phase, record this limit as the reason to stop."""
        if self.evaluator.budget.refused is not None:
            self.stop = Stop(self.evaluator.budget.refused)

    def remaining_calls(self) -> RemainingCalls:
        """Divide the calls left in the budget between the race and the final comparison."""
        plan = self.plan
        evaluator = self.evaluator
        budget = evaluator.budget
        fraction = min(1.0, budget.estimated_calls_left / max(1, plan.race_calls + plan.comparison_calls))
        if self.stop.reason not in STOPS_WITHOUT_SHORTENING:
            fraction = min(fraction, evaluator.num_calls(SEARCH) / max(1, plan.search_calls))
        # If nothing is shortened, the comparison gets its planned calls, and the race all other
        # calls, including those that the search did not use.
        comparison_calls = plan.comparison_calls
        # Unlike `program_calls`, `num_calls` includes the calls that bootstrapped demos.
        max_calls = min(budget.max_calls, plan.program_calls + evaluator.num_calls(BOOTSTRAP))
        race_calls = max_calls - comparison_calls - evaluator.num_calls()
        if fraction < 1.0:
            min_comparison_calls = plan.num_finalists * min(MIN_COMPARED, plan.num_selection_examples)
            comparison_calls = max(min_comparison_calls, round(fraction * comparison_calls))
            race_calls = min(
                race_calls, round(fraction * plan.race_calls), budget.estimated_calls_left - comparison_calls
            )
        return RemainingCalls(fraction, race=max(0, race_calls), comparison=comparison_calls)

    def entrants(self) -> list[Candidate]:
        """Return the candidates for the race.

        They are the best of the search, the mode of the Plackett-Luce distributions and, if the
        plan has any, draws from these distributions.
        """
        others = [candidate for candidate in self.best() if candidate != self.original]
        best = first_of_each_kind(others, self.plan.num_entrants, self.user_programs)
        if not best:
            # Only the original has scores, so the distributions have learnt nothing, and their
            # mode would be a random order.
            return []
        entrants = [*best, self.search.mode(), *self.search.draw(self.plan.num_final_draws)]
        return [candidate for candidate in dict.fromkeys(entrants) if candidate != self.original]

    def estimated_scores(self) -> Mapping[Candidate, float]:
        """Return the model's estimates of the candidates' scores, given all calls so far."""
        return dict(self.search.model.fit(self.scores_for_search()).estimates())

    def compare(self, finalists: list[Candidate], fraction: float = 1.0) -> FinalComparison | None:
        """Score the finalists on a fraction of the selection split.

        Return None if the original is the only finalist, or if the limits allow too few
        examples.
        """
        min_examples = max(1, min(MIN_EXAMPLES, self.plan.num_selection_examples))
        num_examples = self._num_compared(len(finalists), fraction, min_examples)
        if len(finalists) < 2 or num_examples < min_examples:
            return None
        # The indices of train examples come before those of the selection split.
        examples = list(range(self.num_train, self.num_train + num_examples))
        self.begin_phase(COMPARISON)
        compared = list(self.evaluator.evaluate(dict.fromkeys(finalists, examples)))
        if len(compared) < len(finalists):
            logger.warning(
                "only %d of %d finalists were scored on all examples before a limit was reached",
                len(compared),
                len(finalists),
            )
            self.replace_stop_by_limit()
        if len(compared) < 2:
            # Compare the first two finalists on the examples that both were scored on.
            compared = finalists[:2]
        common = self._examples_in_common(compared, examples)
        return FinalComparison(compared, common) if len(common) >= min_examples else None

    def _num_compared(self, num_finalists: int, fraction: float, min_examples: int) -> int:
        """Return the number of selection examples that all finalists can be scored on."""
        budget = self.evaluator.budget
        num_selection = self.plan.num_selection_examples
        num_examples = min(max(MIN_COMPARED, round(fraction * num_selection)), num_selection)
        # `calls_left` is an estimate. If the estimate is below the minimum, try the minimum
        # anyway, because the limits stop any excess calls.
        num_examples = min(num_examples, max(budget.estimated_calls_left // num_finalists, min_examples))
        calls_within_budget = budget.max_calls - self.evaluator.log.num_calls
        return min(num_examples, calls_within_budget // num_finalists)

    def _examples_in_common(self, candidates: list[Candidate], examples: list[int]) -> list[int]:
        """Return the examples on which all candidates have scores. Raise an error if every call failed."""
        selection = Observations(self.evaluator.effective_scores)
        selection.add(self.evaluator.known(dict.fromkeys(candidates, examples)))
        records = selection.flat_records()
        if records and not selection.answered():
            raise self.evaluator.nothing_ran_error(records)
        common, _ = self.observations.with_records(selection.records).table(candidates, examples)
        return common

    def decide(self, comparison: FinalComparison | None, *, by_score: bool = False) -> Outcome:
        """Choose one of the finalists, or keep the original if nothing was compared.

        Args:
            by_score: Whether to choose by the mean score in the comparison, as PLR Algorithm 1
                does. Otherwise, choose by the expected gain, estimated from both splits.
        """
        if comparison is None:
            return self.outcome()
        finalists = comparison.finalists
        records = self.evaluator.known(dict.fromkeys(finalists, comparison.examples))
        observations = self.observations.with_records(records)
        # If the metric is a metric over a set, the score of an answer depends on other answers,
        # called the reference. Use the finalists' answers as the reference for all observations
        # of the run.
        observations.set_reference(
            [*finalists, *self.best()], self.search.fitted, min_candidates=len(finalists)
        )
        if by_score:
            observations = Observations(self.evaluator.effective_scores).with_records(records)
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
        counts["resumed"] = evaluator.log.num_recalled
        if decision is None:
            decision = self.choose_uncompared(self.original)
        return Outcome(
            decision,
            distributions=self.search.distributions,
            history=self._history,
            program_calls=counts,
            stop=stop or self.stop,
        )

    def outcome_without_difference(self) -> Outcome:
        """Return the outcome that keeps the original, because all candidates score the same."""
        # Failed calls can make scores differ, but they are no evidence that orders differ.
        evidence = count_evidence(self.observations.scores())
        evidence = evidence.model_copy(update={"num_differing": 0})
        return self.outcome(self.choose_uncompared(self.original, evidence))

    def unfinished(self, error: BaseException) -> Outcome:
        """Return the outcome after an error or an interrupt, with the best candidate so far."""
        stop = Stop(StopReason.ERROR, f"ended by {type(error).__name__}")
        if isinstance(error, KeyboardInterrupt):
            stop = Stop(StopReason.INTERRUPTED)
        best = self.best() if self._history else []
        candidate = best[0] if best else self.original
        return self.outcome(self.choose_uncompared(candidate), stop)

    def choose_uncompared(self, candidate: Candidate, evidence: Evidence | None = None) -> Decision:
        """Return the decision for a candidate that was not compared with the original."""
        model = self.search.model
        effect = None
        if model.calibrates_answers:
            scores = self.scores_for_search()
            scored = [known for known in (self.original, candidate) if known in scores]
            if scored:
                fitted = model.fit(scores, include=scored)
                effect = estimate_effect(fitted, scored[0], scored[-1], applied=candidate != self.original)
        return Decision(candidate, evidence=evidence, effect=effect)
