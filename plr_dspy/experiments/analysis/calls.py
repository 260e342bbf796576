"""The table of costs: program calls, tokens and seconds by method and number of demos."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from plr_dspy.experiments.analysis.frames import counted, frame_of, in_order, setting_notes
from plr_dspy.experiments.analysis.table import PARTIAL, Table
from plr_dspy.experiments.runs.results import Result


def calls_table(results: Sequence[Result]) -> Table:
    """What a run costs: mean program calls, tokens by kind and seconds, by method and number of demos.

    Means are over all runs (task and seed) of the method with that many demos, so they compare methods only where the
    methods have the same ones; a note says where they have not. Tokens are over the runs that know them.

    Args:
        results: Results of one model and prompt format.

    Raises:
        ValueError: when the results cannot stand in one table.
    """
    frame = frame_of(results)
    kinds = in_order({kind for tokens in frame.tokens for kind in tokens}, ("prompt", "completion"))
    frame["program calls"] = [calls["total"] for calls in frame.program_calls]
    for kind in kinds:
        frame[f"{kind} tokens"] = [tokens.get(kind) for tokens in frame.tokens]
    measures = ["program calls", *(f"{kind} tokens" for kind in kinds), "seconds"]
    by_method = frame.groupby(["num_demos", "method"], observed=True)
    cells: list[dict[str, Any]] = []
    for (num_demos, method), runs in by_method:
        place = {"block": counted(num_demos, "demo"), "row": method}
        for measure in measures:
            amounts = runs[measure].dropna()
            mean, count = fmean(amounts) if len(amounts) else None, len(amounts)
            cell = {**place, "column": measure, "num_demos": num_demos, "method": method, "measure": measure}
            text = "" if mean is None else f"{mean:,.1f}" if measure == "seconds" else f"{mean:,.0f}"
            suffix = PARTIAL if 0 < count < len(runs) else ""
            cells.append({**cell, "mean": mean, "runs": count, "text": text, "suffix": suffix})
        cells.append({**place, "column": "runs", "text": str(len(runs))})
    places = by_method[["task", "seed"]].apply(lambda runs: frozenset(zip(runs.task, runs.seed, strict=True)))
    notes = ["Means over runs (tasks and seeds)."]
    if (places.groupby("num_demos").nunique() > 1).any():
        notes.append("Not all methods have the same runs: compare their means only where they do.")
    if any(cell.get("suffix") for cell in cells):
        notes.append(f"{PARTIAL} over fewer runs: not all of them know their tokens.")
    title = f"What a run costs with {frame.model[0]}, {frame.format[0]} prompts"
    notes += setting_notes(results)
    return Table("calls", title, cells, ["num_demos", "method", "measure", "mean", "runs"], notes)
