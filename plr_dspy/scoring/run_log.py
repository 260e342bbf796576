"""The run log: every program call of a run with its result, kept in a file so that no call is paid twice.

The file has two kinds of lines. A header says what the run scores, and the last one counts. A call record says what one
call on one example came to. Nothing else is needed to resume: a run that is started again asks for the same calls.
"""

import logging
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import orjson
from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter

from plr_dspy.errors import UserError
from plr_dspy.report.schema import ErrorCount
from plr_dspy.report.text import FAILED as FAILED
from plr_dspy.report.text import WRONG as WRONG
from plr_dspy.runtime import as_json
from plr_dspy.scoring.causes import cause_of, made_again
from plr_dspy.scoring.values import Unreadable, Unwritable, ValueCodec

logger = logging.getLogger(__name__)

FILE = "calls.jsonl"
FILE_BEFORE_11 = "cells.jsonl"
SCHEMA_VERSION = 11

CallKey: TypeAlias = tuple[str, int]  # fingerprint of a prompt, and index of an example
CallName: TypeAlias = tuple[str, str]  # the same with the content of the example, as the file names it
Tokens: TypeAlias = Mapping[str, Mapping[str, int]]  # counts by model and kind, such as "prompt_tokens"
Facts: TypeAlias = Mapping[str, Any]  # what decides the scores, by names for messages: values, or digests (`#...`)
LogProbability = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The result of one program call on one example."""

    score: float | None  # as the metric gave it; None if the call was not made for one, or if there was an exception
    outcome: str = ""  # after an exception `WRONG` or `FAILED`; then its class name, and the first line it says
    error: str = ""
    message: str = ""
    value: Any = None  # of any type: what a metric over a set reads, or what the call was made for in place of a score
    # Of all labels that the program might have answered with, where the call told them.
    label_logprobs: Annotated[tuple[LogProbability, ...], Field(min_length=1)] | None = None
    unseen_labels: tuple[int, ...] = ()  # numbers of those of them that are known to be small, and no more
    refused: str = ""  # where it told none although they were asked for: why none can be had
    lacking: str = ""  # and why this call told none


@dataclass(frozen=True)
class Header:
    """What the run of a file scores."""

    schema_version: int
    identity: dict[str, Any]
    unstable: tuple[str, ...] = ()  # facts of the identity that changed while a run was under way, and so say nothing
    fixed_only: bool = False  # whether the program cannot be shown demos found for each input


@dataclass(frozen=True)
class LoggedCall:
    """A call record with the tokens that the call took."""

    record: CallRecord
    tokens: Tokens


@dataclass(frozen=True)
class CallLine:
    """A line of the file about one call. A later line about the same call replaces it."""

    call: CallName
    again: bool = False  # whether the next run makes the call again
    tokens: dict[str, dict[str, int]] = field(default_factory=dict)


_RECORD = TypeAdapter(CallRecord)
_HEADER = TypeAdapter(Header)
_LINE = TypeAdapter(CallLine)


class RunLog:
    """The calls of one run, and in a file those of all runs before it. Threads may share it.

    A call of an earlier run joins the `records` of this one when this one asks for it (`recall`). So a run has the same
    records whether it makes its calls or finds them. A kill loses the calls under way, and no other.

    Calls that failed for a reason outside the program (`cause_of`) are not recalled, so that they are made again. So
    are calls whose values the file cannot hold, and failed ones after `repeat_failed`.
    """

    def __init__(self, path: Path | None = None, codec: ValueCodec | None = None) -> None:
        """Read the file at `path`; None keeps everything in memory. The codec writes and reads values."""
        self.path = path
        self.header: Header | None = None
        self.records: dict[CallKey, CallRecord] = {}  # of this run, those on the examples that are numbered now
        self.num_recalled = 0
        self.tokens_before: list[Tokens] = []  # of each call that the file tells of
        self.failed_before: dict[CallName, str] = {}  # errors of the calls that failed for a reason outside the program
        self._codec = codec or ValueCodec()
        self._held: dict[CallName, LoggedCall] = {}  # of the file, for this run to recall
        # Failures for a reason outside the program, which no answered call follows yet in the file.
        self._pending: dict[CallName, LoggedCall] = {}
        self._course: dict[CallName, LoggedCall] = {}  # of this run
        self._example_keys: list[str] | None = None
        self._unwritten_header: Header | None = None
        self._warned_of: set[str] = set()
        self._lock = threading.RLock()
        self._closed = False
        self._file: int | None = None
        if path is not None:
            self._read(path)

    @property
    def num_calls(self) -> int:
        """Calls of this run, made or recalled."""
        return len(self._course)

    @property
    def tokens(self) -> list[Tokens]:
        """Tokens of each call of this run."""
        return [call.tokens for call in list(self._course.values())]

    @property
    def holds_answers(self) -> bool:
        """Whether any call of the file ended with an answer that another run could use."""
        records = [call.record for call in self._held.values()]
        return any(record.score is not None or record.value for record in records)

    def number_examples(self, keys: Sequence[str]) -> None:
        """Say by which content the file names the examples that calls number; equal ones count up."""
        alike: Counter[str] = Counter()
        self._example_keys = []
        for key in keys:
            self._example_keys.append(f"{key}+{alike[key]}" if alike[key] else key)
            alike[key] += 1
        numbers = {key: number for number, key in enumerate(self._example_keys)}
        self.records = {}
        for (prompt, key), call in self._course.items():
            if key in numbers:
                self.records[prompt, numbers[key]] = call.record

    def recall(self, key: CallKey) -> LoggedCall | None:
        """Add a call of an earlier run to this run, and return it; None if the file does not hold it."""
        name = self._name(key)
        call = self._held.get(name)
        if call is None or name in self._course:
            return None
        self._course[name] = call
        self.records[key] = call.record
        self.num_recalled += 1
        if self._unwritten_header is not None:
            self._write_lines(b"")
        return call

    def add(self, key: CallKey, record: CallRecord, tokens: Tokens) -> bool:
        """Add a call that was made; return False if it came after `stop`."""
        with self._lock:
            if self._closed:
                return False
            name = self._name(key)
            self._course[name] = LoggedCall(record, tokens)
            self.records[key] = record
            self._write_call(name, record, tokens)
            return True

    def repeat_failed(self) -> None:
        """Have the next run make the failed calls again that this run ended with.

        The run went on after earlier ones, so that the next run needs them to take the same course.
        """
        for name, call in reversed(self._course.items()):
            if call.record.outcome != FAILED:
                break
            if cause_of(call.record.error) is None:
                self._write({"call": name, "again": True})

    def repeat_outside_failures(self) -> None:
        """Have this run make all calls again that failed for a reason outside the program."""
        for name, call in list(self._held.items()):
            if cause_of(call.record.error) is not None:
                del self._held[name]
                self.failed_before[name] = call.record.error

    def leave_out(self, error: str) -> None:
        """Take the calls that failed with this error out of this run, and have the next one make them again."""
        for name, call in list(self._course.items()):
            if call.record.error == error:
                del self._course[name]
                self._write({"call": name, "again": True})
        self.records = {key: record for key, record in self.records.items() if record.error != error}

    def write_header(self, header: Header, *, now: bool = True) -> None:
        """Write what the run scores, or if not `now`, with the next call that is made or recalled."""
        is_first = self.header is None
        self.header = header
        self._unwritten_header = header
        if now:
            self._write_lines(b"", must=is_first)

    def stop(self) -> None:
        """Take no more calls."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """Close the file; nothing is added from now on."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _name(self, key: CallKey) -> CallName:
        prompt, example = key
        return prompt, str(example) if self._example_keys is None else self._example_keys[example]

    def _write_call(self, name: CallName, record: CallRecord, tokens: Tokens) -> None:
        line: dict[str, Any] = {"call": name}
        if tokens:
            line["tokens"] = tokens
        try:
            value = None if record.value is None else self._codec.encode(record.value)
        except Unwritable as error:
            self._warn_of_loss(f"{self.path} cannot hold {error}")
            line["again"] = True
        else:
            line |= _RECORD.dump_python(replace(record, value=value), exclude_defaults=True)
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._write_lines(as_json(line) + b"\n")

    def _write_lines(self, content: bytes, *, must: bool = False) -> None:
        """Append lines, and the header before them if it is not written yet.

        Once the disk takes no more, a warning says so and the run goes on, unless the lines `must` be written.
        """
        if self._file is None:
            return
        if self._unwritten_header is not None:
            content = as_json(_HEADER.dump_python(self._unwritten_header)) + b"\n" + content
            self._unwritten_header = None
        try:
            if os.write(self._file, content) < len(content):
                raise OSError("no space left on the device")
        except OSError as error:
            if must:
                raise
            logger.warning(
                "%s could not be written (%s): from here on a kill loses what was paid for", self.path, error
            )
            os.close(self._file)
            self._file = None

    def _warn_of_loss(self, reason: str) -> None:
        """Warn, once for each reason, that the next run repeats calls."""
        if self.path is not None and reason not in self._warned_of:
            self._warned_of.add(reason)
            logger.warning("%s: the next run makes the calls with such values again", reason)

    def _read(self, path: Path) -> None:
        """Read all whole lines, and cut off a last one that a kill has torn."""
        content = path.read_bytes() if path.exists() else b""
        num_whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:num_whole].splitlines(), start=1):
            try:
                self._read_line(orjson.loads(line))
            except (ValueError, TypeError) as error:
                cure = "pass another log_dir"
                if line.startswith(b'{"call"'):
                    cure = f"remove the line, whose call will be made again, or {cure}"
                raise UserError(f"line {number} of {path} cannot be read ({error}): {cure}") from error
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._file = os.open(path, flags, 0o600)
        os.ftruncate(self._file, num_whole)

    def _read_line(self, content: Any) -> None:
        if not isinstance(content, dict) or not content.keys() & {"call", "schema_version"}:
            raise UserError("it is neither a header nor a call record")
        if "call" in content:
            self._read_call(content)
            return
        if content["schema_version"] != SCHEMA_VERSION:
            raise UserError(f"schema version {content['schema_version']!r}, and not {SCHEMA_VERSION}")
        self.header = _HEADER.validate_python(content)

    def _read_call(self, content: dict[str, Any]) -> None:
        line_fields = {name: content.pop(name) for name in ("call", "again", "tokens") if name in content}
        line = _LINE.validate_python(line_fields)
        self._held.pop(line.call, None)
        self.failed_before.pop(line.call, None)
        self._pending.pop(line.call, None)
        if line.tokens or not line.again:
            self.tokens_before.append(line.tokens)
        if line.again:
            return
        try:
            content["value"] = self._codec.decode(content.get("value"))
        except Unreadable as error:
            self._warn_of_loss(f"{self.path}: {error}")
            return
        record = _RECORD.validate_python(content)
        if record.score is None and not record.outcome and record.value is None:
            raise UserError(f"it says nothing of {line.call}")
        call = LoggedCall(record, line.tokens)
        if cause_of(record.error) is not None:
            self._pending[line.call] = call
            self.failed_before[line.call] = record.error
            return
        self._held[line.call] = call
        if record.outcome != FAILED:
            # The run went on after these failures, and decided on them.
            self._held |= self._pending
            self._pending = {}
            self.failed_before = {}


