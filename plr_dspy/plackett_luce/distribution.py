"""Plackett-Luce over orderings, or over the first few of n items, and its likelihood.

Rankings of different lengths share a tensor, whose shorter rows end in `NOT_SHOWN`.

Shapes: n items, k items at most in a ranking, m rankings, c components of a mixture.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

NOT_SHOWN = -1
STATE_TENSORS = ("logits", "weights", "length_probabilities")
MAX_ENUMERATED = math.factorial(10)


class Rankings(constraints.Constraint):
    """Constrain rows to different items, at least `min_length`, followed by -1."""

    is_discrete = True
    event_dim = 1

    def __init__(self, num_items: int, min_length: int = 0) -> None:
        self.num_items = num_items
        self.min_length = min_length

    def __repr__(self) -> str:
        return f"Rankings: {self.min_length} or more different ones of {self.num_items} items, then -1"

    def check(self, value: Tensor) -> Tensor:
        is_shown = value != NOT_SHOWN
        in_range = (value >= NOT_SHOWN) & (value < self.num_items)
        padded_at_end = is_shown[..., :-1] | ~is_shown[..., 1:]
        ascending = value.sort(dim=-1).values
        distinct = (ascending.diff(dim=-1) != 0) | (ascending[..., 1:] == NOT_SHOWN)
        long_enough = is_shown.sum(dim=-1) >= self.min_length
        return in_range.all(dim=-1) & padded_at_end.all(dim=-1) & distinct.all(dim=-1) & long_enough


class PlackettLuce(Distribution):
    """Plackett-Luce distribution over orderings of n items (PLR Eq. 2).

    The first item is drawn with probability proportional to ``exp(logits)``.
    Each next one is drawn in the same way from the items left.
    Adding a constant to all logits changes nothing.

    Source: R. L. Plackett, "The analysis of permutations", Applied Statistics 24 (1975).

    Args:
        logits: Scores of the items, ``[*batch, n]``; larger means earlier.
            A mixture has ``[*batch, c, n]``.
        weights: Weights of the components, ``[*batch, c]``, if it is a mixture.
        length: Number of items drawn, k; None draws all n.
        length_probabilities: Probabilities of the last lengths up to `length`.
            Shorter rankings end in -1. None always draws `length` items.
        generator: Random source of `sample`; None uses torch's default.
        validate_args: Check logits and values, as in `torch.distributions`.

    Raises:
        TypeError: If the logits are not a floating-point tensor.
        ValueError: If shapes, lengths or probabilities do not fit.
    """

    has_enumerate_support = True
    arg_constraints: Any = None  # Set for each instance, because weights are optional.

    def __init__(
        self,
        logits: Tensor,
        *,
        weights: Tensor | None = None,
        length: int | None = None,
        length_probabilities: Tensor | None = None,
        generator: torch.Generator | None = None,
        validate_args: bool | None = None,
    ) -> None:
        _check_arguments(logits, weights, length, length_probabilities)
        if validate_args is not False and bool(logits.isinf().any()):
            raise ValueError("logits must be finite; got infinities")
        self.logits = logits
        self.weights = weights
        self.length_probabilities = length_probabilities
        self.generator = generator
        self.num_items = logits.shape[-1]
        self.length = self.num_items if length is None else length
        self.min_length = self.length
        self.arg_constraints = {"logits": constraints.real_vector}
        batch_shape = logits.shape[:-1]
        if weights is not None:
            self.arg_constraints["weights"] = constraints.simplex
            batch_shape = batch_shape[:-1]
        if length_probabilities is not None:
            self.arg_constraints["length_probabilities"] = constraints.simplex
            self.min_length -= len(length_probabilities) - 1
        super().__init__(batch_shape, torch.Size([self.length]), validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        return Rankings(self.num_items, self.min_length)

    def expand(self, batch_shape: Any, _instance: Any = None) -> PlackettLuce:
        own_dims = self.logits.shape[len(self.batch_shape) :]
        logits = self.logits.expand(torch.Size(batch_shape) + own_dims)
        if self.weights is None:
            return self.copy(logits=logits)
        return self.copy(logits=logits, weights=self.weights.expand(logits.shape[:-1]))

    def copy(self, **changes: Any) -> PlackettLuce:
        """Return the distribution with some arguments replaced."""
        names = (*STATE_TENSORS, "length", "generator")
        arguments = {name: getattr(self, name) for name in names}
        return PlackettLuce(**(arguments | changes))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probabilities ``[*sample, *batch]`` of rankings.

        Args:
            value: Rankings, first item first, ``[*sample, *batch, k]``.
        """
        if self._validate_args:
            self._validate_sample(value)
        if self.weights is None:
            log_probs = log_probabilities(self.logits, value)
        else:
            by_component = log_probabilities(self.logits, value[..., None, :])
            log_probs = (by_component + self.weights.log()).logsumexp(dim=-1)
        if self.length_probabilities is None:
            return log_probs
        lengths = (value != NOT_SHOWN).sum(dim=-1)
        return log_probs + self.length_probabilities.log()[lengths - self.min_length]

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw rankings ``[*sample_shape, *batch, k]`` by sorting noisy logits."""
        shape = torch.Size(sample_shape) + self.batch_shape
        lengths = torch.tensor(self.length)
        if self.length_probabilities is not None:
            extra = self._draw(self.length_probabilities, shape)
            lengths = self.min_length + extra[..., None]
        logits = self.logits
        if self.weights is not None:
            component = self._draw(self.weights, shape)[..., None, None]
            by_component = logits.expand(shape + logits.shape[-2:])
            logits = by_component.take_along_dim(component, dim=-2)[..., 0, :]
        noise = logits.new_empty(shape + logits.shape[-1:])
        noise.exponential_(generator=self.generator)
        # -log of an exponential variate is Gumbel(0, 1).
        perturbed = logits - noise.log()
        return self._truncate(perturbed.argsort(dim=-1, descending=True), lengths)

    @property
    def mode(self) -> Tensor:
        """Return the most probable ranking, ``[*batch, k]``.

        Items with equal logits keep their order. A mixture returns the best of
        its components' modes. If lengths are drawn, the most probable one is
        taken first, because any short ranking is likelier than a long one.
        """
        length = self.length
        if self.length_probabilities is not None:
            length = self.min_length + int(self.length_probabilities.argmax())
        orderings = self.logits.argsort(dim=-1, descending=True, stable=True)
        modes = self._truncate(orderings, length)
        if self.weights is None:
            return modes
        modes = modes.movedim(-2, 0)
        best = self.log_prob(modes).argmax(dim=0)
        return modes.take_along_dim(best[None, ..., None], dim=0)[0]

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all rankings, ``[s, *batch, k]``, shortest first, then lexical.

        Raises:
            ValueError: If there are more of them than orderings of 10 items.
        """
        if math.perm(self.num_items, self.length) > MAX_ENUMERATED:
            raise ValueError(
                f"enumerate_support lists at most {MAX_ENUMERATED} rankings; there are more for "
                f"the first {self.length} of n = {self.num_items} items: use sample instead"
            )
        rankings: list[tuple[int, ...]] = []
        for length in range(self.min_length, self.length + 1):
            rankings += itertools.permutations(range(self.num_items), length)
        table = padded(rankings, self.length).to(self.logits.device)
        table = table.view(len(table), *(1 for _ in self.batch_shape), self.length)
        return table.expand(-1, *self.batch_shape, -1) if expand else table

    def marginals(self, num_draws: int = 10_000) -> Tensor:
        """Estimate Pr(item i at position r) as ``[..., i, r]``, ``[*batch, n, k]``.

        The draws have a fixed seed. The standard error is .005 at most.
        """
        generator = torch.Generator().manual_seed(0)
        draws = self.copy(generator=generator).sample((num_draws,))
        shares = [(draws == item).to(self.logits).mean(dim=0) for item in range(self.num_items)]
        return torch.stack(shares, dim=-2)

    def state_dict(self) -> dict[str, Any]:
        """Return the distribution as JSON data, for `from_state`."""
        state: dict[str, Any] = {}
        for name in STATE_TENSORS:
            tensor = getattr(self, name)
            if tensor is not None:
                state[name] = tensor.tolist()
        if self.length < self.num_items:
            state["length"] = self.length
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> PlackettLuce:
        """Restore the distribution that `state_dict` has saved."""
        arguments = dict(state)
        for name in state.keys() & STATE_TENSORS:
            arguments[name] = torch.tensor(state[name], dtype=torch.float64)
        return cls(**arguments)

    def _draw(self, probabilities: Tensor, shape: torch.Size) -> Tensor:
        """Draw categories of the given shape from probabilities ``[..., c]``."""
        rows = probabilities.reshape(-1, probabilities.shape[-1])
        draws_per_row = shape.numel() // len(rows)
        draws = torch.multinomial(rows, draws_per_row, replacement=True, generator=self.generator)
        return draws.T.reshape(shape)

    def _truncate(self, orderings: Tensor, lengths: Tensor | int) -> Tensor:
        """Return the first `lengths` items of orderings, padded to ``[..., k]``."""
        positions = torch.arange(self.length, device=orderings.device)
        return orderings[..., : self.length].masked_fill(positions >= lengths, NOT_SHOWN)


