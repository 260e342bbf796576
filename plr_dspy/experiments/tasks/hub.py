"""Where the Hugging Face hub has the tasks' data, and how its columns become texts and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plr_dspy.experiments.grading import boxed
from plr_dspy.experiments.tasks.rows import DataError, Row, new_row
from plr_dspy.experiments.tasks.solutions import after_hashes

NUM_HELD_OUT = 2_000
"""Size of the test part of a data set that has none."""


@dataclass(frozen=True)
class Split:
    """One split of a data set of the hub.

    Attributes:
        path: Name of the data set.
        name: Name of the split.
        text, answer: The columns. Where an answer is a numbered class, its name is meant.
        classes: The task's labels by what the data set calls them.
        read: Makes an answer of the column's value; empty where there is none.
        config: Configuration of the data set.
        stream: Whether to fetch the two columns alone, without a copy of the data set on disk.
    """

    path: str
    name: str
    text: str
    answer: str
    classes: Mapping[str, str] | None = None
    read: Callable[[str], str] = str.strip
    config: str | None = None
    stream: bool = False

    def __str__(self) -> str:
        return f"{self.path} ({self.name})"


@dataclass(frozen=True)
class Source:
    """Both parts of a task; without a test split, a fixed share of the train split is held out."""

    train: Split
    test: Split | None


def read_hub(task: str) -> tuple[list[Row], list[Row]]:
    """Fetch the train and the test part of a task.

    Raises:
        DataError: when the hub cannot be reached, or a data set is not what it was.
        ImportError: when `datasets` is not installed.
    """
    source = HUB[task]
    train = _read(source.train, task)
    return held_out(train) if source.test is None else (train, _read(source.test, task))


def rows_of(table: Any, split: Split) -> Iterator[Row]:
    """The texts and answers of a table.

    Args:
        table: A `datasets.Dataset` or `IterableDataset`.
        split: Says which columns they are.

    Raises:
        DataError: when a column is missing, a value is no text, or a class is unknown.
    """
    columns = (split.text, split.answer)
    missing = set(columns) - set(table.column_names)
    if missing:
        raise DataError(
            f"{split} has no column {sorted(missing)}, only {table.column_names}: it has been changed; read the task "
            "from files in data_dir (--data-dir)"
        )
    # Classes go by name: their numbers differ between copies of one data set, as Description and Abbreviation do in
    # those of TREC.
    names = getattr(table.features[split.answer], "names", None)
    for number, fields in enumerate(table.select_columns(list(columns))):
        value = fields[split.answer]
        if names is not None and isinstance(value, int):
            value = names[value] if 0 <= value < len(names) else value
        row = new_row(fields[split.text], value, columns=columns, place=f"row {number} of {split}")
        yield row._replace(answer=_answer(row, split))


def held_out(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Split rows into train and test: the same texts are held out in whatever order they come.

    Returns:
        The train part, and of the texts with the smallest digests, `NUM_HELD_OUT` of them, the first row each.
    """
    by_text: dict[str, Row] = {}
    for row in rows:
        if row.text and row.answer:
            by_text.setdefault(row.text, row)
    ranked = sorted(by_text, key=lambda text: hashlib.sha256(text.encode()).digest())
    test = set(ranked[:NUM_HELD_OUT])
    parts: tuple[list[Row], list[Row]] = ([], [])
    for text, row in by_text.items():
        parts[text in test].append(row)
    return parts


def _answer(row: Row, split: Split) -> str:
    if split.classes is None:
        return split.read(row.answer)
    if row.answer not in split.classes:
        raise DataError(
            f"{row.place}: unknown class {row.answer!r}, expected one of {list(split.classes)}: the data set has been "
            "changed; read the task from files in data_dir (--data-dir)"
        )
    return split.classes[row.answer]


def _read(split: Split, task: str) -> list[Row]:
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
        return list(rows_of(datasets.load_dataset(split.path, split.config, split=split.name, **more), split))
    except DataError:
        raise
    except Exception as error:  # datasets wraps whatever went wrong in many types
        reason = (str(error) or repr(error)).splitlines()[0]
        raise DataError(
            f"{split} cannot be read from the Hugging Face hub ({reason}): offline, put {task}_train.jsonl and "
            f"{task}_test.jsonl in a folder, and pass it as data_dir (--data-dir)"
        ) from error


_MR_CLASSES = {"neg": "negative", "pos": "positive"}
_SST5_CLASSES = {
    "very negative": "terrible",
    "negative": "bad",
    "neutral": "okay",
    "positive": "good",
    "very positive": "great",
}
_TREC_CLASSES = {
    "DESC": "Description",
    "ENTY": "Entity",
    "ABBR": "Abbreviation",
    "HUM": "Human",
    "LOC": "Location",
    "NUM": "Number",
}
_AGNEWS_CLASSES = {"World": "World", "Sports": "Sports", "Business": "Business", "Sci/Tech": "Tech"}
_SUBJ_CLASSES = {"subjective": "subjective", "objective": "objective"}


def _classes(path: str, answer: str, classes: Mapping[str, str]) -> Source:
    train, test = (Split(path, name, "text", answer, classes) for name in ("train", "test"))
    return Source(train, test)


HUB = {
    "mr": _classes("cornell-movie-review-data/rotten_tomatoes", "label", _MR_CLASSES),
    "sst5": _classes("SetFit/sst5", "label_text", _SST5_CLASSES),
    # CogComp/trec, the original, is a script, which datasets 4 and later do not run.
    "trec": _classes("SetFit/TREC-QC", "label_coarse_original", _TREC_CLASSES),
    "agnews": _classes("fancyzhx/ag_news", "label", _AGNEWS_CLASSES),
    "subj": _classes("SetFit/subj", "label_text", _SUBJ_CLASSES),
    "gsm8k": Source(
        Split("openai/gsm8k", "train", "question", "answer", read=after_hashes, config="main"),
        Split("openai/gsm8k", "test", "question", "answer", read=after_hashes, config="main"),
    ),
    # The 500 problems come from MATH's test split, of which nothing is taken for the train part.
    "math500": Source(
        Split("DigitalLearningGmbH/MATH-lighteval", "train", "problem", "solution", read=boxed),
        Split("HuggingFaceH4/MATH-500", "test", "problem", "answer"),
    ),
    # 2 GB, nearly all of it solutions.
    "deepmath": Source(Split("zwhe99/DeepMath-103K", "train", "question", "final_answer", stream=True), None),
}
"""Where each task's data are."""
