import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from plr_dspy import MaximumLikelihood, MixtureEM, PlackettLuce, RankEMA
from plr_dspy.orderings.fitting import ascend_log_likelihood
from plr_dspy.orderings.plackett_luce import component_logits, plackett_luce_mixture
from plr_dspy.orderings.updates import UpdateRule, update_rule

GOLDEN = json.loads((Path(__file__).parent / "golden_updates.json").read_text())
RULES = [RankEMA(), MaximumLikelihood(num_steps=10), MixtureEM(num_steps=10)]


def float64(values):
    return None if values is None else torch.tensor(values, dtype=torch.float64)


def orderings(n, m):
    return st.lists(st.permutations(range(n)), min_size=m, max_size=m)


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(4,), (3, 6)])
def test_the_fit_is_that_of_torch(shape, l2):
    """Its Adam, with gradients by autograd."""
    generator = torch.Generator().manual_seed(len(shape))
    start = torch.randn(shape, dtype=torch.float64, generator=generator)
    elites = torch.rand((5, shape[-1]), generator=generator).argsort(dim=-1)
    weights = torch.rand((*shape[:-1], 5), dtype=torch.float64, generator=generator)
    settings = MaximumLikelihood(l2=l2, clip=1.5, num_steps=40)

    def projected(logits):
        return (logits - logits.mean(-1, keepdim=True)).clamp(-settings.clip, settings.clip)

    theta = projected(start).requires_grad_(True)
    adam = torch.optim.Adam([theta], lr=settings.learning_rate, weight_decay=l2, maximize=True)
    for _ in range(settings.num_steps):
        adam.zero_grad()
        (weights * PlackettLuce(theta.unsqueeze(-2)).log_prob(elites)).sum().backward()
        adam.step()
        with torch.no_grad():
            theta.copy_(projected(theta))
    found = ascend_log_likelihood(start, elites, weights, settings)
    torch.testing.assert_close(found, theta.detach(), rtol=0, atol=1e-9)


class TestGolden:
    """Agreement with the published implementation's arithmetic."""

    @pytest.mark.parametrize("case", GOLDEN["log_prob"])
    def test_log_prob(self, case):
        actual = PlackettLuce(float64(case["logits"])).log_prob(torch.tensor(case["ordering"]))
        assert actual.item() == pytest.approx(case["log_prob"], abs=1e-9)

    @pytest.mark.parametrize("case", GOLDEN["mle_adam"])
    def test_maximum_likelihood(self, case):
        rule = MaximumLikelihood(
            num_steps=case["steps"], learning_rate=case["learning_rate"], l2=case["l2"], clip=case["clip"]
        )
        elites, weights = torch.tensor(case["elites"]), float64(case["weights"])
        fitted = rule.fit(float64(case["initial_logits"]), elites, weights)
        torch.testing.assert_close(fitted, float64(case["fitted_logits"]), atol=1e-6, rtol=0)

    @pytest.mark.parametrize("case", GOLDEN["ema"])
    def test_rank_ema(self, case):
        rule = RankEMA(smoothing=case["smoothing"], temperature=case["temperature"])
        updated = rule.update(PlackettLuce(float64(case["logits"])), torch.tensor(case["elites"]))
        torch.testing.assert_close(updated.logits, float64(case["updated_logits_centred"]), atol=1e-6, rtol=0)


class TestPaperDefaults:
    def test_values(self):
        mle, em, ema = MaximumLikelihood(), MixtureEM(), RankEMA()
        assert (ema.smoothing, ema.temperature, ema.clip) == (0.7, 1.0, 20.0)
        for rule in (mle, em):
            assert (rule.smoothing, rule.num_steps, rule.learning_rate) == (0.7, 60, 0.1)
            assert (rule.l2, rule.clip) == (0.0, 20.0)
        assert (em.num_components, em.weight_floor) == (4, 1e-3)


