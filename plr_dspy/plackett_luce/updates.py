"""Update rules that refit a Plackett-Luce distribution to the best orderings of a round, the elites.

The elites (a term from PLR Algorithm 1) are the rows of a tensor ``[m, n]``. Elites that show only
some of the n items are padded with -1. Update rules assume that the other items come last, in an
unknown order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field
from typing import ClassVar

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import one_hot

from plr_dspy.plackett_luce.distribution import PlackettLuce, item_positions, log_probabilities

STRICT = ConfigDict(extra="forbid", strict=True)

# Adam's default parameters (arXiv:1412.6980). `torch.optim.Adam` would return the same result,
# but importing `torch.optim` also loads torch's compiler.
BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True, config=STRICT)
class UpdateRule(ABC):
    """The base class of update rules. A subclass defines `update`, and may define a `name` for reports.

    A subclass with attributes of its own must be a `pydantic.dataclasses.dataclass`.

    Attributes:
        smoothing: Weight of the newest fit in the average with earlier fits, above 0 and at most 1.
            Searches that choose demos average the probabilities of lengths with the same weight.
        clip: Maximum absolute value of a logit.
        weighted: Whether elites with higher scores have larger weights.
    """

    name: ClassVar[str] = "own"
    smoothing: float = Field(default=0.7, gt=0, le=1)
    clip: float = Field(default=20.0, gt=0)
    weighted: bool = False

    def initial(self, num_items: int) -> PlackettLuce:
        """Return the uniform distribution over orderings of `num_items` items, in float64."""
        return PlackettLuce(torch.zeros(num_items, dtype=torch.float64))

    @abstractmethod
    def update(
        self, distribution: PlackettLuce, elites: Tensor, weights: Tensor | None = None
    ) -> PlackettLuce:
        """Return the distribution refitted to elites ``[m, n]`` with weights ``[m]``."""

    def _project(self, logits: Tensor) -> Tensor:
        """Return the logits, centered and then clipped."""
        return _centered(logits).clamp(-self.clip, self.clip)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RankEMA(UpdateRule):
    """An update rule that moves the logits towards the elites' negative mean ranks (PLR's EMA update).

    The logits are an exponential moving average of the negative mean ranks, divided by
    `temperature`.

    Attributes:
        temperature: Divisor of the ranks. A lower temperature makes the distribution more
            concentrated.
        smoothing, clip, weighted: As in `UpdateRule`.
    """

    name: ClassVar[str] = "ema"
    temperature: float = Field(default=1.0, gt=0)

    def update(
        self, distribution: PlackettLuce, elites: Tensor, weights: Tensor | None = None
    ) -> PlackettLuce:
        weights = _weights_of(elites, weights, distribution.logits)
        ranks = tied_ranks(elites).to(weights)
        mean_ranks = weights @ ranks / weights.sum()
        target = -mean_ranks / self.temperature  # PLR, EMA update
        mixed = (1.0 - self.smoothing) * distribution.logits + self.smoothing * target
        return distribution.copy(logits=self._project(mixed))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MixtureEM(UpdateRule):
    """An update rule that fits a mixture using one expectation-maximization step (the EM update of PLR).

    Deviation from PLR: If all components are equal, the step assigns each elite to a single
    component. With PLR's step, equal components would stay equal forever.

    Attributes:
        num_components: Number of Plackett-Luce components, c.
        weight_floor: Minimum weight of a component before the weights are normalized.
        num_steps, learning_rate: Number of Adam steps, and the learning rate.
        l2: Factor of the L2 penalty on the logits. See `fit()`.
        smoothing, clip, weighted: As in `UpdateRule`.
    """

    name: ClassVar[str] = "mixture"
    num_components: int = Field(default=4, ge=1)
    weight_floor: float = Field(default=1e-3, ge=0, lt=1)
    num_steps: int = Field(default=60, ge=1)
    learning_rate: float = Field(default=0.1, gt=0)
    l2: float = Field(default=0.0, ge=0)

    def initial(self, num_items: int) -> PlackettLuce:
        if self.num_components == 1:
            return super().initial(num_items)
        logits = torch.zeros(self.num_components, num_items, dtype=torch.float64)
        weights = torch.full_like(logits[:, 0], 1.0 / self.num_components)
        return PlackettLuce(logits, weights=weights)

    def fit(self, logits: Tensor, elites: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return logits that maximize the penalized log-likelihood of the elites.

        The objective is the weighted sum of the elites' log-probabilities, minus ``l2 / 2`` times
        the squared norm of the logits. Adam starts from `logits`, ``[n]`` or ``[c, n]``. The shape of
        `weights` is ``[m]`` or ``[c, m]``. None means that all weights are 1.
        """
        weights = logits.new_ones(len(elites)) if weights is None else weights.to(logits)
        positions = item_positions(elites, elites.shape[-1])
        theta = self._project(logits.detach())
        mean = torch.zeros_like(theta)
        square = torch.zeros_like(theta)
        gradient = _likelihood_gradient(positions, weights)
        for step in range(1, self.num_steps + 1):
            slope = gradient(theta) - self.l2 * theta
            mean += (1 - BETA_1) * (slope - mean)
            square += (1 - BETA_2) * (slope * slope - square)
            step_size = self.learning_rate / (1 - BETA_1**step)
            scale = (square / (1 - BETA_2**step)).sqrt() + EPSILON
            theta = self._project(theta + step_size * mean / scale)
        return theta

    def update(
        self, distribution: PlackettLuce, elites: Tensor, weights: Tensor | None = None
    ) -> PlackettLuce:
        weights = _weights_of(elites, weights, distribution.logits)
        shares = weights
        if distribution.weights is not None:
            shares = weights * _responsibilities(distribution, elites)  # PLR, E-step
        fitted = self.fit(distribution.logits, elites, shares)  # PLR, MLE update or M-step
        mixed = (1.0 - self.smoothing) * distribution.logits + self.smoothing * fitted
        updated = distribution.copy(logits=_centered(mixed))
        if distribution.weights is None:
            return updated
        explained = shares.sum(dim=-1) / weights.sum()  # PLR, M-step for the component weights
        explained = explained.clamp_min(self.weight_floor)
        return updated.copy(weights=explained / explained.sum())


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MaximumLikelihood(MixtureEM):
    """An update rule that fits one Plackett-Luce distribution to the elites (the MLE update of PLR).

    The rule is `MixtureEM` with one component.
    """

    name: ClassVar[str] = "mle"
    num_components: int = field(default=1, init=False, repr=False)
    weight_floor: float = field(default=0.0, init=False, repr=False)


