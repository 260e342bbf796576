"""The distributions over arrangements that a search holds, one for each pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plr_dspy.orderings.arrangement_distribution import ArrangementDistribution, ArrangementUpdate
from plr_dspy.orderings.arrangement_space import Arrangement, ArrangementSpace
from plr_dspy.orderings.trials import ScoreEstimate
from plr_dspy.orderings.updates import UpdateRule, update_rule
from plr_dspy.runtime.threads import one_thread
from plr_dspy.search.proposal import elite_weights, generator_state, set_generator

MAX_BATCHES = 20
"""Batches that draws take in the hope of enough arrangements that are allowed."""


class ArrangementProposal:
    """A distribution for each pool of a space of arrangements; at first uniform over numbers of items.

    What is drawn and not allowed is shortened from its beginning until it is.

    Args:
        space: Whose arrangements are drawn.
        update: As of `PlackettLuceProposal`; an update object needs a `smoothing`.
        seed: Of the draws.

    Attributes:
        distributions: One for each pool.

    Raises:
        TypeError: for an update object without `smoothing`.
    """

    def __init__(self, space: ArrangementSpace, *, update: str | UpdateRule, seed: int) -> None:
        rule = update_rule(update)
        if not isinstance(getattr(rule, "smoothing", None), float):
            raise TypeError(
                f"update must have a smoothing, a number in (0, 1], to arrange demos; got {rule!r}: pass "
                "update='mle', or give yours that attribute"
            )
        self._weighted = rule.weighted
        self._update = ArrangementUpdate(rule)  # type: ignore[arg-type]
        self._space = space
        self._generator = torch.Generator().manual_seed(seed)
        self.distributions: list[ArrangementDistribution] = []
        self.reset()

    def reset(self) -> None:
        """Make the distributions uniform again."""
        self.distributions = [
            self._update.initial(size, min_length=least, max_length=most)
            for size, (least, most) in zip(self._space.sizes, self._space.limits, strict=True)
        ]

    def refit(self, elites: Sequence[ScoreEstimate]) -> None:
        """Update the distributions by their rule, each on its pool's part of the elites."""
        weights = elite_weights(elites) if self._weighted else None
        with one_thread():
            for pool, distribution in enumerate(self.distributions):
                shown = [elite.ordering[pool] for elite in elites]
                self.distributions[pool] = self._update.update(distribution, shown, weights)

    def mode(self) -> Arrangement:
        """The most probable arrangement, shortened where it is not allowed; the identity where that does not help."""
        mode = self._space.canonical([d.mode for d in self.distributions])
        return self._space.shortened(mode) or self._space.identity

    def mode_probabilities(self) -> list[float]:
        """Of each distribution, the probability of its mode."""
        return [float(d.log_prob([d.mode]).exp()) for d in self.distributions]

    def draw(self, num_draws: int, *, sharpness: float = 1.0) -> list[Arrangement]:
        """Draw arrangements, repeats included; fewer where hardly any is allowed. Arguments are as of orderings."""
        distributions = [d.sharpened(sharpness) for d in self.distributions]
        found: list[Arrangement] = []
        for _ in range(MAX_BATCHES):
            if len(found) >= num_draws:
                break
            draws = [d.sample(num_draws, self._generator) for d in distributions]
            fitted = [self._space.shortened(drawn) for drawn in zip(*draws, strict=True)]
            found += [arrangement for arrangement in fitted if arrangement is not None]
        return found[:num_draws]

    def state_dict(self) -> dict[str, Any]:
        """The distributions and the state of the generator, as JSON data."""
        return {
            "distributions": [d.state_dict() for d in self.distributions],
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            ValueError: when the state is of another space.
        """
        distributions = [ArrangementDistribution.from_state(d) for d in state["distributions"]]
        sizes = tuple(d.num_items for d in distributions)
        limits = tuple((d.min_length, d.max_length) for d in distributions)
        if (sizes, limits) != (self._space.sizes, self._space.limits):
            raise ValueError(
                f"the state is of pools of {sizes} items with limits {limits}; this search has {self._space.sizes} "
                f"with {self._space.limits}"
            )
        self.distributions = distributions
        set_generator(self._generator, state["generator"])
