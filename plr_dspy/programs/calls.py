"""Program calls: what each one does, and how those of orderings are made side by side, with their errors kept."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextvars import copy_context
from traceback import walk_tb
from typing import Any

import dspy

from plr_dspy.dspy_compat import AdapterParseError, ContextWindowExceededError, UsageTracker, with_values
from plr_dspy.errors import MetricError, UserError
from plr_dspy.lm.engines import HOPELESS
from plr_dspy.metrics.by_example import SHOWN, Metric, as_score, metric_caller
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.metrics.copies import own_copy, own_value
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.slots import ProgramSlots, PromptSlots
from plr_dspy.report.data import Signal
from plr_dspy.runtime import Redactor, interrupts
from plr_dspy.scoring.budget import UNCOUNTED, Budget
from plr_dspy.scoring.causes import cause_of
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.run_log import FAILED, WRONG, CallKey, CallRecord, RunLog
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

# Exceptions of a program that leave no answer which a metric could call right, by the fault of the order.
WRONG_ANSWERS = (AdapterParseError, ContextWindowExceededError)
CACHED = ("cached_tokens", "cache_creation_tokens")  # kinds of prompt tokens that have prices of their own
OF_PROVIDERS = ("dspy", "lm15", "litellm", "openai")  # packages whose exceptions tell of the model and its server
GRACE = 2.0  # seconds that an interrupt leaves to the calls under way
FAILED_SHARE = 0.05  # of the calls made, that may fail unless `max_errors` is given, or as many as DSPy allows for
# What can be done with a log_dir after an error of the program or the metric.
GOING_ON = ". The same compile goes on from here when you run it again"
AFTER_CHANGES = (
    ". If you change the program or the metric first, pass accept_changes=True if the scores in the log_dir are still "
    "right, or another log_dir if they are not"
)


class WrongAnswer(Exception):
    """The program ended without an answer, by the fault of the order."""

    def __init__(self, error: Exception) -> None:
        text = str(error)
        if isinstance(error, AdapterParseError):
            reply = " ".join(str(error.lm_response).split())
            text = f"{error.adapter_name} could not read the reply {reply[:SHOWN]!r}"
        super().__init__(text)
        self.error = error
        self.told: dict[str, Any] = {}  # what the reply says all the same, as fields of a `CallRecord`


class MetricWork:
    """Makes program calls on examples, which cells name by index, and has a metric score the answers."""

    signal: Signal | None = None  # what a search learns from calls, as far as it is known; None: nothing is learned
    ways_out = ""  # what else can be done where there are too many failures

    def __init__(self, metric: Metric, examples: Sequence[dspy.Example], labels: Sequence[str] = ()) -> None:
        """Take a metric and examples; `labels` are those that the output's type allows, for a metric over a set."""
        self.sample = ""  # the start of the program's first answer, with its score
        self.examples = examples
        self.models = language_models(metric)  # beside the program's own, as far as they are found
        self._over_set = metric if isinstance(metric, SetMetric) else None
        self._metric = metric_caller(metric)
        self.influence: ConfusionScores | None = None  # scores labels, if the metric is one over a set
        if self._over_set is not None:
            self.influence = ConfusionScores(self._over_set, self._over_set.right_labels(examples), labels)

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Call a program's copy on an example, and return the cell; without an answer, that is a `WrongAnswer`."""
        return self._scored(example, self._answered(program, example))

    def _answered(self, program: dspy.Module, example: int) -> Any:
        """Return the answer to an example, while DSPy's settings say which it is."""
        inputs = own_copy(self.examples[example]).inputs()
        original = dict(self.examples[example].inputs().items())  # The program may write to what it gets.
        try:  # Unlike other context variables, DSPy's settings reach the threads that DSPy starts.
            with dspy.context(plr_dspy_scored=original):
                return program(**inputs)
        except WRONG_ANSWERS as error:
            raise WrongAnswer(error) from error

    def _scored(self, example: int, prediction: Any) -> CallRecord:
        """Return the cell of an answer."""
        if dspy.settings.track_usage and isinstance(prediction, dspy.Prediction):
            # DSPy does this only where nobody else tracks usage, and metrics may ask for it.
            prediction.set_lm_usage(dspy.settings.usage_tracker.get_total_tokens())
        score = as_score(self._metric(own_copy(self.examples[example]), prediction))
        self.sample = self.sample or f"{repr(prediction)[:SHOWN]}, scored {score:g}"
        if self._over_set is None:
            return CallRecord(score)
        return CallRecord(score, value=self._over_set.answer(self.examples[example], prediction))


