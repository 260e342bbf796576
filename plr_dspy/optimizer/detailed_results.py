"""What a compiled program carries of its compile, by the names that DSPy's own optimizers use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import dspy


@dataclass(frozen=True)
class DetailedResults:
    """What a compile with ``track_stats=True`` leaves at ``detailed_results``, by the names that `dspy.GEPA` uses.

    The candidates are the orders of the final comparison: the chosen one first, the others by the gain that is expected
    of them on new examples. There are none where nothing was compared.

    Attributes:
        candidates: The program in each of these orders.
        orderings: These orders: demo indices by position, for each predictor.
        val_aggregate_scores: Mean scores on the selection split, all on the same examples.
        total_metric_calls: Program calls of the compile.
        num_full_val_evals: Number of orders that were compared.
        log_dir: Folder that keeps the calls; None for none.
        seed: Of everything random.
    """

    candidates: list[dspy.Module]
    orderings: list[dict[str, list[int]]]
    val_aggregate_scores: list[float]
    total_metric_calls: int
    num_full_val_evals: int
    log_dir: str | None
    seed: int

    @property
    def best_idx(self) -> int | None:
        """Number of the candidate that was chosen, which need not have the highest score; None where there are none."""
        return 0 if self.candidates else None

    @property
    def best_candidate(self) -> dspy.Module | None:
        """The candidate that was chosen; None where there are none."""
        return None if self.best_idx is None else self.candidates[self.best_idx]

    def to_dict(self) -> dict[str, Any]:
        """All but the programs, as plain data; in their place stand the orders."""
        data = asdict(replace(self, candidates=[]))
        return {**data, "candidates": data.pop("orderings"), "best_idx": self.best_idx}


def detailed_results(
    candidates: Sequence[Mapping[str, Any]], *, total_metric_calls: int, log_dir: str | None, seed: int
) -> DetailedResults:
    """Make detailed results of candidates as `candidate_programs` lists them; the rest is as there."""
    return DetailedResults(
        candidates=[candidate["program"] for candidate in candidates],
        orderings=[candidate["ordering"] for candidate in candidates],
        val_aggregate_scores=[candidate["score"] for candidate in candidates],
        total_metric_calls=total_metric_calls,
        num_full_val_evals=len(candidates),
        log_dir=log_dir,
        seed=seed,
    )


def without_results(program: dspy.Module) -> dspy.Module:
    """Take from a program what an earlier optimizer found beside it, and return the program.

    Every copy would hold copies of those programs; and a report is never twice the same, so that no `log_dir` would be
    found again.
    """
    attributes = vars(program)
    report, found = attributes.pop("reorder_report", None), attributes.get("candidate_programs")
    none_compared = isinstance(report, Mapping) and not report.get("candidates")
    if _are_candidates(found) and (found or none_compared):  # Other empty lists are of the user's own.
        del attributes["candidate_programs"]
    if isinstance(attributes.get("detailed_results"), DetailedResults):
        del attributes["detailed_results"]
    return program


def _are_candidates(value: Any) -> bool:
    """Whether this is a list of candidates as optimizers leave it, and nothing of the user's own."""
    if not isinstance(value, list):
        return False
    return all(isinstance(part, Mapping) and {"score", "program"} <= part.keys() for part in value)
