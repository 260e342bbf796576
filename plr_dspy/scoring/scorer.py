"""Scores orderings on examples, ordering by ordering, so that a server's prefix cache stays warm."""

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

MIN_FAILURES = 8  # so many calls in one round of several orderings, all of them failed, say that something is down
MIN_TRIES = 3  # failed calls, and no other, after which an example is given up
FIRST_OF_PROGRAM = 4  # fewest examples of the first look at a whole program: nothing else tells of its score
Wanted = dict[Candidate, list[int]]  # orderings with the examples that each is to have been scored on


class Payer(Protocol):
    """Makes program calls: the budget lets them begin, and the log gets the cell of each when it has ended."""

    log: RunLog
    budget: Budget

    def fingerprint(self, ordering: Candidate, example: int | None) -> str:
        """What identifies the prompt that the ordering renders to; of a whole program, on an example."""

    def pay(self, cells: Mapping[CallKey, Candidate | None]) -> None:
        """Make the calls of these cells, none of which has been paid, as long as the budget lets them begin."""


class NothingRan(RuntimeError):
    """All calls failed."""


@dataclass
class CellScorer:
    """Scores orderings; no call that has ended with an answer is made twice for a cell (prompt and example).

    A call counts for the phase that asks for it first. Calls that the log holds are taken from there, and count alike:
    so a run that goes on from a log takes the course that it would have taken without a stop.
    """

    payer: Payer
    bootstrapped: Iterable[tuple[str, Any]] = field(default=(), kw_only=True)  # cells that made demos, asked for before
    influence: ConfusionScores | None = field(default=None, kw_only=True)  # scores labels, if the metric is over a set

    def __post_init__(self) -> None:
        self.log, self.budget, self.phase = self.payer.log, self.payer.budget, "search"
        self._fingerprints: dict[tuple[Candidate, int | None], str] = {}
        self._asked: dict[CallKey, str] = dict.fromkeys(self.bootstrapped, "bootstrap")
        self._asked_of: dict[Candidate, dict[int, None]] = {}  # by ordering its examples, a set that keeps its order

    def key(self, ordering: Candidate, example: int) -> CallKey:
        """The cell of an ordering on an example; orderings that show it the same prompt share it."""
        asked = ordering, example if isinstance(ordering, WholeProgram) else None
        if asked not in self._fingerprints:
            self._fingerprints[asked] = self.payer.fingerprint(*asked)
        return self._fingerprints[asked], example

    def num_cells(self, phase: str = "") -> int:
        """Cells that this phase was the first to ask for; without a name, all that were asked for."""
        return sum(each == phase for each in self._asked.values()) if phase else len(self._asked)

    def affordable(self, wanted: Wanted, *, kept: int = 0) -> Wanted:
        """Return the first of these orderings that the budget has calls for on these examples, apart from those kept.

        Calls that the log holds count, as those of this run.
        """
        new: set[CallKey] = set()
        affordable: Wanted = {}
        for ordering, examples in wanted.items():
            new |= {self.key(ordering, example) for example in examples} - self.log.records.keys()
            if new and self.log.num_calls + len(new) + kept > self.budget.max_calls:
                break
            affordable[ordering] = examples
        return affordable

    def cells(self, wanted: Mapping[Candidate, Sequence[int]]) -> dict[Candidate, dict[int, CallRecord]]:
        """Cells by example of these orderings; when time or money is up, of the first that could be scored whole.

        Cells that are known cost nothing. A RuntimeError where new ones would exceed the budget's calls; exceptions of
        the program or the metric come as the payer lets them out.
        """
        asked: dict[CallKey, Candidate] = {}
        for ordering, examples in wanted.items():
            self._asked_of.setdefault(ordering, {}).update(dict.fromkeys(examples))
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
        finally:  # calls that were not made, for want of time or money, count for no phase
            paid = [key for key in asked if key in self.log.records]
            self._asked = {**dict.fromkeys(paid, self.phase), **self._asked}
        known = self.known_cells(wanted)
        whole = itertools.takewhile(lambda ordering: len(known[ordering]) == len(set(wanted[ordering])), known)
        return {ordering: known[ordering] for ordering in whole}

    def known_cells(self, wanted: Mapping[Candidate, Sequence[int]]) -> dict[Candidate, dict[int, CallRecord]]:
        """The cells of these orderings and examples that have been paid; costs nothing."""
        cells = self.log.records
        return {
            ordering: {e: self._read(e, cells[key]) for e in examples if (key := self.key(ordering, e)) in cells}
            for ordering, examples in wanted.items()
        }

    def _read(self, example: int, cell: CallRecord) -> CallRecord:
        """A cell with its score, which of a metric over a set depends on the reference."""
        if self.influence is None or cell.outcome == FAILED:
            return cell
        if not (cell.outcome or isinstance(cell.value, str)):
            raise UserError("log_dir holds calls of another metric, without the answered labels: pass another log_dir")
        return replace(cell, score=self.influence.score(example, cell.value))

    def answers(self, ordering: Candidate, labels: Mapping[int, int]) -> dict[int, str | None]:
        """Return the labels that an ordering answers, by example; on some examples those given by number."""
        assert self.influence is not None
        answers = {e: cell.value for e, cell in self.cells_of(ordering).items() if cell.outcome != FAILED}
        for example in answers.keys() & labels.keys():
            answers[example] = self.influence.labels[labels[example]]
        return answers

    def linearize_at(self, orderings: Iterable[tuple[Candidate, Mapping[int, int]]], *, least: int = 1) -> None:
        """Score cells by a metric over a set near the answers of these orderings, each with its calibrated labels.

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
        """The paid cells of an ordering that were asked for, by example, as the log has them."""
        keys = {e: self.key(ordering, e) for e in self._asked_of.get(ordering, ())}
        return {e: self.log.records[key] for e, key in keys.items() if key in self.log.records}

    def cells_asked(self) -> dict[CallKey, CallRecord]:
        """The paid cells that were asked for, by prompt and example."""
        return {key: self.log.records[key] for key in self._asked if key in self.log.records}

    def table(
        self, orderings: Sequence[Candidate], examples: Sequence[int], *, favoured: int | None = None
    ) -> tuple[list[int], list[list[float]]]:
        """The examples that ran for any of the orderings, and a row of scores on them for each ordering, as `cells`.

        An answer that cannot be parsed, or a call that failed for some orderings alone, counts as the worst score seen
        on these examples, and as 0 at most. Failed calls of the `favoured` ordering, given by its number, count as the
        best score that any got on the example, so that none beats it by its bad luck. `NothingRan` if no call did.
        """
        known = self.cells(dict.fromkeys(orderings, examples))
        cells = [known[ordering] for ordering in itertools.takewhile(known.__contains__, orderings)]
        ran = [e for e in examples if any(row[e].outcome != FAILED for row in cells)]
        if cells and not ran:
            raise self.nothing_ran([cell for row in known.values() for cell in row.values()])
        worst = min([0.0, *(cell.score for row in cells for cell in row.values() if cell.score is not None)])
        rows = [[worst if (score := row[e].score) is None else score for e in ran] for row in cells]
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
        told = f"{failed[0].error}: {failed[0].message}"
        return NothingRan(f"none of {len(cells)} calls ended with an answer ({told}): {cure}, and compile again")


@dataclass(kw_only=True)
class StagedScores:
    """Scores of orderings that begin at different examples, so that a search learns about the whole train split.

    An ordering is scored on a few examples at first, and on further ones each time that it is asked for again. An
    answer that cannot be parsed counts as the worst score seen (0 unless the metric goes below), but to a metric over a
    set as one without a label. A call that failed counts as the worst, unless the example failed for all orderings.
    """

    scorer: CellScorer = field(kw_only=False)  # of the train split followed by others
    num_train: int
    num_first: int  # examples of an ordering's first score
    num_more: int  # and of each further one
    favoured: Candidate | None = None  # its failed calls count for nothing
    shifted: bool = False  # whether orderings begin an example later each time that the split has been gone through
    strata: Sequence[Sequence[int]] = ()  # from which orderings are scored by turns, however many there are of each

    def __post_init__(self) -> None:
        self._strata = [list(group) for group in self.strata] or [list(range(self.num_train))]
        # Else two groups of orderings might meet two groups of examples, whose effects nobody could tell apart. Where
        # the split is no multiple of a first look, orderings begin elsewhere the next time anyway.
        self._shifted = self.shifted and self.num_train % self.num_first == 0
        self.asked: Wanted = {}  # all orderings, with the examples that each has been scored on
        self._under_way: Wanted = {}

    def num_asked(self, ordering: Candidate) -> int:
        """Examples that the ordering has been scored on."""
        return len(self.asked.get(ordering, []))

    def wanted(self, orderings: Sequence[Candidate], num_examples: int | None = None) -> Wanted:
        """The examples that each ordering is to be scored on next, earlier ones included: so many in all, or without a
        number those of a first score, or of a further one."""
        found, num_seen, strata = {}, len(self.asked), self._strata
        ran = _ran(self.scorer.known_cells(self.asked).values())
        failed = Counter(e for asked in self.asked.values() for e in asked if e not in ran)
        given_up = {example for example, count in failed.items() if count >= MIN_TRIES}
        for ordering in dict.fromkeys(orderings):
            asked = self.asked.get(ordering, [])
            place = num_seen * self.num_first
            place += self._shifted * (place // self.num_train)
            num_seen += not asked
            if asked:  # The turn begins with the example that it began with.
                number = next(number for number, group in enumerate(strata) if asked[0] in group)
                place = number + len(strata) * strata[number].index(asked[0])
            least = FIRST_OF_PROGRAM if isinstance(ordering, WholeProgram) and not asked else 0
            more = self.num_more if asked else self.num_first
            count = max(least, more if num_examples is None else num_examples - len(asked))
            taken = {*asked, *given_up}
            steps = (divmod(i, len(strata)) for i in range(place, place + len(strata) * max(map(len, strata))))
            turn = dict.fromkeys(strata[group][step % len(strata[group])] for step, group in steps)
            found[ordering] = [*asked, *itertools.islice((e for e in turn if e not in taken), count)]
        return found

    def score(self, wanted: Wanted, *, kept: int | None = None) -> list[Candidate]:
        """Score orderings on their examples, and return those that were: the first only when time or money is up, or
        calls are `kept` for others.

        A RuntimeError when more than half of the first examples ran for no ordering, or no call of several orderings
        ended with an answer.
        """
        self._under_way = wanted = wanted if kept is None else self.scorer.affordable(wanted, kept=kept)
        rows = self.scorer.cells(wanted)
        new = [cell for o, cells in rows.items() for cell in [*cells.values()][self.num_asked(o) :]]
        several = len(rows) > 1 or not _ran(self.scorer.known_cells(self.asked).values())
        # Then something is down, and it is not the order.
        if several and len(new) >= MIN_FAILURES and all(cell.outcome == FAILED for cell in new):
            raise self.scorer.nothing_ran(new)
        tried = {example for cells in rows.values() for example in cells}
        num_lost = len(tried - _ran(rows.values()))
        if not self.asked and 2 * num_lost > len(tried):
            self.scorer.log.repeat_failed()
            told = f"only {len(tried) - num_lost} of {len(tried)} train examples ran for any order"
            errors = [cell.error for cell in new if cell.outcome == FAILED]
            if (cause := main_cause(errors)) is not None:
                raise RuntimeError(f"{told} ({errors[0]}): {cause.cure}, and compile again (with log_dir, from here)")
            raise RuntimeError(
                f"{told}: mend the program, the metric or what they call, and compile again (with log_dir, from here; "
                "where the code of the program or the metric is another, with a new log_dir)"
            )
        if not self.asked and num_lost:
            logger.warning("%d of %d train examples ran for no order so far: they are left out", num_lost, len(tried))
        self.asked |= {ordering: list(cells) for ordering, cells in rows.items()}
        return list(rows)

    def salvage(self) -> list[Candidate]:
        """Take those orderings of a round that was not ended which were scored whole; costs nothing."""
        known = self.scorer.known_cells(self._under_way)
        whole = {o: list(row) for o, row in known.items() if row and len(row) == len(self._under_way[o])}
        self.asked |= whole
        return list(whole)

    def scores(self) -> dict[Candidate, dict[int, float]]:
        """Scores by example of all orderings; costs nothing."""
        rows, found = self.scorer.known_cells(self.asked), {}
        ran = _ran(rows.values())
        worst = min([0.0, *(c.score for cells in rows.values() for c in cells.values() if c.score is not None)])
        for ordering, cells in rows.items():
            # Those that ran for no ordering count for none, unless the ordering has no others.
            counted = ran & cells.keys() or cells.keys()
            if ordering == self.favoured:
                counted = _ran([cells]) or counted
            if counted:
                found[ordering] = {
                    e: worst if (score := c.score) is None else score for e, c in cells.items() if e in counted
                }
        return found


def _ran(rows: Iterable[Mapping[int, CallRecord]]) -> set[int]:
    """The examples with a call that ended with an answer."""
    return {example for cells in rows for example, cell in cells.items() if cell.outcome != FAILED}
