"""Scores orderings of a program: cells through one executor, each paid once, errors kept."""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dspy
from dspy.utils.exceptions import (
    AdapterParseError,
    ContextWindowExceededError,
    LMAuthError,
    LMBillingError,
    LMConfigurationError,
    LMUnsupportedModelError,
)
from dspy.utils.parallelizer import ParallelExecutor

from plr_dspy.metrics import Metric, as_score, metric_caller
from plr_dspy.programs import ProgramFactory
from plr_dspy.records import ErrorCount, Trial
from plr_dspy.slots import ProgramSlots
from plr_dspy.space import Ordering

logger = logging.getLogger(__name__)

WRONG_ANSWERS = (AdapterParseError, ContextWindowExceededError)
"""The program answered, and no metric could call the answer right: the order is at fault."""

HOPELESS = (LMAuthError, LMBillingError, LMConfigurationError, LMUnsupportedModelError)
"""The next call would fail in the same way: stop at once."""


@dataclass(frozen=True)
class Cell:
    """The outcome of one program call.

    Attributes:
        score: As the metric gave it; 0 for an answer that could not be parsed; None if the call failed.
        error: Class name of the exception, if there was one.
        message: First line of its message.
    """

    score: float | None
    error: str | None = None
    message: str = ""


class CellScorer:
    """Runs and remembers cells: (prompt, example) pairs.

    Args:
        program: The program whose orderings are scored; it is never changed.
        slots: Its slots.
        metric: ``metric(example, prediction)``, as in `dspy.Evaluate`.
        examples: Train split, then selection split; a cell names its example by index.
        num_threads: Calls under way at once; None takes DSPy's setting.
        max_errors: Failed cells that end the compile with the failure's own exception; None takes
            DSPy's setting.
        max_metric_calls: Hard limit on program calls; None for none.
        on_cell: Called after each cell, from the worker that ran it, one at a time.
    """

    def __init__(
        self,
        program: dspy.Module,
        slots: ProgramSlots,
        *,
        metric: Metric,
        examples: Sequence[dspy.Example],
        num_threads: int | None = None,
        max_errors: int | None = None,
        max_metric_calls: int | None = None,
        on_cell: Callable[[], None] | None = None,
    ) -> None:
        self._factory = ProgramFactory(program)
        self._slots = slots
        self._metric = metric_caller(metric)
        self._examples = examples
        self._num_threads = num_threads
        self._max_errors = dspy.settings.max_errors if max_errors is None else max_errors
        self._max_metric_calls = max_metric_calls
        self._on_cell = on_cell
        self._fingerprints: dict[Ordering, str] = {}
        self._cells: dict[tuple[str, int], Cell] = {}
        self._tokens: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._num_failed = 0
        self._failure: Exception | None = None  # the first one
        self._abort: Exception | None = None
        self._lock = threading.Lock()

    @property
    def program_calls(self) -> int:
        """Distinct cells paid so far."""
        return len(self._cells)

    @property
    def tokens(self) -> dict[str, dict[str, int]]:
        """Billed tokens by model; answers from DSPy's cache bill none."""
        return {model: dict(counts) for model, counts in self._tokens.items()}

    def cost(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> int:
        """Program calls that scoring these orderings on these examples would make."""
        return len(self._unpaid(orderings, examples))

    def score(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> list[Trial]:
        """Score orderings on common examples.

        An example on which any of the orderings failed to run counts for none of them: an ordering
        must not win because its hard examples were lost.

        Raises:
            RuntimeError: when this would exceed `max_metric_calls`, or no example ran for all orderings.
            Exception: of the program or the metric, with its own type, once more than `max_errors`
                cells have failed, or at once when every further call would fail.
        """
        self._run(orderings, examples)
        rows = [[self.cell(ordering, e).score for e in examples] for ordering in orderings]
        common = [i for i in range(len(examples)) if all(row[i] is not None for row in rows)]
        if not common:
            raise RuntimeError(
                f"none of {len(examples)} examples ran without an exception for all of {len(rows)} orderings; "
                f"the first failure was: {self._failure!r}"
            ) from self._failure
        trials = []
        for ordering, row in zip(orderings, rows, strict=True):
            scores = [score for i in common if (score := row[i]) is not None]
            trials.append(Trial(ordering, math.fsum(scores) / len(scores), len(scores)))
        return trials

    def cell(self, ordering: Ordering, example: int) -> Cell:
        """The outcome of a cell that has been paid.

        Raises:
            KeyError: when it has not.
        """
        return self._cells[self._fingerprint(ordering), example]

    def errors(self) -> list[ErrorCount]:
        """Cells that raised, by exception type and outcome, most frequent first."""
        groups: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        for (_, example), cell in self._cells.items():
            if cell.error is not None:
                outcome = "not scored" if cell.score is None else "counted as wrong"
                groups[cell.error, outcome].append((example, cell.message))
        counts = [
            ErrorCount(
                type=name,
                outcome=outcome,
                count=len(group),
                message=group[0][1],
                examples=sorted({example for example, _ in group})[:5],
            )
            for (name, outcome), group in groups.items()
        ]
        return sorted(counts, key=lambda error: (-error.count, error.type))

    def _fingerprint(self, ordering: Ordering) -> str:
        if ordering not in self._fingerprints:
            self._fingerprints[ordering] = self._slots.fingerprint(ordering)
        return self._fingerprints[ordering]

    def _unpaid(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> list[tuple[str, int]]:
        """Cells still to be paid, ordering by ordering: a server keeps the prefix they share in its cache."""
        wanted = dict.fromkeys((self._fingerprint(ordering), e) for ordering in orderings for e in examples)
        return [key for key in wanted if key not in self._cells]

    def _run(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> None:
        keys = self._unpaid(orderings, examples)
        if self._max_metric_calls is not None and self.program_calls + len(keys) > self._max_metric_calls:
            raise RuntimeError(
                f"{len(keys)} program calls more would exceed max_metric_calls={self._max_metric_calls} "
                f"({self.program_calls} made)"
            )
        if not keys:
            return
        wanted = {fingerprint for fingerprint, _ in keys}
        by_fingerprint = {self._fingerprint(ordering): ordering for ordering in orderings}
        programs = {
            fingerprint: self._factory.build(self._slots.demos(ordering))
            for fingerprint, ordering in by_fingerprint.items()
            if fingerprint in wanted
        }
        # Cells catch their own exceptions, so that these keep their type and all finished work is kept.
        executor = ParallelExecutor(
            num_threads=self._num_threads,
            max_errors=len(keys) + 1,
            disable_progress_bar=True,
            timeout=0,
        )
        executor.execute(lambda key: self._pay(key, programs[key[0]]), keys)
        if self._abort is not None:
            raise self._abort

    def _pay(self, key: tuple[str, int], program: dspy.Module) -> bool:
        if self._abort is not None:
            return False
        example = self._examples[key[1]]
        failure: Exception | None = None
        with dspy.context(trace=[]), dspy.track_usage() as usage:
            try:
                cell = Cell(as_score(self._metric(example, program(**example.inputs()))))
            except WRONG_ANSWERS as error:
                cell = Cell(0.0, type(error).__name__, _first_line(error))
            except Exception as error:  # the user's program or metric: never a silent 0
                cell = Cell(None, type(error).__name__, _first_line(error))
                failure = error
        with self._lock:
            self._cells[key] = cell
            for model, counts in usage.get_total_tokens().items():
                for name, count in counts.items():
                    if name.endswith("_tokens") and isinstance(count, int):
                        self._tokens[model][name] += count
            if failure is not None:
                self._fail(failure, key[1])
            elif cell.error == ContextWindowExceededError.__name__:
                logger.warning(
                    "example %d exceeds the context window in an ordering; counted as wrong", key[1]
                )
            if self._on_cell is not None:
                self._on_cell()
        return True

    def _fail(self, failure: Exception, example: int) -> None:
        """Note a failed cell; decide whether the compile goes on."""
        logger.warning(
            "example %d was not scored: %s: %s", example, type(failure).__name__, _first_line(failure)
        )
        self._num_failed += 1
        self._failure = self._failure or failure
        if self._abort is None and (isinstance(failure, HOPELESS) or self._num_failed >= self._max_errors):
            self._abort = failure


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:200]
