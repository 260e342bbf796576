"""The distributions that a search holds, one for each block: it draws from them, and has a rule update them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plr_dspy.plackett_luce.distribution import NOT_SHOWN, PlackettLuce, padded
from plr_dspy.plackett_luce.updates import UpdateRule, smoothing_of, update_rule, updated_lengths
from plr_dspy.runtime.threads import one_thread
from plr_dspy.search.space import Ordering, OrderingSpace, ScoreEstimate

MAX_BATCHES = 20
"""Batches that draws take in the hope of enough orderings that are allowed."""


class Proposal:
    """A distribution for each block of a space, at first uniform over numbers of items and over their orders.

    Where places count from the end, the first item of a distribution is shown last: so orderings of all lengths tell of
    the same logits. What is drawn and not allowed is shortened from its beginning until it is.

    Args:
        space: Whose orderings are drawn.
        update: "ema", "mle", "mixture" or an update object; to arrange demos it needs a `smoothing`.
        seed: Of the draws.

    Attributes:
        distributions: One for each block.

    Raises:
        TypeError, ValueError: for what is no update.
    """

    def __init__(self, space: OrderingSpace, *, update: str | UpdateRule, seed: int) -> None:
        self._rule, self._space = update_rule(update), space
        self._smoothing = smoothing_of(self._rule) if space.from_end else None
        self._generator = torch.Generator().manual_seed(seed)
        self.distributions: list[PlackettLuce] = []
        self.reset()

    def reset(self) -> None:
        """Make the distributions uniform again."""
        self.distributions = [self._rule.initial(size) for size in self._space.sizes]
        if self._space.from_end:
            for block, (least, most) in enumerate(self._space.limits):
                shares = torch.ones(most - least + 1, dtype=torch.float64) / (most - least + 1)
                uniform = self.distributions[block].copy(length=most, length_probabilities=shares)
                self.distributions[block] = uniform

    def refit(self, elites: Sequence[ScoreEstimate]) -> None:
        """Update the distributions by their rule, each on its block of the elites."""
        weights = elite_weights(elites) if self._rule.weighted else None
        with one_thread():
            for block, before in enumerate(self.distributions):
                shown = [self._read(elite.ordering[block]) for elite in elites]
                rankings = padded(shown, before.num_items)
                after = self._rule.update(before, rankings, weights)
                if before.length_probabilities is not None and self._smoothing is not None:
                    shares = updated_lengths(
                        before.length_probabilities,
                        rankings,
                        weights,
                        max_length=before.length,
                        smoothing=self._smoothing,
                    )
                    after = before.copy(
                        logits=after.logits, weights=after.weights, length_probabilities=shares
                    )
                self.distributions[block] = after

    def mode(self) -> Ordering:
        """The most probable ordering, shortened where it is not allowed; the identity where that does not help."""
        mode = self._space.canonical([self._read(d.mode.tolist()) for d in self.distributions])
        return self._space.shortened(mode) or self._space.identity

    def draw(self, num_draws: int, *, sharpness: float = 1.0) -> list[Ordering]:
        """Draw orderings, repeats included; fewer where hardly any is allowed.

        Args:
            num_draws: How many.
            sharpness: Factor on the logits of the distributions drawn from: 0 draws from the uniform distribution.
        """
        distributions = [d.sharpened(sharpness, self._generator) for d in self.distributions]
        found: list[Ordering] = []
        for _ in range(MAX_BATCHES):
            if len(found) >= num_draws:
                break
            draws = [d.sample((num_draws,)).tolist() for d in distributions]
            for rankings in zip(*draws, strict=True):
                drawn = self._space.canonical([self._read(ranking) for ranking in rankings])
                if (fitted := self._space.shortened(drawn)) is not None:
                    found.append(fitted)
        return found[:num_draws]

    def _read(self, items: Sequence[int]) -> Sequence[int]:
        """The ranking that ordered items stand for, or the items that a ranking stands for."""
        if not self._space.from_end:
            return items
        return [item for item in reversed(items) if item != NOT_SHOWN]


def elite_weights(elites: Sequence[ScoreEstimate]) -> torch.Tensor | None:
    """Weights in proportion to the scores, with mean 1; None (all equal) where a score is not positive.

    Deviation: the paper's scores are accuracies; a share of a negative score has no meaning.
    """
    scores = torch.tensor([elite.score for elite in elites], dtype=torch.float64)
    if bool((scores <= 0).any()):
        return None
    return scores / scores.mean()