def padded(rankings: Sequence[Sequence[int]], width: int) -> Tensor:
    """Return rankings of any lengths as one tensor ``[m, width]``."""
    rows = [[*ranking] + [NOT_SHOWN] * (width - len(ranking)) for ranking in rankings]
    return torch.tensor(rows, dtype=torch.long).view(len(rows), width)


def item_positions(rankings: Tensor, num_items: int) -> Tensor:
    """Return the position of each item ``[..., n]``, which is n if it is not shown."""
    positions = torch.arange(rankings.shape[-1], device=rankings.device)
    # The additional column takes the positions of the padding.
    columns = rankings.where(rankings != NOT_SHOWN, num_items)
    result = columns.new_full((*rankings.shape[:-1], num_items + 1), num_items)
    return result.scatter(-1, columns, positions.expand_as(columns))[..., :num_items]


def log_probabilities(logits: Tensor, rankings: Tensor) -> Tensor:
    """Return log Pr of all orderings that begin with each ranking ``[..., k]``."""
    num_items = logits.shape[-1]
    positions = item_positions(rankings, num_items)
    orderings = positions.argsort(dim=-1, stable=True)
    shape = torch.broadcast_shapes(orderings.shape, logits.shape)
    placed = logits.expand(shape).gather(-1, orderings.expand(shape))
    # PLR Eq. 2: factor r normalises over the items not yet placed. These are a
    # suffix of the ordering, so one reversed logcumsumexp gives all denominators.
    remaining = placed.flip(-1).logcumsumexp(dim=-1).flip(-1)
    lengths = (positions < num_items).sum(dim=-1, keepdim=True)
    is_shown = torch.arange(num_items, device=rankings.device) < lengths
    return (placed - remaining).where(is_shown, 0.0).sum(dim=-1)


def _check_arguments(logits: Tensor, weights: Tensor | None, length: int | None, probabilities: Tensor | None) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = getattr(logits, "dtype", type(logits).__name__)
        raise TypeError(f"logits must be a floating-point tensor; got {kind}")
    *leading, num_items = logits.shape or [0]
    if num_items < 1:
        raise ValueError(f"logits must have shape [*batch, n] with n >= 1; got {list(logits.shape)}")
    if weights is not None and list(weights.shape) != leading:
        raise ValueError(f"weights must have one entry for each component, {leading}; got {list(weights.shape)}")
    if length is None:
        length = num_items
    least = 1 if probabilities is None else 0
    if type(length) is not int or not least <= length <= num_items:
        raise ValueError(f"length must be a whole number from {least} to the {num_items} items; got {length!r}")
    if probabilities is not None and not (probabilities.dim() == 1 and 1 <= len(probabilities) <= length + 1):
        raise ValueError(
            f"length_probabilities must have 1 to {length + 1} entries, for lengths up to {length}; "
            f"got shape {list(probabilities.shape)}"
        )
