"""The rounds of a search. Each round scores proposed candidates on train examples and updates the search."""

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from plr_dspy.compiling.futility import FIRST_ANSWERS, FutilityCheck
from plr_dspy.compiling.plan import MIN_ORDERS, Plan
from plr_dspy.report.schema import Iteration
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.evaluator import SEARCH, Evaluator, Wanted
from plr_dspy.scoring.observations import ExampleSchedule, Observations
from plr_dspy.scoring.run_log import FAILED
from plr_dspy.search.prefixes import by_prefix
from plr_dspy.search.search import Search, mean_score, reason_to_stop
from plr_dspy.search.space import Candidate, Ordering, Scores, WholeProgram

logger = logging.getLogger(__name__)

# A later round refits the distribution only if at least this share of its candidates was scored.
# Otherwise, there would be too few elites.
MIN_SHARE = 0.5
WIDENED_AT = 0.5  # share of the search's calls after which its space may be widened
MAX_LOW = 8  # maximum number of low-scoring examples from which new items are made
# Number of train examples, and of remaining search calls, required for each low-scoring example.
MIN_PER_LOW = 8
NUM_WIDENED = 4  # number of best orderings to score with each new item
# Minimum share of the search's calls for the first scores of the original and the user's programs.
# Other candidates' scores do not predict those of the user's programs, so many calls are needed.
USER_PROGRAMS_SHARE = 0.25
# If all new calls of a round fail, and there are at least this many, assume an outage.
MIN_FAILURES = 8

MinExamples: TypeAlias = Callable[[Sequence[Candidate]], Mapping[Candidate, int]]


