"""One compile, from its first round to its outcome: search, race, compare, decide.

Read next: `rounds.py` for one round of the search, `race.py`, and `choice.py` for the decision.

- A new search is a subclass of `Search` in `search/search.py`: it names candidates and learns from their scores.
- A new stopping rule belongs in `check_stoppers` in `rounds.py`.
- Kinds of candidates are in `search/space.py`: orderings, and whole programs that compete as they are.
- `paper.py` has PLR Algorithm 1, which has no race.
"""

import logging
from dataclasses import dataclass, replace

from plr_dspy.compiling.choice import Decision, Outcome, calibration_effect, compare_finalists, count_evidence
from plr_dspy.compiling.plan import MIN_EXAMPLES
from plr_dspy.compiling.race import first_of_each_kind, run_race
from plr_dspy.compiling.rounds import SearchRounds
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.observations import CallRecords, Observations
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

MIN_COMPARED = 8  # minimum examples of the final comparison, if the selection split has as many

NOT_COMPARED = ", nothing compared"  # appended to the reason for a stop
# After these stops, the race and the comparison get their planned calls. After others, they get a smaller share.
AS_PLANNED = {StopReason.TIME, StopReason.COST, StopReason.BUDGET, StopReason.NOTHING_NEW}


@dataclass(frozen=True)
class RestOfRun:
    """The calls left for the race and the final comparison."""

    share: float  # fraction of the planned calls
    race_calls: int
    final_calls: int


@dataclass(frozen=True)
class Compared:
    """The finalists and their origins, the original first, with their calls on the same held-out examples."""

    finalists: dict[Candidate, str]
    examples: list[int]
    records: CallRecords


