"""Program calls: what each one does, and how those of orderings are made side by side, with their errors kept."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextvars import copy_context
from traceback import walk_tb
from typing import Any, TypeAlias

import dspy

from plr_dspy.dspy_compat import AdapterParseError, ContextWindowExceededError, UsageTracker, with_values
from plr_dspy.errors import MetricError, UserError
from plr_dspy.lm.engines import HOPELESS
from plr_dspy.metrics.by_example import SHOWN, Metric, as_score, metric_caller
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.metrics.copies import own_copy, own_value
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.slots import ProgramSlots, PromptSlots
from plr_dspy.report.schema import Signal
from plr_dspy.runtime import Redactor, interrupts
from plr_dspy.scoring.budget import UNCOUNTED, Budget
from plr_dspy.scoring.causes import cause_of
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import FAILED, WRONG, CallKey, CallRecord, RunLog
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

PendingCalls: TypeAlias = deque[tuple[CallKey, Candidate | None]]

WRONG_ANSWERS = (AdapterParseError, ContextWindowExceededError)
"""Exceptions that count as wrong answers, because other demos might avoid them."""
CACHED = ("cached_tokens", "cache_creation_tokens")
"""Kinds of prompt tokens that have prices of their own."""
OF_PROVIDERS = ("dspy", "lm15", "litellm", "openai")
"""Packages whose exceptions are about the model and its server."""
IN_METRIC = "in the metric: "
"""The start of the message of an error that a metric raised."""
GRACE = 2.0
"""Seconds that an interrupt leaves to the calls under way."""
FAILED_SHARE = 0.05
"""The share of calls that may fail unless `max_errors` is given; DSPy's setting allows for more if calls are few."""
# What can be done with a log_dir after an error of the program or the metric.
GOING_ON = ". The same compile goes on from here when you run it again"
AFTER_CHANGES = (
    ". If you change the program or the metric first, pass accept_changes=True if the scores in the log_dir are still "
    "right, or another log_dir if they are not"
)


class WrongAnswer(Exception):
    """The program ended without an answer, which other demos might avoid.

    Attributes:
        told: What the reply says all the same, as fields of a `CallRecord`.
    """

    def __init__(self, error: Exception) -> None:
        text = str(error)
        if isinstance(error, AdapterParseError):
            reply = " ".join(str(error.lm_response).split())
            text = f"{error.adapter_name} could not read the reply {reply[:SHOWN]!r}"
        super().__init__(text)
        self.error = error
        self.told: dict[str, Any] = {}


class MetricWork:
    """Makes program calls on examples, and has a metric score the answers.

    Attributes:
        signal: What a search learns from calls, as far as it is known; None if it learns nothing.
        ways_out: What else can be done if too many calls fail.
        sample: The start of the program's first answer, with its score.
        models: The language models of the metric, as far as they can be found.
        influence: What scores labels if the metric is one over a set.
    """

    signal: Signal | None = None
    ways_out = ""

    def __init__(self, metric: Metric, examples: Sequence[dspy.Example], labels: Sequence[str] = ()) -> None:
        """Take a metric and examples; `labels` are those that the output's type allows, for a metric over a set."""
        self.sample = ""
        self.examples = examples
        self.models = language_models(metric)
        self._over_set = metric if isinstance(metric, SetMetric) else None
        self._metric = metric_caller(metric)
        self.influence: ConfusionScores | None = None
        if self._over_set is not None:
            self.influence = ConfusionScores(self._over_set, self._over_set.right_labels(examples), labels)

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Call a program's copy on an example, and return the record; raise `WrongAnswer` without an answer."""
        return self._scored(example, self._answered(program, example))

    def _answered(self, program: dspy.Module, example: int) -> Any:
        """Return the answer to an example; DSPy's settings contain the example's inputs meanwhile."""
        # The program may write to its inputs.
        inputs = own_copy(self.examples[example]).inputs()
        original = dict(self.examples[example].inputs().items())
        try:
            # Unlike other context variables, DSPy's settings reach the threads that DSPy starts.
            with dspy.context(plr_dspy_scored=original):
                return program(**inputs)
        except WRONG_ANSWERS as error:
            raise WrongAnswer(error) from error

    def _scored(self, example: int, prediction: Any) -> CallRecord:
        """Return the record of an answer."""
        if dspy.settings.track_usage and isinstance(prediction, dspy.Prediction):
            # Metrics may ask for the usage, which DSPy sets only if nobody else tracks it.
            prediction.set_lm_usage(dspy.settings.usage_tracker.get_total_tokens())
        score = as_score(self._metric(own_copy(self.examples[example]), prediction))
        self.sample = self.sample or f"{repr(prediction)[:SHOWN]}, scored {score:g}"
        if self._over_set is None:
            return CallRecord(score)
        return CallRecord(score, value=self._over_set.answer(self.examples[example], prediction))


