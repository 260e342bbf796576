"""Weighted maximum likelihood under Plackett-Luce distributions: the arithmetic of some update rules.

Elites are rankings ``[m, n]`` as in `partial_rankings`: orderings, or beginnings of them filled up with `NOT_SHOWN`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from plr_dspy.orderings.partial_rankings import are_rankings, completed, tied_ranks

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Adam's, as in its paper (arXiv:1412.6980) and in torch."""


class FitSettings(Protocol):
    """Adam's settings, as attributes of an update rule."""

    @property
    def num_steps(self) -> int: ...

    @property
    def learning_rate(self) -> float: ...

    @property
    def l2(self) -> float: ...

    @property
    def clip(self) -> float: ...


def centred(logits: Tensor) -> Tensor:
    """Logits with mean 0 over the items; the distribution is the same."""
    return logits - logits.mean(dim=-1, keepdim=True)


def checked_weights(elites: Tensor, weights: Tensor | None, like: Tensor) -> Tensor:
    """Weights ``[m]`` in the dtype and on the device of `like`; they and the elites are checked."""
    if elites.dim() != 2 or elites.shape[0] < 1 or elites.shape[1] != like.shape[-1]:
        raise ValueError(
            f"elites must have shape [m, {like.shape[-1]}] with m >= 1 orderings of the distribution's items; "
            f"got {list(elites.shape)}"
        )
    if not bool(are_rankings(elites, elites.shape[1]).all()):
        raise ValueError("elites must have different items in each row, followed by -1 where they show fewer")
    if weights is None:
        return torch.ones(elites.shape[0], dtype=like.dtype, device=like.device)
    weights = weights.to(dtype=like.dtype, device=like.device)
    if weights.shape != elites.shape[:1]:
        raise ValueError(
            f"weights must have one entry for each of the {elites.shape[0]} elites; got {list(weights.shape)}"
        )
    if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()) or float(weights.sum()) <= 0:
        raise ValueError("weights must be finite, not negative, and not all 0")
    return weights


def ascend_log_likelihood(logits: Tensor, elites: Tensor, weights: Tensor, settings: FitSettings) -> Tensor:
    """Adam ascent on sum_m w_m log Pr(pi_m) - l2/2 |logits|^2, centred and clipped at every step.

    The gradient is written out, and so is Adam: for this few numbers torch's own machinery takes four times as
    long, and its first optimizer imports a compiler for a second or two.

    Args:
        logits: Start, ``[*k, n]``; each row is fitted by itself.
        elites: ``[m, n]``. Of a beginning, the likelihood is that of all orderings that begin so: an item it does not
            show lost against each that it does.
        weights: ``[*k, m]``.
    """
    with torch.inference_mode(False), torch.no_grad():
        theta = _projected(logits.clone(), settings.clip)
        orderings, shown = completed(elites.clone(), elites.shape[-1])
        ranks, weights = orderings.argsort(dim=-1), weights.clone()
        mean, square = torch.zeros_like(theta), torch.zeros_like(theta)  # of the gradients, moving
        for step in range(1, settings.num_steps + 1):
            slope = settings.l2 * theta - _gradient(theta, (orderings, ranks, shown), weights)
            mean.lerp_(slope, 1 - BETAS[0])
            square.lerp_(slope**2, 1 - BETAS[1])
            length = settings.learning_rate / (1 - BETAS[0] ** step)
            scale = (square / (1 - BETAS[1] ** step)).sqrt() + EPSILON
            theta = _projected(theta - length * mean / scale, settings.clip)
    return theta


def _projected(values: Tensor, clip: float) -> Tensor:
    return centred(values).clamp(-clip, clip)


def _gradient(theta: Tensor, elites: tuple[Tensor, Tensor, Tensor], weights: Tensor) -> Tensor:
    """Of sum_m w_m log Pr(pi_m), ``[*k, n]``.

    An item shown adds 1, and every item takes away its chance of coming next at each position shown up to its own
    (PLR Eq. 2).
    """
    orderings, ranks, shown = elites
    placed = theta[..., orderings]  # [*k, m, n]
    remaining = placed.flip(-1).logcumsumexp(dim=-1).flip(-1)
    chances = (placed + (-remaining).masked_fill(~shown, -torch.inf).logcumsumexp(dim=-1)).exp()
    by_item = (shown.to(theta.dtype) - chances).gather(-1, ranks.expand(chances.shape))
    return (weights[..., None] * by_item).sum(dim=-2)


def split_by_distance(elites: Tensor, num_groups: int) -> Tensor:
    """Assign each elite to the nearest of up to `num_groups` elites that lie far apart, ``[m, groups]``.

    Centres are chosen farthest-first from the first (best) elite, in Kendall distance. A pair of items that one elite
    orders, and of which another shows neither, counts half (K^(1/2) of R. Fagin, R. Kumar and D. Sivakumar, "Comparing
    top k lists", SIAM Journal on Discrete Mathematics 17, 2003).
    """
    ranks = tied_ranks(elites, elites.shape[-1])
    before = (ranks[:, :, None] < ranks[:, None, :]).flatten(1).double()  # [m, n * n]
    distance = torch.cdist(before, before, p=1.0)  # twice the Kendall distance
    centres = [0]
    while len(centres) < num_groups:
        nearest = distance[:, centres].amin(dim=1)
        if float(nearest.max()) == 0.0:
            break
        centres.append(int(nearest.argmax()))
    assignment = torch.zeros(len(elites), num_groups, dtype=torch.float64, device=elites.device)
    assignment[torch.arange(len(elites), device=elites.device), distance[:, centres].argmin(dim=1)] = 1.0
    return assignment
