"""The Plackett-Luce distribution: its draws (by Gumbel noise), its likelihood, its mode, which item stands where.

Rankings of different lengths share a tensor in which `NOT_SHOWN` fills up the rows.

With covariates, what an item is worth depends on its features, and on what was chosen before it. Items have the logits
``features @ coefficients``. The coefficients are shared by any number of choices, each from items of its own, so that
what was learnt from some inputs holds for others. With one choice, and an indicator of each item as features, it is
`PlackettLuce` with the coefficients as logits. It is the rank-ordered (or exploded) logit: S. Beggs, S. Cardell and J.
Hausman, "Assessing the potential demand for electric cars", Journal of Econometrics 17 (1981).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.distributions import Distribution, constraints

Array: TypeAlias = NDArray[np.float64]
Features: TypeAlias = Callable[[Sequence[int]], Array]  # of the items of one choice, [n, f], after those chosen already

NOT_SHOWN = -1
STATE = ("logits", "weights", "length_probabilities")  # tensors that make a distribution
MAX_ENUMERATED_ITEMS = 10


class _Ranking(constraints.Constraint):
    """Constrain the last dimension to be different ones of n items; fewer are filled up with `NOT_SHOWN`."""

    is_discrete = True
    event_dim = 1

    def __init__(self, num_items: int, min_length: int) -> None:
        self.num_items, self.min_length = num_items, min_length

    def check(self, value: Tensor) -> Tensor:
        long_enough = (value != NOT_SHOWN).sum(dim=-1) >= self.min_length
        return are_rankings(value, self.num_items) & long_enough


class PlackettLuce(Distribution):
    """Plackett-Luce distribution over orderings of n items (PLR Eq. 2), or a mixture of several.

    The first item is drawn with probability proportional to ``exp(logits)``, the next in the same way from the items
    left, and so on. Adding a constant to all logits changes nothing. Stopped after `length` items, it is a distribution
    over ordered subsets of so many items. With `length_probabilities` the number of items is drawn, too; rankings that
    are shorter than `length` are filled up with -1.

    Source: R. L. Plackett, "The analysis of permutations", Applied Statistics 24 (1975).

    Args:
        logits: Scores of the items, ``[*batch, n]``; larger means earlier. Of a mixture ``[*batch, c, n]``.
        weights: Of the components of a mixture, ``[*batch, c]``; None for a single distribution.
        length: Number of items drawn, k; None draws all n.
        length_probabilities: Of numbers of items drawn, ``[l]``, the last of which is `length`; None draws so many
            always.
        generator: Random source of `sample`; None takes torch's default one.
        validate_args: Check logits and values, as in `torch.distributions`.

    Raises:
        TypeError, ValueError: for arguments that do not fit.
    """

    has_enumerate_support = True
    arg_constraints: Any = None  # those of the arguments that are given

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
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            kind = getattr(logits, "dtype", type(logits).__name__)
            raise TypeError(f"logits must be a floating-point tensor; got {kind}")
        if logits.dim() < 1 or logits.shape[-1] < 1:
            raise ValueError(f"logits must have shape [*batch, n] with n >= 1; got {list(logits.shape)}")
        if validate_args is not False and bool(logits.isinf().any()):
            raise ValueError("logits must be finite; got infinities")
        if weights is not None and weights.shape != logits.shape[:-1]:
            expected, got = list(logits.shape[:-1]), list(weights.shape)
            raise ValueError(f"weights must have one entry for each component, shape {expected}; got {got}")
        shares, num_items = length_probabilities, logits.shape[-1]
        least = 1 if shares is None else 0
        if length is not None and not (type(length) is int and least <= length <= num_items):
            raise ValueError(f"length must be a whole number from {least} to the {num_items} items; got {length!r}")
        self.num_items, self.length = num_items, num_items if length is None else length
        if shares is not None and not (shares.dim() == 1 and 1 <= len(shares) <= self.length + 1):
            raise ValueError(
                f"length_probabilities must have 1 to {self.length + 1} entries, one for each number of items down "
                f"from {self.length}; got shape {list(shares.shape)}"
            )
        self.min_length = self.length if shares is None else self.length + 1 - len(shares)
        self.logits, self.weights, self.length_probabilities = logits, weights, shares
        self.generator = generator
        given = [name for name in STATE[1:] if getattr(self, name) is not None]
        self.arg_constraints = {"logits": constraints.real_vector, **dict.fromkeys(given, constraints.simplex)}
        # A single distribution is a mixture with one component.
        self._by_component = logits if weights is not None else logits[..., None, :]
        self._shares = logits.new_ones(self._by_component.shape[:-1]) if weights is None else weights
        super().__init__(self._shares.shape[:-1], torch.Size([self.length]), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        return _Ranking(self.num_items, self.min_length)

    def expand(self, batch_shape: Any, _instance: Any = None) -> PlackettLuce:
        logits = self.logits.expand(torch.Size(batch_shape) + self.logits.shape[len(self.batch_shape) :])
        weights = None if self.weights is None else self.weights.expand(logits.shape[:-1])
        return self.copy(logits=logits, weights=weights)

    def copy(self, **changes: Any) -> PlackettLuce:
        """The distribution with other arguments in place of some of its own."""
        own = {name: getattr(self, name) for name in (*STATE, "length", "generator")}
        return PlackettLuce(**{**own, **changes})

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probabilities ``[*sample, *batch]`` of orderings ``[*sample, *batch, k]``, their first item first."""
        lengths = (value != NOT_SHOWN).sum(dim=-1)
        if self._validate_args:
            fitting = value.shape[-1:] == self.event_shape and self.support.check(value)
            if not bool(torch.as_tensor(fitting).all()):
                raise ValueError(
                    f"value must hold {self.min_length} to {self.length} different ones of {self.num_items} items in "
                    f"each row [..., {self.length}], followed by -1; got {value}"
                )
        by_component = log_probabilities(self._by_component, value[..., None, :])
        of_items = (by_component + self._shares.log()).logsumexp(dim=-1)
        if self.length_probabilities is None:
            return of_items
        return of_items + self.length_probabilities.log()[lengths - self.min_length]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw orderings, ``[*sample_shape, *batch, k]``, by perturbing the logits with Gumbel noise and sorting."""
        with torch.no_grad():
            shape = torch.Size(sample_shape) + self.batch_shape
            logits, lengths = self.logits, torch.tensor(self.length)
            if self.length_probabilities is not None:
                lengths = self.min_length + self._draw(self.length_probabilities, shape)[..., None]
            if self.weights is not None:
                component = self._draw(self.weights, shape)[..., None, None]
                logits = logits.expand(shape + logits.shape[-2:]).take_along_dim(component, dim=-2)[..., 0, :]
            noise = torch.empty(shape + logits.shape[-1:], dtype=logits.dtype, device=logits.device)
            noise.exponential_(generator=self.generator)
            # -log of an exponential variate is Gumbel(0, 1).
            return self._cut((logits - noise.log()).argsort(dim=-1, descending=True), lengths)

    @property
    def mode(self) -> Tensor:
        """Most probable ordering, ``[*batch, k]``; equal logits keep the items' own order.

        Of a mixture it is the best of its components' modes. Where the number of items is drawn, it is the most
        probable ordering of the most probable number: few items have few orderings, each the more probable for that.
        """
        shares = self.length_probabilities
        length = self.length if shares is None else self.min_length + int(shares.argmax())
        modes = self._cut(self._by_component.argsort(dim=-1, descending=True, stable=True), length).movedim(-2, 0)
        best = self.log_prob(modes).argmax(dim=0)
        return modes.take_along_dim(best[None, ..., None], dim=0)[0]

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All orderings, ``[n! / (n - k)!, *batch, k]`` (or 1 for each of the batch without `expand`), in lexical
        order, the short ones before the long ones; a ValueError for more of them than 10 items have."""
        if math.perm(self.num_items, self.length) > math.factorial(MAX_ENUMERATED_ITEMS):
            raise ValueError(
                f"enumerate_support lists every ordering and stops at as many as n = {MAX_ENUMERATED_ITEMS} items "
                f"have; this distribution has the first {self.length} of n = {self.num_items}: use sample instead"
            )
        lengths = range(self.min_length, self.length + 1)
        every = [r for length in lengths for r in itertools.permutations(range(self.num_items), length)]
        orderings = padded(every, self.length).to(self.logits.device)
        orderings = orderings.view(len(every), *(1,) * len(self.batch_shape), self.length)
        return orderings.expand(-1, *self.batch_shape, -1) if expand else orderings

    def marginals(self, num_draws: int = 10_000) -> Tensor:
        """In which share of so many draws each item is at each position, ``[*batch, n, k]``: ``[..., i, r]`` is
        Pr(item i at position r) but for a standard error of 0.005 at most, and the same whenever it is asked for."""
        drawn = self.copy(generator=torch.Generator().manual_seed(0)).sample((num_draws,))
        shares = [(drawn == item).to(self.logits.dtype).mean(dim=0) for item in range(self.num_items)]
        return torch.stack(shares, dim=-2)

    def state_dict(self) -> dict[str, Any]:
        """The distribution as JSON data, without what is None, and the length of one over all items."""
        state = {name: tensor.tolist() for name in STATE if (tensor := getattr(self, name)) is not None}
        return state if self.length == self.num_items else {**state, "length": self.length}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> PlackettLuce:
        """The distribution that `state_dict` was taken of."""
        tensors: dict[str, Any] = {n: torch.tensor(state[n], dtype=torch.float64) for n in STATE if n in state}
        return cls(**tensors, length=state.get("length"))

    def _draw(self, shares: Tensor, shape: torch.Size) -> Tensor:
        """Draw categories by their probabilities ``[..., c]``: ``shape``, which ends as they begin."""
        rows = shares.reshape(-1, shares.shape[-1])
        number = shape.numel() // len(rows)
        return torch.multinomial(rows, number, replacement=True, generator=self.generator).T.reshape(shape)

    def _cut(self, orderings: Tensor, lengths: Tensor | int) -> Tensor:
        """The beginnings ``[..., k]`` of orderings of all items, filled up where they are to be shorter."""
        places = torch.arange(self.length, device=orderings.device)
        return orderings[..., : self.length].masked_fill(places >= lengths, NOT_SHOWN)


