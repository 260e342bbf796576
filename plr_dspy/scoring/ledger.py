"""The ledger: what calls that were paid for came to, and rounds that were decided on, in one file that grows."""

import logging
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import orjson
from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter

from plr_dspy.errors import UserError
from plr_dspy.report.data import ErrorCount
from plr_dspy.report.text import FAILED as FAILED
from plr_dspy.report.text import WRONG as WRONG
from plr_dspy.runtime import as_json
from plr_dspy.scoring.causes import cause_of, made_again
from plr_dspy.scoring.values import Unreadable, Unwritable, ValueCodec

logger = logging.getLogger(__name__)

FILE = "cells.jsonl"

SCHEMA_VERSION = 10
UNTYPED_VERSION = 9  # It kept values as plain JSON, which had altered what JSON lacks.

CellKey: TypeAlias = tuple[str, int]  # fingerprint of a prompt, and index of an example

LogProbability = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Cell:
    """The outcome of one program call."""

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


Tokens: TypeAlias = Mapping[str, Mapping[str, int]]  # counts by model and kind, such as "prompt_tokens"
_CELL, _TOKENS = TypeAdapter(Cell), TypeAdapter(dict[str, dict[str, int]])  # read what lines hold
Facts: TypeAlias = Mapping[str, Any]  # what decides a compile, by names for messages: values, or digests (`#...`)


