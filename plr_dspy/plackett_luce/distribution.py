"""The Plackett-Luce distribution over orderings of all or some of n items, and its likelihood.

In a tensor of rankings, shorter rankings are padded with `NOT_SHOWN`. Shapes: n items, at most
k items per ranking, m rankings, c mixture components.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

NOT_SHOWN = -1
STATE_TENSORS = ("logits", "weights", "length_probabilities")


class PlackettLuce:
    """The Plackett-Luce distribution over orderings of n items (PLR Eq. 2).

    Items are drawn one by one. The probability that a remaining item is drawn next is proportional
    to ``exp(logit)``.

    Source: R. L. Plackett, "The analysis of permutations", Applied Statistics 24 (1975).

    Args:
        logits: Logits of the items, ``[n]``, or ``[c, n]`` for a mixture. Items with larger
            logits tend to come earlier.
        weights: Component weights of a mixture, ``[c]``.
        length: Maximum number of items to draw, k. None means all n items.
        length_probabilities: Probabilities of consecutive lengths up to `length`. Shorter rankings
            are padded with -1. None means that each ranking has `length` items.
        generator: Source of random numbers for `sample()`. None means torch's default generator.

    Raises:
        TypeError: If the logits are not a floating-point tensor.
        ValueError: If a shape, a value or the length is invalid.
    """

    def __init__(
        self,
        logits: Tensor,
        *,
        weights: Tensor | None = None,
        length: int | None = None,
        length_probabilities: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        _check_logits(logits, weights)
        self.logits = logits
        self.weights = weights
        self.length_probabilities = length_probabilities
        self.generator = generator
        self.num_items = logits.shape[-1]
        self.length = self.num_items if length is None else length
        lower = 1 if length_probabilities is None else 0
        if type(self.length) is not int or not lower <= self.length <= self.num_items:
            raise ValueError(
                f"length must be an integer from {lower} to the number of items, {self.num_items}; got {length!r}: "
                "pass such an integer, or omit length"
            )
        self.min_length = self.length
        if length_probabilities is not None:
            _check_probabilities("length_probabilities", length_probabilities, most=self.length + 1)
            self.min_length -= len(length_probabilities) - 1

    def copy(self, **changes: Any) -> PlackettLuce:
        """Return a copy of the distribution with some arguments replaced."""
        arguments = {name: getattr(self, name) for name in (*STATE_TENSORS, "length", "generator")}
        return PlackettLuce(**(arguments | changes))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probabilities ``[*sample]`` of rankings ``[*sample, k]``.

        Raises:
            ValueError: If a row of `value` is not a ranking that can be drawn.
        """
        lengths = (value != NOT_SHOWN).sum(dim=-1)
        if not self._are_rankings(value, lengths) or (lengths < self.min_length).any():
            count = f"{self.length}"
            if self.min_length < self.length:
                count = f"{self.min_length} to {self.length}"
            raise ValueError(
                f"each row of value must contain {count} different items of 0..{self.num_items - 1}, padded with -1; "
                f"got {value}"
            )
        if self.weights is None:
            log_probs = log_probabilities(self.logits, value)
        else:
            by_component = log_probabilities(self.logits, value[..., None, :])
            log_probs = (by_component + self.weights.log()).logsumexp(dim=-1)
        if self.length_probabilities is None:
            return log_probs
        return log_probs + self.length_probabilities.log()[lengths - self.min_length]

    def _are_rankings(self, value: Tensor, lengths: Tensor) -> bool:
        """Return whether each row of `value` contains `lengths` different items, followed only by padding."""
        if (value < NOT_SHOWN).any() or (value >= self.num_items).any():
            return False
        orderings = item_positions(value, self.num_items).argsort(dim=-1, stable=True)
        return torch.equal(self._truncate(orderings, lengths[..., None]), value)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw rankings, ``[*sample_shape, k]``.

        Adding Gumbel noise to the logits and sorting the sums is equivalent to drawing items one
        by one.
        """
        shape = torch.Size(sample_shape)
        lengths = torch.tensor(self.length)
        if self.length_probabilities is not None:
            extra = self._draw(self.length_probabilities, shape)
            lengths = self.min_length + extra[..., None]
        logits = self.logits
        if self.weights is not None:
            logits = logits[self._draw(self.weights, shape)]
        noise = logits.new_empty((*shape, self.num_items))
        noise.exponential_(generator=self.generator)
        # The negative log of an exponential variate has a standard Gumbel distribution, so subtract
        # the log.
        perturbed = logits - noise.log()
        return self._truncate(perturbed.argsort(dim=-1, descending=True), lengths)

    @property
    def mode(self) -> Tensor:
        """The most probable ranking among those of the most probable length, ``[k]``.

        Items with equal logits are in the order of their indices. For a mixture, only the modes of
        its components are considered.
        """
        length = self.length
        if self.length_probabilities is not None:
            length = self.min_length + int(self.length_probabilities.argmax())
        modes = self._truncate(self.logits.argsort(dim=-1, descending=True, stable=True), length)
        if self.weights is None:
            return modes
        return modes[self.log_prob(modes).argmax()]

    def marginals(self, num_draws: int = 10_000) -> Tensor:
        """Estimate the probability of each item at each position, ``[n, k]``.

        The probabilities are estimated from rankings that are drawn with a fixed seed.
        """
        generator = torch.Generator().manual_seed(0)
        draws = self.copy(generator=generator).sample((num_draws,))
        shares = [(draws == item).to(self.logits).mean(dim=0) for item in range(self.num_items)]
        return torch.stack(shares)

    def state_dict(self) -> dict[str, Any]:
        """Return JSON data from which `from_state()` can restore the distribution, except its generator."""
        tensors = {name: getattr(self, name) for name in STATE_TENSORS}
        state = {name: tensor.tolist() for name, tensor in tensors.items() if tensor is not None}
        if self.length < self.num_items:
            state["length"] = self.length
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> PlackettLuce:
        """Restore a distribution from data that `state_dict()` returned."""
        arguments = dict(state)
        for name in state.keys() & STATE_TENSORS:
            arguments[name] = torch.tensor(state[name], dtype=torch.float64)
        return cls(**arguments)

    def _draw(self, probabilities: Tensor, shape: torch.Size) -> Tensor:
        """Draw category indices, and return them as a tensor of the given shape."""
        draws = torch.multinomial(probabilities, shape.numel(), replacement=True, generator=self.generator)
        return draws.reshape(shape)

    def _truncate(self, orderings: Tensor, lengths: Tensor | int) -> Tensor:
        """Return the first `lengths` items of each ordering, padded to ``[..., k]``."""
        positions = torch.arange(self.length, device=orderings.device)
        return orderings[..., : self.length].masked_fill(positions >= lengths, NOT_SHOWN)


def padded(rankings: Sequence[Sequence[int]], width: int) -> Tensor:
    """Return rankings of at most `width` items as one padded tensor ``[m, width]``."""
    rows = [[*ranking] + [NOT_SHOWN] * (width - len(ranking)) for ranking in rankings]
    return torch.tensor(rows, dtype=torch.long).view(len(rows), width)


def item_positions(rankings: Tensor, num_items: int) -> Tensor:
    """Return the position of each item in each ranking, ``[..., n]``, or n if an item is missing."""
    positions = torch.arange(rankings.shape[-1], device=rankings.device)
    # The extra column receives the positions of the padding.
    columns = rankings.where(rankings != NOT_SHOWN, num_items)
    result = columns.new_full((*rankings.shape[:-1], num_items + 1), num_items)
    return result.scatter(-1, columns, positions.expand_as(columns))[..., :num_items]


def log_probabilities(logits: Tensor, rankings: Tensor) -> Tensor:
    """Return the log-probability that an ordering of all items begins with each of the `rankings`."""
    num_items = logits.shape[-1]
    positions = item_positions(rankings, num_items)
    orderings = positions.argsort(dim=-1, stable=True)
    shape = torch.broadcast_shapes(orderings.shape, logits.shape)
    placed = logits.expand(shape).gather(-1, orderings.expand(shape))
    # In PLR Eq. 2, the probability of each item is normalized over the items not yet drawn. These items
    # are a suffix of the ordering, so a reversed logcumsumexp returns the logs of all denominators.
    remaining = placed.flip(-1).logcumsumexp(dim=-1).flip(-1)
    lengths = (positions < num_items).sum(dim=-1, keepdim=True)
    is_shown = torch.arange(num_items, device=rankings.device) < lengths
    return (placed - remaining).where(is_shown, 0.0).sum(dim=-1)


def _check_logits(logits: Tensor, weights: Tensor | None) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = getattr(logits, "dtype", type(logits).__name__)
        raise TypeError(f"logits must be a floating-point tensor; got {kind}")
    num_dimensions = 1 if weights is None else 2
    if logits.dim() != num_dimensions or not logits.numel() or not logits.isfinite().all():
        raise ValueError(f"logits must be finite and have shape [n], or [c, n] with weights; got {logits}")
    if weights is not None:
        _check_probabilities("weights", weights, least=len(logits), most=len(logits))


def _check_probabilities(name: str, probabilities: Tensor, *, least: int = 1, most: int) -> None:
    has_valid_shape = probabilities.dim() == 1 and least <= len(probabilities) <= most
    if (
        not has_valid_shape
        or not (probabilities >= 0).all()
        or abs(float(probabilities.sum()) - 1.0) > 1e-6
    ):
        number = f"{most}" if least == most else f"{least} to {most}"
        raise ValueError(
            f"{name} must have length {number} and contain probabilities that sum to 1; got {probabilities}"
        )
