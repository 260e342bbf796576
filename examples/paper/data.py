"""The examples of the tasks: JSON lines in a folder."""

from __future__ import annotations

import codecs
import json
import logging
import os
import reprlib
from pathlib import Path

import dspy

from .tasks import Task

logger = logging.getLogger(__name__)


class DataError(ValueError):
    """The data cannot be used; the message says why, and what to do."""


def load(task: Task, *, data_dir: str | os.PathLike[str]) -> tuple[list[dspy.Example], list[dspy.Example]]:
    """Read the train and the test part of a task.

    The folder has NAME_train.jsonl and NAME_test.jsonl, lines of {"text", "label"}, or of {"question", "answer"} where
    answers are open; other fields are ignored. Rows without a text or an answer are left out, and from the train part
    texts that come again or are in the test part, where texts that differ in their blanks only are one. The test part
    is as published: a text may be there twice.
    """
    train, test = (_read(Path(data_dir) / f"{task.name}_{part}.jsonl", task) for part in ("train", "test"))
    kept, seen = [], {_without_blanks(text) for text, _ in test}
    for text, answer in train:
        if (words := _without_blanks(text)) not in seen:
            seen.add(words)
            kept.append((text, answer))
    for name, part in (("train", kept), ("test", test)):
        if not part:
            raise DataError(f"the {name} part of {task.name!r} holds no usable row: check where it comes from")
    if count := len(train) - len(kept):
        logger.info("%s: %d train texts are left out: repeated, or in the test part", task.name, count)
    given, asked = task.input_field, task.output_field
    train_examples, test_examples = (
        [dspy.Example({given: text, asked: answer}).with_inputs(given) for text, answer in part]
        for part in (kept, test)
    )
    return train_examples, test_examples


def _without_blanks(text: str) -> str:
    """What two texts have in common that differ in their blanks only."""
    return " ".join(text.split())


def _read(path: Path, task: Task) -> list[tuple[str, str]]:
    """The texts and answers of a file's rows that have both."""
    fields = ("question", "answer") if task.reasoning else ("text", "label")
    if not path.is_file():
        raise DataError(
            f"no file {path}: data_dir (--data-dir) is a folder with {task.name}_train.jsonl and "
            f'{task.name}_test.jsonl, lines of {{"{fields[0]}": ..., "{fields[1]}": ...}}'
        )
    rows: list[tuple[str, str]] = []
    left_out = 0
    # Lines end at line feeds alone: JSON may hold the other characters that `str.splitlines` takes for line ends.
    for number, line in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"line {number} of {path}"
        try:
            row = json.loads(line.decode())
        except ValueError as error:
            raise DataError(f"{place} is no JSON ({error}): mend or remove it") from error
        if not isinstance(row, dict) or not row.keys() >= set(fields):
            there = f"; it has {sorted(row)}" if isinstance(row, dict) else ""
            raise DataError(f"{place} must be an object with {list(fields)}{there}: name its fields so")
        for name in fields:
            if not isinstance(row[name], str):
                got = f"text and answer must be strings; got {reprlib.repr(row[name])}"
                raise DataError(f"{place}: {got}: mend or remove the row")
        text, answer = (row[name].strip() for name in fields)
        if not text or not answer:
            left_out += 1
        elif task.labels and answer not in task.labels:
            expected = f"is no label of {task.name!r}; expected one of {list(task.labels)}"
            raise DataError(f"{place}: {answer!r} {expected}: mend or remove the row")
        else:
            rows.append((text, answer))
    if left_out:
        logger.info("%s: %d rows without text or answer are left out", task.name, left_out)
    return rows
