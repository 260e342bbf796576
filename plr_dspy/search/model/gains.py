"""What orderings gain on new examples, and how sure that is, with the variances not taken for known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from plr_dspy.search.model.components import generalised_mean, inverted
from plr_dspy.search.model.table import Array, Mask

SCALES = (0.0, 0.03, 0.1, 0.2, 0.35, 0.6, 1.0, 1.5, 2.2)
"""What the variance of orderings may be, over its estimate."""

PRIOR_SPREAD = 0.005
"""Prior mean of the variance of orderings' mean scores."""

PRIOR_NOTHING = 0.5
"""Prior probability of the first: that all orderings score the same on new examples."""

PRIOR_CALIBRATION = (0.0, 0.05, 0.15, 0.5)
"""What the standard deviation of what calibration does to a score may be, each as likely."""


@dataclass(frozen=True)
class Gains:
    """Gains over one ordering, for each of several scales that the variance of orderings may have.

    Attributes:
        shares: Posterior probability of each scale, ``[S]``.
        means, variances: Of the gains, ``[S, m]``.
        possible: Whether there can be a gain at that scale, ``[S, m]``.
    """

    shares: Array
    means: Array
    variances: Array
    possible: Mask

    def __add__(self, other: Gains) -> Gains:
        """The sum of two gains that are independent of one another, at each pair of scales."""
        size = len(self.shares) * len(other.shares)

        def paired(left: Array, right: Array) -> Array:
            return np.asarray(left[:, None] + right[None]).reshape(size, -1)

        return Gains(
            np.outer(self.shares, other.shares).ravel(),
            paired(self.means, other.means),
            paired(self.variances, other.variances),
            (self.possible[:, None] | other.possible[None]).reshape(size, -1),
        )

    def among(self, chosen: Mask) -> Gains:
        """The gains of more orderings, of which those chosen have these, and of the others nothing is known."""

        def placed(values: Any) -> Any:
            table = np.zeros((len(self.shares), len(chosen)), dtype=values.dtype)
            table[:, chosen] = values
            return table

        return Gains(self.shares, placed(self.means), placed(self.variances), placed(self.possible))

    def scaled(self, unit: float) -> Gains:
        """The gains in another unit of scores."""
        return Gains(self.shares, unit * self.means, unit**2 * self.variances, self.possible)

    def summary(self) -> tuple[Array, Array]:
        """The expected gains, and the probability that they are above 0, ``[m]`` each."""
        deviations = np.sqrt(np.where(self.possible, np.maximum(self.variances, 1e-18), 1.0))
        chances = np.where(self.possible, special.ndtr(self.means / deviations), 0.0)
        return self.shares @ self.means, self.shares @ chances

    @property
    def deviations(self) -> Array:
        """Standard deviations of the gains, over all scales, ``[m]``."""
        squares = np.where(self.possible, self.variances, 0.0) + self.means**2
        variances = self.shares @ squares - (self.shares @ self.means) ** 2
        return np.sqrt(np.maximum(variances, 0.0))


def gain_of_calibration(expected: float, differences: Array, number: int) -> Gains:
    """What calibrating an ordering adds to its score on new examples: of all orderings that are held against it.

    Args:
        expected: The difference that is expected.
        differences: By how much the difference was missed on each of its calls, ``[n]``; they say how sure it is.
        number: Of the orderings.
    """
    count = len(differences)
    spread = float(((differences - differences.mean()) ** 2).sum()) if count else 0.0
    noise = (spread + 0.25) / (count + 1) / max(1, count)
    prior = np.square(PRIOR_CALIBRATION)
    logs = -0.5 * np.log(prior + noise) - 0.5 * expected**2 / (prior + noise)
    shares = np.exp(logs - logs.max())
    kept = prior / (prior + noise)
    columns = np.ones((1, number))
    return Gains(
        shares / shares.sum(),
        (kept * expected)[:, None] * columns,
        (kept * noise)[:, None] * columns,
        (prior > 0)[:, None] & (columns > 0),
    )


