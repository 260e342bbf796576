"""The report of a compile: plain data that saves to JSON, pictures, and a page."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from plr_dspy.orderings.trials import Iteration
from plr_dspy.report import html, text
from plr_dspy.report.schema import (
    BestOfNumber,
    CalibrationEffect,
    Candidate,
    Comparison,
    ErrorCount,
    Evidence,
    Signal,
    SlotReport,
)
from plr_dspy.runtime.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA_VERSION = 10
"""The version of the JSON format."""


@dataclass(frozen=True)
class Report:
    """What a compile did and found.

    Attributes:
        slots: The predictors whose demos were ordered.
        distinct_prompts: Number of orderings that render to different prompts.
        comparison: Chosen against original order; None if there was nothing to order, or no time for it.
        candidates: Orderings of the final comparison.
        evidence: What there was to tell orders apart by; None where the metric did not score them.
        signal: What the search learnt from a call; None where the metric did not score orders.
        calibration: What calibration does to the original order and to the chosen one; None where the calls brought no
            log-probabilities. With ``calibrate`` in the settings, all scores are those of calibrated answers, but for
            those of the history.
        history: Rounds of the search.
        program_calls: Program calls made: those that made demos ("bootstrap"), those by the "search", by the "race" of
            its best orders, by the final comparison ("final") beside those of the "original" order there, and in
            "total"; and those of the total that `log_dir` held from before: "resumed".
        tokens: Billed tokens by model, as the provider reports them.
        cost: US dollars for them, by the list prices that come with litellm; None where no price is known for a model.
        seconds: Wall-clock time of the compile; of the last part of it, where it was resumed.
        errors: Cells that raised, by type.
        stopped: Why the search ended; "interrupted", or "ended by" an exception, where the compile did.
        settings: Everything that decides the run, the seed included.
        plr_dspy_version, dspy_version, schema_version: What wrote this.
        best_by_number: Where demos were chosen, the best arrangement found of each number of them.
    """

    slots: list[SlotReport]
    distinct_prompts: float
    comparison: Comparison | None
    candidates: list[Candidate]
    evidence: Evidence | None
    signal: Signal | None
    calibration: CalibrationEffect | None
    history: list[Iteration]
    program_calls: dict[str, int]
    tokens: dict[str, dict[str, int]]
    cost: float | None
    seconds: float
    errors: list[ErrorCount]
    stopped: str
    settings: dict[str, Any]
    plr_dspy_version: str
    dspy_version: str
    schema_version: int = SCHEMA_VERSION
    best_by_number: list[BestOfNumber] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data (dicts, lists, strings, numbers)."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """Make a report from what `to_dict` returned.

        Raises:
            ValueError: when the data are no report, or one of another schema version.
        """
        version = data.get("schema_version")
        if version is None:
            raise ValueError("expected a plr_dspy report; got data without a schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"expected a report of schema version {SCHEMA_VERSION}; got {version!r}: "
                "read it with the plr_dspy version that wrote it"
            )
        return _REPORT.validate_python(data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON; the file appears whole or not at all."""
        write_atomically(Path(path), _REPORT.dump_json(self, indent=2) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read a report that `save` wrote.

        Raises:
            ValueError: when the file holds no report, or one of another schema version.
        """
        try:
            data = TypeAdapter(dict[str, Any]).validate_json(Path(path).read_bytes())
            return cls.from_dict(data)
        except ValueError as error:
            told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise ValueError(
                f"{os.fspath(path)} holds no plr_dspy report that can be read: {told}"
            ) from error

    def plot(self) -> Figure:
        """Draw what the search did and learnt.

        Scores by program calls, the agreement of each round's elites, and for each predictor where the final
        distribution puts each demo, and its most probable orders.

        Returns:
            A figure that no window knows; notebooks show it, `savefig` writes it.

        Raises:
            ImportError: without matplotlib, which is in the extra `plots`.
        """
        from plr_dspy.report.figures import figure

        return figure(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page with all that the report holds; the file appears whole or not at all.

        It needs nothing else: no script, and nothing from any other address.

        Raises:
            ImportError: without matplotlib, which is in the extra `plots`.
        """
        write_atomically(Path(path), html.page(self).encode())

    def _repr_html_(self) -> str:
        """Write what notebooks show: a sentence, and a small table."""
        return html.excerpt(self)

    def __repr__(self) -> str:
        return f"<Report of {self.settings.get('method', 'PLReorder')}: {text.result(self)}>"

    def __str__(self) -> str:
        return text.summary(self)


_REPORT = TypeAdapter(Report)