class Ledger:
    """The cells of a compile, what they cost, and the rounds that were decided on. Threads may share it.

    With a file, each cell is one line of JSON, written when it is added: a kill loses nothing. A last line that was cut
    is dropped when the file is read again; its call counts, as do failed ones. A new ledger forgets cells, so that
    their calls are made again: those that failed for a reason outside the program (`cause_of`), whose calls do not
    count unless they took tokens, and after a `retry` all failed ones on which nothing has been decided yet (`settle`).
    Calls whose values the file cannot hold are made again, too.
    """

    def __init__(self, path: Path | None = None, codec: ValueCodec | None = None) -> None:
        """Read what the file at `path` holds; None keeps everything in memory. The codec writes and reads values."""
        self._codec = codec or ValueCodec()
        self._kinds_lost = set[str]()  # what was said of values that a file cannot hold
        self.cells: dict[CellKey, Cell] = {}  # what has been paid, by prompt and number of the example
        self.by_content: dict[tuple[str, str], Cell] = {}  # the same by prompt and content, whatever numbers there are
        self.identity: Facts | None = None  # what decides scores, as the file has it; None where it is new
        self.version = SCHEMA_VERSION  # that the file was written with
        self.fixed_only = False  # whether demos found for each input could not be shown
        self.unstable: list[str] = []  # facts of it that changed while a compile ran, and so say nothing
        self.out_of_time: list[Any] = []  # where a limit ended the making of demos: what was noted of it
        self.failed_outside: dict[tuple[str, str], tuple[Cell, Tokens]] = {}  # calls to be made again, as `by_content`
        # What compiles have decided on, by the arguments that decide it: with the same, another one takes it as it was.
        # Of each round the orderings, with all examples that they had by then, and of each end: why, with what limits,
        # and after what rounds.
        self._courses = defaultdict[bytes, dict[str, list[Any]]](lambda: {"rounds": [], "ended": []})
        self.course = self._courses[b""]  # of the compile that has begun, or of the last one that the file tells of
        self.postponed: list[dict[str, Any]] = []  # notes before the next one: without that they are not worth a line
        self._settled = True
        self.paid: list[Tokens] = []  # of each program call; a failed call that was made again counts twice
        self.num_resumed = 0  # program calls that the file held, the first of these
        self._keys: list[str] | None = None
        self._lock = threading.RLock()
        self._closed = False
        self.path = path
        self._file: int | None = None
        if path is not None:
            self._read(path)

    def number_examples(self, keys: Sequence[str]) -> None:
        """Say by which content the file names the examples that cells name by number; of like ones, each by its own."""
        alike: Counter[str] = Counter()
        self._keys = []
        for key in keys:
            self._keys.append(f"{key}+{alike[key]}" if alike[key] else key)
            alike[key] += 1
        numbers = {key: number for number, key in enumerate(self._keys)}
        self.cells = {(p, numbers[key]): cell for (p, key), cell in self.by_content.items() if key in numbers}

    def add(self, key: CellKey, cell: Cell, tokens: Tokens) -> bool:
        """Note a cell that was paid; after `stop` it is too late, and the answer False."""
        fingerprint, example = key
        of_tokens: dict[str, Any] = {"tokens": tokens} if tokens else {}
        told = _CELL.dump_python(replace(cell, value=None), exclude_defaults=True) | of_tokens
        with self._lock:
            if self._closed:
                return False
            name = str(example) if self._keys is None else self._keys[example]
            self.cells[key] = self.by_content[fingerprint, name] = cell
            self.failed_outside.pop((fingerprint, name), None)
            self.paid.append(tokens)
            self._settled = False
            try:
                if cell.value is not None:
                    told["value"] = self._codec.encode(cell.value)
            except Unwritable as error:
                self._warn_of_loss(f"{self.path} cannot hold {error}")
                self.note({"lost": 1, **of_tokens})
            else:
                self.note({"cell": (fingerprint, name), **told})
            return True

    def _warn_of_loss(self, reason: str) -> None:
        """Warn, once for each reason, that a compile which goes on from the file makes calls again."""
        if self.path is not None and reason not in self._kinds_lost:
            self._kinds_lost.add(reason)
            logger.warning("%s: a compile that goes on from there makes the calls with such values again", reason)

    def begin(self, arguments: Facts) -> None:
        """Note the arguments of the compile that begins: with others than any before, it has no rounds yet."""
        before, self.course = self.course, self._courses[orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)]
        if self.course is not before:
            self.postponed.append({"arguments": arguments})

    def is_asked_again(self, key: CellKey) -> bool:
        """Return whether a call failed before for a reason outside the program, and was not made again yet."""
        fingerprint, example = key
        return self._keys is not None and (fingerprint, self._keys[example]) in self.failed_outside

    def keep_failed(self, keys: Iterable[CellKey]) -> None:
        """Take those of these calls as they were that failed outside the program and were not made again."""
        for fingerprint, example in keys:
            if self.is_asked_again((fingerprint, example)):
                assert self._keys is not None
                name = fingerprint, self._keys[example]
                self.cells[fingerprint, example] = self.failed_outside[name][0]
                self._keep_failed(name)

    def keep_all_failed(self) -> None:
        """Take all calls that failed for a reason outside the program as they were."""
        for name in list(self.failed_outside):
            self._keep_failed(name)
        self.num_resumed = len(self.paid)

    def _keep_failed(self, name: tuple[str, str]) -> None:
        """Take a call that failed for a reason outside the program as it was, and as a call that was made."""
        cell, tokens = self.failed_outside.pop(name)
        self.by_content[name] = cell
        if not tokens:  # With tokens it counts already.
            self.paid.append(tokens)

    def note_fixed_only(self) -> None:
        """Note that the program cannot be shown demos found for each input: no later part tries it again."""
        self.fixed_only = True
        self.note({"fixed_only": True})

    def note(self, record: dict[str, Any], *, must: bool = False) -> None:
        """Append a record as a line. What is paid for must not be lost to a disk that cannot take one; that is an
        OSError only where it must."""
        with self._lock:
            if self._file is None:
                return
            line = b"".join(as_json(each) + b"\n" for each in (*self.postponed, record))
            self.postponed.clear()
            try:
                if os.write(self._file, line) < len(line):
                    raise OSError("no space left on the device")
            except OSError as error:
                if must:
                    raise
                logger.warning(
                    "%s could not be written (%s): from here on a kill loses what was paid for", self.path, error
                )
                os.close(self._file)
                self._file = None

    def settle(self) -> None:
        """Say that decisions were made on the cells added so far: those that failed stay failed."""
        if not self._settled:
            self.note({"settled": len(self.cells)})
        self._settled = True

    def retry(self) -> None:
        """Say that the cells that failed since the last `settle` are to be tried again by a new ledger."""
        self.note({"retry": len(self.cells)})

    def stop(self) -> None:
        """Take no more cells."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """End the file; nothing is added from now on."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _read(self, path: Path) -> None:
        """Take what the file holds, but for a last line that was not written to its end, and open it."""
        content = path.read_bytes() if path.exists() else b""
        whole, unsettled = content.rfind(b"\n") + 1, list[tuple[str, str]]()
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                self._take(orjson.loads(line), unsettled)
            except (ValueError, TypeError) as error:
                again = "remove the line, whose call will be made again, or " * line.startswith(b'{"cell"')
                raise UserError(
                    f"line {number} of {path} cannot be read ({error}): {again}pass another log_dir"
                ) from error
        self._settled = not unsettled
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._file = os.open(path, flags, 0o600)
        os.ftruncate(self._file, whole)
        if content[whole:].startswith(b'{"cell"'):  # The call counts, and may be made again.
            self.paid.append({})
            self.note({"lost": 1})
        self.num_resumed = len(self.paid)

    def _take(self, record: Any, unsettled: list[tuple[str, str]]) -> None:
        """Take a line of the file; the cells that failed since the last decision are the unsettled ones."""
        match record:
            case {"cell": [str(fingerprint), str(example)], **told}:
                tokens = _TOKENS.validate_python(told.pop("tokens", {}))
                key = (fingerprint, example)
                written = told.pop("value", None)
                if self.version == UNTYPED_VERSION and isinstance(written, dict):
                    raise ValueError("an earlier version wrote its value, and may have altered it")
                try:
                    cell = _CELL.validate_python({**told, "value": self._codec.decode(written)})
                except Unreadable as error:
                    self._warn_of_loss(f"{self.path}: {error}")
                    self.paid.append(tokens)
                    return
                if cell.score is None and not cell.outcome and cell.value is None:
                    raise ValueError(f"it says nothing of {key}")
                if key in self.by_content and self.by_content[key].outcome != FAILED:
                    raise ValueError(f"it repeats {key}")
                self.failed_outside.pop(key, None)
                if cause_of(cell.error) is not None:
                    self.failed_outside[key] = cell, tokens
                    if tokens:
                        self.paid.append(tokens)
                    return
                self.by_content[key] = cell
                self.paid.append(tokens)
                if cell.outcome == FAILED:
                    unsettled.append(key)
                elif key in unsettled:
                    unsettled.remove(key)
            case {"lost": int(count), **told}:
                self.paid += [_TOKENS.validate_python(told.get("tokens", {}))] * count
            case {"retry": _}:
                for key in unsettled:
                    self.by_content.pop(key, None)
            case {"schema_version": version} if version not in (UNTYPED_VERSION, SCHEMA_VERSION):
                raise ValueError(f"schema version {version!r}, and not {SCHEMA_VERSION}")
            case {"identity": identity, "unstable": unstable}:
                self.version = record.get("schema_version", SCHEMA_VERSION)
                if self.identity is not None and self.identity != dict(identity):
                    self.fixed_only = False  # Another version of the program may show them.
                self.identity, self.unstable = dict(identity), list(map(str, unstable))
            case {"out_of_time": ended}:
                self.out_of_time.append(ended)
            case {"fixed_only": bool(fixed_only)}:
                self.fixed_only = fixed_only
            case {"arguments": arguments}:
                self.course = self._courses[orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)]
            case {"round": scored}:
                self.course["rounds"].append(scored)
            case {"ended": ended}:
                self.course["ended"].append({"rounds": list(self.course["rounds"]), **ended})
            case {"replayed": rounds}:  # The others were of another budget.
                self.course["rounds"] = rounds
            case {"settled": _}:
                pass
            case _:
                raise ValueError("it is none of the kinds of lines")
        if record.keys() & {"retry", "round", "ended", "settled"}:  # These are decisions.
            unsettled.clear()


