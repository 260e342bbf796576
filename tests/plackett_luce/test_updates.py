import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plr_dspy import MaximumLikelihood, MixtureEM, PlackettLuce, RankEMA
from plr_dspy.plackett_luce.distribution import log_probabilities, padded
from plr_dspy.plackett_luce.updates import UpdateRule, update_rule

GOLDEN = json.loads((Path(__file__).parent / "golden_updates.json").read_text())
RULES = [RankEMA(), MaximumLikelihood(num_steps=10), MixtureEM(num_steps=10)]

every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def float64(values):
    return None if values is None else torch.tensor(values, dtype=torch.float64)


@st.composite
def rankings(draw, size=5, count=4):
    orders = draw(st.lists(st.permutations(range(size)), min_size=count, max_size=count))
    return padded([order[: draw(st.integers(0, size))] for order in orders], size)


class TestGolden:
    """Agreement with the published implementation's arithmetic."""

    @pytest.mark.parametrize("case", GOLDEN["mle_adam"])
    def test_maximum_likelihood(self, case):
        given = {name: case[name] for name in ("learning_rate", "l2", "clip")}
        rule = MaximumLikelihood(num_steps=case["steps"], **given)
        elites, weights = torch.tensor(case["elites"]), float64(case["weights"])
        fitted = rule.fit(float64(case["initial_logits"]), elites, weights)
        torch.testing.assert_close(fitted, float64(case["fitted_logits"]), atol=1e-6, rtol=0)

    @pytest.mark.parametrize("case", GOLDEN["ema"])
    def test_rank_ema(self, case):
        rule = RankEMA(smoothing=case["smoothing"], temperature=case["temperature"])
        updated = rule.update(PlackettLuce(float64(case["logits"])), torch.tensor(case["elites"]))
        torch.testing.assert_close(updated.logits, float64(case["updated_logits_centred"]), atol=1e-6, rtol=0)

    def test_defaults_are_the_papers(self):
        mle, em, ema = MaximumLikelihood(), MixtureEM(), RankEMA()
        assert (ema.smoothing, ema.temperature, ema.clip) == (0.7, 1.0, 20.0)
        for rule in (mle, em):
            assert (rule.smoothing, rule.num_steps, rule.learning_rate) == (0.7, 60, 0.1)
            assert (rule.l2, rule.clip) == (0.0, 20.0)
        assert (em.num_components, em.weight_floor) == (4, 1e-3)


class TestFit:
    @pytest.mark.parametrize("l2", [0.0, 0.3])
    @pytest.mark.parametrize("shape", [(5,), (3, 5)])
    @pytest.mark.parametrize("rows", [[[0, 1, 2, 3, 4], [4, 2, 0, 3, 1]], [[3, 1], [], [4, 0, 2, 1, 3], [2]]])
    def test_is_that_of_torch(self, shape, l2, rows):
        """Its Adam, with gradients by autograd."""
        generator = torch.Generator().manual_seed(len(shape))
        start = torch.randn(shape, dtype=torch.float64, generator=generator)
        elites = padded(rows, 5)
        weights = torch.rand((*shape[:-1], len(rows)), dtype=torch.float64, generator=generator)
        rule = MaximumLikelihood(l2=l2, clip=1.5, num_steps=40)

        def projected(logits):
            return (logits - logits.mean(-1, keepdim=True)).clamp(-rule.clip, rule.clip)

        theta = projected(start).requires_grad_(True)
        adam = torch.optim.Adam([theta], lr=rule.learning_rate, weight_decay=l2, maximize=True)
        for _ in range(rule.num_steps):
            adam.zero_grad()
            (weights * log_probabilities(theta.unsqueeze(-2), elites)).sum().backward()
            adam.step()
            with torch.no_grad():
                theta.copy_(projected(theta))
        torch.testing.assert_close(rule.fit(start, elites, weights), theta.detach(), rtol=0, atol=1e-9)

    def test_smoothing_mixes_old_and_fitted_logits(self):
        start, elites = PlackettLuce(float64([0.5, 0.0, -0.5])), torch.tensor([[2, 1, 0]])
        rule = MaximumLikelihood(smoothing=0.25)
        expected = 0.75 * start.logits + 0.25 * rule.fit(start.logits, elites)
        torch.testing.assert_close(rule.update(start, elites).logits, expected - expected.mean())


