"""The Plackett-Luce distribution over orderings: its draws (by Gumbel noise), its likelihood, its mode; and mixtures.

A mixture has no class of its own: it is
``MixtureSameFamily(Categorical(probs), PlackettLuce(logits))`` with logits of shape ``[k, n]``.
"""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, constraints

OrderingDistribution: TypeAlias = "PlackettLuce | MixtureSameFamily"

MAX_ENUMERATED_ITEMS = 10


class _Permutation(constraints.Constraint):
    """Constrain the last dimension to be a permutation of 0..n-1."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        positions = torch.arange(value.shape[-1], device=value.device)
        return (value.sort(dim=-1).values == positions).all(dim=-1)


permutation = _Permutation()


class PlackettLuce(Distribution):
    """Plackett-Luce distribution over orderings of n items (PLR Eq. 2).

    The first item is drawn with probability proportional to ``exp(logits)``, the next in the same
    way from the items left, and so on. Adding a constant to all logits changes nothing.

    Source: R. L. Plackett, "The analysis of permutations", Applied Statistics 24 (1975).

    Args:
        logits: Scores of the items, ``[*batch, n]``; larger means earlier.
        generator: Random source of `sample`; None takes torch's default one.
        validate_args: Check logits and values, as in `torch.distributions`.
    """

    # The properties torch declares on the base class are class attributes here, as in
    # torch.distributions' own subclasses.
    arg_constraints = {"logits": constraints.real_vector}  # type: ignore[assignment]  # noqa: RUF012
    support = permutation  # type: ignore[assignment]
    has_enumerate_support = True

    def __init__(
        self,
        logits: Tensor,
        *,
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
        self.logits = logits
        self.generator = generator
        super().__init__(logits.shape[:-1], logits.shape[-1:], validate_args=validate_args)

    @property
    def num_items(self) -> int:
        """Number of items n."""
        return self.event_shape[0]

    def expand(self, batch_shape: Any, _instance: Any = None) -> PlackettLuce:
        new: PlackettLuce = self._get_checked_instance(PlackettLuce, _instance)
        batch_shape = torch.Size(batch_shape)
        new.logits = self.logits.expand(batch_shape + self.event_shape)
        new.generator = self.generator
        super(PlackettLuce, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of orderings.

        Args:
            value: Orderings, ``[*sample, *batch, n]``; ``value[..., 0]`` is the first item.

        Returns:
            Tensor ``[*sample, *batch]``.
        """
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape, self.logits.shape)
        placed = self.logits.expand(shape).gather(-1, value.expand(shape))
        # PLR Eq. 2: the r-th factor normalises over the items not yet placed, which are the
        # suffix of the ordering, so one reversed logcumsumexp gives every denominator.
        remaining = placed.flip(-1).logcumsumexp(dim=-1)
        return (placed - remaining.flip(-1)).sum(dim=-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw orderings by perturbing the logits with Gumbel noise and sorting.

        Args:
            sample_shape: Leading shape of the draws.

        Returns:
            Integer tensor ``[*sample_shape, *batch, n]``.
        """
        with torch.no_grad():
            shape = self._extended_shape(torch.Size(sample_shape))
            noise = torch.empty(shape, dtype=self.logits.dtype, device=self.logits.device)
            noise.exponential_(generator=self.generator)
            # -log of an exponential variate is Gumbel(0, 1).
            return (self.logits - noise.log()).argsort(dim=-1, descending=True)

    @property
    def mode(self) -> Tensor:
        """Most probable ordering, ``[*batch, n]``; equal logits keep the items' own order."""
        return self.logits.argsort(dim=-1, descending=True, stable=True)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All orderings, in lexicographic order.

        Returns:
            Integer tensor ``[n!, *batch, n]`` (``[n!, 1, ..., n]`` if not `expand`).

        Raises:
            ValueError: for more than 10 items.
        """
        if self.num_items > MAX_ENUMERATED_ITEMS:
            raise ValueError(
                f"enumerate_support lists n! orderings and stops at n = {MAX_ENUMERATED_ITEMS}; "
                f"this distribution has n = {self.num_items}: use sample instead"
            )
        orderings = torch.tensor(list(itertools.permutations(range(self.num_items))), dtype=torch.long)
        orderings = orderings.to(self.logits.device)
        orderings = orderings.view(-1, *(1,) * len(self.batch_shape), self.num_items)
        return orderings.expand(-1, *self.batch_shape, -1) if expand else orderings

    def marginals(self, *, step: float = 0.125) -> Tensor:
        """Probability of each item at each position.

        An item's Gumbel-perturbed rank is the number of independent exponential clocks that ring
        before its own; given its ringing time that number is Poisson-binomial, and the time is
        integrated out by the trapezoid rule in log-time, which converges geometrically here.
        Costs O(n^3) per quadrature point.

        Args:
            step: Spacing of the quadrature in log-time; 1/8 gives errors near 1e-9.

        Returns:
            Tensor ``[*batch, n, n]``; ``[..., i, r]`` is Pr(item i at position r).
        """
        flat = self.logits.detach().double().reshape(-1, self.num_items)
        rows = [_item_position_marginals(logits, step) for logits in flat]
        marginals = torch.stack(rows).to(self.logits.dtype)
        return marginals.view(*self.batch_shape, self.num_items, self.num_items)


def _item_position_marginals(logits: Tensor, step: float) -> Tensor:
    """Marginals of one Plackett-Luce, ``[n, n]`` from float64 logits ``[n]``."""
    n = logits.shape[0]
    # The density of log-time decays as exp(s) to the left and doubly exponentially to the right.
    start, stop = -float(logits.max()) - 30.0, -float(logits.min()) + 4.0
    total = torch.zeros(n, n, dtype=torch.float64, device=logits.device)
    points = torch.arange(start, stop, step, dtype=torch.float64, device=logits.device)
    for times in points.split(max(1, 2_000_000 // (n * n))):
        log_hazards = logits + times[:, None]  # [q, n]
        hazards = log_hazards.exp()
        density = (log_hazards - hazards).exp()  # of item i ringing at this log-time
        rung = -torch.expm1(-hazards)  # probability of having rung before
        counts = torch.zeros(len(times), n, n, dtype=torch.float64, device=logits.device)
        counts[:, :, 0] = 1.0
        for j in range(n):
            # Item j's own row does not count its own clock.
            hit = rung[:, j, None].repeat(1, n)
            hit[:, j] = 0.0
            shifted = torch.nn.functional.pad(counts[:, :, :-1], (1, 0))
            counts = counts * (1.0 - hit[..., None]) + shifted * hit[..., None]
        total += (density[..., None] * counts).sum(dim=0)
    return total * step


def plackett_luce_mixture(weights: Tensor, logits: Tensor) -> MixtureSameFamily:
    """Mixture of Plackett-Luce distributions.

    Args:
        weights: Component weights, ``[k]``.
        logits: Component logits, ``[k, n]``.
    """
    return MixtureSameFamily(Categorical(probs=weights), PlackettLuce(logits))


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
        Integer tensor ``[num_draws, n]``.
    """
    if isinstance(distribution, MixtureSameFamily):
        weights = distribution.mixture_distribution.probs
        chosen = torch.multinomial(weights, num_draws, replacement=True, generator=generator)
        logits = component_logits(distribution)[chosen]
        return PlackettLuce(logits, generator=generator, validate_args=False).sample()
    single = PlackettLuce(distribution.logits, generator=generator, validate_args=False)
    return single.sample((num_draws,))


def sharpened(distribution: OrderingDistribution, factor: float) -> OrderingDistribution:
    """The distribution with its logits multiplied: flatter below 1, uniform orderings at 0."""
    if isinstance(distribution, MixtureSameFamily):
        logits = component_logits(distribution) * factor
        return plackett_luce_mixture(distribution.mixture_distribution.probs, logits)
    return PlackettLuce(distribution.logits * factor)


def most_probable_ordering(distribution: OrderingDistribution) -> Tensor:
    """The mode ``[n]``; of a mixture, the best of its components' modes."""
    if isinstance(distribution, MixtureSameFamily):
        modes = PlackettLuce(component_logits(distribution)).mode
        return modes[distribution.log_prob(modes).argmax()]
    return distribution.mode


def mode_probability(distribution: OrderingDistribution) -> float:
    """Probability of the most probable ordering: 1 when the distribution has converged."""
    return float(distribution.log_prob(most_probable_ordering(distribution)).exp())


def distribution_state(distribution: OrderingDistribution) -> dict[str, Any]:
    """Plain data of a distribution: logits ``[n]``, or weights ``[k]`` and logits ``[k, n]``."""
    if isinstance(distribution, MixtureSameFamily):
        return {
            "weights": distribution.mixture_distribution.probs.tolist(),
            "logits": component_logits(distribution).tolist(),
        }
    return {"logits": distribution.logits.tolist()}


def distribution_from_state(state: dict[str, Any]) -> OrderingDistribution:
    """Inverse of `distribution_state`."""
    logits = torch.tensor(state["logits"], dtype=torch.float64)
    if "weights" in state:
        weights = torch.tensor(state["weights"], dtype=torch.float64)
        mixture = plackett_luce_mixture(weights, logits)
        # They sum to one already; to scale them once more would change their last digits.
        mixture.mixture_distribution.probs = weights
        return mixture
    return PlackettLuce(logits)