@contextmanager
def open_ledger(
    folder: Path | None,
    describe: Callable[[], Facts],
    *,
    accept_changes: bool = False,
    codec: Callable[[], ValueCodec] = ValueCodec,
    max_calls: int = sys.maxsize,
) -> Iterator[Ledger]:
    """The ledger of a folder, which no other compile uses meanwhile; without a folder, everything stays in memory.

    The folder is made if it does not exist. That of another compile is begun anew if no call there ended with an
    answer, and else gone on from if that is accepted. Calls that failed for a reason outside the program are made again
    unless that takes more than `max_calls`, those before included. `describe` says what decides scores. It is asked
    again at the end: what has changed by itself meanwhile, such as a counter, is not compared from then on. A folder
    that cannot be used is a ValueError, one that another compile is using a RuntimeError, and a full disk an OSError.
    """
    if folder is None:
        yield Ledger()
        return
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
        values = codec()
        ledger = Ledger(folder / FILE, values)
        stack.callback(lambda: ledger.close())
        identity = orjson.loads(orjson.dumps(describe()))
        said = _changes(ledger.identity or {}, identity, ignored=ledger.unstable)
        if said and (ledger.num_resumed or ledger.failed_outside):
            if not any(cell.score is not None or cell.value for cell in ledger.by_content.values()):
                logger.info("%s holds no answer of another compile, and is begun anew, although %s", folder, said)
                ledger.close()
                (folder / FILE).unlink()
                ledger = Ledger(folder / FILE, values)
            elif not accept_changes:
                raise UserError(
                    f"log_dir {folder} belongs to another compile: {said}. Pass another log_dir, or compile with what "
                    "it began with to go on from there, or, if the scores paid for there hold all the same, pass "
                    "accept_changes=True"
                )
            else:
                logger.warning("%s: goes on with what was paid for there, although %s", folder, said)
                ledger.fixed_only = False
        record = {"schema_version": SCHEMA_VERSION, "identity": identity, "unstable": ledger.unstable}
        if ledger.identity is None:
            ledger.note(record, must=True)
        elif ledger.identity != identity or ledger.version != SCHEMA_VERSION:
            ledger.postponed.append(record)
        if ledger.num_resumed:
            logger.info("%s: %d program calls were made before", folder, ledger.num_resumed)
        if len(ledger.paid) + len(ledger.failed_outside) > max_calls:
            ledger.keep_all_failed()
        if ledger.failed_outside:
            failed = [cell.error for cell, _ in ledger.failed_outside.values()]
            logger.warning("%s: %s", folder, made_again(failed))
        try:
            yield ledger
        finally:
            try:
                now = orjson.loads(orjson.dumps(describe()))
            except Exception as error:  # of the user's objects; what was found must not be lost to it
                logger.warning("what changed while the compile ran cannot be told: %r", error)
                now = identity
            if unstable := _differing(identity, now):
                logger.info("%s changed while the compile ran, and will not be compared", ", ".join(unstable))
                ledger.note({**record, "unstable": sorted({*ledger.unstable, *unstable})})


