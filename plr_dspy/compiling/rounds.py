"""The rounds of a search. Each scores the proposed candidates on some train examples and updates the search."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plr_dspy.compiling.futility import FIRST_ANSWERS, FutilityCheck
from plr_dspy.compiling.plan import Plan
from plr_dspy.report.schema import Iteration
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.evaluator import Evaluator, Wanted
from plr_dspy.scoring.observations import ExampleSchedule, Observations
from plr_dspy.scoring.run_log import FAILED
from plr_dspy.search.search import Search, mean_score, reason_to_stop
from plr_dspy.search.space import Candidate, Ordering, Scores, WholeProgram

logger = logging.getLogger(__name__)

MIN_SHARE = 0.5  # minimum share of a later round to score before a refit; otherwise, there are too few elites
MIN_FAILURES = 8  # If at least this many calls of a round all fail, assume an outage.


@dataclass(kw_only=True)
class SearchRounds:
    """A search in progress.

    Attributes:
        search: Proposes candidates and learns from their scores.
        evaluator: Calls candidates on examples. The train split comes first, then the
            selection split.
        plan: The planned rounds and program calls.
        original: The user's program, as an ordering, `WITHOUT_DEMOS` or a whole program.
        min_probability, stop_at_score, patience: As in `PLReorder`.
        sample, advice: As in `FutilityCheck`.
        shifted: As in `ExampleSchedule`.
        on_round: Called after each round.
    """

    search: Search = field(kw_only=False)
    evaluator: Evaluator = field(kw_only=False)
    plan: Plan
    num_train: int
    original: Candidate
    min_probability: float | None = None
    sample: Callable[[], str] = str
    advice: str = FutilityCheck.advice
    stop_at_score: float | None = None
    patience: int | None = None
    shifted: bool = False
    on_round: Callable[[Iteration], object] = str

    def __post_init__(self) -> None:
        plan = self.plan
        effective = self.evaluator.effective
        self.search.model.information_weights = effective.information_weights
        self.observations = Observations(effective, favoured=self.original)
        self.schedule = ExampleSchedule(
            effective.strata(self.num_train),
            num_first=plan.num_first_examples,
            num_more=plan.num_more_examples,
            shifted=self.shifted,
        )
        self.stop = Stop(StopReason.INTERRUPTED)
        self._futility = FutilityCheck(
            self.evaluator,
            self.num_train,
            self.sample,
            compares=self.search.model.keeps_scores,  # Calibrated answers may differ even if the calls score the same.
            advice=self.advice,
        )
        self._history: list[Iteration] = []
        self._learnt: set[Candidate] = set()  # candidates whose scores the search knows
        self._first_round: Sequence[Candidate] = ()  # candidates of the first round, random in every search

    def play_round(self, candidates: Sequence[Candidate]) -> Stop | None:
        """Score the candidates, and update the search. Return the reason to stop; None to continue.

        A candidate that was scored before is scored on more examples.
        """
        if not candidates:
            return Stop(StopReason.NOTHING_NEW)
        is_first = not self._history
        wanted = self.schedule.examples_for(candidates, self.observations)
        affordable = self.evaluator.affordable(wanted, kept=self.plan.race_calls + self.plan.final_calls)
        if len(affordable) < MIN_SHARE * len(wanted):
            return Stop(StopReason.BUDGET)
        if is_first:
            self._check_first_replies(affordable)
        scored = self.observe(affordable)
        if scored and (is_first or len(scored) >= MIN_SHARE * len(wanted)):
            self._update_search([candidate for candidate in candidates if candidate in scored])
        if len(scored) < len(affordable):
            return Stop(self.evaluator.budget.refused or StopReason.TIME)
        if len(affordable) < len(wanted):
            return Stop(StopReason.BUDGET)
        logger.info("%s", self._history[-1])
        return None

    def check_stoppers(self) -> Stop | None:
        """Return the reason to stop the search; None to continue. Add new stopping rules here."""
        futility = self._futility.check()
        if futility:
            return Stop(StopReason.NO_DIFFERENCE, futility)
        stop = reason_to_stop(self._history, stop_at_score=self.stop_at_score, patience=self.patience)
        if stop is None and len(self._history) >= self.plan.num_iterations:
            return Stop(StopReason.ALL_ROUNDS)
        return stop

    def observe(self, wanted: Wanted) -> list[Candidate]:
        """Call the candidates on their examples. Return those whose calls all fit the budget.

        Raises:
            RuntimeError: If all new calls failed, probably because of an outage.
        """
        records = self.evaluator.evaluate(wanted)
        new = []
        for candidate, row in records.items():
            new += list(row.values())[self.observations.count(candidate) :]
        # If only a single candidate was called, its order may be the reason for the failures.
        is_outage = len(records) > 1 or not self.observations.answered()
        if is_outage and len(new) >= MIN_FAILURES and all(record.outcome == FAILED for record in new):
            raise self.evaluator.nothing_ran(new)
        self.observations.add(records)
        return list(records)

    def best(self) -> list[Candidate]:
        """Return the scored candidates, best first by the search's estimates."""
        return [estimate.ordering for estimate in self.search.ranked(self.scores())]

    def scores(self) -> Scores:
        """Return the scores on the train split, as the search uses them."""
        return self.observations.counted()

    def random_orderings(self) -> list[Ordering]:
        """Return the random orderings of the first round that show demos."""
        space = self.search.space
        not_random = {self.original}
        if space.choices:
            not_random |= set(space.first_candidates)
        others = [candidate for candidate in self._first_round if candidate not in not_random]
        return [candidate for candidate in others if space.contains(candidate) and space.shows_items(candidate)]

    def _check_first_replies(self, wanted: Wanted) -> None:
        """Make the first calls, and raise RuntimeError if almost no reply can be parsed.

        Calls without demos do not count, because demos may teach the format.
        """
        first: Wanted = {}
        num_replies = 0
        for candidate, examples in wanted.items():
            first[candidate] = examples[: FIRST_ANSWERS - num_replies]
            if isinstance(candidate, WholeProgram) or self.search.space.shows_items(candidate):
                num_replies += len(first[candidate])
            if num_replies == FIRST_ANSWERS:
                self.evaluator.evaluate(first)
                self._futility.check()
                return

    def _update_search(self, candidates: Sequence[Candidate]) -> None:
        """Pass the scores of a round to the search, and add the round to the history."""
        search = self.search
        effective = self.evaluator.effective
        if self._history:
            self.observations.refer_to(self.best(), search.fitted)
        else:
            self.observations.refer_to(candidates, search.fitted)
            self._first_round = candidates
        num_known = len(self._learnt)
        self._learnt.update(candidates)
        scores = self.scores()
        search.tell(candidates, scores)
        means = [effective.clip(mean_score(scores[candidate])) for candidate in candidates]
        best = search.ranked(scores)[0]
        self._history.append(
            Iteration(
                index=len(self._history),
                num_samples=len(candidates),
                num_new=len(self._learnt) - num_known,
                mean_score=sum(means) / len(means),
                best_score=max(means),
                best_score_so_far=effective.clip(best.score),
                best_ordering=best.ordering.name if isinstance(best.ordering, WholeProgram) else best.ordering,
                program_calls=self.evaluator.num_calls(),
            )
        )
        self.on_round(self._history[-1])
