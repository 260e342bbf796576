"""A log that stores a run's calls and their results in a file, so that no call is paid for twice.

Each line of the file is a JSON object: a call, or a header with the facts that determine scores.
"""

import json
import logging
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from plr_dspy.errors import UserError
from plr_dspy.report.formats import count
from plr_dspy.report.schema import FAILED as FAILED
from plr_dspy.report.schema import WRONG as WRONG
from plr_dspy.report.schema import ErrorCount
from plr_dspy.scoring.causes import cause_of

logger = logging.getLogger(__name__)

FILE = "calls.jsonl"
FUNCTION_FACT = "the function"  # key of the fact that names the calling function; optimizers omit this fact
SCHEMA_VERSION = 14

CallKey: TypeAlias = tuple[str, int]  # prompt fingerprint and example index
CallName: TypeAlias = tuple[str, str]  # prompt fingerprint and the example's content key, as in the file
Tokens: TypeAlias = Mapping[str, Mapping[str, int]]  # maps each model to its count of each kind of token
Facts: TypeAlias = Mapping[str, object]  # named values that determine the scores; digests start with "#"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The result of one program call on one example."""

    score: float | None  # the metric's score, or None after an exception or for an unscored call
    outcome: str = ""  # `WRONG` or `FAILED` after an exception, else empty
    error: str = ""  # the exception's class name
    message: str = ""  # the exception's message
    value: Any = None  # a result other than the score, as JSON data, such as a predicted label
    label_logprobs: tuple[float, ...] | None = None  # log-probability of each label, if known
    unseen_labels: tuple[int, ...] = ()  # indices of labels whose log-probabilities are upper bounds
    refused: str = ""  # why no call can return log-probabilities, or empty
    lacking: str = (
        ""  # why this call's log-probabilities are missing or do not explain its answer; else empty
    )
    is_truncated: bool = False  # whether `max_tokens` cut off a reply


@dataclass(frozen=True)
class LoggedCall:
    """A call record, with the call's token counts and batch index."""

    record: CallRecord
    tokens: Tokens
    batch: int


_RECORD = TypeAdapter(CallRecord)


