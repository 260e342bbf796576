"""The package's log lines in the terminal, as DSPy shows its own."""

from __future__ import annotations

import logging
import sys

from plr_dspy.runtime.terminal import shows_progress

PACKAGE = "plr_dspy"

# As DSPy has them.
HANDLER = "dspy_handler"
LINE_FORMAT, TIME_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y/%m/%d %H:%M:%S"


def show_log_lines() -> None:
    """Show the package's log lines in DSPy's format and on its stream, which `dspy.disable_logging` turns off.

    They also go to whatever the user has configured, and then to that alone: nothing is shown twice.
    """
    logger = logging.getLogger(PACKAGE)
    for handler in [handler for handler in logger.handlers if handler.name == HANDLER]:
        logger.removeHandler(handler)
    handler = logging.StreamHandler(_DSPyStream())
    handler.setFormatter(logging.Formatter(LINE_FORMAT, TIME_FORMAT))
    handler.set_name(HANDLER)
    handler.addFilter(_is_needed)
    logger.addHandler(handler)
    logger.setLevel(logger.level or logging.INFO)


class _DSPyStream:
    """The stream of DSPy's log lines; DSPy is imported when there is a line to show, for it takes its time."""

    def write(self, text: str) -> None:
        from dspy.utils.logging_utils import DSPY_LOGGING_STREAM

        DSPY_LOGGING_STREAM.write(text)

    def flush(self) -> None:
        sys.stderr.flush()  # what DSPy's stream writes to; Python calls this at its end, whatever was written


def _is_needed(record: logging.LogRecord) -> bool:
    """Whether nobody else shows the line, and it is a warning or the user wants to see how far things are."""
    configured = logging.root.handlers or len(logging.getLogger(PACKAGE).handlers) > 1
    return not configured and (record.levelno >= logging.WARNING or shows_progress.get())
