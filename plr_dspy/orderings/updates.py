"""Update rules: refit a distribution to its elites (PLR Algorithm 1).

A rule is pure: it changes neither the distribution nor the elites that it is given. Elites that show only some of the
items are filled up with -1 (`partial_rankings`), and those of the rules here learn from what they show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import MixtureSameFamily

from plr_dspy.orderings.fitting import ascend_log_likelihood, centred, checked_weights, split_by_distance
from plr_dspy.orderings.partial_rankings import log_probabilities, tied_ranks
from plr_dspy.orderings.plackett_luce import (
    OrderingDistribution,
    PlackettLuce,
    component_logits,
    plackett_luce_mixture,
)


@runtime_checkable
class UpdateRule(Protocol):
    """What a search asks of an update rule."""

    name: ClassVar[str]

    @property
    def weighted(self) -> bool:
        """Whether elites count in proportion to their scores."""

    def initial(self, num_items: int) -> OrderingDistribution:
        """The uniform distribution over orderings of `num_items` items, float64."""

    def update(
        self, distribution: OrderingDistribution, elites: Tensor, weights: Tensor | None = None
    ) -> OrderingDistribution:
        """The next distribution, from elites ``[m, n]`` and their weights ``[m]`` (None: all 1)."""


def _single_logits(rule: str, distribution: OrderingDistribution) -> Tensor:
    if not isinstance(distribution, PlackettLuce):
        raise TypeError(
            f"{rule} updates a single PlackettLuce; got {type(distribution).__name__}: use MixtureEM for a mixture"
        )
    return distribution.logits


@dataclass(frozen=True, kw_only=True)
class RankEMA:
    """Moving average towards the elites' mean ranks (the EMA update of PLR).

    Items that an elite does not show share the mean of the places left over: it says that they come after those that
    it shows, and nothing of their order. So an elite that shows none draws all logits together.

    Attributes:
        smoothing: Share of the new target in the mix, in (0, 1].
        temperature: Divides the ranks; smaller is greedier.
        clip: Bound on the absolute value of a logit.
        weighted: Whether a search weights the elites by their scores.
    """

    name: ClassVar[str] = "ema"
    smoothing: float = 0.7
    temperature: float = 1.0
    clip: float = 20.0
    weighted: bool = False

    def __post_init__(self) -> None:
        _check_fraction("smoothing", self.smoothing)
        _check_positive("temperature", self.temperature)
        _check_positive("clip", self.clip)

    def initial(self, num_items: int) -> PlackettLuce:
        return PlackettLuce(torch.zeros(num_items, dtype=torch.float64))

    def update(
        self, distribution: OrderingDistribution, elites: Tensor, weights: Tensor | None = None
    ) -> PlackettLuce:
        logits = _single_logits("RankEMA", distribution)
        weights = checked_weights(elites, weights, logits)
        ranks = tied_ranks(elites, elites.shape[-1]).to(logits.dtype)  # [m, n], 0 = first
        mean_ranks = (weights @ ranks) / weights.sum()
        target = -mean_ranks / self.temperature
        mixed = (1.0 - self.smoothing) * logits + self.smoothing * target  # PLR, EMA update
        return PlackettLuce(centred(mixed).clamp(-self.clip, self.clip))


@dataclass(frozen=True, kw_only=True)
class MaximumLikelihood:
    """Smoothed maximum likelihood of the elites, by Adam from the current logits (the MLE update of PLR).

    With few elites the likelihood has no finite maximum: steps, clip and penalty bound the logits.

    Attributes:
        smoothing: Share of the fitted logits in the mix, in (0, 1].
        num_steps: Adam steps.
        learning_rate: Adam's step size.
        l2: Penalty on the squared logits (adds ``-l2 * logits`` to the gradient).
        clip: Bound on the absolute value of a logit, after every step.
        weighted: Whether a search weights the elites by their scores.
    """

    name: ClassVar[str] = "mle"
    smoothing: float = 0.7
    num_steps: int = 60
    learning_rate: float = 0.1
    l2: float = 0.0
    clip: float = 20.0
    weighted: bool = False

    def __post_init__(self) -> None:
        _check_fraction("smoothing", self.smoothing)
        _check_fit(self)

    def initial(self, num_items: int) -> PlackettLuce:
        return PlackettLuce(torch.zeros(num_items, dtype=torch.float64))

    def fit(self, logits: Tensor, elites: Tensor, weights: Tensor | None = None) -> Tensor:
        """Logits ``[n]`` after the Adam steps, before smoothing."""
        return ascend_log_likelihood(logits, elites, checked_weights(elites, weights, logits), self)

    def update(
        self, distribution: OrderingDistribution, elites: Tensor, weights: Tensor | None = None
    ) -> PlackettLuce:
        logits = _single_logits("MaximumLikelihood", distribution)
        fitted = self.fit(logits, elites, weights)
        mixed = (1.0 - self.smoothing) * logits + self.smoothing * fitted  # PLR, MLE update
        return PlackettLuce(centred(mixed))


@dataclass(frozen=True, kw_only=True)
class MixtureEM:
    """One expectation-maximisation step of a mixture of Plackett-Luce (the EM update of PLR).

    Deviation: components start equal, and an E-step on equal components gives each elite the same
    responsibility everywhere, so that they stay equal for ever (in the published code a "mixture of
    4" is a single Plackett-Luce). While components are equal, each of the equal ones takes the
    elites nearest in Kendall distance to one of as many elites far from each other.

    Attributes:
        num_components: Number of Plackett-Luce components C.
        weight_floor: Least weight of a component, before weights are normalised.
        smoothing, num_steps, learning_rate, l2, clip, weighted: As in `MaximumLikelihood`.
    """

    name: ClassVar[str] = "mixture"
    num_components: int = 4
    weight_floor: float = 1e-3
    smoothing: float = 0.7
    num_steps: int = 60
    learning_rate: float = 0.1
    l2: float = 0.0
    clip: float = 20.0
    weighted: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.num_components, int) or self.num_components < 1:
            raise ValueError(
                f"num_components must be a whole number of at least 1; got {self.num_components!r}"
            )
        if not 0.0 <= self.weight_floor < 1.0:
            raise ValueError(f"weight_floor must lie in [0, 1); got {self.weight_floor!r}")
        _check_fraction("smoothing", self.smoothing)
        _check_fit(self)

    def initial(self, num_items: int) -> MixtureSameFamily:
        weights = torch.full((self.num_components,), 1.0 / self.num_components, dtype=torch.float64)
        return plackett_luce_mixture(
            weights, torch.zeros(self.num_components, num_items, dtype=torch.float64)
        )

    def update(
        self, distribution: OrderingDistribution, elites: Tensor, weights: Tensor | None = None
    ) -> MixtureSameFamily:
        if not isinstance(distribution, MixtureSameFamily):
            raise TypeError(f"MixtureEM updates a mixture; got {type(distribution).__name__}")
        logits = component_logits(distribution)  # [k, n]
        weights = checked_weights(elites, weights, logits)
        responsibilities = self._responsibilities(distribution, elites)  # [m, k]
        shares = weights[:, None] * responsibilities
        component_weights = shares.sum(dim=0) / weights.sum()  # PLR, EM: weights
        component_weights = component_weights.clamp_min(self.weight_floor)
        # A component that explains none of the elites has nothing to learn from: it stays.
        fitted = ascend_log_likelihood(logits, elites, shares.T, self)  # PLR, EM: components
        mixed = (1.0 - self.smoothing) * logits + self.smoothing * fitted
        return plackett_luce_mixture(component_weights / component_weights.sum(), centred(mixed))

    def _responsibilities(self, distribution: MixtureSameFamily, elites: Tensor) -> Tensor:
        """E-step, ``[m, k]``; equal components share out the elites by distance."""
        logits = component_logits(distribution)
        log_joint = log_probabilities(logits, elites[:, None, :])
        log_joint = log_joint + distribution.mixture_distribution.logits
        responsibilities = torch.softmax(log_joint, dim=-1)
        twins = (logits[:, None, :] - logits[None, :, :]).abs().amax(dim=-1) < 1e-9
        for k in range(len(twins)):
            group = twins[k].nonzero().flatten()
            if len(group) > 1 and int(group[0]) == k:
                pooled = responsibilities[:, group].sum(dim=-1, keepdim=True)
                responsibilities[:, group] = pooled * split_by_distance(elites, len(group)).to(pooled)
        return responsibilities


def _check_fraction(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must lie in (0, 1]; got {value!r}")


def _check_positive(name: str, value: float) -> None:
    if not value > 0.0:
        raise ValueError(f"{name} must be positive; got {value!r}")


def _check_fit(rule: MaximumLikelihood | MixtureEM) -> None:
    if not isinstance(rule.num_steps, int) or rule.num_steps < 1:
        raise ValueError(f"num_steps must be a whole number of at least 1; got {rule.num_steps!r}")
    _check_positive("learning_rate", rule.learning_rate)
    _check_positive("clip", rule.clip)
    if not rule.l2 >= 0.0:
        raise ValueError(f"l2 must not be negative; got {rule.l2!r}")


_RULES: dict[str, type[RankEMA] | type[MaximumLikelihood] | type[MixtureEM]] = {
    rule.name: rule for rule in (RankEMA, MaximumLikelihood, MixtureEM)
}


def update_rule(update: str | UpdateRule) -> UpdateRule:
    """The rule a name stands for ("ema", "mle", "mixture"), or the rule itself.

    Raises:
        ValueError: for an unknown name.
        TypeError: for an object that is no rule.
    """
    if isinstance(update, str):
        if update not in _RULES:
            raise ValueError(f"update must be one of {sorted(_RULES)} or an update object; got {update!r}")
        return _RULES[update]()
    if isinstance(update, type) or not isinstance(update, UpdateRule):
        raise TypeError(
            f"update must be one of {sorted(_RULES)} or an update object such as MaximumLikelihood(); "
            f"got {update!r}"
        )
    return update
