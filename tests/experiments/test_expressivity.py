import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from plr_dspy.experiments.expressivity import (
    divergence,
    fit_mixture,
    opposed_target,
    random_target,
    sharp_mixture,
)
from plr_dspy.orderings.plackett_luce import PlackettLuce, component_logits, plackett_luce_mixture


def plackett_luce(*logits):
    return PlackettLuce(torch.tensor(logits, dtype=torch.float64))


def probabilities(distribution):
    num_items = distribution.event_shape[0]
    return distribution.log_prob(plackett_luce(*[0.0] * num_items).enumerate_support()).exp()


def least_divergence(target, bound=None):
    """Of one Plackett-Luce from the target, by scipy; with a bound, of logits that lie within it."""
    num_items = {2: 2, 6: 3, 24: 4}[len(target)]
    return minimize(
        lambda logits: divergence(target, plackett_luce(*logits)),
        np.zeros(num_items),
        bounds=None if bound is None else [(-bound, bound)] * num_items,
    ).fun


class TestOneComponent:
    @pytest.mark.parametrize("num_items", [3, 4])
    @pytest.mark.parametrize("make", [opposed_target, lambda n: random_target(n, seed=1)])
    def test_stays_away_from_most_targets(self, make, num_items):
        target = make(num_items)
        least = least_divergence(target)
        assert least > 0.1
        _, fitted = fit_mixture(target, num_components=1, num_starts=1)
        assert fitted == pytest.approx(least, abs=1e-4)

    def test_of_two_opposed_orders_has_the_divergence_worked_out_by_hand(self):
        # By symmetry the outer two logits are equal; the middle item's odds are then best at sqrt 2.
        _, fitted = fit_mixture(opposed_target(3), num_components=1, num_starts=1)
        assert fitted == pytest.approx(2 * math.log(1 + math.sqrt(2)) - math.log(2), abs=1e-5)

    @pytest.mark.parametrize("logits", [(1.5, -0.3, -1.2), (0.7, -2.0, 1.6, -0.3), (3.0, 1.0, -1.0, -3.0)])
    def test_fits_a_plackett_luce(self, logits):
        target = probabilities(plackett_luce(*logits))
        fit, fitted = fit_mixture(target, num_components=1, num_starts=1)
        assert -1e-12 <= fitted < 1e-4
        expected = torch.tensor(logits, dtype=torch.float64)
        found = component_logits(fit)[0]
        torch.testing.assert_close(found - found.mean(), expected - expected.mean(), atol=0.02, rtol=0)


class TestMoreComponents:
    @pytest.mark.parametrize("num_items", [3, 4])
    def test_come_nearer_and_as_many_as_orderings_fit(self, num_items):
        counts = [1, 2, math.factorial(num_items)]
        targets = [random_target(num_items, seed=seed) for seed in (1, 2)]
        fits = [
            [fit_mixture(t, num_components=count, num_starts=1, num_iterations=15)[1] for t in targets]
            for count in counts
        ]
        assert np.all(np.diff(np.mean(fits, axis=1)) < 0)
        assert np.min(fits) > -1e-12
        assert max(fits[-1]) < 1e-2

    @pytest.mark.parametrize("num_items", [3, 4])
    def test_two_fit_two_opposed_orders(self, num_items):
        fit, fitted = fit_mixture(
            opposed_target(num_items), num_components=2, num_starts=1, num_iterations=20
        )
        assert fitted < 1e-3
        order = list(range(num_items))
        assert sorted(fit.component_distribution.mode.tolist()) == [order, order[::-1]]

    def test_two_recover_a_mixture_of_two(self):
        truth = plackett_luce_mixture(
            torch.tensor([0.7, 0.3], dtype=torch.float64),
            torch.tensor([[2.0, 0.5, -0.5, -2.0], [-3.0, -1.0, 1.0, 3.0]], dtype=torch.float64),
        )
        fit, fitted = fit_mixture(probabilities(truth), num_components=2, num_starts=1)
        assert fitted < 1e-3
        assert max(fit.mixture_distribution.probs) == pytest.approx(0.7, abs=0.02)