class TestMaximumLikelihood:
    def test_reaches_the_maximum_that_scipy_finds(self):
        elites = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2], [0, 2, 1, 3], [3, 0, 1, 2]])
        weights = float64([1.0, 2.0, 0.5, 1.5])

        def loss(x):
            return -(weights * PlackettLuce(float64(x)).log_prob(elites)).sum().item() + 0.05 * (x**2).sum()

        best = minimize(loss, [0.0] * 4).x
        rule = MaximumLikelihood(num_steps=3000, learning_rate=0.02, l2=0.1)
        fitted = rule.fit(torch.zeros(4, dtype=torch.float64), elites, weights)
        torch.testing.assert_close(fitted, float64(best - best.mean()), atol=1e-4, rtol=0)

    def test_makes_the_elites_more_probable(self):
        elites = torch.tensor([[2, 0, 1], [2, 1, 0]])
        rule = MaximumLikelihood()
        before = rule.initial(3)
        after = rule.update(before, elites)
        assert (after.log_prob(elites) > before.log_prob(elites)).all()

    def test_smoothing_mixes_old_and_fitted_logits(self):
        start, elites = PlackettLuce(float64([0.5, 0.0, -0.5])), torch.tensor([[2, 1, 0]])
        rule = MaximumLikelihood(smoothing=0.25)
        expected = 0.75 * start.logits + 0.25 * rule.fit(start.logits, elites)
        torch.testing.assert_close(rule.update(start, elites).logits, expected - expected.mean())


class TestMixtureEM:
    def test_finds_both_of_two_opposed_orders(self):
        forward, backward = list(range(8)), list(reversed(range(8)))
        rule = MixtureEM(num_components=2)
        mixture = rule.initial(8)
        for _ in range(5):
            mixture = rule.update(mixture, torch.tensor([forward, backward, forward, backward]))
        modes = mixture.component_distribution.mode.tolist()
        assert sorted(modes) == [forward, backward]
        torch.testing.assert_close(mixture.mixture_distribution.probs, float64([0.5, 0.5]), atol=0.02, rtol=0)

    def test_finds_two_noisy_modes_in_the_right_shares(self):
        generator = torch.Generator().manual_seed(0)
        strong = torch.linspace(6, -6, 7, dtype=torch.float64)
        elites = torch.cat(
            [
                PlackettLuce(strong, generator=generator).sample((30,)),
                PlackettLuce(-strong, generator=generator).sample((10,)),
            ]
        )
        rule = MixtureEM(num_components=2, l2=0.1)
        mixture = rule.initial(7)
        for _ in range(10):
            mixture = rule.update(mixture, elites)
        weights = mixture.mixture_distribution.probs
        logits = mixture.component_distribution.logits[weights.argmax()]
        assert weights.max().item() == pytest.approx(0.75, abs=0.05)
        assert torch.corrcoef(torch.stack([logits, strong]))[0, 1] > 0.9

    def test_one_component_is_maximum_likelihood(self):
        elites = torch.tensor([[0, 2, 1, 3], [2, 0, 3, 1]])
        mixture, single = MixtureEM(num_components=1), MaximumLikelihood()
        fitted = mixture.update(mixture.initial(4), elites).component_distribution.logits[0]
        torch.testing.assert_close(fitted, single.update(single.initial(4), elites).logits)

    def test_one_component_is_weighted_maximum_likelihood(self):
        elites, weights = torch.tensor([[0, 2, 1, 3], [2, 0, 3, 1]]), torch.tensor([5.0, 1.0])
        mixture, single = MixtureEM(num_components=1), MaximumLikelihood()
        fitted = mixture.update(mixture.initial(4), elites, weights).component_distribution.logits[0]
        torch.testing.assert_close(fitted, single.update(single.initial(4), elites, weights).logits)

    def test_components_without_elites_keep_the_floor_and_stay(self):
        rule = MixtureEM(num_components=4)
        mixture = rule.update(rule.initial(3), torch.tensor([[0, 1, 2], [0, 1, 2]]))
        weights = mixture.mixture_distribution.probs
        assert sorted(weights.tolist())[:3] == pytest.approx([1e-3 / 1.003] * 3)
        idle = mixture.component_distribution.logits[weights.argsort()[:3]]
        torch.testing.assert_close(idle, torch.zeros(3, 3, dtype=torch.float64))

    def test_responsibilities_follow_the_likelihood_once_components_differ(self):
        rule = MixtureEM(num_components=2)
        mixture = rule.update(rule.initial(3), torch.tensor([[0, 1, 2], [2, 1, 0]]))
        moved = rule.update(mixture, torch.tensor([[0, 1, 2], [0, 1, 2], [0, 1, 2]]))
        first = int(mixture.component_distribution.logits[:, 0].argmax())
        assert moved.mixture_distribution.probs[first] > 0.9


