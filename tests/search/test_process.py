"""The additive process: effects, preferences, label bias and posterior."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import correlation

from plr_dspy import OrderingSpace
from plr_dspy.search.model.features import Features
from plr_dspy.search.model.process import (
    MAX_SHARE,
    OUTSIDER_VARIANCE,
    AdditiveProcess,
    LabelBias,
    preference_shares,
)
from plr_dspy.search.model.score_table import ScoreTable

SPACE = OrderingSpace.of_sizes(8)
FEATURES = Features(SPACE, classes=[[0, 1] * 4])
SIZE = 12
NUM = 40

few_missing = st.lists(st.sets(st.integers(0, SIZE - 1), max_size=4), min_size=SIZE, max_size=SIZE)
"""Missing columns of each of 12 rows. Any two rows share a known column, so the table is connected."""


def additive(seed, shape=(SIZE, SIZE)):
    rng = np.random.default_rng(seed)
    effects = rng.permutation(np.linspace(-1.0, 1.0, shape[0]))
    return effects, effects[:, None] + rng.normal(size=shape[1])


def adjusted(table):
    return ScoreTable(table).adjusted_means


class TestCrossedEffects:
    @settings(deadline=None)
    @given(few_missing, st.integers(0, 99), st.floats(-10, 10), st.floats(0.1, 10))
    def test_effects_are_estimated_on_any_scale_despite_missing_scores(self, missing, seed, shift, scale):
        effects, table = additive(seed)
        np.testing.assert_allclose(adjusted(table), effects - effects.mean(), atol=1e-9)
        alike = table.copy()
        for row, columns in enumerate([missing[0], missing[0], *missing[2:]]):
            alike[row, list(columns)] = np.nan
        means = adjusted(alike)
        assert correlation(means, effects) > 0.75
        assert means[0] - means[1] == pytest.approx(effects[0] - effects[1])
        np.testing.assert_allclose(adjusted(alike * scale + shift), means * scale, atol=1e-8)

    def test_effects_are_shrunk_more_with_fewer_examples(self):
        table = ScoreTable(np.array([[1.0] * 8, [0.0] * 8, [1.0] * 2 + [np.nan] * 6]))
        np.testing.assert_allclose(table.shrinkage, [8 / 33, 8 / 33, 2 / 27])
        weighted = ScoreTable(table.scores, information_weights=np.array([0.5, 1.0, 4.0]))
        np.testing.assert_allclose(weighted.shrinkage, [4 / 29, 8 / 33, 8 / 33])

    @pytest.mark.parametrize(
        ("scores", "expected"),
        [
            ([[0.3, np.nan], [np.nan, 0.9]], 3.0),  # No example has two scores.
            # The orderings agree, but the examples differ.
            ([[1.0, 0.0], [1.0, 0.0]], 0.05),
            ([[1.0, 1.0], [1.0, 1.0]], 3.0),
            # All examples are equally hard, so the ratio is (40 + 10) / (10 / 3).
            ([[1.0, 0.0] * 20, [0.0, 1.0] * 20], 15.0),
        ],
    )
    def test_noise_ratio_increases_with_disagreement_between_orderings(self, scores, expected):
        assert ScoreTable(np.array(scores)).noise_ratio == pytest.approx(expected)


def kernels(seed=0):
    rng = np.random.default_rng(seed)
    features = [rng.normal(size=(NUM, width)) / width**0.5 for width in (5, 12)]
    return [f @ f.T for f in features]


def preferring(shares, *, num_examples=60, seed=0, known=None):
    """Return scores in which preferences explain these shares of the variance. The rest is noise."""
    rng = np.random.default_rng(seed)
    rest = (1 - sum(shares)) * np.eye(NUM)
    explained = sum(s * kernel for s, kernel in zip(shares, kernels(), strict=True))
    covariance = explained + rest
    scores = np.linalg.cholesky(covariance) @ rng.normal(size=(NUM, num_examples))
    scores += rng.normal(size=num_examples)
    return scores if known is None else np.where(known, scores, np.nan)


def shares_of(scores):
    known = ~np.isnan(scores)
    rest = scores - np.nanmean(scores, axis=0)
    rest = rest - np.nanmean(rest, axis=1, keepdims=True)
    return preference_shares(kernels(), np.where(known, rest, 0.0), known)


@pytest.mark.parametrize("num_known", [60, 12])
@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.5, 0.0), (0.0, 0.4), (0.3, 0.3)])
def test_preference_shares_are_estimated_despite_missing_scores(shares, num_known):
    known = np.random.default_rng(1).random((NUM, 60)).argsort(axis=1) < num_known
    num_tables = 5 if num_known == 60 else 20
    tables = [preferring(shares, seed=seed, known=known) for seed in range(num_tables)]
    np.testing.assert_allclose(np.mean([*map(shares_of, tables)], axis=0), shares, atol=0.1)


class BiasedWorld:
    """A world in which the positions of items determine the label bias of orderings.

    Args:
        classes: Classes of the examples, repeated in turn.
        loadings: For each class, the increase of the score if the label bias is 1.
        gain: Decrease of the mean score per unit of absolute label bias.
    """

    def __init__(self, *, classes=(0, 1), loadings=(1.0, -1.0), gain=0.0, seed=0):
        rng = np.random.default_rng(seed)
        features = FEATURES(SPACE.draw(140, rng))
        region = features[FEATURES.names.index("region")]
        leaning = region @ rng.normal(size=region.shape[1])
        leaning /= leaning.std()
        self.known = [f[:80] for f in features]
        self.new = [f[80:] for f in features]
        self.classes = np.resize(np.array(classes), 24)
        truth = -gain * np.abs(leaning)
        self.explained = leaning[:80, None] * np.array(loadings)[self.classes]
        self.new_truth = truth[80:]
        scores = truth[:80, None] + self.explained + rng.normal(size=24) + 0.5 * rng.normal(size=(80, 24))
        holes = rng.random(scores.shape) >= 0.5
        holes[:, 0] = False
        self.scores = np.where(holes, np.nan, scores)

    def fit(self, *, scores=None):
        table = ScoreTable(self.scores if scores is None else scores)
        return AdditiveProcess(self.known, table, classes=self.classes, references=FEATURES.references)


@pytest.mark.parametrize(
    ("classes", "loadings"),
    [((0, 1), (1.0, -1.0)), ((0, 0, 0, 1), (0.5, -1.5)), ((0, 1, 2), (1.0, 0.0, -1.0))],
)
def test_label_bias_recovers_the_true_bias_of_each_ordering(classes, loadings):
    world = BiasedWorld(classes=classes, loadings=loadings)
    own = [*(family @ family.T for family in world.known), np.eye(80)]
    table = ScoreTable(world.scores)
    bias = LabelBias(world.known, own, table, world.classes, FEATURES.references)
    explained = bias.explained
    assert correlation(explained, world.explained) > 0.95
    slope = np.polyfit(world.explained.ravel(), explained.ravel(), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.15)


class World:
    """A world in which scores are linear in the features of one family."""

    def __init__(self, family="region", *, known=60, new=40, examples=16, missing=0.0, seed=0):
        rng = np.random.default_rng(seed)
        features = FEATURES(SPACE.draw(known + new, rng))
        values = features[FEATURES.names.index(family)]
        truth = values @ rng.normal(size=values.shape[1])
        truth *= 0.5 / truth.std()
        self.known = [f[:known] for f in features]
        self.new = [f[known:] for f in features]
        self.truth = truth[:known]
        self.new_truth = truth[known:]
        self.scores = self.truth[:, None] + rng.normal(size=examples)
        self.scores += rng.normal(size=self.scores.shape)
        holes = rng.random(self.scores.shape) < missing
        holes[:, 0] = False
        self.scores[holes] = np.nan

    def fit(self, scores=None, **options):
        table = ScoreTable(self.scores if scores is None else scores)
        return AdditiveProcess(self.known, table, **options)


def variances_of(process):
    return np.array(process.fit.variances)


def conditioned(world, variances):
    """Return the posterior mean and covariance of the orderings' values, given all known scores.

    Scores of two orderings on the same example are correlated, because the example prefers some orderings.
    """
    features = [np.concatenate(pair) for pair in zip(world.known, world.new, strict=True)]
    prior = sum(v * (f @ f.T) for v, f in zip(variances[:-1], features, strict=True))
    prior += variances[-1] * np.eye(len(prior))
    rows, columns = np.nonzero(~np.isnan(world.scores))
    effects = preferred(world)
    same = columns[:, None] == columns
    observed = prior[np.ix_(rows, rows)] + same * effects[np.ix_(rows, rows)]
    observed += np.diag(np.maximum(1.0 - np.diag(effects), 1.0 - MAX_SHARE)[rows])
    gain = np.linalg.solve(observed, prior[rows]).T
    # Subtract the mean by generalized least squares.
    weights = np.linalg.solve(observed, np.ones(len(rows)))
    scores = world.scores[rows, columns]
    scores = scores - weights @ scores / weights.sum()
    return gain @ scores, prior - gain @ prior[rows]


def preferred(world):
    """Return the covariance matrix of an example's preferences for orderings."""
    table = ScoreTable(world.scores)
    rest = np.where(table.known, world.scores - table.example_effects(adjusted(world.scores)), 0.0)
    rest = np.where(table.known, rest - adjusted(world.scores)[:, None], 0.0)
    linear = [f @ f.T for f in world.known]
    lengths = [np.sqrt(np.diag(k)) for k in linear]
    sharp = []
    for kernel, length in zip(linear, lengths, strict=True):
        scale = np.outer(length, length)
        sharp.append(scale * (kernel / scale) ** 3)
    shares = preference_shares([*linear, *sharp], rest, table.known)
    return sum(share * kernel for share, kernel in zip(shares, [*linear, *sharp], strict=True))


