"""The best arrangement found of each number of demos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plr_dspy.compilation.outcome import Outcome
from plr_dspy.optimizer.job import Job
from plr_dspy.orderings.space import Ordering
from plr_dspy.programs.pools import PoolSlots
from plr_dspy.report.report import Report
from plr_dspy.report.schema import BestOfNumber, SlotReport
from plr_dspy.scoring.objectives import SearchObjective
from plr_dspy.search.surrogate.fitted_model import Gain


@dataclass(frozen=True)
class Choice:
    """The best arrangement found of a number of demos.

    Attributes:
        ordering: The arrangement.
        score: What is expected of it on examples like those of the train split.
        num_examples: Examples that it was scored on.
        gain: What is expected of it beside the student; None where the student was not scored.
        offsets: That calibrate it; empty without log-probabilities.
    """

    ordering: Ordering
    score: float
    num_examples: int
    gain: Gain | None
    offsets: tuple[float, ...] = ()


def best_choices(job: Job, outcome: Outcome, objective: SearchObjective) -> dict[int, Choice]:
    """The best arrangement of each number of demos that was scored; the chosen one is that of its own number.

    The paper's algorithm chooses by the selection split alone: there, it is the best of the finalists.

    Args:
        job: What was compiled.
        outcome: What it found.
        objective: Knows all scores.
    """
    scores, model = objective.scores(), job.setup.search.model
    if not scores:
        number = outcome.comparison.num_examples if outcome.comparison else 0
        results = sorted(outcome.candidates, key=lambda result: -result.score)
        found = [Choice(each.finalist.ordering, each.score, number, each.gain) for each in results]
    else:
        fitted = model.fit(scores, kept=[outcome.ordering])
        gains = fitted.gains(job.original) if job.original in fitted.orderings else {}
        found = []
        for ordering, left in fitted.estimates():
            calibration = fitted.calibration(ordering)
            cost = 0.0 if model.cost is None else model.cost(ordering)
            offsets = () if calibration is None else calibration.offsets
            score, number = round(left + cost, 6), len(scores[ordering])
            found.append(Choice(ordering, score, number, gains.get(ordering), offsets))
    choices: dict[int, Choice] = {}
    for choice in sorted(found, key=lambda choice: choice.ordering != outcome.ordering):
        choices.setdefault(sum(map(len, choice.ordering)), choice)
    return dict(sorted(choices.items()))


def choice_of(choices: Mapping[int, Choice], num_demos: int) -> Choice:
    """The choice with a number of demos.

    Raises:
        ValueError: when nothing was scored with so many.
    """
    if num_demos not in choices:
        raise ValueError(f"num_demos must be one of {list(choices)}, which were scored; got {num_demos!r}")
    return choices[num_demos]


def with_choices(report: Report, job: Job, choices: Mapping[int, Choice]) -> Report:
    """The report with these choices, and with the origins of the demos."""
    slots = job.slots
    assert isinstance(slots, PoolSlots)
    best = [
        BestOfNumber(
            num_demos=shown,
            ordering={name: list(items) for name, items in slots.permutations(choice.ordering).items()},
            score=choice.score,
            gain=None if choice.gain is None else choice.gain.expected,
            gain_interval=None if choice.gain is None else choice.gain.interval,
            num_examples=choice.num_examples,
            tokens=slots.tokens(choice.ordering),
        )
        for shown, choice in choices.items()
    ]
    pools = {slot.predictor: slot for slot in slots.slots}

    def completed(slot: SlotReport) -> SlotReport:
        pool = pools[slot.predictor]
        return replace(slot, origins=[pooled.origin for pooled in pool.pool], original=list(pool.own))

    return replace(
        report,
        slots=[completed(slot) for slot in report.slots],
        best_by_number=best,
    )
