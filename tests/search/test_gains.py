"""Gains of orderings on new examples, compared with plain Gaussian conditioning."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from plr_dspy import OrderingSpace
from plr_dspy.search.model.gains import (
    ERROR_QUANTILES,
    OUTSIDER_SCALES,
    PRIOR_NO_EFFECT,
    SCALES,
    class_share_errors,
    expected_gains,
)
from plr_dspy.search.model.ordering_model import OrderingModel
from plr_dspy.search.model.responses import LabelResponses

SIZE = 6
NUM_EXAMPLES = 15


def problem(seed=0, size=SIZE):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(size, 3))
    noise = rng.normal(size=(size, size))
    covariance = 0.3 * factor @ factor.T + 0.1 * np.eye(size)
    return rng.normal(size=size), covariance, 0.05 * noise @ noise.T + 0.2 * np.eye(size)


def by_conditioning(means, covariance, apart, noise, reference, outsider_scales):
    """Return expected gains and probabilities of gains above 0, computed from contrasts between orderings."""
    size = len(means)
    contrasts = np.eye(size)[1:] - np.eye(size)[0]
    weights = []
    gains = []
    chances = []
    sizes = np.maximum(1.0, (NUM_EXAMPLES - 1) / stats.chi2(NUM_EXAMPLES - 1).isf(ERROR_QUANTILES))
    # Outsiders differ from all other orderings. All their scales and all sizes of errors are equally likely.
    for scale, kind, times in itertools.product(SCALES, outsider_scales, sizes):
        prior = scale * covariance + kind * apart
        seen = contrasts @ (prior + times * noise) @ contrasts.T
        density = stats.multivariate_normal(np.zeros(size - 1), seen).pdf(contrasts @ means)
        prior_weight = PRIOR_NO_EFFECT
        if scale != 0.0:
            prior_weight = (1 - PRIOR_NO_EFFECT) / (len(SCALES) - 1)
        weights.append(density * prior_weight)
        differences = np.eye(size) - np.eye(size)[reference]
        cross = differences @ prior @ contrasts.T
        expected = cross @ np.linalg.solve(seen, contrasts @ means)
        learned = cross @ np.linalg.solve(seen, cross.T)
        variance = np.diag(differences @ prior @ differences.T - learned)
        gains.append(expected)
        sure = np.diag(differences @ prior @ differences.T) < 1e-12
        errors = np.sqrt(np.maximum(variance, 1e-18))
        chances.append(np.where(sure, 0.0, stats.norm.cdf(expected / errors)))
    weights = np.array(weights) / sum(weights)
    return weights @ np.array(gains), weights @ np.array(chances)


def summary(
    means,
    covariance,
    noise,
    *,
    apart=None,
    reference=0,
    num_examples=NUM_EXAMPLES,
    outsider_scales=OUTSIDER_SCALES,
):
    apart = np.zeros((len(means),) * 2) if apart is None else apart
    given = {"covariance": covariance, "outsiders": apart, "noise": noise, "reference": reference}
    gains = expected_gains(means, num_examples=num_examples, outsider_scales=outsider_scales, **given)
    return gains.summary()[:2]


def test_class_share_errors_are_the_covariance_under_random_class_shares():
    rng = np.random.default_rng(0)
    shares = np.array([0.5, 0.3, 0.2])
    class_means = rng.random((4, 3))
    means = rng.multinomial(25, shares, size=200_000) / 25 @ class_means.T
    expected = np.cov(means.T)
    np.testing.assert_allclose(class_share_errors(class_means, shares, 25), expected, atol=2e-4)


def biased_world(seed, *, has_logprobs, num_orderings=12, num_examples=150):
    """Return the true gains of orders that favor either of two classes, and their gains in a fitted model."""
    space = OrderingSpace.of_sizes(6)
    rng = np.random.default_rng(seed)
    orderings = list(dict.fromkeys(space.draw(2 * num_orderings, rng)))[:num_orderings]
    bias = 1.5 * rng.normal(size=num_orderings)
    labels = rng.integers(2, size=num_examples)
    log_odds = (2 * labels - 1) * rng.normal(1.2, 0.8, size=num_examples) + bias[:, None]
    log_odds += 0.3 * rng.normal(size=log_odds.shape)
    rows = (log_odds > 0) == labels
    logs = np.stack([-np.logaddexp(0, log_odds), -np.logaddexp(0, -log_odds)], axis=2)
    responses = None
    if has_logprobs:
        responses = LabelResponses(
            np.eye(2)[labels],
            lambda ordering, example: (logs[orderings.index(ordering), example].tolist(), []),
        )
    model = OrderingModel(space, responses=responses, example_classes=labels.tolist())
    scores = {ordering: dict(enumerate(map(float, rows[i]))) for i, ordering in enumerate(orderings)}
    gains = model.fit(scores).gains(orderings[0])
    recalls = stats.norm.cdf((1.2 + np.outer([1, -1], bias)) / math.hypot(0.8, 0.3))
    truths = recalls.mean(axis=0)
    return truths - truths[0], [gains[ordering] for ordering in orderings]


@pytest.mark.parametrize("has_logprobs", [False, True])
def test_intervals_allow_for_the_class_shares_of_the_sample(has_logprobs):
    contained = []
    for seed in range(30):
        truths, gains = biased_world(seed, has_logprobs=has_logprobs)
        for truth, gain in list(zip(truths, gains, strict=True))[1:]:
            contained.append(abs(truth - gain.expected) <= 1.96 * gain.deviation)
    assert np.mean(contained) > 0.9


@pytest.mark.parametrize(
    ("score", "interval"), [(1.0, (0.7, 1.0)), (5.0, (3.5, 5.0)), (-2.0, (-2.0, -1.4))]
)
def test_equal_scores_do_not_imply_certainty_on_any_scale(score, interval):
    ordering = OrderingSpace.of_sizes(3).identity
    fitted = OrderingModel(OrderingSpace.of_sizes(3)).fit({ordering: dict.fromkeys(range(10), score)})
    assert fitted.interval(ordering, score, reference=ordering) == interval


def test_interval_width_depends_on_the_calls_of_the_ordering_and_the_reference():
    """The rule of three applies if all scores are equal."""
    own = (0, 1, 2)
    original = (2, 1, 0)
    other = (1, 0, 2)
    scores = {(own,): dict.fromkeys(range(40), 1.0)}
    scores[(original,)] = dict.fromkeys(range(10), 1.0)
    fitted = OrderingModel(OrderingSpace.of_sizes(3)).fit(scores)
    assert fitted.interval((own,), 1.0, reference=(original,)) == (0.7, 1.0)
    scores[(original,)] = {e: float(e % 2) for e in range(10)}
    scores[(other,)] = {e: float(e % 2) for e in range(40)}
    fitted = OrderingModel(OrderingSpace.of_sizes(3)).fit(scores)
    low, high = fitted.interval((other,), 0.5, reference=(original,))
    error = 0.5 * (1 / 40 + 1 / 10) ** 0.5
    assert (low, high) == pytest.approx((0.5 - 1.96 * error, 0.5 + 1.96 * error), abs=0.001)


class TestConditioning:
    @settings(deadline=None, max_examples=12)
    @given(
        st.integers(0, 1_000),
        st.integers(0, SIZE - 1),
        st.integers(0, 3),
        st.sampled_from([OUTSIDER_SCALES, (1.0,)]),
    )
    def test_gains_equal_conditioning_on_contrasts(self, seed, reference, num_outsiders, outsider_scales):
        means, covariance, noise = problem(seed)
        apart = np.zeros((SIZE, SIZE))
        if num_outsiders:
            covariance[:num_outsiders] = covariance[:, :num_outsiders] = 0.0
            apart[:num_outsiders, :num_outsiders] = 1.0 + 0.1 * np.eye(num_outsiders)
        expected = by_conditioning(means, covariance, apart, noise, reference, outsider_scales)
        options = {"apart": apart, "reference": reference, "outsider_scales": outsider_scales}
        gains = summary(means, covariance, noise, **options)
        np.testing.assert_allclose(gains, expected, atol=1e-7)

    def test_uninformative_scores_leave_the_prior_probability_that_orderings_do_not_differ(self):
        gains, chances = summary(np.zeros(SIZE), np.eye(SIZE), 1e9 * np.eye(SIZE))
        np.testing.assert_allclose(gains, 0.0, atol=1e-9)
        np.testing.assert_allclose(chances, [0.0, *[0.25] * (SIZE - 1)], atol=1e-6)

    def test_fewer_examples_make_gains_less_certain(self):
        """With few examples, the variance of errors is uncertain, so gains are less certain too."""
        means = np.array([0.0, 2.0, -1.0, 1.0, -2.0, 0.5])
        sure = []
        for num_examples in (3, 10, 30, 1000):
            covariances = np.eye(SIZE), 0.2 * np.eye(SIZE)
            _, chances = summary(means, *covariances, num_examples=num_examples)
            sure.append(chances[1])
        assert sure == sorted(sure)
        assert sure[0] < sure[-1] - 0.02


def test_an_unusually_good_original_is_not_shrunk_towards_the_other_orderings():
    """The original is correct on .7 of the examples, and all other orderings on .6."""
    space = OrderingSpace.of_sizes(8)
    promised = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        others = [(tuple(map(int, rng.permutation(8))),) for _ in range(40)]
        scores = {space.identity: dict(enumerate(map(float, rng.random(40) < 0.7)))}
        for number, ordering in enumerate(others):
            row = rng.permutation(40)[: 30 if number < 3 else 6].tolist()
            right = rng.random(len(row)) < 0.6
            scores[ordering] = dict(zip(row, map(float, right), strict=True))
        gains = OrderingModel(space).fit(scores).gains(space.identity)
        promised.append(max(gains[other].expected for other in others))
    assert np.mean(promised) < -0.02
