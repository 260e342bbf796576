"""Chooses among the orders or arrangements of demos that a landscape holds, where a search would want others."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from recorded import RecordedLandscape

from plr_dspy import OrderingSpace
from plr_dspy.programs.splits import mixed
from plr_dspy.search.space import Ordering
from plr_dspy.search.surrogate.arrangement_features import FAMILIES
from plr_dspy.search.surrogate.label_responses import LabelResponses
from plr_dspy.search.surrogate.model import OrderingModel

LOOK = {"score": 4, "logprobs": 2}
"""Examples of an order's first look, and of each further one."""

NUM_BEST = 12
"""Orders that get a further look before the model is fitted again."""


class Looks:
    """The scores of orders on examples of a pool, bought a few at a time within a budget of calls.

    Orders begin at different examples, and each prefix has the classes evenly mixed.

    Attributes:
        scores: By example of each order looked at.
    """

    def __init__(self, landscape: RecordedLandscape, size: int, *, look: int, budget: int, seed: int) -> None:
        labels = [b"%d" % kind for kind in landscape.example_classes]
        self._turn = mixed(range(size), labels, random.Random(seed), balanced=True)
        self._landscape, self._look, self._budget = landscape, look, budget
        self._begins: dict[Ordering, int] = {}
        self.scores: dict[Ordering, dict[int, float]] = {}

    @property
    def calls(self) -> int:
        return sum(map(len, self.scores.values()))

    def is_left(self, ordering: Ordering) -> bool:
        """Whether there are examples that the order has no score on."""
        return len(self.scores[ordering]) < len(self._turn)

    def look_at(self, ordering: Ordering) -> None:
        """Score an order on the next few examples, if the budget pays for any."""
        left, known = self._budget - self.calls, self.scores.get(ordering, {})
        begin = self._begins.setdefault(ordering, len(self._begins) * self._look) + len(known)
        answers = self._landscape.answers(ordering[0])
        for step in range(min(self._look, left, len(self._turn) - len(known))):
            example = self._turn[(begin + step) % len(self._turn)]
            self.scores.setdefault(ordering, {})[example] = float(answers[example])


def model_of(landscape: RecordedLandscape, *, signal: str) -> OrderingModel:
    """The model that learns from a signal; of arrangements of a few demos out of many, one without features."""

    def log_probabilities(ordering: Ordering, example: int) -> Sequence[float]:
        values: Sequence[float] = landscape.log_probabilities(ordering[0])[example]
        return values

    is_all = landscape.num_demos == len(landscape.classes)
    return OrderingModel(
        OrderingSpace.of_sizes(landscape.num_demos),
        classes=[landscape.classes] if is_all else None,
        example_classes=landscape.example_classes,
        families=FAMILIES if is_all else (),
        responses=LabelResponses(landscape.label_scores, log_probabilities) if signal == "logprobs" else None,
    )


def chosen(
    landscape: RecordedLandscape, recorded: Sequence[tuple[int, ...]], *, budget: int, signal: str, seed: int
) -> tuple[tuple[int, ...], int]:
    """Spend a budget on the first half of a landscape's examples.

    Half of it buys a first look at random orders, the rest further looks at those that the model deems best.

    Args:
        landscape: Answers the calls.
        recorded: The orders to choose among.
        budget: In calls.
        signal: What the model learns from: "score" or "logprobs".
        seed: Of everything random.

    Returns:
        The order that the model deems best in the end, and the calls.
    """
    looks = Looks(landscape, landscape.num_examples // 2, look=LOOK[signal], budget=budget, seed=seed)
    drawn = np.random.default_rng(seed).permutation(len(recorded))
    for index in drawn[: max(1, budget // 2 // LOOK[signal])]:
        looks.look_at((recorded[index],))
    model = model_of(landscape, signal=signal)
    fitted = model.fit(looks.scores)
    while looks.calls < budget:
        ranked = [estimate.ordering for estimate in fitted.estimates()]
        again = [ordering for ordering in ranked if looks.is_left(ordering)]
        if not again:
            break
        for ordering in again[:NUM_BEST]:
            looks.look_at(ordering)
        fitted = model.fit(looks.scores, earlier=fitted.variances)
    return fitted.estimates()[0].ordering[0], looks.calls
