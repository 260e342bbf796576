"""The update rules of the Plackett-Luce distribution."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plr_dspy import CrossEntropySearch, MaximumLikelihood, MixtureEM, OrderingSpace, PlackettLuce, RankEMA
from plr_dspy.plackett_luce.distribution import log_probabilities, padded
from plr_dspy.plackett_luce.updates import UpdateRule, update_rule

GOLDEN = json.loads((Path(__file__).parent / "golden_updates.json").read_text())
RULES = [RankEMA(), MaximumLikelihood(num_steps=10), MixtureEM(num_steps=10)]

every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def float64(values):
    if values is None:
        return None
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def rankings(draw):
    orders = draw(st.lists(st.permutations(range(5)), min_size=4, max_size=4))
    return padded([order[: draw(st.integers(0, 5))] for order in orders], 5)


class TestGolden:
    """Agreement of the update rules with the published implementation."""

    @pytest.mark.parametrize("case", GOLDEN["mle_adam"])
    def test_maximum_likelihood(self, case):
        rule = MaximumLikelihood(
            num_steps=case["steps"], learning_rate=case["learning_rate"], l2=case["l2"], clip=case["clip"]
        )
        elites = torch.tensor(case["elites"])
        fitted = rule.fit(float64(case["initial_logits"]), elites, float64(case["weights"]))
        torch.testing.assert_close(fitted, float64(case["fitted_logits"]), atol=1e-6, rtol=0)

    @pytest.mark.parametrize("case", GOLDEN["ema"])
    def test_rank_ema(self, case):
        rule = RankEMA(smoothing=case["smoothing"], temperature=case["temperature"])
        start = PlackettLuce(float64(case["logits"]))
        updated = rule.update(start, torch.tensor(case["elites"]))
        expected = float64(case["updated_logits_centred"])
        torch.testing.assert_close(updated.logits, expected, atol=1e-6, rtol=0)

    def test_defaults(self):
        ema = RankEMA()
        assert ema.smoothing == 0.7
        assert ema.temperature == 1.0
        assert ema.clip == 20.0
        em = MixtureEM()
        assert (em.num_components, em.weight_floor) == (4, 1e-3)
        for rule in (MaximumLikelihood(), em):
            assert rule.smoothing == 0.7
            assert rule.num_steps == 60
            assert rule.learning_rate == 0.1
            assert (rule.l2, rule.clip) == (0.0, 20.0)


def adam_of_torch(rule, start, elites, weights):
    """Return logits fitted by torch's Adam, with gradients from autograd."""

    def projected(logits):
        centred = logits - logits.mean(-1, keepdim=True)
        return centred.clamp(-rule.clip, rule.clip)

    theta = projected(start).requires_grad_(True)
    options = {"lr": rule.learning_rate, "weight_decay": rule.l2, "maximize": True}
    adam = torch.optim.Adam([theta], **options)
    for _ in range(rule.num_steps):
        adam.zero_grad()
        log_likelihood = (weights * log_probabilities(theta.unsqueeze(-2), elites)).sum()
        log_likelihood.backward()
        adam.step()
        with torch.no_grad():
            theta.copy_(projected(theta))
    return theta.detach()


class TestFit:
    @pytest.mark.parametrize("l2", [0.0, 0.3])
    @pytest.mark.parametrize("shape", [(5,), (3, 5)])
    @pytest.mark.parametrize(
        "rows", [[[0, 1, 2, 3, 4], [4, 2, 0, 3, 1]], [[3, 1], [], [4, 0, 2, 1, 3], [2]]]
    )
    def test_agrees_with_torch(self, shape, l2, rows):
        generator = torch.Generator().manual_seed(len(shape))
        start = torch.randn(shape, dtype=torch.float64, generator=generator)
        weights = torch.rand((*shape[:-1], len(rows)), dtype=torch.float64, generator=generator)
        elites = padded(rows, 5)
        rule = MaximumLikelihood(l2=l2, clip=1.5, num_steps=40)
        expected = adam_of_torch(rule, start, elites, weights)
        torch.testing.assert_close(rule.fit(start, elites, weights), expected, rtol=0, atol=1e-9)

    def test_update_mixes_old_and_fitted_logits(self):
        start = PlackettLuce(float64([0.5, 0.0, -0.5]))
        elites = torch.tensor([[2, 1, 0]])
        rule = MaximumLikelihood(smoothing=0.25)
        expected = 0.75 * start.logits + 0.25 * rule.fit(start.logits, elites)
        updated = rule.update(start, elites)
        torch.testing.assert_close(updated.logits, expected - expected.mean())


def test_rank_ema_assigns_the_mean_remaining_rank_to_items_not_shown():
    """The ranking [2, 0] of four items assigns the items the ranks 1, 2.5, 0 and 2.5."""
    rule = RankEMA(smoothing=1.0)
    updated = rule.update(rule.initial(4), padded([[2, 0], [3, 1, 0, 2]], 4))
    ranks = (float64([1, 2.5, 0, 2.5]) + float64([2, 1, 3, 0])) / 2
    torch.testing.assert_close(updated.logits, ranks.mean() - ranks)


