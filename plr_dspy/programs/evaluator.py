"""Makes the program calls of orderings side by side: each is noted when it ends, errors are kept."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextvars import copy_context
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import ContextWindowExceededError

from plr_dspy.lm.engines import HOPELESS
from plr_dspy.metrics.by_example import MetricTypeError
from plr_dspy.programs.calls import MetricWork, WrongAnswer
from plr_dspy.programs.copies import ProgramFactory, language_models
from plr_dspy.programs.slots import PromptSlots
from plr_dspy.runtime.redaction import Redactor
from plr_dspy.scoring.budget import Budget
from plr_dspy.scoring.cells import FAILED, WRONG, Cell, CellKey
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.search.space import Ordering

logger = logging.getLogger(__name__)

CACHED = ("cached_tokens", "cache_creation_tokens")
"""Kinds of prompt tokens that have prices of their own."""

GRACE = 2.0
"""Seconds that an interrupt leaves to the calls under way."""

GOING_ON = (
    "With log_dir, the same compile goes on from here when you run it again. If you change the program or the metric "
    "first, pass accept_changes=True if the scores in the log_dir are still right, or another log_dir if they are not."
)
"""What can be done after an error of the program or the metric."""


class ProgramEvaluator:
    """Makes the program calls of orderings, in the order asked for: the `Payer` of a DSPy program.

    An example that never runs is one failure, however many orders meet it, unless nothing at all has run. A metric
    that returns no number ends the run at once, unless it has returned one before.

    Args:
        program: Never changed; each ordering has a copy of its own.
        names: What messages call the examples, which cells name by index.
        max_errors: So many failures end the run with the exception of the last; None takes DSPy's setting.
        on_cell: Called after each cell, from the worker that ran it, one at a time.
        interrupted: Set by a signal; ends the run even if a program swallowed the interrupt.
        ways_out: What else can be done where there are too many failures.
    """

    def __init__(
        self,
        program: dspy.Module,
        slots: PromptSlots,
        work: MetricWork,
        *,
        names: Sequence[str],
        ledger: Ledger | None = None,
        num_threads: int | None = None,
        max_errors: int | None = None,
        on_cell: Callable[[], object] = lambda: None,
        budget: Budget | None = None,
        interrupted: threading.Event | None = None,
        ways_out: str = "",
    ) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        self.budget = Budget(self.ledger) if budget is None else budget
        self.fingerprint = lambda ordering, example: slots.fingerprint(ordering, work.inputs(example))
        self._factory = ProgramFactory(program)
        self._slots, self._work, self._names, self._on_cell = slots, work, names, on_cell
        self._num_threads = num_threads or dspy.settings.num_threads
        self._interrupted = threading.Event() if interrupted is None else interrupted
        self._lock = threading.Lock()
        self._fatal: BaseException | None = None
        self._max_errors = dspy.settings.max_errors if max_errors is None else max_errors
        self._redact = Redactor([dspy.settings.lm, *language_models(program), *work.models])
        self._ways_out = ways_out
        self._ran = self.ledger.examples_that_ran()
        self._scored = any(not cell.outcome for cell in self.ledger.cells.values())
        self._failed: Counter[int] = Counter()  # by example
        self._kinds: Counter[str] = Counter()

    def pay(self, keys: Sequence[CellKey], orderings: Mapping[CellKey, Ordering]) -> None:
        """Pay for cells that have not been paid; for the first ones only when the budget lets no more calls begin.

        Cells without an ordering are those of work that runs a program of its own. Exceptions of the work come out
        with their own type, at `max_errors` failures, or when every further call would fail.
        """
        build = partial(self._slots.build, self._factory, guarded=True)
        built = {each: build(each) for each in set(orderings.values())}
        programs = {key: built[each] for key, each in orderings.items()}
        cancelled = threading.Event()
        call_all = partial(self._call_all, deque(keys), programs, orderings, cancelled)
        if self._num_threads == 1:  # in this thread, to which what the program holds may be bound
            call_all()
        else:
            pool = ThreadPoolExecutor(num_threads := min(self._num_threads, len(keys)))
            workers: list[Future[None]] = []
            try:
                for _ in range(num_threads):
                    workers.append(pool.submit(copy_context().run, call_all))
                for worker in as_completed(workers):
                    worker.result()
            except BaseException:
                cancelled.set()
                wait(workers, timeout=GRACE)  # their calls are paid
                raise
            finally:
                pool.shutdown(wait=False)
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        if self._fatal is not None:
            self.ledger.retry()
            raise self._fatal
        self.budget.check()

    def _call_all(
        self,
        pending: deque[CellKey],
        programs: Mapping[CellKey, dspy.Module],
        orderings: Mapping[CellKey, Ordering],
        cancelled: threading.Event,
    ) -> None:
        """Make the calls that are pending, one after the other, and note their cells, until something ends it."""
        while not (cancelled.is_set() or self._interrupted.is_set() or self._fatal is not None):
            if not pending or not self.budget.begin():
                return
            try:
                _, example = key = pending.popleft()
            except IndexError:  # another thread took the last one
                self.budget.cancel()
                return
            failure: BaseException | None = None
            with dspy.context(trace=[]), dspy.track_usage() as usage:
                try:
                    cell = self._work(programs.get(key), example, usage)
                except KeyboardInterrupt:
                    raise
                except WrongAnswer as wrong:
                    if isinstance(wrong.error, ContextWindowExceededError) and key in orderings:
                        name, orders = self._names[example], self._slots.permutations(orderings[key])
                        shown = ", ".join(f"{slot}: {order}" for slot, order in orders.items())
                        first = f"{name} exceeds the context window with the demos in the order {shown}"
                        later = f"calls exceeded the context window, the last of {name}"
                        with self._lock:
                            self._warn("the context window", f"{first}; counted as wrong", later)
                    message = self._first_line(wrong)
                    cell = Cell(None, WRONG, type(wrong.error).__name__, message, **wrong.told)
                except BaseException as error:  # of the user's program or metric: never a silent 0
                    cell, failure = Cell(None, FAILED, type(error).__name__, self._first_line(error)), error
            if self._interrupted.is_set() and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt  # swallowed by the program, whose answer is then worth nothing
            tokens = token_counts(usage.get_total_tokens())
            self.budget.end(tokens)
            if not self.ledger.add(key, cell, tokens):
                return  # the compile has ended without this call
            with self._lock:
                if failure is None:
                    self._ran.add(example)
                    self._scored = self._scored or not cell.outcome
                else:
                    self._note(failure, example)
                self._on_cell()

    def _note(self, failure: BaseException, example: int) -> None:
        """Log that a call failed, and end the run if there are too many such calls, or all others would fail."""
        name, what = self._names[example], f"{type(failure).__name__}: {self._first_line(failure)}"
        self._warn(
            what, f"the call on {name} failed: {what}", f"calls failed, the last of them on {name}: {what}"
        )
        self._failed[example] += 1
        each_time = self._ran or self._failed  # where nothing has run, all are of one cause
        count = sum(number if e in each_time else 1 for e, number in self._failed.items())
        if isinstance(failure, HOPELESS):
            reason = "every further call would fail like this"
        elif isinstance(failure, MetricTypeError) and not self._scored:
            reason = "the metric cannot score the first answer"
        elif count >= self._max_errors:
            reason = f"the last of {count} failures (max_errors={self._max_errors}){self._ways_out}"
        else:
            return
        if self._fatal is not None:
            return
        self._fatal = failure
        if not isinstance(failure, Exception):  # SystemExit and the like would end more than the compile
            self._fatal = RuntimeError(f"the program or the metric raised {what}")
            self._fatal.__cause__ = failure
        if hasattr(self._fatal, "add_note"):  # Python 3.11
            self._fatal.add_note(f"plr_dspy ended the compile at {name}: {reason}. {GOING_ON}")

    def _warn(self, kind: str, first: str, later: str) -> None:
        """Log something the first time, and with its number the tenth, the hundredth and so on."""
        self._kinds[kind] += 1
        if self._kinds[kind] == 1:
            logger.warning("%s", first)
        elif str(self._kinds[kind]).strip("0") == "1":
            logger.warning("%d %s", self._kinds[kind], later)

    def _first_line(self, error: BaseException) -> str:
        """The first line of a message, in characters that can be written, without secrets."""
        try:
            text = str(error)
        except Exception as second:
            text = f"its message cannot be read: {type(second).__name__}"
        text = text.strip().split("\n", 1)[0].encode(errors="backslashreplace").decode()
        return self._redact(text)[:200]


def token_counts(tokens: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The token counts of a usage record, which has costs and more beside them; cached ones are among the prompt's."""
    counts = {}
    for model, usage in tokens.items():
        details = usage.get("prompt_tokens_details") or {}
        found = {**usage, **{kind: details[kind] for kind in CACHED if details.get(kind)}}
        counts[model] = {k: n for k, n in found.items() if k.endswith("_tokens") and isinstance(n, int)}
    return counts
