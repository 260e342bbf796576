"""Files of JSON lines: one JSON value a line, in UTF-8."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class CutOffLine(ValueError):
    """The last line has no line end and is no JSON, as a crash leaves it that cuts off what is written."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line that is not blank; the first line is number 1.

    Lines end at line feeds alone, because JSON may hold the other characters that `str.splitlines` takes for line
    ends. A byte order mark before the first line is left aside.

    Raises:
        CutOffLine: when the last line was cut off, after all others were yielded.
        ValueError: when any other line is no JSON. Both messages name the line and the file.
    """
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8"))
        except ValueError as error:
            message = f"line {number} of {path} is no JSON ({error}): mend or remove it"
            raise CutOffLine(message, number) if number == len(lines) else ValueError(message) from error
        yield number, value


def append_json_line(path: Path, line: bytes) -> None:
    """Add a line to a file, which is made where it is missing; the line is on disk when this returns."""
    with path.open("ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def mend_end(path: Path) -> None:
    """Make a file end with a whole line, so that the next one does not continue its last.

    A last line that was cut off is removed; one that lacks its line end alone is given it.
    """
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == len(content):
        return
    try:
        json.loads(content[whole:].decode("utf-8"))
    except ValueError:
        os.truncate(path, whole)
    else:
        with path.open("ab") as file:
            file.write(b"\n")
