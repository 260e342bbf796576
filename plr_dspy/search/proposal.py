"""The distributions that a search holds, one for each block: it draws from them, and has a rule update them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch

from plr_dspy.orderings.arrangement_distribution import ArrangementDistribution
from plr_dspy.orderings.plackett_luce import (
    OrderingDistribution,
    distribution_from_state,
    distribution_state,
    draw_orderings,
    mode_probability,
    most_probable_ordering,
    sharpened,
)
from plr_dspy.orderings.space import Ordering, OrderingSpace
from plr_dspy.orderings.trials import ScoreEstimate
from plr_dspy.orderings.updates import UpdateRule, update_rule
from plr_dspy.runtime.threads import one_thread

Distribution: TypeAlias = "OrderingDistribution | ArrangementDistribution"
"""Of one block's orderings, or of one pool's arrangements."""


class Proposal(Protocol):
    """A distribution for each block of a space, which a search draws from and refits."""

    @property
    def distributions(self) -> Sequence[Distribution]:
        """One for each block."""

    def reset(self) -> None:
        """Make the distributions uniform again."""

    def refit(self, elites: Sequence[ScoreEstimate]) -> None:
        """Update the distributions by their rule, each on its block of the elites."""

    def mode(self) -> Ordering:
        """The most probable ordering."""

    def mode_probabilities(self) -> list[float]:
        """Of each distribution, the probability of its mode."""

    def draw(self, num_draws: int, *, sharpness: float = 1.0) -> list[Ordering]:
        """Draw orderings, repeats included, from the distributions with this factor on their logits."""

    def state_dict(self) -> dict[str, Any]:
        """The distributions and the state of the generator, as JSON data."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""


class PlackettLuceProposal:
    """A distribution for each block of a space, uniform at first.

    Args:
        space: Whose orderings are drawn.
        update: "ema", "mle", "mixture" or an update object.
        seed: Of the draws.

    Attributes:
        update: The update rule.
        distributions: One for each block.
    """

    def __init__(self, space: OrderingSpace, *, update: str | UpdateRule, seed: int) -> None:
        self.update = update_rule(update)
        self.distributions: list[OrderingDistribution] = []
        self._space = space
        self._generator = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self) -> None:
        """Make the distributions uniform again."""
        self.distributions = [self.update.initial(size) for size in self._space.sizes]

    def refit(self, elites: Sequence[ScoreEstimate]) -> None:
        """Update the distributions by their rule, each on its block of the elites."""
        weights = elite_weights(elites) if self.update.weighted else None
        with one_thread():
            for block in range(len(self.distributions)):
                orderings = torch.tensor([elite.ordering[block] for elite in elites])
                self.distributions[block] = self.update.update(self.distributions[block], orderings, weights)

    def mode(self) -> Ordering:
        """The most probable ordering."""
        return self._space.canonical([most_probable_ordering(d).tolist() for d in self.distributions])

    def mode_probabilities(self) -> list[float]:
        """Of each distribution, the probability of its mode."""
        return [mode_probability(d) for d in self.distributions]

    def draw(self, num_draws: int, *, sharpness: float = 1.0) -> list[Ordering]:
        """Draw orderings, repeats included.

        Args:
            num_draws: How many.
            sharpness: Factor on the logits of the distributions drawn from: 0 draws from the uniform distribution.
        """
        if not num_draws:
            return []
        distributions = [sharpened(d, sharpness) for d in self.distributions]
        draws = [draw_orderings(d, num_draws, self._generator).tolist() for d in distributions]
        return [self._space.canonical(ordering) for ordering in zip(*draws, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """The distributions and the state of the generator, as JSON data."""
        return {
            "distributions": [distribution_state(d) for d in self.distributions],
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            ValueError: when the state is of another space.
        """
        distributions = [distribution_from_state(d) for d in state["distributions"]]
        sizes = tuple(d.event_shape[0] for d in distributions)
        if sizes != self._space.sizes:
            raise ValueError(f"the state is of blocks of {sizes} items; this search has {self._space.sizes}")
        self.distributions = distributions
        set_generator(self._generator, state["generator"])


def generator_state(generator: torch.Generator) -> str:
    """The state of a generator as text."""
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def set_generator(generator: torch.Generator, state: str) -> None:
    """Bring a generator into the state that `generator_state` returned."""
    generator.set_state(torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8))


def elite_weights(elites: Sequence[ScoreEstimate]) -> torch.Tensor | None:
    """Weights in proportion to the scores, with mean 1; None (all equal) where a score is not positive.

    Deviation: the paper's scores are accuracies; a share of a negative score has no meaning.
    """
    scores = torch.tensor([elite.score for elite in elites], dtype=torch.float64)
    if bool((scores <= 0).any()):
        return None
    return scores / scores.mean()
