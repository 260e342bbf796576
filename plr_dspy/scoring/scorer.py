"""Scores orderings on examples, ordering by ordering, so that a server's prefix cache stays warm; knows no DSPy."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from plr_dspy.scoring.budget import Budget
from plr_dspy.scoring.cells import FAILED, Cell, CellKey
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.search.space import Ordering


class Payer(Protocol):
    """Makes program calls: the budget lets them begin, and the ledger gets the cell of each when it has ended."""

    ledger: Ledger
    budget: Budget

    def fingerprint(self, ordering: Ordering) -> str:
        """What identifies the prompt that the ordering renders to."""

    def pay(self, keys: Sequence[CellKey], orderings: Mapping[str, Ordering]) -> None:
        """Make the calls of these cells, in this order, as long as the budget lets them begin.

        None of them has been paid, and there is an ordering for each fingerprint among them.
        """


class NothingRan(RuntimeError):
    """All calls failed."""


class CellScorer:
    """Scores orderings; no cell (prompt and example) is paid twice.

    A cell counts for the phase that asks for it first, whether it is paid for then or was by an earlier part of the
    compile: so a compile that goes on from a ledger takes the course that it would have taken without a stop.

    Args:
        payer: Makes the calls.
        earlier: Cells that were asked for before.
    """

    def __init__(self, payer: Payer, *, earlier: Iterable[tuple[str, Any]] = ()) -> None:
        self.ledger, self.budget = payer.ledger, payer.budget
        self.phase = "search"
        self._payer = payer
        self._fingerprints: dict[Ordering, str] = {}
        self._asked: dict[CellKey, str] = dict.fromkeys(earlier, "bootstrap")

    def calls(self, *phases: str) -> int:
        """Cells that these phases were the first to ask for; all of them without names."""
        counts = Counter(self._asked.values())
        return sum(counts[phase] for phase in phases or counts)

    def fits(self, wanted: Mapping[Ordering, Sequence[int]], *, kept: int = 0) -> bool:
        """Whether the budget pays for these orderings on these examples, with so many calls kept for what follows."""
        keys = {(self.fingerprint(ordering), e) for ordering, examples in wanted.items() for e in examples}
        new, unpaid = len(keys - self._asked.keys()), len(keys - self.ledger.cells.keys())
        limit = self.budget.limit - kept
        return (not new or self.calls() + new <= limit) and (
            not unpaid or self.budget.calls + unpaid <= limit
        )

    def affordable(self, wanted: Mapping[Ordering, list[int]], *, kept: int = 0) -> dict[Ordering, list[int]]:
        """The first of these orderings that the budget pays for."""
        items = list(wanted.items())
        counts = range(1, len(items) + 1)
        most = bisect_left(counts, True, key=lambda count: not self.fits(dict(items[:count]), kept=kept))
        return dict(items[:most])

    def cells(self, wanted: Mapping[Ordering, Sequence[int]]) -> dict[Ordering, dict[int, Cell]]:
        """Score orderings on their examples; cells that are known cost nothing.

        Returns:
            For each ordering that was scored on all of its examples, its cells by example; those of the first
            orderings only, when time or money is up.

        Raises:
            RuntimeError: when this would exceed the budget's calls.
            Exception: of the program or the metric, as the payer lets them out.
        """
        keys = dict.fromkeys((self.fingerprint(o), e) for o, examples in wanted.items() for e in examples)
        unpaid = [key for key in keys if key not in self.ledger.cells]
        if unpaid and self.budget.calls + len(unpaid) > (limit := self.budget.limit):
            raise RuntimeError(
                f"{len(unpaid)} program calls more would exceed max_metric_calls={limit} ({self.budget.calls} made)"
            )
        try:
            if unpaid:
                orderings = {self.fingerprint(ordering): ordering for ordering in reversed(list(wanted))}
                self._payer.pay(unpaid, {name: orderings[name] for name, _ in unpaid})
        finally:  # calls that were not made, for want of time or money, count for no phase
            paid = [key for key in keys if key in self.ledger.cells]
            self._asked = {**dict.fromkeys(paid, self.phase), **self._asked}
        rows = {}
        for ordering, row in self.known_cells(wanted).items():
            if len(row) < len(set(wanted[ordering])):
                break
            rows[ordering] = row
        return rows

    def known_cells(self, wanted: Mapping[Ordering, Sequence[int]]) -> dict[Ordering, dict[int, Cell]]:
        """The cells of these orderings and examples that have been paid; costs nothing."""
        return {
            ordering: {e: self.ledger.cells[name, e] for e in examples if (name, e) in self.ledger.cells}
            for ordering, examples in wanted.items()
            for name in [self.fingerprint(ordering)]
        }

    def cell(self, ordering: Ordering, example: int) -> Cell | None:
        """The outcome of a cell that has been paid; None of others."""
        return self.ledger.cells.get((self.fingerprint(ordering), example))

    def cells_asked(self) -> dict[CellKey, Cell]:
        """The paid cells that were asked for, by prompt and example."""
        return {key: self.ledger.cells[key] for key in self._asked if key in self.ledger.cells}

    def fingerprint(self, ordering: Ordering) -> str:
        """What identifies the prompt that the ordering renders to."""
        if ordering not in self._fingerprints:
            self._fingerprints[ordering] = self._payer.fingerprint(ordering)
        return self._fingerprints[ordering]

    def table(
        self, orderings: Sequence[Ordering], examples: Sequence[int], *, favoured: int | None = None
    ) -> tuple[list[int], list[list[float]]]:
        """Score orderings on common examples; cells that are known cost nothing.

        An answer that cannot be parsed, or a call that failed for some orderings alone, counts as the worst score seen
        on these examples, and as 0 at most. Failed calls of the `favoured` ordering, given by its number, count as the
        best score that any got on the example, so that none beats it by its bad luck.

        Returns:
            The examples that ran for any of the orderings, and a row of scores on them for each ordering; for the first
            orderings only, those that were scored whole, when time or money is up.

        Raises:
            NothingRan: when no call ended with an answer.
        """
        known = self.cells(dict.fromkeys(orderings, examples))
        cells = [known[ordering] for ordering in itertools.takewhile(known.__contains__, orderings)]
        ran = [e for e in examples if any(row[e].outcome != FAILED for row in cells)]
        if cells and not ran:
            raise self.nothing_ran([cell for row in cells for cell in row.values()], len(cells))
        among = set(examples)
        seen = [cell.score for (_, e), cell in self.ledger.cells.items() if e in among]
        worst = min([0.0, *(score for score in seen if score is not None)])
        rows = [[worst if (score := row[e].score) is None else score for e in ran] for row in cells]
        if favoured is not None and favoured < len(rows):
            for column, example in enumerate(ran):
                if cells[favoured][example].outcome == FAILED:
                    rows[favoured][column] = max(row[column] for row in rows)
        return ran, rows

    def nothing_ran(self, cells: Sequence[Cell], num_orderings: int) -> NothingRan:
        """The error that ends a compile whose calls all failed; they may be made again by a later part."""
        self.ledger.retry()
        first = next(cell for cell in cells if cell.outcome == FAILED)
        return NothingRan(
            f"no call ended with an answer, for {num_orderings} orderings of the demos and {len(cells)} calls; "
            f"one failure was: {first.error}: {first.message}"
        )
