import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plr_dspy import OrderingSpace
from plr_dspy.search.surrogate.class_leaning import Leaning
from plr_dspy.search.surrogate.crossed_effects import shrunk_means
from plr_dspy.search.surrogate.features import OrderingFeatures, random_orderings
from plr_dspy.search.surrogate.gaussian_process import Surrogate

SPACE = OrderingSpace.of_sizes(8)
FEATURES = OrderingFeatures(SPACE)
REFERENCES = FEATURES(random_orderings(SPACE, 300))


class World:
    """Orderings that lean to and fro between classes of examples by where their items stand, and are best upright.

    Args:
        classes: Of the examples, drawn from these.
        loadings: What a leaning of 1 adds to the score of each class.
        gain: What uprightness is worth.
    """

    def __init__(
        self, *, classes=(0, 1), loadings=(1.0, -1.0), gain=0.0, known=80, new=60, noise=0.5, seed=0
    ):
        rng = np.random.default_rng(seed)
        orderings = [(tuple(rng.permutation(8).tolist()),) for _ in range(known + new)]
        features = FEATURES(orderings)
        rank = features[FEATURES.names.index("rank")]
        leaning = rank @ rng.normal(size=rank.shape[1])
        leaning /= leaning.std()
        truth = -gain * np.abs(leaning)
        self.known, self.new = [f[:known] for f in features], [f[known:] for f in features]
        self.leaning, self.truth, self.new_truth = leaning[:known], truth[:known], truth[known:]
        self.classes = np.resize(np.array(classes), 24)
        scores = self.truth[:, None] + self.leaning[:, None] * np.array(loadings)[self.classes]
        scores += rng.normal(size=24) + noise * rng.normal(size=scores.shape)
        self.full = scores
        self.scores = np.where(rng.random(scores.shape) < 0.5, scores, np.nan)
        self.scores[:, 0] = scores[:, 0]

    def fit(self, earlier=None, scores=None):
        scores = self.scores if scores is None else scores
        kernels = [*(family @ family.T for family in self.known), np.eye(len(scores))]
        return Leaning(
            self.known,
            kernels,
            scores,
            self.classes,
            shrunk_means(scores),
            references=REFERENCES,
            earlier=earlier,
        )

    def surrogate(self, *, classes=True, scores=None, references=REFERENCES, earlier=None):
        surrogate = Surrogate(references, earlier=earlier)
        surrogate.fit(
            self.known, self.scores if scores is None else scores, self.classes if classes else None
        )
        return surrogate


def correlation(first, second):
    return np.corrcoef(first, second)[0, 1]


class TestLeaning:
    @pytest.mark.parametrize(
        ("classes", "loadings"),
        [((0, 1), (1.0, -1.0)), ((0, 0, 0, 1), (0.5, -1.5)), ((0, 1, 2), (1.0, 0.0, -1.0))],
    )
    def test_explains_how_far_each_ordering_leans(self, classes, loadings):
        world = World(classes=classes, loadings=loadings)
        explained = world.fit().explained
        true = world.leaning[:, None] * np.array(loadings)[world.classes]
        assert correlation(explained.ravel(), true.ravel()) > 0.95
        assert np.polyfit(true.ravel(), explained.ravel(), 1)[0] == pytest.approx(1.0, abs=0.15)

    @pytest.mark.parametrize("seed", range(3))
    def test_is_no_matter_of_what_makes_an_ordering_better_on_all_classes(self, seed):
        """The orderings differ most in how good they are, and lean towards either of two small classes."""
        loadings = np.array((0.0, 1.0, -1.0))
        world = World(classes=(0, 0, 0, 0, 1, 2), loadings=loadings, seed=seed)
        quality = np.random.default_rng(seed).normal(size=len(world.scores))
        explained = world.fit(scores=world.scores + quality[:, None]).explained
        true = world.leaning[:, None] * loadings[world.classes]
        assert correlation(explained.ravel(), true.ravel()) > 0.9

    @settings(deadline=None, max_examples=20)
    @given(st.integers(0, 99))
    def test_adds_nothing_over_all_scores_of_an_ordering_that_has_them_all(self, seed):
        world = World(classes=(0, 0, 1), seed=seed)
        full = np.nan_to_num(world.scores)
        np.testing.assert_allclose(world.fit(scores=full).explained.mean(axis=1), 0.0, atol=1e-9)

    def test_hardly_explains_noise(self):
        world = World(loadings=(0.0, 0.0))
        assert world.fit().explained.std() < 0.1

    def test_the_family_is_a_smooth_function_of_the_leaning(self):
        """Centred over random orderings, of mean squared length 1, alike for alike leanings."""
        world = World()
        leaning = world.fit()
        family = leaning.family(REFERENCES)
        np.testing.assert_allclose(family.mean(axis=0), 0.0, atol=1e-9)
        assert (family**2).sum(axis=1).mean() == pytest.approx(1.0)
        shape = leaning.family(world.known)
        order = np.argsort(world.leaning)
        near = np.linalg.norm(np.diff(shape[order], axis=0), axis=1).mean()
        far = np.linalg.norm(shape[order] - shape[order[::-1]], axis=1).mean()
        assert near < 0.3 * far

    def test_the_next_fit_goes_on_from_the_variances(self):
        world, variances, steps = World(), None, []
        for _ in range(8):
            after = world.fit(variances).variances
            steps.append(np.inf if variances is None else np.abs(after - variances).max())
            variances = after
        assert steps[-1] < 0.5 * steps[1]


