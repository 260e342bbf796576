"""The report of a compile run, to print, save, load and plot."""

from __future__ import annotations

import json
import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from plr_dspy.errors import UserError
from plr_dspy.report import text
from plr_dspy.report.details import details
from plr_dspy.report.schema import READABLE_VERSIONS, ReportData
from plr_dspy.runtime import write_atomically

if TYPE_CHECKING:
    from plr_dspy.report.figure import Picture


class Report(ReportData):
    """The report of a compile run.

    `print(report)` shows a summary, and `print(report.details())` adds the details.
    `ReportData` in `plr_dspy.report.schema` documents the attributes.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of built-in types."""
        return self.model_dump()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a JSON file. An existing file is replaced atomically."""
        write_atomically(Path(path), self.model_dump_json(indent=2).encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read a report that `save` wrote.

        Raises:
            ValueError: If the file is not a report, or if its schema version is not supported.
        """
        content = Path(path).read_bytes()
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise _loading_error(os.fspath(path), content) from error

    def details(self) -> str:
        """Return all lines of the report, starting with those of `print(report)`."""
        return "\n".join(details(self))

    def plot(self) -> Picture:
        """Plot the report with matplotlib, which the extra `plots` installs."""
        from plr_dspy.report.figure import figure

        return figure(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return f"<Report of {text.method(self)}: {text.result(self)}>"

    def __str__(self) -> str:
        return "\n".join([*text.summary(self), "details: print(report.details())"])


def _loading_error(path: str, content: bytes) -> UserError:
    """Return an error that states why the file at `path` cannot be loaded."""
    try:
        data = json.loads(content)
    except ValueError:
        data = None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version is None or version in READABLE_VERSIONS:
        return UserError(f"{path} is not a plr_dspy report: pass a file written by report.save")
    return UserError(
        f"{path} must have a schema version from {READABLE_VERSIONS[0]} to {READABLE_VERSIONS[-1]}; got {version!r}: "
        "load it with the plr_dspy version that wrote it"
    )
