"""The examples of the tasks: JSON lines in a folder, or data sets of the Hugging Face hub."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import dspy

from plr_dspy.experiments.tasks.hub import read_hub
from plr_dspy.experiments.tasks.labelled_text import DataError, LabelledText, read_fields
from plr_dspy.experiments.tasks.tasks import Task
from plr_dspy.runtime.jsonl import read_json_lines

__all__ = ["DataError", "load"]

logger = logging.getLogger(__name__)


def load(
    task: Task, *, data_dir: str | os.PathLike[str] | None = None
) -> tuple[list[dspy.Example], list[dspy.Example]]:
    """Read the train and the test part of a task.

    Blanks around texts and answers are stripped. Rows without a text or an answer are left out, and from the train part
    texts that come again or are in the test part, where texts that differ in their blanks only are one. The test part
    is as published: a text may be there twice.

    Args:
        task: The task.
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
    usable, held_out = _usable(train, task), _usable(test, task)
    met_in_test = {_without_blanks(row.text) for row in held_out}
    first_of_text: dict[str, LabelledText] = {}
    for row in usable:
        first_of_text.setdefault(_without_blanks(row.text), row)
    kept = [row for text, row in first_of_text.items() if text not in met_in_test]
    for part, rows in (("train", kept), ("test", held_out)):
        if not rows:
            raise DataError(
                f"the {part} part of {task.name!r} holds no usable row: check where its data come from"
            )
    if len(kept) < len(usable):
        left_out = len(usable) - len(kept)
        logger.info("%s: %d train texts are left out: repeated, or in the test part", task.name, left_out)
    return _examples(kept, task), _examples(held_out, task)


def _read(path: Path, task: Task) -> Iterator[LabelledText]:
    """Yield the texts and answers of a file."""
    columns = ("question", "answer") if task.reasoning else ("text", "label")
    if not path.is_file():
        raise DataError(
            f"no file {path}: data_dir (--data-dir) is a folder with {task.name}_train.jsonl and "
            f'{task.name}_test.jsonl, lines of {{"{columns[0]}": ..., "{columns[1]}": ...}}'
        )
    try:
        for number, fields in read_json_lines(path):
            place = f"line {number} of {path}"
            if not isinstance(fields, dict) or not fields.keys() >= set(columns):
                there = f"; it has {sorted(fields)}" if isinstance(fields, dict) else ""
                raise DataError(f"{place} must be an object with {list(columns)}{there}: name its fields so")
            yield read_fields(fields, columns, place)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(str(error)) from error


def _usable(rows: Sequence[LabelledText], task: Task) -> list[LabelledText]:
    """Keep the rows with a text and an answer, and raise where a label is not one of the task's."""
    found = [row for row in rows if row.text and row.answer]
    for row in found:
        if task.labels and row.answer not in task.labels:
            raise DataError(
                f"{row.place}: {row.answer!r} is no label of {task.name!r}; expected one of {list(task.labels)}: "
                "mend or remove the row"
            )
    if len(found) < len(rows):
        logger.info("%s: %d rows without text or answer are left out", task.name, len(rows) - len(found))
    return found


def _without_blanks(text: str) -> str:
    """The text with single spaces between its words: texts are one where these are equal."""
    return " ".join(text.split())


def _examples(rows: Sequence[LabelledText], task: Task) -> list[dspy.Example]:
    """Name the texts and answers as the task's signature does."""
    given, asked = task.input_field, task.output_field
    return [dspy.Example({given: row.text, asked: row.answer}).with_inputs(given) for row in rows]