class RunLog:
    """The calls of a run, and the calls of earlier runs in the same file. The log is thread-safe.

    A resumed run requests the same calls again, and `recall()` adds logged calls to `records`.
    If the process is killed, only the calls in progress are lost.

    Attributes:
        records: Records of this run's calls on the examples last passed to `number_examples()`.
        tokens_before: Token counts of each call that was in the file when this run opened it.
        failed_before: The exception's class name for each earlier call that this run repeats
            because the call failed for a reason outside the program.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read the file at `path`. If `path` is None, keep the log in memory."""
        self.path = path
        self.identity: Facts = {}
        self.records: dict[CallKey, CallRecord] = {}
        self.num_recalled = 0
        self.tokens_before: list[Tokens] = []
        self.failed_before: list[str] = []
        self._recallable: dict[CallName, LoggedCall] = {}  # calls in the file that this run can recall
        self._last_failures: dict[CallName, LoggedCall] = {}  # failed calls that this run repeats
        self._calls: dict[CallName, LoggedCall] = {}  # calls of this run
        self._example_keys: list[str] | None = None
        self._batch = 0
        self._lock = threading.Lock()
        self._closed = False
        self._file: int | None = None
        if path is not None:
            self._read(path)

    @property
    def num_calls(self) -> int:
        """The number of calls that this run has made or recalled."""
        return len(self._calls)

    @property
    def tokens(self) -> list[Tokens]:
        """The token counts of each call in this run."""
        return [call.tokens for call in list(self._calls.values())]

    def tokens_of(self, key: CallKey) -> Tokens:
        """Return the token counts of this run's call with this key."""
        return self._calls[self._name(key)].tokens

    @property
    def earlier_records(self) -> list[CallRecord]:
        """The records of earlier runs' calls that this run can recall."""
        return [call.record for call in self._recallable.values()]

    @property
    def holds_answers(self) -> bool:
        """Whether the file contains an answer that a run can reuse."""
        return any(record.score is not None or record.value for record in self.earlier_records)

    def number_examples(self, keys: Sequence[str]) -> None:
        """Set the examples' content keys, in order. Repeated keys get a numbered suffix."""
        self._example_keys = numbered(keys)
        index_of = {key: index for index, key in enumerate(self._example_keys)}
        self.records = {}
        for (prompt, key), call in self._calls.items():
            if key in index_of:
                self.records[prompt, index_of[key]] = call.record

    def recall(self, key: CallKey, *, last_failures: bool = False) -> LoggedCall | None:
        """Add an earlier run's call to this run, and return the call.

        Return None if the log has no such call, or if this run already has the call. If `last_failures`,
        recall a failed call that this run should repeat but cannot.
        """
        name = self._name(key)
        call = (self._last_failures if last_failures else self._recallable).get(name)
        if call is None or name in self._calls:
            return None
        self._calls[name] = call
        self.records[key] = call.record
        self.num_recalled += 1
        return call

    def add(self, key: CallKey, record: CallRecord, tokens: Tokens) -> bool:
        """Add a new call. Return False if the log is closed."""
        with self._lock:
            if self._closed:
                return False
            name = self._name(key)
            self._calls[name] = LoggedCall(record, tokens, self._batch)
            self.records[key] = record
            if self._file is not None:
                self._write_call(name, record, tokens)
            return True

    def begin_batch(self) -> None:
        """Begin a batch of calls that do not depend on each other."""
        self._batch += 1

    def repeat_outside_failures(self) -> None:
        """Forget the calls that failed for a reason outside the program, so that this run repeats them."""
        for name, call in list(self._recallable.items()):
            if cause_of(call.record.error) is not None:
                del self._recallable[name]
                self.failed_before.append(call.record.error)

    def repeat_failures(self) -> None:
        """Set aside all failed calls, so that this run repeats them. No logged call may depend on them."""
        for name, call in list(self._recallable.items()):
            if _has_failed(call.record):
                self._last_failures[name] = self._recallable.pop(name)

    def write_header(self, identity: Facts, *, restarts: bool = False) -> None:
        """Write the run's identity: the facts that determine scores.

        If `restarts` is true, forget all earlier calls, but keep their token counts, because these
        calls were paid for.
        """
        self.identity = identity
        if restarts:
            self._recallable.clear()
            self._last_failures.clear()
            self.failed_before.clear()
        self._write({"schema_version": SCHEMA_VERSION, "identity": identity, "restarts": restarts})

    def close(self) -> None:
        """Close the file and accept no more calls."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _name(self, key: CallKey) -> CallName:
        prompt, example = key
        if self._example_keys is None:
            return prompt, str(example)
        return prompt, self._example_keys[example]

    def _write_call(self, name: CallName, record: CallRecord, tokens: Tokens) -> None:
        line: dict[str, object] = {"call": name, "batch": self._batch}
        if tokens:
            line["tokens"] = tokens
        line |= _RECORD.dump_python(record, exclude_defaults=True)
        self._write(line)

    def _write(self, line: dict[str, object]) -> None:
        assert self._file is not None
        # Unlike orjson, `json` also preserves NaN, large integers and any text.
        content = json.dumps(line).encode() + b"\n"
        num_written = os.write(self._file, content)
        if num_written < len(content):
            # Remove the partial line, because later lines would be appended to it.
            os.ftruncate(self._file, os.fstat(self._file).st_size - num_written)
            raise OSError(
                f"no space left on the disk that holds {self.path}: free some space, and run again"
            )

    def _read(self, path: Path) -> None:
        """Read all complete lines, and remove an incomplete last line from the file."""
        path.touch(0o600)
        content = path.read_bytes()
        num_whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:num_whole].splitlines(), start=1):
            try:
                self._read_line(json.loads(line))
            except UserError:
                raise
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise UserError(
                    f"line {number} of {path} cannot be read ({error}). Pass another log_dir. If the line records a "
                    "call, you can instead remove the line, and the call will be repeated."
                ) from error
        self._set_last_failures_aside()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._file, num_whole)

    def _read_line(self, content: dict[str, Any]) -> None:
        if "call" not in content:
            version = content.get("schema_version")
            if version != SCHEMA_VERSION:
                raise UserError(
                    f"log_dir must have a call log of schema version {SCHEMA_VERSION}; got version {version!r} in "
                    f"{self.path}, which another version of plr_dspy wrote: pass another log_dir"
                )
            self.identity = content["identity"]
            if content.get("restarts"):
                self._recallable.clear()
            return
        prompt, example = content.pop("call")
        name = (str(prompt), str(example))
        tokens = content.pop("tokens", {})
        self._batch = int(content.pop("batch", 0))
        self._recallable.pop(name, None)  # A later line replaces an earlier line for the same call.
        self.tokens_before.append(tokens)
        self._recallable[name] = LoggedCall(_RECORD.validate_python(content), tokens, self._batch)

    def _set_last_failures_aside(self) -> None:
        """Set aside the failed calls of the last batch that has an answer, and of all later batches.

        This run repeats these calls. Earlier failures are kept, because later calls depend on
        them. Calls within a batch have no fixed order, because they run in several threads.
        """
        failures = {name: call for name, call in self._recallable.items() if _has_failed(call.record)}
        answered = [call.batch for name, call in self._recallable.items() if name not in failures]
        last = max(answered, default=0)
        for name, call in failures.items():
            if call.batch >= last:
                self._last_failures[name] = self._recallable.pop(name)
                if cause_of(call.record.error) is not None:
                    self.failed_before.append(call.record.error)


def numbered(keys: Sequence[str]) -> list[str]:
    """Return `keys`, with a numbered suffix added to each repeated key."""
    num_alike: Counter[str] = Counter()
    names = []
    for key in keys:
        name = key
        if num_alike[key]:
            name += f"+{num_alike[key]}"
        names.append(name)
        num_alike[key] += 1
    return names


def _has_failed(record: CallRecord) -> bool:
    """Return whether a call failed, or was counted as wrong for a reason outside the program."""
    return record.outcome == FAILED or cause_of(record.error) is not None


@contextmanager
def open_log(
    folder: Path | None, describe: Callable[[], Facts], *, accept_changes: bool = False
) -> Iterator[RunLog]:
    """Open and lock the run log in a folder. If `folder` is None, keep the log in memory.

    `describe` returns the run's identity. If the log has another identity but no answers, it is
    restarted, and only the cost of its calls is kept. If it has answers, it is continued only if
    `accept_changes` is true and the same function made the calls.

    Raises:
        ValueError: If the folder cannot be used, or if its log cannot be read or continued.
        RuntimeError: If another run uses the folder.
        OSError: If the disk is full.
    """
    if folder is None:
        yield RunLog()
        return
    with _locked(folder):
        path = folder / FILE
        identity = orjson.loads(orjson.dumps(describe()))
        log = RunLog(path)
        try:
            changes = _changes(log.identity, identity) if log.tokens_before else ""
            if changes and not log.holds_answers:
                logger.info(
                    "the log in %s has no answers yet and is restarted, because %s", folder, changes
                )
                log.write_header(identity, restarts=True)
            elif changes and _function(log.identity) != _function(identity):
                raise UserError(
                    f"log_dir {folder} belongs to another run: {changes}. Pass another log_dir."
                )
            elif changes and not accept_changes:
                raise UserError(
                    f"log_dir {folder} belongs to another run: {changes}. Pass another log_dir. If the logged "
                    "scores are still valid, you can pass accept_changes=True instead."
                )
            elif changes:
                logger.warning("the calls logged in %s are reused, although %s", folder, changes)
            if accept_changes:
                log.repeat_outside_failures()
            if log.identity != identity:
                log.write_header(identity)
            if log.earlier_records:
                # Say "result", because a proposed instruction is one result of several calls.
                logger.info(
                    "%s has %s from earlier runs", folder, count(len(log.earlier_records), "result")
                )
            if log.failed_before:
                calls = count(len(log.failed_before), "call")
                errors = ", ".join(sorted(set(log.failed_before)))
                logger.warning(
                    "%s: %s that failed for a reason outside the program (%s) will be repeated",
                    folder,
                    calls,
                    errors,
                )
            yield log
        finally:
            log.close()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder within the context. Create the folder if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / FILE).is_dir():
            raise IsADirectoryError(f"{FILE} is a folder")
        lock = FileLock(folder / "lock", timeout=0, thread_local=False).acquire()
    except Timeout:
        raise RuntimeError(
            f"log_dir {folder} is in use by another run. Wait until that run ends, or pass another log_dir."
        ) from None
    except (OSError, ValueError) as error:  # A null byte in the path raises a ValueError.
        raise UserError(
            f"log_dir must be a writable folder; got {folder} ({error}): pass another folder"
        ) from error
    with lock:
        yield


def _function(identity: Facts) -> object:
    """Return the name of the function that made a run's calls, or "an optimizer" by default."""
    return identity.get(FUNCTION_FACT, "an optimizer")