class TestEveryRule:
    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    def test_starts_uniform(self, rule):
        distribution = rule.initial(3)
        every = PlackettLuce(torch.zeros(3)).enumerate_support()
        torch.testing.assert_close(
            distribution.log_prob(every).exp(), torch.full((6,), 1 / 6, dtype=torch.float64)
        )

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    @given(elites=orderings(5, 3))
    def test_is_pure_and_stays_finite(self, rule, elites):
        elites = torch.tensor(elites)
        copy, start = elites.clone(), rule.initial(5)
        state = [value.clone() for value in _logits(start)]
        updated = rule.update(rule.update(start, elites), elites)
        assert torch.equal(elites, copy)
        assert all(torch.equal(a, b) for a, b in zip(_logits(start), state, strict=True))
        for logits in _logits(updated):
            assert torch.isfinite(logits).all()
            assert logits.abs().max() <= 20.0
            torch.testing.assert_close(logits.mean(-1), torch.zeros_like(logits.mean(-1)))

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    def test_double_weight_is_the_elite_twice(self, rule):
        pair = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
        triple = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2], [1, 0, 3, 2]])
        weighted = rule.update(rule.initial(4), pair, torch.tensor([1.0, 2.0]))
        repeated = rule.update(rule.initial(4), triple)
        for a, b in zip(_logits(weighted), _logits(repeated), strict=True):
            torch.testing.assert_close(a, b)

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    @pytest.mark.parametrize(
        ("elites", "weights", "message"),
        [
            ([[0, 1]], None, "elites must have shape"),
            ([[0, 1, 2]], [1.0, 2.0], "one entry for each"),
            ([[0, 1, 2]], [float("nan")], "finite"),
            ([[0, 1, 2]], [0.0], "not all 0"),
            ([[0, 1, 2], [2, 1, 0]], [1.0, -1.0], "not negative"),
        ],
    )
    def test_refuses_bad_elites(self, rule, elites, weights, message):
        with pytest.raises(ValueError, match=message):
            rule.update(
                rule.initial(3), torch.tensor(elites), None if weights is None else torch.tensor(weights)
            )

    def test_mixture_and_single_are_not_mixed_up(self):
        elites = torch.tensor([[0, 1]])
        with pytest.raises(TypeError, match="MixtureEM"):
            MaximumLikelihood().update(MixtureEM().initial(2), elites)
        with pytest.raises(TypeError, match="mixture"):
            MixtureEM().update(RankEMA().initial(2), elites)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    def test_gpu_agrees_with_cpu(self, rule):
        elites = torch.stack([torch.randperm(6) for _ in range(4)])
        on_cpu = start = rule.initial(6)
        on_gpu = (
            plackett_luce_mixture(start.mixture_distribution.probs.cuda(), component_logits(start).cuda())
            if rule.name == "mixture"
            else PlackettLuce(start.logits.cuda())
        )
        for _ in range(3):
            on_cpu, on_gpu = rule.update(on_cpu, elites), rule.update(on_gpu, elites.cuda())
        torch.testing.assert_close(_logits(on_gpu)[0].cpu(), _logits(on_cpu)[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RankEMA(smoothing=0.0), "smoothing"),
        (lambda: RankEMA(temperature=0.0), "temperature"),
        (lambda: RankEMA(clip=-1.0), "clip"),
        (lambda: MaximumLikelihood(smoothing=1.5), "smoothing"),
        (lambda: MaximumLikelihood(num_steps=0), "num_steps"),
        (lambda: MaximumLikelihood(learning_rate=float("nan")), "learning_rate"),
        (lambda: MaximumLikelihood(l2=-0.1), "l2"),
        (lambda: MixtureEM(num_components=0), "num_components"),
        (lambda: MixtureEM(weight_floor=1.0), "weight_floor"),
    ],
)
def test_refuses_parameters_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_rules_by_name():
    assert update_rule("ema") == RankEMA()
    assert update_rule("mle") == MaximumLikelihood()
    assert update_rule("mixture") == MixtureEM()
    custom = MixtureEM(num_components=2)
    assert update_rule(custom) is custom
    assert isinstance(custom, UpdateRule)
    with pytest.raises(ValueError, match="'newton'"):
        update_rule("newton")
    with pytest.raises(TypeError, match="update object"):
        update_rule(MixtureEM)


def _logits(distribution):
    single = isinstance(distribution, PlackettLuce)
    return [distribution.logits if single else distribution.component_distribution.logits]
