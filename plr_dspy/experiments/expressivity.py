"""How well mixtures of Plackett-Luce models fit any distribution over orderings (PLR, theorem on expressivity).

One Plackett-Luce has n - 1 free logits for the n! - 1 free probabilities of a target, and cannot follow most
targets. A sharp one comes as near as wanted to a single ordering, so that n! of them, weighted by the target,
come as near as wanted to any target: `sharp_mixture` is that proof, and `fit_mixture` finds how few do.

With bounded logits a mixture still follows any target close enough to uniform, but none that is sharper than
the sharpest Plackett-Luce within the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import MixtureSameFamily

from plr_dspy.orderings.plackett_luce import OrderingDistribution, PlackettLuce, plackett_luce_mixture
from plr_dspy.orderings.updates import MixtureEM

_MAX_ITEMS = 7
"""The update rule compares all pairs of the n! orderings."""

_PATIENCE = 10
"""Iterations without progress that end a start."""


def opposed_target(num_items: int) -> Tensor:
    """Half the probability on the items' own order and half on its reverse, ``[n!]``."""
    target = torch.zeros(math.factorial(num_items), dtype=torch.float64)
    target[[0, -1]] = 0.5
    return target


def random_target(num_items: int, *, seed: int) -> Tensor:
    """A distribution drawn uniformly from all distributions over orderings, ``[n!]``."""
    clocks = torch.empty(math.factorial(num_items), dtype=torch.float64)
    clocks.exponential_(generator=torch.Generator().manual_seed(seed))
    return clocks / clocks.sum()


def divergence(target: Tensor | Sequence[float], distribution: OrderingDistribution) -> float:
    """KL(target || distribution) in nats.

    Args:
        target: Probabilities of all orderings, ``[n!]``, in the order of `itertools.permutations`.
        distribution: Over orderings of the same n items.
    """
    orderings, probabilities = _support(target)
    num_items = distribution.event_shape[0]
    if orderings.shape[1] != num_items:
        raise ValueError(
            f"target must have {num_items}! probabilities, as the distribution has {num_items} items; "
            f"got {len(torch.as_tensor(target))}"
        )
    return _divergence(orderings, probabilities, distribution)


def sharp_mixture(target: Tensor | Sequence[float], *, clip: float = 20.0) -> MixtureSameFamily:
    """A mixture of one sharp Plackett-Luce around each ordering, weighted by the target.

    Its divergence from any target is at most ``-log p``, p being the probability that a component gives to its
    own ordering, and that goes to 1 as `clip` grows.

    Args:
        target: Probabilities of all orderings, ``[n!]``, in the order of `itertools.permutations`.
        clip: Bound on the absolute value of a logit; the logits are spaced evenly within it.
    """
    _check_positive("clip", clip)
    orderings, probabilities = _support(target)
    levels = torch.linspace(clip, -clip, orderings.shape[1], dtype=torch.float64)
    # An item's rank in the ordering picks its level.
    return plackett_luce_mixture(probabilities, levels[orderings.argsort(dim=-1)])


def fit_mixture(
    target: Tensor | Sequence[float],
    *,
    num_components: int,
    clip: float = 20.0,
    num_starts: int = 3,
    num_iterations: int = 50,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> tuple[MixtureSameFamily, float]:
    """Fit a mixture to a distribution over orderings, with the search's own update rule.

    Each iteration is one `MixtureEM.update` on all orderings of the target, with its probabilities as weights,
    without smoothing. The first start has equal components, which the rule separates; the others have random
    ones, because EM finds local optima.

    Args:
        target: Probabilities of all orderings, ``[n!]``, in the order of `itertools.permutations`.
        num_components: Number of Plackett-Luce components C.
        clip: Bound on the absolute value of a logit, as `MixtureEM` keeps it: no two differ by more than twice it.
        num_starts: Starts, of which the best fit counts.
        num_iterations: Most iterations of a start.
        tolerance: A start ends after 10 iterations that lower its divergence by less in all.
        seed: Of the random starts.

    Returns:
        The best fit, and its KL(target || fit) in nats.
    """
    _check_positive("tolerance", tolerance)
    for name, count in (("num_starts", num_starts), ("num_iterations", num_iterations)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1; got {count!r}")
    orderings, probabilities = _support(target)
    # The rule's floor keeps components alive for elites to come; here all orderings are there from the start.
    rule = MixtureEM(num_components=num_components, weight_floor=1e-12, smoothing=1.0, clip=clip)
    generator = torch.Generator().manual_seed(seed)
    starts = [rule.initial(orderings.shape[1])]
    while len(starts) < num_starts:
        starts.append(_random_mixture(num_components, orderings.shape[1], generator))
    fits = [_ascend(rule, start, orderings, probabilities, num_iterations, tolerance) for start in starts]
    return min(fits, key=lambda fit: fit[1])


def _ascend(
    rule: MixtureEM,
    start: MixtureSameFamily,
    orderings: Tensor,
    probabilities: Tensor,
    num_iterations: int,
    tolerance: float,
) -> tuple[MixtureSameFamily, float]:
    """The best of the rule's iterates: Adam's steps have a fixed size, so that the last need not be it."""
    current = rule.update(start, orderings, probabilities)
    best = (current, _divergence(orderings, probabilities, current))
    history = [best[1]]
    while len(history) < num_iterations:
        if len(history) > _PATIENCE and history[-1 - _PATIENCE] - history[-1] < tolerance:
            break
        current = rule.update(current, orderings, probabilities)
        best = min(best, (current, _divergence(orderings, probabilities, current)), key=lambda fit: fit[1])
        history.append(best[1])
    return best


def _random_mixture(num_components: int, num_items: int, generator: torch.Generator) -> MixtureSameFamily:
    weights = torch.full((num_components,), 1.0 / num_components, dtype=torch.float64)
    logits = torch.randn(num_components, num_items, dtype=torch.float64, generator=generator)
    return plackett_luce_mixture(weights, logits)


def _divergence(orderings: Tensor, probabilities: Tensor, distribution: OrderingDistribution) -> float:
    # 0 log 0 is 0: the orderings are those that the target gives a probability.
    return float(probabilities @ (probabilities.log() - distribution.log_prob(orderings)))


def _support(target: Tensor | Sequence[float]) -> tuple[Tensor, Tensor]:
    """Orderings ``[m, n]`` with a positive probability, most probable first, and those probabilities ``[m]``."""
    probabilities = torch.as_tensor(target, dtype=torch.float64)
    counts = {math.factorial(n): n for n in range(2, _MAX_ITEMS + 1)}
    if probabilities.dim() != 1 or len(probabilities) not in counts:
        raise ValueError(
            "target must have one probability for each of the n! orderings of n = 2 to "
            f"{_MAX_ITEMS} items (2, 6, 24, ...); got shape {list(probabilities.shape)}"
        )
    total = float(probabilities.sum())
    if not bool((probabilities >= 0).all()) or not math.isclose(total, 1.0, abs_tol=1e-6):
        raise ValueError(
            f"target must hold probabilities that are not negative and sum to 1; got {float(probabilities.min())} "
            f"as the least and {total} as the sum: divide by the sum"
        )
    uniform = PlackettLuce(torch.zeros(counts[len(probabilities)], dtype=torch.float64))
    by_probability = probabilities.argsort(descending=True, stable=True)
    kept = by_probability[probabilities[by_probability] > 0]
    return uniform.enumerate_support()[kept], probabilities[kept] / total


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive; got {value!r}")
