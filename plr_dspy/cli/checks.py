"""Checks of what the command line was given, before anything is imported that takes its time, and log levels."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def check_count(value: int | None, option: str) -> None:
    """Raise unless an option's number is at least 1, or was not given."""
    if value is not None and value < 1:
        raise ValueError(f"--{option.replace('_', '-')} must be at least 1; got {value}")


def check_file(path: Path | None, what: str) -> None:
    """Raise unless a file is there, or none was named."""
    if path is not None and not path.is_file():
        raise ValueError(f"{what}: no file {path}")


def check_parent(path: Path | None) -> None:
    """Raise unless a file can be written because its folder is there, or none was named."""
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"no folder {path.parent}: make it first")


def check_key(variable: str | None) -> None:
    """Raise unless the environment variable that should hold a key does, or none was named."""
    if variable is not None and not os.environ.get(variable):
        raise ValueError(f"--api-key-env: the variable {variable} is not set")


def split_reference(reference: str, what: str) -> tuple[str, str]:
    """Split "FILE.py:NAME" or "MODULE:NAME" into the place and the name; a file must be there."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ValueError(f"{what}: expected FILE.py:NAME or MODULE:NAME; got {reference!r}")
    if place.endswith(".py"):
        check_file(Path(place), what)
    return place, name


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
