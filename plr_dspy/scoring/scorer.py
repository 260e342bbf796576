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
from plr_dspy.scoring.influence import Influence
from plr_dspy.scoring.ledger import FAILED, Cell, CellKey, Ledger
from plr_dspy.search.space import Ordering, is_rule

logger = logging.getLogger(__name__)

MIN_FAILURES = 8  # so many calls in one round of several orderings, all of them failed, say that something is down
MIN_TRIES = 3  # failed calls, and no other, after which an example is given up
FIRST_OF_RULE = 4  # fewest examples of the first look at a rule: its log-probabilities on two do not tell nearly all
Wanted = dict[Ordering, list[int]]  # orderings with the examples that each is to have been scored on


class Payer(Protocol):
    """Makes program calls: the budget lets them begin, and the ledger gets the cell of each when it has ended."""

    ledger: Ledger
    budget: Budget

    def fingerprint(self, ordering: Ordering, example: int | None) -> str:
        """What identifies the prompt that the ordering renders to; of a rule, on an example."""

    def pay(self, cells: Mapping[CellKey, Ordering | None]) -> None:
        """Make the calls of these cells, none of which has been paid, as long as the budget lets them begin."""


class NothingRan(RuntimeError):
    """All calls failed."""


@dataclass
class CellScorer:
    """Scores orderings; no call that has ended with an answer is made twice for a cell (prompt and example).

    A cell counts for the phase that asks for it first, whether it is paid for then or was by an earlier part of the
    compile: so a compile that goes on from a ledger takes the course that it would have taken without a stop.
    """

    payer: Payer
    bootstrapped: Iterable[tuple[str, Any]] = field(default=(), kw_only=True)  # cells that made demos, asked for before
    influence: Influence | None = field(default=None, kw_only=True)  # scores outputs, where the metric is over a set

    def __post_init__(self) -> None:
        self.ledger, self.budget, self.phase = self.payer.ledger, self.payer.budget, "search"
        self._fingerprints: dict[tuple[Ordering, int | None], str] = {}
        self._asked: dict[CellKey, str] = dict.fromkeys(self.bootstrapped, "bootstrap")
        self._asked_of: dict[Ordering, dict[int, None]] = {}  # by ordering its examples, a set that keeps its order

    def key(self, ordering: Ordering, example: int) -> CellKey:
        """The cell of an ordering on an example; orderings that show it the same prompt share it."""
        asked = ordering, example if is_rule(ordering) else None
        if asked not in self._fingerprints:
            self._fingerprints[asked] = self.payer.fingerprint(*asked)
        return self._fingerprints[asked], example

    def num_cells(self, phase: str = "") -> int:
        """Cells that this phase was the first to ask for; without a name, all that were asked for."""
        return sum(each == phase for each in self._asked.values()) if phase else len(self._asked)

    def ask_again(self, wanted: Iterable[tuple[Ordering, Iterable[int]]]) -> None:
        """Make the calls of these that an earlier part made, and which failed for a reason outside the program.

        Those that time or money no longer pay for stay as they were, since rounds were decided on them.
        """
        if not self.ledger.failed_outside:
            return
        asked = {self.key(ordering, example): ordering for ordering, examples in wanted for example in examples}
        again = {key: ordering for key, ordering in asked.items() if self.ledger.is_asked_again(key)}
        if again:
            self.payer.pay(again)
            self.ledger.keep_failed(again)

    def affordable(self, wanted: Wanted, *, kept: int = 0) -> Wanted:
        """The first of these orderings that the budget pays for on these examples, with so many calls kept for what
        follows."""
        most, new, unpaid, found = self.budget.max_calls, set[CellKey](), set[CellKey](), Wanted()
        for ordering, examples in wanted.items():
            keys = {self.key(ordering, example) for example in examples}
            new |= keys - self._asked.keys()
            unpaid |= keys - self.ledger.cells.keys()
            within_plan = not new or self.num_cells() + len(new) + kept <= min(most, self.budget.planned)
            if not within_plan or (unpaid and len(self.ledger.paid) + len(unpaid) + kept > most):
                break
            found[ordering] = examples
        return found

    def cells(self, wanted: Mapping[Ordering, Sequence[int]]) -> dict[Ordering, dict[int, Cell]]:
        """Cells by example of these orderings; when time or money is up, of the first that could be scored whole.

        Cells that are known cost nothing. A RuntimeError where others would exceed the budget's calls; exceptions of
        the program or the metric come as the payer lets them out.
        """
        asked: dict[CellKey, Ordering] = {}
        for ordering, examples in wanted.items():
            self._asked_of.setdefault(ordering, {}).update(dict.fromkeys(examples))
            for example in examples:
                asked.setdefault(self.key(ordering, example), ordering)
        unpaid = {key: ordering for key, ordering in asked.items() if key not in self.ledger.cells}
        if unpaid and len(self.ledger.paid) + len(unpaid) > (limit := self.budget.max_calls):
            cure = ": raise it, or pass another log_dir" if self.ledger.num_resumed else ""
            raise RuntimeError(
                f"{len(unpaid)} program calls more would exceed max_metric_calls={limit} "
                f"({len(self.ledger.paid)} made){cure}"
            )
        try:
            if unpaid:
                self.payer.pay(unpaid)
        finally:  # calls that were not made, for want of time or money, count for no phase
            paid = [key for key in asked if key in self.ledger.cells]
            self._asked = {**dict.fromkeys(paid, self.phase), **self._asked}
        known = self.known_cells(wanted)
        whole = itertools.takewhile(lambda ordering: len(known[ordering]) == len(set(wanted[ordering])), known)
        return {ordering: known[ordering] for ordering in whole}

    def known_cells(self, wanted: Mapping[Ordering, Sequence[int]]) -> dict[Ordering, dict[int, Cell]]:
        """The cells of these orderings and examples that have been paid; costs nothing."""
        cells = self.ledger.cells
        return {
            ordering: {e: self._read(e, cells[key]) for e in examples if (key := self.key(ordering, e)) in cells}
            for ordering, examples in wanted.items()
        }

    def _read(self, example: int, cell: Cell) -> Cell:
        """A cell with its score, which of a metric over a set depends on the reference."""
        if self.influence is None or cell.outcome == FAILED:
            return cell
        if not (cell.outcome or isinstance(cell.value, self.influence.kind)):
            raise UserError(
                "log_dir holds calls of another metric, which did not keep the outputs that this one reads: pass "
                "another log_dir"
            )
        return replace(cell, score=self.influence.score(example, cell.value))

    def outputs(self, ordering: Ordering, labels: Mapping[int, int]) -> dict[int, Any]:
        """What a metric over a set reads of an ordering's answers, by example: of some examples, of given labels."""
        assert self.influence is not None
        found = {e: cell.value for e, cell in self.cells_of(ordering).items() if cell.outcome != FAILED}
        return found | {e: self.influence.of_labels[e][labels[e]] for e in found.keys() & labels.keys()}

    def refer(self, orderings: Iterable[tuple[Ordering, Mapping[int, int]]], *, least: int = 1) -> None:
        """Score cells by a metric over a set near what these orderings answer, each with the labels that calibration
        makes of its answers: so many first ones at least, and as many as a reference takes."""
        assert self.influence is not None
        answered: list[tuple[int, Any]] = []
        for number, (ordering, labels) in enumerate(orderings):
            if number >= least and self.influence.is_enough(answered):
                break
            answered += self.outputs(ordering, labels).items()
        self.influence.refer(answered)

    def cells_of(self, ordering: Ordering) -> dict[int, Cell]:
        """The paid cells of an ordering that were asked for, by example, as the ledger has them."""
        keys = {e: self.key(ordering, e) for e in self._asked_of.get(ordering, ())}
        return {e: self.ledger.cells[key] for e, key in keys.items() if key in self.ledger.cells}

    def cells_asked(self) -> dict[CellKey, Cell]:
        """The paid cells that were asked for, by prompt and example."""
        return {key: self.ledger.cells[key] for key in self._asked if key in self.ledger.cells}

    def table(
        self, orderings: Sequence[Ordering], examples: Sequence[int], *, favoured: int | None = None
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

    def nothing_ran(self, cells: Sequence[Cell]) -> NothingRan:
        """The error that ends a compile whose calls all failed; they may be made again by a later part."""
        self.ledger.retry()
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
    favoured: Ordering | None = None  # its failed calls count for nothing
    shifted: bool = False  # whether orderings begin an example later each time that the split has been gone through
    strata: Sequence[Sequence[int]] = ()  # from which orderings are scored by turns, however many there are of each

    def __post_init__(self) -> None:
        self._strata = [list(group) for group in self.strata] or [list(range(self.num_train))]
        # Else two groups of orderings might meet two groups of examples, whose effects nobody could tell apart. Where
        # the split is no multiple of a first look, orderings begin elsewhere the next time anyway.
        self._shifted = self.shifted and self.num_train % self.num_first == 0
        self.asked: Wanted = {}  # all orderings, with the examples that each has been scored on
        self._under_way: Wanted = {}

    def num_asked(self, ordering: Ordering) -> int:
        """Examples that the ordering has been scored on."""
        return len(self.asked.get(ordering, []))

    def wanted(self, orderings: Sequence[Ordering], num_examples: int | None = None) -> Wanted:
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
            least = FIRST_OF_RULE if is_rule(ordering) and not asked else 0
            more = self.num_more if asked else self.num_first
            count = max(least, more if num_examples is None else num_examples - len(asked))
            taken = {*asked, *given_up}
            steps = (divmod(i, len(strata)) for i in range(place, place + len(strata) * max(map(len, strata))))
            turn = dict.fromkeys(strata[group][step % len(strata[group])] for step, group in steps)
            found[ordering] = [*asked, *itertools.islice((e for e in turn if e not in taken), count)]
        return found

    def score(self, wanted: Wanted, *, kept: int | None = None) -> list[Ordering]:
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
            self.scorer.ledger.retry()
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

    def salvage(self) -> list[Ordering]:
        """Take those orderings of a round that was not ended which were scored whole; costs nothing."""
        known = self.scorer.known_cells(self._under_way)
        whole = {o: list(row) for o, row in known.items() if row and len(row) == len(self._under_way[o])}
        self.asked |= whole
        return list(whole)

    def scores(self) -> dict[Ordering, dict[int, float]]:
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


def _ran(rows: Iterable[Mapping[int, Cell]]) -> set[int]:
    """The examples with a call that ended with an answer."""
    return {example for cells in rows for example, cell in cells.items() if cell.outcome != FAILED}
