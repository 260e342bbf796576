"""The best arrangement found of each number of demos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.path import Compilation
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.report.data import BestOfNumber, Report, SlotReport
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Ordering


@dataclass(frozen=True)
class Choice:
    """The best arrangement found of a number of demos.

    Attributes:
        ordering: The arrangement.
        score: What is expected of it on new examples: the score of what the user had, and the expected gain over it.
        num_examples: Examples that it was scored on.
        interval: Of 95 % for its score, as wide as so few examples of its own, and of what the user had, leave it; None
            where they are not known.
        offsets, shares: Of the labels: what calibrates it, and what to; empty without log-probabilities.
    """

    ordering: Ordering
    score: float
    num_examples: int
    interval: tuple[float, float] | None = None
    offsets: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()


def best_choices(compilation: Compilation, outcome: Outcome) -> dict[int, Choice]:
    """The best arrangement of each number of demos that was scored; the chosen one is that of its own number.

    The paper's algorithm chooses by the selection split alone: there, it is the best of the finalists.

    Args:
        compilation: Ended; it knows all scores.
        outcome: What it found.
    """
    original, searched = compilation.original, compilation.known_scores()
    if searched:
        fitted = outcome.fitted or compilation.search.model.fit(searched, kept=[original, outcome.ordering])
        found = _estimated(fitted, original)
    else:
        number = outcome.comparison.num_examples if outcome.comparison else 0
        results = sorted(outcome.candidates, key=lambda result: -result.score)
        found = [Choice(result.ordering, result.score, number) for result in results]
    choices: dict[int, Choice] = {}
    for choice in sorted(found, key=lambda choice: choice.ordering != outcome.ordering):
        choices.setdefault(sum(map(len, choice.ordering)), choice)
    return dict(sorted(choices.items()))


def _estimated(fitted: FittedModel, original: Ordering) -> list[Choice]:
    """All arrangements that were scored, the best first.

    A score is that of the original as it is and the gain over it, so that the interval has the error of both means.
    """
    counts = dict(zip(fitted.orderings, (~np.isnan(fitted.table)).sum(axis=1).tolist(), strict=True))
    best_first = [estimate.ordering for estimate in fitted.estimates()]
    reference = original if original in counts else best_first[0]
    before, expected = fitted.as_it_is(reference), fitted.expected_scores(reference)
    choices = []
    for ordering in best_first:
        stays = ordering == reference and before >= expected[ordering]  # and is not calibrated
        score, number = before if stays else expected[ordering], counts[ordering]
        interval = fitted.interval(ordering, score, reference=reference)
        calibration = fitted.calibration(ordering)
        offsets = () if calibration is None or stays else calibration.offsets
        choices.append(Choice(ordering, round(score, 6), number, interval, offsets, tuple(fitted.shares)))
    return choices


def with_choices(report: Report, job: Job, choices: Mapping[int, Choice]) -> Report:
    """The report with these choices, and with the origins of the demos."""
    slots = job.slots
    assert isinstance(slots, PoolSlots)
    best = [
        BestOfNumber(
            num_demos=shown,
            ordering={name: list(items) for name, items in slots.permutations(choice.ordering).items()},
            score=choice.score,
            interval=choice.interval,
            num_examples=choice.num_examples,
            tokens=slots.tokens(choice.ordering),
        )
        for shown, choice in choices.items()
    ]
    pools = {slot.predictor: slot for slot in slots.slots}

    def completed(slot: SlotReport) -> SlotReport:
        return slot.model_copy(update={"origins": [pooled.origin for pooled in pools[slot.predictor].pool]})

    return report.model_copy(
        update={"slots": [completed(slot) for slot in report.slots], "best_by_number": best}
    )
