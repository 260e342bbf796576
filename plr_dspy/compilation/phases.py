"""One compile, from its first round to its outcome: search, race, compare, choose."""

import itertools
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from plr_dspy.compilation.choice import Outcome, calibration_effect, count_evidence, judge, likely, measure
from plr_dspy.compilation.plan import MIN_EXAMPLES, Plan
from plr_dspy.report.data import Iteration
from plr_dspy.report.text import BUDGET
from plr_dspy.scoring.budget import COST_LIMIT, MARGIN, MAX_KEPT, TIME_LIMIT
from plr_dspy.scoring.causes import cause_of, main_cause
from plr_dspy.scoring.ledger import FAILED, WRONG, Cell
from plr_dspy.scoring.scorer import CellScorer, StagedScores, Wanted
from plr_dspy.search.search import Search, mean_score, reason_to_stop
from plr_dspy.search.space import Candidate, Ordering, Scores, WholeProgram, candidate_from_json

logger = logging.getLogger(__name__)

NOTHING_LEFT, ALL_ROUNDS, INTERRUPTED = "no new ordering left", "all iterations done", "interrupted"

MIN_SHARE = 0.5  # of a round, but the first, must be scored for a refit: fewer orderings would have too few elites
MIN_COMPARED = 8  # examples of the final comparison, at least, where there are so many
KEPT_SHARE = 0.4  # share of the orderings that go on to the next heat of a race

ENOUGH_ANSWERS = 20  # answers from which on most of them say something
FIRST_ANSWERS = 10  # answers that are enough if hardly any can be read, which are made before all others
UNPARSED, MOSTLY_UNPARSED = 0.9, 0.5  # shares of answers that could not be parsed: to stop at, and to warn of
ENOUGH_SCORES = 60  # scores, all of them the same, that say there is nothing to find
ENOUGH_PAIRS = 250  # pairs of scores of two orders on one example, each pair alike, that say so too


@dataclass
class FirstSigns:
    """Ends a search that can find nothing, before its budget does."""

    scorer: CellScorer  # makes the calls
    num_train: int  # those on so many first examples count
    sample: Callable[[], str] = str  # says one of the program's answers, for messages
    by_scores: bool = True  # whether scores that are all the same say that there is nothing to find
    advice: str = "try another adapter"  # what to do where replies cannot be read
    warned: bool = False  # that many answers could not be parsed
    found: str = ""  # why more scores would be for nothing, as `check` said it last

    def check(self) -> str:
        """Say why more scores would be for nothing, or nothing; RuntimeError: hardly any answer could be parsed."""
        by_prompt: dict[str, list[Cell]] = defaultdict(list)
        by_example: dict[int, list[Cell]] = defaultdict(list)
        for (prompt, example), cell in self.scorer.cells_asked().items():
            if example < self.num_train and cell.outcome != FAILED:
                by_prompt[prompt].append(cell)
                by_example[example].append(cell)
        cells = [cell for row in by_prompt.values() for cell in row]
        unparsed = [cell for cell in cells if cell.outcome == WRONG and cell.label_logprobs is None]
        if len(cells) >= FIRST_ANSWERS and len(unparsed) >= MOSTLY_UNPARSED * len(cells):
            said = self._unread(unparsed, len(cells))
            readable = any(len(row) > 1 and not any(cell.outcome for cell in row) for row in by_prompt.values())
            if len(unparsed) >= UNPARSED * len(cells) and not readable:
                raise RuntimeError(said)
            if len(cells) >= ENOUGH_ANSWERS and not self.warned:
                logger.warning("%s", said)
                self.warned = True
        # What a metric over a set reads beside scores tells answers apart, too.
        rows = [[(cell.score or 0.0, repr(cell.value)) for cell in row] for row in by_example.values()]
        # Labels that are all wrong, or all right, say it; what a function reads has no score by itself.
        scores = [score for row in rows for score, value in row if not value.startswith("{")]
        pairs = sum(len(row) - 1 for row in rows)
        if self.by_scores and len(scores) >= ENOUGH_SCORES and len(set(scores)) == 1:
            self.found = f"every score was {scores[0]:g} in {len(scores)} calls"
        elif self.by_scores and pairs >= ENOUGH_PAIRS and all(len(set(row)) == 1 for row in rows):
            self.found = f"no score differed between two prompts in {pairs} comparisons"
        if self.found:
            logger.warning(
                "%s: going on would pay for nothing. If this is not meant: check that the metric compares the right "
                "fields, and that the demos reach the model. One answer: %s",
                self.found,
                self.sample() or "not known",
            )
        return self.found

    def _unread(self, unparsed: Sequence[Cell], num_calls: int) -> str:
        """Say how many of these calls gave no answer that could be read, and what to do."""
        cause = main_cause(cell.error for cell in unparsed)
        alike = [cell for cell in unparsed if cause_of(cell.error) is cause]
        share = f"{len(unparsed)} of {num_calls}"
        message = alike[0].message
        if cause is None:
            return f"{share} answers could not be parsed; one says: {message}. To change that, {self.advice}"
        return f"{share} calls got no answer ({alike[0].error}: {message}): {cause.cure}"


