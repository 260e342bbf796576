"""Draws the figure of a report. This module needs matplotlib."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from plr_dspy.errors import MissingPackageError
from plr_dspy.report.text import scores_of_both

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingPackageError("pictures need matplotlib: pip install 'plr-dspy[plots]'") from error

if TYPE_CHECKING:
    from plr_dspy.report.data import Report

WIDTH, HEIGHT = 7.0, 3.0  # of a panel, in inches
BLUE, PALE, ORANGE, GREY = "#2b7fc4", "#6aa9dd", "#e07b00", "#80868f"  # can be told apart without seeing red or green

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


def figure(report: Report) -> Picture:
    """Draw a figure with a panel for each thing that there is to show."""
    told = {_draw_scores: report.comparison or report.history, _draw_numbers: report.best_by_number}
    panels = [draw for draw, what in told.items() if what]
    number = max(1, len(panels))
    with matplotlib.rc_context(STYLE):
        whole = Picture(figsize=(WIDTH, HEIGHT * number), layout="constrained")
        if not panels:
            whole.text(0.5, 0.5, f"Nothing to show: {report.stopped}", ha="center", va="center", parse_math=False)
        for part, draw in zip(whole.subfigures(number, 1, squeeze=False)[:, 0], panels, strict=False):
            draw(part.subplots(), report)
    return whole


def _draw_scores(axis: Axes, report: Report) -> None:
    """Draw mean and best score of the rounds by program calls, then what is expected of both programs."""
    rounds, c = report.history, report.comparison
    if rounds:
        calls = [i.program_calls for i in rounds]
        means, best = [i.mean_score for i in rounds], [i.best_score_so_far for i in rounds]
        axis.plot(calls, means, "o--", color=PALE, markersize=4, linewidth=1.2, label="mean of the round")
        axis.plot(calls, best, "s-", color=BLUE, markersize=4, label="best so far, estimated")
        axis.set_xlabel("program calls")
    else:
        axis.set_xticks([])
    if c is not None:
        total, (both, where) = report.program_calls["total"], scores_of_both(c)
        names = (("your program", GREY, 0.98), ("returned program", ORANGE, 1.02))
        for (name, color, place), scores in zip(names, both, strict=True):
            _draw_interval(axis, place * total, *scores, color=color, label=f"{name}, {where}")
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
