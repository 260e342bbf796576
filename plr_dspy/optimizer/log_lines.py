"""The package's log lines in the terminal, as DSPy shows its own."""

from __future__ import annotations

import logging

from dspy.utils.logging_utils import configure_dspy_loggers

from plr_dspy.runtime.progress_bar import shows_progress

PACKAGE = "plr_dspy"


def show_log_lines() -> None:
    """Show the package's log lines in DSPy's format and on its stream, which `dspy.disable_logging` turns off.

    They also go to whatever the user has configured, and then to that alone: nothing is shown twice.
    """
    logger = logging.getLogger(PACKAGE)
    level = logger.level
    configure_dspy_loggers(PACKAGE)
    logger.setLevel(level or logging.INFO)
    logger.propagate = True
    logger.handlers[-1].addFilter(_is_needed)


def _is_needed(record: logging.LogRecord) -> bool:
    """Whether nobody else shows the line, and it is a warning or the user wants to see how far things are."""
    configured = logging.root.handlers or len(logging.getLogger(PACKAGE).handlers) > 1
    return not configured and (record.levelno >= logging.WARNING or shows_progress.get())
