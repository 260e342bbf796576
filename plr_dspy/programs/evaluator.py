"""Runs program calls side by side: each is noted when it ends, errors are kept."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import ContextWindowExceededError
from dspy.utils.parallelizer import ParallelExecutor

from plr_dspy.programs.failures import Failures, is_milestone
from plr_dspy.programs.work import Work, WrongAnswer
from plr_dspy.scoring.cells import FAILED, WRONG, Cell, CellKey
from plr_dspy.scoring.ledger import Ledger

logger = logging.getLogger(__name__)

GRACE = 2.0
"""Seconds that an interrupt leaves to the calls under way."""


@dataclass(frozen=True)
class Variant:
    """The program with its demos in one order.

    Attributes:
        program: A copy of its own.
        order: What messages call the order.
    """

    program: dspy.Module
    order: str


class CellRunner:
    """Pays for cells, in the order asked for.

    Args:
        work: What a call does.
        names: What messages call the examples, which cells name by index.
        ledger: Gets every cell when its call has ended.
        num_threads: Calls under way at once; None takes DSPy's setting.
        max_errors: So many failures end the run with the exception of the last; None takes DSPy's
            setting. See `Failures`.
        on_cell: Called after each cell, from the worker that ran it, one at a time.
        interrupted: Set by a signal; ends the run even if a program swallowed the interrupt.
        redact: Takes secrets out of messages.

    Attributes:
        failures: Of the cells so far.
    """

    def __init__(
        self,
        work: Work,
        *,
        names: Sequence[str],
        ledger: Ledger,
        num_threads: int | None = None,
        max_errors: int | None = None,
        on_cell: Callable[[], None] | None = None,
        interrupted: threading.Event | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        max_errors = dspy.settings.max_errors if max_errors is None else max_errors
        self.failures = Failures(names, ran=ledger.examples_that_ran(), max_errors=max_errors, redact=redact)
        self._work = work
        self._names = names
        self._ledger = ledger
        self._num_threads = num_threads or dspy.settings.num_threads
        self._on_cell = on_cell
        self._interrupted = threading.Event() if interrupted is None else interrupted
        self._num_too_long = 0
        self._lock = threading.Lock()

    def run(
        self, keys: Sequence[CellKey], variants: Mapping[str, Variant], *, deadline: float | None = None
    ) -> None:
        """Pay for cells that have not been paid.

        Args:
            keys: The cells.
            variants: The program of each fingerprint.
            deadline: No call begins when `time.monotonic` has come to this; the cells paid are then the
                first ones.

        Raises:
            Exception: of the work, with its own type, at `max_errors` failures, or at
                once when every further call would fail.
        """
        # Each item is a worker, not a cell: with cells DSPy's executor goes through all of them at each step.
        # Cells catch their own exceptions, so that these keep their type and all finished work is kept.
        num_workers = min(self._num_threads, len(keys))
        executor = ParallelExecutor(
            num_threads=self._num_threads, max_errors=num_workers + 1, disable_progress_bar=True, timeout=0
        )
        pending, begun, ended = deque(keys), threading.Semaphore(0), threading.Semaphore(0)

        def work(_: int) -> None:
            begun.release()
            try:
                while not (executor.cancel_jobs.is_set() or self._ended() or _passed(deadline)):
                    try:
                        key = pending.popleft()
                    except IndexError:
                        return
                    self._pay(key, variants[key[0]])
            finally:
                ended.release()

        try:
            executor.execute(work, range(num_workers))
        except BaseException as error:
            executor.cancel_jobs.set()
            interrupted = self._interrupted.is_set() and not isinstance(error, KeyboardInterrupt)
            patience_ends = time.monotonic() + GRACE
            while begun.acquire(blocking=False):  # their calls are paid, and may end in time
                ended.acquire(timeout=max(0.0, patience_ends - time.monotonic()))
            if interrupted:  # and cancelled by DSPy
                raise KeyboardInterrupt from error
            raise
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        if self.failures.fatal is not None:
            self._ledger.retry()
            raise self.failures.fatal
        for failure in executor.exceptions_map.values():  # of `on_cell`
            raise failure

    def _ended(self) -> bool:
        return self.failures.fatal is not None or self._interrupted.is_set()

    def _pay(self, key: CellKey, variant: Variant) -> None:
        failure: BaseException | None = None
        with dspy.context(trace=[]), dspy.track_usage() as usage:
            try:
                cell = self._work(variant.program, key[1], usage)
            except KeyboardInterrupt:
                raise
            except WrongAnswer as wrong:
                if isinstance(wrong.error, ContextWindowExceededError):
                    self._warn_too_long(key, variant)
                message = self.failures.first_line(wrong)
                cell = Cell(None, WRONG, type(wrong.error).__name__, message)
            except BaseException as error:  # of the user's program or metric: never a silent 0
                message = self.failures.first_line(error)
                cell, failure = Cell(None, FAILED, type(error).__name__, message), error
        if self._interrupted.is_set() and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt  # swallowed by the program, whose answer is then worth nothing
        if not self._ledger.add(key, cell, _billed(usage.get_total_tokens())):
            return  # the compile has ended without this call
        with self._lock:
            if failure is not None:
                self.failures.note(failure, key[1])
            else:
                self.failures.note_success(key[1])
            if self._on_cell is not None:
                self._on_cell()

    def _warn_too_long(self, key: CellKey, variant: Variant) -> None:
        """Say it the first time, the tenth, and so on: where the demos alone are too long, every call says it."""
        with self._lock:
            self._num_too_long += 1
            count = self._num_too_long
        name = self._names[key[1]]
        if count == 1:
            logger.warning(
                "%s exceeds the context window with the demos in the order %s; counted as wrong",
                name,
                variant.order,
            )
        elif is_milestone(count):
            logger.warning("%d calls exceeded the context window, the last of %s", count, name)


def _passed(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _billed(tokens: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The token counts of a usage record; it has details and costs beside them."""
    return {
        model: {
            kind: count
            for kind, count in usage.items()
            if kind.endswith("_tokens") and isinstance(count, int)
        }
        for model, usage in tokens.items()
    }
