"""Are probable orders accurate? Learned probability against accuracy, over all orders of a few demos."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plr_dspy.experiments.analysis.figures.drawing import add_legend, in_grid_order, panels, save
from plr_dspy.experiments.analysis.rankings import Ranking

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_ranking(rankings: Sequence[Ranking], path: str | os.PathLike[str]) -> Figure:
    """Accuracy of all orders of a few demos, the most probable first, with Kendall's tau and its p-value.

    A row of panels for each task and seed, a panel for each number of demos.

    Args:
        rankings: At most one for each task, seed and number of demos.
        path: Where to write the picture; its ending names the format.
    """
    if not rankings:
        raise ValueError("rankings must hold at least one entry; got none: run the experiment first")
    by_panel = {((r.task, r.seed), r.num_demos): r for r in rankings}
    if len(by_panel) < len(rankings):
        raise ValueError("rankings must hold one for each task, seed and num_demos; got several: keep one")
    tasks = in_grid_order(r.task for r in rankings)
    rows = [(task, seed) for task in tasks for seed in sorted({r.seed for r in rankings if r.task == task})]
    columns = sorted({r.num_demos for r in rankings})
    figure, axes = panels(rows, columns, present=by_panel, size=(3.6, 2.6))
    for panel, axis in axes.items():
        _draw_orders(axis, by_panel[panel], name_seed=len(rows) > len(tasks))
    figure.supxlabel("order by learned probability (1 = most probable)", fontsize=9)
    figure.supylabel("accuracy on held-out examples", fontsize=9)
    add_legend(figure)
    save(figure, path)
    return figure


def running_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of each value and its neighbours, a tenth of all and at least 3 together; fewer at the ends."""
    width = min(len(values), max(3, len(values) // 10) | 1)
    window = np.ones(width)
    sums: NDArray[np.float64] = np.convolve(values, window, "same")
    return sums / np.convolve(np.ones(len(values)), window, "same")


def _draw_orders(axis: Axes, ranking: Ranking, *, name_seed: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    chosen = ranking.by_probability
    accuracies = np.array([ranking.accuracies[i] for i in chosen], dtype=float)
    ranks = np.arange(1, len(chosen) + 1)
    axis.plot(ranks, accuracies, "o", color="#56B4E9", markersize=4, label="one order")
    axis.plot(ranks, running_mean(accuracies), color="#0072B2", linewidth=1.8, label="running mean")
    if ranking.original is not None:
        place = chosen.index(ranking.original)
        axis.plot(
            ranks[[place]], accuracies[[place]], "*", color="#D55E00", markersize=11, label="original order"
        )
    tau, p = ranking.kendall
    relation = "τ undefined: all are equal" if math.isnan(tau) else f"τ = {tau:+.2f}, p = {p:.2g}"
    seed = f", seed {ranking.seed}" if name_seed else ""
    axis.set_title(f"{ranking.task}, {ranking.num_demos} demos{seed}: {relation}", fontsize=9)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
