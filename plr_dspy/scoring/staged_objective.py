"""The objective of the default search: few train examples at first, and more for what promises most."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import Trial
from plr_dspy.scoring.cells import FAILED, Cell
from plr_dspy.scoring.objectives import never_ran
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.loop import num_affordable
from plr_dspy.search.search import as_ordering

MIN_FAILURES = 8
"""So many calls in one round of several orderings, all of them failed, say that something is down."""

MIN_TRIES = 3
"""Failed calls, and no other, after which a racing search gives an example up."""


class RacingExamples:
    """Scores on a few train examples at first, and on further ones each time an ordering is asked for again.

    Orderings begin at different examples, so that the train split is used evenly: what a search learns
    over many orderings is about all of it, not about the few examples that each was scored on.

    Args:
        scorer: Of the train split followed by others.
        num_train: Examples of the split.
        num_first, num_more: Examples of an ordering's first score, and of each further one.
        favoured: An ordering whose failed calls count for nothing; those of others are wrong answers.
        shifted: Whether orderings begin an example later each time that the split has been gone through: then no
            two groups of examples are met by two separate groups of orderings, whose effects nobody could tell apart.

    Attributes:
        deadline: When to stop, by `time.monotonic`.
        max_program_calls: Of the scorer's, past which `extend` does not go; None for no limit.
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
        self.deadline: float | None = None
        self.max_program_calls: int | None = None
        self._scorer = scorer
        self._train = range(num_train)
        self._num_first = num_first
        self._num_more = num_more
        self._favoured = favoured
        # Where a split is no multiple of a first look, orderings begin elsewhere the next time anyway.
        self._shifted = shifted and num_train % num_first == 0
        self._asked: dict[Ordering, list[int]] = {}
        self._wanted: Mapping[Ordering, Sequence[int]] = {}
        self._given_up: set[int] = set()
        # Both of the calls that were asked for, not of all in the ledger: it may hold later ones of an
        # earlier run, and this one is to end like that.
        self._ran: set[int] = set()
        self._worst = 0.0

    @property
    def program_calls(self) -> int:
        """Program calls made on the train split."""
        return self._scorer.ledger.calls(self._train)

    @property
    def num_first(self) -> int:
        """Examples of an ordering's first score."""
        return self._num_first

    def num_asked(self, ordering: Ordering) -> int:
        """Examples that the ordering has been scored on."""
        return len(self._asked.get(ordering, []))

    def cost(self, orderings: Sequence[Ordering]) -> int:
        """Program calls that scoring these orderings on their next examples would make."""
        return self._scorer.cost_each(self._next(orderings))

    def __call__(self, orderings: Sequence[Ordering]) -> list[Trial]:
        """Score orderings on their next examples; fewer trials than orderings when the time is up."""
        return self._score(self._next(orderings))

    def extend(self, orderings: Sequence[Ordering], num_examples: int) -> list[Trial]:
        """Score each ordering on so many examples in all, or on all there are.

        Returns:
            Trials of the first orderings only, when the time or the calls are up.
        """
        standing = self._standing(orderings)
        wanted = {o: self._following(num_examples - len(a), a, start) for o, a, start in standing}
        if self.max_program_calls is not None:
            left = self.max_program_calls - self._scorer.program_calls
            count = num_affordable(
                list(wanted), lambda some: self._scorer.cost_each({o: wanted[o] for o in some}), left
            )
            wanted = dict(itertools.islice(wanted.items(), count))
        return self._score(wanted)

    def scores(self) -> dict[Ordering, dict[int, float]]:
        """Scores by example of all orderings; costs nothing."""
        return {
            ordering: row for ordering, cells in self._paid_cells() if (row := self._row(ordering, cells))
        }

    def state_dict(self) -> dict[str, Any]:
        """What decides how it goes on, as JSON data."""
        return {"asked": list(self._asked.items()), "given_up": sorted(self._given_up)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._asked = {as_ordering(ordering): list(map(int, asked)) for ordering, asked in state["asked"]}
        self._given_up = set(map(int, state["given_up"]))
        self._ran, self._worst = set(), 0.0
        for _, cells in self._paid_cells():
            self._note(cells)

    def _next(self, orderings: Sequence[Ordering]) -> dict[Ordering, list[int]]:
        return {
            ordering: self._following(self._num_more if asked else self._num_first, asked, start)
            for ordering, asked, start in self._standing(orderings)
        }

    def _standing(self, orderings: Sequence[Ordering]) -> list[tuple[Ordering, list[int], int]]:
        """Each ordering with the examples it has been scored on and the one it begins with."""
        standing, num_seen = [], len(self._asked)
        for ordering in dict.fromkeys(orderings):
            asked = self._asked.get(ordering, [])
            start = num_seen * self._num_first
            start += start // len(self._train) if self._shifted else 0
            standing.append((ordering, asked, asked[0] if asked else start))
            num_seen += not asked
        return standing

    def _following(self, count: int, asked: list[int], start: int) -> list[int]:
        """The examples scored on and, from the start on, the next so many."""
        turn = ((start + step) % len(self._train) for step in range(len(self._train)))
        taken = {*asked, *self._given_up}
        return [*asked, *[example for example in turn if example not in taken][: max(0, count)]]

    def salvage(self) -> list[Trial]:
        """Trials of a round that was not ended, of those of its orderings that were scored whole; costs nothing."""
        rows = self._scorer.paid_each(self._wanted)
        for cells in rows.values():
            self._note(cells)
        return self._trials(rows)

    def _score(self, wanted: Mapping[Ordering, Sequence[int]]) -> list[Trial]:
        self._wanted = wanted
        rows = dict(zip(wanted, self._scorer.cells_each(wanted, deadline=self.deadline), strict=False))
        self._check_that_some_ran(rows)
        if rows and not self._asked:
            tried = {example for cells in rows.values() for example in cells}
            never_ran(self._scorer, tried, {e for cells in rows.values() for e in _ran(cells)})
        for ordering, cells in rows.items():
            self._asked[ordering] = list(cells)
            self._note(cells)
        failed = Counter(e for asked in self._asked.values() for e in asked if e not in self._ran)
        self._given_up = {example for example, count in failed.items() if count >= MIN_TRIES}
        return self._trials(rows)

    def _trials(self, rows: Mapping[Ordering, Mapping[int, Cell]]) -> list[Trial]:
        scores = {ordering: self._row(ordering, cells) for ordering, cells in rows.items()}
        return [
            Trial(ordering, math.fsum(row.values()) / len(row), len(row), tuple(row.items()))
            for ordering, row in scores.items()
        ]

    def _check_that_some_ran(self, rows: Mapping[Ordering, Mapping[int, Cell]]) -> None:
        """Refuse a round of several orderings without an answer: something is down, and it is not the order."""
        asked = {ordering: set(self._asked.get(ordering, ())) for ordering in rows}
        new = [cell for o, cells in rows.items() for e, cell in cells.items() if e not in asked[o]]
        several = len(rows) > 1 or not self._ran
        if several and len(new) >= MIN_FAILURES and all(cell.outcome == FAILED for cell in new):
            raise self._scorer.nothing_ran(new, len(rows))

    def _note(self, cells: Mapping[int, Cell]) -> None:
        self._ran |= _ran(cells)
        self._worst = min([self._worst, *(cell.score for cell in cells.values() if cell.score is not None)])

    def _row(self, ordering: Ordering, cells: Mapping[int, Cell]) -> dict[int, float]:
        """Scores by example: the worst seen for calls without one.

        Examples that ran for no ordering count for none, unless the ordering has no others.
        """
        counted = self._ran & cells.keys() or cells.keys()
        if ordering == self._favoured:
            counted = _ran(cells) or counted
        return {
            example: self._worst if cell.score is None else cell.score
            for example, cell in cells.items()
            if example in counted
        }

    def _paid_cells(self) -> Iterator[tuple[Ordering, dict[int, Cell]]]:
        """The cells of all orderings, without those that the ledger has lost."""
        for ordering, asked in self._asked.items():
            paid = [example for example in asked if self._scorer.is_paid(ordering, example)]
            yield ordering, {example: self._scorer.cell(ordering, example) for example in paid}


def _ran(cells: Mapping[int, Cell]) -> set[int]:
    return {example for example, cell in cells.items() if cell.outcome != FAILED}
