"""Command-line options and Markdown tables for all benchmarks."""

import argparse
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from plr_dspy.statistics.comparisons import mean_interval

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECORDED = Path(__file__).parent / "recorded"

SERVED = {"model": "local", "api_base": [str], "threads": 2, "cache": False}
"""Options that select the language model, local or on a server. `cache` turns on DSPy's cache."""


def options(
    text: str, *, among: Mapping[str, Sequence[str]] | None = None, **defaults: object
) -> argparse.Namespace:
    """Read options from the command line.

    Args:
        text: Text to print for --help.
        among: The allowed values of an option, keyed by its name.
        defaults: The default of each option, keyed by its name. A list defines an option with
            several values, and False defines a switch. A type defines an option without a default.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
            continue
        choices = (among or {}).get(name)
        nargs = None
        first = default
        if isinstance(default, list):
            nargs = "+"
            first = default[0]
        kind = type(first)
        if isinstance(first, type):
            kind = first
            default = [] if nargs else None
        parser.add_argument(
            flag, type=kind, default=default, nargs=nargs, choices=choices, help=f"default: {default}"
        )
    return parser.parse_args()


def print_table(rows: Iterable[Mapping[str, object]]) -> None:
    """Print a Markdown table, each row as soon as it is available. All rows must have the same columns."""
    for number, row in enumerate(rows):
        if number == 0:
            print(f"| {' | '.join(row)} |")
            print(f"|{'|'.join('---' for _ in row)}|")
        print(f"| {' | '.join(map(str, row.values()))} |", flush=True)


def percent(values: Sequence[float] | np.ndarray) -> str:
    """Return the percentage of true values, ignoring NaNs, or an empty string if all values are NaN."""
    known = np.asarray(values, dtype=float)
    if np.isnan(known).all():
        return ""
    return f"{100 * np.nanmean(known):.0f}%"


def with_interval(values: Sequence[float] | np.ndarray) -> str:
    """Return the mean of differences as text, with a 95% interval if there are several differences."""
    if len(values) < 2:
        return f"{values[0]:+.3f}"
    low, high = mean_interval(values)
    return f"{np.mean(values):+.3f} [{low:+.3f}, {high:+.3f}]"


def read_table(text: str, first_column: str) -> pd.DataFrame:
    """Return the Markdown table in `text` whose header starts with `first_column`.

    The index of the frame is the table's first column.
    """
    lines = text[text.index(f"| {first_column}") :].split("\n\n")[0].strip()
    frame = pd.read_csv(
        io.StringIO(lines), sep=r"\s*\|\s*", engine="python", dtype=str, keep_default_na=False
    )
    without_rule = frame.iloc[1:, 1:-1]
    rows = without_rule.apply(lambda column: column.str.strip("*"))
    return rows.set_index(rows.columns[0], drop=False)
