"""The examples of the tasks, read from JSON lines."""

from __future__ import annotations

import codecs
import logging
from pathlib import Path

import dspy
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from .tasks import Task

logger = logging.getLogger(__name__)


class DataError(ValueError):
    """The data cannot be used; the message says why, and what to do."""


class Row(BaseModel):
    """A line of a data file, whose other fields are ignored."""

    model_config = ConfigDict(strict=True, str_strip_whitespace=True)

    text: str = Field(validation_alias=AliasChoices("text", "question"))
    answer: str = Field(validation_alias=AliasChoices("label", "answer"))


def load(task: Task, *, data_dir: Path) -> tuple[list[dspy.Example], list[dspy.Example]]:
    """Read the train and test parts of a task from NAME_train.jsonl and NAME_test.jsonl.

    Rows without a text or an answer are skipped, and so are train texts that are repeated or in the test part. Texts
    that differ only in whitespace count as equal. The test part is used as published, so its texts may repeat.

    Raises:
        DataError: if a file is missing, a line is invalid, or a part is empty.
    """
    train = _read(data_dir / f"{task.name}_train.jsonl", task)
    test = _read(data_dir / f"{task.name}_test.jsonl", task)
    seen = {_normalized_text(row) for row in test}
    distinct = []
    for row in train:
        if _normalized_text(row) not in seen:
            seen.add(_normalized_text(row))
            distinct.append(row)
    for name, rows in (("train", distinct), ("test", test)):
        if not rows:
            raise DataError(f"the {name} part of {task.name!r} has no usable row. Check the source of the file.")
    if len(distinct) < len(train):
        num_repeats = len(train) - len(distinct)
        logger.info("%s: skipped %d train texts that are repeated or in the test part", task.name, num_repeats)
    return _examples(task, distinct), _examples(task, test)


def _normalized_text(row: Row) -> str:
    """Return the text with normalized whitespace."""
    return " ".join(row.text.split())


def _examples(task: Task, rows: list[Row]) -> list[dspy.Example]:
    examples = [dspy.Example({task.input_field: row.text, task.output_field: row.answer}) for row in rows]
    return [example.with_inputs(task.input_field) for example in examples]


def _read(path: Path, task: Task) -> list[Row]:
    """Return the rows of a file that have both a text and an answer."""
    if not path.is_file():
        raise DataError(
            f"no file {path}. data_dir (--data-dir) must have {task.name}_train.jsonl and {task.name}_test.jsonl, with "
            'lines of {"text": ..., "label": ...} or {"question": ..., "answer": ...}.'
        )
    # JSON strings may contain other characters at which `str.splitlines` would split.
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    rows = []
    num_skipped = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = Row.model_validate_json(line)
        except ValidationError as error:
            raise DataError(f"line {number} of {path} is invalid: {error}\nFix or remove it.") from error
        if not row.text or not row.answer:
            num_skipped += 1
        elif task.labels and row.answer not in task.labels:
            raise DataError(
                f"line {number} of {path} must have one of the labels {list(task.labels)}; got {row.answer!r}. Fix or "
                "remove it."
            )
        else:
            rows.append(row)
    if num_skipped:
        logger.info("%s: skipped %d rows without a text or an answer", task.name, num_skipped)
    return rows
