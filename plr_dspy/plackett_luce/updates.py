"""Update rules: refit a distribution to its elites (PLR Algorithm 1).

A rule is pure: it changes neither the distribution nor the elites that it is given. Elites are rankings ``[m, n]``.
Those that show only some of the items are filled up with -1, and the rules here learn from what they show.
"""

from dataclasses import field
from typing import ClassVar, Protocol, runtime_checkable

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from plr_dspy.plackett_luce.distribution import PlackettLuce, are_rankings, completed, log_probabilities

BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's, as in its paper (arXiv:1412.6980) and in torch
STRICT = ConfigDict(extra="forbid", strict=True)


@runtime_checkable
class UpdateRule(Protocol):
    """What a search asks of an update rule. To arrange demos it needs a `smoothing`, too, as the rules here have."""

    name: ClassVar[str]

    @property
    def weighted(self) -> bool:
        """Whether elites count in proportion to their scores."""

    def initial(self, num_items: int) -> PlackettLuce:
        """The uniform distribution over orderings of `num_items` items, float64."""

    def update(self, distribution: PlackettLuce, elites: Tensor, weights: Tensor | None = None) -> PlackettLuce:
        """The next distribution, from elites ``[m, n]`` and their weights ``[m]`` (None: all 1)."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _Rule:
    """What the rules here have in common."""

    smoothing: float = Field(default=0.7, gt=0, le=1)
    clip: float = Field(default=20.0, gt=0)
    weighted: bool = False

    def _checked(self, distribution: PlackettLuce, elites: Tensor, weights: Tensor | None) -> Tensor:
        """The weights ``[m]`` like the distribution's logits; the elites and they are checked."""
        logits, shape, size = distribution.logits, list(elites.shape), distribution.num_items
        if len(shape) != 2 or not shape[0] or shape[1] != size or not bool(are_rankings(elites, size).all()):
            raise ValueError(
                f"elites must have shape [m, {size}] with m >= 1, and different items in each row, followed by -1 "
                f"where they show fewer; got {elites}"
            )
        weights = logits.new_ones(len(elites)) if weights is None else weights.to(logits)
        usable = weights.shape == elites.shape[:1] and bool(weights.isfinite().all() & (weights >= 0).all())
        if not usable or float(weights.sum()) <= 0:
            raise ValueError(
                f"weights must be finite, not negative, not all 0, one entry for each of {len(elites)} elites; "
                f"got {weights}"
            )
        return weights


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RankEMA(_Rule):
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
    temperature: float = Field(default=1.0, gt=0)

    def initial(self, num_items: int) -> PlackettLuce:
        return PlackettLuce(torch.zeros(num_items, dtype=torch.float64))

    def update(self, distribution: PlackettLuce, elites: Tensor, weights: Tensor | None = None) -> PlackettLuce:
        weights = self._checked(distribution, elites, weights)
        mean_ranks = (weights @ tied_ranks(elites).to(weights)) / weights.sum()  # 0 = first
        target = -mean_ranks / self.temperature
        mixed = (1.0 - self.smoothing) * distribution.logits + self.smoothing * target  # PLR, EMA update
        return distribution.copy(logits=_centred(mixed).clamp(-self.clip, self.clip))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MixtureEM(_Rule):
    """One expectation-maximisation step of a mixture of Plackett-Luce (the EM update of PLR).

    Each component is fitted by Adam from its current logits, and smoothed.

    Deviation: components start equal, and an E-step on equal components gives each elite the same
    responsibility everywhere, so that they stay equal for ever (in the published code a "mixture of
    4" is a single Plackett-Luce). While components are equal, each of the equal ones takes the
    elites nearest in Kendall distance to one of as many elites far from each other.

    Attributes:
        num_components: Number of Plackett-Luce components C.
        weight_floor: Least weight of a component, before weights are normalised.
        num_steps, learning_rate: Adam's steps, and their size.
        l2: Penalty on the squared logits (adds ``-l2 * logits`` to the gradient).
        smoothing, clip, weighted: As in `RankEMA`, of fitted logits, which are clipped after every step.
    """

    name: ClassVar[str] = "mixture"
    num_components: int = Field(default=4, ge=1)
    weight_floor: float = Field(default=1e-3, ge=0, lt=1)
    num_steps: int = Field(default=60, ge=1)
    learning_rate: float = Field(default=0.1, gt=0)
    l2: float = Field(default=0.0, ge=0)

    def initial(self, num_items: int) -> PlackettLuce:
        logits = torch.zeros(self.num_components, num_items, dtype=torch.float64)
        if len(logits) == 1:
            return PlackettLuce(logits[0])
        return PlackettLuce(logits, weights=logits.new_full((len(logits),), 1.0 / len(logits)))

    def fit(self, logits: Tensor, elites: Tensor, weights: Tensor | None = None) -> Tensor:
        """Adam ascent on sum_m w_m log Pr(pi_m) - l2/2 |logits|^2, centred and clipped at every step.

        Each row of logits, ``[n]`` or of components ``[c, n]``, is fitted by itself, with its weights, ``[m]`` or
        ``[c, m]``. Of an elite that shows few items, the likelihood is that of all orderings that begin so. With few
        elites it has no finite maximum: steps, clip and penalty bound the logits.
        """
        weights = logits.new_ones(len(elites)) if weights is None else weights.to(logits)
        orderings, shown = completed(elites, elites.shape[-1])
        ranks = orderings.argsort(dim=-1)
        appeared = weights @ (ranks < shown.sum(dim=-1, keepdim=True)).to(weights)
        theta = _centred(logits.detach()).clamp(-self.clip, self.clip)
        mean, square = torch.zeros_like(theta), torch.zeros_like(theta)  # of the gradients, moving
        tiny = torch.finfo(theta.dtype).tiny  # so that no sum of weights is 0
        for step in range(1, self.num_steps + 1):
            # An item shown adds 1, and each takes away its chance of coming next at every place shown up to its own.
            worth = (theta - theta.amax(dim=-1, keepdim=True)).exp().clamp_min(tiny)
            remaining = worth[..., orderings].flip(-1).cumsum(dim=-1).flip(-1)  # [*c, m, n]
            inverse = (shown / remaining).cumsum(dim=-1)
            chances = (weights[..., None] * inverse.take_along_dim(ranks.expand_as(inverse), dim=-1)).sum(dim=-2)
            slope = appeared - worth * chances - self.l2 * theta
            mean += (1 - BETAS[0]) * (slope - mean)
            square += (1 - BETAS[1]) * (slope * slope - square)
            length = self.learning_rate / (1 - BETAS[0] ** step)
            scale = (square / (1 - BETAS[1] ** step)).sqrt() + EPSILON
            theta = _centred(theta + length * mean / scale).clamp(-self.clip, self.clip)
        return theta

    def update(self, distribution: PlackettLuce, elites: Tensor, weights: Tensor | None = None) -> PlackettLuce:
        logits = distribution.logits
        weights = self._checked(distribution, elites, weights)
        shares = weights if distribution.weights is None else weights * _responsibilities(distribution, elites)
        # A component that explains none of the elites has nothing to learn from: it stays.
        fitted = self.fit(logits, elites, shares)  # PLR, MLE update; EM: components
        mixed = _centred((1.0 - self.smoothing) * logits + self.smoothing * fitted)
        if distribution.weights is None:
            return distribution.copy(logits=mixed)
        explained = (shares.sum(dim=-1) / weights.sum()).clamp_min(self.weight_floor)  # PLR, EM: weights
        return distribution.copy(logits=mixed, weights=explained / explained.sum())


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MaximumLikelihood(MixtureEM):
    """Smoothed maximum likelihood of the elites, by Adam from the current logits (the MLE update of PLR).

    It is the `MixtureEM` with a single component, and has its attributes but for those of components.
    """

    name: ClassVar[str] = "mle"
    num_components: int = field(default=1, init=False, repr=False)
    weight_floor: float = field(default=0.0, init=False, repr=False)


