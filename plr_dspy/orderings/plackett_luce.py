"""The Plackett-Luce distribution over orderings: its draws (by Gumbel noise), its likelihood, its mode; and mixtures.

Cut off after the first k of n items, it is a distribution over the ordered subsets of k items.

A mixture has no class of its own: it is
``MixtureSameFamily(Categorical(probs), PlackettLuce(logits))`` with logits of shape ``[k, n]``.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, constraints

from plr_dspy.orderings.partial_rankings import are_rankings, item_position_marginals, log_probabilities

OrderingDistribution: TypeAlias = "PlackettLuce | MixtureSameFamily"

MAX_ENUMERATED_ITEMS = 10


class _Ranking(constraints.Constraint):
    """Constrain the last dimension to be different ones of the items 0..n-1: of as many as there are, if n is None."""

    is_discrete = True
    event_dim = 1

    def __init__(self, num_items: int | None = None) -> None:
        self.num_items = num_items
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        num_items = value.shape[-1] if self.num_items is None else self.num_items
        return are_rankings(value, num_items) & (value >= 0).all(dim=-1)


permutation = _Ranking()


class PlackettLuce(Distribution):
    """Plackett-Luce distribution over orderings of n items (PLR Eq. 2).

    The first item is drawn with probability proportional to ``exp(logits)``, the next in the same
    way from the items left, and so on. Adding a constant to all logits changes nothing. Stopped
    after `length` items, it is a distribution over ordered subsets of so many items.

    Source: R. L. Plackett, "The analysis of permutations", Applied Statistics 24 (1975).

    Args:
        logits: Scores of the items, ``[*batch, n]``; larger means earlier.
        length: Number of items drawn, k; None draws all n.
        generator: Random source of `sample`; None takes torch's default one.
        validate_args: Check logits and values, as in `torch.distributions`.
    """

    # The properties torch declares on the base class are class attributes here, as in
    # torch.distributions' own subclasses.
    arg_constraints = {"logits": constraints.real_vector}  # type: ignore[assignment]  # noqa: RUF012
    has_enumerate_support = True

    def __init__(
        self,
        logits: Tensor,
        *,
        length: int | None = None,
        generator: torch.Generator | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            kind = getattr(logits, "dtype", type(logits).__name__)
            raise TypeError(f"logits must be a floating-point tensor; got {kind}")
        if logits.dim() < 1 or logits.shape[-1] < 1:
            raise ValueError(f"logits must have shape [*batch, n] with n >= 1; got {list(logits.shape)}")
        if validate_args is not False and bool(logits.isinf().any()):
            raise ValueError("logits must be finite; got infinities")
        size = logits.shape[-1]
        if length is not None and not (type(length) is int and 1 <= length <= size):
            raise ValueError(f"length must be a whole number from 1 to the {size} items; got {length!r}")
        self.logits = logits
        self.generator = generator
        event_shape = (size if length is None else length,)
        super().__init__(logits.shape[:-1], torch.Size(event_shape), validate_args=validate_args)

    @property
    def num_items(self) -> int:
        """Number of items n."""
        return self.logits.shape[-1]

    @property
    def length(self) -> int:
        """Number of items drawn, k."""
        return self.event_shape[0]

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        return _Ranking(self.num_items)

    def expand(self, batch_shape: Any, _instance: Any = None) -> PlackettLuce:
        new: PlackettLuce = self._get_checked_instance(PlackettLuce, _instance)
        batch_shape = torch.Size(batch_shape)
        new.logits = self.logits.expand(batch_shape + self.logits.shape[-1:])
        new.generator = self.generator
        super(PlackettLuce, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of orderings.

        Args:
            value: Orderings, ``[*sample, *batch, k]``; ``value[..., 0]`` is the first item.

        Returns:
            Tensor ``[*sample, *batch]``.
        """
        if self._validate_args:
            self._validate_sample(value)
        return log_probabilities(self.logits, value)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw orderings by perturbing the logits with Gumbel noise and sorting.

        Args:
            sample_shape: Leading shape of the draws.

        Returns:
            Integer tensor ``[*sample_shape, *batch, k]``.
        """
        with torch.no_grad():
            shape = torch.Size(sample_shape) + self.logits.shape
            noise = torch.empty(shape, dtype=self.logits.dtype, device=self.logits.device)
            noise.exponential_(generator=self.generator)
            # -log of an exponential variate is Gumbel(0, 1).
            return (self.logits - noise.log()).argsort(dim=-1, descending=True)[..., : self.length]

    @property
    def mode(self) -> Tensor:
        """Most probable ordering, ``[*batch, k]``; equal logits keep the items' own order."""
        return self.logits.argsort(dim=-1, descending=True, stable=True)[..., : self.length]

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All orderings, in lexicographic order.

        Returns:
            Integer tensor ``[n! / (n - k)!, *batch, k]`` (``[n! / (n - k)!, 1, ..., k]`` if not `expand`).

        Raises:
            ValueError: for more orderings than 10 items have.
        """
        if math.perm(self.num_items, self.length) > math.factorial(MAX_ENUMERATED_ITEMS):
            raise ValueError(
                f"enumerate_support lists every ordering and stops at as many as n = {MAX_ENUMERATED_ITEMS} items "
                f"have; this distribution has the first {self.length} of n = {self.num_items}: use sample instead"
            )
        every = list(itertools.permutations(range(self.num_items), self.length))
        orderings = torch.tensor(every, dtype=torch.long, device=self.logits.device)
        orderings = orderings.view(-1, *(1,) * len(self.batch_shape), self.length)
        return orderings.expand(-1, *self.batch_shape, -1) if expand else orderings

    def marginals(self, *, step: float = 0.125) -> Tensor:
        """Probability of each item at each position, by quadrature.

        Costs O(k n^2) per quadrature point.

        Args:
            step: Spacing of the quadrature in log-time; 1/8 gives errors near 1e-9.

        Returns:
            Tensor ``[*batch, n, k]``; ``[..., i, r]`` is Pr(item i at position r). Its sum over the positions is the
            probability that an item is drawn at all.
        """
        flat = self.logits.detach().double().reshape(-1, self.num_items)
        rows = [item_position_marginals(logits, self.length, step) for logits in flat]
        marginals = torch.stack(rows).to(self.logits.dtype)
        return marginals.view(*self.batch_shape, self.num_items, self.length)


def plackett_luce_mixture(weights: Tensor, logits: Tensor, *, length: int | None = None) -> MixtureSameFamily:
    """Mixture of Plackett-Luce distributions.

    Args:
        weights: Component weights, ``[k]``.
        logits: Component logits, ``[k, n]``.
        length: Number of items drawn; None draws all.
    """
    return MixtureSameFamily(Categorical(probs=weights), PlackettLuce(logits, length=length))


def component_logits(mixture: MixtureSameFamily) -> Tensor:
    """Logits of a mixture's Plackett-Luce components, ``[k, n]``."""
    components = mixture.component_distribution
    if not isinstance(components, PlackettLuce):
        raise TypeError(f"expected a mixture of PlackettLuce; its components are {type(components).__name__}")
    return components.logits


