"""Gains of orderings over a reference ordering on new examples.

The gains are averaged over hypotheses. Each hypothesis is a combination of factors by which the
prior covariances and the error covariance are scaled.

W        =  (s K + k A + v N)^-1                      (7)
mu       =  1' W y / 1' W 1                           (8)
gain[o]  =  (P[o] - P[r]) W (y - mu)                  (9)

symbol       code           shape   meaning
H                                   number of hypotheses about s, k and v
y            means          [m]     measured mean scores, minus the effects of examples
K            covariance     [m, m]  estimated prior covariance of true scores
A            outsiders      [m, m]  additional prior covariance of outsiders
N            noise          [m, m]  covariance of the errors in y
s, k, v                             factors of K, A and N
r            reference              index of the reference ordering
P            prior          [m, m]  s K + k A
W            inverse        [m, m]  inverse covariance of y
P - P[r]     contrasts      [m, m]  prior covariances between gains and true scores
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import special

from plr_dspy.statistics.arrays import Array, Mask, Numbers

Families: TypeAlias = Sequence[Array]  # one array for each family of features

# Values of s, the factor of the estimated prior covariance.
SCALES = (0.0, 0.03, 0.1, 0.2, 0.35, 0.6, 1.0, 1.5, 2.2)
OUTSIDER_SCALES = (0.0, 1.0)  # values of k: outsiders resemble other orderings (0) or may differ (1)

# The posterior of v, the factor of the error covariance, is represented by its quantiles at these
# levels. All quantiles are equally likely.
ERROR_QUANTILES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
PRIOR_SPREAD = 0.005  # assumed variance between mean scores, for scores with a range of 1
PRIOR_NO_EFFECT = 0.5  # prior probability that all orderings score the same on new examples (s = 0)


class GainSummary(NamedTuple):
    """A summary of gains ``[m]``, averaged over all hypotheses."""

    expected: Array
    above: Array  # probabilities of gains above -margin (see `Gains.summary()`)
    below: Array  # probabilities of gains below -margin
    deviations: Array  # standard deviations of the gains


class Gains(NamedTuple):
    """Gains over a reference ordering, normally distributed under each hypothesis."""

    probabilities: Array  # probability of each hypothesis, [H]
    means: Array  # mean of each gain, [H, m]
    variances: Array  # variance of each gain, [H, m]
    possible: Mask  # whether a gain can differ from 0, [H, m]

    def plus(self, other: Gains) -> Gains:
        """Return the sums of these gains and the independent gains `other` under each pair of hypotheses.

        If `other` has only one column, this column applies to all orderings.
        """
        probabilities = np.outer(self.probabilities, other.probabilities).ravel()
        shape = (len(probabilities), -1)
        means = self.means[:, None] + other.means
        variances = self.variances[:, None] + other.variances
        possible = self.possible[:, None] | other.possible
        return Gains(probabilities, means.reshape(shape), variances.reshape(shape), possible.reshape(shape))

    def times(self, factor: Array | float) -> Gains:
        """Return the gains multiplied by a factor: a single number, or one per ordering, ``[m]``."""
        return self._replace(means=factor * self.means, variances=np.square(factor) * self.variances)

    def of(self, columns: Numbers) -> Gains:
        """Return the gains of the orderings at the indices `columns`."""
        return self._replace(
            means=self.means[:, columns],
            variances=self.variances[:, columns],
            possible=self.possible[:, columns],
        )

    def condensed(self) -> Gains:
        """Return gains with fewer hypotheses, but the same overall means and variances.

        Hypotheses are merged if the same orderings can have gains other than 0 under all of them.
        """
        possible, groups = np.unique(self.possible, axis=0, return_inverse=True)
        in_group = groups.ravel() == np.arange(len(possible))[:, None]
        shares = self.probabilities * in_group
        probabilities = shares.sum(axis=1)
        weights = shares / np.maximum(probabilities, 1e-300)[:, None]
        means = weights @ self.means
        variances = weights @ (self.variances + self.means**2) - means**2
        return Gains(probabilities, means, variances, possible)

    def summary(self, *, margin: float = 0.0) -> GainSummary:
        """Return a summary of the gains, averaged over the hypotheses.

        `above` and `below` are the probabilities of gains above and below ``-margin``.
        """
        variances = np.where(self.possible, self.variances, 0.0)
        deviations = np.where(self.possible, np.sqrt(np.maximum(variances, 1e-18)), 1.0)
        above = np.where(
            self.possible, special.ndtr((self.means + margin) / deviations), float(margin > 0.0)
        )
        below: Array = self.possible * (1.0 - above)
        expected = self.probabilities @ self.means
        total_variances = self.probabilities @ (variances + self.means**2) - expected**2
        return GainSummary(
            expected,
            self.probabilities @ above,
            self.probabilities @ below,
            np.sqrt(np.maximum(total_variances, 0.0)),
        )


def class_share_errors(class_means: Array, shares: Array, num_examples: int) -> Array:
    """Return the covariance ``[m, m]`` of errors in mean scores that are due to the sample's class shares.

    In a random sample, the numbers of examples in the C classes have a multinomial distribution. The
    more an ordering's mean scores ``[m, C]`` differ between classes, the more they affect its score.
    """
    deviations = class_means - (class_means @ shares)[:, None]
    return np.asarray((deviations * shares) @ deviations.T / num_examples)


def conditional_gains(
    means: Array, hypotheses: Iterable[tuple[Array, Array]], probabilities: Array, reference: int
) -> Gains:
    """Return gains over a reference, conditional on the measured means, under each hypothesis.

    The hypotheses are weighted by their posterior probabilities.

    Args:
        means, reference: As in the module's table of symbols.
        hypotheses: For each hypothesis, the prior covariance P and the covariance of the errors in
            the means.
        probabilities: Prior probabilities of the hypotheses, ``[H]``.
    """
    log_likelihoods = []
    gains = []
    variances = []
    possible = []
    for prior, noise in hypotheses:
        inverse = np.linalg.inv(prior + noise)  # Eq. 7
        sums = inverse.sum(axis=0)
        precision = sums.sum()
        residuals = means - sums @ means / precision  # Eq. 8
        weighted = inverse @ residuals
        # The common mean is also estimated from these means, so use the restricted likelihood.
        log_determinant = np.linalg.slogdet(inverse)[1]
        log_likelihoods.append(0.5 * (log_determinant - np.log(precision) - residuals @ weighted))
        contrasts = prior - prior[reference]
        gains.append(contrasts @ weighted)  # Eq. 9
        slopes = contrasts @ inverse
        explained = (slopes * contrasts).sum(axis=1) - slopes.sum(axis=1) ** 2 / precision
        prior_variances = np.diag(contrasts) - contrasts[:, reference]
        variances.append(np.maximum(prior_variances - explained, 0.0))
        possible.append(prior_variances > 1e-12)
    posterior = special.softmax(np.log(probabilities) + log_likelihoods)
    return Gains(posterior, np.array(gains), np.array(variances), np.array(possible))


def expected_gains(
    means: Array,
    *,
    covariance: Array,
    outsiders: Array,
    noise: Array,
    reference: int,
    num_examples: int,
    outsider_scales: Sequence[float] = OUTSIDER_SCALES,
) -> Gains:
    """Return the gains of orderings over a reference.

    The estimated variance between orderings may be due to noise alone. The hypotheses therefore
    scale this variance by different factors. The covariance of errors is estimated with
    `num_examples - 1` degrees of freedom. To be cautious, the hypotheses may enlarge but never
    reduce this covariance.

    Args:
        means, covariance, outsiders, noise, reference: As in the module's table of symbols.
        num_examples: Number of examples from which the means are estimated.
        outsider_scales: Values of k to try if there are outsiders.
    """
    factors = _factors(outsiders, outsider_scales, num_examples)
    # Generate the covariances one by one, because all of them together would take a lot of memory.
    hypotheses = (
        (scale * covariance + outsider_scale * outsiders, error_scale * noise)
        for scale, outsider_scale, error_scale in factors.T
    )
    return conditional_gains(means, hypotheses, _prior_weights(factors[0]), reference)


def independent_gains(
    means: Array, noise: Array, share_errors: Array, *, outsiders: Array, reference: int, num_examples: int
) -> Gains:
    """Return the gains over a reference, for orderings with strongly correlated errors.

    Errors on shared examples affect many orderings alike. More orderings therefore hardly improve
    the estimate of the variance between orderings. So this estimate's degrees of freedom are
    derived from the covariance of errors. `outsiders` holds only variances, ``[m]``. `share_errors`
    is the result of `class_share_errors()`. These errors add to the variances of gains, but not to
    the shrinkage, because they would make small gains too uncertain.
    """
    errors = noise - noise.mean(axis=0) - noise.mean(axis=1)[:, None] + noise.mean()
    error_variances = np.diag(errors)
    is_outsider = outsiders > 0.0
    weights = (~is_outsider | is_outsider.all()) / (error_variances + PRIOR_SPREAD)
    weights /= weights.sum()
    center = weights @ means
    spread = float(weights @ (means - center) ** 2)
    error = float(weights @ error_variances) + 1e-12
    half_degrees = 0.5 * np.trace(errors) ** 2 / ((errors**2).sum() + 1e-24)
    estimate = max(spread - error, 0.1 * PRIOR_SPREAD)
    gain_errors = _variances_of_differences(noise, reference)
    factors = _factors(outsiders, OUTSIDER_SCALES, num_examples)
    scales, outsider_scales, error_scales = factors[..., None]
    variances = scales * estimate
    totals = error_scales * error + variances
    outsider_totals = (error_variances + variances + outsider_scales * outsiders)[:, is_outsider] + 1e-12
    outsider_terms = np.log(outsider_totals) + (means - center)[is_outsider] ** 2 / outsider_totals
    spread_terms = (np.log(totals) + spread / totals)[:, 0]
    log_likelihoods = -half_degrees * spread_terms - 0.5 * outsider_terms.sum(axis=1)
    prior_variances = 2.0 * variances + outsider_scales * (outsiders + outsiders[reference])
    prior_variances[:, reference] = 0.0
    shrinkage = prior_variances / (prior_variances + 2.0 * error_scales * error)
    posterior = special.softmax(np.log(_prior_weights(factors[0])) + log_likelihoods)
    gains = shrinkage * (means - means[reference])
    gain_variances = shrinkage * error_scales * gain_errors
    gain_variances += _variances_of_differences(share_errors, reference)
    return Gains(posterior, gains, gain_variances, prior_variances > 0.0)


def _variances_of_differences(covariance: Array, reference: int) -> Array:
    """Return the variances ``[m]`` of the differences between all variables and the reference."""
    variances = np.diag(covariance) + covariance[reference, reference] - 2 * covariance[reference]
    return np.asarray(np.maximum(variances, 0.0))


def _factors(outsiders: Array, outsider_scales: Sequence[float], num_examples: int) -> Array:
    """Return all combinations of the factors s, k and v, ``[3, H]``."""
    degrees = max(1, num_examples - 1)
    error_scales = np.maximum(1.0, degrees / special.chdtri(degrees, ERROR_QUANTILES))
    return np.array(
        [*itertools.product(SCALES, outsider_scales if outsiders.any() else (0.0,), error_scales)]
    ).T


def _prior_weights(scales: Array) -> Array:
    """Return the prior weights of hypotheses, given their factors s."""
    return np.where(scales == 0.0, PRIOR_NO_EFFECT, (1 - PRIOR_NO_EFFECT) / (len(SCALES) - 1))