def _responsibilities(mixture: PlackettLuce, elites: Tensor) -> Tensor:
    """E-step: the share of each component in each elite, ``[c, m]``; equal components take the elites nearest to their
    centres, chosen farthest-first from the best elite, in Kendall distance. A pair that one elite orders and another
    does not show counts half (R. Fagin, R. Kumar and D. Sivakumar, SIAM Journal on Discrete Mathematics 17, 2003)."""
    assert mixture.weights is not None
    logits = mixture.logits
    log_joint = log_probabilities(logits[:, None, :], elites) + mixture.weights.log()[:, None]
    responsibilities = torch.softmax(log_joint, dim=0)
    twins = (logits[:, None, :] - logits[None, :, :]).abs().amax(dim=-1) < 1e-9
    ranks = tied_ranks(elites)
    before = (ranks[:, :, None] < ranks[:, None, :]).flatten(1).double()  # [m, n * n]
    number, both = before.sum(dim=1), before @ before.T
    distance = number[:, None] + number - 2 * both  # twice the Kendall distance
    for group in torch.unique(twins, dim=0):
        size, centres = int(group.sum()), [0]
        while len(centres) < size and bool((nearest := distance[:, centres].amin(dim=1)).any()):
            centres.append(int(nearest.argmax()))
        if size > 1:
            parts = torch.nn.functional.one_hot(distance[:, centres].argmin(dim=1), size).T
            responsibilities[group] = responsibilities[group].sum(dim=0) * parts.to(responsibilities)
    return responsibilities


def tied_ranks(rankings: Tensor) -> Tensor:
    """Place of each item ``[m, n]`` in float64; the items left out share the mean of the places left over."""
    orderings, shown = completed(rankings, rankings.shape[-1])
    ranks, lengths = orderings.argsort(dim=-1).double(), shown.sum(dim=-1, keepdim=True)
    return ranks.where(ranks < lengths, (lengths + rankings.shape[-1] - 1) / 2)


def update_rule(update: str | UpdateRule) -> UpdateRule:
    """The rule a name stands for ("ema", "mle", "mixture"), or the rule itself; TypeError for no rule, ValueError for
    an unknown name."""
    rules = {rule.name: rule for rule in (RankEMA, MaximumLikelihood, MixtureEM)}
    if isinstance(update, str) and update in rules:
        return rules[update]()
    if isinstance(update, (str, type)) or not isinstance(update, UpdateRule):
        expected = f"update must be one of {sorted(rules)} or an update object such as MaximumLikelihood()"
        raise (ValueError if isinstance(update, str) else TypeError)(f"{expected}; got {update!r}")
    return update


def smoothing_of(update: UpdateRule) -> float:
    """The share of what is new in each update of the numbers of items, which draws that are cut off need; TypeError
    for a rule without one."""
    smoothing = getattr(update, "smoothing", None)
    if not isinstance(smoothing, (int, float)) or not 0.0 < smoothing <= 1.0:
        raise TypeError(
            f"update must have a smoothing, a number in (0, 1], to arrange demos; got {update!r}: pass update='mle', "
            "or give yours that attribute"
        )
    return smoothing


def _centred(logits: Tensor) -> Tensor:
    """Logits with mean 0 over the items; the distribution is the same."""
    return logits - logits.mean(dim=-1, keepdim=True)
