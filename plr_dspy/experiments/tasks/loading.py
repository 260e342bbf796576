"""The examples of the tasks: JSON lines in a folder, or data sets of the Hugging Face hub."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import dspy
import orjson

from plr_dspy.experiments.tasks.hub import read_hub
from plr_dspy.experiments.tasks.rows import DataError, Row, new_row
from plr_dspy.experiments.tasks.tasks import Task

__all__ = ["DataError", "load"]

logger = logging.getLogger(__name__)

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def load(
    task: Task, *, data_dir: str | os.PathLike[str] | None = None
) -> tuple[list[dspy.Example], list[dspy.Example]]:
    """Read the train and the test part of a task.

    Blanks around texts and answers are stripped. Rows without a text or an answer are left out, and from the train part
    texts that come again or are in the test part, where texts that differ in their blanks only are one. The test part
    is as published: a text may be there twice.

    Args:
        task: Which.
        data_dir: Folder with NAME_train.jsonl and NAME_test.jsonl, lines of {"text", "label"}, or of {"question",
            "answer"} where answers are open; other fields are ignored. None takes the hub.

    Returns:
        Both parts, as examples with the task's fields and its input set.

    Raises:
        DataError: when they cannot be read, or hold something else.
        ImportError: when the hub is wanted and `datasets` is not installed.
    """
    if data_dir is None:
        train, test = read_hub(task.name)
    else:
        folder = Path(data_dir)
        train, test = (list(_read(folder / f"{task.name}_{part}.jsonl", task)) for part in ("train", "test"))
    usable, held_out = (_usable(rows, task) for rows in (train, test))
    kept = _not_met(usable, held_out)
    for part, rows in (("train", kept), ("test", held_out)):
        if not rows:
            raise DataError(
                f"the {part} part of {task.name!r} holds no usable row: check where its data come from"
            )
    if len(kept) < len(usable):
        left_out = len(usable) - len(kept)
        logger.info("%s: %d train texts are left out: repeated, or in the test part", task.name, left_out)
    return _examples(kept, task), _examples(held_out, task)


def _read(path: Path, task: Task) -> Iterator[Row]:
    columns = ("question", "answer") if task.reasoning else ("text", "label")
    if not path.is_file():
        raise DataError(
            f"no file {path}: data_dir (--data-dir) is a folder with {task.name}_train.jsonl and "
            f'{task.name}_test.jsonl, lines of {{"{columns[0]}": ..., "{columns[1]}": ...}}'
        )
    # Not `splitlines`: JSON may hold characters that it takes for line ends.
    for number, line in enumerate(path.read_bytes().removeprefix(_BYTE_ORDER_MARK).split(b"\n"), start=1):
        if line.strip():
            yield _parsed(line, columns, f"line {number} of {path}")


def _parsed(line: bytes, columns: tuple[str, str], place: str) -> Row:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{place} is no JSON ({error}): mend or remove it") from error
    missing = [name for name in columns if not isinstance(fields, dict) or name not in fields]
    if missing:
        there = f"; it has {sorted(fields)}" if isinstance(fields, dict) else ""
        raise DataError(f"{place} must be an object with {list(columns)}{there}: name its fields so")
    return new_row(fields[columns[0]], fields[columns[1]], columns=columns, place=place)


def _usable(rows: Sequence[Row], task: Task) -> list[Row]:
    """Those with a text and an answer; their labels must be the task's."""
    for row in rows:
        if task.labels and row.answer not in task.labels:
            raise DataError(
                f"{row.place}: {row.answer!r} is no label of {task.name!r}; expected one of {list(task.labels)}: "
                "mend or remove the row"
            )
    found = [row for row in rows if row.text and row.answer]
    if len(found) < len(rows):
        logger.info("%s: %d rows without text or answer are left out", task.name, len(rows) - len(found))
    return found


def _not_met(train: Iterable[Row], test: Iterable[Row]) -> list[Row]:
    """The train rows whose texts are not in the test part, the first one of each text."""
    seen = {_key(row.text) for row in test}
    kept = []
    for row in train:
        if _key(row.text) not in seen:
            seen.add(_key(row.text))
            kept.append(row)
    return kept


def _key(text: str) -> str:
    return " ".join(text.split())


def _examples(rows: Sequence[Row], task: Task) -> list[dspy.Example]:
    given, asked = task.input_field, task.output_field
    return [dspy.Example({given: row.text, asked: row.answer}).with_inputs(given) for row in rows]
