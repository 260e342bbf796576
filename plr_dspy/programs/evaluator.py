"""Makes the program calls of orderings side by side: each is noted when it ends, errors are kept."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
from dspy.utils.exceptions import ContextWindowExceededError
from dspy.utils.parallelizer import ParallelExecutor

from plr_dspy.orderings.space import Ordering
from plr_dspy.programs.calls import Metric, MetricWork, Work, WrongAnswer
from plr_dspy.programs.copies import ProgramFactory, language_models
from plr_dspy.programs.failures import Failures, is_milestone
from plr_dspy.programs.slots import PromptSlots
from plr_dspy.runtime.redaction import Redactor
from plr_dspy.scoring.cells import FAILED, WRONG, Cell, CellKey
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.scoring.purse import Purse
from plr_dspy.scoring.scorer import CellScorer

logger = logging.getLogger(__name__)

CACHED = ("cached_tokens", "cache_creation_tokens")
"""Kinds of prompt tokens that have prices of their own."""

GRACE = 2.0
"""Seconds that an interrupt leaves to the calls under way."""


class ProgramEvaluator:
    """Makes the program calls of orderings, in the order asked for: the `Payer` of a DSPy program.

    Args:
        program: Never changed; each ordering has a copy of its own.
        slots: Its slots.
        work: What a call does.
        names: What messages call the examples, which cells name by index.
        ledger: Gets every cell when its call has ended.
        num_threads: Calls under way at once; None takes DSPy's setting.
        max_errors: So many failures end the run with the exception of the last; None takes DSPy's
            setting. See `Failures`.
        on_cell: Called after each cell, from the worker that ran it, one at a time.
        purse: Pays for the calls; None for no limit.
        interrupted: Set by a signal; ends the run even if a program swallowed the interrupt.

    Attributes:
        ledger: The same.
        failures: Of the cells so far.
    """

    def __init__(
        self,
        program: dspy.Module,
        slots: PromptSlots,
        work: Work,
        *,
        names: Sequence[str],
        ledger: Ledger | None = None,
        num_threads: int | None = None,
        max_errors: int | None = None,
        on_cell: Callable[[], None] | None = None,
        purse: Purse | None = None,
        interrupted: threading.Event | None = None,
    ) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        self.failures = Failures(
            names,
            ran=self.ledger.examples_that_ran(),
            scored=any(cell.score is not None for cell in self.ledger.cells.values()),
            max_errors=dspy.settings.max_errors if max_errors is None else max_errors,
            redact=Redactor([dspy.settings.lm, *language_models(program), *work.models]),
        )
        self._factory = ProgramFactory(program)
        self._slots = slots
        self._work = work
        self._names = names
        self._num_threads = num_threads or dspy.settings.num_threads
        self._on_cell = on_cell
        self._purse = purse or Purse()
        self._interrupted = threading.Event() if interrupted is None else interrupted
        self._num_too_long = 0
        self._lock = threading.Lock()

    def fingerprint(self, ordering: Ordering) -> str:
        """Digest of the prompts that the ordering renders to."""
        return self._slots.fingerprint(ordering)

    def pay(
        self,
        keys: Sequence[CellKey],
        orderings: Mapping[str, Ordering],
        *,
        deadline: float | None = None,
    ) -> None:
        """Pay for cells that have not been paid.

        Args:
            keys: The cells.
            orderings: One for each fingerprint among them.
            deadline: No call begins when `time.monotonic` has come to this; the cells paid are then the
                first ones.

        Raises:
            Exception: of the work, with its own type, at `max_errors` failures, or at
                once when every further call would fail.
        """
        programs = {
            fingerprint: self._factory.build(self._slots.demos(ordering))
            for fingerprint, ordering in orderings.items()
        }
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
                while not (executor.cancel_jobs.is_set() or self._ended() or _is_past(deadline)):
                    if not pending or not self._purse.begin():
                        return
                    try:
                        key = pending.popleft()
                    except IndexError:
                        self._purse.give_back()
                        return
                    self._call(key, programs[key[0]], orderings[key[0]])
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
            self.ledger.retry()
            raise self.failures.fatal
        self._purse.check()
        for failure in executor.exceptions_map.values():  # of `on_cell`
            raise failure

    def _ended(self) -> bool:
        return self.failures.fatal is not None or self._interrupted.is_set()

    def _call(self, key: CellKey, program: dspy.Module, ordering: Ordering) -> None:
        """Make one program call, and note its cell."""
        failure: BaseException | None = None
        with dspy.context(trace=[]), dspy.track_usage() as usage:
            try:
                cell = self._work(program, key[1], usage)
            except KeyboardInterrupt:
                raise
            except WrongAnswer as wrong:
                if isinstance(wrong.error, ContextWindowExceededError):
                    self._warn_too_long(key, ordering)
                message = self.failures.first_line(wrong)
                cell = Cell(None, WRONG, type(wrong.error).__name__, message, **wrong.told)
            except BaseException as error:  # of the user's program or metric: never a silent 0
                message = self.failures.first_line(error)
                cell, failure = Cell(None, FAILED, type(error).__name__, message), error
        if self._interrupted.is_set() and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt  # swallowed by the program, whose answer is then worth nothing
        tokens = token_counts(usage.get_total_tokens())
        self._purse.note(tokens)
        if not self.ledger.add(key, cell, tokens):
            return  # the compile has ended without this call
        with self._lock:
            if failure is not None:
                self.failures.note(failure, key[1])
            else:
                self.failures.note_answer(key[1], scored=cell.score is not None)
            if self._on_cell is not None:
                self._on_cell()

    def _warn_too_long(self, key: CellKey, ordering: Ordering) -> None:
        """Say it the first time, the tenth, and so on: where the demos alone are too long, every call says it."""
        with self._lock:
            self._num_too_long += 1
            count = self._num_too_long
        name = self._names[key[1]]
        if count == 1:
            permutations = self._slots.permutations(ordering)
            logger.warning(
                "%s exceeds the context window with the demos in the order %s; counted as wrong",
                name,
                ", ".join(f"{slot}: {list(order)}" for slot, order in permutations.items()),
            )
        elif is_milestone(count):
            logger.warning("%d calls exceeded the context window, the last of %s", count, name)


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def token_counts(tokens: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The token counts of a usage record, which has costs and more beside them; cached ones are among the prompt's."""
    counts = {}
    for model, usage in tokens.items():
        details = usage.get("prompt_tokens_details") or {}
        cached = {kind: details.get(kind) for kind in CACHED if details.get(kind)}
        counts[model] = {
            kind: count
            for kind, count in {**usage, **cached}.items()
            if kind.endswith("_tokens") and isinstance(count, int)
        }
    return counts


def program_scorer(
    program: dspy.Module,
    slots: PromptSlots,
    *,
    metric: Metric,
    examples: Sequence[dspy.Example],
    max_metric_calls: int | None = None,
    **options: Any,
) -> CellScorer:
    """Make the scorer of a program's orderings by a metric.

    Args:
        program, slots, **options: As in `ProgramEvaluator`; without names the examples are counted.
        metric, examples: As in `MetricWork`.
        max_metric_calls: Hard limit on program calls; None for none.
    """
    options.setdefault("names", [f"example {i}" for i in range(len(examples))])
    evaluator = ProgramEvaluator(program, slots, MetricWork(metric, examples), **options)
    return CellScorer(evaluator, max_metric_calls=max_metric_calls)