class TestSharpMixture:
    @settings(max_examples=30, deadline=None)
    @given(
        parts=st.sampled_from([6, 24]).flatmap(
            lambda m: st.lists(st.floats(0, 1), min_size=m, max_size=m).filter(lambda p: sum(p) > 1e-3)
        ),
        clip=st.floats(0.5, 20.0),
    )
    def test_is_as_near_as_its_components_are_sharp(self, parts, clip):
        target = torch.tensor(parts, dtype=torch.float64) / sum(parts)
        num_items = 3 if len(parts) == 6 else 4
        own = plackett_luce(*np.linspace(clip, -clip, num_items)).log_prob(torch.arange(num_items)).item()
        assert -1e-12 <= divergence(target, sharp_mixture(target, clip=clip)) <= -own + 1e-12

    @pytest.mark.parametrize("num_items", [3, 4])
    def test_fits_any_target_with_a_component_for_each_ordering(self, num_items):
        target = random_target(num_items, seed=3)
        mixture = sharp_mixture(target)
        assert len(component_logits(mixture)) == math.factorial(num_items)
        assert divergence(target, mixture) < 1e-2
        torch.testing.assert_close(probabilities(mixture), target, atol=1e-4, rtol=0)


class TestBoundedLogits:
    def test_no_number_of_components_is_sharper_than_the_sharpest_within_the_bound(self):
        target = torch.eye(6, dtype=torch.float64)[2]
        fit, fitted = fit_mixture(target, num_components=6, clip=1.0, num_starts=2, num_iterations=20)
        logits = component_logits(fit)
        assert (logits.amax(dim=1) - logits.amin(dim=1)).max() <= 2.0 + 1e-9
        assert fitted >= least_divergence(target, bound=1.0) - 1e-9 > 0.1

    def test_targets_near_uniform_are_fitted_all_the_same(self):
        target = 0.9 * torch.full((6,), 1 / 6, dtype=torch.float64) + 0.1 * opposed_target(3)
        _, one = fit_mixture(target, num_components=1, clip=1.0, num_starts=1)
        _, several = fit_mixture(target, num_components=6, clip=1.0, num_starts=2)
        assert several < 1e-4 < least_divergence(target) <= one + 1e-9


class TestDivergence:
    def test_is_that_of_the_definition(self):
        target, other = random_target(3, seed=0), plackett_luce(0.3, -1.0, 0.7)
        expected = sum(
            p * math.log(p / q) for p, q in zip(target.tolist(), probabilities(other).tolist(), strict=True)
        )
        assert divergence(target.tolist(), other) == pytest.approx(expected, abs=1e-12)

    @settings(max_examples=50, deadline=None)
    @given(st.integers(0, 10_000), st.lists(st.floats(-5, 5), min_size=4, max_size=4))
    def test_is_never_negative_and_0_from_itself(self, seed, logits):
        distribution = plackett_luce(*logits)
        assert divergence(random_target(4, seed=seed), distribution) >= -1e-12
        assert divergence(probabilities(distribution), distribution) == pytest.approx(0.0, abs=1e-12)

    def test_orderings_are_lexicographic(self):
        target = torch.eye(6, dtype=torch.float64)[3]  # 1, 2, 0
        near, far = plackett_luce(-9.0, 9.0, 0.0), plackett_luce(0.0, -9.0, 9.0)
        assert divergence(target, near) < 1e-3 < 5 < divergence(target, far)


def test_the_same_seed_gives_the_same_fit_and_leaves_the_target():
    target = random_target(3, seed=5)
    copy = target.clone()
    runs = [fit_mixture(target, num_components=2, num_starts=2, num_iterations=5, seed=s) for s in (1, 1)]
    assert runs[0][1] == runs[1][1]
    assert torch.equal(component_logits(runs[0][0]), component_logits(runs[1][0]))
    assert torch.equal(target, copy)


def test_more_starts_find_a_better_fit():
    target = random_target(4, seed=2)
    one, several = (fit_mixture(target, num_components=2, num_starts=k, num_iterations=10)[1] for k in (1, 4))
    assert several < one


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([0.2] * 5, "n! orderings"),
        ([1.0], "n! orderings"),
        ([[0.5, 0.5]], "n! orderings"),
        ([0.7, 0.7], "sum to 1"),
        ([1.5, -0.5], "not negative"),
        ([float("nan"), 1.0], "not negative"),
    ],
)
def test_refuses_what_is_no_distribution(target, message):
    for use in (sharp_mixture, lambda t: fit_mixture(t, num_components=1)):
        with pytest.raises(ValueError, match=message):
            use(target)


@pytest.mark.parametrize(
    "wrong",
    [{"num_components": 0}, {"clip": 0.0}, {"num_starts": 0}, {"num_iterations": 0}, {"tolerance": 0.0}],
)
def test_refuses_settings_out_of_range(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        fit_mixture([0.5, 0.5], **{"num_components": 1, **wrong})


def test_refuses_a_distribution_over_other_items():
    with pytest.raises(ValueError, match="3!"):
        divergence([0.5, 0.5], plackett_luce(0.0, 0.0, 0.0))