@dataclass(kw_only=True)
class CompileRun(SearchRounds):
    """A compile in progress. After an error or an interrupt, `unfinished` returns the best candidate so far."""

    def run(self) -> Outcome:
        """Search, race the best, compare the winners with the original on held-out examples, and decide."""
        nothing_to_do = self.reason_not_to_begin()
        if nothing_to_do is not None:
            return self.outcome(stop=nothing_to_do)

        # 1. Search: ask for candidates, score them on some train examples, tell the search, until a stopper ends it.
        self.begin_phase("search", to_come=self.plan.race_calls + self.plan.final_calls)
        stop: Stop | None = None
        while stop is None:
            candidates = self.search.ask()
            stop = self.play_round(candidates) or self.check_stoppers()
        self.stop = stop
        if stop.reason is StopReason.NO_DIFFERENCE and self.observations.count(self.original):
            return self.outcome_without_difference()

        # 2. Race: score the best candidates on ever more train examples, and drop the worse ones.
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

        # 3. Comparison: call the original and the winners on the selection split.
        finalists = {self.original: "original", **dict.fromkeys(winners, "best seen")}
        compared = self.compare(finalists, rest.share)
        if len(compared.finalists) < 2:
            return self.outcome(stop=replace(self.stop, addition=NOT_COMPARED))

        # 4. Decision: by all scores, what should each gain over the original on new examples, and how surely?
        observations = self.observations.with_records(compared.records)
        return self.outcome(self.decide(compared, observations))

    def reason_not_to_begin(self) -> Stop | None:
        """Return the reason not to search at all; None if there is something to search."""
        if self.search.space.num_distinct < 2:
            logger.warning("%s: there is nothing to compare", StopReason.ONE_PROMPT.value)
            return Stop(StopReason.ONE_PROMPT)
        if not self.plan.program_calls:
            return Stop(StopReason.NO_CALLS, addition=NOT_COMPARED)
        return None

    def compare(self, finalists: dict[Candidate, str], share: float = 1.0) -> Compared:
        """Call the finalists on a share of the selection split, within the limits on calls, time and money."""
        plan = self.plan
        budget = self.evaluator.budget
        # The budget of calls covers all finalists on the same examples, or the comparison uses fewer examples.
        least = min(MIN_EXAMPLES, plan.num_selection_examples)
        num_examples = min(max(MIN_COMPARED, round(share * plan.num_selection_examples)), plan.num_selection_examples)
        num_examples = min(num_examples, max(budget.calls_left // len(finalists), least))
        num_examples = min(num_examples, (budget.max_calls - self.evaluator.log.num_calls) // len(finalists))
        if len(finalists) < 2 or num_examples < max(1, least):
            return Compared({}, [], {})
        examples = list(range(self.num_train, self.num_train + num_examples))
        self.begin_phase("final")
        wanted = dict.fromkeys(finalists, examples)
        compared = list(self.evaluator.evaluate(wanted))
        is_complete = len(compared) == len(finalists)
        if len(compared) < 2:  # Time is up: keep the first two, with the calls that they have.
            compared = list(finalists)[:2]
        if not is_complete:
            logger.warning("%d of %d finalists could be compared before the end", len(compared), len(finalists))
            self.note_limit()
        selection = Observations(self.evaluator.effective)
        selection.add(self.evaluator.known(dict.fromkeys(compared, examples)))
        records = selection.every_record()
        if records and not selection.answered():
            raise self.evaluator.nothing_ran(records)
        common, _ = self.observations.with_records(selection.records).table(compared, examples)
        if len(common) < max(1, least):
            return Compared({}, [], {})
        origins = {candidate: finalists[candidate] for candidate in compared}
        return Compared(origins, common, self.evaluator.known(dict.fromkeys(compared, common)))

    def decide(self, compared: Compared, observations: Observations, *, by_score: bool = False) -> Decision:
        """Choose among the finalists by these observations."""
        # Scores by a metric over a set depend on a reference, which must now be near the answers of the finalists.
        known = self.observations.with_records(compared.records)
        known.refer_to([*compared.finalists, *self.best()], self.search.fitted, least=len(compared.finalists))
        return compare_finalists(
            compared.finalists,
            compared.examples,
            observations,
            self.search.model,
            min_probability=self.min_probability,
            by_score=by_score,
        )

    def begin_phase(self, phase: str, *, to_come: int = 0) -> None:
        """Begin a phase, and reserve money and time for the planned calls that follow it."""
        self.evaluator.phase = phase
        planned = self.plan.program_calls if phase == "search" else 0
        self.evaluator.budget.keep(to_come, planned=planned)

    def note_limit(self) -> None:
        """Record the limit that ended the current phase, if any."""
        if self.evaluator.budget.refused is not None:
            self.stop = Stop(self.evaluator.budget.refused)

    @property
    def _least_compared(self) -> int:
        """Minimum calls of the final comparison."""
        return self.plan.num_finalists * min(MIN_COMPARED, self.plan.num_selection_examples)

    def calls_for_rest(self) -> RestOfRun:
        """Divide the calls left in the budget between the race and the final comparison."""
        plan = self.plan
        evaluator = self.evaluator
        budget = evaluator.budget
        share = min(1.0, budget.calls_left / max(1, plan.race_calls + plan.final_calls))
        if self.stop.reason not in AS_PLANNED:  # A search that was stopped early should not be followed by a full race.
            share = min(share, evaluator.num_calls("search") / max(1, plan.search_calls))
        final_calls = plan.final_calls
        most = min(budget.max_calls, plan.program_calls + evaluator.num_calls("bootstrap"))
        race_calls = most - final_calls - evaluator.num_calls()
        if share < 1.0:
            final_calls = max(self._least_compared, round(share * final_calls))
            race_calls = min(race_calls, round(share * plan.race_calls), budget.calls_left - final_calls)
        return RestOfRun(share=share, race_calls=max(0, race_calls), final_calls=final_calls)

    def entrants(self) -> list[Candidate]:
        """Return the candidates of the race: the best of the search, the mode, and draws of the final distribution."""
        others = [candidate for candidate in self.best() if candidate != self.original]
        best = first_of_each_kind(others, self.plan.num_entrants)
        if not best:
            return []
        entrants = [*best, self.search.mode(), *self.search.draw(self.plan.num_final_draws)]
        return [candidate for candidate in dict.fromkeys(entrants) if candidate != self.original]

    def unfinished(self, error: BaseException) -> Outcome:
        """Return the outcome after an exception: the best candidate so far, not compared with the original."""
        stop = Stop(StopReason.ERROR, f"ended by {type(error).__name__}")
        if isinstance(error, KeyboardInterrupt):
            stop = Stop(StopReason.INTERRUPTED)
        best = self.best() if self._history else []
        return self.outcome(Decision([*best, self.original][0]), stop)

    def outcome_without_difference(self) -> Outcome:
        """Return the original, because all candidates score the same."""
        evidence = count_evidence(self.observations.scores())  # Failed calls may differ.
        return self.outcome(Decision(self.original, evidence=evidence.model_copy(update={"num_differing": 0})))

    def outcome(self, decision: Decision | None = None, stop: Stop | None = None) -> Outcome:
        """Return the outcome of a decision. Without one, the original stays."""
        evaluator = self.evaluator
        counts = {phase: evaluator.num_calls(phase) for phase in ("bootstrap", "search", "race", "final")}
        counts["total"] = evaluator.num_calls()
        counts["resumed"] = evaluator.log.num_recalled
        decision = decision or Decision(self.original)
        if decision.comparison is None and self.search.model.calibrating:
            decision = self._with_calibration(decision)
        return Outcome(
            decision,
            distributions=self.search.distributions,
            history=self._history,
            program_calls=counts,
            stop=stop or self.stop,
        )

    def _with_calibration(self, decision: Decision) -> Decision:
        """Add the effect of calibration to a decision that had no comparison."""
        scores = self.scores()
        both = [ordering for ordering in (self.original, decision.ordering) if ordering in scores]
        if not both:
            return decision
        applied = decision.ordering != self.original
        fitted = self.search.model.fit(scores, kept=both)
        effect = calibration_effect(fitted, both[0], both[-1], applied=applied)
        offsets = tuple(effect.offsets) if effect is not None and applied else ()
        return replace(decision, calibration=effect, offsets=offsets)