def _differing(was: Facts, now: Facts) -> list[str]:
    """Names of the facts that are no longer what they were."""
    return [name for name in {**was, **now} if was.get(name) != now.get(name)]


def _changes(was: Facts, now: Facts, *, ignored: Sequence[str]) -> str:
    """Say what differs between two identities, a phrase each; digests say nothing to people."""
    phrases = []
    for name in _differing(was, now):
        before, after = was.get(name), now.get(name)
        is_digest = any(isinstance(value, str) and value.startswith("#") for value in (before, after))
        if name not in ignored:
            phrases.append(f"{name} changed" if is_digest else f"{name} was {before!r}, is {after!r}")
    return "; ".join(phrases)


def error_counts(cells: Collection[tuple[CellKey, Cell]], names: Sequence[str] | Mapping[int, str]) -> list[ErrorCount]:
    """Count the cells that raised, by exception type and outcome, most frequent first; examples have these names."""
    groups: dict[tuple[str, str], list[tuple[int, str, str]]] = defaultdict(list)
    for (fingerprint, example), cell in cells:
        if cell.error:
            groups[cell.error, cell.outcome].append((example, fingerprint, cell.message))
    errors = []
    for (name, outcome), group in groups.items():
        shown, message = [names[example] for example in sorted({e for e, *_ in group})[:5]], min(group)[2]
        errors.append(ErrorCount(type=name, outcome=outcome, count=len(group), message=message, examples=shown))
    return sorted(errors, key=lambda error: (-error.count, error.type, error.outcome))
