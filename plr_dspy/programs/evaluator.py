"""Makes the program calls of orderings side by side: each is noted when it ends, errors are kept."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextvars import copy_context
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import ContextWindowExceededError

from plr_dspy.lm.engines import HOPELESS
from plr_dspy.programs.calls import Metric, MetricTypeError, MetricWork, WrongAnswer
from plr_dspy.programs.copies import ProgramFactory, language_models
from plr_dspy.programs.slots import PromptSlots
from plr_dspy.runtime.redaction import Redactor
from plr_dspy.scoring.budget import Budget
from plr_dspy.scoring.cells import FAILED, WRONG, Cell, CellKey
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.scoring.scorer import CellScorer
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

    Args:
        program: Never changed; each ordering has a copy of its own.
        names: What messages call the examples, which cells name by index.
        ledger: Gets every cell when its call has ended.
        num_threads: Calls under way at once; None takes DSPy's setting.
        max_errors: So many failures (see `Failures`) end the run with the exception of the last; None takes DSPy's
            setting.
        on_cell: Called after each cell, from the worker that ran it, one at a time.
        budget: Lets calls begin; None for no limit.
        interrupted: Set by a signal; ends the run even if a program swallowed the interrupt.
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
        on_cell: Callable[[], None] = lambda: None,
        budget: Budget | None = None,
        interrupted: threading.Event | None = None,
    ) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        self.budget = Budget(self.ledger) if budget is None else budget
        self.failures = Failures(
            names,
            ran=self.ledger.examples_that_ran(),
            scored=any(cell.score is not None for cell in self.ledger.cells.values()),
            max_errors=max_errors,
            redact=Redactor([dspy.settings.lm, *language_models(program), *work.models]),
        )
        self.fingerprint = lambda ordering, example: slots.fingerprint(ordering, work.inputs(example))
        self._factory = ProgramFactory(program)
        self._slots, self._work, self._names, self._on_cell = slots, work, names, on_cell
        self._num_threads = num_threads or dspy.settings.num_threads
        self._interrupted = threading.Event() if interrupted is None else interrupted
        self._lock = threading.Lock()

    def pay(self, keys: Sequence[CellKey], orderings: Mapping[str, Ordering]) -> None:
        """Pay for cells that have not been paid; for the first ones only when the budget lets no more calls begin.

        Raises:
            Exception: of the work, with its own type, at `max_errors` failures, or when every further call would fail.
        """
        built = {
            each: self._slots.build(self._factory, each, guarded=True) for each in set(orderings.values())
        }
        programs = {name: built[each] for name, each in orderings.items()}
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
        if self.failures.fatal is not None:
            self.ledger.retry()
            raise self.failures.fatal
        self.budget.check()

    def _call_all(
        self,
        pending: deque[CellKey],
        programs: Mapping[str, dspy.Module],
        orderings: Mapping[str, Ordering],
        cancelled: threading.Event,
    ) -> None:
        """Make the calls that are pending, one after the other, and note their cells, until something ends it."""
        while not (cancelled.is_set() or self._interrupted.is_set() or self.failures.fatal is not None):
            if not pending or not self.budget.begin():
                return
            try:
                key = pending.popleft()
            except IndexError:  # another thread took the last one
                self.budget.cancel()
                return
            failure: BaseException | None = None
            with dspy.context(trace=[]), dspy.track_usage() as usage:
                try:
                    cell = self._work(programs[key[0]], key[1], usage)
                except KeyboardInterrupt:
                    raise
                except WrongAnswer as wrong:
                    if isinstance(wrong.error, ContextWindowExceededError):
                        self._note_too_long(self._names[key[1]], orderings[key[0]])
                    message = self.failures.first_line(wrong)
                    cell = Cell(None, WRONG, type(wrong.error).__name__, message, **wrong.told)
                except BaseException as error:  # of the user's program or metric: never a silent 0
                    message = self.failures.first_line(error)
                    cell, failure = Cell(None, FAILED, type(error).__name__, message), error
            if self._interrupted.is_set() and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt  # swallowed by the program, whose answer is then worth nothing
            tokens = token_counts(usage.get_total_tokens())
            self.budget.end(tokens)
            if not self.ledger.add(key, cell, tokens):
                return  # the compile has ended without this call
            with self._lock:
                if failure is not None:
                    self.failures.note(failure, key[1])
                else:
                    self.failures.note_answer(key[1], scored=cell.score is not None)
                self._on_cell()

    def _note_too_long(self, name: str, ordering: Ordering) -> None:
        """Say which demos are too long; where they alone are, every call is."""
        orders = ", ".join(f"{slot}: {order}" for slot, order in self._slots.permutations(ordering).items())
        with self._lock:
            self.failures.say_at_milestones(
                "the context window",
                f"{name} exceeds the context window with the demos in the order {orders}; counted as wrong",
                f"calls exceeded the context window, the last of {name}",
            )


class Failures:
    """The failures of a run; `fatal` is the exception that ends it.

    An example that never runs is one failure, whatever the number of orders that meet it: unless nothing at all has
    run. A metric that returns no number ends the run at once, unless it has returned one before.

    Args:
        ran, scored: Examples that ran before, and whether the metric has returned a number before.
        max_errors: So many failures are too many; None takes DSPy's setting.
        ways_out: What else can be done when there are too many.
    """

    def __init__(
        self,
        names: Sequence[str] | Mapping[int, str],
        *,
        ran: Iterable[int],
        scored: bool,
        max_errors: int | None,
        redact: Callable[[str], str],
        ways_out: str = "",
    ) -> None:
        self.fatal: BaseException | None = None
        self._max_errors = dspy.settings.max_errors if max_errors is None else max_errors
        self._names, self._redact, self._ways_out = names, redact, ways_out
        self._counts: Counter[int] = Counter()
        self._kinds: Counter[str] = Counter()
        self._ran, self._scored = set(ran), scored

    def note_answer(self, example: int, *, scored: bool) -> None:
        """Note that a call ended with an answer, which the metric may have scored."""
        self._ran.add(example)
        self._scored = self._scored or scored

    def note(self, failure: BaseException, example: int) -> None:
        """A call on the example failed; that is logged the first time, the tenth, and so on."""
        name = self._names[example]
        what = f"{type(failure).__name__}: {self.first_line(failure)}"
        self.say_at_milestones(
            what, f"the call on {name} failed: {what}", f"calls failed, the last of them on {name}: {what}"
        )
        self._counts[example] += 1
        if self.fatal is not None:
            return
        each_time = self._ran or self._counts  # where nothing has run, all are of one cause
        count = sum(number if e in each_time else 1 for e, number in self._counts.items())
        reason = ""
        if isinstance(failure, HOPELESS):
            reason = "every further call would fail like this"
        elif isinstance(failure, MetricTypeError) and not self._scored:
            reason = "the first value of the metric is no number"
        elif count >= self._max_errors:
            reason = f"the last of {count} failures (max_errors={self._max_errors}){self._ways_out}"
        if not reason:
            return
        self.fatal = failure
        if not isinstance(failure, Exception):  # SystemExit and the like would end more than the compile
            self.fatal = RuntimeError(f"the program or the metric raised {what}")
            self.fatal.__cause__ = failure
        if hasattr(self.fatal, "add_note"):  # Python 3.11
            self.fatal.add_note(f"plr_dspy ended the compile at {name}: {reason}. {GOING_ON}")

    def say_at_milestones(self, kind: str, first: str, later: str) -> None:
        """Log something the first time, and with its number the tenth, the hundredth and so on."""
        self._kinds[kind] += 1
        if self._kinds[kind] == 1:
            logger.warning("%s", first)
        elif str(self._kinds[kind]).strip("0") == "1":
            logger.warning("%d %s", self._kinds[kind], later)

    def first_line(self, error: BaseException) -> str:
        """Of its message, in characters that can be written, without secrets."""
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


def program_scorer(
    program: dspy.Module,
    slots: PromptSlots,
    *,
    metric: Metric,
    examples: Sequence[dspy.Example],
    max_metric_calls: int | None = None,
    **options: Any,
) -> CellScorer:
    """Make the scorer of a program's orderings by a metric; options are those of `ProgramEvaluator`."""
    options.setdefault("names", [f"example {i}" for i in range(len(examples))])
    evaluator = ProgramEvaluator(program, slots, MetricWork(metric, examples), **options)
    evaluator.budget.max_calls = max_metric_calls
    return CellScorer(evaluator)
