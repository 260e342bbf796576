"""The result of PLFewShot: the program, the front, and the report's entries on demos and instructions."""

from __future__ import annotations

from collections.abc import Callable

import dspy

from plr_dspy.compiling.choice import Outcome
from plr_dspy.compiling.run import CompileRun
from plr_dspy.optimizer.expected_scores import (
    compare_instructions,
    expected_scores,
    fitted_model,
    program_scores,
)
from plr_dspy.optimizer.front import Front, PromptPrices
from plr_dspy.optimizer.report_builder import FinishedProgram
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.checks import warn_of_json_obstacle
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.report.prompts import RetrievalReport
from plr_dspy.report.stop import StopReason
from plr_dspy.retrieval.slots import RetrievalSlots
from plr_dspy.search.space import Candidate, WholeProgram


def finish(
    setup: CompileSetup,
    run: CompileRun,
    outcome: Outcome,
    build_program: Callable[..., dspy.Module],
    *,
    min_probability: float | None,
) -> tuple[FinishedProgram, Front | None]:
    """Return the chosen program with entries for the report, and the front.

    The front is None after an error, or if nothing was scored.

    Args:
        build_program: A function that builds a candidate's program as it was scored.
        min_probability: As in `PLFewShot`.
    """
    slots = setup.slots
    assert isinstance(slots, PoolSlots)
    chosen = outcome.decision.candidate
    fitted = fitted_model(run, outcome)
    expected = expected_scores(slots, run, outcome, fitted)
    front = None
    # After an error, build no front, because some scores may come from failed calls.
    if fitted is not None and outcome.stop.reason is not StopReason.ERROR:
        front = Front(
            slots,
            expected,
            chosen,
            prices=PromptPrices(slots, setup.scored_examples, run.evaluator.tokens_in_order()),
            fitted=fitted,
            min_probability=min_probability,
            build_program=build_program,
        )
    program = build_program(chosen, outcome.decision.revision)
    warn_of_json_obstacle(program)
    finished = FinishedProgram(
        program,
        front=[] if front is None else front.entries(),
        programs=program_scores(slots, expected),
        instructions=compare_instructions(setup, slots, expected, outcome),
        retrieval=_retrieval_report(slots, chosen),
    )
    return finished, front


def _retrieval_report(slots: PoolSlots, chosen: Candidate) -> RetrievalReport | None:
    """Return the report's entry on retrieval, or None if the search tries only fixed demos."""
    if not isinstance(slots, RetrievalSlots):
        return None
    variation = slots.variation(chosen)
    return RetrievalReport(
        variation=chosen.name if isinstance(chosen, WholeProgram) and variation is not None else None,
        text=str(variation or ""),
        num_pooled=sum(len(pool.demos) for pool in slots.retrieval_pools.values()),
    )
