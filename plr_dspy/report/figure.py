"""Draws the figure of a report. This module needs matplotlib."""

from __future__ import annotations

import io
from typing import Any

from plr_dspy.errors import MissingPackageError
from plr_dspy.report.schema import Alternative, ReportData, ScoreRange

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingPackageError("pictures need matplotlib: pip install 'plr-dspy[plots]'") from error


class Picture(Figure):
    """A figure that notebooks show although pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def figure(report: ReportData) -> Picture:
    """Draw the scores by program calls, and by number of demos if demos were chosen."""
    num_rows = 1
    if report.best_by_number:
        num_rows = 2
    picture = Picture(figsize=(7.0, 3.5 * num_rows), layout="constrained")
    axes = picture.subplots(num_rows, 1, squeeze=False)[:, 0]
    _draw_scores(axes[0], report)
    if report.best_by_number:
        _draw_numbers(axes[1], report.best_by_number, report.chosen_of_number)
    return picture


def _draw_scores(axis: Axes, report: ReportData) -> None:
    """Draw the scores of the rounds by program calls, then the expected scores of both programs."""
    calls = [iteration.program_calls for iteration in report.history]
    means = [iteration.mean_score for iteration in report.history]
    best_scores = [iteration.best_score_so_far for iteration in report.history]
    axis.plot(calls, means, "o--", label="mean of the round")
    axis.plot(calls, best_scores, "s-", label="best so far, estimated")
    comparison = report.comparison
    if comparison is not None:
        total = report.program_calls["total"]
        original = comparison.expected_original or (comparison.original,) * 3
        chosen = comparison.expected_chosen or (comparison.chosen,) * 3
        _draw_interval(axis, 0.98 * total, original, color="grey", label="your program")
        _draw_interval(axis, 1.02 * total, chosen, color="red", label="returned program")
    axis.set_xlabel("program calls")
    axis.set_ylabel("score")
    axis.legend()


def _draw_numbers(axis: Axes, best_by_number: list[Alternative], chosen: Alternative | None) -> None:
    """Draw the best score of each number of demos, with its interval."""
    for best in best_by_number:
        color = "red" if best is chosen else "grey"
        low, high = best.interval or (best.score, best.score)
        _draw_interval(axis, best.num_demos, (best.score, low, high), color=color)
    axis.set_xlabel("demos (red: chosen)")
    axis.set_ylabel("score, 95 % interval")


def _draw_interval(axis: Axes, place: float, score_range: ScoreRange, **options: Any) -> None:
    """Draw a score with its interval."""
    score, low, high = score_range
    errors = [[max(0.0, score - low)], [max(0.0, high - score)]]
    axis.errorbar([place], [score], yerr=errors, fmt="D", capsize=4, **options)