def _likelihood_gradient(positions: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that maps logits to the gradient of the weighted log-likelihood (PLR Eq. 2)."""
    last = positions.shape[-1] - 1
    orderings = positions.argsort(dim=-1, stable=True)
    is_shown = positions <= last
    shown_in_order = is_shown.gather(-1, orderings)
    own_position = positions.clamp_max(last)
    shown_weights = weights @ is_shown.to(weights)
    tiny = torch.finfo(weights.dtype).tiny

    def gradient(theta: Tensor) -> Tensor:
        # The derivative with respect to an item's logit is a weighted sum with one term per elite. The
        # term is 1 if the elite shows the item, else 0, minus the item's probabilities of being drawn at
        # each shown position up to its own. Strengths are proportional to exp(theta). Clamp them,
        # because strengths that are rounded to 0 can cause divisions by 0.
        strengths = (theta - theta.amax(dim=-1, keepdim=True)).exp().clamp_min(tiny)
        remaining = strengths[..., orderings].flip(-1).cumsum(dim=-1).flip(-1)  # [*c, m, n]
        inverse = (shown_in_order / remaining).cumsum(dim=-1)
        up_to_own = inverse.take_along_dim(own_position.expand_as(inverse), dim=-1)
        return shown_weights - strengths * (weights[..., None] * up_to_own).sum(dim=-2)

    return gradient


def _responsibilities(mixture: PlackettLuce, elites: Tensor) -> Tensor:
    """Return the probability that each component generated each elite, ``[c, m]`` (PLR, E-step).

    If all components are equal, assign each elite to a single component.
    """
    assert mixture.weights is not None
    logits = mixture.logits
    if len(logits) > 1 and bool((logits == logits[0]).all()):
        return _cluster(elites, len(logits)).to(logits)
    log_joint = log_probabilities(logits[:, None, :], elites) + mixture.weights.log()[:, None]
    return torch.softmax(log_joint, dim=0)


def _cluster(elites: Tensor, num_clusters: int) -> Tensor:
    """Cluster the elites around elites that are far apart, and return a one-hot matrix ``[c, m]``."""
    ranks = tied_ranks(elites)
    by_center = log_probabilities(-ranks[:1], elites)[None]
    while len(by_center) < num_clusters:
        farthest = by_center.amax(dim=0).argmin()
        by_center = torch.cat([by_center, log_probabilities(-ranks[farthest], elites)[None]])
    return one_hot(by_center.argmax(dim=0), num_clusters).T


def tied_ranks(rankings: Tensor) -> Tensor:
    """Return the rank of each item in each ranking, counted from 0, ``[m, n]``.

    Items that are not shown are tied, so each of them gets the mean of the remaining ranks.
    """
    num_items = rankings.shape[-1]
    positions = item_positions(rankings, num_items)
    is_shown = positions < num_items
    lengths = is_shown.sum(dim=-1, keepdim=True)
    return positions.double().where(is_shown, (lengths + num_items - 1) / 2)


def update_rule(update: str | UpdateRule) -> UpdateRule:
    """Return `update` if it is an update rule, else the rule with this name: "ema", "mle" or "mixture".

    Raises:
        ValueError: If no update rule has this name.
        TypeError: If `update` is neither a string nor an update rule, or if its `smoothing` is not
            a float.
    """
    rules = {rule.name: rule for rule in (RankEMA, MaximumLikelihood, MixtureEM)}
    names = ", ".join(map(repr, rules))
    expected = f"update must be {names} or an update rule, such as MaximumLikelihood()"
    if isinstance(update, str):
        if update not in rules:
            raise ValueError(f"{expected}; got {update!r}")
        return rules[update]()
    if not isinstance(update, UpdateRule):
        raise TypeError(f"{expected}; got {update!r}: pass one of these, or subclass UpdateRule")
    if not isinstance(update.smoothing, float):
        raise TypeError(
            f"update.smoothing must be a float; got {update.smoothing!r}: decorate {type(update).__name__} with "
            "pydantic.dataclasses.dataclass instead of dataclasses.dataclass"
        )
    return update


def _weights_of(elites: Tensor, weights: Tensor | None, like: Tensor) -> Tensor:
    """Return the elites' weights ``[m]`` in the dtype of `like`. None means that all weights are 1."""
    if weights is None:
        return like.new_ones(len(elites))
    if weights.shape != elites.shape[:1] or not (weights >= 0).all() or not weights.any():
        raise ValueError(
            f"weights must be numbers >= 0, one for each elite, and at least one must be above 0; got {weights}"
        )
    return weights.to(like)


def _centered(logits: Tensor) -> Tensor:
    return logits - logits.mean(dim=-1, keepdim=True)
