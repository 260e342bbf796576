"""One compile, from its first round to its outcome: search, race, comparison, decision.

Read next: `rounds.py` for the rounds of the search, `race.py` for the race, and `choice.py` for the decision.

- A new search is a subclass of `Search` in `search/search.py`. It proposes candidates and learns from their scores.
- A new stopping rule belongs in `check_stoppers` in `rounds.py`.
- `search/space.py` defines the kinds of candidates: orderings, and whole programs that compete unchanged.
- `paper.py` implements PLR Algorithm 1, which has no race.
"""

import logging
from dataclasses import dataclass, replace

from plr_dspy.compiling.choice import Decision, Outcome, compare_finalists, count_evidence, decide_without_comparison
from plr_dspy.compiling.plan import MIN_EXAMPLES
from plr_dspy.compiling.race import first_of_each_kind, run_race
from plr_dspy.compiling.rounds import SearchRounds
from plr_dspy.report.schema import Evidence
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.observations import CallRecords, Observations
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

MIN_COMPARED = 8  # minimum examples in the final comparison, if the selection split has that many

NOT_COMPARED = ", nothing compared"  # appended to the reason to stop
# After these stops, the race and the comparison get all their planned calls. After others, they get a share of them.
AS_PLANNED = {StopReason.TIME, StopReason.COST, StopReason.BUDGET, StopReason.NOTHING_NEW}


@dataclass(frozen=True)
class RestOfRun:
    """The program calls left for the race and the final comparison."""

    share: float  # fraction of the planned calls
    race_calls: int
    final_calls: int


@dataclass(frozen=True)
class FinalComparison:
    """The finalists of the final comparison with their origins, and their calls on the same held-out examples."""

    finalists: dict[Candidate, str]  # the original first
    examples: list[int]
    records: CallRecords


