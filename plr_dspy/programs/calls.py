"""Concurrent program calls, and the records of their scores, wrong answers and failures."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextvars import copy_context
from dataclasses import replace
from traceback import walk_tb
from typing import Any, NamedTuple, TypeAlias

import dspy

from plr_dspy.dspy_compat import (
    AdapterParseError,
    ContextWindowExceededError,
    TruncationCounter,
    UsageTracker,
    current_adapter,
    with_caller,
)
from plr_dspy.errors import FatalLMError, MissingFieldError, UserError
from plr_dspy.metrics.by_example import SHOWN, Metric, as_score, metric_caller
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.metrics.copies import own_copy
from plr_dspy.metrics.fields import check_field
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.slots import PromptSlots
from plr_dspy.report.formats import one_line, shorten
from plr_dspy.report.schema import Signal
from plr_dspy.runtime import Redactor, interrupts
from plr_dspy.scoring.budget import UNCOUNTED, Budget
from plr_dspy.scoring.causes import Cause, cause_of
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import FAILED, WRONG, CallKey, CallRecord, RunLog
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

PendingCalls: TypeAlias = deque[tuple[CallKey, Candidate | None]]

# Other demos might avoid these errors, so treat them as wrong answers, not as failures.
WRONG_ANSWERS = (AdapterParseError, ContextWindowExceededError)
PROVIDER_PACKAGES = ("dspy", "lm15", "litellm", "openai")
CACHED_TOKENS = ("cached_tokens", "cache_creation_tokens")  # kinds of prompt tokens with separate prices
SECONDS_AFTER_INTERRUPT = 2.0  # maximum time to wait for running calls
MAX_LINE = 200  # maximum number of characters in a logged error message
FAILED_SHARE = 0.05  # limit on failed examples, as a share of the calls, if above DSPy's max_errors


class WrongAnswer(Exception):
    """An error that is recorded as a wrong answer, with `record_fields` as extra fields of the record."""

    def __init__(self, error: Exception) -> None:
        text = str(error)
        if isinstance(error, AdapterParseError):
            reply = " ".join(str(error.lm_response).split())
            text = f"{error.adapter_name} could not parse the reply {shorten(reply, SHOWN)!r}"
        super().__init__(text)
        self.error = error
        self.record_fields: dict[str, Any] = {}


class FinishedCall(NamedTuple):
    """The record of a program call, its token counts, and the exception if the call failed."""

    record: CallRecord
    tokens: dict[str, dict[str, int]]
    failure: BaseException | None


class MetricWork:
    """A callable that runs a program on an example and scores the answer.

    Args:
        metric: A metric over a set of examples, or a metric that scores single examples.
        examples: Examples with inputs and labels.
        labels: Labels that the output's type allows. Only metrics over a set use this argument.
    """

    signal: Signal | None = None  # the signal that the search learns from, for the report
    failure_advice = ""  # advice at the end of the error message if too many calls fail

    # Advice for users who fix the cause of failures before they resume the run.
    advice_on_changes = (
        "if you change the program or the metric, pass accept_changes=True or another log_dir"
    )

    def __init__(
        self, metric: Metric, examples: Sequence[dspy.Example], labels: Sequence[str] = ()
    ) -> None:
        self.sample = ""  # the first answer and its score
        self.examples = examples
        self.models = language_models(metric)
        self._over_set = metric if isinstance(metric, SetMetric) else None
        self._metric = metric_caller(metric)
        self.confusion_scores: ConfusionScores | None = None
        if self._over_set is not None:
            self.confusion_scores = ConfusionScores(
                self._over_set, self._over_set.right_labels(examples), labels
            )

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Call a program on an example, and return a record with the answer's score.

        Raise `WrongAnswer` if the reply cannot be parsed or the prompt exceeds the context window.
        """
        return self._scored(example, self._answered(program, example))

    def answering(self, program: dspy.Module, revision: Revision | None) -> dspy.Module:
        """Return `program` itself. Subclasses may return a program that revises its answers."""
        return program

    def _answered(self, program: dspy.Module, example: int) -> Any:
        # The program may modify its inputs, so pass a copy.
        inputs = own_copy(self.examples[example]).inputs()
        original = dict(self.examples[example].inputs().items())
        try:
            # Store the inputs in DSPy's settings because, unlike other context variables, these
            # settings reach the threads that DSPy starts.
            with dspy.context(plr_dspy_scored=original, **_truncation_counting()):
                return program(**inputs)
        except Exception as error:
            # Compare names, too, because custom LMs may raise litellm's exception instead of DSPy's.
            if (
                isinstance(error, WRONG_ANSWERS)
                or type(error).__name__ == ContextWindowExceededError.__name__
            ):
                raise WrongAnswer(error) from error
            raise

    def _judged(self, example: int, prediction: Any) -> object:
        """Return the metric's value for an answer."""
        if dspy.settings.track_usage and isinstance(prediction, dspy.Prediction):
            # Metrics may read the token usage. DSPy does not set it while another usage tracker is
            # active.
            prediction.set_lm_usage(dspy.settings.usage_tracker.get_total_tokens())
        example_copy = own_copy(self.examples[example])
        try:
            return self._metric(example_copy, prediction)
        except (AttributeError, KeyError) as error:
            check_field(error, example_copy, self.examples)
            raise

    def _scored(self, example: int, prediction: Any) -> CallRecord:
        score = as_score(self._judged(example, prediction))
        self.sample = self.sample or f"{one_line(repr(prediction), SHOWN)}, scored {score:g}"
        if self._over_set is None:
            return CallRecord(score)
        return CallRecord(score, value=self._over_set.answer(self.examples[example], prediction))


