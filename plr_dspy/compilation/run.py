"""One compile, from its first round to its outcome: search, race, compare, choose."""

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from plr_dspy.compilation.choice import (
    Decision,
    Outcome,
    calibration_effect,
    compare_finalists,
    count_evidence,
    likely,
    limit_gains,
    rescore_with_set_metric,
)
from plr_dspy.compilation.futility import FIRST_ANSWERS, FutilityCheck
from plr_dspy.compilation.plan import MIN_EXAMPLES, Plan
from plr_dspy.compilation.race import first_of_each_kind, run_race
from plr_dspy.report.schema import Iteration
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.scorer import CellScorer, StagedScores, Wanted
from plr_dspy.search.search import Search, mean_score, reason_to_stop
from plr_dspy.search.space import Candidate, Ordering, Scores, WholeProgram

logger = logging.getLogger(__name__)

MIN_SHARE = 0.5  # of a round, but the first, must be scored for a refit: fewer orderings would have too few elites
MIN_COMPARED = 8  # examples of the final comparison, at least, where there are so many

NOT_COMPARED = ", nothing compared"  # said after the reason for a stop
PHASES = {"race": " in the race of the best", "final": " in the final comparison"}  # said likewise, after errors

# Reasons for the end of a search that leave race and comparison what is planned for them.
AS_PLANNED = {StopReason.TIME, StopReason.COST, StopReason.BUDGET, StopReason.NOTHING_NEW}


@dataclass(frozen=True)
class RestOfRun:
    """What race and final comparison may use."""

    share: float  # of what is planned for them
    race_calls: int
    final_calls: int