@dataclass(kw_only=True)
class CompileRun(SearchRounds):
    """A compile in progress. After an error or an interrupt, `unfinished` returns the best candidate so far."""

    def run(self) -> Outcome:
        """Search, race the best candidates, compare the winners with the original, and decide."""
        nothing_to_do = self.reason_not_to_begin()
        if nothing_to_do is not None:
            return self.outcome(stop=nothing_to_do)

        # 1. Search: in each round, score the proposed candidates on some train examples, until a stopping rule applies.
        self.begin_phase("search", to_come=self.plan.race_calls + self.plan.final_calls)
        stop: Stop | None = None
        while stop is None:
            candidates = self.search.ask()
            stop = self.play_round(candidates) or self.check_stoppers()
        self.stop = stop
        if stop.reason is StopReason.NO_DIFFERENCE and self.observations.count(self.original):
            return self.outcome_without_difference()

        # 2. Race: score the best candidates on more and more train examples, and drop the worse ones.
        rest = self.calls_for_rest()
        entrants = self.entrants()
        self.begin_phase("race", to_come=rest.final_calls)
        winners = run_race(
            entrants,
            original=self.original,
            observations=self.observations,
            schedule=self.schedule,
            score=lambda wanted: self.observe(self.evaluator.affordable(wanted, kept=rest.final_calls)),
            estimate=lambda: dict(self.search.model.fit(self.scores()).estimates()),
            plan=self.plan,
            num_calls=rest.race_calls,
        )
        self.note_limit()

        # 3. Comparison: score the original and the winners on the selection split.
        finalists = {self.original: "original", **dict.fromkeys(winners, "best seen")}
        comparison = self.compare(finalists, rest.share)
        if len(comparison.finalists) < 2:
            return self.outcome(stop=replace(self.stop, addition=NOT_COMPARED))

        # 4. Decision: estimate each winner's gain over the original on new examples from all scores.
        observations = self.observations.with_records(comparison.records)
        return self.outcome(self.decide(comparison, observations))

    def reason_not_to_begin(self) -> Stop | None:
        """Return the reason not to start the search; None to start it."""
        if self.search.space.num_distinct < 2:
            logger.warning("all choices of demos and orders give the same prompt, so there is nothing to compare")
            return Stop(StopReason.ONE_PROMPT)
        if not self.plan.program_calls:
            return Stop(StopReason.NO_CALLS, addition=NOT_COMPARED)
        return None

    def compare(self, finalists: dict[Candidate, str], share: float = 1.0) -> FinalComparison:
        """Score the finalists on a share of the selection split, within the limits on calls, time and money."""
        plan = self.plan
        budget = self.evaluator.budget
        # All finalists need the same examples, so use only as many as the budget pays for.
        least = min(MIN_EXAMPLES, plan.num_selection_examples)
        num_examples = min(max(MIN_COMPARED, round(share * plan.num_selection_examples)), plan.num_selection_examples)
        num_examples = min(num_examples, max(budget.calls_left // len(finalists), least))
        num_examples = min(num_examples, (budget.max_calls - self.evaluator.log.num_calls) // len(finalists))
        if len(finalists) < 2 or num_examples < max(1, least):
            return FinalComparison({}, [], {})
        examples = list(range(self.num_train, self.num_train + num_examples))
        self.begin_phase("final")
        wanted = dict.fromkeys(finalists, examples)
        candidates = list(self.evaluator.evaluate(wanted))
        is_complete = len(candidates) == len(finalists)
        if len(candidates) < 2:  # Time is up, so compare the first two by the calls that were made.
            candidates = list(finalists)[:2]
        if not is_complete:
            logger.warning("only %d of %d finalists were compared before the limit", len(candidates), len(finalists))
            self.note_limit()
        selection = Observations(self.evaluator.effective)
        selection.add(self.evaluator.known(dict.fromkeys(candidates, examples)))
        records = selection.every_record()
        if records and not selection.answered():
            raise self.evaluator.nothing_ran(records)
        common, _ = self.observations.with_records(selection.records).table(candidates, examples)
        if len(common) < max(1, least):
            return FinalComparison({}, [], {})
        origins = {candidate: finalists[candidate] for candidate in candidates}
        return FinalComparison(origins, common, self.evaluator.known(dict.fromkeys(candidates, common)))

    def decide(self, comparison: FinalComparison, observations: Observations, *, by_score: bool = False) -> Decision:
        """Choose one of the finalists by these observations."""
        # Scores by a metric over a set depend on a reference, which must now be close to the finalists' answers.
        known = self.observations.with_records(comparison.records)
        known.refer_to([*comparison.finalists, *self.best()], self.search.fitted, least=len(comparison.finalists))
        return compare_finalists(
            comparison.finalists,
            comparison.examples,
            observations,
            self.search.model,
            min_probability=self.min_probability,
            by_score=by_score,
        )

    def begin_phase(self, phase: str, *, to_come: int = 0) -> None:
        """Begin a phase, and reserve money and time for the `to_come` calls planned after it."""
        self.evaluator.phase = phase
        planned = self.plan.program_calls if phase == "search" else 0
        self.evaluator.budget.keep(to_come, planned=planned)

    def note_limit(self) -> None:
        """Record the budget limit that ended the current phase, if any."""
        if self.evaluator.budget.refused is not None:
            self.stop = Stop(self.evaluator.budget.refused)

    @property
    def _min_final_calls(self) -> int:
        """Minimum number of calls in the final comparison."""
        return self.plan.num_finalists * min(MIN_COMPARED, self.plan.num_selection_examples)

    def calls_for_rest(self) -> RestOfRun:
        """Divide the calls left in the budget between the race and the final comparison."""
        plan = self.plan
        evaluator = self.evaluator
        budget = evaluator.budget
        share = min(1.0, budget.calls_left / max(1, plan.race_calls + plan.final_calls))
        if self.stop.reason not in AS_PLANNED:  # A search that stopped early should not lead to a full race.
            share = min(share, evaluator.num_calls("search") / max(1, plan.search_calls))
        final_calls = plan.final_calls
        max_calls = min(budget.max_calls, plan.program_calls + evaluator.num_calls("bootstrap"))
        race_calls = max_calls - final_calls - evaluator.num_calls()
        if share < 1.0:
            final_calls = max(self._min_final_calls, round(share * final_calls))
            race_calls = min(race_calls, round(share * plan.race_calls), budget.calls_left - final_calls)
        return RestOfRun(share=share, race_calls=max(0, race_calls), final_calls=final_calls)

    def entrants(self) -> list[Candidate]:
        """Return the candidates that race: the best of the search, the mode, and draws of the final distribution."""
        others = [candidate for candidate in self.best() if candidate != self.original]
        best = first_of_each_kind(others, self.plan.num_entrants)
        if not best:
            return []
        entrants = [*best, self.search.mode(), *self.search.draw(self.plan.num_final_draws)]
        return [candidate for candidate in dict.fromkeys(entrants) if candidate != self.original]

    def unfinished(self, error: BaseException) -> Outcome:
        """Return the outcome after an exception: the best candidate so far, without a comparison."""
        stop = Stop(StopReason.ERROR, f"ended by {type(error).__name__}")
        if isinstance(error, KeyboardInterrupt):
            stop = Stop(StopReason.INTERRUPTED)
        best = self.best() if self._history else []
        return self.outcome(self.decide_without_comparison([*best, self.original][0]), stop)

    def outcome_without_difference(self) -> Outcome:
        """Return the original, because all candidates score the same."""
        evidence = count_evidence(self.observations.scores())  # Failed calls may differ.
        evidence = evidence.model_copy(update={"num_differing": 0})
        return self.outcome(self.decide_without_comparison(self.original, evidence))

    def decide_without_comparison(self, candidate: Candidate, evidence: Evidence | None = None) -> Decision:
        """Return the decision for a candidate that was not compared with the original."""
        return decide_without_comparison(candidate, self.original, self.scores, self.search.model, evidence=evidence)

    def outcome(self, decision: Decision | None = None, stop: Stop | None = None) -> Outcome:
        """Return the outcome of a decision; without a decision, the original stays."""
        evaluator = self.evaluator
        counts = {phase: evaluator.num_calls(phase) for phase in ("bootstrap", "search", "race", "final")}
        counts["total"] = evaluator.num_calls()
        counts["resumed"] = evaluator.log.num_recalled
        if decision is None:
            decision = self.decide_without_comparison(self.original)
        return Outcome(
            decision,
            distributions=self.search.distributions,
            history=self._history,
            program_calls=counts,
            stop=stop or self.stop,
        )
