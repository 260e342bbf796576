"""A function that formats a report for the command line."""

import argparse

from plr_dspy.cli.fixes import in_options
from plr_dspy.report.details import details
from plr_dspy.report.formats import Advice
from plr_dspy.report.schema import ReportData


def details_in_options(report: ReportData, args: argparse.Namespace) -> str:
    """Return the text of `report.details()`, with options instead of Python arguments in lines of advice."""
    lines = []
    for line in details(report):
        lines.append(in_options(line, args) if isinstance(line, Advice) else line)
    return "\n".join(lines)
