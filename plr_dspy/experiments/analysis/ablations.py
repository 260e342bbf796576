"""The ablations of an experiment: accuracy by setting, one part of the method at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from plr_dspy.experiments.analysis.frames import counted, frame_of, mean_intervals
from plr_dspy.experiments.analysis.table import Table
from plr_dspy.experiments.names import ABLATIONS
from plr_dspy.experiments.runs.results import Result


def ablation_frame(results: Sequence[Result]) -> pd.DataFrame:
    """Make a frame of the runs of all ablations that have results of two settings.

    Returns:
        Columns "ablation", "value" (see `ABLATIONS`), "task", "num_demos", "seed", "accuracy"; one row for each run of
        an ablation.

    Raises:
        ValueError: when the results cannot stand in one table, or no ablation has two settings.
    """
    frame = frame_of(results)
    parts = []
    for ablation, values in ABLATIONS.items():
        runs = frame[frame.method.isin(values)]
        if runs.method.nunique() > 1:
            value = pd.Series([values[method] for method in runs.method], runs.index, dtype=object)
            parts.append(runs.assign(ablation=ablation, value=value))
    if not parts:
        raise ValueError(
            "no ablation has results of two settings: make some with plr-dspy experiment run --ablations "
            + " ".join(ABLATIONS)
        )
    return pd.concat(parts)[["ablation", "value", "task", "num_demos", "seed", "accuracy"]]


def setting_name(ablation: str, value: float) -> str:
    """A value of an ablation as people read it."""
    if ablation == "weighted":
        return "weighted" if value else "unweighted"
    return f"{value:g}"


def ablation_table(frame: pd.DataFrame) -> Table:
    """Held-out accuracy by setting, a block for each ablation, a column for each task and number of demos.

    Args:
        frame: As `ablation_frame` makes it.
    """
    places = sorted(set(zip(frame.task, frame.num_demos, strict=True)))
    cells: list[dict[str, Any]] = []
    # One ablation at a time, because pandas takes True and 1 for one value.
    for ablation, runs in frame.groupby("ablation", sort=False):
        means = mean_intervals(runs.groupby(["value", "task", "num_demos"], observed=True).accuracy)
        for value in means.index.unique("value"):
            for task, num_demos in places:
                cell = {"block": ablation.replace("_", " "), "row": setting_name(ablation, value)}
                cell |= {"column": f"{task}, {counted(num_demos, 'demo')}", "text": ""}
                if (value, task, num_demos) in means.index:
                    mean, low, high, seeds = means.loc[value, task, num_demos]
                    cell |= {"ablation": ablation, "value": value, "task": task, "num_demos": num_demos}
                    cell |= {"mean": mean, "low": low, "high": high, "seeds": int(seeds)}
                    cell |= {"text": f"{100 * mean:.1f}"}
                    cell |= {"suffix": f" ±{100 * (high - mean):.1f}" if seeds > 1 else ""}
                cells.append(cell)
    note = "Means over seeds, with half the width of their 95 % t interval where there are two or more."
    fields = ["ablation", "value", "task", "num_demos", "mean", "low", "high", "seeds"]
    return Table("ablation", "Held-out accuracy in % by setting", cells, fields, [note])
