"""Accuracies of our runs as a table in the form of the paper's main one: methods by task and number of demos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from plr_dspy.experiments.analysis.frames import (
    check_confidence,
    counted,
    frame_of,
    mean_intervals,
    setting_notes,
)
from plr_dspy.experiments.analysis.table import NOT_APPLICABLE, PARTIAL, Table
from plr_dspy.experiments.names import applies
from plr_dspy.experiments.runs.results import Result

AVERAGE = "average"
"""Name of the column of macro averages."""

FIELDS = ["num_demos", "task", "method", "mean", "low", "high", "seeds", "rank"]
"""Columns of the CSV."""

TIE_DIGITS = 9
"""Decimals to which means are rounded before they are ranked: what differs in the last bit only is a tie."""


def accuracy_table(
    results: Sequence[Result],
    *,
    confidence: float = 0.95,
) -> Table:
    """Mean accuracy over seeds in %, a block for each number of demos, a column for each of its tasks.

    The interval is Student's t on the accuracies by seed; one seed has none. So it is of the mean over other seeds,
    with all that a seed draws: demos, held-out examples, the method's own choices. A macro average is the mean over
    the tasks of the block, by seed, on the seeds that a method has on all of them; only methods that have all
    tasks have one. Ranks are by the unrounded mean, and ties share them. They are among the methods that have all seeds
    of their column; where only one has, there are none.

    Args:
        results: Results of one model and prompt format.
        confidence: Level of the intervals, in (0, 1).

    Raises:
        ValueError: when the results cannot stand in one table.
    """
    check_confidence(confidence)
    frame = frame_of(results)
    frame["percent"] = 100 * frame.accuracy
    blocks = [_block(num_demos, runs, confidence) for num_demos, runs in frame.groupby("num_demos")]
    numbers = pd.concat(blocks, ignore_index=True)
    cells = list(_cells(numbers))
    legend = [*_legend(numbers, cells, confidence), *_seed_notes(numbers), *setting_notes(results)]
    title = f"Accuracy of {frame.model[0]} in %, {frame.format[0]} prompts"
    return Table("accuracy", title, cells, FIELDS, legend)


def _block(num_demos: int, runs: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """The cells of one number of demos: `FIELDS`, "of_seeds" (all of the column), and whether it "applies"."""
    by_seed = runs.pivot(index=["method", "seed"], columns="task", values="percent").sort_index()
    tasks = by_seed.columns = list(by_seed.columns)
    some_method = by_seed.notna().groupby("seed").any()
    of_seeds = some_method.sum()
    if len(tasks) > 1:
        of_seeds[AVERAGE] = some_method.all(axis=1).sum()
        by_seed[AVERAGE] = by_seed.apply(fmean, axis=1)
    values = by_seed.melt(var_name="task", value_name="percent", ignore_index=False).dropna()
    found = mean_intervals(values.groupby(["method", "task"], observed=True).percent, confidence)
    methods = by_seed.index.unique("method")
    cells = found.reindex(pd.MultiIndex.from_product([methods, by_seed.columns], names=["method", "task"]))
    cells = cells.reset_index().assign(num_demos=num_demos)
    cells["seeds"] = cells.seeds.fillna(0).astype(int)
    cells["of_seeds"] = cells.task.map(of_seeds)
    complete = cells[(cells.seeds == cells.of_seeds) & (cells.seeds > 0)].round({"mean": TIE_DIGITS})
    by_task = complete.groupby("task")["mean"]
    ranks = by_task.rank("min", ascending=False)[by_task.transform("size") > 1]
    cells["rank"] = ranks.reindex(cells.index).astype("Int64")

    of_tasks = {**{task: [task] for task in tasks}, AVERAGE: tasks}
    places = [(method, of_tasks[column]) for method, column in zip(cells.method, cells.task, strict=True)]
    cells["applies"] = [all(applies(method, task) for task in of_column) for method, of_column in places]
    return cells


def _cells(numbers: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the cells of the table."""
    for (num_demos, method), cells in numbers.groupby(["num_demos", "method"], observed=True):
        block = counted(num_demos, "demo")
        for cell in cells.itertuples():
            text = f"{cell.mean:.1f}" if cell.seeds else "" if cell.applies else NOT_APPLICABLE
            margin = f" ± {(cell.high - cell.low) / 2:.1f}" if cell.seeds > 1 else ""
            suffix = margin + (PARTIAL if 0 < cell.seeds < cell.of_seeds else "")
            place = {"block": block, "row": method, "column": cell.task}
            yield {**place, **cell._asdict(), "text": text, "suffix": suffix}


def _seed_notes(numbers: pd.DataFrame) -> Iterator[str]:
    """Say how many seeds the columns have, and which cells have fewer."""
    alike = numbers.of_seeds.nunique() == 1
    if alike:
        yield f"{counted(numbers.of_seeds[0], 'seed')} a column."
    for num_demos, block in numbers.groupby("num_demos"):
        heading = counted(num_demos, "demo")
        columns = block.drop_duplicates("task").itertuples()
        if not alike:
            yield f"{heading}, seeds by column: {', '.join(f'{c.task} {c.of_seeds}' for c in columns)}."
        partial = block[(block.seeds > 0) & (block.seeds < block.of_seeds)]
        fewer = [
            f"{method} ({', '.join(f'{c.task} {c.seeds} of {c.of_seeds}' for c in cells.itertuples())})"
            for method, cells in partial.groupby("method", observed=True)
        ]
        if fewer:
            yield f"{PARTIAL} {heading}, not all seeds of the column, so without a rank: {'; '.join(fewer)}."


def _legend(numbers: pd.DataFrame, cells: Sequence[dict[str, Any]], confidence: float) -> Iterator[str]:
    """Say what the numbers and signs of the table mean."""
    text = f"Means over seeds ± half the width of a {100 * confidence:g} % t interval (none for one seed)."
    if numbers["rank"].notna().any():
        text += " Of each column the best mean is bold, the second underlined, the third italic."
    yield text
    if (numbers.task == AVERAGE).any():
        yield f"{AVERAGE}: the macro average, of methods that have all tasks of the block."
    if any(cell["text"] == NOT_APPLICABLE for cell in cells):
        yield f"{NOT_APPLICABLE}: the method reads label probabilities, and does not apply."
    if ((numbers.seeds == 0) & numbers.applies).any():
        yield "Empty: no runs; for an average, not on all tasks."
