"""The figure of a report, which needs matplotlib."""

from __future__ import annotations

import io

from plr_dspy.errors import MissingPackageError
from plr_dspy.report.schema import ReportData

try:
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
    """Plot the scores of each round against program calls, then the scores of both programs with intervals."""
    picture = Picture(figsize=(7.0, 3.5), layout="constrained")
    axis = picture.subplots()
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
    return picture
