"""Levels of log lines while a command runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def logged(levels: Mapping[str, int]) -> Iterator[None]:
    """Set the levels of some loggers while this context lasts."""
    before = {name: logging.getLogger(name).level for name in levels}
    try:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
