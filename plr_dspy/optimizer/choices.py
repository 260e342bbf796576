"""The best arrangement found of each number of demos."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.path import Compilation
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Ordering


@dataclass(frozen=True)
class Choice:
    """The best arrangement found of a number of demos.

    Attributes:
        score: What is expected of it on new examples: the score of what the user had, and the expected gain over it.
        num_examples: Examples that it was scored on.
        interval: Of 95 % for its score, as wide as so few examples of its own, and of what the user had, leave it; None
            where they are not known.
        offsets: Of the labels, that calibrate it; empty without log-probabilities.
    """

    ordering: Ordering
    score: float
    num_examples: int
    interval: tuple[float, float] | None = None
    offsets: tuple[float, ...] = ()


def best_choices(compilation: Compilation, outcome: Outcome) -> dict[int, Choice]:
    """The best arrangement of each number of demos that was scored; the chosen one is that of its own number.

    The paper's algorithm chooses by the selection split alone: there, it is the best of the finalists.
    """
    original, searched = compilation.original, compilation.known_scores()
    if searched:
        fitted = outcome.fitted or compilation.search.model.fit(searched, kept=[original, outcome.ordering])
        found = _estimated(fitted, original)
    else:
        number = outcome.comparison.num_examples if outcome.comparison else 0
        results = sorted(outcome.candidates, key=lambda result: -result.score)
        found = [Choice(result.finalist.ordering, result.score, number) for result in results]
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
        score, calibration = before if stays else expected[ordering], fitted.calibration(ordering)
        interval = fitted.interval(ordering, score, reference=reference)
        offsets = () if calibration is None or stays else calibration.offsets
        choices.append(Choice(ordering, round(score, 6), counts[ordering], interval, offsets))
    return choices
