"""The paper's tables from the results of its runs, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from plr_dspy.experiments.analysis.accuracy import accuracy_table
from plr_dspy.experiments.analysis.layout import PARTIAL, Block, Cell, Row, Table, Value, counted
from plr_dspy.experiments.analysis.paired import paired_table
from plr_dspy.experiments.runs.results import METHODS, Record, Result, by_run, in_order, setting_notes
from plr_dspy.runtime.files import write_atomically

__all__ = ["accuracy_table", "calls_table", "paired_table", "save_tables"]


def calls_table(results: Iterable[Record]) -> Table:
    """What a run costs: mean program calls, tokens by kind and seconds, by method and number of demos.

    Means are over all runs (task and seed) of the method with that many demos, so they compare methods only where the
    methods have the same ones; a note says where they have not. Tokens are over the runs that know them.

    Args:
        results: Of one model and prompt format.
    """
    runs = by_run(results)
    kinds = in_order({kind for result in runs.values() for kind in result.tokens}, ("prompt", "completion"))
    columns = ("program calls", *(f"{kind} tokens" for kind in kinds), "seconds", "runs")
    blocks, notes, alike = [], [], True
    for num_demos in sorted({run.num_demos for run in runs}):
        here = {run: result for run, result in runs.items() if run.num_demos == num_demos}
        rows, places = [], set()
        for method in in_order({run.method for run in here}, METHODS):
            theirs = {run: result for run, result in here.items() if run.method == method}
            places.add(frozenset((run.task, run.seed) for run in theirs))
            rows.append(Row(method, tuple(_costs(num_demos, method, list(theirs.values()), kinds))))
        blocks.append(Block(counted(num_demos, "demo"), columns, tuple(rows)))
        alike = alike and len(places) == 1
    if not alike:
        notes.append("Not all methods have the same runs: compare their means only where they do.")
    if any(PARTIAL in cell.tail for block in blocks for row in block.rows for cell in row.cells):
        notes.append(f"{PARTIAL} over fewer runs: not all of them know their tokens.")
    first = next(iter(runs.values()))
    return Table(
        "calls",
        f"What a run costs with {first.model}, {first.format} prompts",
        tuple(blocks),
        ("Means over runs (tasks and seeds).", *notes, *setting_notes(runs.values())),
        ("num_demos", "method", "measure", "mean", "runs"),
    )


def save_tables(
    results: Iterable[Record],
    folder: str | os.PathLike[str],
    *,
    against: str = "Static",
    published: Mapping[tuple[str, int, str], float] | None = None,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Write all tables as .md, .tex and .csv; each file appears whole or not at all.

    Args:
        results: Of one model and prompt format.
        folder: Made where it is missing.
        against: Base method of the paired table, which is left out where that method or any other has no results.
        published, notes: As in `accuracy_table`.

    Returns:
        The files.
    """
    runs = by_run(results)
    tables = [accuracy_table(runs.values(), published=published, notes=notes), calls_table(runs.values())]
    methods = {run.method for run in runs}
    if against in methods and len(methods) > 1:
        tables.append(paired_table(runs.values(), against))
    files = []
    for table in tables:
        for ending, text in (("md", table.to_markdown()), ("tex", table.to_latex()), ("csv", table.to_csv())):
            files.append(Path(folder) / f"{table.name}.{ending}")
            write_atomically(files[-1], text.encode())
    return files


def _costs(num_demos: int, method: str, results: Sequence[Result], kinds: Sequence[str]) -> Iterator[Cell]:
    measures: dict[str, list[float]] = {
        "program calls": [result.program_calls["total"] for result in results],
        **{f"{k} tokens": [result.tokens[k] for result in results if k in result.tokens] for k in kinds},
        "seconds": [result.seconds for result in results],
    }
    for measure, amounts in measures.items():
        mean = fmean(amounts) if amounts else None
        text = "" if mean is None else f"{mean:,.1f}" if measure == "seconds" else f"{mean:,.0f}"
        tail = PARTIAL if 0 < len(amounts) < len(results) else ""
        values: dict[str, Value] = {"num_demos": num_demos, "method": method, "measure": measure}
        yield Cell(text, tail, values=values | {"mean": mean, "runs": len(amounts)})
    yield Cell(str(len(results)))
