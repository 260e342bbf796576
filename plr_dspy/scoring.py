"""Scores orderings of a program on examples, ordering by ordering."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import dspy

from plr_dspy.cells import FAILED, Cell, CellKey, CellRunner
from plr_dspy.metrics import Metric
from plr_dspy.programs import ProgramFactory
from plr_dspy.records import ErrorCount, Trial
from plr_dspy.slots import ProgramSlots
from plr_dspy.space import Ordering


class CellScorer:
    """Scores orderings; no cell (prompt and example) is paid twice.

    An answer that cannot be parsed counts as the worst score seen (0 unless the metric goes below).
    So does a call that failed, unless it failed for all orderings compared: then the example counts
    for none. No ordering can win because its hard examples were lost.

    Args:
        program: The program whose orderings are scored; it is never changed.
        slots: Its slots.
        metric, num_threads, max_errors, on_cell: As in `CellRunner`.
        examples: What scores orderings; named by index.
        names: What messages call the examples; None counts them.
        max_metric_calls: Hard limit on program calls; None for none.
    """

    def __init__(
        self,
        program: dspy.Module,
        slots: ProgramSlots,
        *,
        metric: Metric,
        examples: Sequence[dspy.Example],
        names: Sequence[str] | None = None,
        num_threads: int | None = None,
        max_errors: int | None = None,
        max_metric_calls: int | None = None,
        on_cell: Callable[[], None] | None = None,
    ) -> None:
        self._factory = ProgramFactory(program)
        self._slots = slots
        self._runner = CellRunner(
            metric,
            examples,
            names=names or [f"example {i}" for i in range(len(examples))],
            num_threads=num_threads,
            max_errors=max_errors,
            on_cell=on_cell,
        )
        self._max_metric_calls = max_metric_calls
        self._fingerprints: dict[Ordering, str] = {}

    @property
    def program_calls(self) -> int:
        """Distinct cells paid so far."""
        return len(self._runner.cells)

    @property
    def tokens(self) -> dict[str, dict[str, int]]:
        """Billed tokens by model; answers from DSPy's cache bill none."""
        return self._runner.tokens

    def errors(self) -> list[ErrorCount]:
        """Cells that raised, by exception type and outcome, most frequent first."""
        return self._runner.errors()

    def cost(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> int:
        """Program calls that scoring these orderings on these examples would make."""
        return len(self._unpaid(orderings, examples))

    def score(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> list[Trial]:
        """Mean scores of orderings on common examples; raises as `table` does."""
        rows = self.table(orderings, examples)
        return [
            Trial(ordering, math.fsum(row) / len(row), len(row))
            for ordering, row in zip(orderings, rows, strict=True)
        ]

    def table(
        self, orderings: Sequence[Ordering], examples: Sequence[int], *, favoured: int | None = None
    ) -> list[list[float]]:
        """Scores of orderings, a row each, on the examples that ran for any of them.

        Args:
            orderings: What to score; cells that are known cost nothing.
            examples: On which examples.
            favoured: Index of an ordering whose failed calls count as the best score that any of the
                orderings got on the example, so that none beats it by its bad luck.

        Raises:
            RuntimeError: when this would exceed `max_metric_calls`, or no call ended with an answer.
            Exception: of the program or the metric, see `CellRunner.run`.
        """
        self._pay(orderings, examples)
        cells = [[self.cell(ordering, e) for e in examples] for ordering in orderings]
        ran = [i for i in range(len(examples)) if any(row[i].outcome != FAILED for row in cells)]
        if not ran:
            raise RuntimeError(
                f"no call ended with an answer, for {len(orderings)} orderings of the demos on "
                f"{len(examples)} examples; the first failure was: {self._runner.failure!r}"
            ) from self._runner.failure
        worst = min([0.0, *(cell.score for cell in self._runner.cells.values() if cell.score is not None)])
        table = [[worst if (score := row[i].score) is None else score for i in ran] for row in cells]
        if favoured is not None:
            for column, i in enumerate(ran):
                if cells[favoured][i].outcome == FAILED:
                    table[favoured][column] = max(row[column] for row in table)
        return table

    def cell(self, ordering: Ordering, example: int) -> Cell:
        """The outcome of a cell that has been paid.

        Raises:
            KeyError: when it has not.
        """
        return self._runner.cells[self._fingerprint(ordering), example]

    def _fingerprint(self, ordering: Ordering) -> str:
        if ordering not in self._fingerprints:
            self._fingerprints[ordering] = self._slots.fingerprint(ordering)
        return self._fingerprints[ordering]

    def _unpaid(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> list[CellKey]:
        """Cells still to be paid, ordering by ordering: a server keeps the prefix they share in its cache."""
        wanted = dict.fromkeys((self._fingerprint(ordering), e) for ordering in orderings for e in examples)
        return [key for key in wanted if key not in self._runner.cells]

    def _pay(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> None:
        keys = self._unpaid(orderings, examples)
        if self._max_metric_calls is not None and self.program_calls + len(keys) > self._max_metric_calls:
            raise RuntimeError(
                f"{len(keys)} program calls more would exceed max_metric_calls={self._max_metric_calls} "
                f"({self.program_calls} made)"
            )
        wanted = {fingerprint for fingerprint, _ in keys}
        by_fingerprint = {self._fingerprint(ordering): ordering for ordering in orderings}
        programs = {
            fingerprint: self._factory.build(self._slots.demos(ordering))
            for fingerprint, ordering in by_fingerprint.items()
            if fingerprint in wanted
        }
        if keys:
            self._runner.run(keys, programs)
