"""Scores orderings of a program on examples, ordering by ordering."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import dspy

from plr_dspy.cells import CellRunner, Variant
from plr_dspy.ledger import Ledger
from plr_dspy.metrics import Metric
from plr_dspy.programs import ProgramFactory, language_models
from plr_dspy.records import FAILED, Cell, CellKey, Trial
from plr_dspy.report import ErrorCount
from plr_dspy.secrets import Redactor
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
        metric, num_threads, max_errors, on_cell, interrupted: As in `CellRunner`.
        examples: What scores orderings; named by index.
        names: What messages call the examples; None counts them.
        max_metric_calls: Hard limit on program calls; None for none.
        ledger: What has been paid before, with the same program and examples; None begins a new one.

    Attributes:
        ledger: What has been paid.
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
        interrupted: threading.Event | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        self._factory = ProgramFactory(program)
        self._slots = slots
        self._names = names or [f"example {i}" for i in range(len(examples))]
        self._runner = CellRunner(
            metric,
            examples,
            names=self._names,
            ledger=self.ledger,
            num_threads=num_threads,
            max_errors=max_errors,
            on_cell=on_cell,
            interrupted=interrupted,
            redact=Redactor([dspy.settings.lm, *language_models(program)]),
        )
        self._max_metric_calls = max_metric_calls
        self._fingerprints: dict[Ordering, str] = {}

    @property
    def program_calls(self) -> int:
        """Program calls paid so far."""
        return self.ledger.calls()

    def errors(self) -> list[ErrorCount]:
        """Cells that raised, by exception type and outcome, most frequent first."""
        return self.ledger.errors(self._names)

    def cost(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> int:
        """Program calls that scoring these orderings on these examples would make."""
        return len(self._unpaid(orderings, examples))

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
    ) -> list[list[float]]:
        """Scores of orderings, a row each, on the examples that ran for any of them.

        Args:
            orderings: What to score; cells that are known cost nothing.
            examples: On which examples.
            favoured: Index of an ordering whose failed calls count as the best score that any of the
                orderings got on the example, so that none beats it by its bad luck.
            deadline: No call begins when `time.monotonic` has come to this: only the first orderings,
                those that were scored whole, have rows then.

        Raises:
            RuntimeError: when this would exceed `max_metric_calls`, or no call ended with an answer.
            Exception: of the program or the metric, see `CellRunner.run`.
        """
        ran, rows = self._rows(orderings, examples, deadline)
        if favoured is not None and favoured < len(rows):
            for column, example in enumerate(ran):
                if self.cell(orderings[favoured], example).outcome == FAILED:
                    rows[favoured][column] = max(row[column] for row in rows)
        return rows

    def examples_that_ran(self) -> set[int]:
        """Those on which some call ended with an answer."""
        return {example for (_, example), cell in self.ledger.cells.items() if cell.outcome != FAILED}

    def cell(self, ordering: Ordering, example: int) -> Cell:
        """The outcome of a cell that has been paid.

        Raises:
            KeyError: when it has not.
        """
        return self.ledger.cells[self._fingerprint(ordering), example]

    def _fingerprint(self, ordering: Ordering) -> str:
        if ordering not in self._fingerprints:
            self._fingerprints[ordering] = self._slots.fingerprint(ordering)
        return self._fingerprints[ordering]

    def _unpaid(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> list[CellKey]:
        """Cells still to be paid, ordering by ordering: a server keeps the prefix they share in its cache."""
        wanted = dict.fromkeys((self._fingerprint(ordering), e) for ordering in orderings for e in examples)
        return [key for key in wanted if key not in self.ledger.cells]

    def _rows(
        self, orderings: Sequence[Ordering], examples: Sequence[int], deadline: float | None
    ) -> tuple[list[int], list[list[float]]]:
        """The examples that ran for any of the orderings scored whole, and a row of their scores for each."""
        self._pay(orderings, examples, deadline)
        cells = self._complete(orderings, examples)
        columns = [i for i in range(len(examples)) if any(row[i].outcome != FAILED for row in cells)]
        if cells and not columns:
            message = self._runner.failures.first or cells[0][0].message
            raise RuntimeError(
                f"no call ended with an answer, for {len(cells)} orderings of the demos on "
                f"{len(examples)} examples; the first failure was: {message!r}"
            ) from self._runner.failures.first
        worst = self._worst_score(examples)
        rows = [[worst if (score := row[i].score) is None else score for i in columns] for row in cells]
        return [examples[i] for i in columns], rows

    def _worst_score(self, examples: Sequence[int]) -> float:
        """The worst seen on these examples, and 0 at most."""
        asked = set(examples)
        seen = (cell.score for (_, example), cell in self.ledger.cells.items() if example in asked)
        return min([0.0, *(score for score in seen if score is not None)])

    def _means(self, examples: Collection[int]) -> list[float]:
        """Mean scores of all orderings, of those of the examples that have any."""
        seen = defaultdict(list)
        for (_, example), cell in self.ledger.cells.items():
            if example in examples and cell.score is not None:
                seen[example].append(cell.score)
        return [math.fsum(scores) / len(scores) for _, scores in sorted(seen.items())]

    def _complete(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> list[list[Cell]]:
        """The cells of the orderings up to the first that lacks one."""
        rows = []
        for ordering in orderings:
            keys = [(self._fingerprint(ordering), example) for example in examples]
            if any(key not in self.ledger.cells for key in keys):
                break
            rows.append([self.ledger.cells[key] for key in keys])
        return rows

    def _pay(self, orderings: Sequence[Ordering], examples: Sequence[int], deadline: float | None) -> None:
        keys = self._unpaid(orderings, examples)
        if (
            keys
            and self._max_metric_calls is not None
            and self.program_calls + len(keys) > self._max_metric_calls
        ):
            raise RuntimeError(
                f"{len(keys)} program calls more would exceed max_metric_calls={self._max_metric_calls} "
                f"({self.program_calls} made)"
            )
        wanted = {fingerprint for fingerprint, _ in keys}
        by_fingerprint = {self._fingerprint(ordering): ordering for ordering in orderings}
        variants = {
            fingerprint: Variant(
                self._factory.build(self._slots.demos(ordering)), _named(self._slots.permutations(ordering))
            )
            for fingerprint, ordering in by_fingerprint.items()
            if fingerprint in wanted
        }
        if keys:
            self._runner.run(keys, variants, deadline=deadline)


def _named(permutations: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name}: {list(permutation)}" for name, permutation in permutations.items())
