"""Parts of a report's text that compare programs with each other and with simpler methods."""

from __future__ import annotations

from collections.abc import Iterator

from plr_dspy.report.formats import listed
from plr_dspy.report.schema import Alternative, Candidate, Comparison, ReportData

MAX_NAMED = 10  # maximum number of labels to name
CLOSE = 0.01  # relative difference up to which two scores are treated as equal


def is_no_better(report: ReportData, score: float, baseline: Alternative) -> bool:
    """Return whether a program with this score is expected to be no better than a simpler method."""
    margin = CLOSE * max(abs(score), abs(baseline.score))
    original = report.original
    # `demo_tokens` is None if only the order of the student's demos was searched.
    shows_as_many = original.demo_tokens is not None and original.num_demos == baseline.num_demos
    if baseline is report.random and report.original_stays and shows_as_many:
        # The student's demos may also be random, so report the baseline only if it scores higher.
        return baseline.score > score + margin
    return score <= baseline.score + margin


def how_to_calibrate(report: ReportData) -> Iterator[str]:
    """Recommend calibration without a search if `calibrate` was set but the result is uncalibrated."""
    if report.settings.get("calibrate") and not report.is_calibrated:
        yield (
            f"{optimizer_that_calibrates(report)} calibrates your program, or random demos, without a search: compare "
            "the results with evaluate_programs"
        )


def optimizer_that_calibrates(report: ReportData) -> str:
    """Return Python code for an optimizer that calibrates with the report's metric."""
    if report.has_set_metric:
        return f"BatchCalibration(metric={report.settings['metric']})"
    return "BatchCalibration"


def failed_comparisons(candidate: Candidate, odds: float, min_probability: float | None) -> list[str]:
    """Return the names of the programs that a candidate is not likely enough to beat.

    Return an empty list if the candidate was not compared with the calibrated original.
    """
    if candidate.over_calibrated is None or candidate.worse_than_calibrated is None:
        return []
    comparisons = {
        "your program": (candidate.probability, candidate.probability_worse),
        "your program, calibrated": (candidate.over_calibrated, candidate.worse_than_calibrated),
    }
    failed = []
    for name, (better, worse) in comparisons.items():
        is_likely = better >= odds * worse if min_probability is None else better >= min_probability
        if not is_likely or not better:
            failed.append(name)
    return failed


def unseen_labels(comparison: Comparison) -> Iterator[str]:
    """Yield a line that names the labels that scores and gains ignore, if there are any."""
    if comparison.unseen_labels:
        names = listed(map(repr, comparison.unseen_labels), MAX_NAMED)
        yield (
            f"labels without a compared example: {names}; scores and gains ignore them, and intervals of scores treat "
            "answers to examples with these labels as unknown"
        )


def scores_of_finalists(report: ReportData, comparison: Comparison, *, name: str) -> str:
    """Format the scores of the student, called `name`, and of the other finalists."""
    scores = f"{name} {comparison.original:.3f}"
    others = [f"{candidate.score:.3f}" for candidate in report.candidates[1:]]
    if others:
        scores += f"; the other finalists {', '.join(others)}"
    return scores