def _changes(previous: Facts, current: Facts) -> str:
    """Describe the differences between two identities, but omit the values of digests."""
    if _function(previous) != _function(current):
        # Each function has its own facts, so do not compare the facts.
        return f"its calls were made by {_function(previous)}, not by {_function(current)}"
    phrases = []
    for name in {**previous, **current}:
        before = previous.get(name)
        after = current.get(name)
        if before == after:
            continue
        if str(before).startswith("#") or str(after).startswith("#"):
            phrases.append(f"{name} changed")
        else:
            phrases.append(f"{name} was {before!r} and is now {after!r}")
    return "; ".join(phrases)


def error_counts(
    calls: Collection[tuple[tuple[str, int], CallRecord]], names: Sequence[str] | Mapping[int, str]
) -> list[ErrorCount]:
    """Return the number of exceptions of each type and outcome, the most frequent first.

    Args:
        calls: Pairs of a call's key and record. The key is the prompt and the example index.
        names: The examples' names, as a list or as a dict that maps example indices to names.
    """
    groups: dict[tuple[str, str], list[tuple[int, str, str]]] = defaultdict(list)
    for (prompt, example), record in calls:
        if record.error:
            groups[record.error, record.outcome].append((example, prompt, record.message))
    errors = []
    for (error, outcome), group in groups.items():
        group.sort()
        examples = list(dict.fromkeys(names[example] for example, *_ in group))
        *_, message = group[0]
        errors.append(
            ErrorCount(
                type=error, outcome=outcome, count=len(group), message=message, examples=examples[:5]
            )
        )
    return sorted(errors, key=lambda error: (-error.count, error.type, error.outcome))