def padded(rankings: Sequence[Sequence[int]], width: int) -> Tensor:
    """Rankings of any lengths as one tensor ``[m, width]``, filled up with `NOT_SHOWN`."""
    rows = [[*ranking, *[NOT_SHOWN] * (width - len(ranking))] for ranking in rankings]
    return torch.tensor(rows, dtype=torch.long).view(len(rows), width)


def completed(rankings: Tensor, num_items: int) -> tuple[Tensor, Tensor]:
    """Orderings of all items, with those that rankings ``[..., k]`` leave out behind those that they show, and whether
    a place of them is shown, ``[..., n]`` each."""
    shown, places = rankings != NOT_SHOWN, torch.arange(num_items, device=rankings.device)
    behind = places.new_full((*rankings.shape[:-1], num_items + 1), num_items)  # the last takes what fills up
    keys = behind.scatter(-1, rankings.where(shown, num_items), places[: rankings.shape[-1]].expand(rankings.shape))
    return keys[..., :num_items].argsort(dim=-1, stable=True), places < shown.sum(dim=-1, keepdim=True)


def are_rankings(rankings: Tensor, num_items: int) -> Tensor:
    """Whether each row of ``[..., k]`` holds different items, and then nothing but `NOT_SHOWN`; ``[...]``."""
    ascending, shown = rankings.sort(dim=-1).values, rankings != NOT_SHOWN
    within = (ascending >= NOT_SHOWN) & (ascending < num_items)
    repeated = (ascending[..., 1:] == ascending[..., :-1]) & (ascending[..., 1:] != NOT_SHOWN)
    filled = shown[..., :-1] | ~shown[..., 1:]
    return within.all(dim=-1) & ~repeated.any(dim=-1) & filled.all(dim=-1)


def log_probabilities(logits: Tensor, rankings: Tensor) -> Tensor:
    """Log-probabilities of any ordering that begins as rankings ``[..., k]`` do, from logits ``[..., n]``."""
    orderings, shown = completed(rankings, logits.shape[-1])
    shape = torch.broadcast_shapes(orderings.shape, logits.shape)
    placed = logits.expand(shape).gather(-1, orderings.expand(shape))
    # PLR Eq. 2: the r-th factor normalises over the items not yet placed, which are the suffix of the ordering, so
    # that one reversed logcumsumexp gives every denominator.
    remaining = placed.flip(-1).logcumsumexp(dim=-1)
    return (placed - remaining.flip(-1)).masked_fill(~shown, 0.0).sum(dim=-1)


def choose(
    coefficients: ArrayLike, features: Features, length: int, *, rng: np.random.Generator | None = None
) -> tuple[int, ...]:
    """So many items that are likeliest one after the other, of equal ones the first; with a random source a draw."""
    chosen: list[int] = []
    for _ in range(length):
        logits: Array = features(chosen) @ np.asarray(coefficients)
        logits[chosen] = -np.inf
        chosen.append(int((logits if rng is None else logits + rng.gumbel(size=len(logits))).argmax()))
    return tuple(chosen)