def test_rows_with_less_information_have_less_influence():
    errors = []
    noisy = np.arange(40) % 2 == 0
    for seed in range(6):
        world = World(known=40, seed=seed)
        rng = np.random.default_rng(seed)
        scores = world.scores + 3.0 * rng.normal(size=world.scores.shape) * noisy[:, None]
        weights = np.where(noisy, 0.1, 1.0)
        by_weight = ScoreTable(scores, information_weights=weights)
        for table in (ScoreTable(scores), by_weight):
            process = AdditiveProcess(world.known, table)
            rest = process.mean - world.truth
            errors.append((rest - rest.mean()).var())
        assert process.variances[noisy].mean() > 1.2 * process.variances[~noisy].mean()
    alike, weighted = np.reshape(errors, (6, 2)).mean(axis=0)
    assert weighted < 0.9 * alike


class TestPosterior:
    def test_mean_equals_gaussian_conditioning(self):
        world = World(known=20, new=10, examples=6)
        process = world.fit()
        expected, _ = conditioned(world, variances_of(process))
        expected += world.scores.mean() - expected[:20].mean()
        np.testing.assert_allclose(process.mean, expected[:20], atol=1e-9)
        np.testing.assert_allclose(process.predict(world.new), expected[20:], atol=1e-9)

    @pytest.mark.parametrize("missing", [0.0, 0.5])
    def test_draws_have_the_posterior_moments(self, missing):
        world = World(known=15, new=10, examples=40, missing=missing)
        process = world.fit()
        draws = process.sample(world.new, 40_000, np.random.default_rng(0))
        mean = np.concatenate([process.mean, process.predict(world.new)])
        deviation = draws.std(axis=0)
        assert draws.shape == (40_000, 25)
        assert (np.abs(draws.mean(axis=0) - mean) < 6 * deviation / 200).all()
        _, covariance = conditioned(world, variances_of(process))
        noise = deviation**2 / np.diag(covariance)
        assert noise.mean() == pytest.approx(1.0, abs=0.2)
        scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
        np.testing.assert_allclose(np.cov(draws.T) / noise.mean() / scale, covariance / scale, atol=0.04)
        alone = process.sample([f[:0] for f in world.new], 5, np.random.default_rng(0))
        assert alone.shape == (5, 15)

    def test_draws_of_an_outsider_have_its_posterior_mean(self):
        world = World(known=15, examples=8)
        scores = world.scores + 2.0 * np.random.default_rng(0).normal(size=(15, 1))
        scores[0] += 4.0
        outsiders = OUTSIDER_VARIANCE * (np.arange(15) == 0)
        process = AdditiveProcess(world.known, ScoreTable(scores), outsider_variances=outsiders)
        draws = process.sample([f[:0] for f in world.new], 40_000, np.random.default_rng(0))
        assert draws[:, 0].mean() == pytest.approx(process.mean[0], abs=6 * draws[:, 0].std() / 200)


