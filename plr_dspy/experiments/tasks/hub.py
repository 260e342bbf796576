"""Where the Hugging Face hub has the tasks' data, and how its columns become texts and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from plr_dspy.experiments.grading import boxed
from plr_dspy.experiments.tasks.labelled_text import DataError, LabelledText, read_fields
from plr_dspy.experiments.tasks.solutions import after_hashes
from plr_dspy.experiments.tasks.tasks import TASKS

NUM_HELD_OUT = 2_000
"""Number of examples in the test part of a data set that has none."""


@dataclass(frozen=True)
class HubSplit:
    """One split of a data set of the hub.

    Attributes:
        path: Name of the data set.
        text, answer: Names of the columns. Where an answer is a numbered class, the name of the class is taken.
        classes: The task's labels by what the data set calls them; None where answers are open.
        read: Makes an answer of the column's value; empty where there is none.
        config: Configuration of the data set.
        stream: Whether to fetch the two columns alone, without a copy of the data set on disk.
        name: Name of the split.
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


@dataclass(frozen=True)
class HubTask:
    """Both parts of a task; without a test split, a fixed share of the train split is held out."""

    train: HubSplit
    test: HubSplit | None


def read_hub(task: str) -> tuple[list[LabelledText], list[LabelledText]]:
    """Fetch the train and the test part of a task.

    Raises:
        DataError: when the hub cannot be reached, or a data set is not what it was.
        ImportError: when `datasets` is not installed.
    """
    source = HUB[task]
    train = _read(source.train, task)
    return held_out(train) if source.test is None else (train, _read(source.test, task))


def labelled_texts(table: Any, split: HubSplit) -> Iterator[LabelledText]:
    """Yield the texts and answers of a table.

    Args:
        table: A `datasets.Dataset` or `IterableDataset`.
        split: Says which columns they are.

    Raises:
        DataError: when a column is missing, a value is no text, or a class is unknown.
    """
    changed = "the data set has been changed; read the task from files in data_dir (--data-dir)"
    columns = (split.text, split.answer)
    if missing := sorted(set(columns) - set(table.column_names)):
        raise DataError(f"{split} has no column {missing}, only {table.column_names}: {changed}")
    # Classes go by name: their numbers differ between copies of one data set, as Description and Abbreviation do in
    # those of TREC.
    names = getattr(table.features[split.answer], "names", None)
    for number, fields in enumerate(table.select_columns(list(columns))):
        value = fields[split.answer]
        if names is not None and isinstance(value, int) and 0 <= value < len(names):
            fields = {**fields, split.answer: names[value]}
        row = read_fields(fields, columns, f"row {number} of {split}")
        if split.classes is None:
            yield row._replace(answer=split.read(row.answer))
        elif row.answer in split.classes or not row.answer:
            yield row._replace(answer=split.classes.get(row.answer, ""))
        else:
            expected = f"unknown class {row.answer!r}, expected one of {list(split.classes)}"
            raise DataError(f"{row.place}: {expected}: {changed}")


def held_out(rows: Iterable[LabelledText]) -> tuple[list[LabelledText], list[LabelledText]]:
    """Split rows into train and test: the same texts are held out in whatever order they come.

    Returns:
        The train part, and of the texts with the smallest digests, `NUM_HELD_OUT` of them, the first row each.
    """
    by_text: dict[str, LabelledText] = {}
    for row in rows:
        if row.text and row.answer:
            by_text.setdefault(row.text, row)
    ranked = sorted(by_text, key=lambda text: hashlib.sha256(text.encode()).digest())
    test = set(ranked[:NUM_HELD_OUT])
    parts: tuple[list[LabelledText], list[LabelledText]] = ([], [])
    for text, row in by_text.items():
        parts[text in test].append(row)
    return parts


def _read(split: HubSplit, task: str) -> list[LabelledText]:
    """Fetch the texts and answers of a split."""
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            "the hub's data need datasets: pip install 'plr-dspy[experiments]', or read files (--data-dir)"
        ) from error
    columns = [split.text, split.answer]
    # With `columns` alone, some versions of datasets refuse to stream a data set whose card lists its features.
    only = {
        "streaming": True,
        "columns": columns,
        "features": datasets.Features({column: datasets.Value("string") for column in columns}),
    }
    try:
        more = only if split.stream else {}
        table = datasets.load_dataset(split.path, split.config, split=split.name, **more)
        return list(labelled_texts(table, split))
    except DataError:
        raise
    except Exception as error:  # datasets wraps whatever went wrong in many types
        reason = (str(error) or repr(error)).splitlines()[0]
        raise DataError(
            f"{split} cannot be read from the Hugging Face hub ({reason}): offline, put {task}_train.jsonl and "
            f"{task}_test.jsonl in a folder, and pass it as data_dir (--data-dir)"
        ) from error


def _both(train: HubSplit) -> HubTask:
    """Both parts of a data set whose test split has the columns of its train split."""
    return HubTask(train, replace(train, name="test"))


def _labels(task: str, *classes: str) -> dict[str, str]:
    """The labels of a task by what a data set calls them; the classes come in the order of the task's labels."""
    return dict(zip(classes, TASKS[task].labels, strict=True))


_MR = _labels("mr", "neg", "pos")
_SST5 = _labels("sst5", "very negative", "negative", "neutral", "positive", "very positive")
_TREC = _labels("trec", "DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")
_AGNEWS = _labels("agnews", "World", "Sports", "Business", "Sci/Tech")
_SUBJ = _labels("subj", "subjective", "objective")
HUB = {
    "mr": _both(HubSplit("cornell-movie-review-data/rotten_tomatoes", "text", "label", _MR)),
    "sst5": _both(HubSplit("SetFit/sst5", "text", "label_text", _SST5)),
    # CogComp/trec, the original, is a script, which datasets 4 and later do not run.
    "trec": _both(HubSplit("SetFit/TREC-QC", "text", "label_coarse_original", _TREC)),
    "agnews": _both(HubSplit("fancyzhx/ag_news", "text", "label", _AGNEWS)),
    "subj": _both(HubSplit("SetFit/subj", "text", "label_text", _SUBJ)),
    "gsm8k": _both(HubSplit("openai/gsm8k", "question", "answer", read=after_hashes, config="main")),
    # The 500 problems come from MATH's test split, of which nothing is taken for the train part.
    "math500": HubTask(
        HubSplit("DigitalLearningGmbH/MATH-lighteval", "problem", "solution", read=boxed),
        HubSplit("HuggingFaceH4/MATH-500", "problem", "answer", name="test"),
    ),
    # The data set has 2 GB, nearly all of it solutions.
    "deepmath": HubTask(HubSplit("zwhe99/DeepMath-103K", "question", "final_answer", stream=True), None),
}
"""Where each task's data are."""