def own_prediction(prediction: Any) -> Any:
    """Return a copy of a prediction, so that a metric that writes to it does not affect other metrics."""
    if type(prediction) is not dspy.Prediction:
        return prediction
    return with_values(prediction, {name: own_value(value) for name, value in prediction.items()})


def error_name(error: BaseException) -> str:
    """Return the name of an exception's class, with its package if it only has the name of a provider's."""
    name = type(error).__name__
    package = type(error).__module__.partition(".")[0]
    if cause_of(name) is None or package in OF_PROVIDERS:
        return name
    return f"{package}.{name}"


def first_line(error: BaseException, redact: Redactor) -> str:
    """Return the first line of an error's message, in characters that can be written, without secrets."""
    try:
        text = str(error)
    except Exception as second:
        text = f"its message cannot be read: {type(second).__name__}"
    line = text.strip().split("\n", 1)[0]
    writable = line.encode(errors="backslashreplace").decode()
    return redact(writable)[:200]


class ProgramEvaluator:
    """Makes the program calls of orderings, in the requested order: the `Payer` of a DSPy program.

    An example that never runs counts as one failure, however many orders meet it, unless nothing at all has run. A
    metric that returns no number ends the run at once, unless it has returned one before.

    Args:
        slots: Those of the program, of which each ordering gets a copy of its own.
        work: Makes the calls.
        names: What messages call the examples.
        log: Keeps the records.
        num_threads: Number of calls at once; None takes DSPy's setting.
        max_errors: The number of failures that ends the run with the last exception; None takes DSPy's setting.
        on_cell: Called after each call, from its worker, one at a time.
        budget: Says whether a further call may begin.
        interrupted: Set by a signal; ends the run even if a program swallowed the interrupt.
    """

    def __init__(
        self,
        slots: PromptSlots,
        work: MetricWork,
        *,
        names: Sequence[str],
        log: RunLog | None = None,
        num_threads: int | None = None,
        max_errors: int | None = None,
        on_cell: Callable[[], object] = lambda: None,
        budget: Budget | None = None,
        interrupted: threading.Event | None = None,
    ) -> None:
        self.log = log or RunLog()
        self.budget = budget or Budget(self.log)
        self._slots = slots
        self._work = work
        self._names = names
        self._on_cell = on_cell
        self._num_threads = num_threads or dspy.settings.num_threads
        self._max_errors = max_errors
        self._least_errors = dspy.settings.max_errors
        models = [dspy.settings.lm, *language_models(slots.program), *language_models(dspy.settings.adapter)]
        self._redact = Redactor([*models, *work.models, slots.embedder])
        self._interrupted = interrupted or threading.Event()
        self._lock = threading.Lock()
        self._has_found_demos = False
        self._ended_by: BaseException | None = None
        self._answered_examples: set[int] = set()
        self._failures_by_example: Counter[int] = Counter()
        self._warnings: Counter[str] = Counter()

    def fingerprint(self, ordering: Candidate, example: int | None) -> str:
        """Return what identifies the prompt of an ordering, or of a whole program on an example."""
        inputs = None if example is None else dict(self._work.examples[example].inputs().items())
        return self._slots.fingerprint(ordering, inputs)

    def pay(self, cells: Mapping[CallKey, Candidate | None]) -> None:
        """Make the calls of these cells, or only the first ones if the budget allows no more.

        Cells without an ordering are those of work that runs a program of its own. Exceptions of the work are raised
        with their own type, at `max_errors` failures, or if every further call would fail.
        """
        records = self.log.records.items()
        self._answered_examples |= {example for (_, example), record in records if record.outcome != FAILED}
        orderings = {ordering for ordering in cells.values() if ordering is not None}
        programs = {ordering: self._slots.build(ordering, guarded=True) for ordering in orderings}
        pending = deque(cells.items())
        first = None if self._has_found_demos else self._first_that_finds(cells)
        if first is not None:
            self._has_found_demos = True
            pending.remove(first)
            self._call_all(deque([first]), programs)
        while pending and self.budget.needs_one:
            self._call_all(deque([pending.popleft()]), programs)
        if self._num_threads == 1:
            # What the program contains may be bound to this thread.
            self._call_all(pending, programs)
        else:
            self._call_in_threads(pending, programs, min(self._num_threads, len(cells)))
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        if self._ended_by is not None:
            raise self._ended_by
        if self.budget.unpriced:
            raise UserError(f"max_cost needs {self.budget.unpriced}: pass max_metric_calls instead")

    def _call_in_threads(
        self, pending: PendingCalls, programs: Mapping[Candidate, dspy.Module], num_threads: int
    ) -> None:
        """Make the pending calls in threads, and wait for them."""
        pool = ThreadPoolExecutor(num_threads)
        workers: list[Future[None]] = []
        try:
            for _ in range(num_threads):
                workers.append(pool.submit(copy_context().run, self._call_all, pending, programs))
            for worker in as_completed(workers):
                worker.result()
        except BaseException as error:
            self._ended_by = error
            # The calls under way are paid for.
            wait(workers, timeout=GRACE)
            raise
        finally:
            pool.shutdown(wait=False)

    def _first_that_finds(self, cells: Mapping[CallKey, Candidate | None]) -> tuple[CallKey, Candidate] | None:
        """Return the first cell whose demos are found for its input: it shows whether this program can find any."""
        for key, ordering in cells.items():
            if ordering is not None and self._slots.finds(ordering):
                return key, ordering
        return None

    def _call_all(self, pending: PendingCalls, programs: Mapping[Candidate, dspy.Module]) -> None:
        """Make the pending calls one after the other, and keep their records, until something ends the run."""
        while not (self._interrupted.is_set() or self._ended_by is not None):
            with self._lock:
                if not pending or not self.budget.begin():
                    return
                key, ordering = pending.popleft()
            example = key[1]
            failure: BaseException | None = None
            usage = Usage()
            with dspy.context(trace=[], usage_tracker=usage):
                try:
                    try:
                        program: Any = None if ordering is None else programs[ordering]
                        cell = self._work(program, example)
                    finally:
                        self._slots.check_calls()
                except KeyboardInterrupt:
                    raise
                except WrongAnswer as wrong:
                    cell = CallRecord(
                        None, WRONG, type(wrong.error).__name__, first_line(wrong, self._redact), **wrong.told
                    )
                except BaseException as error:  # An error of the program or the metric is never a silent 0.
                    scores = MetricWork._scored.__code__
                    message = first_line(error, self._redact)
                    if any(frame.f_code is scores for frame, _ in walk_tb(error.__traceback__)):
                        message = f"{IN_METRIC}{message}"
                    cell = CallRecord(None, FAILED, error_name(error), message)
                    failure = error
            if self._interrupted.is_set() and threading.current_thread() is threading.main_thread():
                # The program swallowed the interrupt, so its answer is worth nothing.
                raise KeyboardInterrupt
            tokens = usage.counts()
            self.budget.end(tokens)
            if not self.log.add(key, cell, tokens):
                return  # The compile has ended without this call.
            with self._lock:
                if failure is None:
                    self._answered_examples.add(example)
                else:
                    self._note(failure, example, f"{cell.error}: {cell.message}")
                self._on_cell()

    def with_slots(self, slots: PromptSlots, work: MetricWork) -> "ProgramEvaluator":
        """Return an evaluator of other demos with the log and the budget of this one."""
        return ProgramEvaluator(
            slots,
            work,
            names=self._names,
            log=self.log,
            num_threads=self._num_threads,
            max_errors=self._max_errors,
            on_cell=self._on_cell,
            budget=self.budget,
            interrupted=self._interrupted,
        )

    def _note(self, failure: BaseException, example: int, message: str) -> None:
        """Log that a call failed, and end the run if there are too many failures, or all other calls would fail."""
        name = self._names[example]
        self._failures_by_example[example] += 1
        self._warnings[message] += 1
        num_alike = self._warnings[message]
        if num_alike == 1:
            logger.warning("the call on %s failed: %s", name, message)
        elif str(num_alike).strip("0") == "1":  # 10, 100 and so on
            logger.warning("%d calls failed, the last of them on %s: %s", num_alike, name, message)
        reason = self._reason_to_end(failure)
        if not reason or self._ended_by is not None:
            return
        self._ended_by = failure
        if not isinstance(failure, Exception):
            # SystemExit and the like would end more than the compile.
            self._ended_by = RuntimeError(f"the program or the metric raised {message}")
            self._ended_by.__cause__ = failure
        place = f"on {name}"
        if f": {IN_METRIC}" in message:
            place += ", in the metric"
        going_on = GOING_ON if self.log.path is not None else ""
        cause = cause_of(error_name(failure))
        if cause is not None:
            reason = f"{reason}: {cause.cure}"
        elif going_on:
            going_on += AFTER_CHANGES
        # Python 3.10 lacks add_note.
        self._ended_by.__notes__ = [*getattr(self._ended_by, "__notes__", ()), f"({place}: {reason}{going_on})"]

    def _reason_to_end(self, failure: BaseException) -> str:
        """Return the reason to end the run after a failure, or an empty string."""
        cause = cause_of(error_name(failure))
        if isinstance(failure, HOPELESS) or (cause is not None and cause.is_fatal):
            return "every further call would fail like this"
        if isinstance(failure, MetricError) and all(record.outcome for record in list(self.log.records.values())):
            return "the metric cannot score the first answer"
        # If nothing has run, all failures have one cause.
        repeatable = self._answered_examples or self._failures_by_example
        num_failures = 0
        for example, number in self._failures_by_example.items():
            num_failures += number if example in repeatable else 1
        most = self._max_errors or max(self._least_errors, int(FAILED_SHARE * self.log.num_calls))
        if num_failures < most:
            return ""
        reason = f"the last of {num_failures} failures (max_errors={most})"
        return reason if cause is not None else f"{reason}{self._work.ways_out}"


