"""The results attached to a returned program, with the names used in DSPy's `DspyGEPAResult`."""

from typing import Any

from plr_dspy.compiling.choice import Decision
from plr_dspy.programs.attached_results import SCORES_OF_RESULTS
from plr_dspy.report.report import Report
from plr_dspy.report.schema import Candidate
from plr_dspy.search.space import WholeProgram


def detailed_results(report: Report, decision: Decision) -> dict[str, Any]:
    """Return the candidates and scores of the final comparison as plain data.

    Each candidate is a dict that contains its demos and instructions as text. DSPy's optimizers
    attach whole programs, but DSPy would save these programs as parts of the returned program.
    """
    candidates = []
    for candidate, result in zip(report.candidates, decision.results, strict=True):
        texts: dict[str, Any] = {"name": "", **_texts(report, candidate)}
        if isinstance(result.candidate, WholeProgram):
            # The report does not contain the demos of whole programs, so give only the name.
            texts = {"name": result.candidate.name, "demos": {}, "instructions": {}}
        gain = {"expected_gain": candidate.expected_gain, "probability": candidate.probability}
        candidates.append({**texts, **gain})
    return {
        "candidates": candidates,
        SCORES_OF_RESULTS: [candidate.score for candidate in report.candidates],
        "best_idx": decision.chosen,
        "total_metric_calls": report.program_calls["total"],
        "seed": report.settings["seed"],
    }


def _texts(report: Report, candidate: Candidate) -> dict[str, Any]:
    """Return a dict with a candidate's "demos" and "instructions", both keyed by predictor name."""
    demos = {}
    for slot in report.slots:
        demos[slot.predictor] = [slot.demos[number] for number in candidate.ordering[slot.predictor]]
    alternatives = {choice.predictor: choice.alternatives for choice in report.instructions}
    instructions = {
        name: alternatives[name][number].text for name, number in candidate.instructions.items()
    }
    return {"demos": demos, "instructions": instructions}