def own_prediction(prediction: Any) -> Any:
    """Return a prediction for a metric that may write to it, which must not reach other metrics."""
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
    """Return the first line of a message, in characters that can be written, without secrets."""
    try:
        text = str(error)
    except Exception as second:
        text = f"its message cannot be read: {type(second).__name__}"
    return redact(text.strip().split("\n", 1)[0].encode(errors="backslashreplace").decode())[:200]


class ProgramEvaluator:
    """Makes the program calls of orderings, in the order asked for: the `Payer` of a DSPy program.

    An example that never runs is one failure, however many orders meet it, unless nothing at all has run. A metric
    that returns no number ends the run at once, unless it has returned one before.
    """

    def __init__(
        self,
        slots: PromptSlots,  # those of the program, of which each ordering has a copy of its own
        work: MetricWork,
        *,
        names: Sequence[str],  # what messages call the examples, which cells name by index
        log: RunLog | None = None,
        num_threads: int | None = None,  # this and the next: None takes DSPy's setting
        max_errors: int | None = None,  # so many failures end the run with the exception of the last
        on_cell: Callable[[], object] = lambda: None,  # called after each cell, from its worker, one at a time
        budget: Budget | None = None,
        interrupted: threading.Event | None = None,  # by a signal: ends the run even if a program swallowed that
    ) -> None:
        self.log = log or RunLog()
        self.budget = budget or Budget(self.log)
        self._slots, self._work, self._names, self._on_cell = slots, work, names, on_cell
        self._num_threads = num_threads or dspy.settings.num_threads
        self._max_errors, self._least_errors = max_errors, dspy.settings.max_errors
        models = [dspy.settings.lm, *language_models(slots.program), *language_models(dspy.settings.adapter)]
        self._redact = Redactor([*models, *work.models, slots.embedder])
        self._interrupted = interrupted or threading.Event()
        self._lock = threading.Lock()
        self._has_found = False  # whether a call was made that finds its demos
        self._ended_by: BaseException | None = None
        self._ran: set[int] = set()  # examples with a call that ended with an answer
        self._failures: Counter[int] = Counter()  # by example
        self._warnings: Counter[str] = Counter()

    def fingerprint(self, ordering: Candidate, example: int | None) -> str:
        """What identifies the prompt that the ordering renders to; of a whole program, on an example."""
        inputs = None if example is None else dict(self._work.examples[example].inputs().items())
        return self._slots.fingerprint(ordering, inputs)

    def pay(self, cells: Mapping[CallKey, Candidate | None]) -> None:
        """Pay for cells that have not been paid; for the first ones only when the budget lets no more calls begin.

        Cells without an ordering are those of work that runs a program of its own. Exceptions of the work come out
        with their own type, at `max_errors` failures, or when every further call would fail.
        """
        self._ran |= {example for (_, example), record in self.log.records.items() if record.outcome != FAILED}
        programs = {each: self._slots.build(each, guarded=True) for each in {*cells.values()} if each is not None}
        pending = deque(cells.items())
        if not self._has_found and (first := self._first_that_finds(cells)) is not None:
            self._has_found = True
            pending.remove(first)
            self._call_all(deque([first]), programs)
        while pending and self.budget.needs_one:
            self._call_all(deque([pending.popleft()]), programs)
        if self._num_threads == 1:  # in this thread, to which what the program holds may be bound
            self._call_all(pending, programs)
        else:
            pool = ThreadPoolExecutor(num_threads := min(self._num_threads, len(cells)))
            workers: list[Future[None]] = []
            try:
                for _ in range(num_threads):
                    workers.append(pool.submit(copy_context().run, self._call_all, pending, programs))
                for worker in as_completed(workers):
                    worker.result()
            except BaseException as error:
                self._ended_by = error
                wait(workers, timeout=GRACE)  # their calls are paid
                raise
            finally:
                pool.shutdown(wait=False)
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        if self._ended_by is not None:
            self.log.repeat_failed()
            raise self._ended_by
        if self.budget.unpriced:
            raise UserError(f"max_cost needs {self.budget.unpriced}: pass max_metric_calls instead")

    def _first_that_finds(self, cells: Mapping[CallKey, Candidate | None]) -> tuple[CallKey, Candidate] | None:
        """Return the first cell whose demos are found for its input: it tells whether they can be, in this program."""
        finding = (
            (key, ordering) for key, ordering in cells.items() if ordering is not None and self._slots.finds(ordering)
        )
        return next(finding, None)

    def _call_all(self, pending: deque[tuple[CallKey, Candidate | None]], programs: Mapping[Any, dspy.Module]) -> None:
        """Make the calls that are pending, one after the other, and note their cells, until something ends it."""
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
                        cell = self._work(programs.get(ordering), example)
                    finally:
                        self._slots.check_calls()
                except KeyboardInterrupt:
                    raise
                except WrongAnswer as wrong:
                    cell = CallRecord(
                        None, WRONG, type(wrong.error).__name__, first_line(wrong, self._redact), **wrong.told
                    )
                except BaseException as error:  # of the user's program or metric: never a silent 0
                    scores = MetricWork._scored.__code__
                    scoring = any(frame.f_code is scores for frame, _ in walk_tb(error.__traceback__))
                    message = f"{'in the metric: ' * scoring}{first_line(error, self._redact)}"
                    cell, failure = CallRecord(None, FAILED, error_name(error), message), error
            if self._interrupted.is_set() and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt  # swallowed by the program, whose answer is then worth nothing
            tokens = usage.counts()
            self.budget.end(tokens)
            if not self.log.add(key, cell, tokens):
                return  # the compile has ended without this call
            with self._lock:
                if failure is None:
                    self._ran.add(example)
                else:
                    self._note(failure, example, f"{cell.error}: {cell.message}")
                self._on_cell()

    def with_slots(self, slots: PromptSlots, work: MetricWork) -> "ProgramEvaluator":
        """Make one of other demos, which goes on with the log and the budget of this one."""
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

    def _note(self, failure: BaseException, example: int, what: str) -> None:
        """Log that a call failed, and end the run if there are too many such calls, or all others would fail."""
        name = self._names[example]
        self._failures[example] += 1
        self._warnings[what] += 1  # told the first time, and with their number the tenth, the hundredth and so on
        if (alike := self._warnings[what]) == 1:
            logger.warning("the call on %s failed: %s", name, what)
        elif str(alike).strip("0") == "1":
            logger.warning("%d calls failed, the last of them on %s: %s", alike, name, what)
        each_time = self._ran or self._failures  # where nothing has run, all are of one cause
        count = sum(number if e in each_time else 1 for e, number in self._failures.items())
        most = self._max_errors or max(self._least_errors, int(FAILED_SHARE * self.log.num_calls))
        cause = cause_of(error_name(failure))
        if isinstance(failure, HOPELESS) or (cause is not None and cause.is_fatal):
            reason = "every further call would fail like this"
        elif isinstance(failure, MetricError) and all(c.outcome for c in list(self.log.records.values())):
            reason = "the metric cannot score the first answer"
        elif count >= most:
            reason = f"the last of {count} failures (max_errors={most})"
            reason += self._work.ways_out if cause is None else ""
        else:
            return
        if self._ended_by is not None:
            return
        self._ended_by = failure
        if not isinstance(failure, Exception):  # SystemExit and the like would end more than the compile
            self._ended_by = RuntimeError(f"the program or the metric raised {what}")
            self._ended_by.__cause__ = failure
        where = f"on {name}{', in the metric' * (': in the metric: ' in what)}"
        going_on = GOING_ON if self.log.path is not None else ""
        if cause is not None:
            reason = f"{reason}: {cause.cure}"
        elif going_on:
            going_on += AFTER_CHANGES
        note = f"({where}: {reason}{going_on})"
        # As add_note does, which Python 3.10 lacks.
        self._ended_by.__notes__ = [*getattr(self._ended_by, "__notes__", ()), note]


