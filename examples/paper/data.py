"""The examples of the tasks, from the Hugging Face hub or from JSON lines in a folder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dspy
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from plr_dspy.data.examples import Rows, as_examples
from plr_dspy.data.loading import HubSplit, import_datasets, load_file, load_hub_split
from plr_dspy.errors import UserError

from .answers import boxes
from .tasks import TASKS, Task

logger = logging.getLogger(__name__)

NUM_HELD_OUT = 2_000
"""If a data set has no test split, a fifth of its examples is held out, but no more than this number."""


class DataError(ValueError):
    """An error that states why data cannot be used and how to fix the problem."""


class Row(BaseModel):
    """The text and the answer in a line of a data file. Other fields are ignored."""

    model_config = ConfigDict(strict=True, str_strip_whitespace=True)

    text: str = Field(validation_alias=AliasChoices("text", "question"))
    answer: str = Field(validation_alias=AliasChoices("label", "answer"))


@dataclass(frozen=True)
class HubSource:
    """The location of a task's train part or test part on the hub.

    Attributes:
        split: The split of the data set.
        text, answer: Names of the columns. Class indices are replaced by class names.
        labels: The paper's label words, keyed by class name. Empty if answers are open.
        read: Function that extracts the answer from a value in the answer column. If there is no
            answer, it returns an empty string.
        is_streamed: Whether to fetch only the two columns, without saving the data set to disk.
    """

    split: HubSplit
    text: str
    answer: str
    labels: Mapping[str, str]
    read: Callable[[str], str] = str.strip
    is_streamed: bool = False


def after_hashes(solution: str) -> str:
    """Return the text after the last "####" in a solution, or an empty string."""
    return solution.rpartition("####")[2].strip() if "####" in solution else ""


def last_box(solution: str) -> str:
    """Return the content of the last box in a solution, or an empty string."""
    contents = boxes(solution)
    return contents[-1][0] if contents else ""


def _both_parts(
    task: str, path: str, text: str, answer: str, *classes: str, config: str | None = None, **options: Any
) -> tuple[HubSource, HubSource]:
    """Return the sources of a train and a test split with the same columns.

    `classes` are the data set's names for the task's labels, in the order of the labels.
    """
    labels = dict(zip(classes, TASKS[task].labels, strict=True))
    train = HubSource(HubSplit(path, config, "train"), text, answer, labels, **options)
    return train, replace(train, split=HubSplit(path, config, "test"))


_SST5 = ("very negative", "negative", "neutral", "positive", "very positive")
_TREC = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")
HUB: dict[str, tuple[HubSource, ...]] = {
    "mr": _both_parts("mr", "cornell-movie-review-data/rotten_tomatoes", "text", "label", "neg", "pos"),
    "sst5": _both_parts("sst5", "SetFit/sst5", "text", "label_text", *_SST5),
    # `datasets` cannot load the original, CogComp/trec, because it is distributed as a script.
    "trec": _both_parts("trec", "SetFit/TREC-QC", "text", "label_coarse_original", *_TREC),
    "agnews": _both_parts(
        "agnews", "fancyzhx/ag_news", "text", "label", "World", "Sports", "Business", "Sci/Tech"
    ),
    "subj": _both_parts("subj", "SetFit/subj", "text", "label_text", "subjective", "objective"),
    "gsm8k": _both_parts("gsm8k", "openai/gsm8k", "question", "answer", config="main", read=after_hashes),
    # MATH-500 is part of MATH's test split.
    "math500": (
        HubSource(
            HubSplit("DigitalLearningGmbH/MATH-lighteval", None, "train"),
            "problem",
            "solution",
            {},
            last_box,
        ),
        HubSource(HubSplit("HuggingFaceH4/MATH-500", None, "test"), "problem", "answer", {}),
    ),
    # Stream two columns, because the data set has 2 GB, mostly in solutions.
    "deepmath": (
        HubSource(
            HubSplit("zwhe99/DeepMath-103K", None, "train"),
            "question",
            "final_answer",
            {},
            is_streamed=True,
        ),
    ),
}
"""The train and test splits of each task on the hub.

