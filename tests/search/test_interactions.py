"""What examples prefer: how much of the scores it is, and what it does to the means of orderings."""

import numpy as np
import pytest

from plr_dspy.search.surrogate.interactions import covariance_of_means, interaction_shares, shared_examples

NUM = 40


def kernels(seed=0):
    """Two of random features, with diagonals of about 1."""
    rng = np.random.default_rng(seed)
    features = [rng.normal(size=(NUM, width)) / width**0.5 for width in (5, 12)]
    return [f @ f.T for f in features]


def preferring(shares, *, num_examples=60, seed=0, known=None):
    """Scores of which these shares are what examples prefer, and the rest noise of single calls."""
    rng = np.random.default_rng(seed)
    rest = (1 - sum(shares)) * np.eye(NUM)
    covariance = sum(share * kernel for share, kernel in zip(shares, kernels(), strict=True)) + rest
    scores = np.linalg.cholesky(covariance) @ rng.normal(size=(NUM, num_examples)) + rng.normal(
        size=num_examples
    )
    return scores if known is None else np.where(known, scores, np.nan)


def shares_of(scores):
    known = ~np.isnan(scores)
    rest = scores - np.nanmean(scores, axis=0)
    rest = rest - np.nanmean(rest, axis=1, keepdims=True)
    return interaction_shares(kernels(), np.where(known, rest, 0.0), known)


class TestShares:
    @pytest.mark.parametrize("shares", [(0.0, 0.0), (0.5, 0.0), (0.0, 0.4), (0.3, 0.3)])
    def test_are_found(self, shares):
        found = np.mean([shares_of(preferring(shares, seed=seed)) for seed in range(5)], axis=0)
        np.testing.assert_allclose(found, shares, atol=0.07)

    def test_are_found_where_most_scores_are_missing(self):
        known = np.random.default_rng(1).random((NUM, 200)) < 0.2
        found = np.mean(
            [shares_of(preferring((0.5, 0.0), num_examples=200, seed=s, known=known)) for s in range(5)],
            axis=0,
        )
        np.testing.assert_allclose(found, (0.5, 0.0), atol=0.1)

    def test_what_all_examples_share_is_no_interaction(self):
        """A difference between orderings that is the same on every example."""
        common = np.linalg.cholesky(kernels()[0] + 1e-9 * np.eye(NUM)) @ np.random.default_rng(2).normal(
            size=NUM
        )
        found = shares_of(preferring((0.0, 0.0)) + common[:, None])
        assert found.sum() < 0.1

    def test_are_the_prior_s_where_nothing_is_known(self):
        known = np.eye(NUM, dtype=bool)  # each ordering on an example of its own
        rest = np.where(known, 1.0, 0.0)
        np.testing.assert_allclose(interaction_shares(kernels(), rest, known), 0.1, atol=1e-9)

    def test_leave_something_to_the_noise_of_single_calls(self):
        """Scores that are nothing but what examples prefer."""
        values, vectors = np.linalg.eigh(kernels()[0])
        factor = vectors * np.sqrt(np.maximum(values, 0.0))
        scores = factor @ np.random.default_rng(5).normal(size=(NUM, 60))
        assert shares_of(scores).sum() == pytest.approx(0.95)

    def test_scores_that_are_all_equal_have_none(self):
        known = np.ones((NUM, 3), dtype=bool)
        np.testing.assert_array_equal(interaction_shares(kernels(), np.zeros((NUM, 3)), known), 0.0)

    def test_without_kernels_there_are_none(self):
        assert len(interaction_shares([], np.ones((2, 2)), np.ones((2, 2), dtype=bool))) == 0


class TestMeans:
    def test_shared_examples_by_hand(self):
        known = np.array([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]], dtype=bool)
        np.testing.assert_allclose(shared_examples(known), [[0.25, 0.25, 0], [0.25, 0.5, 0], [0, 0, 0.5]])

    def test_covariance_is_that_of_simulated_means(self):
        """Scores of orderings that are all alike on new examples: their means go together where they share examples."""
        rng = np.random.default_rng(3)
        known = np.zeros((NUM, 24), dtype=bool)
        for row in range(NUM):
            known[row, rng.permutation(24)[:12]] = True
        effects = 0.6 * kernels()[0] + 0.4 * np.diag(1.0 / np.diag(kernels()[0]))
        factor = np.linalg.cholesky(effects)
        drawn = [np.where(known, factor @ rng.normal(size=(NUM, 24)), np.nan) for _ in range(4_000)]
        simulated = np.cov(np.nanmean(drawn, axis=2).T)
        estimated = np.mean([covariance_of_means(kernels(), scores) for scores in drawn[:40]], axis=0)
        off = ~np.eye(NUM, dtype=bool)
        assert np.corrcoef(simulated[off], estimated[off])[0, 1] > 0.95
        assert np.polyfit(simulated[off], estimated[off], 1)[0] == pytest.approx(1.0, abs=0.25)

    def test_covariance_has_an_inverse(self):
        scores = np.repeat(np.random.default_rng(4).normal(size=(NUM, 1)), 5, axis=1)
        assert np.linalg.eigvalsh(covariance_of_means(kernels(), scores)).min() > 0.0
