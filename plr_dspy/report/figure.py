"""Draws the figure of a report. This module needs matplotlib."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from plr_dspy.plackett_luce.distribution import PlackettLuce
from plr_dspy.report.text import is_scored_by_metric, scores_of_both, shorten

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("pictures need matplotlib: pip install 'plr-dspy[plots]'") from error

if TYPE_CHECKING:
    from plr_dspy.report.data import Report, SlotReport

WIDTH = 7.0
"""Of the figure, in inches."""

BLUE, PALE, ORANGE, GREY = "#2b7fc4", "#6aa9dd", "#e07b00", "#80868f"
"""Colours that can be told apart by eyes that see no red or green."""

STYLE: dict[Any, Any] = {
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8),
    "axes.labelsize": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
}


class Picture(Figure):
    """A figure that notebooks show, though pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def figure(report: Report) -> Figure:
    """Draw a figure with a panel for each thing that there is to show."""
    panels: list[tuple[float, Any]] = []
    if report.comparison is not None or (report.history and is_scored_by_metric(report)):
        panels.append((3.2, partial(_draw_scores, report=report)))
    if report.best_by_number:
        panels.append((2.8, partial(_draw_numbers, report=report)))
    for slot in report.slots:
        if slot.blocks and all(PlackettLuce.from_state(state).length for state in slot.distributions):
            rows = slot.num_demos * (0.26 if slot.num_demos <= 16 else 0.16)
            panels.append((1.4 + rows, partial(_draw_places, slot=slot)))
    if not panels:
        empty = Picture(figsize=(WIDTH, 1.0))
        empty.text(0.5, 0.5, f"Nothing to show: {report.stopped}", ha="center", va="center", parse_math=False)
        return empty
    heights = [height for height, _ in panels]
    with matplotlib.rc_context(STYLE):
        whole = Picture(figsize=(WIDTH, sum(heights)), layout="constrained")
        parts = whole.subfigures(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for part, (_, draw) in zip(parts, panels, strict=True):
            draw(part.subplots())
    return whole


def _draw_scores(axis: Axes, report: Report) -> None:
    """Draw mean and best score of the rounds by program calls, then what is expected of both programs."""
    rounds, c = report.history if is_scored_by_metric(report) else [], report.comparison
    calls = [i.program_calls for i in rounds]
    means, best = [i.mean_score for i in rounds], [i.best_score_so_far for i in rounds]
    if rounds:
        axis.plot(calls, means, "o--", color=PALE, markersize=4, linewidth=1.2, label="mean of the round")
        axis.plot(calls, best, "s-", color=BLUE, markersize=4, label="best so far, estimated")
        axis.set_xlabel("program calls")
    else:
        axis.set_xticks([])
    shown = [*means, *best]
    if c is not None:
        total, (both, where) = report.program_calls["total"], scores_of_both(report, c)
        names = (("your program", GREY, 0.98), ("returned program", ORANGE, 1.02))
        for (name, color, place), scores in zip(names, both, strict=True):
            _draw_interval(axis, place * total, *scores, color=color, label=f"{name}, {where}")
            shown += scores
    margin = 0.06 * (max(shown) - min(shown) or 1.0)
    axis.set_ylim(min(shown) - margin, max(shown) + margin)
    axis.set_ylabel("score")
    axis.set_title("Score by program calls" if rounds else "Final comparison")
    axis.figure.legend(loc="outside lower center", ncols=2)


def _draw_interval(axis: Axes, place: float, score: float, low: float, high: float, **options: Any) -> None:
    """Draw a score with its interval."""
    ends = [[max(0.0, score - low)], [max(0.0, high - score)]]
    axis.errorbar([place], [score], yerr=ends, fmt="D", capsize=4, **options)


def _draw_numbers(axis: Axes, report: Report) -> None:
    """Draw the best score of each number of demos, with its interval."""
    for best in report.best_by_number:
        color = ORANGE if best is report.chosen_of_number else GREY
        low, high = best.interval or (best.score, best.score)
        _draw_interval(axis, best.num_demos, best.score, low, high, color=color)
    axis.locator_params("x", integer=True, min_n_ticks=1)
    axis.set_xlabel("demos (orange: chosen)")
    axis.set_ylabel("score, 95 % interval")
    axis.set_title("Best score of each number of demos")


def _draw_places(axis: Axes, slot: SlotReport) -> None:
    """Draw how probable each demo (row) is at each place (column) of the longest prompt, and where the chosen is."""
    count = slot.num_demos
    if slot.is_pool:
        table = PlackettLuce.from_state(slot.distributions[0]).marginals().numpy()[:, ::-1]
    else:
        table = np.eye(count)
        for block, state in zip(slot.blocks, slot.distributions, strict=True):
            table[np.ix_(block, block)] = PlackettLuce.from_state(state).marginals().numpy()
    places = table.shape[1]
    shades = LinearSegmentedColormap.from_list("from nothing to blue", [f"{BLUE}00", BLUE])
    # Of many demos most probabilities are small beside the largest: the root tells them apart.
    norm = PowerNorm(1.0 if count <= 16 else 0.5, vmin=0.0, vmax=max(float(table.max()), min(1.0, 3 / count)))
    image = axis.imshow(table, cmap=shades, norm=norm, aspect="auto", interpolation="none")
    axis.figure.colorbar(image, ax=axis, fraction=0.04, pad=0.02)
    columns = range(places - len(slot.ordering), places)
    axis.plot(columns, slot.ordering, "o", color=ORANGE, markersize=max(3.0, min(8.0, 90 / count)))
    captions = [
        shorten(f"{number}: {' → '.join(shorten(text, 18) for text in demo.values()) or 'in no prompt'}", 44)
        for number, demo in enumerate(slot.demos)
    ]
    axis.set_yticks(range(count), captions, fontsize=8 if count <= 16 else 6.5, parse_math=False)
    names = ["last", *map(str, range(2, places + 1))][::-1]
    step = -(-places // 16)
    axis.set_xticks(range(places)[::-step], names[::-step])
    axis.set_xlabel("place, counted back from the question (dot: in the chosen order)")
    axis.set_title(f"{shorten(slot.predictor, 36)}: probability of each demo at each place", parse_math=False)