class TestLearning:
    @pytest.mark.parametrize("family", FEATURES.names)
    def test_finds_the_relevant_family_and_predicts_new_orderings(self, family):
        world = World(family, known=120, missing=0.3)
        process = world.fit()
        assert FEATURES.names[int(np.argmax(variances_of(process)[:-1]))] == family
        assert correlation(process.predict(world.new), world.new_truth) > 0.7
        assert correlation(process.mean, world.truth) > 0.8

    @settings(deadline=None, max_examples=6)
    @given(
        st.sampled_from([World(missing=0.3), BiasedWorld(gain=0.5)]),
        st.floats(-99, 99),
        st.floats(0.01, 99),
    )
    def test_scores_may_have_any_scale(self, world, shift, scale):
        first = world.fit()
        second = world.fit(scores=world.scores * scale + shift)
        np.testing.assert_allclose(second.mean, first.mean * scale + shift, rtol=1e-5, atol=1e-5 * scale)
        np.testing.assert_allclose(variances_of(second), variances_of(first), rtol=1e-4, atol=1e-8)
        draws = [process.sample(world.new, 3, np.random.default_rng(0)) for process in (first, second)]
        np.testing.assert_allclose(draws[1], draws[0] * scale + shift, rtol=1e-4, atol=1e-4 * scale)

    @pytest.mark.parametrize("world", [World(), BiasedWorld(), World(known=1)])
    @pytest.mark.parametrize("score", [0.0, -3.5])
    def test_equal_scores_lead_to_equal_means_and_finite_draws(self, world, score):
        process = world.fit(scores=np.full_like(world.scores, score))
        np.testing.assert_allclose(process.mean, score, atol=1e-9)
        assert np.isfinite(process.sample(world.new, 5, np.random.default_rng(0))).all()