class Usage(UsageTracker):
    """Tracks the usage of one program call as `dspy.track_usage` does, and the replies that come without any."""

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        counted = usage_entry.get("prompt_tokens") or usage_entry.get("completion_tokens")
        super().add_usage(lm, usage_entry if counted else {UNCOUNTED: 1})

    def counts(self) -> dict[str, dict[str, int]]:
        """Tokens by model and kind; cached ones are among the prompt's."""
        counts = {}
        for model, usage in self.get_total_tokens().items():
            details = usage.get("prompt_tokens_details") or {}
            found = {**usage, **{kind: details[kind] for kind in CACHED if details.get(kind)}}
            kept = {k: n for k, n in found.items() if k.endswith("_tokens") or k == UNCOUNTED}
            counts[model] = {k: n for k, n in kept.items() if isinstance(n, int)}
        return counts


def adapter_advice() -> str:
    """Say which adapter reads the replies, and what to try where it cannot, as the end of a sentence."""
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
) -> tuple[list[CallRecord], CellScorer]:
    """Call a program as it is on each of so many examples, `called` so in messages; options are the evaluator's.

    Before all are called, so many `first` ones are, and their cells go to a `check`, which may raise.
    """
    slots, names = ProgramSlots(program), [f"{called} {i}" for i in range(number)]
    with interrupts() as interrupted:
        scorer = CellScorer(ProgramEvaluator(slots, work, names=names, interrupted=interrupted, **options))
        for count in [*first, number]:
            (row,) = scorer.cells({slots.space.identity: range(min(count, number))}).values()
            check(list(row.values()))
    return list(row.values()), scorer