def divergence_of_fit(target, orderings, num_components):
    """Return the smallest Kullback-Leibler divergence between `target` and the fit in 20 updates."""
    rule = MixtureEM(num_components=num_components, weight_floor=1e-12, smoothing=1.0)
    mixture = rule.initial(orderings.shape[1])
    divergences = []
    for _ in range(20):
        mixture = rule.update(mixture, orderings, target)
        divergence = target @ (target.log() - mixture.log_prob(orderings))
        divergences.append(float(divergence))
    return min(divergences)


class TestMixtureEM:
    def test_recovers_the_shares_of_two_noisy_modes(self):
        generator = torch.Generator().manual_seed(0)
        logits = torch.linspace(6, -6, 7, dtype=torch.float64)
        ascending = PlackettLuce(logits, generator=generator).sample((30,))
        descending = PlackettLuce(-logits, generator=generator).sample((10,))
        rule = MixtureEM(num_components=2, l2=0.1)
        mixture = rule.initial(7)
        for _ in range(10):
            mixture = rule.update(mixture, torch.cat([ascending, descending]))
        heaviest = mixture.logits[mixture.weights.argmax()]
        assert mixture.weights.max().item() == pytest.approx(0.75, abs=0.05)
        assert torch.corrcoef(torch.stack([heaviest, logits]))[0, 1] > 0.9

    def test_one_component_per_ordering_fits_any_distribution(self):
        """Check the paper's theorem on expressivity with a random distribution."""
        orderings = torch.tensor(list(itertools.permutations(range(3))))
        target = torch.empty(len(orderings), dtype=torch.float64)
        target.exponential_(generator=torch.Generator().manual_seed(1))
        target /= target.sum()
        one = divergence_of_fit(target, orderings, 1)
        two = divergence_of_fit(target, orderings, 2)
        as_many = divergence_of_fit(target, orderings, len(orderings))
        assert one > 0.1
        assert one > two > as_many > -1e-12
        assert as_many < 1e-2


class TestEveryRule:
    @every_rule
    @given(elites=rankings())
    def test_does_not_change_its_arguments_and_stays_finite(self, rule, elites):
        start = rule.initial(5)
        state = start.state_dict()
        elites_before = elites.clone()
        updated = rule.update(rule.update(start, elites), elites)
        assert torch.equal(elites, elites_before)
        assert start.state_dict() == state
        assert torch.isfinite(updated.logits).all()
        assert updated.logits.abs().max() <= 20.0
        means = updated.logits.mean(-1)
        torch.testing.assert_close(means, torch.zeros_like(means))

    @every_rule
    def test_starts_uniform_and_makes_the_elites_more_probable(self, rule):
        elites = padded([[2, 0, 1], [2, 1, 0], [2]], 3)
        start = rule.initial(3)
        orderings = torch.tensor(list(itertools.permutations(range(3))))
        probabilities = start.log_prob(orderings).exp()
        assert probabilities.tolist() == pytest.approx([1 / 6] * 6)
        updated = rule.update(start, elites)
        assert (updated.log_prob(elites[:2]) > start.log_prob(elites[:2])).all()

    @every_rule
    @pytest.mark.parametrize(
        ("elites", "weights", "message"),
        [
            ([[0, 1, 2]], [1.0, 2.0], "one for each elite"),
            ([[0, 1, 2]], [math.nan], "numbers >= 0"),
            ([[0, 1, 2]], [0.0], "at least one must be above 0"),
            ([[0, 1, 2], [2, 1, 0]], [1.0, -1.0], "numbers >= 0"),
        ],
    )
    def test_rejects_invalid_weights(self, rule, elites, weights, message):
        with pytest.raises(ValueError, match=message):
            rule.update(rule.initial(3), torch.tensor(elites), float64(weights))


@pytest.mark.parametrize(
    ("rule", "name", "value"),
    [
        (RankEMA, "smoothing", 0.0),
        (RankEMA, "temperature", 0.0),
        (RankEMA, "clip", 0.0),
        (MaximumLikelihood, "smoothing", 1.5),
        (MaximumLikelihood, "learning_rate", math.nan),
        (MixtureEM, "num_steps", 0),
        (MixtureEM, "num_components", 1.5),
        (MixtureEM, "l2", -0.1),
        (MixtureEM, "weight_floor", 1.0),
        (MixtureEM, "steps", 3),
    ],
)
def test_errors_name_parameters_out_of_range(rule, name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        rule(**{name: value})


class Unchanged(UpdateRule):
    """An update rule that learns nothing."""

    name = "unchanged"

    def update(self, distribution, elites, weights=None):
        return distribution


def test_own_rules_need_only_a_name_and_the_method_update():
    rule = Unchanged(smoothing=0.5)
    assert update_rule(rule) is rule
    search = CrossEntropySearch(OrderingSpace.of_sizes(3, max_length=2), update=rule)
    orderings = search.ask()
    search.tell(orderings, {ordering: {0: 1.0} for ordering in orderings})
    assert search.distributions[0].logits.tolist() == [0.0] * 3


def test_update_rule_accepts_names_and_rules():
    assert update_rule("ema") == RankEMA()
    assert update_rule("mle") == MaximumLikelihood()
    assert update_rule("mixture") == MixtureEM()
    custom = MixtureEM(num_components=2)
    assert update_rule(custom) is custom
    with pytest.raises(ValueError, match="'newton'"):
        update_rule("newton")
    with pytest.raises(TypeError, match="or an update rule"):
        update_rule(MixtureEM)
