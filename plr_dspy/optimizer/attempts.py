"""What a teacher has made of examples, and the file that keeps it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dspy
import orjson
from dspy.predict.predict import serialize_object
from filelock import FileLock, Timeout

from plr_dspy.programs.digest.description import digest
from plr_dspy.programs.validation import check_log_dir
from plr_dspy.report.schema import ErrorCount
from plr_dspy.runtime.files import write_atomically
from plr_dspy.runtime.jsonl import append_json_line, mend_end, read_json_lines
from plr_dspy.runtime.signals import Interrupts
from plr_dspy.scoring.cells import Cell, error_counts
from plr_dspy.scoring.identity_check import Changes, Identity
from plr_dspy.scoring.ledger import has_answers

logger = logging.getLogger(__name__)

FILE = "bootstrapped.jsonl"
"""In a log_dir: what the attempts belong to, then each of them."""

NO_DEMO = "gave no demo"
"""Outcome of an attempt that ended without an answer, or failed."""


@dataclass(frozen=True)
class Attempt:
    """What a teacher made of an example.

    Attributes:
        example: Its number in the trainset.
        demos: By predictor; empty where the answer was not right.
        tokens: Billed tokens by model and kind.
        error: Class name of the exception that it ended in; empty where it ended in none.
        message: First line of the exception's message.
    """

    example: int
    demos: dict[str, Any]
    tokens: dict[str, dict[str, int]]
    error: str = ""
    message: str = ""


def attempt_errors(attempts: Sequence[Attempt]) -> list[ErrorCount]:
    """Count the attempts that ended in an exception, by its type."""
    cells = [
        (("", each.example), Cell(None, NO_DEMO, each.error, each.message)) for each in attempts if each.error
    ]
    return error_counts(cells, {each.example: f"trainset[{each.example}]" for each in attempts})


@contextmanager
def kept_attempts(
    log_dir: Path | None, identity: Identity, examples: Mapping[int, dspy.Example], *, accept_changes: bool
) -> Iterator[KeptAttempts]:
    """The attempts at examples that a log_dir holds, and that no other compile uses meanwhile.

    Args:
        log_dir: None keeps nothing.
        identity: Tells what decides them.
        examples: By their numbers, which may have been others when the attempts were made.
        accept_changes: Go on from attempts of another identity.

    Raises:
        ValueError: when the log_dir belongs to another compile.
        RuntimeError: when another compile is using it.
    """
    with Interrupts(), ExitStack() as stack:
        if log_dir is None:
            yield KeptAttempts()
            return
        check_log_dir(log_dir)
        try:
            stack.enter_context(FileLock(log_dir / "lock", timeout=0, thread_local=False))
        except Timeout:
            raise RuntimeError(
                f"log_dir {log_dir} is in use by another compile: wait for its end, or pass another log_dir"
            ) from None
        keys = {number: digest(example) for number, example in examples.items()}
        kept = KeptAttempts(log_dir / FILE, keys)
        kept.read(orjson.loads(orjson.dumps(identity)), accept_changes=accept_changes)
        yield kept


@dataclass
class KeptAttempts:
    """The attempts that a file holds.

    Attributes:
        path: Of the file; None keeps nothing.
        keys: Of the examples by their numbers. The file tells examples by these digests of what they hold: a trainset
            in another order has other numbers.
        done: Attempts by the numbers of their examples.
        ended: Whether the money for them is spent.
    """

    path: Path | None = None
    keys: Mapping[int, str] = field(default_factory=dict)
    done: dict[int, Attempt] = field(default_factory=dict)
    ended: bool = False

    def read(self, identity: Identity, *, accept_changes: bool) -> None:
        """Take what the file holds of these examples; it is begun where there is none.

        Raises:
            ValueError: when it cannot be read, or belongs to another compile.
        """
        assert self.path is not None
        if self.path.exists():
            mend_end(self.path)
        if not self.path.exists() or not self.path.stat().st_size:
            if has_answers(self.path.parent / "cells.jsonl"):
                raise ValueError(
                    f"log_dir {self.path.parent} belongs to another compile, which bootstrapped no demos: pass another "
                    "log_dir"
                )
            self._write(identity, [])
            return
        try:
            first, *records = [value for _, value in read_json_lines(self.path)]
            changes = Changes(first["identity"], identity).phrases()
            attempts = [(record["key"], _attempt(record)) for record in records if "ended" not in record]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{self.path} cannot be read ({error}): pass another log_dir") from error
        if changes and not accept_changes:
            holds_demos = any(attempt.demos for _, attempt in attempts)
            if holds_demos or has_answers(self.path.parent / "cells.jsonl"):
                raise ValueError(
                    f"log_dir {self.path.parent} belongs to another compile: {'; '.join(changes)}. Pass another "
                    "log_dir, or compile with what it began with to go on from there, or, if the demos bootstrapped "
                    "there are right all the same, pass accept_changes=True"
                )
            logger.info("%s holds no demo of another compile, and is begun anew", self.path)
            records = attempts = []
        if changes:
            self._write(identity, records)
        self.ended = any("ended" in record for record in records)
        numbers = defaultdict(list)
        for number, key in self.keys.items():
            numbers[key].append(number)
        for key, attempt in attempts:
            if numbers[key]:  # Else it was made of an example that makes no demo any more, but may score.
                number = numbers[key].pop(0)
                self.done[number] = replace(attempt, example=number)

    def _write(self, identity: Identity, records: Sequence[Mapping[str, Any]]) -> None:
        """Write the whole file."""
        assert self.path is not None
        write_atomically(
            self.path, b"".join(orjson.dumps(each) + b"\n" for each in [{"identity": identity}, *records])
        )

    def add(self, attempt: Attempt) -> None:
        """Keep an attempt, as it will be read from the file: as demos of a saved program are."""
        self.done[attempt.example] = attempt
        if self.path is None:
            return
        demos = {name: serialize_object(dict(demo.items())) for name, demo in attempt.demos.items()}
        record = {**vars(attempt), "demos": demos, "key": self.keys[attempt.example]}
        line = orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY, default=str)
        append_json_line(self.path, line)
        self.done[attempt.example] = _attempt(orjson.loads(line))

    def end(self) -> None:
        """Keep that no further attempt is to be made."""
        logger.warning("bootstrapping ended with its share of max_cost, after %d examples", len(self.done))
        self.ended = True
        if self.path is not None:
            append_json_line(self.path, orjson.dumps({"ended": "max_cost"}))


def _attempt(record: dict[str, Any]) -> Attempt:
    """Make the attempt that a line of the file is of."""
    demos = {name: dspy.Example(**fields) for name, fields in record["demos"].items()}
    error, message = (str(record[name]) for name in ("error", "message"))
    return Attempt(int(record["example"]), demos, record["tokens"], error, message)
