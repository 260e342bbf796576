"""Scores orderings on examples, ordering by ordering, so that a server's prefix cache stays warm; knows no DSPy."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import Trial
from plr_dspy.scoring.cells import FAILED, Cell, CellKey
from plr_dspy.scoring.ledger import Ledger


class Payer(Protocol):
    """Makes program calls.

    Attributes:
        ledger: Gets every cell when its call has ended.
    """

    ledger: Ledger

    def fingerprint(self, ordering: Ordering) -> str:
        """What identifies the prompt that the ordering renders to."""

    def pay(
        self, keys: Sequence[CellKey], orderings: Mapping[str, Ordering], *, deadline: float | None
    ) -> None:
        """Make the calls of these cells, in this order.

        Args:
            keys: Cells that have not been paid.
            orderings: One for each fingerprint among them.
            deadline: No call begins when `time.monotonic` has come to this.
        """


class NothingRan(RuntimeError):
    """All calls failed."""


class CellScorer:
    """Scores orderings; no cell (prompt and example) is paid twice.

    An answer that cannot be parsed counts as the worst score seen (0 unless the metric goes below).
    So does a call that failed, unless it failed for all orderings compared: then the example counts
    for none. No ordering can win because its hard examples were lost.

    Args:
        payer: Makes the calls.
        max_metric_calls: Hard limit on program calls; None for none.

    Attributes:
        ledger: What has been paid.
    """

    def __init__(self, payer: Payer, *, max_metric_calls: int | None = None) -> None:
        self.ledger = payer.ledger
        self._payer = payer
        self._max_metric_calls = max_metric_calls
        self._fingerprints: dict[Ordering, str] = {}

    @property
    def program_calls(self) -> int:
        """Program calls paid so far."""
        return self.ledger.calls()

    def cost(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> int:
        """Program calls that scoring these orderings on these examples would make."""
        return self.cost_each(dict.fromkeys(orderings, examples))

    def cost_each(self, wanted: Mapping[Ordering, Sequence[int]]) -> int:
        """Program calls that scoring each of these orderings on its own examples would make."""
        return len(self._unpaid(wanted))

    def cells_each(
        self, wanted: Mapping[Ordering, Sequence[int]], *, deadline: float | None = None
    ) -> list[dict[int, Cell]]:
        """Cells by example of each ordering on examples of its own; arguments and errors are those of `table`."""
        self._pay(wanted, deadline)
        return self._complete(wanted)

    def paid_each(self, wanted: Mapping[Ordering, Sequence[int]]) -> dict[Ordering, dict[int, Cell]]:
        """Cells by example of those of these orderings that have been paid on all of their examples."""
        return {
            ordering: {example: self.cell(ordering, example) for example in examples}
            for ordering, examples in wanted.items()
            if all(self.is_paid(ordering, example) for example in examples)
        }

    def score(
        self, orderings: Sequence[Ordering], examples: Sequence[int], *, deadline: float | None = None
    ) -> list[Trial]:
        """Mean scores of orderings on common examples; arguments and errors are those of `table`.

        An example that runs for none of them, but ran for others before, counts as it did on average
        for those: so scores of different calls can be compared.
        """
        ran, rows = self._rows(orderings, examples, deadline)
        known = self._means(set(examples) - set(ran))
        return [
            Trial(ordering, math.fsum([*row, *known]) / (len(row) + len(known)), len(row))
            for ordering, row in zip(orderings, rows, strict=False)
        ]

    def table(
        self,
        orderings: Sequence[Ordering],
        examples: Sequence[int],
        *,
        favoured: int | None = None,
        deadline: float | None = None,
    ) -> tuple[list[int], list[list[float]]]:
        """The examples that ran for any of the orderings, and a row of scores on them for each ordering.

        Args:
            orderings: What to score; cells that are known cost nothing.
            examples: On which examples.
            favoured: Index of an ordering whose failed calls count as the best score that any of the
                orderings got on the example, so that none beats it by its bad luck.
            deadline: No call begins when `time.monotonic` has come to this: only the first orderings,
                those that were scored whole, have rows then.

        Raises:
            RuntimeError: when this would exceed `max_metric_calls`.
            NothingRan: when no call ended with an answer.
            Exception: of the program or the metric, as the payer lets them out.
        """
        ran, rows = self._rows(orderings, examples, deadline)
        if favoured is not None and favoured < len(rows):
            for column, example in enumerate(ran):
                if self.cell(orderings[favoured], example).outcome == FAILED:
                    rows[favoured][column] = max(row[column] for row in rows)
        return ran, rows

    def cell(self, ordering: Ordering, example: int) -> Cell:
        """The outcome of a cell that has been paid.

        Raises:
            KeyError: when it has not.
        """
        return self.ledger.cells[self._fingerprint(ordering), example]

    def is_paid(self, ordering: Ordering, example: int) -> bool:
        """Whether the cell's call has been made."""
        return (self._fingerprint(ordering), example) in self.ledger.cells

    def _fingerprint(self, ordering: Ordering) -> str:
        if ordering not in self._fingerprints:
            self._fingerprints[ordering] = self._payer.fingerprint(ordering)
        return self._fingerprints[ordering]

    def _unpaid(self, wanted: Mapping[Ordering, Sequence[int]]) -> list[CellKey]:
        """Cells still to be paid, ordering by ordering: a server keeps the prefix they share in its cache."""
        keys = dict.fromkeys((self._fingerprint(o), e) for o, examples in wanted.items() for e in examples)
        return [key for key in keys if key not in self.ledger.cells]

    def _rows(
        self, orderings: Sequence[Ordering], examples: Sequence[int], deadline: float | None
    ) -> tuple[list[int], list[list[float]]]:
        """The examples that ran for any of the orderings scored whole, and a row of their scores for each."""
        wanted = dict.fromkeys(orderings, examples)
        self._pay(wanted, deadline)
        known = dict(zip(wanted, self._complete(wanted), strict=False))
        cells = [known[ordering] for ordering in itertools.takewhile(known.__contains__, orderings)]
        columns = [e for e in examples if any(row[e].outcome != FAILED for row in cells)]
        if cells and not columns:
            raise self.nothing_ran([cell for row in cells for cell in row.values()], len(cells))
        worst = self._worst_score(set(examples))
        rows = [[worst if (score := row[e].score) is None else score for e in columns] for row in cells]
        return columns, rows

    def nothing_ran(self, cells: Sequence[Cell], num_orderings: int) -> NothingRan:
        """The error that ends a compile whose calls all failed; they may be made again by a later part."""
        self.ledger.retry()
        first = next(cell for cell in cells if cell.outcome == FAILED)
        return NothingRan(
            f"no call ended with an answer, for {num_orderings} orderings of the demos and {len(cells)} calls; "
            f"one failure was: {first.error}: {first.message}"
        )

    def _worst_score(self, examples: Collection[int]) -> float:
        """The worst seen on these examples, and 0 at most."""
        seen = (cell.score for (_, example), cell in self.ledger.cells.items() if example in examples)
        return min([0.0, *(score for score in seen if score is not None)])

    def _means(self, examples: Collection[int]) -> list[float]:
        """Mean scores of all orderings, of those of the examples that have any."""
        seen = defaultdict(list)
        for (_, example), cell in self.ledger.cells.items():
            if example in examples and cell.score is not None:
                seen[example].append(cell.score)
        return [math.fsum(scores) / len(scores) for _, scores in sorted(seen.items())]

    def _complete(self, wanted: Mapping[Ordering, Sequence[int]]) -> list[dict[int, Cell]]:
        """The cells by example of the orderings up to the first that lacks one."""
        rows = []
        for ordering, examples in wanted.items():
            keys = [(self._fingerprint(ordering), example) for example in examples]
            if any(key not in self.ledger.cells for key in keys):
                break
            rows.append({key[1]: self.ledger.cells[key] for key in keys})
        return rows

    def _pay(self, wanted: Mapping[Ordering, Sequence[int]], deadline: float | None) -> None:
        keys = self._unpaid(wanted)
        if not keys:
            return
        limit = self._max_metric_calls
        if limit is not None and self.program_calls + len(keys) > limit:
            raise RuntimeError(
                f"{len(keys)} program calls more would exceed max_metric_calls={limit} ({self.program_calls} made)"
            )
        orderings = {self._fingerprint(ordering): ordering for ordering in wanted}
        unpaid = dict.fromkeys(fingerprint for fingerprint, _ in keys)
        self._payer.pay(keys, {f: orderings[f] for f in unpaid}, deadline=deadline)
