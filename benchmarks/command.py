"""What the benchmarks share: options that their defaults describe, processes, and tables in Markdown."""

from __future__ import annotations

import argparse
import io
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from plr_dspy.statistics.comparisons import mean_interval

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

DOCS, RECORDED = Path(__file__).resolve().parents[1] / "docs", Path(__file__).parent / "recorded"

SERVED = {"model": "local", "api_base": [str], "threads": 2, "cache": False}
"""Options that say which model answers, the local one or one behind a server; the cache is DSPy's."""

Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def options(text: str, *, among: dict[str, Sequence[str]] | None = None, **defaults: Any) -> argparse.Namespace:
    """Read options by their defaults from the command line; the text of the help says what they mean.

    A list takes one value or more of the type of its first one, False becomes a switch, a type an option that may be
    missing, and a list of a type one that may have no value; `among` has the values that some of them may have.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag, choices = f"--{name.replace('_', '-')}", (among or {}).get(name)
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        elif isinstance(default, list) and isinstance(default[0], type):
            parser.add_argument(flag, type=default[0], nargs="*", default=[])
        else:
            several = isinstance(default, list)
            kind = type(default[0] if several else default)
            given = {"nargs": "+" if several else None, "default": default, "help": f"default: {default}"}
            parser.add_argument(flag, type=kind, choices=choices, **given)
    return parser.parse_args()


@contextmanager
def processes(jobs: int) -> Iterator[Mapper]:
    """Yield a `map` over so many processes; one is this one."""
    if jobs == 1:
        yield map
        return
    with ProcessPoolExecutor(jobs) as executor:
        yield executor.map


def print_table(names: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a Markdown table, each row as soon as it is there."""
    for number, cells in enumerate(itertools.chain([names], rows)):
        rule = "" if number else f"\n|{'---|' * len(names)}"
        print(f"| {' | '.join(map(str, cells))} |{rule}", flush=True)


def percent(values: Sequence[float] | np.ndarray) -> str:
    """The share of what is true, without what is not known; nothing where nothing is known."""
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return f"{100 * known.mean():.0f} %" if len(known) else ""


def with_interval(values: Sequence[float] | np.ndarray, digits: int = 3) -> str:
    """The mean of differences with its 95 % interval; of one, itself."""
    if len(values) < 2:
        return f"{values[0]:+.{digits}f}"
    low, high = mean_interval(list(values))
    return f"{np.mean(values):+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def read_table(text: str, first_column: str) -> pd.DataFrame:
    """Read the table of a Markdown page whose first headings are so; rows have the names of their first cells."""
    lines = text[text.index(f"| {first_column}") :].split("\n\n")[0].strip()
    frame = pd.read_csv(io.StringIO(lines), sep=r"\s*\|\s*", engine="python", dtype=str, keep_default_na=False)
    rows = frame.iloc[1:, 1:-1].apply(lambda column: column.str.strip("*"))  # without the rule
    return rows.set_index(rows.columns[0], drop=False)
