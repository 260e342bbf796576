"""What a teacher has made of examples, and the file that keeps it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dspy
import orjson
from dspy.predict.predict import serialize_object
from filelock import FileLock, Timeout

from plr_dspy.programs.validation import check_log_dir
from plr_dspy.report.schema import ErrorCount
from plr_dspy.runtime.files import write_atomically
from plr_dspy.runtime.jsonl import append_json_line, mend_end, read_json_lines
from plr_dspy.runtime.signals import Interrupts
from plr_dspy.scoring.cells import Cell, error_counts
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
def kept_attempts(log_dir: Path | None, identity: str, *, accept_changes: bool) -> Iterator[KeptAttempts]:
    """The attempts that a log_dir holds, and that no other compile uses meanwhile.

    Args:
        log_dir: None keeps nothing.
        identity: Digest of what decides them.
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
        yield KeptAttempts.read(log_dir / FILE, identity, accept_changes=accept_changes)


@dataclass
class KeptAttempts:
    """The attempts that a file holds.

    Attributes:
        path: Of the file; None keeps nothing.
        done: Attempts by their examples.
        ended: Whether the money for them is spent.
    """

    path: Path | None = None
    done: dict[int, Attempt] = field(default_factory=dict)
    ended: bool = False

    @classmethod
    def read(cls, path: Path, identity: str, *, accept_changes: bool) -> KeptAttempts:
        """What a file holds; one is begun where there is none.

        Raises:
            ValueError: when it cannot be read, or belongs to another compile.
        """
        kept = cls(path)
        if path.exists():
            mend_end(path)
        if not path.exists() or not path.stat().st_size:
            if has_answers(path.parent / "cells.jsonl"):
                raise ValueError(
                    f"log_dir {path.parent} belongs to another compile, which bootstrapped no demos: pass another "
                    "log_dir"
                )
            return kept._begin(identity)
        try:
            first, *records = [value for _, value in read_json_lines(path)]
            same = first["identity"] == identity
            kept.ended = any("ended" in record for record in records)
            attempts = [_attempt(record) for record in records if "ended" not in record]
            kept.done = {attempt.example: attempt for attempt in attempts}
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{path} cannot be read ({error}): pass another log_dir") from error
        if not (same or accept_changes):
            holds_demos = any(attempt.demos for attempt in kept.done.values())
            if not (holds_demos or has_answers(path.parent / "cells.jsonl")):
                logger.info("%s holds no demo of another compile, and is begun anew", path)
                return cls(path)._begin(identity)
            raise ValueError(
                f"log_dir {path.parent} belongs to another compile: what decides the bootstrapped demos changed (the "
                "program, the teacher, the metric, the trainset or an argument). Pass another log_dir"
            )
        return kept

    def _begin(self, identity: str) -> KeptAttempts:
        """Begin the file anew."""
        assert self.path is not None
        write_atomically(self.path, orjson.dumps({"identity": identity}) + b"\n")
        return self

    def add(self, attempt: Attempt) -> None:
        """Keep an attempt, as it will be read from the file: as demos of a saved program are."""
        self.done[attempt.example] = attempt
        if self.path is None:
            return
        demos = {name: serialize_object(dict(demo.items())) for name, demo in attempt.demos.items()}
        record = {"example": attempt.example, "demos": demos, "tokens": attempt.tokens}
        if attempt.error:
            record |= {"error": attempt.error, "message": attempt.message}
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
    demos = {name: dspy.Example(**fields) for name, fields in record["demos"].items()}
    error, message = (str(record.get(name, "")) for name in ("error", "message"))
    return Attempt(int(record["example"]), demos, record["tokens"], error, message)
