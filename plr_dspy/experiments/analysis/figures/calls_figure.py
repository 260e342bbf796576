"""What do a method's program calls buy? Held-out accuracy against calls."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from plr_dspy.experiments.analysis.figures.drawing import (
    METHOD_STYLES,
    add_legend,
    checked,
    in_grid_order,
    limit_accuracies,
    mean_and_margin,
    panels,
    save,
    style_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Affine2D

Runs: TypeAlias = Sequence[Mapping[str, Any]]

_PANEL = (3.4, 2.5)
"""Width and height in inches."""

_MARK_GAP = 8.0
"""Least distance between the centres of two marks, in points."""


def draw_accuracy_by_calls(results: Runs, path: str | os.PathLike[str]) -> Figure:
    """Accuracy against program calls: the mean over seeds of each method, with 95 % intervals.

    A row of panels for each task, a panel for each number of demos. A method without calls is a line across,
    with a band for its interval. Marks that would hide each other are drawn side by side; their data stay.

    Args:
        results: Records of runs, of one model and one group of settings; other fields are ignored.
        path: Where to write the picture; its ending names the format.
    """
    checked("results", results, ("task", "num_demos", "seed", "method"))
    _check_calls(results)
    by_panel: dict[tuple[str, int], dict[str, list[Mapping[str, Any]]]] = {}
    for run in results:
        methods = by_panel.setdefault((run["task"], run["num_demos"]), {})
        methods.setdefault(run["method"], []).append(run)
    tasks = in_grid_order(task for task, _ in by_panel)
    columns = sorted({num_demos for _, num_demos in by_panel})
    names = in_grid_order((run["method"] for run in results), grid=METHOD_STYLES)
    limits = _limits_of([run["program_calls"]["total"] for run in results])
    figure, axes = panels(tasks, columns, present=by_panel, size=_PANEL)
    ends: dict[str, list[float]] = {task: [] for task in tasks}
    for (task, num_demos), axis in axes.items():
        axis.set_title(f"{task}, {num_demos} demos", fontsize=9)
        runs = by_panel[task, num_demos]
        shown = {name: runs[name] for name in names if name in runs}
        ends[task] += _draw_methods(axis, shown, limits, inches=figure.dpi_scale_trans)
    for (task, _), axis in axes.items():
        limit_accuracies(axis, ends[task])
    figure.supxlabel("program calls (marks that would overlap stand side by side)", fontsize=9)
    figure.supylabel("held-out accuracy, 95 % interval", fontsize=9)
    add_legend(figure, names)
    save(figure, path)
    return figure


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Positions at least `gap` apart and as near as can be (least squares) to the given ones, in their order.

    Args:
        positions: From left to right.
        gap: Least distance of neighbours.
    """
    # Less i gaps the new positions must only not fall: isotonic regression, by pooling adjacent violators.
    pools: list[list[float]] = []
    for i, position in enumerate(positions):
        pools.append([position - i * gap])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    levels = [fmean(pool) for pool in pools for _ in pool]
    return [level + i * gap for i, level in enumerate(levels)]


def _draw_methods(
    axis: Axes, runs: Mapping[str, Runs], limits: tuple[float, float], *, inches: Affine2D
) -> list[float]:
    """Draw a panel; gives the ends of its intervals, which matplotlib does not know of shifted marks."""
    from matplotlib.ticker import EngFormatter, NullFormatter
    from matplotlib.transforms import ScaledTranslation

    axis.set_xscale("log")
    axis.set_xlim(*limits)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.xaxis.set_minor_formatter(NullFormatter())
    calls = {name: fmean(run["program_calls"]["total"] for run in of_one) for name, of_one in runs.items()}
    shifts = _shifts(calls, limits)
    ends = []
    for name, of_one in runs.items():
        mean, margin = mean_and_margin([run["accuracy"] for run in of_one])
        ends += [mean - margin, mean, mean + margin]
        if name not in shifts:
            _draw_across(axis, name, mean, margin)
            continue
        style = style_of(name)
        axis.errorbar(
            [calls[name]],
            [mean],
            yerr=[margin],
            color=style.colour,
            marker=style.marker,
            markersize=9 if style.marker == "*" else 5.5,
            linestyle="none",
            elinewidth=1.0,
            capsize=2.0,
            label=name,
            transform=axis.transData + ScaledTranslation(shifts[name] / 72, 0, inches),
        )
    return ends


def _draw_across(axis: Axes, name: str, mean: float, margin: float) -> None:
    """A line with a band, for a method whose calls a logarithmic axis cannot show: none."""
    colour = style_of(name).colour
    axis.axhline(mean, color=colour, linestyle="--", linewidth=1.0, label=name, zorder=1)
    if not math.isnan(margin):
        axis.axhspan(mean - margin, mean + margin, color=colour, alpha=0.08, linewidth=0, zorder=0)


def _shifts(calls: Mapping[str, float], limits: tuple[float, float]) -> dict[str, float]:
    """How far to draw each mark from its place, in points; a method without calls has none."""
    decade = 72 * 0.85 * _PANEL[0] / math.log10(limits[1] / limits[0])  # the axis takes .85 of the panel
    names = sorted((name for name in calls if calls[name] > 0), key=lambda name: calls[name])
    places = [decade * math.log10(calls[name]) for name in names]
    moved = spread(places, _MARK_GAP)
    return {name: new - old for name, new, old in zip(names, moved, places, strict=True)}


def _limits_of(calls: Sequence[float]) -> tuple[float, float]:
    """Limits of the x axis, with room for marks at its ends and at least two powers of ten to read it by."""
    exponents = [math.log10(count) for count in calls if count > 0] or [0.0]
    low, high = min(exponents) - 0.25, max(exponents) + 0.25
    if math.floor(high) <= math.ceil(low):
        low, high = math.floor(low) - 0.1, math.ceil(high) + 0.1
    return 10.0**low, 10.0**high


def _check_calls(results: Runs) -> None:
    for i, run in enumerate(results):
        calls = run.get("program_calls")
        total = calls.get("total") if isinstance(calls, Mapping) else None
        if not isinstance(total, int | float) or not 0 <= total < math.inf:
            raise ValueError(f"results[{i}] must have program_calls with a total of 0 or more; got {calls!r}")