If there is only one split, part of it is held out.
"""


def load(task: Task, *, data_dir: Path | None = None) -> tuple[list[dspy.Example], list[dspy.Example]]:
    """Read the train and test parts of a task.

    Skip rows whose text or answer is empty, and train texts that are repeated or in the test part.
    Ignore differences in whitespace between texts. Repeated texts in the test part are kept.

    Args:
        task: The task. It determines the data set and the valid labels.
        data_dir: Folder with NAME_train.jsonl and NAME_test.jsonl. None means the hub.

    Raises:
        DataError: If the data cannot be read, a row is invalid, or a part is empty.
    """
    if data_dir is None:
        train, test = _read_hub(task)
    else:
        train, test = (
            _read_file(data_dir / f"{task.name}_{part}.jsonl", task) for part in ("train", "test")
        )
    seen = {_normalized_text(row) for row in test}
    distinct = []
    for row in train:
        if _normalized_text(row) not in seen:
            seen.add(_normalized_text(row))
            distinct.append(row)
    for name, rows in (("train", distinct), ("test", test)):
        if not rows:
            raise DataError(
                f"the {name} part of {task.name!r} must have rows with a text and an answer; got no such rows. Add "
                "some."
            )
    if len(distinct) < len(train):
        num_repeats = len(train) - len(distinct)
        logger.info(
            "%s: skipped train texts that are repeated or in the test part (%d)", task.name, num_repeats
        )
    return _examples(task, distinct), _examples(task, test)


def _normalized_text(row: Row) -> str:
    """Return the text with normalized whitespace."""
    return " ".join(row.text.split())


def _examples(task: Task, rows: list[Row]) -> list[dspy.Example]:
    examples = [dspy.Example({task.input_field: row.text, task.output_field: row.answer}) for row in rows]
    return [example.with_inputs(task.input_field) for example in examples]


def _read_file(path: Path, task: Task) -> list[Row]:
    """Return the rows of a file in which neither the text nor the answer is empty."""
    if not path.is_file():
        raise DataError(
            f"there is no file {path}. Pass a data_dir (--data-dir) with {task.name}_train.jsonl and "
            f"{task.name}_test.jsonl, whose lines are "
            '{"text": ..., "label": ...} or {"question": ..., "answer": ...}.'
        )
    try:
        rows = list(load_file(path))
    except UserError as error:
        raise DataError(str(error)) from error
    return _usable(task, ((f"row {number} of {path}", row) for number, row in enumerate(rows, start=1)))


def _read_hub(task: Task) -> list[list[Row]]:
    """Return a task's train and test rows on the hub. If there is only one split, hold out part of it."""
    parts = []
    for source in HUB[task.name]:
        try:
            parts.append(_usable(task, _hub_rows(source, task)))
        except UserError as error:
            raise DataError(
                f"{error}. Without the hub, put {task.name}_train.jsonl and {task.name}_test.jsonl into a folder, and "
                "pass it as data_dir (--data-dir)."
            ) from error
    return parts if len(parts) == 2 else hold_out(parts[0])


def _hub_rows(source: HubSource, task: Task) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and content of each row in a split. Replace labels with the paper's words."""
    name = str(source.split)
    changed = "The data set has changed: pass the task's files as data_dir (--data-dir)."
    examples = as_examples(_load_split(source), task.program("plain"), name=name, inputs=[source.text])
    for index, example in enumerate(examples):
        place = f"{name}[{index}]"
        answer = example.get(source.answer, "")
        if not isinstance(answer, str):
            raise DataError(f"{place} must have a string in {source.answer!r}; got {answer!r}. {changed}")
        answer = source.read(answer)
        if source.labels and answer:
            if answer not in source.labels:
                raise DataError(
                    f"{place} must have one of the classes {list(source.labels)}; got {answer!r}. {changed}"
                )
            answer = source.labels[answer]
        yield place, {"text": example[source.text], "answer": answer}


def _load_split(source: HubSource) -> Rows:
    """Load the text and answer columns of a split."""
    datasets = import_datasets()
    columns = [source.text, source.answer]
    if source.is_streamed:
        # Also pass `features`: with `columns` alone, `datasets` rejects data sets whose card lists features.
        features = datasets.Features(dict.fromkeys(columns, datasets.Value("string")))
        stream = load_hub_split(source.split, streaming=True, columns=columns, features=features)
        return datasets.Dataset.from_list(list(stream), features=features)
    dataset = load_hub_split(source.split)
    missing = [column for column in columns if column not in dataset.column_names]
    if missing:
        raise UserError(
            f"{source.split} must have the columns {columns}; got {dataset.column_names}: the data set has changed"
        )
    return dataset.select_columns(columns)


def hold_out(rows: list[Row]) -> list[list[Row]]:
    """Split rows into train and test by a digest of their texts, so that the rows' order does not matter."""
    by_text: dict[str, Row] = {}
    for row in rows:
        by_text.setdefault(_normalized_text(row), row)
    by_digest = sorted(by_text, key=lambda text: hashlib.sha256(text.encode()).digest())
    num_test = min(NUM_HELD_OUT, len(by_digest) // 5)
    held_out = set(by_digest[:num_test])
    train = [row for text, row in by_text.items() if text not in held_out]
    return [train, [by_text[text] for text in by_digest[:num_test]]]


def _usable(task: Task, rows: Iterator[tuple[str, Any]]) -> list[Row]:
    """Return the rows in which neither text nor answer is empty. Raise an error if a row is invalid."""
    usable = []
    num_skipped = 0
    for place, fields in rows:
        try:
            row = Row.model_validate(fields)
        except ValidationError as error:
            raise DataError(f"{place} is invalid: {error}\nFix or remove the row.") from error
        if not row.text or not row.answer:
            num_skipped += 1
        elif task.labels and row.answer not in task.labels:
            raise DataError(
                f"{place} must have one of the labels {list(task.labels)}; got {row.answer!r}. Fix or remove the row."
            )
        else:
            usable.append(row)
    if num_skipped:
        logger.info("%s: skipped rows whose text or answer is empty (%d)", task.name, num_skipped)
    return usable
