"""Are probable orders accurate? Learned probability against accuracy, over all orders of a few demos."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plr_dspy.experiments.analysis.figures.drawing import finish, panels
from plr_dspy.experiments.analysis.frames import in_order
from plr_dspy.experiments.runs.ranking import Ranking
from plr_dspy.experiments.tasks.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_ranking(rankings: Mapping[tuple[str, int, int], Ranking], path: str | os.PathLike[str]) -> Figure:
    """Draw the accuracy of all orders of a few demos, the most probable first, with Kendall's tau and its p-value.

    A row of panels for each task and seed, a panel for each number of demos.

    Args:
        rankings: At least one ranking, by task, number of demos and seed.
        path: Where to write the picture; its ending names the format.

    Raises:
        ValueError: without a ranking.
        ImportError: without matplotlib.
    """
    if not rankings:
        raise ValueError("rankings must hold at least one entry; got none: run the experiment first")
    tasks = in_order({task for task, _, _ in rankings}, TASKS)
    rows = sorted({(task, seed) for task, _, seed in rankings}, key=lambda row: (tasks.index(row[0]), row[1]))
    by_panel = {((task, seed), num_demos): ranking for (task, num_demos, seed), ranking in rankings.items()}
    columns = sorted({num_demos for _, num_demos, _ in rankings})
    figure, axes = panels(rows, columns, present=by_panel, size=(3.6, 2.6))
    for ((task, seed), num_demos), axis in axes.items():
        ranking = by_panel[(task, seed), num_demos]
        _draw_orders(axis, ranking)
        tau, p = ranking.kendall
        relation = "τ undefined: all are equal" if math.isnan(tau) else f"τ = {tau:+.2f}, p = {p:.2g}"
        of_seed = f", seed {seed}" if len(rows) > len(tasks) else ""
        axis.set_title(f"{task}, {num_demos} demos{of_seed}: {relation}", fontsize=9)
    finish(
        figure,
        path,
        x_label="order by learned probability (1 = most probable)",
        y_label="accuracy on held-out examples",
    )
    return figure


def running_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of each value and its neighbours, a tenth of all and at least 3 together; fewer at the ends."""
    width = max(3, len(values) // 10) | 1
    means: NDArray[np.float64] = (
        pd.Series(values).rolling(width, center=True, min_periods=1).mean().to_numpy()
    )
    return means


def _draw_orders(axis: Axes, ranking: Ranking) -> None:
    """Draw the accuracies of one ranking's orders, with their running mean, and mark the original order."""
    from matplotlib.ticker import MaxNLocator

    chosen = ranking.by_probability
    accuracies = np.array(ranking.accuracies, dtype=float)[chosen]
    ranks = np.arange(1, len(chosen) + 1)
    axis.plot(ranks, accuracies, "o", color="#56B4E9", markersize=4, label="one order")
    axis.plot(ranks, running_mean(accuracies), color="#0072B2", linewidth=1.8, label="running mean")
    if ranking.original is not None:
        at = [chosen.index(ranking.original)]
        axis.plot(ranks[at], accuracies[at], "*", color="#D55E00", markersize=11, label="original order")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
