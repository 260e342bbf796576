"""The programs that a compile has compared, as DSPy's own optimizers leave them."""

from __future__ import annotations

from typing import Any

from plr_dspy.compilation.outcome import Outcome
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.copies import ProgramFactory


def candidate_programs(job: Job, outcome: Outcome, factory: ProgramFactory) -> list[dict[str, Any]]:
    """List the orders of the final comparison as dicts with "score", "program", "origin" and "ordering".

    `BootstrapFewShotWithRandomSearch`, `MIPROv2` and `SIMBA` leave such lists, which DSPy takes for no parts of a
    program. The chosen order comes first, the others by their expected gain.

    Args:
        job: What was compiled.
        outcome: What the compile found.
        factory: Copies the job's program.
    """
    ranked = sorted(
        enumerate(outcome.candidates),
        key=lambda ranked: (ranked[0] != outcome.chosen, -ranked[1].gain.expected, -ranked[1].score),
    )
    shares = () if outcome.calibration is None else outcome.calibration.shares
    candidates = []
    for _, result in ranked:
        ordering = result.finalist.ordering
        program = factory.build(job.slots.demos(ordering))
        program = job.optimizer.calibrated(job, program, result.offsets, shares)
        program._compiled = True
        orders = {name: list(permutation) for name, permutation in job.slots.permutations(ordering).items()}
        candidates.append(
            {"score": result.score, "program": program, "origin": result.finalist.origin, "ordering": orders}
        )
    return candidates