def _truncation_counting() -> dict[str, list[Any]]:
    """Return DSPy settings that report LM calls to the counter of truncated replies, if there is one."""
    counter = dspy.settings.get("plr_dspy_truncated")
    if counter is None:
        return {}
    return with_caller(counter)


def error_name(error: BaseException) -> str:
    """Return the name of an exception's class.

    Prefix the name with the class's package if the name could be mistaken for a provider's error.
    """
    name = type(error).__name__
    package = type(error).__module__.partition(".")[0]
    if cause_of(name) is None or package in PROVIDER_PACKAGES:
        return name
    return f"{package}.{name}"


def first_line(error: BaseException, redact: Redactor) -> str:
    """Return the first line of an error's message, shortened and without secrets."""
    line = str(error).strip().split("\n", 1)[0]
    encodable = line.encode(errors="backslashreplace").decode()
    return shorten(redact(encodable), MAX_LINE)


def _raised_by_metric(error: BaseException) -> bool:
    scoring_code = (MetricWork._scored.__code__, MetricWork._judged.__code__)
    return any(frame.f_code in scoring_code for frame, _ in walk_tb(error.__traceback__))


class ProgramEvaluator:
    """A `Payer` that calls candidates' programs on examples.

    Args:
        slots: Builds a program for each candidate. Callers may replace this attribute between batches.
        work: Makes a program call and scores the answer.
        names: Names of the examples in messages.
        log: Stores the call records, and writes them to disk if the log has a path.
        num_threads: Maximum number of concurrent calls. If None, DSPy's setting is used.
        max_errors: The run ends when calls have failed on this many examples. If None, the
            number is the larger of DSPy's setting and 5% of this evaluator's calls.
        on_cell: A function to call after each program call.
        budget: Decides whether another call may start.
        interrupted: An event that is set after an interrupt. It ends the run even if the
            program swallows the KeyboardInterrupt.
    """

    def __init__(
        self,
        slots: PromptSlots,
        work: MetricWork,
        *,
        names: Sequence[str] | Mapping[int, str],
        log: RunLog | None = None,
        num_threads: int | None = None,
        max_errors: int | None = None,
        on_cell: Callable[[], object] = lambda: None,
        budget: Budget | None = None,
        interrupted: threading.Event | None = None,
    ) -> None:
        self.log = log or RunLog()
        self._num_earlier_calls = self.log.num_calls  # number of calls that were already in the log
        self.budget = budget or Budget(self.log)
        self.slots = slots
        self._work = work
        self._names = names
        self._on_cell = on_cell
        self._num_threads = num_threads or dspy.settings.num_threads
        self._max_errors = max_errors
        self._default_max_errors = dspy.settings.max_errors
        models = [
            dspy.settings.lm,
            *language_models(slots.program),
            *language_models(dspy.settings.adapter),
        ]
        for rival in slots.rivals.values():
            models += language_models(rival.program)
        self._redact = Redactor([*models, *work.models, slots.embedder])
        self._interrupted = interrupted or threading.Event()
        self._lock = threading.Lock()
        self._ended_by: BaseException | None = None
        self._failed_examples: set[int] = set()
        self._priced: set[Candidate] = set()  # rivals that were called to find the cost of a call
        self._warnings: set[str] = set()

    def fingerprint(self, ordering: Candidate, example: int | None) -> str:
        """Return a digest of a candidate's prompts. Pass `example` if the demos depend on its inputs."""
        inputs = None if example is None else dict(self._work.examples[example].inputs().items())
        return self.slots.fingerprint(ordering, inputs)

    def pay(self, cells: Mapping[CallKey, Candidate | None]) -> None:
        """Make the calls in `cells`, starting them in the given order, until the budget is spent.

        If `cells` maps a key to None instead of a candidate, `work` runs its own program. If there
        is a maximum cost, new rivals are called first.

        Raises:
            KeyboardInterrupt: If the run is interrupted.
            ValueError: If the budget has a maximum cost, but the price of a call is unknown.
            Exception: The error of the last failed call, if the failures reach `max_errors` or if
                every further call would fail in the same way.
        """
        self.log.begin_batch()
        orderings = {ordering for ordering in cells.values() if ordering is not None}
        programs = {ordering: self.slots.build(ordering, guarded=True) for ordering in orderings}
        pending = deque(cells.items())
        if self.budget.max_cost is not None:
            self._call_each_rival(pending, programs)
        while pending and self.budget.needs_one:
            self._call_all(deque([pending.popleft()]), programs)
        if self._num_threads == 1:
            # Stay in this thread, because the program may use objects that work only in this thread.
            self._call_all(pending, programs)
        else:
            self._call_in_threads(pending, programs)
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        if self._ended_by is not None:
            raise self._ended_by
        if self.budget.unpriced:
            raise UserError(
                f"max_cost cannot be applied, because {self.budget.unpriced} is unknown: pass max_metric_calls instead"
            )

    def _call_each_rival(self, pending: PendingCalls, programs: Mapping[Candidate, dspy.Module]) -> None:
        """Call each new rival before other candidates, until the cost of one of its calls is known."""
        for rival in [
            rival for rival in self.slots.rivals if rival in programs and rival not in self._priced
        ]:
            self._priced.add(rival)
            self.budget.needs_one = True
            for cell in [cell for cell in pending if cell[1] == rival]:
                if self.budget.needs_one:
                    pending.remove(cell)
                    self._call_all(deque([cell]), programs)

    def _call_in_threads(self, pending: PendingCalls, programs: Mapping[Candidate, dspy.Module]) -> None:
        if not pending:
            return
        num_threads = min(self._num_threads, len(pending))
        pool = ThreadPoolExecutor(num_threads)
        workers: list[Future[None]] = []
        try:
            workers += [
                pool.submit(copy_context().run, self._call_all, pending, programs)
                for _ in range(num_threads)
            ]
            for worker in as_completed(workers):
                worker.result()
        except BaseException as error:
            self._ended_by = error
            # Wait for running calls, because their results cost money and would be lost otherwise.
            wait(workers, timeout=SECONDS_AFTER_INTERRUPT)
            raise
        finally:
            pool.shutdown(wait=False)

    def _call_all(self, pending: PendingCalls, programs: Mapping[Candidate, dspy.Module]) -> None:
        """Make pending calls one by one until the queue is empty, the budget is spent, or the run ends."""
        while not (self._interrupted.is_set() or self._ended_by is not None):
            with self._lock:
                if not pending:
                    return
                key, ordering = pending[0]
                example = key[1]
                # If `work` runs its own program, the call scores no example.
                scored_example = None if ordering is None else example
                if not self.budget.begin(scored_example):
                    return
                pending.popleft()
            record, tokens, failure = self._call(None if ordering is None else programs[ordering], example)
            self.budget.end(tokens, scored_example)
            if not self.log.add(key, record, tokens):
                return  # The compile run ended before this call finished.
            with self._lock:
                if failure is not None:
                    self._handle_failure(failure, example, ordering, f"{record.error}: {record.message}")
                self._on_cell()

    def _call(self, program: Any, example: int) -> FinishedCall:
        """Call a program on an example, and raise a KeyboardInterrupt if the program swallowed one."""
        usage = Usage()
        replies = TruncationCounter()
        with dspy.context(trace=[], usage_tracker=usage, plr_dspy_truncated=replies):
            record, failure = self._record_of_call(program, example)
        if self._interrupted.is_set() and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        if replies.num_truncated:
            record = replace(record, is_truncated=True)
        return FinishedCall(record, usage.counts(), failure)

    def _record_of_call(self, program: Any, example: int) -> tuple[CallRecord, BaseException | None]:
        """Call a program on an example. Return the call's record, and the exception if the call failed."""
        try:
            return self._work(program, example), None
        except KeyboardInterrupt:
            raise
        except WrongAnswer as wrong:
            message = first_line(wrong, self._redact)
            record = CallRecord(None, WRONG, type(wrong.error).__name__, message, **wrong.record_fields)
            return record, None
        except BaseException as error:
            # An error in the program or metric is a failure, not a score of 0.
            message = first_line(error, self._redact)
            if _raised_by_metric(error):
                message = f"in the metric: {message}"
            return CallRecord(None, FAILED, error_name(error), message), error

    def _handle_failure(
        self, failure: BaseException, example: int, ordering: Candidate | None, message: str
    ) -> None:
        """Warn of a failed call if its message is new, and end the run if necessary."""
        self._failed_examples.add(example)
        place = f"on {self._names[example]}"
        if ordering is not None and ordering in self.slots.rivals:
            place = f"of program {self.slots.rivals[ordering].name!r} {place}"
        if message not in self._warnings:
            self._warnings.add(message)
            logger.warning("the call %s failed: %s", place, message)
        cause = cause_of(error_name(failure))
        reason = self._reason_to_end(failure, cause)
        if not reason or self._ended_by is not None:
            return
        self._ended_by = failure
        if not isinstance(failure, Exception):
            # Exceptions such as SystemExit would end the whole process.
            self._ended_by = RuntimeError(f"the program or the metric raised {message}")
            self._ended_by.__cause__ = failure
        if _raised_by_metric(failure):
            place += ", in the metric"
        if cause is not None:
            reason += f": {cause.fix}"
        if self.log.path is not None and not isinstance(failure, MissingFieldError):
            reason += ". Run the same code again to resume"
            if cause is None:
                reason += f"; {self._work.advice_on_changes}"
        # Python 3.10 has no `add_note`.
        self._ended_by.__notes__ = [*getattr(self._ended_by, "__notes__", ()), f"({place}: {reason})"]

    def _reason_to_end(self, failure: BaseException, cause: Cause | None) -> str:
        """Return why the run must end after a failure, or an empty string if the run can continue."""
        if isinstance(failure, (FatalLMError, MissingFieldError)) or (cause is not None and cause.is_fatal):
            return "every further call would fail in the same way"
        num_calls = self.log.num_calls - self._num_earlier_calls
        limit = self._max_errors or max(self._default_max_errors, int(FAILED_SHARE * num_calls))
        num_failures = len(self._failed_examples)
        if num_failures < limit:
            return ""
        reason = f"the last of {num_failures} failures (max_errors={limit})"
        if cause is None:
            reason += self._work.failure_advice
        return reason