@dataclass(kw_only=True)
class SearchRounds:
    """A search in progress.

    Attributes:
        search: Proposes candidates and learns from their scores.
        evaluator: Calls candidates on examples. Its examples are the train split, followed by
            the selection split.
        plan: The planned rounds and program calls.
        num_train: Number of examples in the train split.
        original: The user's program, as an ordering, `WITHOUT_DEMOS` or a whole program.
        user_programs: The user's other programs. They can replace the original at lower odds.
        min_probability, stop_at_score, patience: As in `PLReorder`.
        sample, advice, shows_demos: As in `FutilityCheck`.
        shifted: As in `ExampleSchedule`.
        min_examples: A function that takes a round's candidates in the order of their calls, and
            returns the minimum number of new examples for some of them. With more examples per
            candidate, a server with a prefix cache reads demos less often. If None, there is no
            minimum.
        widen: A function that takes the result of `low_scores`, and returns a search in a wider
            space, or None. In the wider space, existing items keep their indices.
        on_round: A function to call with the results of each round, if any.
    """

    search: Search = field(kw_only=False)
    evaluator: Evaluator = field(kw_only=False)
    plan: Plan
    num_train: int
    original: Candidate
    user_programs: Collection[Candidate] = ()
    min_probability: float | None = None
    sample: Callable[[], str] = str
    advice: str = FutilityCheck.advice
    shows_demos: Callable[[Candidate], bool] = FutilityCheck.shows_demos
    stop_at_score: float | None = None
    patience: int | None = None
    shifted: bool = False
    min_examples: MinExamples | None = None
    widen: Callable[[Mapping[int, Ordering]], Search | None] | None = None
    on_round: Callable[[Iteration], object] | None = None

    def __post_init__(self) -> None:
        plan = self.plan
        effective = self.evaluator.effective_scores
        self.search.model.information_weights = effective.information_weights
        self.observations = Observations(effective, favored=self.original)
        self.schedule = ExampleSchedule(
            effective.strata(self.num_train),
            num_first=plan.num_first_examples,
            num_more=plan.num_more_examples,
            shifted=self.shifted,
        )
        if self.user_programs:
            self.schedule.paired = [self.original, *self.user_programs]
            self.schedule.num_paired = int(USER_PROGRAMS_SHARE * plan.search_calls) // len(
                self.schedule.paired
            )
        self.stop = Stop(StopReason.INTERRUPTED)
        self._futility = FutilityCheck(
            self.evaluator,
            self.num_train,
            self.sample,
            # Calibrated answers may differ even if all scores are equal.
            compares=not self.search.model.calibrates_answers,
            advice=self.advice,
            shows_demos=self.shows_demos,
            can_show_demos=self._can_show_demos(),
        )
        self._history: list[Iteration] = []
        self._learned: set[Candidate] = set()  # candidates whose scores the search has received
        self._first_round: Sequence[Candidate] = ()  # candidates that were scored in the first round

    def score_round(self, candidates: Sequence[Candidate]) -> Stop | None:
        """Score the candidates, and update the search. Return a `Stop` if the search ends, else None.

        Candidates that were scored before are scored on additional examples.
        """
        if not candidates:
            return Stop(StopReason.NOTHING_NEW)
        is_first = not self._history
        min_new = {} if self.min_examples is None else self.min_examples(by_prefix(candidates))
        wanted = self.schedule.examples_for(candidates, self.observations, min_new=min_new)
        if is_first and min_new:
            wanted = self._first_half(wanted)
        # In the first round, even a few scores are enough, because there are no estimates yet.
        num_enough = min(2, len(wanted)) if is_first else MIN_SHARE * len(wanted)
        affordable = self.evaluator.affordable(wanted)
        if len(affordable) < num_enough:
            return Stop(StopReason.BUDGET)
        if is_first:
            self._check_first_replies(affordable)
        scored = self.observe(affordable)
        was_cut_short = len(scored) < len(affordable)
        exceeds_budget = len(affordable) < len(wanted)
        # Learn even if a limit ends the search, because the race and the decision need the estimates.
        if scored and (is_first or len(scored) >= num_enough):
            self._update_search([candidate for candidate in candidates if candidate in scored])
        if was_cut_short:
            return Stop(self.evaluator.budget.limit_reached or StopReason.TIME)
        if exceeds_budget:
            return Stop(StopReason.BUDGET)
        logger.info("%s", self._history[-1])
        return None

    def next_candidates(self) -> Sequence[Candidate]:
        """Return the candidates of the next round.

        Widen the search space after half of the search's calls, or when the search proposes no
        more candidates.
        """
        candidates: Sequence[Candidate] = []
        if self.evaluator.num_calls(SEARCH) >= WIDENED_AT * self.plan.search_calls:
            candidates = self.widen_space()
        return candidates or self.search.ask() or self.widen_space()

    def widen_space(self) -> list[Candidate]:
        """Widen the search space, and return the first candidates to score in the wider space.

        Each candidate is one of the best orderings, except that one block shows only a new item. Return
        an empty list if the space cannot be widened, or if this was tried before.
        """
        widen = self.widen
        if widen is None:
            return []
        self.widen = None  # Try this only once.
        narrow = self.search.space
        best = [candidate for candidate in self.best() if narrow.contains(candidate)]
        if not best:
            return []
        alike = [ordering for ordering in best if narrow.chosen(ordering) == narrow.chosen(best[0])]
        low_scores = self.low_scores(alike)
        wider_search = widen(low_scores) if low_scores else None
        if wider_search is None:
            return []
        # The new items were made from these examples, so the items' scores on them would be biased.
        self.schedule.retired.update(low_scores)
        scores = self.scores_for_search()
        wider_search.model.information_weights = self.evaluator.effective_scores.information_weights
        wider_search.tell(list(scores), scores)
        self.search = wider_search
        first: dict[Candidate, None] = {}
        for ordering in best[:NUM_WIDENED]:
            first |= dict.fromkeys(wider_search.space.with_new_items(ordering, narrow))
        return list(first)

    def low_scores(self, best_first: Sequence[Ordering]) -> dict[int, Ordering]:
        """Return a dict that maps up to `MAX_LOW` train examples to the orderings with low scores on them.

        For each example, use only the first ordering that was scored on it. A score is low if it is
        below the highest score of all calls. Ignore replies that cannot be parsed, because they
        have no score.
        """
        num_left = self.evaluator.unreserved_calls
        number = min(MAX_LOW, self.num_train // MIN_PER_LOW, num_left // MIN_PER_LOW)
        known = [record.score for record in self.observations.flat_records() if record.score is not None]
        highest = max(known, default=-math.inf)
        seen_examples: set[int] = set()
        low_scores: dict[int, Ordering] = {}
        for ordering in best_first:
            scores = {}
            for example, record in self.observations.records[ordering].items():
                if example not in seen_examples and record.score is not None:
                    scores[example] = record.score
            seen_examples |= scores.keys()
            for example in sorted(scores, key=lambda example: (scores[example], example)):
                if scores[example] < highest and len(low_scores) < number:
                    low_scores[example] = ordering
        return low_scores

    def check_stoppers(self) -> Stop | None:
        """Return a `Stop` if the search should end, or None if it should continue.

        A new rule that needs only the history belongs in `reason_to_stop()`. A rule that needs
        the calls belongs here.
        """
        futility = self._futility.check()
        if futility:
            return Stop(StopReason.NO_DIFFERENCE, futility)
        stop = reason_to_stop(self._history, stop_at_score=self.stop_at_score, patience=self.patience)
        if stop is None and len(self._history) >= self.plan.num_iterations:
            return Stop(StopReason.ALL_ROUNDS)
        return stop

    def observe(self, wanted: Wanted) -> list[Candidate]:
        """Call the candidates on their examples, and return the candidates whose calls were all made.

        Candidates whose prompts share a prefix are called one after another, so that a server with
        a prefix cache reads fewer tokens.

        Raises:
            RuntimeError: If `MIN_FAILURES` or more new calls all failed, probably because of an outage.
        """
        records = self.evaluator.evaluate({candidate: wanted[candidate] for candidate in by_prefix(wanted)})
        new = []
        for candidate, row in records.items():
            new += list(row.values())[self.observations.count(candidate) :]
        # If only one candidate was called, its prompt may have caused the failures.
        is_outage = len(records) > 1 or not self.observations.answered()
        if is_outage and len(new) >= MIN_FAILURES and all(record.outcome == FAILED for record in new):
            raise self.evaluator.nothing_ran_error(new)
        self.observations.add(records)
        return list(records)

    def best(self) -> list[Candidate]:
        """Return the scored candidates, sorted by their estimated scores, best first.

        Return an empty list before the first round ends, because the search has no estimates yet.
        """
        if not self._history:
            return []
        return [estimate.ordering for estimate in self.search.ranked(self.scores_for_search())]

    def scores_for_search(self) -> Scores:
        """Return the scores that the search and its model learn from.

        These are the metric's own scores, except for a metric over a set.
        """
        return self.observations.counted()

    def random_orderings(self) -> list[Ordering]:
        """Return the first round's random orderings, except those without demos."""
        space = self.search.space
        not_random = {self.original}
        if space.choices:
            not_random |= set(space.first_candidates)
        others = [candidate for candidate in self._first_round if candidate not in not_random]
        return [
            candidate for candidate in others if space.contains(candidate) and space.shows_items(candidate)
        ]

    def _first_half(self, wanted: Wanted) -> Wanted:
        """Return as many first candidates as half of the search's calls allow, but at least `MIN_ORDERS`."""
        first: Wanted = {}
        num_calls = 0
        for candidate, examples in wanted.items():
            num_calls += len(examples)
            if len(first) >= MIN_ORDERS and num_calls > self.plan.search_calls // 2:
                break
            first[candidate] = examples
        return first

    def _check_first_replies(self, wanted: Wanted) -> None:
        """Make the first calls, and raise `UnreadableReplies` if almost no reply can be parsed.

        Ignore calls without demos, because demos may teach the model the output format. But if
        no candidate can show demos, consider all calls. If there are too few calls for a check,
        make no calls.
        """
        can_show_demos = self._futility.can_show_demos
        first: Wanted = {}
        num_replies = 0
        for candidate, examples in wanted.items():
            first[candidate] = examples[: FIRST_ANSWERS - num_replies]
            if self.shows_demos(candidate) or not can_show_demos:
                num_replies += len(first[candidate])
            if num_replies == FIRST_ANSWERS:
                break
        if num_replies == FIRST_ANSWERS:
            self.evaluator.evaluate(first)
            self._futility.check()

    def _can_show_demos(self) -> bool:
        space = self.search.space
        most_items = [most for _, most in space.limits[: space.num_lists]]
        return any(most_items) or any(map(self.shows_demos, [self.original, *space.programs]))

    def _update_search(self, candidates: Sequence[Candidate]) -> None:
        """Pass the scores of a round's candidates to the search, and add the round to the history."""
        search = self.search
        effective = self.evaluator.effective_scores
        if self._history:
            self.observations.set_reference(self.best(), search.fitted)
        else:
            self.observations.set_reference(candidates, search.fitted)
            self._first_round = candidates
        num_known = len(self._learned)
        self._learned.update(candidates)
        scores = self.scores_for_search()
        search.tell(candidates, scores)
        means = [effective.clip(mean_score(scores[candidate])) for candidate in candidates]
        best = search.ranked(scores)[0]
        self._history.append(
            Iteration(
                index=len(self._history),
                num_samples=len(candidates),
                num_new=len(self._learned) - num_known,
                mean_score=sum(means) / len(means),
                best_score=max(means),
                best_score_so_far=effective.clip(best.score),
                best_ordering=best.ordering.name
                if isinstance(best.ordering, WholeProgram)
                else best.ordering,
                program_calls=self.evaluator.num_calls(),
            )
        )
        if self.on_round is not None:
            self.on_round(self._history[-1])