class Usage(UsageTracker):
    """Tracks the usage of one program call as `dspy.track_usage` does, and the replies that come without any."""

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        counted = usage_entry.get("prompt_tokens") or usage_entry.get("completion_tokens")
        super().add_usage(lm, usage_entry if counted else {UNCOUNTED: 1})

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the tokens by model and kind; cached ones are among the prompt's."""
        counts = {}
        for model, usage in self.get_total_tokens().items():
            numbers = {kind: n for kind, n in usage.items() if kind.endswith("_tokens") or kind == UNCOUNTED}
            details = usage.get("prompt_tokens_details") or {}
            for kind in CACHED:
                if details.get(kind):
                    numbers[kind] = details[kind]
            counts[model] = {kind: n for kind, n in numbers.items() if isinstance(n, int)}
        return counts


def adapter_advice() -> str:
    """Return what to try if the adapter cannot read the replies, as the end of a sentence."""
    adapter = type(dspy.settings.adapter or dspy.ChatAdapter()).__name__
    others = {
        "PlainTextAdapter": "PlainTextAdapter() for small and base models",
        "JSONAdapter": "dspy.JSONAdapter()",
        "ChatAdapter": "dspy.ChatAdapter()",
    }
    others.pop(adapter, None)
    named = ", ".join(others.values())
    return (
        f"try another adapter than {adapter} ({named}; on the command line --adapter), a larger model, or a larger "
        "max_tokens if replies are cut"
    )


def calls_on(
    program: dspy.Module,
    work: MetricWork,
    number: int,
    *,
    called: str,
    first: Sequence[int] = (),
    check: Callable[[list[CallRecord]], object] = list,
    **options: Any,
) -> tuple[list[CallRecord], Evaluator]:
    """Call a program as it is on examples, and return the records.

    Args:
        program: The program.
        work: Makes the calls.
        number: The number of examples.
        called: What messages call an example.
        first: Numbers of examples to call before all of them.
        check: Gets the records of each such part, and may raise.
        options: Those of `ProgramEvaluator`.
    """
    slots = ProgramSlots(program)
    names = [f"{called} {i}" for i in range(number)]
    with interrupts() as interrupted:
        scorer = Evaluator(ProgramEvaluator(slots, work, names=names, interrupted=interrupted, **options))
        for count in [*first, number]:
            (row,) = scorer.evaluate({slots.space.identity: range(min(count, number))}).values()
            check(list(row.values()))
    return list(row.values()), scorer
