"""Rankings of the first few of n items: how tensors hold them, how probable they are, and where their items stand.

Rankings of different lengths share a tensor ``[m, n]`` in which `NOT_SHOWN` fills up the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NOT_SHOWN = -1


def padded(rankings: Sequence[Sequence[int]], num_items: int) -> Tensor:
    """Rankings of any lengths as one tensor ``[m, n]``, filled up with `NOT_SHOWN`."""
    rows = [[*ranking, *[NOT_SHOWN] * (num_items - len(ranking))] for ranking in rankings]
    return torch.tensor(rows, dtype=torch.long).view(len(rows), num_items)


def completed(rankings: Tensor, num_items: int) -> tuple[Tensor, Tensor]:
    """Put the items that rankings leave out behind those that they show.

    Args:
        rankings: ``[..., k]``, filled up with `NOT_SHOWN` or not.
        num_items: Number of items n.

    Returns:
        Orderings of all items ``[..., n]``, and whether a place of them is shown, ``[..., n]``.
    """
    places = torch.arange(num_items, device=rankings.device)
    shown = rankings != NOT_SHOWN
    lengths = shown.sum(dim=-1, keepdim=True)
    if rankings.shape[-1] == num_items and bool(shown.all()):
        return rankings, shown
    behind = torch.arange(num_items, 2 * num_items + 1, device=rankings.device)
    behind = behind.expand(*rankings.shape[:-1], num_items + 1)  # the last column takes what fills up
    own = places[: rankings.shape[-1]].expand(rankings.shape)
    keys = behind.scatter(-1, rankings.where(shown, num_items), own)[..., :num_items]
    return keys.argsort(dim=-1), places < lengths


def are_rankings(rankings: Tensor, num_items: int) -> Tensor:
    """Whether each row of ``[..., k]`` holds different items, and then nothing but `NOT_SHOWN`; ``[...]``."""
    ascending, shown = rankings.sort(dim=-1).values, rankings != NOT_SHOWN
    within = (ascending >= NOT_SHOWN) & (ascending < num_items)
    repeated = (ascending[..., 1:] == ascending[..., :-1]) & (ascending[..., 1:] != NOT_SHOWN)
    filled = shown[..., :-1] | ~shown[..., 1:]
    return within.all(dim=-1) & ~repeated.any(dim=-1) & filled.all(dim=-1)


def tied_ranks(rankings: Tensor, num_items: int) -> Tensor:
    """Place of each item in float64, ``[..., n]``; the items left out share the mean of the places left over."""
    orderings, shown = completed(rankings, num_items)
    ranks, lengths = orderings.argsort(dim=-1).double(), shown.sum(dim=-1, keepdim=True)
    return ranks.where(ranks < lengths, (lengths + num_items - 1) / 2)


def log_probabilities(logits: Tensor, rankings: Tensor) -> Tensor:
    """Log-probabilities of rankings: of any ordering that begins so, by Plackett-Luce.

    Args:
        logits: ``[..., n]``.
        rankings: ``[..., k]``, filled up with `NOT_SHOWN` or not.
    """
    orderings, shown = completed(rankings, logits.shape[-1])
    shape = torch.broadcast_shapes(orderings.shape, logits.shape)
    placed = logits.expand(shape).gather(-1, orderings.expand(shape))
    # PLR Eq. 2: the r-th factor normalises over the items not yet placed, which are the
    # suffix of the ordering, so one reversed logcumsumexp gives every denominator.
    remaining = placed.flip(-1).logcumsumexp(dim=-1)
    return (placed - remaining.flip(-1)).masked_fill(~shown, 0.0).sum(dim=-1)


def item_position_marginals(logits: Tensor, length: int, step: float) -> Tensor:
    """Probability of each item at each of the first places, ``[n, length]`` from float64 logits ``[n]``.

    An item's Gumbel-perturbed rank is the number of independent exponential clocks that ring before its own; given
    its ringing time that number is Poisson-binomial, and the time is integrated out by the trapezoid rule in
    log-time, which converges geometrically here.
    """
    n = logits.shape[0]
    # The density of log-time decays as exp(s) to the left and doubly exponentially to the right.
    start, stop = -float(logits.max()) - 30.0, -float(logits.min()) + 4.0
    total = torch.zeros(n, length, dtype=torch.float64, device=logits.device)
    points = torch.arange(start, stop, step, dtype=torch.float64, device=logits.device)
    for times in points.split(max(1, 2_000_000 // (n * n))):
        log_hazards = logits + times[:, None]  # [q, n]
        hazards = log_hazards.exp()
        density = (log_hazards - hazards).exp()  # of item i ringing at this log-time
        rung = -torch.expm1(-hazards)  # probability of having rung before
        counts = torch.zeros(len(times), n, length, dtype=torch.float64, device=logits.device)
        counts[:, :, 0] = 1.0
        for j in range(n):
            # Item j's own row does not count its own clock.
            hit = rung[:, j, None].repeat(1, n)
            hit[:, j] = 0.0
            shifted = torch.nn.functional.pad(counts[:, :, :-1], (1, 0))
            counts = counts * (1.0 - hit[..., None]) + shifted * hit[..., None]
        total += (density[..., None] * counts).sum(dim=0)
    return total * step
