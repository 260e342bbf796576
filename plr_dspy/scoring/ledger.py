"""The ledger: each call that was paid for, in memory and on disk, and which of those that failed are tried again."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from plr_dspy.report.schema import ErrorCount
from plr_dspy.scoring.cells import FAILED, Cell, CellKey, error_counts

logger = logging.getLogger(__name__)

TRANSIENT = {"LMRateLimitError", "LMServerError", "LMTimeoutError", "LMTransportError"}
"""Exceptions of a provider that may be gone the next time."""

Tokens: TypeAlias = Mapping[str, Mapping[str, int]]
"""Counts by model and kind, such as "prompt_tokens"."""


class Ledger:
    """The cells of a compile, and what they cost. Threads may share it.

    With a file, each cell is one line of JSON, written when the cell is added: what is killed loses
    nothing that had been added. A line that was being written, the last, is dropped when the file is
    read again. Failed cells count as paid. Of those added after the last `settle`, a new ledger does not
    know the ones that may go well the next time: all before a `retry`, and those of the provider.

    Args:
        path: The file; it is read if it exists. None keeps everything in memory.
        least: Program calls that the file is known to have held; a disk may have lost some.

    Attributes:
        cells: What has been paid.
        num_resumed: Program calls that the file held.
        num_lost: Program calls that it should have held as well.
        resumed_tokens: Tokens of each call that the file held.
    """

    def __init__(self, path: Path | None = None, *, least: int = 0) -> None:
        self.cells: dict[CellKey, Cell] = {}
        self.resumed_tokens: list[Tokens] = []
        self._calls: Counter[int] = Counter()
        self._tokens: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._path = path
        self._file: int | None = None
        if path is not None:
            self._read(path)
            self._file = os.open(
                path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600
            )
        self.num_lost = max(0, least - self._calls.total())
        if self.num_lost:
            logger.warning(
                "%s lacks %d calls that were paid: they count, and may be made again", path, self.num_lost
            )
        self.num_resumed = self.calls()

    @property
    def tokens(self) -> dict[str, dict[str, int]]:
        """Tokens by model and kind."""
        tokens: dict[str, dict[str, int]] = defaultdict(dict)
        for (model, kind), count in self._tokens.items():
            tokens[model][kind] = count
        return dict(tokens)

    def calls(self, examples: Iterable[int] | None = None) -> int:
        """Program calls paid for, on these examples or on all; a failed call that was made again counts twice."""
        if examples is None:
            return self._calls.total() + self.num_lost
        return sum(self._calls[example] for example in examples)

    def add(self, key: CellKey, cell: Cell, tokens: Tokens) -> bool:
        """Note a cell that was paid; after `close` it is too late, and the answer False."""
        with self._lock:
            if self._closed:
                return False
            counts = self._count(tokens)
            self._enter(key, cell)
            self._write(_cell_record(key, cell, counts))
            return True

    def examples_that_ran(self) -> set[int]:
        """Those on which some call ended with an answer."""
        return {example for (_, example), cell in self.cells.items() if cell.outcome != FAILED}

    def settle(self) -> None:
        """Say that decisions were made on the cells added so far: those that failed stay failed."""
        with self._lock:
            self._write({"settled": len(self.cells)})

    def retry(self) -> None:
        """Say that the cells that failed since the last `settle` are to be tried again by a new ledger."""
        with self._lock:
            self._write({"retry": len(self.cells)})

    def close(self) -> None:
        """End the file; nothing is added from now on."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def errors(self, names: Sequence[str], *, original: str | None = None) -> list[ErrorCount]:
        """Cells that raised, by exception type and outcome, most frequent first.

        Args:
            names: What the examples are called.
            original: Fingerprint of the ordering whose cells are counted by themselves.
        """
        return error_counts(self.cells.items(), names, original=original)

    def _enter(self, key: CellKey, cell: Cell) -> None:
        self.cells[key] = cell
        self._calls[key[1]] += 1

    def _count(self, tokens: Tokens) -> dict[str, int]:
        """Add tokens; returns them by the number of their model and kind in the file."""
        counts = {}
        for model, kinds in tokens.items():
            for kind, count in kinds.items():
                if (model, kind) not in self._tokens:
                    self._tokens[model, kind] = 0
                    self._write({"tokens_of": [model, kind]})
                self._tokens[model, kind] += count
                counts[str(list(self._tokens).index((model, kind)))] = count
        return counts

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = orjson.dumps(record) + b"\n"
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError("no space left on the device")
        except OSError as error:  # what is paid for must not be lost to a full disk
            logger.warning(
                "%s could not be written (%s): from here on a kill loses what was paid for", self._path, error
            )
            os.close(self._file)
            self._file = None

    def _read(self, path: Path) -> None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
        unsettled: list[CellKey] = []
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                self._replay(orjson.loads(line), unsettled)
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise ValueError(
                    f"line {number} of {path} cannot be read ({error}): remove the line, whose call will be made "
                    "again, or pass another log_dir"
                ) from error
        for key in unsettled:
            if key in self.cells and self.cells[key].error in TRANSIENT:
                del self.cells[key]

    def _replay(self, record: dict[str, Any], unsettled: list[CellKey]) -> None:
        if "tokens_of" in record:
            model, kind = record["tokens_of"]
            self._tokens[model, kind] = 0
        elif "settled" in record:
            unsettled.clear()
        elif "retry" in record:
            for key in unsettled:
                self.cells.pop(key, None)
            unsettled.clear()
        else:
            fingerprint, example = record["cell"]
            key = (sys.intern(fingerprint), int(example))
            score = None if record["score"] is None else 1.0 * record["score"]
            rest = {name: record[name] for name in ("outcome", "error", "message", "value") if name in record}
            unseen = tuple(map(int, record.get("unseen", ())))
            cell = Cell(score, **rest, label_logprobs=_logprobs(record), unseen_labels=unseen)
            if key[1] < 0 or (cell.score is None and not cell.outcome and cell.value is None):
                raise ValueError(f"it says nothing of {key}")
            known = self.cells.get(key)
            if known is not None and known.outcome != FAILED:
                raise ValueError(f"it repeats {key}")
            self._enter(key, cell)
            names = list(self._tokens)
            tokens: dict[str, dict[str, int]] = defaultdict(dict)
            for number, count in record.get("tokens", {}).items():
                model, kind = names[int(number)]
                self._tokens[model, kind] += count
                tokens[model][kind] = count
            self.resumed_tokens.append(tokens)
            if cell.outcome == FAILED:
                unsettled.append(key)


