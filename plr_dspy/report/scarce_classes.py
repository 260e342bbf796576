"""A report's warnings about classes with too few demos."""

from __future__ import annotations

from collections.abc import Iterator

from plr_dspy.report.formats import listed
from plr_dspy.report.rules import MAX_ATTEMPTS
from plr_dspy.report.schema import ReportData

MAX_CLASSES = 10  # maximum number of classes to name
BOOTSTRAPPED = "bootstrapped from"  # prefix of the origins of bootstrapped demos


def scarce_classes(report: ReportData) -> Iterator[str]:
    """Name the classes with fewer demos than `min_per_class`, and say how to get more demos."""
    for predictor, numbers in report.scarce_classes.items():
        names = listed((f"{label!r} ({number})" for label, number in numbers.items()), MAX_CLASSES)
        yield (
            f"predictor {predictor!r} has fewer than min_per_class={report.settings['min_per_class']} candidate demos "
            f"for {names}: {_how_to_add_demos(report, predictor)}"
        )


def _how_to_add_demos(report: ReportData, predictor: str) -> str:
    """Say how a predictor can get more demos of scarce classes."""
    candidates = report.settings.get("candidates")
    if candidates in ("labeled", "both"):
        return "pass more examples of these classes"
    if candidates != "bootstrapped":
        return "add demos of these classes to candidates"
    max_bootstrapped = report.settings["max_bootstrapped"]
    origins = next((slot.origins for slot in report.slots if slot.predictor == predictor), [])
    num_bootstrapped = sum(origin.startswith(BOOTSTRAPPED) for origin in origins)
    num_attempts = report.program_calls.get("bootstrap", 0)
    if num_bootstrapped < max_bootstrapped and num_attempts < MAX_ATTEMPTS * max_bootstrapped:
        return "pass more examples of these classes, or a teacher that answers them correctly"
    minimum = report.settings["min_per_class"]
    num_missing = sum(minimum - number for number in report.scarce_classes[predictor].values())
    return f"increase max_bootstrapped, for example to {max_bootstrapped + num_missing}"
