import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plr_dspy import OrderingSpace
from plr_dspy.search.surrogate.crossed_effects import (
    adjusted_means,
    example_effects,
    example_shrinkage,
    score_table,
    shrunk_means,
)
from plr_dspy.search.surrogate.features import FAMILIES, OrderingFeatures
from plr_dspy.search.surrogate.gaussian_process import Surrogate
from plr_dspy.search.surrogate.interactions import MAX_SHARE, interaction_shares

SPACE = OrderingSpace.of_sizes(8)
FEATURES = OrderingFeatures(SPACE, classes=[[0, 1] * 4])
SIZE = 12

few_missing = st.lists(st.sets(st.integers(0, SIZE - 1), max_size=4), min_size=SIZE, max_size=SIZE)
"""Of each of 12 rows: any two share a column, so that the table is connected."""


def with_holes(table, missing):
    table = table.copy()
    for row, columns in enumerate(missing):
        table[row, list(columns)] = np.nan
    return table


def additive(seed, shape=(SIZE, SIZE)):
    """Effects of orderings and the sums with effects of examples."""
    rng = np.random.default_rng(seed)
    effects = rng.permutation(np.linspace(-1.0, 1.0, shape[0]))
    return effects, effects[:, None] + rng.normal(size=shape[1])


def correlation(first, second):
    return np.corrcoef(first, second)[0, 1]


class TestAdjustedMeans:
    @settings(deadline=None)
    @given(st.integers(0, 99))
    def test_are_the_effects_where_nothing_is_missing(self, seed):
        effects, table = additive(seed, (7, 9))
        np.testing.assert_allclose(adjusted_means(table), effects - effects.mean(), atol=1e-9)

    @settings(deadline=None)
    @given(few_missing, st.integers(0, 99))
    def test_recover_the_effects_where_some_are(self, missing, seed):
        effects, table = additive(seed)
        assert correlation(adjusted_means(with_holes(table, missing)), effects) > 0.75

    @settings(deadline=None)
    @given(few_missing, st.integers(0, 99))
    def test_orderings_of_the_same_examples_keep_their_difference(self, missing, seed):
        effects, table = additive(seed)
        means = adjusted_means(with_holes(table, [missing[0], missing[0], *missing[2:]]))
        assert means[0] - means[1] == pytest.approx(effects[0] - effects[1])

    @settings(deadline=None)
    @given(few_missing, st.floats(-10, 10), st.floats(0.1, 10))
    def test_go_with_the_scale_whatever_is_added(self, missing, shift, scale):
        table = with_holes(additive(0)[1], missing)
        np.testing.assert_allclose(
            adjusted_means(table * scale + shift), adjusted_means(table) * scale, atol=1e-9
        )

    def test_easy_examples_do_not_make_an_ordering_good(self):
        """The worse an ordering, the easier its own examples; all share a few others."""
        effects, easiness = np.linspace(-0.2, 0.2, 20), np.linspace(1.0, -1.0, 40)
        table = np.full((20, 40), np.nan)
        for row in range(20):
            columns = [*range(row, row + 10), *range(0, 40, 5)]
            table[row, columns] = effects[row] + easiness[columns]
        assert correlation(np.nanmean(table, axis=1), effects) < -0.9
        assert correlation(adjusted_means(table), effects) > 0.9

    def test_are_shrunk_the_more_the_fewer_examples(self):
        table = np.array([[1.0] * 8, [0.0] * 8, [1.0] * 2 + [np.nan] * 6])
        means, shrunk = adjusted_means(table), shrunk_means(table)
        assert (np.abs(shrunk) <= np.abs(means)).all()
        assert shrunk[0] / means[0] == pytest.approx(shrunk[1] / means[1])
        assert shrunk[2] / means[2] < 0.5 * shrunk[0] / means[0]

    def test_table_of_scores_by_example(self):
        table = score_table([{4: 0.5, 9: 1.0}, {2: 0.25}])
        np.testing.assert_array_equal(table, [[np.nan, 0.5, 1.0], [0.25, np.nan, np.nan]])


