"""The figure of a report, which needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence

from plr_dspy.errors import MissingPackageError
from plr_dspy.report.schema import FrontEntry, ReportData

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingPackageError("plots need matplotlib: pip install 'plr-dspy[plots]'") from error


class Picture(Figure):
    """A figure that notebooks can show without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def figure(report: ReportData) -> Picture:
    """Plot scores against program calls, and of the cheapest prompts against their tokens if there are any."""
    num_axes = 2 if report.undominated else 1
    picture = Picture(figsize=(7.0 * num_axes, 3.5), layout="constrained")
    axes = picture.subplots(ncols=num_axes, squeeze=False)[0]
    _plot_rounds(axes[0], report)
    if report.undominated:
        _plot_front(axes[1], report.undominated)
    return picture


def _plot_front(axis: Axes, front: Sequence[FrontEntry]) -> None:
    """Plot the scores of prompts against their tokens, with intervals."""
    for entry in front:
        low, high = entry.interval or (entry.score, entry.score)
        errors = [[max(0.0, entry.score - low)], [max(0.0, high - entry.score)]]
        style = "D" if entry.is_returned else "o"
        axis.errorbar([entry.prompt_tokens], [entry.score], yerr=errors, fmt=style, capsize=4, label=entry.name)
    axis.set_xlabel("tokens of instructions and demos")
    axis.set_ylabel("expected score")
    axis.legend()


def _plot_rounds(axis: Axes, report: ReportData) -> None:
    """Plot the scores of each round against program calls, then the scores of both programs with intervals."""
    calls = [iteration.program_calls for iteration in report.history]
    means = [iteration.mean_score for iteration in report.history]
    best_scores = [iteration.best_score_so_far for iteration in report.history]
    axis.plot(calls, means, "o--", label="mean of the round")
    axis.plot(calls, best_scores, "s-", label="best so far, estimated")
    comparison = report.comparison
    if comparison is not None:
        programs = {
            "your program": comparison.expected_original or (comparison.original,) * 3,
            "returned program": comparison.expected_chosen or (comparison.chosen,) * 3,
        }
        position = 1.0 * report.program_calls["total"]
        for name, (score, low, high) in programs.items():
            position *= 1.03
            errors = [[max(0.0, score - low)], [max(0.0, high - score)]]
            axis.errorbar([position], [score], yerr=errors, fmt="D", capsize=4, label=name)
    axis.set_xlabel("program calls")
    axis.set_ylabel("score")
    axis.legend()
