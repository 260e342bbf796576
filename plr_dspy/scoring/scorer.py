"""Score candidates on examples, one candidate after the other, so that a server's prefix cache stays warm."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from plr_dspy.errors import UserError
from plr_dspy.scoring.budget import Budget
from plr_dspy.scoring.causes import cure_of, main_cause
from plr_dspy.scoring.confusion_scores import Answer, ConfusionScores
from plr_dspy.scoring.run_log import FAILED, CallKey, CallRecord, RunLog
from plr_dspy.search.space import Candidate, WholeProgram

logger = logging.getLogger(__name__)

MIN_FAILURES = 8  # If at least this many calls of a round all fail, assume an outage.
MIN_TRIES = 3  # failed calls after which an example without any other is given up
FIRST_OF_PROGRAM = 4  # fewest examples that a whole program is first scored on: nothing else tells of its score
Wanted = dict[Candidate, list[int]]  # all examples that each candidate is to be scored on
Cells = dict[Candidate, dict[int, CallRecord]]  # calls by candidate and example


class Payer(Protocol):
    """Makes program calls within the budget, and logs each when it has ended."""

    log: RunLog
    budget: Budget

    def fingerprint(self, ordering: Candidate, example: int | None) -> str:
        """Return what identifies the prompt of an ordering, or of a whole program on an example."""

    def pay(self, cells: Mapping[CallKey, Candidate | None]) -> None:
        """Make the calls of unpaid cells, as long as the budget lets them begin."""


class NothingRan(RuntimeError):
    """All calls failed."""


@dataclass
class CellScorer:
    """Scores candidates, and makes no call twice that has ended with an answer.

    A call counts for the phase that asks for it first. Calls in the log count alike, so a resumed run takes the same
    course as one without a stop.

    Attributes:
        bootstrapped: Cells of the calls that made demos, which were asked for before.
        influence: Scores labels, if the metric is over a set.
    """

    payer: Payer
    bootstrapped: Iterable[tuple[str, Any]] = field(default=(), kw_only=True)
    influence: ConfusionScores | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.log = self.payer.log
        self.budget = self.payer.budget
        self.phase = "search"
        self._fingerprints: dict[tuple[Candidate, int | None], str] = {}
        self._phases: dict[CallKey, str] = dict.fromkeys(self.bootstrapped, "bootstrap")
        self._examples: dict[Candidate, dict[int, None]] = {}  # ordered sets

    def key(self, ordering: Candidate, example: int) -> CallKey:
        """Return the cell of a candidate on an example; candidates with the same prompt share it."""
        prompt = ordering, example if isinstance(ordering, WholeProgram) else None
        if prompt not in self._fingerprints:
            self._fingerprints[prompt] = self.payer.fingerprint(*prompt)
        return self._fingerprints[prompt], example

    def num_cells(self, phase: str = "") -> int:
        """Count the cells that a phase was the first to ask for, or all cells."""
        if not phase:
            return len(self._phases)
        return list(self._phases.values()).count(phase)

    def affordable(self, wanted: Wanted, *, kept: int = 0) -> Wanted:
        """Return the first candidates that the budget has calls for, beyond the calls kept.

        Calls in the log count like those of this run.
        """
        new: set[CallKey] = set()
        affordable: Wanted = {}
        for ordering, examples in wanted.items():
            new |= {self.key(ordering, example) for example in examples} - self.log.records.keys()
            if new and self.log.num_calls + len(new) + kept > self.budget.max_calls:
                break
            affordable[ordering] = examples
        return affordable

    def cells(self, wanted: Mapping[Candidate, Sequence[int]]) -> Cells:
        """Make the missing calls, and return the first candidates that were scored on all their examples.

        Raises:
            RuntimeError: If the calls would exceed the budget. Exceptions of the payer come as they are.
        """
        asked: dict[CallKey, Candidate] = {}
        for ordering, examples in wanted.items():
            self._examples.setdefault(ordering, {}).update(dict.fromkeys(examples))
            for example in examples:
                asked.setdefault(self.key(ordering, example), ordering)
        new = {key: ordering for key, ordering in asked.items() if key not in self.log.records}
        if new and self.log.num_calls + len(new) > self.budget.max_calls:
            raise RuntimeError(
                f"{len(new)} program calls more would exceed max_metric_calls={self.budget.max_calls} "
                f"({self.log.num_calls} made)"
            )
        unpaid = {key: ordering for key, ordering in new.items() if not self.budget.recall(key)}
        try:
            if unpaid:
                self.payer.pay(unpaid)
        finally:
            # Calls that were not made, for lack of time or money, count for no phase.
            for key in asked:
                if key in self.log.records:
                    self._phases.setdefault(key, self.phase)
        complete: Cells = {}
        for ordering, row in self.known_cells(wanted).items():
            if len(row) < len(set(wanted[ordering])):
                break
            complete[ordering] = row
        return complete

    def known_cells(self, wanted: Mapping[Candidate, Sequence[int]]) -> Cells:
        """Return the paid cells among those wanted; costs nothing."""
        known: Cells = {}
        for ordering, examples in wanted.items():
            known[ordering] = {}
            for example in examples:
                record = self.log.records.get(self.key(ordering, example))
                if record is not None:
                    known[ordering][example] = self._scored(example, record)
        return known

    def _scored(self, example: int, cell: CallRecord) -> CallRecord:
        """Return a cell with its score, which a metric over a set derives from its reference."""
        if self.influence is None or cell.outcome == FAILED:
            return cell
        if not (cell.outcome or isinstance(cell.value, str)):
            raise UserError("log_dir holds calls of another metric, without the answered labels: pass another log_dir")
        return replace(cell, score=self.influence.score(example, cell.value))

    def answers(self, ordering: Candidate, labels: Mapping[int, int]) -> dict[int, str | None]:
        """Return the labels that an ordering answers, by example; `labels` by number replace some of them."""
        assert self.influence is not None
        cells = self.cells_of(ordering)
        answers = {example: cell.value for example, cell in cells.items() if cell.outcome != FAILED}
        for example in answers.keys() & labels.keys():
            answers[example] = self.influence.labels[labels[example]]
        return answers

    def linearize_at(self, orderings: Iterable[tuple[Candidate, Mapping[int, int]]], *, least: int = 1) -> None:
        """Linearise a metric over a set at the answers of these orderings, each with its calibrated labels.

        The reference has the `least` first orderings, and more until it has enough answers.
        """
        assert self.influence is not None
        reference: list[Answer] = []
        for number, (ordering, labels) in enumerate(orderings):
            if number >= least and self.influence.is_enough(reference):
                break
            reference += self.answers(ordering, labels).items()
        self.influence.linearize_at(reference)

    def cells_of(self, ordering: Candidate) -> dict[int, CallRecord]:
        """Return the paid cells of an ordering by example, as the log has them."""
        keys = {example: self.key(ordering, example) for example in self._examples.get(ordering, ())}
        return {example: self.log.records[key] for example, key in keys.items() if key in self.log.records}

    def cells_asked(self) -> dict[CallKey, CallRecord]:
        """Return all paid cells that were asked for."""
        return {key: self.log.records[key] for key in self._phases if key in self.log.records}

    def table(
        self, orderings: Sequence[Candidate], examples: Sequence[int], *, favoured: int | None = None
    ) -> tuple[list[int], list[list[float]]]:
        """Return the examples with an answer of any ordering, and a row of scores for each ordering, as `cells`.

        Answers that cannot be parsed, and failed calls, count as the worst score of these examples, at most 0. Failed
        calls of the `favoured` ordering, given by its number, count as the best score on the example: no other one is
        to win by its bad luck.

        Raises:
            NothingRan: If all calls failed.
        """
        known = self.cells(dict.fromkeys(orderings, examples))
        cells = [known[ordering] for ordering in itertools.takewhile(known.__contains__, orderings)]
        answered = _answered(cells)
        ran = [example for example in examples if example in answered]
        if cells and not ran:
            raise self.nothing_ran([cell for row in known.values() for cell in row.values()])
        worst = _worst_score(cells)
        rows = [[_score_or(row[example], worst) for example in ran] for row in cells]
        if favoured is not None and favoured < len(rows):
            for column, example in enumerate(ran):
                if cells[favoured][example].outcome == FAILED:
                    rows[favoured][column] = max(row[column] for row in rows)
        return ran, rows

    def nothing_ran(self, cells: Sequence[CallRecord]) -> NothingRan:
        """Return the error that ends a compile whose calls all failed; the next run makes them again."""
        self.log.repeat_failed()
        failed = [cell for cell in cells if cell.outcome == FAILED]
        cure = cure_of((cell.error for cell in failed), otherwise="see that the program runs and its model answers")
        first = f"{failed[0].error}: {failed[0].message}"
        return NothingRan(f"none of {len(cells)} calls ended with an answer ({first}): {cure}, and compile again")


@dataclass(kw_only=True)
class StagedScores:
    """Scores of candidates that begin at different examples, so that a search learns about the whole train split.

    A candidate is scored on a few examples at first, and on further ones each time it is asked for again. An answer
    that cannot be parsed counts as the worst score (at most 0), but for a metric over a set as one without a label. A
    failed call counts as the worst, unless the example failed for all candidates.

    Attributes:
        scorer: Its first examples are the train split.
        num_first, num_more: Examples of the first score of a candidate, and of each further one.
        favoured: A candidate whose failed calls do not count.
        shifted: Whether candidates begin one example later after each pass through the split.
        strata: Groups of examples that candidates are scored on in turn.
    """

    scorer: CellScorer = field(kw_only=False)
    num_train: int
    num_first: int
    num_more: int
    favoured: Candidate | None = None
    shifted: bool = False
    strata: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        self._strata = [list(group) for group in self.strata] or [list(range(self.num_train))]
        # Otherwise two groups of orderings might meet two groups of examples, whose effects nobody could tell apart. If
        # the split is not a multiple of the first score, orderings begin elsewhere in the next pass anyway.
        self._shifted = self.shifted and self.num_train % self.num_first == 0
        self.asked: Wanted = {}  # all candidates, with the examples that each was scored on
        self._under_way: Wanted = {}

    def num_asked(self, ordering: Candidate) -> int:
        """Count the examples that a candidate was scored on."""
        return len(self.asked.get(ordering, []))

    def wanted(self, orderings: Sequence[Candidate], num_examples: int | None = None) -> Wanted:
        """Return the examples to score each candidate on next, earlier ones included.

        Args:
            orderings: The candidates.
            num_examples: Number of examples in all; by default, as many as for a first or further score.
        """
        given_up = self._given_up()
        num_seen = len(self.asked)
        wanted: Wanted = {}
        for ordering in dict.fromkeys(orderings):
            asked = self.asked.get(ordering, [])
            turn = self._turn(self._first_place(num_seen, asked))
            count = self.num_more if asked else self.num_first
            if num_examples is not None:
                count = num_examples - len(asked)
            if not asked:
                num_seen += 1
                if isinstance(ordering, WholeProgram):
                    count = max(count, FIRST_OF_PROGRAM)
            taken = {*asked, *given_up}
            new = [example for example in turn if example not in taken]
            wanted[ordering] = [*asked, *new[: max(count, 0)]]
        return wanted

    def _given_up(self) -> set[int]:
        """Return the examples that have failed too often, and never ran."""
        ran = _answered(self.scorer.known_cells(self.asked).values())
        failures = Counter(example for examples in self.asked.values() for example in examples if example not in ran)
        return {example for example, count in failures.items() if count >= MIN_TRIES}

    def _first_place(self, num_seen: int, asked: Sequence[int]) -> int:
        """Return the place of a candidate's first example in the cycle through the strata."""
        if asked:
            number = next(number for number, group in enumerate(self._strata) if asked[0] in group)
            return number + len(self._strata) * self._strata[number].index(asked[0])
        place = num_seen * self.num_first
        if self._shifted:
            place += place // self.num_train
        return place

    def _turn(self, place: int) -> list[int]:
        """Return all examples in the order of the cycle through the strata, from a place on."""
        strata = self._strata
        num_places = len(strata) * max(map(len, strata))
        examples: dict[int, None] = {}
        for current in range(place, place + num_places):
            step, number = divmod(current, len(strata))
            group = strata[number]
            examples[group[step % len(group)]] = None
        return list(examples)

    def score(self, wanted: Wanted, *, kept: int | None = None) -> list[Candidate]:
        """Score candidates on their examples, and return those that were scored.

        These are the first ones if time or money is up, or calls are `kept` for others.

        Raises:
            RuntimeError: If more than half of the first examples ran for no candidate, or something is down.
        """
        if kept is not None:
            wanted = self.scorer.affordable(wanted, kept=kept)
        self._under_way = wanted
        rows = self.scorer.cells(wanted)
        new = [cell for ordering, row in rows.items() for cell in list(row.values())[self.num_asked(ordering) :]]
        # If several candidates fail, or all so far, the order is not the reason.
        is_outage = len(rows) > 1 or not _answered(self.scorer.known_cells(self.asked).values())
        if is_outage and len(new) >= MIN_FAILURES and all(cell.outcome == FAILED for cell in new):
            raise self.scorer.nothing_ran(new)
        if not self.asked:
            self._check_first(rows, new)
        self.asked |= {ordering: list(row) for ordering, row in rows.items()}
        return list(rows)

    def _check_first(self, rows: Cells, new: Sequence[CallRecord]) -> None:
        """Warn of examples that ran for no candidate of the first round; raise if they are more than half."""
        tried = {example for row in rows.values() for example in row}
        num_lost = len(tried - _answered(rows.values()))
        if 2 * num_lost <= len(tried):
            if num_lost:
                logger.warning(
                    "%d of %d train examples ran for no order so far: they are left out", num_lost, len(tried)
                )
            return
        self.scorer.log.repeat_failed()
        problem = f"only {len(tried) - num_lost} of {len(tried)} train examples ran for any order"
        errors = [cell.error for cell in new if cell.outcome == FAILED]
        cause = main_cause(errors)
        if cause is not None:
            raise RuntimeError(f"{problem} ({errors[0]}): {cause.cure}, and compile again (with log_dir, from here)")
        raise RuntimeError(
            f"{problem}: mend the program, the metric or what they call, and compile again (with log_dir, from here; "
            "where the code of the program or the metric is another, with a new log_dir)"
        )

    def salvage(self) -> list[Candidate]:
        """Keep the candidates of an interrupted round that were scored on all examples; costs nothing."""
        known = self.scorer.known_cells(self._under_way)
        complete = {}
        for ordering, row in known.items():
            if row and len(row) == len(self._under_way[ordering]):
                complete[ordering] = list(row)
        self.asked |= complete
        return list(complete)

    def scores(self) -> dict[Candidate, dict[int, float]]:
        """Return the scores of all candidates by example; costs nothing."""
        rows = self.scorer.known_cells(self.asked)
        ran = _answered(rows.values())
        worst = _worst_score(rows.values())
        scores = {}
        for ordering, row in rows.items():
            # Examples that ran for no candidate do not count, unless a candidate has no others.
            counted = ran & row.keys() or row.keys()
            if ordering == self.favoured:
                counted = _answered([row]) or counted
            if counted:
                scores[ordering] = {
                    example: _score_or(cell, worst) for example, cell in row.items() if example in counted
                }
        return scores


def _answered(rows: Iterable[Mapping[int, CallRecord]]) -> set[int]:
    """Return the examples with a call that ended with an answer."""
    return {example for row in rows for example, cell in row.items() if cell.outcome != FAILED}


def _worst_score(rows: Iterable[Mapping[int, CallRecord]]) -> float:
    """Return the worst score, at most 0."""
    return min([0.0, *(cell.score for row in rows for cell in row.values() if cell.score is not None)])


def _score_or(cell: CallRecord, score: float) -> float:
    """Return the score of a cell, or another one if it has none."""
    return score if cell.score is None else cell.score
