"""The examples of the tasks: JSON lines in a folder, or data sets of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import logging
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dspy
import pandas as pd

from .answers import boxed
from .json_lines import read_json_lines
from .tasks import TASKS, Task

logger = logging.getLogger(__name__)

NUM_HELD_OUT = 2_000
"""Number of examples in the test part of a data set that has none."""


class DataError(ValueError):
    """The data cannot be used; the message says why, and what to do."""


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

    Raises:
        DataError: when they cannot be read, or hold something else.
    """
    if data_dir is None:
        train, test = _read_hub(task)
    else:
        files = [Path(data_dir) / f"{task.name}_{part}.jsonl" for part in ("train", "test")]
        train, test = (_usable(_read_file(path, task), task) for path in files)
    words, words_of_test = (part.text.str.split().str.join(" ") for part in (train, test))
    repeated = words.duplicated() | words.isin(words_of_test)
    train = train[~repeated]
    for name, part in (("train", train), ("test", test)):
        if part.empty:
            raise DataError(
                f"the {name} part of {task.name!r} holds no usable row: check where it comes from"
            )
    if repeated.any():
        count = repeated.sum()
        logger.info("%s: %d train texts are left out: repeated, or in the test part", task.name, count)
    given, asked = task.input_field, task.output_field
    train_examples, test_examples = (
        [dspy.Example({given: row.text, asked: row.answer}).with_inputs(given) for row in part.itertuples()]
        for part in (train, test)
    )
    return train_examples, test_examples


def _usable(rows: Iterator[tuple[Any, Any, str]], task: Task) -> pd.DataFrame:
    """Check rows of text, answer and place, and make a table of those that have both."""
    kept, left_out = [], 0
    for text, answer, place in rows:
        for value in (text, answer):
            if not isinstance(value, str):
                got = f"text and answer must be strings; got {reprlib.repr(value)}"
                raise DataError(f"{place}: {got}: mend or remove the row")
        text, answer = text.strip(), answer.strip()
        if not text or not answer:
            left_out += 1
        elif task.labels and answer not in task.labels:
            expected = f"is no label of {task.name!r}; expected one of {list(task.labels)}"
            raise DataError(f"{place}: {answer!r} {expected}: mend or remove the row")
        else:
            kept.append((text, answer))
    if left_out:
        logger.info("%s: %d rows without text or answer are left out", task.name, left_out)
    return pd.DataFrame(kept, columns=["text", "answer"], dtype=object)


def _read_file(path: Path, task: Task) -> Iterator[tuple[Any, Any, str]]:
    """Yield text, answer and place of each line of a file."""
    text, answer = ("question", "answer") if task.reasoning else ("text", "label")
    if not path.is_file():
        raise DataError(
            f"no file {path}: data_dir (--data-dir) is a folder with {task.name}_train.jsonl and "
            f'{task.name}_test.jsonl, lines of {{"{text}": ..., "{answer}": ...}}'
        )
    try:
        for number, fields in read_json_lines(path):
            place = f"line {number} of {path}"
            if not isinstance(fields, dict) or not fields.keys() >= {text, answer}:
                there = f"; it has {sorted(fields)}" if isinstance(fields, dict) else ""
                raise DataError(f"{place} must be an object with {[text, answer]}{there}: name its fields so")
            yield fields[text], fields[answer], place
    except DataError:
        raise
    except ValueError as error:
        raise DataError(str(error)) from error


@dataclass(frozen=True)
class HubSplit:
    """One split of a data set of the hub.

    Attributes:
        path, config, name: Of the data set, of its configuration, and of the split.
        text, answer: Names of the columns. Where an answer is a numbered class, the name of the class is taken.
        classes: The task's labels by what the data set calls them; None where answers are open.
        read: Makes an answer of the column's value; empty where there is none.
        stream: Whether to fetch the two columns alone, without a copy of the data set on disk.
    """

    path: str
    text: str
    answer: str
    classes: Mapping[str, str] | None = None
    read: Callable[[str], str] = str.strip
    config: str | None = None
    stream: bool = False
    name: str = "train"

    def __str__(self) -> str:
        return f"{self.path} ({self.name})"


