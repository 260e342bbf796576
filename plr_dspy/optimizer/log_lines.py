"""The package's log lines in the terminal, as DSPy shows its own."""

from __future__ import annotations

import logging

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
    for earlier in [handler for handler in logger.handlers if handler.name == HANDLER]:
        logger.removeHandler(earlier)
    handler = _DSPyHandler()
    handler.setFormatter(logging.Formatter(LINE_FORMAT, TIME_FORMAT))
    handler.set_name(HANDLER)
    logger.addHandler(handler)
    logger.setLevel(logger.level or logging.INFO)


class _DSPyHandler(logging.Handler):
    """Shows what nobody else shows: warnings, and where the user wants to see how far things are, all lines."""

    def emit(self, record: logging.LogRecord) -> None:
        configured = logging.root.handlers or len(logging.getLogger(PACKAGE).handlers) > 1
        if configured or not (record.levelno >= logging.WARNING or shows_progress.get()):
            return
        try:
            from dspy.utils.logging_utils import DSPY_LOGGING_STREAM  # not before, for DSPy takes its time

            DSPY_LOGGING_STREAM.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)
