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
from plr_dspy.experiments.runs.methods import applies
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
    by_task = pd.DataFrame(_by_task(frame, pairs, confidence))
    overall = pd.DataFrame(_overall(pairs, confidence))
    numbers = pd.concat([by_task, overall], ignore_index=True).assign(against=against)
    for name in ("seeds", "examples", "runs", "groups"):
        numbers[name] = numbers[name].astype("Int64") if name in numbers else pd.NA
    texts = pd.DataFrame([*_task_texts(by_task), *_overall_texts(overall)])
    notes = (
        *_legend(texts, against, confidence),
        *_run_notes(methods, pairs, against),
        *setting_notes(results),
    )
    title = f"Accuracy of {frame.model[0]} against {against} in percentage points, {frame.format[0]} prompts"
    return Table("paired", title, numbers.reindex(columns=FIELDS), texts, notes)


def _by_task(frame: pd.DataFrame, pairs: pd.DataFrame, confidence: float) -> Iterator[dict[str, Any]]:
    """Yield the differences by number of demos, method and task, pooled over seeds."""
    for (num_demos, method), theirs in pairs.groupby(["num_demos", "method"], observed=True):
        block = frame[frame.num_demos == num_demos]
        for task, seeds in block.groupby("task", observed=True).seed.nunique().items():
            shared = theirs[theirs.task == task]
            cell = {"num_demos": num_demos, "task": task, "method": method, "all_seeds": seeds}
            cell |= {"seeds": len(shared), "examples": 0}
            if len(shared):
                pooled = [d for differences in shared.differences for d in differences]
                low, high = paired_interval(pooled, confidence)
                cell |= {"mean": fmean(pooled), "low": low, "high": high, "examples": len(pooled)}
            yield cell


def _overall(pairs: pd.DataFrame, confidence: float) -> list[dict[str, Any]]:
    """The differences of each method over all of its runs, with tests."""
    cells: list[dict[str, Any]] = []
    for method, theirs in pairs.groupby("method", observed=True):
        groups = _groups(theirs)
        low, high = grouped_interval(groups, confidence) if len(groups) > 1 else (np.nan, np.nan)
        cell = {"num_demos": "all", "task": "all", "method": method, "mean": fmean(theirs["mean"])}
        cell |= {"low": low, "high": high, "runs": len(theirs), "groups": len(groups)}
        cells.append({**cell, "p": sign_flip_test(groups)})
    corrected = holm([cell["p"] for cell in cells])
    return [{**cell, "p_holm": p} for cell, p in zip(cells, corrected, strict=True)]


def _groups(pairs: pd.DataFrame) -> list[list[float]]:
    """Mean differences of runs by task and seed: what is grouped shares its held-out examples."""
    by_name = pairs.assign(task=pairs.task.astype(str)).sort_values(["task", "num_demos", "seed"])
    return [list(group["mean"]) for _, group in by_name.groupby(["task", "seed"], sort=False)]


def _task_texts(cells: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the differences by task as people read them."""
    for cell in cells.itertuples():
        place = {"block": counted(cell.num_demos, "demo"), "row": cell.method, "column": cell.task}
        if not cell.seeds:
            yield {**place, "text": "" if applies(cell.method, cell.task) else NOT_APPLICABLE}
            continue
        suffix = f" [{cell.low:+.1f}, {cell.high:+.1f}]" + (PARTIAL if cell.seeds < cell.all_seeds else "")
        yield {**place, "text": f"{cell.mean:+.1f}", "suffix": suffix}


def _overall_texts(cells: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the differences over all runs as people read them."""
    for cell in cells.itertuples():
        place = {"block": "all runs", "row": cell.method}
        suffix = f" [{cell.low:+.1f}, {cell.high:+.1f}]" if cell.groups > 1 else ""
        yield {**place, "column": "difference", "text": f"{cell.mean:+.1f}", "suffix": suffix}
        p, p_holm = ("<.0001" if p < 0.0001 else f"{p:.4f}" for p in (cell.p, cell.p_holm))
        for column, text in {"runs": cell.runs, "groups": cell.groups, "p": p, "p (Holm)": p_holm}.items():
            yield {**place, "column": column, "text": str(text)}


def _legend(texts: pd.DataFrame, against: str, confidence: float) -> Iterator[str]:
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
    if texts.empty:
        return
    if texts.suffix.str.contains(PARTIAL, na=False).any():
        yield f"{PARTIAL} not all seeds of the column."
    if (texts.text == "").any():
        yield f"Empty: no run that {against} has too."
    if (texts.text == NOT_APPLICABLE).any():
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
