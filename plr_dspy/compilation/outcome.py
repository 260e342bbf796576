"""What a compile found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plr_dspy.compilation.final_comparison import Result
from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import Iteration
from plr_dspy.report.schema import CalibrationEffect, Comparison, Evidence, Leaning
from plr_dspy.search.proposal import Distribution
from plr_dspy.search.surrogate.fitted_model import FittedModel


@dataclass(frozen=True)
class Outcome:
    """What a compile found.

    Attributes:
        ordering: The chosen one.
        distributions: The final distribution of each block.
        comparison: Chosen against original; None if nothing was compared.
        candidates: The finalists, with what chose among them.
        evidence: What there was to tell orderings apart by; None if the metric did not score them.
        history: Rounds of the search.
        program_calls: Program calls by phase, as in `Report`.
        stopped: Why the search ended.
        leaning: How often the original order and the chosen one answer each label; None where it is not known.
        calibration: What calibration does to both; None where it is not known.
        chosen: The number of the candidate that is the chosen one; None if nothing was compared.
        offsets: Of the labels, that calibrate the chosen one; empty where it is not to be calibrated.
        fitted: The model of all scores, those of the final comparison included; None if nothing was compared.
    """

    ordering: Ordering
    distributions: Sequence[Distribution]
    comparison: Comparison | None
    candidates: list[Result]
    evidence: Evidence | None
    history: list[Iteration]
    program_calls: dict[str, int]
    stopped: str
    leaning: Leaning | None = None
    calibration: CalibrationEffect | None = None
    chosen: int | None = None
    offsets: tuple[float, ...] = ()
    fitted: FittedModel | None = None