def test_items_left_out_share_the_places_left_over():
    """Means of ranks 0 = first: of [2, 0] they are 1, 2.5, 0, 2.5."""
    updated = RankEMA(smoothing=1.0).update(RankEMA().initial(4), padded([[2, 0], [3, 1, 0, 2]], 4))
    ranks = (float64([1, 2.5, 0, 2.5]) + float64([2, 1, 3, 0])) / 2
    torch.testing.assert_close(updated.logits, ranks.mean() - ranks)


class TestMixtureEM:
    def test_finds_two_noisy_modes_in_the_right_shares(self):
        generator = torch.Generator().manual_seed(0)
        strong = torch.linspace(6, -6, 7, dtype=torch.float64)
        draws = [PlackettLuce(s * strong, generator=generator).sample((m,)) for s, m in ((1, 30), (-1, 10))]
        rule = MixtureEM(num_components=2, l2=0.1)
        mixture = rule.initial(7)
        for _ in range(10):
            mixture = rule.update(mixture, torch.cat(draws))
        logits = mixture.logits[mixture.weights.argmax()]
        assert mixture.weights.max().item() == pytest.approx(0.75, abs=0.05)
        assert torch.corrcoef(torch.stack([logits, strong]))[0, 1] > 0.9

    @pytest.mark.parametrize("num_items", [3, 4])
    def test_more_components_come_nearer_to_any_distribution_and_as_many_as_orderings_fit(self, num_items):
        """The theorem of the paper on expressivity; one component has n - 1 free numbers for n! - 1 probabilities."""
        every = torch.tensor(list(itertools.permutations(range(num_items))))
        target = torch.empty(len(every), dtype=torch.float64)
        target = target.exponential_(generator=torch.Generator().manual_seed(1))
        target /= target.sum()

        def divergence(count):
            rule, found = MixtureEM(num_components=count, weight_floor=1e-12, smoothing=1.0), []
            mixture = rule.initial(num_items)
            for _ in range(20):
                mixture = rule.update(mixture, every, target)
                found.append(float(target @ (target.log() - mixture.log_prob(every))))
            return min(found)

        one, two, all_of_them = map(divergence, (1, 2, len(every)))
        assert one > two > all_of_them > -1e-12
        assert one > 0.1
        assert all_of_them < 1e-2


class TestEveryRule:
    @every_rule
    @given(elites=rankings())
    def test_is_pure_and_stays_finite(self, rule, elites):
        copy, start = elites.clone(), rule.initial(5)
        before = start.state_dict()
        updated = rule.update(rule.update(start, elites), elites)
        assert torch.equal(elites, copy)
        assert start.state_dict() == before
        assert torch.isfinite(updated.logits).all()
        assert updated.logits.abs().max() <= 20.0
        torch.testing.assert_close(updated.logits.mean(-1), torch.zeros_like(updated.logits.mean(-1)))

    @every_rule
    def test_starts_uniform_and_makes_the_elites_more_probable(self, rule):
        elites, start = padded([[2, 0, 1], [2, 1, 0], [2]], 3), rule.initial(3)
        assert start.log_prob(start.enumerate_support()).exp().tolist() == pytest.approx([1 / 6] * 6)
        after = rule.update(start, elites)
        assert (after.log_prob(elites[:2]) > start.log_prob(elites[:2])).all()

    @every_rule
    @pytest.mark.parametrize(
        ("elites", "weights", "message"),
        [
            ([[0, 1]], None, "elites must have shape"),
            ([[0, 1, 2]], [1.0, 2.0], "one entry for each"),
            ([[0, 1, 2]], [float("nan")], "finite"),
            ([[0, 1, 2]], [0.0], "not all 0"),
            ([[0, 1, 2], [2, 1, 0]], [1.0, -1.0], "not negative"),
            *(
                ([[0, 1, 2], row], None, "different items in each row, followed by -1")
                for row in ([-1, 0, 1], [0, 0, 1], [0, 3, -1], [0, -2, -2])
            ),
        ],
    )
    def test_refuses_bad_elites(self, rule, elites, weights, message):
        with pytest.raises(ValueError, match=message):
            rule.update(rule.initial(3), torch.tensor(elites), float64(weights))


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        *((RankEMA, {name: 0.0}) for name in ("smoothing", "temperature", "clip")),
        (MaximumLikelihood, {"smoothing": 1.5}),
        (MaximumLikelihood, {"learning_rate": float("nan")}),
        *((MixtureEM, {name: value}) for name in ("num_steps", "num_components") for value in (0, 1.5)),
        *((MixtureEM, {"l2": -0.1}), (MixtureEM, {"weight_floor": 1.0}), (MixtureEM, {"steps": 3})),
    ],
)
def test_refuses_parameters_out_of_range_by_name(rule, options):
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        rule(**options)


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
