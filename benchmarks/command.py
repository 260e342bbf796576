"""What the benchmarks share: options that their defaults describe, and tables in Markdown."""

import argparse
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from plr_dspy.statistics.comparisons import mean_interval

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

DOCS, RECORDED = Path(__file__).resolve().parents[1] / "docs", Path(__file__).parent / "recorded"

SERVED = {"model": "local", "api_base": [str], "threads": 2, "cache": False}
"""Options that say which model answers, the local one or one behind a server; the cache is DSPy's."""


def options(text: str, *, among: dict[str, Sequence[str]] | None = None, **defaults: Any) -> argparse.Namespace:
    """Read options by their defaults from the command line; the text of the help says what they mean.

    A list takes values of the type of its first one, False becomes a switch, and a type, or a list of one, an option
    that may be missing; `among` has the values that some of them may have.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag, several = f"--{name.replace('_', '-')}", isinstance(default, list)
        first = default[0] if several else default
        given: dict[str, Any] = {"nargs": "+" if several else None, "choices": (among or {}).get(name)}
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(first, type):
            parser.add_argument(flag, type=first, default=[] if several else None, **given)
        else:
            parser.add_argument(flag, type=type(first), default=default, help=f"default: {default}", **given)
    return parser.parse_args()


def print_table(rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows of the same columns as a Markdown table, each as soon as it is there."""
    for number, row in enumerate(rows):
        if number == 0:
            print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
        print(f"| {' | '.join(map(str, row.values()))} |", flush=True)


def percent(values: Sequence[float] | np.ndarray) -> str:
    """The share of what is true, without what is not known; nothing where nothing is known."""
    known = np.asarray(values, dtype=float)
    return "" if np.isnan(known).all() else f"{100 * np.nanmean(known):.0f} %"


def with_interval(values: Sequence[float] | np.ndarray) -> str:
    """The mean of differences with its 95 % interval; of one, itself."""
    if len(values) < 2:
        return f"{values[0]:+.3f}"
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(np.mean(values), *mean_interval(values))


def read_table(text: str, first_column: str) -> pd.DataFrame:
    """Read the table of a Markdown page whose first headings are so; rows have the names of their first cells."""
    lines = text[text.index(f"| {first_column}") :].split("\n\n")[0].strip()
    frame = pd.read_csv(io.StringIO(lines), sep=r"\s*\|\s*", engine="python", dtype=str, keep_default_na=False)
    rows = frame.iloc[1:, 1:-1].apply(lambda column: column.str.strip("*"))  # without the rule
    return rows.set_index(rows.columns[0], drop=False)
