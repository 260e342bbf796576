"""The best arrangement found of each number of demos."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plr_dspy.compilation.outcome import Outcome
from plr_dspy.optimizer.bootstrapping import Attempt
from plr_dspy.optimizer.job import Job
from plr_dspy.orderings.space import Ordering
from plr_dspy.programs.pools import PoolSlots
from plr_dspy.report.report import Report
from plr_dspy.report.schema import BestOfNumber, SlotReport
from plr_dspy.scoring.objectives import SearchObjective


@dataclass(frozen=True)
class Choice:
    """The best arrangement found of a number of demos.

    Attributes:
        ordering: The arrangement.
        score: What is expected of it on examples like those of the train split.
        num_examples: Examples of the train split that it was scored on.
        offsets: That calibrate it; empty without log-probabilities.
    """

    ordering: Ordering
    score: float
    num_examples: int
    offsets: tuple[float, ...]


def best_choices(job: Job, outcome: Outcome, objective: SearchObjective) -> dict[int, Choice]:
    """The best arrangement of each number of demos that was scored; the chosen one is that of its own number.

    Args:
        job: What was compiled.
        outcome: What it found.
        objective: Knows all scores.
    """
    scores, model = objective.scores(), job.setup.search.model
    if not scores:
        return {}
    fitted = model.fit(scores, kept=[outcome.ordering])
    ranked = sorted(fitted.estimates(), key=lambda estimate: estimate.ordering != outcome.ordering)
    choices: dict[int, Choice] = {}
    for ordering, left in ranked:
        shown = sum(map(len, ordering))
        if shown not in choices:
            found = fitted.calibration(ordering)
            cost = 0.0 if model.cost is None else model.cost(ordering)
            offsets = () if found is None else found.offsets
            choices[shown] = Choice(ordering, round(left + cost, 6), len(scores[ordering]), offsets)
    return dict(sorted(choices.items()))


def with_choices(
    report: Report, job: Job, choices: Mapping[int, Choice], *, attempts: Sequence[Attempt]
) -> Report:
    """The report with these choices, the origins of the demos, and the calls that made some of them."""
    slots = job.slots
    assert isinstance(slots, PoolSlots)
    best = [
        BestOfNumber(
            num_demos=shown,
            ordering={name: list(items) for name, items in slots.permutations(choice.ordering).items()},
            score=choice.score,
            num_examples=choice.num_examples,
            tokens=slots.tokens(choice.ordering),
        )
        for shown, choice in choices.items()
    ]
    calls = report.program_calls
    if attempts:
        calls = {**calls, "bootstrap": len(attempts), "total": calls["total"] + len(attempts)}
    pools = {slot.predictor: slot for slot in slots.slots}

    def completed(slot: SlotReport) -> SlotReport:
        pool = pools[slot.predictor]
        return replace(slot, origins=[pooled.origin for pooled in pool.pool], original=list(pool.own))

    return replace(
        report,
        slots=[completed(slot) for slot in report.slots],
        best_by_number=best,
        program_calls=calls,
        tokens=_tokens(report.tokens, attempts),
    )


def _tokens(
    counts: Mapping[str, Mapping[str, int]], attempts: Sequence[Attempt]
) -> dict[str, dict[str, int]]:
    """Token counts with those of the attempts."""
    total: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for used in (counts, *(attempt.tokens for attempt in attempts)):
        for model, kinds in used.items():
            for kind, count in kinds.items():
                total[model][kind] += count
    return {model: dict(kinds) for model, kinds in total.items()}
