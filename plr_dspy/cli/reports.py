"""The text of a report on the command line."""

import argparse

from plr_dspy.cli.fixes import in_options
from plr_dspy.report.details import details
from plr_dspy.report.formats import Advice
from plr_dspy.report.schema import ReportData


def details_in_options(report: ReportData, args: argparse.Namespace) -> str:
    """Return the lines of `report.details()`, with options in place of Python's arguments in advice."""
    lines = []
    for line in details(report):
        lines.append(in_options(line, args) if isinstance(line, Advice) else line)
    return "\n".join(lines)
