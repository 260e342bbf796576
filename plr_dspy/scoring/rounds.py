"""Which examples score an ordering: a few at first, and further ones each time that it is asked for again."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from plr_dspy.scoring.cells import FAILED, Cell
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.space import Ordering

logger = logging.getLogger(__name__)

MIN_FAILURES = 8
"""So many calls in one round of several orderings, all of them failed, say that something is down."""

MIN_TRIES = 3
"""Failed calls, and no other, after which an example is given up."""

Wanted = dict[Ordering, list[int]]
"""Orderings with the examples that each is to have been scored on."""


class StagedScores:
    """Scores of orderings that begin at different examples, so that the train split is used evenly.

    What a search learns over many orderings is then about all of the split, not about the few examples that each was
    scored on. An answer that cannot be parsed counts as the worst score seen (0 unless the metric goes below). So does
    a call that failed, unless it failed for all orderings: then the example counts for none. No ordering can win
    because its hard examples were lost.

    Args:
        scorer: Of the train split followed by others.
        num_train: Examples of the split.
        num_first, num_more: Examples of an ordering's first score, and of each further one.
        favoured: An ordering whose failed calls count for nothing.
        shifted: Whether orderings begin an example later each time that the split has been gone through: then no
            two groups of examples are met by two separate groups of orderings, whose effects nobody could tell apart.
    """

    def __init__(
        self,
        scorer: CellScorer,
        *,
        num_train: int,
        num_first: int,
        num_more: int,
        favoured: Ordering | None = None,
        shifted: bool = False,
    ) -> None:
        self.num_first, self._num_more, self._num_train = num_first, num_more, num_train
        self._scorer, self._favoured = scorer, favoured
        # Where a split is no multiple of a first look, orderings begin elsewhere the next time anyway.
        self._shifted = shifted and num_train % num_first == 0
        self._asked: Wanted = {}
        self._under_way: Wanted = {}
        self._given_up: set[int] = set()
        self._ran: set[int] = set()
        self._worst = 0.0

    def num_asked(self, ordering: Ordering) -> int:
        """Examples that the ordering has been scored on."""
        return len(self._asked.get(ordering, []))

    def wanted(self, orderings: Sequence[Ordering], num_examples: int | None = None) -> Wanted:
        """The examples that each ordering is to be scored on next, those that it was scored on before included.

        That is so many examples in all, or without a number those of a first score, or of a further one.
        """
        found, num_seen = {}, len(self._asked)
        for ordering in dict.fromkeys(orderings):
            asked = self._asked.get(ordering, [])
            start = num_seen * self.num_first
            start = asked[0] if asked else start + self._shifted * (start // self._num_train)
            num_seen += not asked
            more = self._num_more if asked else self.num_first
            count = more if num_examples is None else max(0, num_examples - len(asked))
            turn = ((start + step) % self._num_train for step in range(self._num_train))
            taken = {*asked, *self._given_up}
            found[ordering] = [*asked, *[example for example in turn if example not in taken][:count]]
        return found

    def score(self, wanted: Wanted) -> dict[Ordering, dict[int, float]]:
        """Score orderings, and return scores by example; of the first ones only when time or money is up.

        Raises:
            RuntimeError: when more than half of the first examples ran for no ordering, or no call of several
                orderings ended with an answer.
        """
        self._under_way = wanted
        rows = self._scorer.cells(wanted)
        asked = {ordering: set(self._asked.get(ordering, ())) for ordering in rows}
        new = [cell for o, cells in rows.items() for e, cell in cells.items() if e not in asked[o]]
        several = len(rows) > 1 or not self._ran
        # Then something is down, and it is not the order.
        if several and len(new) >= MIN_FAILURES and all(cell.outcome == FAILED for cell in new):
            raise self._scorer.nothing_ran(new, len(rows))
        if rows and not self._asked:
            self._check_first(rows)
        return self._take(rows)

    def salvage(self) -> dict[Ordering, dict[int, float]]:
        """Scores of those orderings of a round that was not ended which were scored whole; costs nothing."""
        known = self._scorer.known_cells(self._under_way)
        return self._take({o: row for o, row in known.items() if row and len(row) == len(self._under_way[o])})

    def scores(self) -> dict[Ordering, dict[int, float]]:
        """Scores by example of all orderings; costs nothing."""
        rows = self._scorer.known_cells(self._asked)
        return {ordering: found for ordering, cells in rows.items() if (found := self._row(ordering, cells))}

    def _take(self, rows: Mapping[Ordering, dict[int, Cell]]) -> dict[Ordering, dict[int, float]]:
        """Note the cells of orderings, and return their scores."""
        for ordering, cells in rows.items():
            self._asked[ordering] = list(cells)
            self._ran |= _ran(cells)
            self._worst = min([self._worst, *(c.score for c in cells.values() if c.score is not None)])
        failed = Counter(e for asked in self._asked.values() for e in asked if e not in self._ran)
        self._given_up = {example for example, count in failed.items() if count >= MIN_TRIES}
        return {ordering: self._row(ordering, cells) for ordering, cells in rows.items()}

    def _check_first(self, rows: Mapping[Ordering, Mapping[int, Cell]]) -> None:
        """Refuse first examples of which more than half ran for no ordering; warn of fewer."""
        tried = {example for cells in rows.values() for example in cells}
        num_lost = len(tried - {e for cells in rows.values() for e in _ran(cells)})
        if 2 * num_lost > len(tried):
            self._scorer.ledger.retry()
            raise RuntimeError(
                f"only {len(tried) - num_lost} of {len(tried)} train examples ran for any order: mend the "
                "program, the metric or what they call, and compile again (with log_dir, from here; where the code of "
                "the program or the metric is another, with a new log_dir)"
            )
        if num_lost:
            logger.warning(
                "%d of %d train examples ran for no order so far: they are left out", num_lost, len(tried)
            )

    def _row(self, ordering: Ordering, cells: Mapping[int, Cell]) -> dict[int, float]:
        """Scores by example; those that ran for no ordering count for none, unless the ordering has no others."""
        counted = self._ran & cells.keys() or cells.keys()
        if ordering == self._favoured:
            counted = _ran(cells) or counted
        return {e: self._worst if c.score is None else c.score for e, c in cells.items() if e in counted}


def _ran(cells: Mapping[int, Cell]) -> set[int]:
    """The examples whose call ended with an answer."""
    return {example for example, cell in cells.items() if cell.outcome != FAILED}
