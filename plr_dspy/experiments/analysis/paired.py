"""The table of paired differences: each method against a base method, on the same demos and examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from plr_dspy.experiments.analysis.frames import check_confidence, counted, frame_of, setting_notes
from plr_dspy.experiments.analysis.significance import grouped_interval, holm, sign_flip_test
from plr_dspy.experiments.analysis.table import NOT_APPLICABLE, PARTIAL, Table
from plr_dspy.experiments.names import applies
from plr_dspy.experiments.runs.results import Result
from plr_dspy.statistics.comparisons import paired_interval

KEY = ["num_demos", "task", "method", "against"]
FIELDS = [*KEY, "mean", "low", "high", "seeds", "examples", "runs", "groups", "p", "p_holm"]
"""Columns of the CSV; `KEY` names a cell."""

WANTED_P = 0.05
"""A note says where so few groups of runs there are that no test can give so small a p."""


def paired_table(results: Sequence[Result], against: str = "Static", *, confidence: float = 0.95) -> Table:
    """Mean differences of accuracy to a base method in percentage points, paired.

    Three things are said of each method, all of the runs that the base method has as well:

    - By task and number of demos: the mean difference over the held-out examples of all shared seeds, pooled, with
      `paired_interval` on the differences by example. It is of other examples for these very demos, and takes the
      examples of different seeds for different ones; how much other demos would change it, it does not say.
    - Over all runs: the mean of the runs' differences, all runs counting alike, with `grouped_interval`. It is of
      other runs like these (other draws of demos and examples, on tasks like these).
    - p: of `sign_flip_test` on the same groups, two-sided; and with Holm's correction over the table's methods. The
      intervals are not corrected for their number.

    Args:
        results: Results of one model and prompt format.
        against: The base method.
        confidence: Level of the intervals, in (0, 1).

    Raises:
        ValueError: when the results cannot stand in one table, or the base method, or any other, has none.
    """
    check_confidence(confidence)
    frame = frame_of(results)
    methods = list(frame.method.cat.categories)
    if against not in methods or len(methods) == 1:
        raise ValueError(
            f"against must be one of two or more methods with results; got {against!r} among {methods}"
        )
    place = ["task", "num_demos", "seed"]
    base = frame.loc[frame.method == against, [*place, "scores"]]
    pairs = frame[frame.method != against].merge(base, on=place, suffixes=("", "_of_base"))
    pairs["differences"] = [
        100 * np.subtract(ours, theirs)
        for ours, theirs in zip(pairs.scores, pairs.scores_of_base, strict=True)
    ]
    pairs["mean"] = pairs.differences.map(fmean)
    cells = [*_by_task(frame, pairs, against, confidence), *_overall(pairs, against, confidence)]
    notes = [
        *_legend(cells, against, confidence),
        *_run_notes(methods, pairs, against),
        *setting_notes(results),
    ]
    title = f"Accuracy of {frame.model[0]} against {against} in percentage points, {frame.format[0]} prompts"
    return Table("paired", title, cells, FIELDS, notes)


def _by_task(
    frame: pd.DataFrame, pairs: pd.DataFrame, against: str, confidence: float
) -> Iterator[dict[str, Any]]:
    """Yield the differences by number of demos, method and task, pooled over seeds."""
    for (num_demos, method), theirs in pairs.groupby(["num_demos", "method"], observed=True):
        block = frame[frame.num_demos == num_demos]
        for task, all_seeds in block.groupby("task", observed=True).seed.nunique().items():
            shared = theirs[theirs.task == task]
            pooled = [d for differences in shared.differences for d in differences]
            cell = {"block": counted(num_demos, "demo"), "row": method, "column": task}
            cell |= dict(zip(KEY, (num_demos, task, method, against), strict=True))
            cell |= {"seeds": len(shared), "examples": len(pooled)}
            if pooled:
                cell |= _difference(pooled, paired_interval(pooled, confidence))
                cell["suffix"] += PARTIAL if len(shared) < all_seeds else ""
            else:
                cell["text"] = "" if applies(method, task) else NOT_APPLICABLE
            yield cell


def _overall(pairs: pd.DataFrame, against: str, confidence: float) -> Iterator[dict[str, Any]]:
    """Yield the difference of each method over all of its runs, with tests."""
    by_method = list(pairs.groupby("method", observed=True))
    groups_of = {method: _groups(theirs) for method, theirs in by_method}
    p_values = [sign_flip_test(groups) for groups in groups_of.values()]
    for (method, theirs), p, p_holm in zip(by_method, p_values, holm(p_values), strict=True):
        groups = groups_of[method]
        interval = grouped_interval(groups, confidence) if len(groups) > 1 else None
        cell = dict(zip(KEY, ("all", "all", method, against), strict=True))
        cell |= {"runs": len(theirs), "groups": len(groups), "p": p, "p_holm": p_holm}
        texts = {"runs": str(len(theirs)), "groups": str(len(groups))}
        for name, value in (("p", p), ("p (Holm)", p_holm)):
            texts[name] = "<.0001" if value < 0.0001 else f"{value:.4f}"
        place = {"block": "all runs", "row": method}
        yield {**place, "column": "difference", **cell, **_difference(list(theirs["mean"]), interval)}
        for column, text in texts.items():
            yield {**place, "column": column, "text": text}


def _difference(values: Sequence[float], interval: tuple[float, float] | None) -> dict[str, Any]:
    """Numbers, text and suffix of a mean difference."""
    cell: dict[str, Any] = {"mean": fmean(values), "text": f"{fmean(values):+.1f}", "suffix": ""}
    if interval is not None:
        low, high = interval
        cell |= {"low": low, "high": high, "suffix": f" [{low:+.1f}, {high:+.1f}]"}
    return cell


def _groups(pairs: pd.DataFrame) -> list[list[float]]:
    """Mean differences of runs by task and seed: what is grouped shares its held-out examples."""
    by_name = pairs.assign(task=pairs.task.astype(str)).sort_values(["task", "num_demos", "seed"])
    return [list(group["mean"]) for _, group in by_name.groupby(["task", "seed"], sort=False)]


def _legend(cells: Sequence[dict[str, Any]], against: str, confidence: float) -> Iterator[str]:
    """Say what the numbers and signs of the table mean."""
    level = f"{100 * confidence:g} %"
    yield (
        f"By task: mean difference to {against} over the pooled held-out examples of all seeds "
        f"[its {level} interval, of other examples for the same demos]."
    )
    yield (
        f"All runs: mean difference over the runs that {against} has too [its {level} interval over groups: "
        "runs of one task and seed share examples]; p of a two-sided sign-flip test over groups, and with "
        "Holm's correction over the methods. Intervals are not corrected for their number."
    )
    if any(PARTIAL in cell.get("suffix", "") for cell in cells):
        yield f"{PARTIAL} not all seeds of the column."
    if any(cell["text"] == "" for cell in cells):
        yield f"Empty: no run that {against} has too."
    if any(cell["text"] == NOT_APPLICABLE for cell in cells):
        yield f"{NOT_APPLICABLE}: the method reads label probabilities, and does not apply."


def _run_notes(methods: Sequence[str], pairs: pd.DataFrame, against: str) -> Iterator[str]:
    """Say which methods have other runs than the rest, and how small a p can be."""
    runs = {
        method: frozenset(zip(theirs.task, theirs.num_demos, theirs.seed, strict=True))
        for method, theirs in pairs.groupby("method", observed=True)
    }
    if others := [method for method in methods if method not in runs and method != against]:
        yield f"No run in common: {', '.join(others)}."
    if len(set(runs.values())) > 1:
        yield "Not all methods have the same runs: compare their differences over all runs only where they do."
    fewest = min((len({(task, seed) for task, _, seed in places}) for places in runs.values()), default=0)
    if runs and (smallest := 2.0 ** (1 - fewest)) > WANTED_P:
        yield f"{counted(fewest, 'group')} of runs allow no p below {smallest:g}."