class World:
    """Scores of random orderings, and of others to predict: linear in the features of one family."""

    def __init__(self, family="rank", *, known=60, new=40, examples=16, missing=0.0, seed=0):
        rng = np.random.default_rng(seed)
        orderings = [(tuple(rng.permutation(8).tolist()),) for _ in range(known + new)]
        features = FEATURES(orderings)
        values = features[FAMILIES.index(family)]
        truth = values @ rng.normal(size=values.shape[1])
        truth *= 0.5 / truth.std()
        self.known, self.new = [f[:known] for f in features], [f[known:] for f in features]
        self.truth, self.new_truth = truth[:known], truth[known:]
        self.scores = self.truth[:, None] + rng.normal(size=examples)
        self.scores += rng.normal(size=self.scores.shape)
        holes = rng.random(self.scores.shape) < missing
        holes[:, 0] = False
        self.scores[holes] = np.nan

    def fit(self, scores=None):
        surrogate = Surrogate()
        surrogate.fit(self.known, self.scores if scores is None else scores)
        return surrogate


def conditioned(world, variances):
    """Mean and covariance of f at all orderings given every single score, in units of the noise.

    Scores of two orderings on one example share what that example prefers (`interaction_shares` of it).
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
    weights = np.linalg.solve(observed, np.ones(len(rows)))  # generalised least squares
    scores = world.scores[rows, columns]
    scores = scores - weights @ scores / weights.sum()
    return gain @ scores, prior - gain @ prior[rows]


def preferred(world):
    """Covariance of what an example prefers, over the orderings known, by the least squares of the package."""
    scores = world.scores
    means = adjusted_means(scores)
    effects = example_effects(scores, means, example_shrinkage(scores))
    known = ~np.isnan(scores)
    rest = np.where(known, scores - effects - means[:, None], 0.0)
    kernels = [f @ f.T for f in world.known]
    lengths = [np.sqrt(np.diag(k)) for k in kernels]
    kernels += [np.outer(n, n) * (k / np.outer(n, n)) ** 3 for k, n in zip(kernels, lengths, strict=True)]
    shares = interaction_shares(kernels, rest, known)
    return sum(share * kernel for share, kernel in zip(shares, kernels, strict=True))


class TestPosterior:
    def test_mean_is_that_of_gaussian_conditioning(self):
        world = World(known=20, new=10, examples=6)
        surrogate = world.fit()
        expected, _ = conditioned(world, surrogate.variances)
        expected += world.scores.mean() - expected[:20].mean()
        np.testing.assert_allclose(surrogate.mean, expected[:20], atol=1e-9)
        np.testing.assert_allclose(surrogate.predict(world.new), expected[20:], atol=1e-9)

    @pytest.mark.parametrize("missing", [0.0, 0.5])
    def test_draws_have_the_posterior_moments(self, missing):
        world = World(known=15, new=10, examples=40, missing=missing)
        surrogate = world.fit()
        draws = surrogate.sample(world.new, 40_000, np.random.default_rng(0))
        mean = np.concatenate([surrogate.mean, surrogate.predict(world.new)])
        deviation = draws.std(axis=0)
        assert draws.shape == (40_000, 25)
        assert (np.abs(draws.mean(axis=0) - mean) < 6 * deviation / 200).all()
        _, covariance = conditioned(world, surrogate.variances)
        noise = deviation**2 / np.diag(covariance)
        assert noise.mean() == pytest.approx(1.0, abs=0.2)
        scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
        np.testing.assert_allclose(np.cov(draws.T) / noise.mean() / scale, covariance / scale, atol=0.04)

    def test_draws_of_the_known_alone(self):
        world = World(known=15)
        draws = world.fit().sample([f[:0] for f in world.new], 5, np.random.default_rng(0))
        assert draws.shape == (5, 15)


class TestApart:
    @pytest.mark.parametrize("num_examples", [2, 3, 6])
    def test_what_is_no_ordering_is_shrunk_by_its_own_variance_alone(self, num_examples):
        """That is 1, whatever the orderings' is: n scores above the others' count n / (n + 1)."""
        world = World(known=40, examples=num_examples)
        features = [family.copy() for family in world.known]
        for family in features:
            family[0] = 0.0
        scores = np.random.default_rng(0).normal(size=(40, num_examples))
        scores -= scores.mean(axis=1, keepdims=True)
        scores[0] += 3.0
        surrogate = Surrogate()
        surrogate.fit(features, scores, apart=np.arange(40) == 0)
        gains, _ = surrogate.gains(1).summary()
        assert gains[0] == pytest.approx(3.0 * num_examples / (num_examples + 1), rel=0.02)


class TestLearning:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_finds_the_family_that_matters_and_predicts_new_orders(self, family):
        world = World(family, known=120, missing=0.3)
        surrogate = world.fit()
        surrogate.fit(world.known, world.scores)
        assert FAMILIES[int(np.argmax(surrogate.variances[:-1]))] == family
        assert correlation(surrogate.predict(world.new), world.new_truth) > 0.7
        assert correlation(surrogate.mean, world.truth) > 0.8

    def test_predicts_better_than_the_mean_score_says(self):
        world = World(known=100, examples=4)
        means = adjusted_means(world.scores)
        assert correlation(world.fit().mean, world.truth) > correlation(means, world.truth) + 0.1

    def test_the_next_fit_goes_on_from_the_variances(self):
        world, surrogate, steps = World(), Surrogate(), []
        for _ in range(12):
            before = surrogate.variances
            surrogate.fit(world.known, world.scores)
            steps.append(np.inf if before is None else np.abs(surrogate.variances - before).max())
        assert steps[-1] < 0.2 * steps[1]

    @settings(deadline=None, max_examples=20)
    @given(st.floats(-100, 100), st.floats(0.01, 100))
    def test_scores_may_have_any_scale(self, shift, scale):
        world = World(missing=0.3)
        first, second = world.fit(), world.fit(world.scores * scale + shift)
        np.testing.assert_allclose(second.mean, first.mean * scale + shift, rtol=1e-6, atol=1e-6 * scale)
        np.testing.assert_allclose(second.variances, first.variances, rtol=1e-6)
        draws = [s.sample(world.new, 3, np.random.default_rng(0)) for s in (first, second)]
        np.testing.assert_allclose(draws[1], draws[0] * scale + shift, rtol=1e-5, atol=1e-5 * scale)

    @pytest.mark.parametrize("score", [0.0, 1.0, -3.5])
    def test_scores_that_are_all_equal(self, score):
        world = World()
        surrogate = world.fit(np.full_like(world.scores, score))
        np.testing.assert_allclose(surrogate.mean, score, atol=1e-9)
        assert np.isfinite(surrogate.sample(world.new, 5, np.random.default_rng(0))).all()

    def test_one_score(self):
        world = World(known=1)
        surrogate = world.fit(np.array([[0.5]]))
        assert surrogate.mean == pytest.approx([0.5])
        assert np.isfinite(surrogate.sample(world.new, 5, np.random.default_rng(0))).all()

    @pytest.mark.parametrize("level", [0.0, 0.6, 100.0])
    def test_scores_without_any_noise_are_learnt(self, level):
        features = OrderingFeatures(OrderingSpace.of_sizes(8))
        rng = np.random.default_rng(0)
        orders = [(tuple(rng.permutation(8).tolist()),) for _ in range(60)]
        truth = np.array([rng_order[0].index(3) for rng_order in orders]) * 0.02
        surrogate = Surrogate()
        surrogate.fit(features(orders), np.repeat(truth[:, None] + level, 8, axis=1))
        assert np.polyfit(truth, surrogate.mean, 1)[0] == pytest.approx(1.0, abs=0.05)