def has_answers(path: Path) -> bool:
    """Whether a call that the file holds ended with an answer; a file that is not there holds none.

    Raises:
        ValueError: when it cannot be read.
    """
    if not path.exists():
        return False
    ledger = Ledger(path)
    ledger.close()
    return bool(ledger.examples_that_ran())


def _logprobs(record: dict[str, Any]) -> tuple[float, ...] | None:
    if "logprobs" not in record:
        return None
    values = record["logprobs"]
    if not isinstance(values, list) or not values or {type(value) for value in values} - {int, float}:
        raise ValueError(f"logprobs: expected a list of numbers, got {values!r}")
    if not all(map(math.isfinite, values)):
        raise ValueError(f"logprobs: expected finite numbers, got {values!r}")
    return tuple(map(float, values))


def _cell_record(key: CellKey, cell: Cell, tokens: dict[str, int]) -> dict[str, Any]:
    record: dict[str, Any] = {"cell": key, "score": cell.score}
    if cell.outcome:
        record |= {"outcome": cell.outcome, "error": cell.error, "message": cell.message}
    if cell.value is not None:
        record["value"] = cell.value
    if cell.label_logprobs is not None:
        record["logprobs"] = cell.label_logprobs
    if cell.unseen_labels:
        record["unseen"] = cell.unseen_labels
    if tokens:
        record["tokens"] = tokens
    return record
