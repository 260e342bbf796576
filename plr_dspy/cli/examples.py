"""Reads examples from JSON lines or from a CSV file with a header."""

import contextlib
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy

from plr_dspy.dspy_compat import parse_value
from plr_dspy.errors import UserError


def read_examples(path: Path, inputs: Sequence[str], program: dspy.Module) -> list[dspy.Example]:
    """Read a file's examples, and parse their values to the types of the program's fields."""
    types: dict[str, Any] = {}
    for predictor in program.predictors():
        for name, field in predictor.signature.fields.items():
            types[name] = field.annotation
    examples = []
    for number, row in enumerate(_rows(path), start=1):
        missing = [name for name in inputs if name not in row]
        if missing:
            raise UserError(f"row {number} of {path} must have inputs {list(inputs)}; got {list(row)}: add {missing}")
        for name in row.keys() & types.keys():
            if types[name] is not str and row[name] is not None:
                # A value that cannot be parsed is kept as it is.
                with contextlib.suppress(ValueError):
                    row[name] = parse_value(row[name], types[name])
        examples.append(dspy.Example(row).with_inputs(*inputs))
    if not examples:
        raise UserError(f"{path} must contain at least one example; it has none: add rows")
    return examples


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        if path.suffix.lower() == ".csv":
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.DictReader(file, strict=True)
                reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
                rows = list(reader)
        else:
            # `str.splitlines` would also split at characters that JSON allows.
            rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    except (ValueError, csv.Error) as error:
        raise UserError(
            f"{path} cannot be read ({error}): pass a file with one JSON object per line, or a .csv in UTF-8"
        ) from error
    for number, row in enumerate(rows, start=1):
        # The CSV reader stores surplus cells under the key None, and None for missing cells.
        if not isinstance(row, dict) or (path.suffix.lower() == ".csv" and None in [*row.keys(), *row.values()]):
            raise UserError(f"row {number} of {path} must have a value for each column; got {row}: correct it")
    return rows
