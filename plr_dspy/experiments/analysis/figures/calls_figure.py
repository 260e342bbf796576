"""What do a method's program calls buy? Held-out accuracy against calls."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from plr_dspy.experiments.analysis.figures.drawing import (
    finish,
    limit_accuracies,
    means_and_margins,
    panels,
    style_of,
)
from plr_dspy.experiments.analysis.frames import frame_of
from plr_dspy.experiments.runs.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (3.4, 2.5)
"""Width and height of a panel."""

AXIS_SHARE = 0.85
"""Share of a panel's width that its axis takes."""

MARK_GAP = 8.0
"""Least distance between the centres of two marks, in points (72 an inch)."""


def draw_accuracy_by_calls(results: Sequence[Result], path: str | os.PathLike[str]) -> Figure:
    """Draw accuracy against program calls: the mean over seeds of each method, with 95 % intervals.

    A row of panels for each task, a panel for each number of demos. A method without calls is a line across,
    with a band for its interval. Marks that would hide each other are drawn side by side; their data stay.

    Args:
        results: Results of one model and one group of settings.
        path: Where to write the picture; its ending names the format.

    Raises:
        ValueError: when the results cannot stand in one figure.
        ImportError: without matplotlib.
    """
    frame = frame_of(results)
    frame["calls"] = [calls["total"] for calls in frame.program_calls]
    keys = ["task", "num_demos", "method"]
    means = means_and_margins(frame, keys).merge(
        frame.groupby(keys, observed=True).calls.mean().reset_index(), on=keys
    )
    limits = _limits_of(frame.calls)
    by_panel = dict(list(means.groupby(["task", "num_demos"], observed=True)))
    tasks, numbers = list(frame.task.cat.categories), sorted(frame.num_demos.unique())
    figure, axes = panels(tasks, numbers, present=by_panel, size=PANEL_INCHES)
    for (task, num_demos), axis in axes.items():
        axis.set_title(f"{task}, {num_demos} demos", fontsize=9)
        _draw_methods(figure, axis, by_panel[task, num_demos], limits)
        limit_accuracies(axis, means[means.task == task])
    finish(
        figure,
        path,
        x_label="program calls (marks that would overlap stand side by side)",
        y_label="held-out accuracy, 95 % interval",
        names=list(frame.method.cat.categories),
    )
    return figure


def move_apart(positions: Sequence[float], gap: float) -> list[float]:
    """Move positions at least `gap` apart, in their order and as little as can be (least squares).

    Args:
        positions: Positions from left to right.
        gap: Least distance of neighbours.
    """
    # Less i gaps the new positions must only not fall, which is isotonic regression.
    steps = gap * np.arange(len(positions))
    moved: list[float] = (isotonic_regression(np.asarray(positions) - steps).x + steps).tolist()
    return moved


def _draw_methods(figure: Figure, axis: Axes, means: pd.DataFrame, limits: tuple[float, float]) -> None:
    """Draw one panel; methods without calls, which a logarithmic axis cannot show, are lines across."""
    from matplotlib.ticker import EngFormatter, NullFormatter
    from matplotlib.transforms import ScaledTranslation

    axis.set_xscale("log")
    axis.set_xlim(*limits)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.xaxis.set_minor_formatter(NullFormatter())
    for free in means[means.calls == 0].itertuples():
        colour = style_of(free.method).colour
        axis.axhline(free.mean, color=colour, linestyle="--", linewidth=1.0, label=free.method, zorder=1)
        if not math.isnan(free.margin):
            low, high = free.mean - free.margin, free.mean + free.margin
            axis.axhspan(low, high, color=colour, alpha=0.08, linewidth=0, zorder=0)
    paid = means[means.calls > 0].sort_values("calls", kind="stable")
    decade_points = 72 * AXIS_SHARE * PANEL_INCHES[0] / math.log10(limits[1] / limits[0])
    places = decade_points * np.log10(paid.calls.to_numpy())
    for mark, shift in zip(paid.itertuples(), move_apart(places, MARK_GAP) - places, strict=True):
        style = style_of(mark.method)
        axis.errorbar(
            [mark.calls],
            [mark.mean],
            yerr=[mark.margin],
            color=style.colour,
            marker=style.marker,
            markersize=9 if style.marker == "*" else 5.5,
            linestyle="none",
            elinewidth=1.0,
            capsize=2.0,
            label=mark.method,
            transform=axis.transData + ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans),
        )


def _limits_of(calls: pd.Series) -> tuple[float, float]:
    """Limits of the x axis, with room for marks at its ends and at least two powers of ten to read it by."""
    exponents = [math.log10(count) for count in calls if count > 0] or [0.0]
    low, high = min(exponents) - 0.25, max(exponents) + 0.25
    if math.floor(high) <= math.ceil(low):
        low, high = math.floor(low) - 0.1, math.ceil(high) + 0.1
    return 10.0**low, 10.0**high
