"""Figures that plot accuracies of orders against their learned probabilities, and ranks of methods."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from plr_dspy.runtime import write_atomically

from .protocol import ALL_ORDERS, METHODS
from .results import Ranking, Result
from .tables import count_noun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = "#56B4E9"
MEAN = "#0072B2"
ORIGINAL = "#D55E00"
UPDATES = {"PLR-EMA": "EMA", "PLR-1": "MLE"}
"""The paper's names of update rules, keyed by method."""


def probability_frame(results: Sequence[Result]) -> pd.DataFrame:
    """Return one row per run that scored all orders, with Kendall's tau between probability and accuracy.

    Columns are "task", "num_demos", "update", "seed", "orders", "tau" and its two-sided "p", the accuracies
    "most_probable" (of the most probable order), "mean" and "best" (of all orders), and "ranking".
    """
    rows = []
    for result in results:
        ranking = result.ranking
        if ranking is None:
            continue
        method = result.method.removesuffix(ALL_ORDERS)
        test = stats.kendalltau(ranking.log_probabilities, ranking.accuracies)
        rows.append(
            {
                "task": result.task,
                "num_demos": result.num_demos,
                "update": UPDATES.get(method, method),
                "seed": result.seed,
                "orders": len(ranking.orders),
                "tau": float(test.statistic),
                "p": float(test.pvalue),
                "most_probable": ranking.accuracies[int(np.argmax(ranking.log_probabilities))],
                "mean": float(np.mean(ranking.accuracies)),
                "best": max(ranking.accuracies),
                "ranking": ranking,
            }
        )
    frame = pd.DataFrame(rows)
    return frame.sort_values(["task", "num_demos", "update", "seed"], ignore_index=True) if rows else frame


def draw_probability(frame: pd.DataFrame) -> Figure:
    """Plot the accuracies of all orders, beginning with the most probable order.

    Args:
        frame: The frame from `probability_frame`. Each combination of task, number of demos and update
            rule has a row of plots, and each seed has a column.
    """
    places = frame.groupby(["task", "num_demos", "update"], sort=False)
    seeds = sorted(frame.seed.unique())
    figure = _new_figure(width=2.3 * len(seeds) + 0.6, height=1.9 * len(places) + 0.8)
    axes = figure.subplots(len(places), len(seeds), squeeze=False, sharey="row")
    for row, ((task, num_demos, update), runs) in zip(axes, places, strict=True):
        row[0].set_ylabel(f"{task}, k = {num_demos}, {update}", fontsize=8)
        by_seed = runs.set_index("seed")
        for axis, seed in zip(row, seeds, strict=True):
            axis.tick_params(labelsize=7)
            if seed in by_seed.index:
                run = by_seed.loc[seed]
                _draw_orders(axis, run.ranking)
                axis.set_title(f"seed {seed}: {_relation(run.tau, run.p)}", fontsize=8)
            else:
                axis.set_axis_off()
    figure.supxlabel("rank of the order by its learned probability (1 is the most probable)", fontsize=9)
    figure.supylabel("accuracy on held-out examples", fontsize=9)
    labels: dict[str, Any] = {}
    for axis in figure.axes:
        handles, names = axis.get_legend_handles_labels()
        labels |= dict(zip(names, handles, strict=True))
    figure.legend(labels.values(), labels, loc="outside upper center", ncols=len(labels), fontsize=8)
    return figure


