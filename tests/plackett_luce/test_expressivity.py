"""How well mixtures of Plackett-Luce models fit any distribution over orderings (PLR, theorem on expressivity).

One Plackett-Luce has n - 1 free logits for the n! - 1 free probabilities of a target, and cannot follow most targets. A
sharp one comes as near as wanted to a single ordering, so n! of them, weighted by the target, come near to any target.
"""

import math
from itertools import permutations

import pytest
import torch

from plr_dspy import MixtureEM, PlackettLuce


def orderings(num_items):
    return torch.tensor(list(permutations(range(num_items))))


def random_target(num_items, seed):
    """A distribution drawn uniformly from all distributions over orderings."""
    clocks = torch.empty(math.factorial(num_items), dtype=torch.float64)
    clocks.exponential_(generator=torch.Generator().manual_seed(seed))
    return clocks / clocks.sum()


def opposed_target(num_items):
    """Half of the probability on one order, half on its reverse."""
    target = torch.zeros(math.factorial(num_items), dtype=torch.float64)
    target[[0, -1]] = 0.5
    return target


def divergence(target, distribution):
    """KL(target || distribution) in nats."""
    (num_items,) = distribution.event_shape
    there = target > 0
    return float(target[there] @ (target[there].log() - distribution.log_prob(orderings(num_items)[there])))


def fitted(target, num_items, num_components, num_steps=20):
    """Least divergence on the way of the search's own update, given all orderings with the target as their weights."""
    rule = MixtureEM(num_components=num_components, weight_floor=1e-12, smoothing=1.0)
    distribution, found = rule.initial(num_items), []
    there = target > 0
    for _ in range(num_steps):
        distribution = rule.update(distribution, orderings(num_items)[there], target[there])
        found.append(divergence(target, distribution))
    return min(found)


def test_one_component_has_the_divergence_worked_out_by_hand():
    # By symmetry the outer two logits are equal; the middle item's odds are then best at sqrt 2.
    expected = 2 * math.log(1 + math.sqrt(2)) - math.log(2)
    assert fitted(opposed_target(3), 3, 1) == pytest.approx(expected, abs=1e-4)


def test_one_component_fits_a_plackett_luce():
    truth = PlackettLuce(torch.tensor([0.7, -2.0, 1.6, -0.3], dtype=torch.float64))
    assert -1e-12 <= fitted(truth.log_prob(orderings(4)).exp(), 4, 1) < 1e-4


@pytest.mark.parametrize("num_items", [3, 4])
def test_more_components_come_nearer_and_as_many_as_orderings_fit(num_items):
    target = random_target(num_items, seed=1)
    one, two, all_of_them = (fitted(target, num_items, count) for count in (1, 2, math.factorial(num_items)))
    assert one > 0.1
    assert one > two > all_of_them > -1e-12
    assert all_of_them < 1e-2
    assert fitted(opposed_target(num_items), num_items, 2) < 1e-3


@pytest.mark.parametrize(("clip", "least"), [(20.0, 1e-2), (1.0, 1.0)])
def test_the_mixture_of_the_proof_is_as_near_as_its_components_are_sharp(clip, least):
    target = random_target(4, seed=3)
    levels = torch.linspace(clip, -clip, 4, dtype=torch.float64)
    mixture = PlackettLuce(levels[orderings(4).argsort(dim=-1)], weights=target)
    own = float(PlackettLuce(levels).log_prob(torch.arange(4)))
    assert -1e-12 <= divergence(target, mixture) <= min(least, -own + 1e-12)