@contextmanager
def open_log(
    folder: Path | None,
    describe: Callable[[], Facts],
    *,
    accept_changes: bool = False,
    codec: Callable[[], ValueCodec] = ValueCodec,
) -> Iterator[RunLog]:
    """Open the run log of a folder, which no other run uses meanwhile; without a folder, keep it in memory.

    The folder is made if it does not exist. A log of other scores is begun anew if none of its calls ended with an
    answer, and else continued only if the changes are accepted.

    Args:
        folder: The folder of the log.
        describe: Returns what decides the scores. It is asked again at the end: what has changed by itself meanwhile,
            such as a counter, is not compared from then on.
        accept_changes: Whether to continue although what decides the scores has changed.
        codec: Makes what writes and reads values.

    Raises:
        ValueError: If the folder cannot be used, or holds a log of other scores or of another version.
        RuntimeError: If another run is using the folder.
        OSError: If the disk is full.
    """
    if folder is None:
        yield RunLog()
        return
    with ExitStack() as stack:
        stack.enter_context(_locked(folder))
        values = codec()
        log = RunLog(folder / FILE, values)
        stack.callback(lambda: log.close())
        if accept_changes:
            log.repeat_outside_failures()
        identity = orjson.loads(orjson.dumps(describe()))
        before = Header(SCHEMA_VERSION, {}) if log.header is None else log.header
        changes = _changes(before.identity, identity, ignored=before.unstable)
        if changes and log.tokens_before:
            if not log.holds_answers:
                logger.info("%s holds no answer of another run, and is begun anew, although %s", folder, changes)
                log.close()
                (folder / FILE).unlink()
                log = RunLog(folder / FILE, values)
            elif accept_changes:
                logger.warning("%s: goes on with what was paid for there, although %s", folder, changes)
            else:
                raise UserError(
                    f"log_dir {folder} belongs to another compile: {changes}. Pass another log_dir, or compile with "
                    "what it began with to go on from there, or, if the scores paid for there hold all the same, pass "
                    "accept_changes=True"
                )
        if log.header is None:
            log.write_header(Header(SCHEMA_VERSION, identity))
        elif log.header.identity != identity:  # Another version of the program may show demos found for each input.
            log.write_header(replace(log.header, identity=identity, fixed_only=False), now=False)
        if log.tokens_before:
            logger.info("%s: %d program calls were made before", folder, len(log.tokens_before))
        if log.failed_before:
            logger.warning("%s: %s", folder, made_again(log.failed_before.values()))
        try:
            yield log
        finally:
            _note_unstable(log, identity, describe)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder, which is made if it does not exist."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(folder / "lock", timeout=0, thread_local=False))
            if (folder / FILE).is_dir():
                raise IsADirectoryError(f"{FILE} is a folder")
        except Timeout:
            raise RuntimeError(
                f"log_dir {folder} is in use by another compile: wait for its end, or pass another log_dir"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: of a null byte
            raise UserError(f"log_dir must be a folder that can be written to; {folder}: {error}") from error
        if (folder / FILE_BEFORE_11).exists():
            raise UserError(
                f"log_dir {folder} was written by an earlier version of plr_dspy ({FILE_BEFORE_11}), which this one "
                "cannot read: pass another log_dir, or finish the compile with the version that began it"
            )
        yield


def _note_unstable(log: RunLog, identity: dict[str, Any], describe: Callable[[], Facts]) -> None:
    """Note in the header which facts have changed while the run was under way."""
    try:
        now = orjson.loads(orjson.dumps(describe()))
    except Exception as error:  # of the user's objects; what was found must not be lost to it
        logger.warning("cannot tell what changed while the compile ran: %r", error)
        return
    changed = _differing(identity, now)
    if changed and log.header is not None:
        logger.info("%s changed while the compile ran, and will not be compared", ", ".join(changed))
        unstable = tuple(sorted({*log.header.unstable, *changed}))
        log.write_header(replace(log.header, identity=identity, unstable=unstable))


def _differing(was: Facts, now: Facts) -> list[str]:
    """Return the names of the facts that are no longer what they were."""
    return [name for name in {**was, **now} if was.get(name) != now.get(name)]


def _changes(was: Facts, now: Facts, *, ignored: Sequence[str]) -> str:
    """Say what differs between two identities, a phrase each; digests say nothing to people."""
    phrases = []
    for name in _differing(was, now):
        if name in ignored:
            continue
        before = was.get(name)
        after = now.get(name)
        is_digest = any(isinstance(value, str) and value.startswith("#") for value in (before, after))
        phrases.append(f"{name} changed" if is_digest else f"{name} was {before!r}, is {after!r}")
    return "; ".join(phrases)


def error_counts(
    calls: Collection[tuple[tuple[str, int], CallRecord]], names: Sequence[str] | Mapping[int, str]
) -> list[ErrorCount]:
    """Count the calls that raised, by exception type and outcome, most frequent first; examples have these names."""
    groups: dict[tuple[str, str], list[tuple[int, str, str]]] = defaultdict(list)
    for (fingerprint, example), record in calls:
        if record.error:
            groups[record.error, record.outcome].append((example, fingerprint, record.message))
    errors = []
    for (error, outcome), group in groups.items():
        examples = sorted({example for example, *_ in group})[:5]
        _, _, message = min(group)
        named = [names[example] for example in examples]
        errors.append(ErrorCount(type=error, outcome=outcome, count=len(group), message=message, examples=named))
    return sorted(errors, key=lambda error: (-error.count, error.type, error.outcome))
