"""Examples from a file of JSON lines, or from a CSV file with a header."""

import contextlib
import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy

from plr_dspy.dspy_compat import parse_value
from plr_dspy.errors import UserError
from plr_dspy.programs.checks import shown

LARGEST_CELL = 2**31 - 1
"""Characters of a CSV cell: the largest limit that every platform takes."""


def read_examples(path: Path, inputs: Sequence[str], program: dspy.Module) -> list[dspy.Example]:
    """Return the examples of a file, with values of the types that the program's fields have."""
    types = {}
    for predictor in program.predictors():
        for name, field in predictor.signature.fields.items():
            types[name] = field.annotation
    examples = []
    rows = _csv_rows(path) if path.suffix.lower() == ".csv" else _json_lines(path)
    for number, row in rows:
        _check_row(row, inputs, types, f"line {number} of {path}")
        for name, expected_type in types.items():
            if expected_type is not str and row.get(name) is not None:
                # A value of another type stays as it is.
                with contextlib.suppress(ValueError):
                    row[name] = parse_value(row[name], expected_type)
        examples.append(dspy.Example(row).with_inputs(*inputs))
    if not examples:
        raise UserError(f"{path} contains no example")
    return examples


def _check_row(row: Any, inputs: Sequence[str], types: Mapping[str, Any], place: str) -> None:
    """Raise unless a row contains the inputs, under the names that the program uses."""
    required = f"{place} must be an object with the inputs {list(inputs)}"
    if not isinstance(row, dict):
        raise UserError(f"{required}; got {shown(row)}")
    missing = [name for name in inputs if name not in row]
    if missing:
        raise UserError(f"{required}, and lacks {missing}; it has {list(row)}")
    for name in types.keys() - row.keys():
        for column in row:
            if column.casefold() == name.casefold():
                raise UserError(f"{place} has {column!r}, and the program {name!r}: use one name")


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield each line with its number."""
    # JSON may contain other characters at which `str.splitlines` would split.
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise UserError(
                f"line {number} of {path} is no JSON ({error}): correct or remove it, or pass a file with one JSON "
                "object per line, or a .csv with a header"
            ) from error


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row with the number of its last line."""
    csv.field_size_limit(LARGEST_CELL)
    unreadable = f"of {path} cannot be read as CSV in UTF-8"
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise UserError(f"line {number} {unreadable}: {error}") from error
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        _check_header(header)
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells, and {len(header)} in the header: quote cells with commas")
            yield lines.line_num, dict(zip(header, cells, strict=True))
    except (ValueError, csv.Error) as error:
        raise UserError(f"line {lines.line_num} {unreadable}: {error}") from error


def _check_header(header: Sequence[str]) -> None:
    """Raise unless the columns have different names and commas between them."""
    if len(set(header)) < len(header):
        raise ValueError(f"two columns have the same name, in {header}")
    if len(header) == 1:
        for separator in ";\t|":
            if separator in header[0]:
                raise ValueError(f"commas must come between cells, and not {separator!r}")
