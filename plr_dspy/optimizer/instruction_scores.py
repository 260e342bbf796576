"""Expected scores of instructions: the report's entries on them."""

from collections.abc import Sequence
from typing import Any

from plr_dspy.compiling.choice import Outcome
from plr_dspy.optimizer.expected_scores import ExpectedScore
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.instructions import Instruction
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.report.schema import InstructionReport, InstructionScore
from plr_dspy.search.space import WholeProgram


def compare_instructions(
    setup: CompileSetup, slots: PoolSlots, expected: Sequence[ExpectedScore], outcome: Outcome
) -> list[InstructionReport]:
    """Compare each predictor's instructions by the best arrangement with each; the chosen one takes precedence."""
    chosen = slots.instructions(outcome.decision.ordering)
    best: dict[tuple[str, int], ExpectedScore] = {}
    for score in sorted(expected, key=lambda score: score.candidate != outcome.decision.ordering):
        if not isinstance(score.candidate, WholeProgram):
            for key in slots.instructions(score.candidate).items():
                best.setdefault(key, score)
    states = [distribution.state_dict() for distribution in outcome.distributions[len(slots.slots) :]]
    by_predictor = dict(zip(slots.alternatives, states, strict=True))
    reports = []
    for name in {**slots.alternatives, **setup.dropped_instructions}:
        instructions = slots.alternatives.get(name, ())
        report = InstructionReport(
            predictor=name,
            chosen=chosen.get(name, 0),
            alternatives=[_scored(text, best.get((name, number))) for number, text in enumerate(instructions)],
            dropped=[_scored(instruction, None) for instruction in setup.dropped_instructions.get(name, ())],
            distribution=by_predictor.get(name, {}),
        )
        reports.append(report)
    return reports


def _scored(instruction: Instruction, best: ExpectedScore | None) -> InstructionScore:
    scores: dict[str, Any] = {}
    if best is not None:
        scores = {"score": round(best.score, 6), "interval": best.interval, "num_examples": best.num_examples}
    return InstructionScore(**vars(instruction), **scores)
