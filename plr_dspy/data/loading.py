"""Functions that load data sets from files or the Hugging Face hub. `datasets` is imported only if needed."""

from __future__ import annotations

import codecs
import csv
import json
import re
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
            return _parquet_rows(path)
        rows = _csv_rows(path) if kind == ".csv" else _json_rows(path)
    except (UserError, MissingPackageError):
        raise
    except Exception as error:  # `pyarrow` raises many types of errors.
        raise UserError(
            f"{path} cannot be read ({_reason(error)}). Pass a .csv file in UTF-8, a .parquet file, or a file with one "
            "JSON object per line."
        ) from error
    return rows


def _parquet_rows(path: Path) -> datasets.Dataset:
    """Return the rows of a Parquet file as a data set, with any class names in the file's metadata."""
    datasets = import_datasets()
    from pyarrow import parquet

    # By default, pyarrow turns folder names such as "language=en" into columns.
    return datasets.Dataset(parquet.read_table(path, partitioning=None))


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV file as dicts that map column names to text."""
    lines = _csv_lines(path)
    if not lines:
        raise UserError(f"{path} must have at least one row; got only blank lines: pass a file with rows")
    (_, header), *body = lines
    columns = [name.strip() for name in header]
    _check_columns(path, columns)
    if not body:
        raise UserError(f"{path} must have at least one row; got only the columns {columns}: add rows")
    width = len(columns)
    # Some programs end all lines with a comma. If only some lines do, a comma may be part of the text.
    if all(len(cells) > width and not any(cells[width:]) for _, cells in body):
        body = [(number, cells[:width]) for number, cells in body]
    rows = []
    for number, cells in body:
        if len(cells) != width:
            fix = "add the missing cells" if len(cells) < width else "quote cells that contain commas"
            raise UserError(
                f"line {number} of {path} must have {width} cells, one for each column; got {len(cells)}: {fix}"
            )
        rows.append(dict(zip(columns, cells, strict=True)))
    return rows


def _csv_lines(path: Path) -> list[tuple[int, list[str]]]:
    """Return the number and the cells of each line that is not blank."""
    numbered = []
    with path.open(encoding=ENCODING, newline="") as file:
        lines = csv.reader(file, strict=True)
        try:
            for cells in lines:
                if len(cells) > 1 or "".join(cells).strip():
                    numbered.append((lines.line_num, cells))
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from None
    return numbered


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


def _json_rows(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects in a file that has one object per line.

    The JSON reader of `datasets` is not used, because it infers types and turns dates into timestamps.
    """
    rows = []
    with path.open(encoding=ENCODING) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                rows.append(_json_row(path, number, line.strip()))
    return rows


def _json_row(path: Path, number: int, line: str) -> dict[str, Any]:
    """Return the JSON object in a line. Errors state the line's number."""
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
    return row


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, or of its cause's message if it has a cause."""
    cause = error.__cause__ or error
    lines = str(cause).splitlines()
    return lines[0] if lines else type(cause).__name__
