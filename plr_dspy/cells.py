"""Runs program calls side by side and remembers them: each is paid once, errors are kept."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

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
from plr_dspy.records import ErrorCount

logger = logging.getLogger(__name__)

CellKey: TypeAlias = tuple[str, int]
"""Fingerprint of a prompt, and index of an example."""

WRONG_ANSWERS = (AdapterParseError, ContextWindowExceededError)
"""Of a program: there is no answer that a metric could call right, and the order is at fault."""

HOPELESS = (LMAuthError, LMBillingError, LMConfigurationError, LMUnsupportedModelError)
"""The next call would fail in the same way: stop at once."""

WRONG, FAILED = "counted as wrong", "not scored"


@dataclass(frozen=True)
class Cell:
    """The outcome of one program call.

    Attributes:
        score: As the metric gave it; None if there was an exception.
        outcome: `WRONG`, `FAILED`, or empty.
        error: Class name of the exception.
        message: First line of its message.
    """

    score: float | None
    outcome: str = ""
    error: str = ""
    message: str = ""


class CellRunner:
    """Pays for cells, in the order asked for.

    Args:
        metric: ``metric(example, prediction)``, as in `dspy.Evaluate`.
        examples: What cells name by index.
        names: What messages call the examples.
        num_threads: Calls under way at once; None takes DSPy's setting.
        max_errors: Failed cells that end the run with the failure's own exception; None takes DSPy's
            setting.
        on_cell: Called after each cell, from the worker that ran it, one at a time.

    Attributes:
        cells: What has been paid.
        failure: The first exception of a failed cell.
    """

    def __init__(
        self,
        metric: Metric,
        examples: Sequence[dspy.Example],
        *,
        names: Sequence[str],
        num_threads: int | None = None,
        max_errors: int | None = None,
        on_cell: Callable[[], None] | None = None,
    ) -> None:
        self.cells: dict[CellKey, Cell] = {}
        self.failure: Exception | None = None
        self._metric = metric_caller(metric)
        self._examples = examples
        self._names = names
        self._num_threads = num_threads
        self._max_errors = dspy.settings.max_errors if max_errors is None else max_errors
        self._on_cell = on_cell
        self._tokens: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._num_failed = 0
        self._abort: Exception | None = None
        self._lock = threading.Lock()

    @property
    def tokens(self) -> dict[str, dict[str, int]]:
        """Billed tokens by model; answers from DSPy's cache bill none."""
        return {model: dict(counts) for model, counts in self._tokens.items()}

    def run(self, keys: Sequence[CellKey], programs: Mapping[str, dspy.Module]) -> None:
        """Pay for cells that have not been paid.

        Args:
            keys: The cells.
            programs: The program of each fingerprint.

        Raises:
            Exception: of the program or the metric, with its own type, when `max_errors` cells have
                failed, or at once when every further call would fail.
        """
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

    def errors(self) -> list[ErrorCount]:
        """Cells that raised, by exception type and outcome, most frequent first."""
        groups: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        counts: dict[tuple[str, str], int] = defaultdict(int)
        for (_, example), cell in self.cells.items():
            if cell.error:
                groups[cell.error, cell.outcome].setdefault(example, cell.message)
                counts[cell.error, cell.outcome] += 1
        errors = [
            ErrorCount(
                type=name,
                outcome=outcome,
                count=counts[name, outcome],
                message=next(iter(group.values())),
                examples=[self._names[example] for example in sorted(group)[:5]],
            )
            for (name, outcome), group in groups.items()
        ]
        return sorted(errors, key=lambda error: (-error.count, error.type))

    def _pay(self, key: CellKey, program: dspy.Module) -> bool:
        if self._abort is not None:
            return False
        failure: Exception | None = None
        with dspy.context(trace=[]), dspy.track_usage() as usage:
            try:
                cell = self._outcome(program, self._examples[key[1]], usage)
            except Exception as error:  # the user's program or metric: kept with its type, never a silent 0
                cell, failure = Cell(None, FAILED, type(error).__name__, _first_line(error)), error
        with self._lock:
            self.cells[key] = cell
            for model, counts in usage.get_total_tokens().items():
                for name, count in counts.items():
                    if name.endswith("_tokens") and isinstance(count, int):
                        self._tokens[model][name] += count
            if failure is not None:
                self._fail(failure, self._names[key[1]])
            if self._on_cell is not None:
                self._on_cell()
        return True

    def _outcome(self, program: dspy.Module, example: dspy.Example, usage: Any) -> Cell:
        if type(example) is dspy.Example:
            example = example.copy()  # a program or metric that writes to it must not reach the trainset
        try:
            prediction = program(**example.inputs())
        except WRONG_ANSWERS as error:
            if isinstance(error, ContextWindowExceededError):
                logger.warning("an order of the demos exceeds the context window; counted as wrong")
            return Cell(None, WRONG, type(error).__name__, _first_line(error))
        if dspy.settings.track_usage and isinstance(prediction, dspy.Prediction):
            # DSPy does this only where nobody else tracks usage, and metrics may ask for it.
            prediction.set_lm_usage(usage.get_total_tokens())
        return Cell(as_score(self._metric(example, prediction)))

    def _fail(self, failure: Exception, name: str) -> None:
        """Note a failed cell; decide whether the run goes on."""
        logger.warning("%s was not scored: %s: %s", name, type(failure).__name__, _first_line(failure))
        self._num_failed += 1
        self.failure = self.failure or failure
        if self._abort is None and (isinstance(failure, HOPELESS) or self._num_failed >= self._max_errors):
            self._abort = failure


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:200]