def expected_gains(means: Array, *, covariance: Array, apart: Array, noise: Array, reference: int) -> Gains:
    """What orderings score above one of them.

    The variance of orderings is an estimate, and takes chance for an effect where there is none. So it is one of
    several, by the likelihood of the scores: from none to more than the estimate. In the same way orderings that may be
    of another kind are so or not.

    Args:
        means: Mean scores of the orderings less the effects of their examples, ``[m]``.
        covariance: Of their true scores as estimated, ``[m, m]``.
        apart: Further variances of those that may be of another kind than the others, whatever these are, ``[m]``.
        noise: Covariance of what the means have beside the true scores, ``[m, m]``.
        reference: The number of the ordering that the others are held against.
    """
    logs, gains, variances, possible = [], [], [], []
    kinds = _kinds(apart)
    for scale, kind in itertools.product(SCALES, kinds):
        prior = scale * covariance + np.diag(kind * apart)
        inverse, log_determinant = inverted(prior + noise)
        rest: Array = means - generalised_mean(means, inverse)
        # The restricted likelihood: the mean of all is not known.
        logs.append(0.5 * (log_determinant - np.log(inverse.sum()) - rest @ inverse @ rest))
        contrasts = prior - prior[reference]
        gains.append(contrasts @ inverse @ rest)
        before = np.diag(prior) + prior[reference, reference] - 2 * prior[reference]
        weights = contrasts @ inverse
        of_mean = weights.sum(axis=1) ** 2 / inverse.sum()
        variances.append(np.maximum(before - (weights * contrasts).sum(axis=1) + of_mean, 0.0))
        possible.append(before > 1e-12)
    shares = _shares(np.array(logs), num_kinds=len(kinds))
    return Gains(shares, np.array(gains), np.array(variances), np.array(possible))


def independent_gains(means: Array, noise: Array, *, apart: Array, reference: int) -> Gains:
    """What orderings score above one of them, where the errors of all are of few dimensions.

    Errors that come from few examples move many orderings together, so that many orderings are hardly more evidence
    than one: the spread of the means counts as many degrees of freedom as their errors have.

    Args:
        means: Mean scores of the orderings, ``[m]``.
        noise: Covariance of their errors on new examples, ``[m, m]``.
        apart: Further variances of those that may be of another kind than the others, ``[m]``.
        reference: The number of the ordering that the others are held against.
    """
    errors = noise - noise.mean(axis=0) - noise.mean(axis=1)[:, None] + noise.mean()
    weights = (apart == 0.0) / (np.diag(errors) + PRIOR_SPREAD)
    weights /= weights.sum()
    spread = float(weights @ (means - weights @ means) ** 2)
    error = float(weights @ np.diag(errors)) + 1e-12
    half = 0.5 * np.trace(errors) ** 2 / ((errors**2).sum() + 1e-24)
    estimate = max(spread - error, 0.1 * PRIOR_SPREAD)
    doubts = np.maximum(np.diag(noise) + noise[reference, reference] - 2 * noise[reference], 0.0)
    logs, gains, variances, possible = [], [], [], []
    others, kinds = apart > 0.0, _kinds(apart)
    for scale, kind in itertools.product(SCALES, kinds):
        total = error + scale * estimate
        own = (np.diag(errors) + scale * estimate + kind * apart)[others]
        strange = np.log(own) + (means - weights @ means)[others] ** 2 / own
        logs.append(-half * (np.log(total) + spread / total) - 0.5 * strange.sum())
        before = 2.0 * scale * estimate + kind * (apart + apart[reference])
        possible.append(before > 0.0)
        before[reference] = 0.0
        share = before / (before + 2.0 * error)
        gains.append(share * (means - means[reference]))
        variances.append(share * doubts)
    shares = _shares(np.array(logs), num_kinds=len(kinds))
    known = np.array(possible)
    known[:, reference] = False
    return Gains(shares, np.array(gains), np.array(variances), known)


def _kinds(apart: Array) -> tuple[float, ...]:
    """Factors of the further variances: orderings may be of another kind or not; where none may, there is one case."""
    return (0.0, 1.0) if apart.any() else (0.0,)


def _shares(logs: Array, *, num_kinds: int) -> Array:
    """Posterior probability of each scale, and of each kind at it, from the logarithms of their likelihoods."""
    nothing = np.array(SCALES) == 0.0
    prior = np.where(nothing, PRIOR_NOTHING / nothing.sum(), (1 - PRIOR_NOTHING) / (~nothing).sum())
    shares = np.repeat(prior, num_kinds) * np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum(), dtype=np.float64)
