"""Functions that load data sets from files or the Hugging Face hub. `datasets` is imported only if needed."""

from __future__ import annotations

import codecs
import csv
import json
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plr_dspy.errors import MissingPackageError, UserError

if TYPE_CHECKING:
    import datasets

HUB = "hub:"
"""The prefix that marks the name of a data set on the hub."""

_HUB_NAME = re.compile(r"hub:(?P<path>[^:]+)(?::(?P<config>[^:[\]]+))?:(?P<split>[^:[\]]+(?:\[[^\]]*\])?)")
ENCODING = "utf-8-sig"  # UTF-8 with or without a byte order mark
OTHER_SEPARATORS = ";\t|"
SHOWN = 150  # maximum number of characters that a message quotes from a line


class HubSplit(NamedTuple):
    """A split of a data set on the hub, or a part of a split, such as "train[:1000]"."""

    path: str
    config: str | None
    split: str

    def __str__(self) -> str:
        return HUB + ":".join(part for part in self if part is not None)


def hub_split(name: str) -> HubSplit:
    """Parse the name of a split, such as "hub:SetFit/subj:train" or "hub:openai/gsm8k:main:train[:1000]"."""
    match = _HUB_NAME.fullmatch(name)
    if match is None:
        raise UserError(
            "the name of a data set on the hub must have the form hub:NAME:SPLIT or hub:NAME:CONFIGURATION:SPLIT; got "
            f"{name!r}: pass a name such as hub:SetFit/subj:train"
        )
    return HubSplit(**match.groupdict())


def import_datasets() -> Any:
    """Import and return the package `datasets`. If it is missing, raise an error that says how to install it."""
    try:
        import datasets
    except ImportError as error:
        raise MissingPackageError(
            f"the package 'datasets' is needed to read the rows, but cannot be imported ({error}): run pip "
            "install datasets"
        ) from error
    return datasets


def load_hub_split(split: HubSplit, **options: Any) -> Any:
    """Load a split from the hub or the local cache. Raise a ValueError if this fails.

    Args:
        split: Name, configuration and split of the data set.
        options: Options of `datasets.load_dataset`, such as streaming=True.
    """
    datasets = import_datasets()
    try:
        return datasets.load_dataset(split.path, split.config, split=split.split, **options)
    except Exception as error:  # The hub's client raises many types of errors.
        raise UserError(
            f"{split} cannot be read from the Hugging Face hub ({_reason(error)}): check the name, the split and the "
            "network, or pass a file"
        ) from error


def load_file(path: Path) -> datasets.Dataset | list[dict[str, Any]]:
    """Load the rows of a .csv file, a .parquet file, or a file of JSON lines with any other suffix.

    All cells of a CSV file become text. Nothing is added to the user's `datasets` cache.
    Raise a ValueError if the file cannot be loaded.
    """
    kind = path.suffix.lower()
    try:
        with path.open("rb") as file:
            start = file.read(len(codecs.BOM_UTF8) + 1)
        if start in (b"", codecs.BOM_UTF8):
            raise UserError(f"{path} must have at least one row; got an empty file: pass a file with rows")
        if kind == ".parquet":
            return _load("parquet", path)
        rows = _csv_rows(path) if kind == ".csv" else _json_rows(path)
    except (UserError, MissingPackageError):
        raise
    except Exception as error:  # `datasets` raises many types of errors.
        raise UserError(
            f"{path} cannot be read ({_reason(error)}). Pass a .csv file in UTF-8, a .parquet file, or a file with one "
            "JSON object per line. The file must have at least one row."
        ) from error
    return rows


def _load(kind: str, path: Path, **options: Any) -> datasets.Dataset:
    """Load a file into memory with `datasets`, without log messages, progress bars or cached files."""
    datasets = import_datasets()
    verbosity = datasets.logging.get_verbosity()
    shows_bars = not datasets.utils.are_progress_bars_disabled()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.utils.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory() as cache:
            return datasets.load_dataset(
                kind, data_files=str(path), split="train", cache_dir=cache, keep_in_memory=True, **options
            )
    finally:
        datasets.logging.set_verbosity(verbosity)
        if shows_bars:
            datasets.utils.enable_progress_bars()


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV file as dicts that map column names to text."""
    from pandas.errors import ParserWarning

    with path.open(encoding=ENCODING, newline="") as file:
        lines = csv.reader(file)
        columns = [name.strip() for name in next(lines, [])]
        has_rows = any(lines)
    _check_columns(path, columns)
    if not has_rows:
        raise UserError(f"{path} must have at least one row; got only the columns {columns}: add rows")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ParserWarning)  # Otherwise, pandas drops extra cells and only warns.
        dataset = _load(
            "csv",
            path,
            header=0,
            column_names=columns,
            index_col=False,
            converters=dict.fromkeys(columns, _as_it_is),  # Otherwise, "01" would become 1.
            keep_default_na=False,
            encoding=ENCODING,
            engine="python",  # The C engine would read missing cells as empty.
        )
    rows = list(dataset)
    for number, row in enumerate(rows, start=1):
        if None in row.values():
            raise UserError(
                f"row {number} of {path} must have a value for each column; got {row}: add the missing cells"
            )
    return rows


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    """Raise a ValueError if commas do not seem to separate the columns, or if two columns have the same name."""
    if len(columns) == 1 and any(separator in columns[0] for separator in OTHER_SEPARATORS):
        raise UserError(
            f"the columns of {path} must be separated by commas; got the single column {columns[0]!r}: save the file "
            "with commas as separators"
        )
    num_unnamed = columns.count("")
    if num_unnamed > 1:
        raise UserError(
            f"the columns of {path} must have different names; got {num_unnamed} columns without a name: name these "
            "columns, or remove them"
        )
    repeated = sorted(name for name, number in Counter(columns).items() if number > 1)
    if repeated:
        raise UserError(
            f"the columns of {path} must have different names; got {repeated} more than once: rename the columns"
        )


def _as_it_is(cell: str | None) -> str | None:
    return cell


def _json_rows(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects in a file that has one object per line.

    The JSON reader of `datasets` is not used, because it infers types and turns dates into timestamps.
    """
    rows = []
    for number, line in enumerate(_load("text", path, encoding=ENCODING)["text"], start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(
                f"{path} cannot be read (line {number}: {error}): pass a file with one JSON object per line, or a "
                ".csv or .parquet file"
            ) from error
        if not isinstance(row, dict):
            from plr_dspy.report.formats import shorten  # imported late, because it loads slowly

            raise UserError(
                f"line {number} of {path} must be a JSON object; got {shorten(repr(line), SHOWN)}: write the row as "
                "{column: value, ...}"
            )
        rows.append(row)
    return rows


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, or of its cause's message if it has a cause."""
    cause = error.__cause__ or error
    lines = str(cause).splitlines()
    return lines[0] if lines else type(cause).__name__