def _draw_orders(axis: Axes, ranking: Ranking) -> None:
    """Draw a point for each order, the running mean, and a star at the original order."""
    by_probability = np.argsort(-np.array(ranking.log_probabilities), kind="stable")
    accuracies = pd.Series(ranking.accuracies)[by_probability]
    ranks = np.arange(1, len(accuracies) + 1)
    window = max(3, len(ranks) // 10) | 1  # Make the window odd, so that it can be centered.
    axis.plot(ranks, accuracies, "o", color=POINTS, markersize=3, label="one order")
    running_mean = accuracies.rolling(window, center=True, min_periods=1).mean()
    axis.plot(ranks, running_mean, color=MEAN, linewidth=1.5, label="running mean")
    original = tuple(range(len(ranking.orders[0])))
    if original in ranking.orders:  # If some demos are equal, an equivalent order may be listed instead.
        place = list(by_probability).index(ranking.orders.index(original))
        axis.plot(
            ranks[place], accuracies.iloc[place], "*", color=ORIGINAL, markersize=9, label="original order"
        )


def _relation(tau: float, p: float) -> str:
    """Return Kendall's tau and its p-value as text."""
    if math.isnan(tau):
        return "no correlation"  # All orders have the same accuracy or probability.
    return f"τ = {tau:+.2f}, p = {p:.2g}"


def rank_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Rank methods by their mean accuracies, for each task and number of demos.

    Rank 1 is the best. Only methods with all runs of the grid are ranked, so that all ranks have the
    same range. Methods with equal accuracies share the mean of their ranks.

    Args:
        frame: The frame from `tables.frame_of`.

    Returns:
        A row per method and a column per task and number of demos. The method with the best mean rank
        comes first.
    """
    cells = frame[frame.method.isin(METHODS)]
    means = cells.pivot_table(
        index="method", columns=["task", "num_demos"], values="accuracy", aggfunc="mean", observed=True
    )
    counts = cells.pivot_table(
        index="method", columns=["task", "num_demos"], values="accuracy", aggfunc="count", observed=True
    )
    complete = means[(counts == counts.max()).all(axis=1)]
    # Round accuracies, so that rounding errors do not break ties.
    ranks = complete.round(9).rank(ascending=False)
    return ranks.loc[ranks.mean(axis=1).sort_values(kind="stable").index]


def draw_ranks(ranks: pd.DataFrame) -> Figure:
    """Draw the ranks of each method: a point for each task and number of demos, and a bar at the mean.

    Args:
        ranks: Ranks from `rank_frame`.
    """
    figure = _new_figure(width=6.5, height=0.35 * len(ranks) + 1.3)
    axis = figure.subplots()
    heights = np.arange(len(ranks))
    places = np.linspace(-0.25, 0.25, ranks.shape[1]) if ranks.shape[1] > 1 else [0.0]
    for shift, (_, column) in zip(places, ranks.items(), strict=True):
        label = "one task and number of demos" if shift == places[0] else None
        axis.plot(column, heights + shift, "o", color=POINTS, markersize=4, label=label)
    means = ranks.mean(axis=1)
    axis.plot(means, heights, "|", color=MEAN, markersize=16, markeredgewidth=2.5, label="mean")
    axis.set_yticks(heights, [f"{method} ({mean:.1f})" for method, mean in means.items()], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0.5, len(ranks) + 0.5)
    axis.tick_params(axis="x", labelsize=8)
    num_tasks = ranks.columns.get_level_values("task").nunique()
    cells = f"{count_noun(num_tasks, 'task')}, {count_noun(ranks.shape[1] // num_tasks, 'number')} of demos"
    axis.set_xlabel(f"rank by held-out accuracy, 1 is the best ({cells})", fontsize=9)
    figure.legend(loc="outside upper center", ncols=2, fontsize=8)
    return figure


def _new_figure(*, width: float, height: float) -> Figure:
    """Return an empty figure that opens no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "matplotlib is needed to draw figures. Run pip install 'plr-dspy[examples]'."
        ) from error
    return Figure(figsize=(max(width, 5.0), height), layout="constrained")


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, and return its path."""
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format="png")
    write_atomically(path, content.getvalue())
    return path


def save_figures(results: Sequence[Result], frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the figures for which there are results, with their numbers as CSV, and return all paths."""
    paths = []
    probabilities = probability_frame(results)
    if len(probabilities):
        paths.append(save_figure(draw_probability(probabilities), folder / "probability.png"))
        paths.append(_save_numbers(probabilities.drop(columns="ranking"), folder / "probability.csv"))
    ranks = rank_frame(frame)
    if len(ranks) > 1:
        paths.append(save_figure(draw_ranks(ranks), folder / "ranks.png"))
        numbers = ranks.stack(["task", "num_demos"]).rename("rank").reset_index()
        paths.append(_save_numbers(numbers, folder / "ranks.csv"))
    if not paths:
        raise ValueError(
            "figures need runs of '--ablations probability', or two methods with all runs of the grid; the results "
            "contain neither. Make such runs first."
        )
    return paths


def _save_numbers(numbers: pd.DataFrame, path: Path) -> Path:
    """Write the numbers of a figure as CSV, and return the path."""
    write_atomically(path, numbers.to_csv(index=False, lineterminator="\n").encode())
    return path