def draw_orderings(
    distribution: OrderingDistribution, num_draws: int, generator: torch.Generator | None = None
) -> Tensor:
    """Draw from a Plackett-Luce or a mixture, with one generator for components and orderings.

    `MixtureSameFamily.sample` takes the components from torch's global generator; a search that
    must repeat itself cannot.

    Returns:
        Integer tensor ``[num_draws, n]``, or as many columns as the distribution draws items.
    """
    length = distribution.event_shape[0]
    if isinstance(distribution, MixtureSameFamily):
        weights = distribution.mixture_distribution.probs
        chosen = torch.multinomial(weights, num_draws, replacement=True, generator=generator)
        logits = component_logits(distribution)[chosen]
        return PlackettLuce(logits, length=length, generator=generator, validate_args=False).sample()
    single = PlackettLuce(distribution.logits, length=length, generator=generator, validate_args=False)
    return single.sample((num_draws,))


def sharpened(distribution: OrderingDistribution, factor: float) -> OrderingDistribution:
    """The distribution with its logits multiplied: flatter below 1, uniform orderings at 0."""
    length = distribution.event_shape[0]
    if isinstance(distribution, MixtureSameFamily):
        logits = component_logits(distribution) * factor
        return plackett_luce_mixture(distribution.mixture_distribution.probs, logits, length=length)
    return PlackettLuce(distribution.logits * factor, length=length)


def cut_off(distribution: OrderingDistribution, length: int) -> OrderingDistribution:
    """The distribution of the first `length` items of its orderings."""
    if isinstance(distribution, MixtureSameFamily):
        weights = distribution.mixture_distribution.probs
        return plackett_luce_mixture(weights, component_logits(distribution), length=length)
    return PlackettLuce(distribution.logits, length=length)


def most_probable_ordering(distribution: OrderingDistribution) -> Tensor:
    """The mode ``[k]``; of a mixture, the best of its components' modes."""
    if isinstance(distribution, MixtureSameFamily):
        modes = distribution.component_distribution.mode
        return modes[distribution.log_prob(modes).argmax()]
    return distribution.mode


def mode_probability(distribution: OrderingDistribution) -> float:
    """Probability of the most probable ordering: 1 when the distribution has converged."""
    return float(distribution.log_prob(most_probable_ordering(distribution)).exp())


def distribution_state(distribution: OrderingDistribution) -> dict[str, Any]:
    """Plain data of a distribution: logits ``[n]``, or weights ``[k]`` and logits ``[k, n]``; its length if cut off."""
    if isinstance(distribution, MixtureSameFamily):
        logits = component_logits(distribution)
        state = {"weights": distribution.mixture_distribution.probs.tolist(), "logits": logits.tolist()}
    else:
        logits = distribution.logits
        state = {"logits": logits.tolist()}
    length = distribution.event_shape[0]
    return state if length == logits.shape[-1] else {**state, "length": length}


def distribution_from_state(state: dict[str, Any]) -> OrderingDistribution:
    """Inverse of `distribution_state`."""
    logits = torch.tensor(state["logits"], dtype=torch.float64)
    length = state.get("length")
    if "weights" in state:
        weights = torch.tensor(state["weights"], dtype=torch.float64)
        mixture = plackett_luce_mixture(weights, logits, length=length)
        # They sum to one already; to scale them once more would change their last digits.
        mixture.mixture_distribution.probs = weights
        return mixture
    return PlackettLuce(logits, length=length)
