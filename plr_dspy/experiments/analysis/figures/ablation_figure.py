"""What do the parts of the method add? Accuracy by setting, one part at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plr_dspy.experiments.analysis.figures.drawing import (
    add_legend,
    checked,
    in_grid_order,
    limit_accuracies,
    mean_and_margin,
    panels,
    save,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES = {
    "components": "number of mixture components",
    "weighted": "do elites count by their scores?",
    "elite_fraction": "elite fraction",
}
# The colours of Okabe and Ito, without their yellow, which is pale on white, and with a grey.
_TASK_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_SHOT_STYLES = (("o", "-"), ("s", "--"), ("^", "-."), ("D", ":"))

Line = tuple[str, int]
"""A task and a number of demos."""


def draw_ablation(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> Figure:
    """Accuracy by setting: the mean over seeds with 95 % intervals, a line for each task and number of demos.

    A panel for each ablation; the settings are evenly spaced, in their order.

    Args:
        rows: Each with "ablation" ("components", "weighted" or "elite_fraction"), "value", "task", "num_demos",
            "seed" and "accuracy"; other fields are ignored.
        path: Where to write the picture; its ending names the format.
    """
    checked("rows", rows, ("ablation", "value", "task", "num_demos", "seed"))
    if unknown := sorted({str(row["ablation"]) for row in rows} - set(_TITLES)):
        raise ValueError(f"rows must be of the ablations {list(_TITLES)}; got {unknown}")
    for i, row in enumerate(rows):
        if not isinstance(row["value"], int | float):
            raise ValueError(
                f"rows[{i}] must have a number, or true or false, as value; got {row['value']!r}"
            )
    lines = [
        (task, num_demos)
        for task in in_grid_order(row["task"] for row in rows)
        for num_demos in sorted({row["num_demos"] for row in rows if row["task"] == task})
    ]
    names = [name for name in _TITLES if any(row["ablation"] == name for row in rows)]
    figure, axes = panels(
        ["accuracy"], names, present={("accuracy", name) for name in names}, size=(3.8, 3.0)
    )
    ends: list[float] = []
    for (_, name), axis in axes.items():
        ends += _draw_settings(axis, [row for row in rows if row["ablation"] == name], lines)
        axis.set_title(_TITLES[name], fontsize=9)
    limit_accuracies(axis, ends)
    figure.supylabel("held-out accuracy, 95 % interval", fontsize=9)
    add_legend(figure)
    save(figure, path)
    return figure


def _draw_settings(axis: Axes, rows: Sequence[Mapping[str, Any]], lines: Sequence[Line]) -> list[float]:
    """Draw a panel; gives the ends of its intervals."""
    ends: list[float] = []
    values = sorted({row["value"] for row in rows})
    colours = dict(zip(in_grid_order(task for task, _ in lines), _TASK_COLOURS * len(lines), strict=False))
    styles = dict(zip(sorted({shots for _, shots in lines}), _SHOT_STYLES * len(lines), strict=False))
    for i, (task, num_demos) in enumerate(lines):
        accuracies: dict[Any, list[float]] = {}
        for row in rows:
            if (row["task"], row["num_demos"]) == (task, num_demos):
                accuracies.setdefault(row["value"], []).append(row["accuracy"])
        present = [value for value in values if value in accuracies]
        if not present:
            continue
        summaries = [mean_and_margin(accuracies[value]) for value in present]
        ends += [end for mean, margin in summaries for end in (mean - margin, mean, mean + margin)]
        # Side by side within a third of the space between two settings, so that the bars stay apart.
        shift = (i - (len(lines) - 1) / 2) / (3 * len(lines))
        marker, linestyle = styles[num_demos]
        axis.errorbar(
            [values.index(value) + shift for value in present],
            [mean for mean, _ in summaries],
            yerr=[margin for _, margin in summaries],
            color=colours[task],
            marker=marker,
            linestyle=linestyle,
            linewidth=1.0,
            markersize=4.5,
            capsize=2.0,
            label=f"{task}, {num_demos} demos",
        )
    axis.set_xticks(range(len(values)), [_setting(rows[0]["ablation"], value) for value in values])
    axis.set_xlim(-0.5, len(values) - 0.5)
    return ends


def _setting(ablation: str, value: float) -> str:
    if ablation == "weighted":
        return "weighted" if value else "unweighted"
    return f"{value:g}"