def _read_hub(task: Task) -> list[pd.DataFrame]:
    """Fetch both parts of a task; of a data set without a test split, a fixed share is held out."""
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            "the hub's data need datasets: pip install 'plr-dspy[examples]', or read files (--data-dir)"
        ) from error
    parts = []
    for split in HUB[task.name]:
        more: dict[str, Any] = {}
        if split.stream:
            # With `columns` alone, some versions of datasets refuse a data set whose card lists its features.
            columns = [split.text, split.answer]
            features = datasets.Features(dict.fromkeys(columns, datasets.Value("string")))
            more = {"streaming": True, "columns": columns, "features": features}
        try:
            table = datasets.load_dataset(split.path, split.config, split=split.name, **more)
            parts.append(_usable(hub_rows(table, split), task))
        except DataError:
            raise
        except Exception as error:  # datasets wraps whatever went wrong in many types
            reason = (str(error) or repr(error)).splitlines()[0]
            raise DataError(
                f"{split} cannot be read from the Hugging Face hub ({reason}): offline, put {task.name}_train.jsonl "
                f"and {task.name}_test.jsonl in a folder, and pass it as data_dir (--data-dir)"
            ) from error
    return parts if len(parts) == 2 else hold_out(parts[0])


def hub_rows(table: Any, split: HubSplit) -> Iterator[tuple[Any, Any, str]]:
    """Yield text, answer and place of each row of a `datasets.Dataset` or `IterableDataset`."""
    changed = "the data set has been changed; read the task from files in data_dir (--data-dir)"
    if missing := sorted({split.text, split.answer} - set(table.column_names)):
        raise DataError(f"{split} has no column {missing}, only {table.column_names}: {changed}")
    # Classes go by name: their numbers differ between copies of one data set, as Description and Abbreviation do in
    # those of TREC.
    names = getattr(table.features[split.answer], "names", None)
    for number, fields in enumerate(table.select_columns([split.text, split.answer])):
        text, answer, place = fields[split.text], fields[split.answer], f"row {number} of {split}"
        if names is not None and isinstance(answer, int) and 0 <= answer < len(names):
            answer = names[answer]
        if isinstance(answer, str) and split.classes is not None:
            if answer.strip() not in {"", *split.classes}:
                expected = f"unknown class {answer!r}, expected one of {list(split.classes)}"
                raise DataError(f"{place}: {expected}: {changed}")
            answer = split.classes.get(answer.strip(), "")
        elif isinstance(answer, str):
            answer = split.read(answer)
        yield text, answer, place


def hold_out(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Split rows into train and test: the texts with the smallest digests are held out, in whatever order they come."""
    rows = rows.drop_duplicates("text", ignore_index=True)
    digests = rows.text.map(lambda text: hashlib.sha256(text.encode()).hexdigest())
    test = digests.rank() <= NUM_HELD_OUT
    return [rows[~test], rows[test]]


def _both(
    path: str, text: str, answer: str, task: str, *classes: str, **more: Any
) -> tuple[HubSplit, HubSplit]:
    """A train and a test split of the same columns; `classes` are what they call the task's labels, in their order."""
    labels = dict(zip(classes, TASKS[task].labels, strict=True)) if classes else None
    train = HubSplit(path, text, answer, labels, **more)
    return train, replace(train, name="test")


def after_hashes(solution: str) -> str:
    """Read what follows the last "####" of a solution; empty without one."""
    return solution.rpartition("####")[2].strip() if "####" in solution else ""


_SST5 = ("very negative", "negative", "neutral", "positive", "very positive")
_TREC = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")
_MATH = HubSplit("DigitalLearningGmbH/MATH-lighteval", "problem", "solution", read=boxed)
HUB: dict[str, tuple[HubSplit, ...]] = {
    "mr": _both("cornell-movie-review-data/rotten_tomatoes", "text", "label", "mr", "neg", "pos"),
    "sst5": _both("SetFit/sst5", "text", "label_text", "sst5", *_SST5),
    # CogComp/trec, the original, is a script, which datasets 4 and later do not run.
    "trec": _both("SetFit/TREC-QC", "text", "label_coarse_original", "trec", *_TREC),
    "agnews": _both("fancyzhx/ag_news", "text", "label", "agnews", "World", "Sports", "Business", "Sci/Tech"),
    "subj": _both("SetFit/subj", "text", "label_text", "subj", "subjective", "objective"),
    "gsm8k": _both("openai/gsm8k", "question", "answer", "gsm8k", read=after_hashes, config="main"),
    # The 500 problems come from MATH's test split, of which nothing is taken for the train part.
    "math500": (_MATH, HubSplit("HuggingFaceH4/MATH-500", "problem", "answer", name="test")),
    # The data set has 2 GB, nearly all of it solutions.
    "deepmath": (HubSplit("zwhe99/DeepMath-103K", "question", "final_answer", stream=True),),
}
"""Where each task's data are: a train and a test split, or one to split."""
