"""The table of accuracies: methods by task and number of demos."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from plr_dspy.experiments.analysis.layout import (
    NOT_APPLICABLE,
    PARTIAL,
    Block,
    Cell,
    Row,
    Table,
    Value,
    counted,
)
from plr_dspy.experiments.runs.results import (
    METHODS,
    TASKS,
    Record,
    Result,
    Run,
    applies,
    by_run,
    in_order,
    setting_notes,
)
from plr_dspy.statistics.comparisons import mean_interval

AVERAGE = "average"
"""Name of the column of macro averages."""

FIELDS = ("num_demos", "task", "method", "mean", "low", "high", "seeds", "rank", "published")


@dataclass(frozen=True)
class _Column:
    """Accuracies in % by method and seed; `seeds` are all that some method has."""

    task: str
    of_tasks: tuple[str, ...]
    accuracies: Mapping[str, Mapping[int, float]]
    seeds: frozenset[int]

    def ranks(self) -> dict[str, int]:
        """Places of the methods that have all seeds, where there are two or more of them."""
        # Rounded, so that means that differ in the last bit only are a tie.
        means = {
            method: round(fmean(by_seed.values()), 9)
            for method, by_seed in self.accuracies.items()
            if by_seed.keys() == self.seeds
        }
        if len(means) < 2:
            return {}
        return {method: 1 + sum(other > mean for other in means.values()) for method, mean in means.items()}


def accuracy_table(
    results: Iterable[Record],
    *,
    confidence: float = 0.95,
    published: Mapping[tuple[str, int, str], float] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Mean accuracy over seeds in %, a block for each number of demos, a column for each of its tasks.

    The interval is Student's t on the accuracies by seed; one seed has none. So it is of the mean over other seeds,
    with all that a seed draws: demos, held-out examples, the method's own choices. A macro average is the mean over
    the tasks of the block, by seed, on the seeds that a method has on all of them; only methods that have all
    tasks have one. Ranks are by the unrounded mean, and ties share them. They are among the methods that have all seeds
    of their column; where only one has, there are none.

    Args:
        results: Of one model and prompt format.
        confidence: Level of the intervals, in (0, 1).
        published: Accuracies in % by task, number of demos and method: lines below those of the methods. Entries of
            which the table has no block, task or method are left aside.
        notes: Further sentences below the table.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1); got {confidence!r}: pass 0.95 for 95 %")
    runs = by_run(results)
    published = _checked(published or {})
    blocks, by_heading, marked = [], {}, False
    for num_demos in sorted({run.num_demos for run in runs}):
        columns = _columns({run: result for run, result in runs.items() if run.num_demos == num_demos})
        ranks = [column.ranks() for column in columns]
        marked = marked or any(ranks)
        rows = list(_rows(num_demos, columns, ranks, published, confidence))
        heading = counted(num_demos, "demo")
        blocks.append(Block(heading, tuple(column.task for column in columns), tuple(rows)))
        by_heading[heading] = columns
    first = next(iter(runs.values()))
    return Table(
        "accuracy",
        f"Accuracy of {first.model} in %, {first.format} prompts",
        tuple(blocks),
        (
            *_legend(blocks, marked, confidence),
            *_seed_notes(by_heading),
            *setting_notes(runs.values()),
            *notes,
        ),
        FIELDS,
    )


def _columns(runs: Mapping[Run, Result]) -> list[_Column]:
    columns = []
    for task in in_order({run.task for run in runs}, TASKS):
        accuracies: dict[str, dict[int, float]] = {}
        for run, result in runs.items():
            if run.task == task:
                accuracies.setdefault(run.method, {})[run.seed] = 100 * result.accuracy
        seeds = frozenset().union(*accuracies.values())
        columns.append(_Column(task, (task,), accuracies, seeds))
    return columns if len(columns) == 1 else [*columns, _average(columns)]


def _average(columns: Sequence[_Column]) -> _Column:
    """Of the methods that have all tasks, by the seeds that they have on all of them."""
    averages = {}
    for method in columns[0].accuracies:
        tasks = [column.accuracies.get(method, {}) for column in columns]
        if shared := set(tasks[0]).intersection(*tasks):
            averages[method] = {seed: fmean(task[seed] for task in tasks) for seed in shared}
    seeds = columns[0].seeds.intersection(*(column.seeds for column in columns))
    return _Column(AVERAGE, tuple(column.task for column in columns), averages, seeds)


def _rows(
    num_demos: int,
    columns: Sequence[_Column],
    ranks: Sequence[Mapping[str, int]],
    published: Mapping[tuple[str, int, str], float],
    confidence: float,
) -> Iterator[Row]:
    tasks = [column.task for column in columns if column.task != AVERAGE]
    for method in in_order({method for column in columns for method in column.accuracies}, METHODS):
        keys = {task: (task, num_demos, method) for task in tasks}
        theirs = {task: published[key] for task, key in keys.items() if key in published}
        if len(theirs) == len(tasks):
            theirs.setdefault(AVERAGE, fmean(theirs.values()))
        cells = []
        for column, places in zip(columns, ranks, strict=True):
            cell = _cell(column, method, places.get(method), confidence)
            key: dict[str, Value] = {"num_demos": num_demos, "task": column.task, "method": method}
            values = {**key, **cell.values, "published": theirs.get(column.task)}
            cells.append(replace(cell, values=values))
        yield Row(method, tuple(cells))
        if theirs:
            texts = [f"{theirs[c.task]:.1f}" if c.task in theirs else "" for c in columns]
            yield Row(f"{method}, published", tuple(map(Cell, texts)))


def _cell(column: _Column, method: str, rank: int | None, confidence: float) -> Cell:
    by_seed = column.accuracies.get(method)
    if by_seed is None:
        applicable = all(applies(method, task) for task in column.of_tasks)
        return Cell("" if applicable else NOT_APPLICABLE, values={"seeds": 0})
    accuracies = [by_seed[seed] for seed in sorted(by_seed)]
    mean, values, tail = fmean(accuracies), {}, ""
    if len(accuracies) > 1:
        low, high = mean_interval(accuracies, confidence)
        values, tail = {"low": low, "high": high}, f" ± {(high - low) / 2:.1f}"
    if by_seed.keys() != column.seeds:
        tail += PARTIAL
    return Cell(f"{mean:.1f}", tail, rank, {"mean": mean, **values, "seeds": len(accuracies), "rank": rank})


def _seed_notes(by_heading: Mapping[str, Sequence[_Column]]) -> Iterator[str]:
    """How many seeds the columns have, and which cells have fewer."""
    counts = {len(column.seeds) for columns in by_heading.values() for column in columns}
    if len(counts) == 1:
        yield f"{counted(max(counts), 'seed')} a column."
    for heading, columns in by_heading.items():
        if len(counts) > 1:
            yield f"{heading}, seeds by column: {', '.join(f'{c.task} {len(c.seeds)}' for c in columns)}."
        fewer = []
        for method in in_order({method for column in columns for method in column.accuracies}, METHODS):
            partial = [
                c for c in columns if method in c.accuracies and c.accuracies[method].keys() != c.seeds
            ]
            if partial:
                cells = ", ".join(f"{c.task} {len(c.accuracies[method])} of {len(c.seeds)}" for c in partial)
                fewer.append(f"{method} ({cells})")
        if fewer:
            yield f"{PARTIAL} {heading}, not all seeds of the column, so without a rank: {'; '.join(fewer)}."


def _legend(blocks: Sequence[Block], marked: bool, confidence: float) -> Iterator[str]:
    text = f"Means over seeds ± half the width of a {100 * confidence:g} % t interval (none for one seed)."
    if marked:
        text += " Of each column the best mean is bold, the second underlined, the third italic."
    yield text
    cells = [cell for block in blocks for row in block.rows for cell in row.cells if cell.values]
    if any(AVERAGE in block.columns for block in blocks):
        yield f"{AVERAGE}: the macro average, of methods that have all tasks of the block."
    if any(cell.text == NOT_APPLICABLE for cell in cells):
        yield f"{NOT_APPLICABLE}: the method reads label probabilities, and does not apply."
    if any(cell.text == "" for cell in cells):
        yield "Empty: no runs; for an average, not on all tasks."
    if any(cell.values["published"] is not None for cell in cells):
        yield "published: as reported in the paper, not by these runs."


def _checked(published: Mapping[tuple[str, int, str], float]) -> Mapping[tuple[str, int, str], float]:
    for key, percent in published.items():
        if not (isinstance(key, tuple) and len(key) == 3):
            raise ValueError(f"published must have keys (task, num_demos, method); got {key!r}")
        if not 0 <= percent <= 100:
            raise ValueError(f"published must hold percentages, 0 to 100; got {percent!r} for {key}")
    return published