class TestSurrogate:
    def test_learns_that_upright_is_best(self):
        """Nothing in the features themselves says so: accuracy rises and falls along the line."""
        gains = []
        for seed in range(5):
            world = World(gain=0.5, seed=seed)
            blind, seeing = world.surrogate(classes=False), world.surrogate()
            gains.append(correlation(seeing.predict(world.new), world.new_truth))
            assert gains[-1] > correlation(blind.predict(world.new), world.new_truth) + 0.1
        assert np.mean(gains) > 0.6

    def test_knows_that_an_ordering_met_examples_that_suited_it(self):
        """Scored on a few examples each, by chance more of one class; some orderings are better for both classes."""
        gains = []
        for seed in range(5):
            world = World(known=150, seed=seed)
            rng = np.random.default_rng(seed)
            truth = 0.3 * rng.normal(size=150)
            holes = rng.random(world.full.shape).argsort(axis=1) >= 8
            scores = np.where(holes, np.nan, world.full + truth[:, None])
            seeing, blind = (world.surrogate(classes=on, scores=scores).mean for on in (True, False))
            gains.append(correlation(seeing, truth) - correlation(blind, truth))
        assert min(gains) > 0.1

    @pytest.mark.parametrize("classes", [np.zeros(24, dtype=np.int64), None])
    def test_one_class_is_none(self, classes):
        world = World()
        world.classes = classes
        np.testing.assert_array_equal(world.surrogate().mean, world.surrogate(classes=False).mean)

    def test_without_references_it_is_not_modelled(self):
        world = World()
        np.testing.assert_array_equal(
            world.surrogate(references=None).mean, world.surrogate(classes=False).mean
        )

    @settings(deadline=None, max_examples=20)
    @given(st.floats(-100, 100), st.floats(0.01, 100))
    def test_scores_may_have_any_scale(self, shift, scale):
        world = World(gain=0.5)
        first, second = world.surrogate(), world.surrogate(scores=world.scores * scale + shift)
        np.testing.assert_allclose(second.mean, first.mean * scale + shift, rtol=1e-5, atol=1e-5 * scale)
        draws = [s.sample(world.new, 3, np.random.default_rng(0)) for s in (first, second)]
        np.testing.assert_allclose(draws[1], draws[0] * scale + shift, rtol=1e-4, atol=1e-4 * scale)

    @pytest.mark.parametrize("score", [0.0, 1.0, -3.5])
    def test_scores_that_are_all_equal(self, score):
        world = World()
        surrogate = world.surrogate(scores=np.full_like(world.scores, score))
        np.testing.assert_allclose(surrogate.mean, score, atol=1e-9)
        assert np.isfinite(surrogate.sample(world.new, 5, np.random.default_rng(0))).all()

    def test_goes_on_from_what_was_saved(self):
        world = World(gain=0.5)
        surrogate = world.surrogate()
        saved = json.loads(json.dumps(surrogate.state_dict()))
        surrogate.fit(world.known, world.scores, world.classes)
        np.testing.assert_array_equal(world.surrogate(earlier=saved).mean, surrogate.mean)

    def test_classes_may_come_and_go(self):
        """At first only examples of one class may have been met."""
        world = World(gain=0.5)
        surrogate = Surrogate(REFERENCES)
        for classes in (np.zeros(24, dtype=np.int64), world.classes, None, world.classes):
            surrogate.fit(world.known, world.scores, classes)
            assert np.isfinite(surrogate.predict(world.new)).all()