@dataclass(kw_only=True)
class CompileRun:
    """A compile under way; `unfinished` returns what it knows at any moment.

    If the plan does not race, the scores on the selection split decide, as in PLR Algorithm 1, which compares draws of
    the final distribution. Deviation: the original order, the best orders seen and the mode join the draws. From draws
    alone PLR Algorithm 1 can end with an order worse than the original or than one it has seen.
    """

    search: Search = field(kw_only=False)
    scorer: CellScorer = field(kw_only=False)  # of the train split, then the selection split
    plan: Plan
    num_train: int
    original: Candidate  # what the user has: an ordering, or `WITHOUT_DEMOS`
    min_probability: float | None = None  # that it takes to replace the original; None: odds where plans race, else 0
    sample: Callable[[], str] = str  # says one of the program's answers, for messages
    advice: str = FutilityCheck.advice
    stop_at_score: float | None = None  # score of the best ordering that ends the search
    patience: int | None = None  # rounds without a better ordering that end it
    shifted: bool = False  # as in `StagedScores`
    on_round: Callable[[Iteration], object] = lambda last: None

    def __post_init__(self) -> None:
        plan = self.plan
        influence = self.scorer.influence
        self.staged = StagedScores(
            self.scorer,
            num_train=self.num_train if plan.racing else plan.num_first_examples,
            num_first=plan.num_first_examples,
            num_more=plan.num_more_examples,
            favoured=self.original if plan.racing else None,
            shifted=self.shifted,
            strata=influence.examples_by_label(self.num_train) if influence and plan.racing else (),
        )
        self.selection = range(self.num_train, self.num_train + plan.num_selection_examples)
        self._least_compared = plan.num_finalists * min(MIN_COMPARED, plan.num_selection_examples)  # calls
        self.stop = Stop(StopReason.INTERRUPTED)
        if self.min_probability is None and not plan.racing:
            self.min_probability = 0.0
        self._futility = FutilityCheck(
            self.scorer,
            self.num_train,
            self.sample,
            compares=not self.search.model.calibrating,  # Calibrated answers may differ where scores do not.
            advice=self.advice,
        )
        self._history: list[Iteration] = []
        self._told: set[Candidate] = set()
        self._first_round: list[Candidate] = []  # which every search fills with random orderings

    def run(self) -> Outcome:
        """Search, race the best, compare the winners with the original on held-out examples, and choose."""
        if self.search.space.num_distinct < 2:
            logger.warning("all choices of demos and order give the same prompt: there is nothing to compare")
            return self._outcome(stop=Stop(StopReason.ONE_PROMPT))
        if not self.plan.program_calls:
            return self._outcome(stop=Stop(StopReason.NO_CALLS, addition=NOT_COMPARED))
        self.stop = self._search()
        if self.stop.reason is StopReason.NO_DIFFERENCE and self.search.space.contains(self.original):
            evidence = count_evidence(self.staged.scores())  # failed calls may differ
            evidence = evidence.model_copy(update={"num_differing": 0})
            return self._outcome(Decision(self.original, evidence=evidence))
        rest = self._calls_for_rest()
        entries = self._finalists()
        if self.plan.racing:
            entrants = [ordering for _, ordering in entries[1:]]
            winners = self._race(entrants, rest)
            entries = [entries[0], *(("best seen", winner) for winner in winners)]
        rows, examples = self._compare([ordering for _, ordering in entries], rest.share)
        if len(rows) < 2:
            return self._outcome(stop=replace(self.stop, addition=NOT_COMPARED))
        return self._outcome(self._choose(entries[: len(rows)], rows, examples))

    def _search(self) -> Stop:
        """Ask, score and tell until the search has made its calls or something ends it; return what that is."""
        plan = self.plan
        to_come = plan.race_calls + plan.final_calls
        self._begin("search", to_come=to_come)
        while True:
            stop = self._reason_to_stop()
            if stop is not None:
                return stop
            orderings = self.search.ask()
            if not orderings:
                return Stop(StopReason.NOTHING_NEW)
            wanted = self.staged.wanted(orderings)
            affordable = self.scorer.affordable(wanted, kept=max(self._least_compared, to_come))
            if len(affordable) < MIN_SHARE * len(wanted):
                return Stop(StopReason.BUDGET)
            if not self._history:
                self._check_first(affordable)
            scored = self.staged.score(affordable)
            if scored and (len(scored) >= MIN_SHARE * len(wanted) or not self._history):
                self._tell([ordering for ordering in orderings if ordering in scored])
            if len(scored) < len(affordable):
                return Stop(self.scorer.budget.refused or StopReason.TIME)
            if len(scored) < len(wanted):
                return Stop(StopReason.BUDGET)
            self.on_round(self._history[-1])
            logger.info("%s", self._history[-1])

    def _reason_to_stop(self) -> Stop | None:
        """Return why the search makes no further round, if it does not."""
        if self._history:
            futility = self._futility.check()
            if futility:
                return Stop(StopReason.NO_DIFFERENCE, futility)
        stop = reason_to_stop(self._history, stop_at_score=self.stop_at_score, patience=self.patience)
        if stop is None and len(self._history) >= self.plan.num_iterations:
            return Stop(StopReason.ALL_ROUNDS)
        return stop

    def _calls_for_rest(self) -> RestOfRun:
        """Return what race and final comparison may use, by how the search ended and by what the budget has left."""
        plan = self.plan
        budget = self.scorer.budget
        to_come = max(1, plan.race_calls + plan.final_calls)
        wanted = 1.0
        if self.stop.reason not in AS_PLANNED and (plan.racing or self.stop.reason is not StopReason.ALL_ROUNDS):
            # Whoever ended the search early wants to spend less.
            wanted = self.scorer.num_cells("search") / max(1, plan.search_calls)
        share = min(1.0, wanted, budget.calls_left / to_come)
        most = min(budget.max_calls, plan.program_calls + self.scorer.num_cells("bootstrap"))
        race_calls = most - plan.final_calls - self.scorer.num_cells()
        final_calls = plan.final_calls
        if share < 1.0:
            final_calls = max(self._least_compared, round(share * plan.final_calls))
            race_calls = min(race_calls, round(share * plan.race_calls), budget.calls_left - final_calls)
        return RestOfRun(share=share, race_calls=max(0, race_calls), final_calls=final_calls)

    def _race(self, entrants: Sequence[Candidate], rest: RestOfRun) -> list[Candidate]:
        """Return the winners of the race of the best orderings."""
        self._begin("race", to_come=rest.final_calls)
        winners = run_race(
            entrants,
            original=self.original,
            staged=self.staged,
            estimate=lambda: dict(self.search.model.fit(self.scores()).estimates()),
            plan=self.plan,
            num_calls=rest.race_calls,
            kept=rest.final_calls,
        )
        self._note_limit()
        return winners

    def _begin(self, phase: str, *, to_come: int = 0) -> None:
        """Begin a phase, which leaves money and time to the calls of the plan that follow it."""
        self.scorer.phase = phase
        planned = self.plan.program_calls if phase == "search" else 0
        self.scorer.budget.keep(to_come, planned=planned, least=self._least_compared)

    def _note_limit(self) -> None:
        """Note the limit that the phase under way has met, if any."""
        if self.scorer.budget.refused is not None:
            self.stop = Stop(self.scorer.budget.refused)

    def _check_first(self, wanted: Wanted) -> None:
        """Make the first calls of these; RuntimeError: hardly any reply can be read.

        Those of a student without demos do not suffice, as demos may show the format.
        """
        first: Wanted = {}
        num_replies = 0
        for ordering, examples in wanted.items():
            first[ordering] = examples[: FIRST_ANSWERS - num_replies]
            num_replies += len(first[ordering]) if isinstance(ordering, WholeProgram) or any(ordering) else 0
            if num_replies == FIRST_ANSWERS:
                self.scorer.cells(first)
                self._futility.check()
                return

    def _tell(self, orderings: Sequence[Candidate]) -> None:
        """Tell the search of a round, in which an ordering may come several times, and note how it went."""
        if self.scorer.influence is not None:
            self._refer(self._best() if self._history else orderings)
        search = self.search
        table = self.scores()
        if not self._history:
            self._first_round = list(orderings)
        search.tell(orderings, table)
        num_new = len(set(orderings) - self._told)
        self._told.update(orderings)
        clip = self.scorer.influence.clip if self.scorer.influence else float
        scores = [clip(mean_score(table[ordering])) for ordering in orderings]
        best = search.ranked(table)[0]
        self._history.append(
            Iteration(
                index=len(self._history),
                num_samples=len(orderings),
                num_new=num_new,
                mean_score=sum(scores) / len(scores),
                best_score=max(scores),
                best_score_so_far=clip(best.score),
                best_ordering=best.ordering.name if isinstance(best.ordering, WholeProgram) else best.ordering,
                program_calls=self.scorer.num_cells(),
            )
        )

    def _refer(self, orderings: Sequence[Candidate]) -> None:
        """Linearize a metric over a set near the answers of the first of these orderings."""
        fitted = self.search.fitted
        self.scorer.linearize_at((each, {} if fitted is None else fitted.answers(each)) for each in orderings)

    def _best(self, count: int | None = None) -> list[Candidate]:
        """Return the best orderings by the search's estimates, best first."""
        return [estimate.ordering for estimate in self.search.ranked(self.scores())[:count]]

    def _finalists(self) -> list[tuple[str, Candidate]]:
        """Return origin and ordering of the original and the best of the search, or of what enters the race."""
        plan = self.plan
        best = self._best()[: plan.num_best_seen]
        if plan.racing:
            others = [ordering for ordering in self._best() if ordering != self.original]
            best = first_of_each_kind(others, plan.num_entrants)
        origins: dict[Candidate, str] = {self.original: "original"}
        for ordering in best:
            origins.setdefault(ordering, "best seen")
        if best or not plan.racing:
            if plan.with_mode:
                origins.setdefault(self.search.mode(), "mode")
            for ordering in self.search.draw(plan.num_final_draws):
                origins.setdefault(ordering, "draw")
        return [(origin, ordering) for ordering, origin in origins.items()]

    def scores(self, known: Scores | None = None) -> Scores:
        """Return the scores of the train split, or the given ones, as they count.

        By a metric over a set, labels count by their shares among all examples.
        """
        scores = self.staged.scores() if known is None else known
        influence = self.scorer.influence
        if influence is None:
            return scores
        reweighted = {}
        for ordering, row in scores.items():
            (counted,) = influence.reweighted(np.array([[*row.values()]]), np.array([*row])).tolist()
            reweighted[ordering] = dict(zip(row, counted, strict=True))
        return reweighted

    def random_orderings(self) -> list[Ordering]:
        """Return the orderings of the first round that show items drawn at random."""
        holds = self.search.space.contains
        drawn = [candidate for candidate in self._first_round if candidate != self.original]
        return [candidate for candidate in drawn if holds(candidate) and any(candidate)]

    def _choose(
        self, entries: Sequence[tuple[str, Candidate]], rows: Sequence[Sequence[float]], examples: Sequence[int]
    ) -> Decision:
        """Choose among finalists with scores on the selection split, by what all scores let one expect."""
        decision = self._decide(entries, rows, examples, self.min_probability)
        if self.scorer.influence is None:
            return decision
        return self._choose_by_set_metric(entries, examples, decision)

    def _decide(
        self,
        entries: Sequence[tuple[str, Candidate]],
        rows: Sequence[Sequence[float]],
        examples: Sequence[int],
        min_probability: float | None,
    ) -> Decision:
        """Choose by these rows of scores, and if plans race by the scores of the search as well."""
        known = self.staged.scores() if self.plan.racing else {}
        for (_, ordering), row in zip(entries, rows, strict=True):
            known.setdefault(ordering, {}).update(zip(examples, row, strict=True))
        return compare_finalists(
            entries,
            examples,
            self.scores(known),
            self.search.model,
            as_they_came=known,
            min_probability=min_probability,
            by_score=not self.plan.racing,
        )

    def _choose_by_set_metric(
        self, entries: Sequence[tuple[str, Candidate]], examples: Sequence[int], decision: Decision
    ) -> Decision:
        """Choose again by scores that are linear near the two that are compared, and by the metric itself."""
        scorer = self.scorer
        least = self.min_probability
        fitted = decision.fitted
        assert fitted is not None
        calibrated = fitted.answers(decision.ordering) if decision.offsets else {}
        others = ((estimate.ordering, fitted.answers(estimate.ordering)) for estimate in fitted.estimates())
        compared = [(self.original, {}), (decision.ordering, calibrated)]
        scorer.linearize_at(itertools.chain(compared, others), least=2)
        _, rows = scorer.table([ordering for _, ordering in entries], examples, favoured=0)
        compared_on = None if self.plan.racing else examples  # Other plans go by the selection split alone.
        decision = self._decide(entries, rows, examples, least)
        decision = rescore_with_set_metric(decision, scorer, self.original, examples=compared_on)
        if not decision.chosen:
            return decision
        gain = decision.candidates[decision.chosen].gain
        if likely(gain, least):
            return decision
        # By the metric itself the chosen one is less sure than by its influence: the original stays.
        decision = self._decide(entries, rows, examples, math.inf)
        decision = rescore_with_set_metric(decision, scorer, self.original, examples=compared_on)
        return replace(decision, candidates=limit_gains(decision.candidates, gain))

    def _compare(self, orderings: Sequence[Candidate], share: float = 1.0) -> tuple[list[list[float]], list[int]]:
        """Score finalists on a share of the selection split.

        Returns:
            Rows of scores of the first finalists that calls, time and money pay for, and the examples they are on.
        """
        scorer = self.scorer
        examples = self._affordable_examples(orderings, share)
        if len(orderings) < 2 or not examples:
            return [], []
        self._begin("final")
        asked = examples
        examples, rows = scorer.table(orderings, asked, favoured=0)
        if len(rows) < 2:  # The time is up: what the first two have been scored on.
            first = scorer.known_cells(dict.fromkeys(orderings[:2], asked)).values()
            both = [example for example in asked if all(example in row for row in first)]
            if len(both) >= MIN_EXAMPLES:
                examples, rows = scorer.table(orderings[:2], both, favoured=0)
        if scorer.influence is not None and examples:
            self._refer([*orderings[: len(rows)], *self._best()])
            examples, rows = scorer.table(orderings[: len(rows)], examples, favoured=0)
        if len(rows) < len(orderings):
            logger.warning("%d of %d finalists could be compared before the end", len(rows), len(orderings))
            self._note_limit()
        return rows, examples

    def _affordable_examples(self, orderings: Sequence[Candidate], share: float) -> list[int]:
        """Return the examples of a share of the selection split that the budget pays for with these orderings."""
        scorer = self.scorer
        count = max(MIN_COMPARED, round(share * self.plan.num_selection_examples))
        examples = self.selection[:count]
        known = scorer.known_cells(dict.fromkeys(orderings, examples))
        unpaid = {example: sum(example not in row for row in known.values()) for example in examples}
        cheapest_first = sorted(unpaid, key=unpaid.__getitem__)
        wanted = dict.fromkeys(orderings, cheapest_first)
        least = min(MIN_EXAMPLES, len(self.selection))
        left = max(scorer.budget.calls_left, least * len(orderings))
        while sum(unpaid[example] for example in cheapest_first) > left or scorer.affordable(wanted) != wanted:
            cheapest_first.pop()
        return sorted(cheapest_first) if len(cheapest_first) >= max(1, least) else []

    def unfinished(self, error: BaseException) -> Outcome:
        """Return what is known after an exception: the best order of the search, not compared."""
        if not self._history:
            scored = self.staged.salvage()
            if scored:
                self.search.tell(scored, self.scores())
        stop = Stop(StopReason.ERROR, f"ended by {type(error).__name__}", PHASES.get(self.scorer.phase, ""))
        if isinstance(error, KeyboardInterrupt):
            stop = replace(stop, reason=StopReason.INTERRUPTED, detail="")
        (ordering,) = self._best(1) or [self.original]
        return self._outcome(Decision(ordering), stop)

    def _outcome(self, decision: Decision | None = None, stop: Stop | None = None) -> Outcome:
        """Return the outcome with a decision; without one the original stays."""
        scorer = self.scorer
        counts = {phase: scorer.num_cells(phase) for phase in ("bootstrap", "search", "race", "final")}
        counts["total"] = scorer.num_cells()
        counts["resumed"] = scorer.log.num_recalled
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
        """Add what calibration does to a decision without a comparison."""
        scores = self.scores()
        both = [ordering for ordering in (self.original, decision.ordering) if ordering in scores]
        if not both:
            return decision
        applied = decision.ordering != self.original
        fitted = self.search.model.fit(scores, kept=both)
        effect = calibration_effect(fitted, both[0], both[-1], applied=applied)
        offsets = tuple(effect.offsets) if effect is not None and applied else ()
        return replace(decision, calibration=effect, offsets=offsets)