class Usage(UsageTracker):
    """A tracker of the tokens that one program call uses and of replies that report no usage.

    All threads of the call share this tracker.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: Any) -> "Usage":
        """Return the tracker itself, because `dspy.Parallel` drops the copies that it makes for its threads."""
        return self

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        has_usage = usage_entry.get("prompt_tokens") or usage_entry.get("completion_tokens")
        with self._lock:
            super().add_usage(lm, usage_entry if has_usage else {UNCOUNTED: 1})

    def counts(self) -> dict[str, dict[str, int]]:
        """Return each model's token counts, keyed by kind of token.

        Prompt tokens include cached tokens.
        """
        counts = {}
        with self._lock:
            totals = self.get_total_tokens()
        for model, usage in totals.items():
            numbers = {
                kind: number
                for kind, number in usage.items()
                if kind.endswith("_tokens") or kind == UNCOUNTED
            }
            details = usage.get("prompt_tokens_details") or {}
            numbers |= {kind: details[kind] for kind in CACHED_TOKENS if details.get(kind)}
            counts[model] = {kind: number for kind, number in numbers.items() if isinstance(number, int)}
        return counts


def adapter_advice() -> str:
    """Return advice on replies that the adapter cannot parse. The text continues a sentence."""
    adapter = type(current_adapter()).__name__
    other = "PlainTextAdapter() for small and base models"
    if adapter == "PlainTextAdapter":
        other = "dspy.ChatAdapter()"
    return (
        f"try an adapter other than {adapter}, such as {other} (--adapter on the command line), a larger model, or "
        "a larger max_tokens if replies are truncated"
    )


def calls_on(
    slots: PromptSlots,
    work: MetricWork,
    number: int,
    *,
    called: str,
    candidate: Candidate | None = None,
    first: Sequence[int] = (),
    check: Callable[[list[CallRecord]], object] = list,
    **options: Any,
) -> tuple[list[CallRecord], Evaluator]:
    """Call a candidate of `slots` on `number` examples. Return the records and the evaluator.

    By default, call the unmodified program of `slots`.

    Call the program on the first `n` examples for each `n` in `first`, then on all examples.
    After each step, pass the records of all finished calls to `check`. If `called` is "input",
    messages name the examples "input 0", "input 1" and so on.
    """
    names = [f"{called} {i}" for i in range(number)]
    if candidate is None:
        candidate = slots.space.identity
    with interrupts() as interrupted:
        evaluator = Evaluator(
            ProgramEvaluator(slots, work, names=names, interrupted=interrupted, **options)
        )
        for count in [*first, number]:
            (row,) = evaluator.evaluate({candidate: range(min(count, number))}).values()
            check(list(row.values()))
    return list(row.values()), evaluator
