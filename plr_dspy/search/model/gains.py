"""What orderings gain on new examples, and how sure that is, with the variances not taken for known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.int64]
Families: TypeAlias = Sequence[Array]  # what orderings have of each family of features, such as the features, [m, d]

SCALES = (0.0, 0.03, 0.1, 0.2, 0.35, 0.6, 1.0, 1.5, 2.2)  # what the variance of orderings may be, over its estimate
PRIOR_SPREAD = 0.005  # prior mean of the variance of orderings' mean scores
PRIOR_NOTHING = 0.5  # prior probability that all orderings score the same on new examples, the first scale
KINDS = (0.0, 1.0)  # whether what is apart is as the others, or of another kind
ERROR_QUANTILES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])  # of the variance of errors over its estimate, equally likely
PRIOR_CALIBRATION = (0.0, 0.05, 0.15, 0.5)  # deviations that calibration may give to a score, equally likely


class Gains(NamedTuple):
    """Gains over one ordering, for each of S scales that the variance of orderings may have."""

    shares: Array  # posterior probability of each scale, [S]
    means: Array  # [S, m]
    variances: Array  # [S, m]
    possible: Mask  # whether there can be a gain at that scale, [S, m]

    def plus(self, other: Gains) -> Gains:
        """The sum with gains that are independent of these, at each pair of scales; of one column, for all."""
        shares = np.outer(self.shares, other.shares).ravel()
        sums: list[Any] = [
            combine(own[:, None], added[None]).reshape(len(shares), -1)
            for combine, own, added in zip((np.add, np.add, np.logical_or), self[1:], other[1:], strict=True)
        ]
        return Gains(shares, *sums)

    def times(self, factor: Array | float) -> Gains:
        """The gains of scores that count so much, ``[m]`` or the same of all."""
        return self._replace(means=factor * self.means, variances=np.square(factor) * self.variances)

    def condensed(self) -> Gains:
        """Normal ones of the same moments, for all scales together at which the same gains are possible."""
        possible, groups = np.unique(self.possible, axis=0, return_inverse=True)
        shares = self.shares * (groups.ravel() == np.arange(len(possible))[:, None])
        totals = shares.sum(axis=1)
        weights = shares / np.maximum(totals, 1e-300)[:, None]
        means = weights @ self.means
        return Gains(totals, means, weights @ (self.variances + self.means**2) - means**2, possible)

    def summary(self) -> tuple[Array, Array, Array, Array]:
        """The expected gains, the probabilities that they are above 0 and below, and their standard deviations, ``[m]``
        each."""
        variances = np.where(self.possible, self.variances, 0.0)
        deviations = np.sqrt(np.where(self.possible, np.maximum(variances, 1e-18), 1.0))
        above = np.where(self.possible, special.ndtr(self.means / deviations), 0.0)
        shares = self.shares @ above, self.shares @ (self.possible - above)
        expected = self.shares @ self.means
        over_scales = self.shares @ (variances + self.means**2) - expected**2
        return expected, *shares, np.sqrt(np.maximum(over_scales, 0.0))


def gain_of_calibration(expected: float, differences: Array) -> Gains:
    """What calibrating an ordering adds to its score on new examples, as one column: what is expected, as sure as the
    differences by which it was missed on each of its calls, ``[n]``, say."""
    count = len(differences)
    spread = float(((differences - differences.mean()) ** 2).sum()) if count else 0.0
    noise = (spread + 0.25) / (count + 1) / max(1, count)
    prior = np.square(PRIOR_CALIBRATION)
    logs = -0.5 * np.log(prior + noise) - 0.5 * expected**2 / (prior + noise)
    shares, kept = np.exp(logs - logs.max()), (prior / (prior + noise))[:, None]
    return Gains(shares / shares.sum(), kept * expected, kept * noise, (prior > 0)[:, None])


def expected_gains(
    means: Array,  # mean scores less the effects of their examples, [m]
    *,
    covariance: Array,  # estimated, of the true scores, [m, m]
    apart: Array,  # further one of those that may be of another kind than the others, whatever these are, [m, m]
    noise: Array,  # covariance of the errors of the means, [m, m]
    reference: int,  # the number of the ordering that the others are held against
    num_examples: int,  # that the scores are of
    kinds: Sequence[float] = KINDS,
) -> Gains:
    """What orderings score above one of them.

    The variance of orderings is an estimate, and takes chance for an effect where there is none. So it is one of
    several, by the likelihood of the scores, and orderings that may be of another kind are so or not. The covariance of
    errors may be larger, by as much as a variance may that has one degree of freedom for each example but one, but not
    smaller: that would make surer what chance has brought.
    """

    def at(scale: float, kind: float, size: float) -> tuple[float, Array, Array, Mask]:
        prior = scale * covariance + kind * apart
        inverse = np.linalg.inv(prior + size * noise)
        rest: Array = means - inverse.sum(axis=0) @ means / inverse.sum()  # the generalised least-squares mean
        # The restricted likelihood: the mean of all is not known.
        log = 0.5 * (np.linalg.slogdet(inverse)[1] - np.log(inverse.sum()) - rest @ inverse @ rest)
        contrasts = prior - prior[reference]
        weights = contrasts @ inverse
        before = np.diag(prior) + prior[reference, reference] - 2 * prior[reference]
        of_mean = weights.sum(axis=1) ** 2 / inverse.sum()
        after = np.maximum(before - (weights * contrasts).sum(axis=1) + of_mean, 0.0)
        return log, weights @ rest, after, before > 1e-12

    return _over_scales(at, kinds if apart.any() else (0.0,), num_examples)


def independent_gains(means: Array, noise: Array, *, apart: Array, reference: int, num_examples: int) -> Gains:
    """What orderings score above one of them, where the errors of all are of few dimensions; as `expected_gains`.

    Errors of few examples move many orderings together, which are hardly more evidence than one: the spread of the
    means counts as many degrees of freedom as their errors, of this covariance, have.
    """
    errors = noise - noise.mean(axis=0) - noise.mean(axis=1)[:, None] + noise.mean()
    usual = (apart == 0.0) | (apart > 0.0).all()  # Where rules alone compete, none is of the usual kind.
    weights = usual / (np.diag(errors) + PRIOR_SPREAD)
    weights /= weights.sum()
    spread = float(weights @ (means - weights @ means) ** 2)
    error = float(weights @ np.diag(errors)) + 1e-12
    half = 0.5 * np.trace(errors) ** 2 / ((errors**2).sum() + 1e-24)
    estimate = max(spread - error, 0.1 * PRIOR_SPREAD)
    of_errors = np.maximum(np.diag(noise) + noise[reference, reference] - 2 * noise[reference], 0.0)
    others, itself = apart > 0.0, np.arange(len(means)) == reference

    def at(scale: float, kind: float, size: float) -> tuple[float, Array, Array, Mask]:
        total = size * error + scale * estimate
        own = (np.diag(errors) + scale * estimate + kind * apart)[others] + 1e-12
        strange = np.log(own) + (means - weights @ means)[others] ** 2 / own
        before = np.where(itself, 0.0, 2.0 * scale * estimate + kind * (apart + apart[reference]))
        share = before / (before + 2.0 * size * error)
        log = -half * (np.log(total) + spread / total) - 0.5 * strange.sum()
        return log, share * (means - means[reference]), share * size * of_errors, before > 0.0

    return _over_scales(at, KINDS if apart.any() else (0.0,), num_examples)


def _over_scales(
    at: Callable[[float, float, float], tuple[float, Array, Array, Mask]], kinds: Sequence[float], num_examples: int
) -> Gains:
    """Gains at all scales, with and without further variances, from what is found `at` one, log-likelihood first."""
    known = max(1, num_examples - 1)
    sizes = np.maximum(1.0, known / special.chdtri(known, ERROR_QUANTILES))
    logs, *gains = map(np.array, zip(*itertools.starmap(at, itertools.product(SCALES, kinds, sizes)), strict=True))
    nothing = np.array(SCALES) == 0.0
    prior = np.where(nothing, PRIOR_NOTHING / nothing.sum(), (1 - PRIOR_NOTHING) / (~nothing).sum())
    shares = np.repeat(prior, len(kinds) * len(sizes)) * np.exp(logs - logs.max())
    return Gains(shares / shares.sum(), *gains)