@dataclass(kw_only=True)
class Compilation:
    """A compile under way; what it has found can be had at any moment (`unfinished`).

    Where the plan is no racing one, what meets on the selection split is chosen by its scores there, as by PLR
    Algorithm 1, which compares draws of the final distribution. Deviation: the original order, the best orders seen and
    the mode join the draws; from the draws alone PLR Algorithm 1 can end with an order worse than the original or than
    one it has seen.
    """

    search: Search = field(kw_only=False)
    scorer: CellScorer = field(kw_only=False)  # of the train split, then the selection split
    plan: Plan
    num_train: int
    original: Candidate  # what the user has: an ordering, or `WITHOUT_DEMOS`
    min_probability: float | None = None  # that it takes to replace the original; None: odds where plans race, else 0
    sample: Callable[[], str] = str  # says one of the program's answers, for messages
    advice: str = FirstSigns.advice
    ending: Mapping[str, Any] = field(default_factory=dict)  # arguments that say when the search ends, beside the plan
    shifted: bool = False  # as in `StagedScores`
    on_round: Callable[[Iteration], object] = lambda last: None

    def __post_init__(self) -> None:
        scorer, plan, influence = self.scorer, self.plan, self.scorer.influence
        self.staged = StagedScores(
            scorer,
            num_train=self.num_train if plan.racing else plan.num_first_examples,
            num_first=plan.num_first_examples,
            num_more=plan.num_more_examples,
            favoured=self.original if plan.racing else None,
            shifted=self.shifted,
            strata=influence.strata(self.num_train) if influence and plan.racing else (),
        )
        if influence is not None:
            self.search.model.worth = influence.worth
        self.selection = range(self.num_train, self.num_train + plan.num_selection_examples)
        self._least_compared = plan.num_finalists * min(MIN_COMPARED, plan.num_selection_examples)  # calls
        self.stopped = INTERRUPTED
        if self.min_probability is None and not plan.racing:
            self.min_probability = 0.0
        by_scores = not self.search.model.calibrating  # calibrated answers may differ where scores do not
        self._signs = FirstSigns(scorer, self.num_train, self.sample, by_scores=by_scores, advice=self.advice)
        self._history: list[Iteration] = []
        self._told: set[Candidate] = set()
        self._first_round: list[Candidate] = []  # which every search fills with random orderings
        # What was scored of the round that ended the search, and whether it was told; None of one that was not cut.
        self._cut: tuple[list[tuple[Candidate, list[int]]], bool] | None = None

    def run(self) -> Outcome:
        """Search, race the best, compare the winners with the original on the selection split, and choose."""
        if self.search.space.num_distinct < 2:
            logger.warning("all choices of demos and order give the same prompt: there is nothing to compare")
            return self._outcome(stopped="all choices give the same prompt")
        if not self.plan.program_calls:
            return self._outcome(stopped="no call to make, nothing compared")
        plan, search = self.plan, self.search
        self._begin("search", calls_to_come=plan.race_calls + plan.final_calls)
        ended = self._replay()
        if ended is None:
            self.stopped = self._ask_score_tell()
            ended = self._note_end()
        if ended["nothing_found"] and search.space.holds(self.original):
            evidence = count_evidence(self.staged.scores())  # failed calls may differ
            return self._outcome(evidence=evidence.model_copy(update={"num_differing": 0}))
        # What was done is done again as it was, whatever calls the ledger has got from others since.
        entries, done, winners = self._finalists(), ended.get("done"), list[Candidate]()
        if plan.racing:
            self._begin("race", calls_to_come=plan.final_calls)
            if done is not None:
                self.staged.score({candidate_from_json(saved): examples for saved, examples in done["asked"]})
                winners = [candidate_from_json(saved) for saved in done["winners"]]
            else:
                entrants = [ordering for _, ordering in entries[1:]]
                winners = self.race(entrants, ended["race_calls"], kept=ended["kept"])
            self.stopped = self.scorer.budget.refused or self.stopped
            entries = [entries[0], *(("best seen", winner) for winner in winners)]
        finalists = [ordering for _, ordering in entries]
        rows, examples, compared = self._compare(finalists, ended["share"], asked=done and done["compared"])
        limited = self.stopped in (TIME_LIMIT, COST_LIMIT) or self.scorer.budget.max_seconds is not None
        if done is None and not limited:
            done = {"winners": winners, "asked": list(self.staged.asked.items()), "compared": compared}
            self.scorer.ledger.note({"ended": {**ended, "done": done}})
        return self._choose(entries, rows, examples)

    def _replay(self) -> dict[str, Any] | None:
        """Take the rounds that the ledger tells of as they were; returns what `_note_end` did, if it did."""
        scorer, course = self.scorer, self.scorer.ledger.course
        limits, costs = {**asdict(self.plan), **self.ending}, (None, scorer.budget.max_cost)
        alike = (e for e in reversed(course["ended"]) if e["limits"] == limits and e.get("max_cost") in costs)
        ended: dict[str, Any] | None = next(alike, None)
        rounds = course["rounds"] if ended is None else ended["rounds"]
        cut = [] if ended is None or ended["cut"] is None else [ended["cut"]]
        decided = itertools.chain(*rounds, *(scored for scored, _ in cut))
        scorer.ask_again((candidate_from_json(saved), examples) for saved, examples in decided)
        for number, (scored, told) in enumerate([*((each, True) for each in rounds), *cut]):
            wanted = {candidate_from_json(saved): examples for saved, examples in scored}
            kept = 0 if ended else self.plan.race_calls + self.plan.final_calls
            if scorer.affordable(wanted, kept=kept) != wanted:  # The budget is smaller now.
                scorer.ledger.note({"replayed": rounds[:number]})
                return None
            self.search.ask()  # which draws what it drew before
            self.staged.score(wanted)
            if told:
                self._tell([candidate_from_json(saved) for saved, _ in scored])
        self.stopped = self.stopped if ended is None else ended["stopped"]
        return ended

    def _note_end(self) -> dict[str, Any]:
        """Note why the search has ended, the share of race and final comparison to be done, and the race's calls."""
        plan, scorer, made = self.plan, self.scorer, self.scorer.num_cells("search")
        planned = {TIME_LIMIT, COST_LIMIT, BUDGET, NOTHING_LEFT} | (set() if plan.racing else {ALL_ROUNDS})
        # Whoever ended the search early wants to spend less.
        wanted = 1.0 if self.stopped in planned else made / max(1, plan.search_calls)
        affordable = scorer.budget.calls_left + self._made_before()
        share = min(1.0, wanted, affordable / max(1, plan.race_calls + plan.final_calls))
        most = min(scorer.budget.max_calls, plan.program_calls + scorer.num_cells("bootstrap"))
        race_calls, kept = most - plan.final_calls - scorer.num_cells(), plan.final_calls
        if share < 1.0:
            kept = max(self._least_compared, round(share * plan.final_calls))
            race_calls = min(race_calls, round(share * plan.race_calls), affordable - kept)
        ended = {
            "stopped": self.stopped,
            "nothing_found": self.stopped == self._signs.found,
            "share": share,
            "race_calls": max(0, race_calls),
            "kept": max(0, kept - len(scorer.known_cells({self.original: self.selection})[self.original])),
            "cut": self._cut,
            "limits": {**asdict(plan), **self.ending},  # which must be the same for a search to end there again
            "max_cost": scorer.budget.max_cost if self.stopped == COST_LIMIT else None,  # this, too, unless it is None
        }
        if self.stopped != TIME_LIMIT:
            scorer.ledger.note({"ended": ended})
        return ended

    def _made_before(self, num_asked: int = 0) -> int:
        """Calls of the original that race and comparison made within a smaller budget, and which serve them again: all
        but those that the search has asked for, or is about to, of which there are so many."""
        made = self.scorer.known_cells({self.original: range(self.selection.stop)})[self.original]
        return max(0, len(made) - max(num_asked, self.staged.num_asked(self.original)))

    def _ask_score_tell(self) -> str:
        """Go round until the search has made its calls or something ends it; returns what it was."""
        while True:
            if self._history and self._signs.check():
                return self._signs.found
            stoppers = {name: self.ending.get(name) for name in ("stop_at_score", "patience")}
            if reason := reason_to_stop(self._history, **stoppers):
                return reason
            if len(self._history) >= self.plan.num_iterations:
                return ALL_ROUNDS
            orderings, self._cut = self.search.ask(), ([], False)
            if not orderings:
                return NOTHING_LEFT
            wanted = self.staged.wanted(orderings)
            to_come = self.plan.race_calls + self.plan.final_calls
            kept = max(self._least_compared, to_come - self._made_before(len(wanted.get(self.original, ()))))
            affordable = self.scorer.affordable(wanted, kept=kept)
            if len(affordable) < MIN_SHARE * len(wanted):
                return BUDGET
            if not self._history:
                self._check_first(affordable)
            scored = self.staged.score(affordable)
            told = bool(scored) and (len(scored) >= MIN_SHARE * len(wanted) or not self._history)
            rows = [(ordering, wanted[ordering]) for ordering in orderings if ordering in scored]
            self._cut = (rows, told) if len(scored) < len(wanted) else None
            if self._cut is None:  # Where limits are raised, one that was cut is asked for anew.
                self.scorer.ledger.note({"round": rows})
            if told:
                self._tell([ordering for ordering, _ in rows])
            if self._cut is not None:
                return self.scorer.budget.refused if len(scored) < len(affordable) else BUDGET
            self.on_round(self._history[-1])
            logger.info("%s", self._history[-1])

    def _check_first(self, wanted: Wanted) -> None:
        """Make the first calls of these; RuntimeError: hardly any reply can be read.

        Those of a student without demos do not suffice, as demos may show the format.
        """
        first = Wanted()
        num_replies = 0
        for ordering, examples in wanted.items():
            first[ordering] = examples[: FIRST_ANSWERS - num_replies]
            num_replies += len(first[ordering]) if isinstance(ordering, WholeProgram) or any(ordering) else 0
            if num_replies == FIRST_ANSWERS:
                self.scorer.cells(first)
                self._signs.check()
                return

    def _tell(self, orderings: Sequence[Candidate]) -> None:
        """Tell the search of a round, in which an ordering may come several times, and note how it went."""
        if self.scorer.influence is not None:
            self._refer(self._best() if self._history else orderings)
        search, table = self.search, self.scores()
        if not self._history:
            self._first_round = list(orderings)
        search.tell(orderings, table)
        num_new = len(set(orderings) - self._told)
        self._told.update(orderings)
        limited = self.scorer.influence.limited if self.scorer.influence else float
        scores = [limited(mean_score(table[ordering])) for ordering in orderings]
        best = search.ranked(table)[0]
        self._history.append(
            Iteration(
                index=len(self._history),
                num_samples=len(orderings),
                num_new=num_new,
                mean_score=sum(scores) / len(scores),
                best_score=max(scores),
                best_score_so_far=limited(best.score),
                best_ordering=best.ordering.name if isinstance(best.ordering, WholeProgram) else best.ordering,
                program_calls=self.scorer.num_cells(),
            )
        )

    def _refer(self, orderings: Sequence[Candidate]) -> None:
        """Score by a metric over a set near what the first of these orderings answer, calibrated where answers are."""
        fitted = self.search.fitted
        self.scorer.refer((each, {} if fitted is None else fitted.answers(each)) for each in orderings)

    def _best(self, count: int | None = None) -> list[Candidate]:
        """The best orderings by the search's estimates, best first; the earlier of equals comes first."""
        return [estimate.ordering for estimate in self.search.ranked(self.scores())[:count]]

    def _begin(self, phase: str, *, calls_to_come: int) -> None:
        """Begin a phase that leaves money and time to so many calls of the plan, or to the least comparison."""
        self.scorer.phase = phase
        budget, planned = self.scorer.budget, max(1, self.plan.program_calls)
        affordable = max(1, min(planned, len(self.scorer.ledger.paid) + budget.calls_left))
        kept = MARGIN * max(calls_to_come / planned, self._least_compared / affordable)
        budget.allow(1.0 - min(MAX_KEPT, kept), kept=self._least_compared)

    def _finalists(self) -> list[tuple[str, Candidate]]:
        """The original, and the best orderings of the search, with their origins; where plans race, what enters it."""
        plan, search = self.plan, self.search
        best = self._best()[: plan.num_best_seen]
        if plan.racing:
            best = _first([each for each in self._best() if each != self.original], plan.num_entrants)
        found = [("original", self.original), *(("best seen", each) for each in best)]
        if best or not plan.racing:
            found += [("mode", search.mode())] if plan.with_mode else []
            found += [("draw", each) for each in search.draw(plan.num_final_draws)]
        origins: dict[Candidate, str] = {}
        for origin, ordering in found:
            origins.setdefault(ordering, origin)
        return [(origin, ordering) for ordering, origin in origins.items()]

    def race(self, entrants: Sequence[Candidate], num_calls: int, *, kept: int = 0) -> list[Candidate]:
        """Halve the entrants, which are scored on ever more examples (Z. Karnin, T. Koren and O. Somekh, ICML 2013).

        Each heat has an equal share of the calls; others are kept for what follows. Entrants that are new are scored as
        often as the least scored one, where half of the calls pay for that, and stay out otherwise. The original is
        scored first, by its share, and in the last heat as often as the others there; it cannot win. Nor can what the
        model says nothing of. Returns the winners, best first, the best whole program and the best ordering before the
        others; when time or money is up by what is known; none without entrants.
        """
        staged, plan, original = self.staged, self.plan, self.original
        level = min(filter(None, map(staged.num_asked, entrants)), default=staged.num_first)
        new = staged.wanted([entrant for entrant in entrants if not staged.num_asked(entrant)], level)
        while (spent := sum(map(len, new.values()))) > num_calls // 2:
            new.popitem()
        staged.score(new, kept=kept)
        alive = [entrant for entrant in entrants if staged.num_asked(entrant)]
        if not alive:
            return []
        asked = staged.num_asked(original)
        most = min(plan.num_train_examples, asked + int(plan.original_share * num_calls))
        spent += most - asked
        staged.score(staged.wanted([original], most), kept=kept)
        num_winners = plan.num_best_seen
        num_heats = max(1, math.ceil(math.log(max(1, len(alive) / num_winners)) / math.log(1 / KEPT_SHARE)))
        for heat in range(num_heats):
            scored = [*alive, original] if heat == num_heats - 1 else alive
            counts = [staged.num_asked(ordering) for ordering in scored]
            share = (num_calls - spent) / (num_heats - heat)
            while level < plan.num_train_examples and sum(max(0, level + 1 - count) for count in counts) <= share:
                level += 1
            spent += sum(max(0, level - count) for count in counts)
            num_scored = len(staged.score(staged.wanted(scored, level), kept=kept))
            means = dict(self.search.model.fit(self.scores()).estimates())
            alive = sorted((each for each in alive if each in means), key=lambda each: -means[each])
            if num_scored < len(scored):
                break
            self.scorer.ledger.settle()
            alive = _first(alive, max(num_winners, math.ceil(KEPT_SHARE * len(alive))))
        return _first(alive, num_winners)

    def scores(self, known: Scores | None = None) -> Scores:
        """The scores of the train split, or those that are given, as they count: of a metric over a set, facts have the
        shares that they have among all examples."""
        scores, influence = self.staged.scores() if known is None else known, self.scorer.influence
        if influence is None:
            return scores
        found = {}
        for ordering, row in scores.items():
            (counted,) = influence.stratified(np.array([[*row.values()]]), np.array([*row])).tolist()
            found[ordering] = dict(zip(row, counted, strict=True))
        return found

    def random_orderings(self) -> list[Ordering]:
        """Return the orderings of the first round that show items drawn at random."""
        holds = self.search.space.holds
        drawn = [candidate for candidate in self._first_round if candidate != self.original]
        return [candidate for candidate in drawn if holds(candidate) and any(candidate)]

    def _choose(
        self, entries: Sequence[tuple[str, Candidate]], rows: Sequence[Sequence[float]], examples: Sequence[int]
    ) -> Outcome:
        """Choose among the finalists that have scores on the selection split, by what all scores let one expect."""
        if len(rows) < 2:
            if self.stopped == BUDGET and (made := self.scorer.ledger.num_resumed):
                logger.warning(
                    "the %d calls that log_dir holds count towards max_metric_calls=%d, and leave too few to compare "
                    "any orders: raise it, or pass another log_dir",
                    made,
                    self.scorer.budget.max_calls,
                )
            return self._outcome(stopped=f"{self.stopped}, nothing compared")
        if len(rows) == len(entries):
            self.scorer.ledger.settle()
        entries, racing = entries[: len(rows)], self.plan.racing

        def judged(rows: Sequence[Sequence[float]], least: float | None) -> Outcome:
            known = self.staged.scores() if racing else {}
            for (_, ordering), row in zip(entries, rows, strict=True):
                known.setdefault(ordering, {}).update(zip(examples, row, strict=True))
            options: dict[str, Any] = {"as_they_came": known, "min_probability": least, "by_score": not racing}
            return self._outcome(**judge(entries, examples, self.scores(known), self.search.model, **options))

        least = self.min_probability
        outcome = judged(rows, least)
        fitted = outcome.fitted
        if self.scorer.influence is None or fitted is None:
            return outcome
        # A metric over a set is linear near the two that are compared only.
        calibrated = fitted.answers(outcome.ordering) if outcome.offsets else {}
        others = ((each, fitted.answers(each)) for each, _ in fitted.estimates())
        compared = [(self.original, {}), (outcome.ordering, calibrated)]
        self.scorer.refer(itertools.chain(compared, others), least=2)
        _, rows = self.scorer.table([ordering for _, ordering in entries], examples, favoured=0)
        compared_on = None if racing else examples  # other plans go by the selection split alone
        outcome = measure(judged(rows, least), self.scorer, self.original, examples=compared_on)
        if not outcome.chosen or likely(outcome.candidates[outcome.chosen].gain, least):
            return outcome
        # By the metric itself the chosen one is less sure than by its influence: the original stays.
        most = outcome.candidates[outcome.chosen].gain
        outcome = measure(judged(rows, math.inf), self.scorer, self.original, examples=compared_on)
        candidates = []
        for each in outcome.candidates:  # None of them gains more, or is surer.
            expected = min(each.gain.expected, most.expected)
            gain = replace(
                each.gain,
                expected=expected,
                probability=min(each.gain.probability, most.probability),
                worse=max(each.gain.worse, most.worse),
                probability_calibrated=min(each.gain.probability_calibrated, most.probability_calibrated),
                worse_calibrated=max(each.gain.worse_calibrated, most.worse_calibrated),
            )
            candidates.append(replace(each, gain=gain))
        return replace(outcome, candidates=candidates)

    def _compare(
        self, orderings: Sequence[Candidate], share: float = 1.0, *, asked: Sequence[int] | None = None
    ) -> tuple[list[list[float]], list[int], Sequence[int]]:
        """Rows of scores on a share of the selection split, or on what was asked before, of the first finalists that
        calls, time and money pay for; the examples that they are on, and those that were asked for."""
        scorer = self.scorer
        if asked is None:
            count = max(MIN_COMPARED, round(share * self.plan.num_selection_examples))
            known = scorer.known_cells(dict.fromkeys(orderings, self.selection[:count]))
            unpaid = {e: sum(e not in row for row in known.values()) for e in self.selection[:count]}
            least, left = min(MIN_EXAMPLES, len(self.selection)), math.inf
            cheapest_first = sorted(unpaid, key=unpaid.__getitem__)
            if scorer.budget.max_seconds is not None:
                left = max(scorer.budget.calls_left, least * len(orderings))
            wanted = dict.fromkeys(orderings, cheapest_first)
            while sum(map(unpaid.__getitem__, cheapest_first)) > left or scorer.affordable(wanted) != wanted:
                cheapest_first.pop()
            asked = sorted(cheapest_first) if len(cheapest_first) >= max(1, least) else []
        if len(orderings) < 2 or not asked:
            return [], [], asked
        scorer.phase = "final"
        scorer.budget.allow(1.0)
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
            self.stopped = scorer.budget.refused or self.stopped
        return rows, examples, asked

    def unfinished(self, error: BaseException) -> Outcome:
        """What is known where the compile ended in an exception: the best order of the search, not compared."""
        if not self._history and (scored := self.staged.salvage()):
            self.search.tell(scored, self.scores())
        phases = {"race": " in the race of the best", "final": " in the final comparison"}
        ended = INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"ended by {type(error).__name__}"
        stopped = ended + phases.get(self.scorer.phase, "")
        (ordering,) = self._best(1) or [self.original]
        return self._outcome(ordering=ordering, stopped=stopped)

    def _outcome(self, **found: Any) -> Outcome:
        """The outcome with what was found; unless that is a comparison, the original order stays or the one given, and
        a compile that calibrates says what that does. Calls by phase are as in `Report`."""
        scorer, total, model = self.scorer, len(self.scorer.ledger.paid), self.search.model
        counts = {phase: scorer.num_cells(phase) for phase in ("bootstrap", "search", "race", "final")}
        counts |= {"unused": total - sum(counts.values()), "total": total, "resumed": scorer.ledger.num_resumed}
        known: dict[str, Any] = {"ordering": self.original, "stopped": self.stopped, **found}
        outcome = Outcome(distributions=self.search.distributions, history=self._history, program_calls=counts, **known)
        if outcome.comparison is not None or not model.calibrating:
            return outcome
        scores = self.scores()
        both = [ordering for ordering in (self.original, outcome.ordering) if ordering in scores]
        if not both:
            return outcome
        applied = outcome.ordering != self.original
        effect = calibration_effect(model.fit(scores, kept=both), both[0], both[-1], applied=applied)
        offsets = tuple(effect.offsets) if effect is not None and applied else ()
        return replace(outcome, calibration=effect, offsets=offsets)


def _first(ranked: Sequence[Candidate], number: int) -> list[Candidate]:
    """Return this many of the best, the best whole program and the best ordering before the others."""
    best = {isinstance(candidate, WholeProgram): candidate for candidate in reversed(ranked)}.values()
    return sorted(ranked, key=lambda candidate: candidate not in best)[:number]
