"""The figure of a report, drawn with matplotlib."""

from __future__ import annotations

import io

from plr_dspy.errors import MissingPackageError
from plr_dspy.report.schema import ReportData

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingPackageError("plots need matplotlib: run pip install 'plr-dspy[plots]'") from error


class Picture(Figure):
    """A figure that notebooks can show without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def figure(report: ReportData) -> Picture:
    """Plot the scores of the rounds, the original and the returned program against program calls.

    If `report.front` has entries, also plot the best scores against the numbers of prompt tokens.
    """
    num_plots = 1 + bool(report.undominated)
    picture = Picture(figsize=(7.0 * num_plots, 3.5), layout="constrained")
    axis, *others = picture.subplots(ncols=num_plots, squeeze=False)[0]
    calls = [iteration.program_calls for iteration in report.history]
    means = [iteration.mean_score for iteration in report.history]
    best_scores = [iteration.best_score_so_far for iteration in report.history]
    axis.plot(calls, means, "o--", label="mean of the round")
    axis.plot(calls, best_scores, "s-", label="best so far, estimated")
    comparison = report.comparison
    if comparison is not None:
        programs = {
            "your program": comparison.expected_original,
            "returned program": comparison.expected_chosen,
        }
        position = 1.0 * report.program_calls["total"]
        for name, scores in programs.items():
            position *= 1.03
            _plot_score(axis, position, *scores, fmt="D", label=name)
    axis.set(xlabel="program calls", ylabel="score")
    axis.legend()
    for front_axis in others:
        for entry in report.undominated:
            interval = entry.interval or (entry.score, entry.score)
            marker = "D" if entry.is_returned else "o"
            _plot_score(
                front_axis, entry.prompt_tokens, entry.score, *interval, fmt=marker, label=entry.name
            )
        front_axis.set(xlabel="tokens of instructions and demos", ylabel="expected score")
        front_axis.legend()
    return picture


def _plot_score(
    axis: Axes, position: float, score: float, low: float, high: float, *, fmt: str, label: str
) -> None:
    errors = [[max(0.0, score - low)], [max(0.0, high - score)]]
    axis.errorbar([position], [score], yerr=errors, fmt=fmt, capsize=4, label=label)
