"""The paper's figures: accuracy by program calls, and by learnt probability."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from plr_dspy.runtime.files import write_atomically

from .protocol import METHODS
from .tables import intervals, kendall

# Colours of Okabe and Ito and of Paul Tol, chosen to stay apart under protanopia, deuteranopia and tritanopia; the
# markers tell the methods apart without any colour.
COLOURS = (
    *("#000000", "#999999", "#E69F00", "#663333", "#33BBEE", "#0077BB"),
    *("#004488", "#EE3377", "#117733", "#AA3377", "#222255", "#D55E00"),
)
STYLES = {method: style for method, *style in zip(METHODS, COLOURS, "Xo^v<>DPsph*", strict=True)}


def _panels(keys: Sequence[Any], columns: int) -> tuple[Any, dict[Any, Any]]:
    """A figure that no window and no global state know, and the axes of its panels."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'plr-dspy[examples]'") from error
    rows = math.ceil(len(keys) / columns)
    figure = Figure(figsize=(max(3.4 * columns, 5.0), 2.6 * rows + 1), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey="row").flat)
    for axis in axes:
        axis.tick_params(labelsize=8, labelleft=True)
    for axis in axes[len(keys) :]:
        axis.remove()
    return figure, dict(zip(keys, axes, strict=False))


def _finish(figure: Any, path: Path, *, x_label: str = "", y_label: str) -> None:
    """Label a figure, put one legend above all panels, and write it; the file appears whole or not at all."""
    figure.supxlabel(x_label, fontsize=9)
    figure.supylabel(y_label, fontsize=9)
    drawn = [axis.get_legend_handles_labels() for axis in figure.axes]
    handles = {label: handle for both in drawn for handle, label in zip(*both, strict=True)}
    columns = max(1, int(figure.get_figwidth() / 1.3))
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=columns, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=150, format=path.suffix.lstrip(".") or "png")
    write_atomically(path, buffer.getvalue())


def draw_accuracy_by_calls(frame: pd.DataFrame, path: Path) -> Any:
    """Draw accuracy against program calls, a row of panels for each task, a panel for each number of demos.

    A method without calls is a line across. Marks are moved a little to the side, so that none hides another. Of two
    seeds the interval says nothing, and is not drawn.
    """
    keys = ["task", "num_demos", "method"]
    cells = intervals(frame.groupby(keys, observed=True).accuracy)
    cells["margin"] = (cells["mean"] - cells.low).where(cells.seeds > 2)
    cells = cells.join(frame.groupby(keys, observed=True).calls.mean()).reset_index()
    by_panel = dict(list(cells.groupby(["task", "num_demos"], observed=True)))
    figure, axes = _panels(list(by_panel), frame.num_demos.nunique())
    methods = list(frame.method.cat.categories)
    for (task, num_demos), axis in axes.items():
        axis.set_title(f"{task}, {num_demos} demos", fontsize=9)
        axis.set_xscale("log")
        for number, method in enumerate(methods):
            cell = by_panel[task, num_demos].query("method == @method")
            colour, marker = STYLES.get(method, ("#555555", f"${method[0]}$"))
            if cell.calls.eq(0).any():
                axis.axhline(cell["mean"].iloc[0], color=colour, linestyle="--", linewidth=1, label=method)
            elif not cell.empty:
                x = 1.06 ** (number - len(methods) / 2) * cell.calls
                style = {"color": colour, "marker": marker, "linestyle": "none", "label": method}
                axis.errorbar(
                    x, cell["mean"], yerr=cell.margin, capsize=2, markersize=5.5, linewidth=1, **style
                )
    x_label = "program calls (marks are moved a little apart)"
    _finish(figure, path, x_label=x_label, y_label="held-out accuracy, 95 % interval")
    return figure


def draw_ranking(frame: pd.DataFrame, path: Path) -> Any:
    """Draw the accuracy of all orders of a few demos, the most probable first, with Kendall's tau and its p-value."""
    ranked = frame[frame.ranking.notna()]
    by_place = ranked.sort_values(["task", "seed", "num_demos"])[["task", "seed", "num_demos", "ranking"]]
    figure, axes = _panels(range(len(ranked)), ranked.num_demos.nunique())
    for axis, (task, seed, num_demos, ranking) in zip(axes.values(), by_place.values, strict=True):
        chosen = np.argsort(-np.array(ranking.log_probs), kind="stable")
        accuracies, ranks = pd.Series(ranking.accuracies)[chosen], np.arange(1, len(chosen) + 1)
        running = accuracies.rolling(max(3, len(chosen) // 10) | 1, center=True, min_periods=1).mean()
        axis.plot(ranks, accuracies, "o", color="#56B4E9", markersize=4, label="one order")
        axis.plot(ranks, running, color="#0072B2", linewidth=1.8, label="running mean")
        original = tuple(range(num_demos))
        if original in ranking.orders:  # else another with its prompt stands for it
            at = list(chosen).index(ranking.orders.index(original))
            star = {"marker": "*", "color": "#D55E00", "markersize": 11, "linestyle": "none"}
            axis.plot(at + 1, accuracies.iloc[at], label="original order", **star)
        tau, p = kendall(ranking)
        relation = "all orders are equal" if math.isnan(tau) else f"τ = {tau:+.2f}, p = {p:.2g}"
        axis.set_title(f"{task}, {num_demos} demos, seed {seed}: {relation}", fontsize=9)
    x_label = "order by learned probability (1 = most probable)"
    _finish(figure, path, x_label=x_label, y_label="accuracy on held-out examples")
    return figure
