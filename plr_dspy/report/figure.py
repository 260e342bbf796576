"""Draws the figure of a report. This module needs matplotlib."""

from __future__ import annotations

import io
from typing import Any

from plr_dspy.errors import MissingPackageError
from plr_dspy.report.schema import ReportData, ScoreRange

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingPackageError("pictures need matplotlib: pip install 'plr-dspy[plots]'") from error

# The size of a panel in inches.
WIDTH = 7.0
HEIGHT = 3.0
# These colours differ even for readers who cannot tell red from green.
BLUE = "#2b7fc4"
PALE_BLUE = "#6aa9dd"
ORANGE = "#e07b00"
GREY = "#80868f"

STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.labelsize": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
}


class Picture(Figure):
    """A figure that notebooks show although pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def figure(report: ReportData) -> Picture:
    """Draw the panels that the report has data for."""
    panels = []
    if report.comparison is not None or report.history:
        panels.append(_draw_scores)
    if report.best_by_number:
        panels.append(_draw_numbers)
    num_rows = max(1, len(panels))
    with matplotlib.rc_context(STYLE):
        picture = Picture(figsize=(WIDTH, HEIGHT * num_rows), layout="constrained")
        if not panels:
            picture.text(0.5, 0.5, f"Nothing to show: {report.stopped}", ha="center", va="center", parse_math=False)
        rows = picture.subfigures(num_rows, 1, squeeze=False)[:, 0]
        for row, draw in zip(rows, panels, strict=False):
            draw(row.subplots(), report)
    return picture


def _draw_scores(axis: Axes, report: ReportData) -> None:
    """Draw the scores of the rounds by program calls, then the expected scores of both programs."""
    if report.history:
        _draw_rounds(axis, report)
    else:
        axis.set_title("Final comparison")
        axis.set_xticks([])
    comparison = report.comparison
    if comparison is not None:
        total = report.program_calls["total"]
        original, chosen = comparison.score_ranges
        where = comparison.scored_on
        _draw_interval(axis, 0.98 * total, original, color=GREY, label=f"your program, {where}")
        _draw_interval(axis, 1.02 * total, chosen, color=ORANGE, label=f"returned program, {where}")
    axis.set_ylabel("score")
    axis.figure.legend(loc="outside lower center", ncols=2)


def _draw_rounds(axis: Axes, report: ReportData) -> None:
    """Draw the mean and the best score of the rounds."""
    calls = [iteration.program_calls for iteration in report.history]
    means = [iteration.mean_score for iteration in report.history]
    best_scores = [iteration.best_score_so_far for iteration in report.history]
    axis.plot(calls, means, "o--", color=PALE_BLUE, markersize=4, linewidth=1.2, label="mean of the round")
    axis.plot(calls, best_scores, "s-", color=BLUE, markersize=4, label="best so far, estimated")
    axis.set_xlabel("program calls")
    axis.set_title("Score by program calls")


def _draw_interval(axis: Axes, place: float, score_range: ScoreRange, **options: Any) -> None:
    """Draw a score with its interval."""
    score, low, high = score_range
    errors = [[max(0.0, score - low)], [max(0.0, high - score)]]
    axis.errorbar([place], [score], yerr=errors, fmt="D", capsize=4, **options)


def _draw_numbers(axis: Axes, report: ReportData) -> None:
    """Draw the best score of each number of demos, with its interval."""
    chosen = report.chosen_of_number
    for best in report.best_by_number:
        color = ORANGE if best is chosen else GREY
        low, high = best.interval or (best.score, best.score)
        _draw_interval(axis, best.num_demos, (best.score, low, high), color=color)
    axis.locator_params("x", integer=True, min_n_ticks=1)
    axis.set_xlabel("demos (orange: chosen)")
    axis.set_ylabel("score, 95 % interval")
    axis.set_title("Best score of each number of demos")
