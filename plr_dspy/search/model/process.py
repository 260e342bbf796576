"""A Gaussian process that models the scores of orderings on examples as a sum of effects.

    y[o, e]  =  a[e]  +  f(o)  +  w[c(e)] l(o)  +  h[o, e]  +  noise          (2)

The effects a are those of the examples. The process f is the sum of linear functions of all feature
families, a smooth function of the label bias l, and independent effects of the individual orderings
(`own_effects`). The effect w of the label bias depends on the example's class c(e). The preferences
h are interactions between orderings and examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import optimize

from plr_dspy.search.model.components import fit_components, kernels_of, linear
from plr_dspy.search.model.gains import OUTSIDER_SCALES, Families, Gains, class_share_errors, expected_gains
from plr_dspy.search.model.score_table import PRIOR_NOISE_RATIO, ScoreTable
from plr_dspy.statistics.arrays import Array, Mask, Numbers

# Prior variance of an outsider's effect, relative to the noise. This variance is so large that the
# prior has hardly any influence.
OUTSIDER_VARIANCE = np.float64(1.0)
# Prior variance of the part of an outsider's effect that its log-probabilities do not explain. With a
# larger variance, a student without demos would be kept even if demos help (see "help" in
# `benchmarks/landscapes.py`).
UNEXPLAINED_OUTSIDER_VARIANCE = np.float64(0.1)
PRIOR_SHARE = 0.2  # prior mean of the fraction of the residual variance that preferences explain
MAX_SHARE = 0.95  # maximum fraction of the residual variance that preferences may explain

# Prior precision of the fraction that each kernel explains, as a number of pairs of scores. Both
# scores of a pair are on the same example.
PRIOR_PRECISION = 40.0
# Centers of the Gaussian bumps that represent a smooth function of the label bias. The unit is the
# standard deviation of the label bias among random orderings.
CENTERS = np.arange(-4.0, 4.01, 0.5)
MIN_FREE_SHARE = 0.25  # minimum degrees of freedom of the noise, as a fraction of their upper limit


class LabelBias:
    """A Gaussian process that models the label bias of orderings.

    An ordering with a label bias scores higher on some classes of examples and lower on
    others. Label bias is nearly linear in the ordering's features, but accuracy peaks at a
    moderate label bias (T. Zhao et al., "Calibrate before use", ICML 2021).

    Attributes:
        explained: The part of the scores that the label bias explains, ``[m, E]``.
        share_errors: The covariance of errors in its means due to the sample's class shares, ``[m, m]``.
    """

    def __init__(
        self,
        features: Families,
        kernels: Families,
        table: ScoreTable,
        classes: Numbers,
        references: Families,  # features of random orderings
    ) -> None:
        is_of_class = np.eye(classes.max() + 1)[classes]
        residuals = table.residuals(table.shrunk_means)
        sums = residuals @ is_of_class
        counts = table.known @ is_of_class
        direction = _class_direction(sums, counts)
        # An ordering's mean residual along this direction measures its label bias.
        sums = sums @ direction
        precisions = np.maximum(counts @ direction**2, 1e-3)
        center = float(np.average(sums / precisions, weights=precisions))
        values = sums / precisions - center
        squares = float(np.vdot(residuals, residuals))
        max_degrees = float(table.counts.sum() - table.num_example_parameters)

        def measure(covariance: Array, inverse: Array) -> tuple[Array, float]:
            bias = covariance @ (inverse @ values) + center
            remaining = squares - 2 * float(sums @ bias) + float(precisions @ bias**2)
            degrees = max_degrees - float(np.vdot(covariance, inverse))
            return values, max(remaining / max(degrees, MIN_FREE_SHARE * max_degrees), 1e-9)

        fit = fit_components(features, kernels, np.diag(1.0 / precisions), measure)
        class_means = (fit.values + center)[:, None] * direction
        self.explained: Array = class_means[:, classes]
        self.share_errors = class_share_errors(class_means, is_of_class.mean(axis=0), len(classes))
        self._weights = fit.weights
        reference_bias = linear(references, fit.weights)
        self._reference_mean = float(reference_bias.mean())
        self._reference_deviation = float(reference_bias.std()) + 1e-9
        bumps = self._bumps(references)
        self._mean = bumps.mean(axis=0)
        self._scale = float(1.0 / np.sqrt(((bumps - self._mean) ** 2).sum(axis=1).mean() + 1e-12))

    def add_to(self, features: Families) -> list[Array]:
        """Return the features, plus a family that represents a smooth function of the label bias."""
        return [*features, (self._bumps(features) - self._mean) * self._scale]

    def _bumps(self, features: Families) -> Array:
        """Return the values of all Gaussian bumps at each ordering's label bias, ``[m, d]``."""
        standardized = (linear(features, self._weights) - self._reference_mean) / self._reference_deviation
        return np.asarray(np.exp(-0.5 * (standardized[:, None] - CENTERS) ** 2))


def _class_direction(sums: Array, counts: Array) -> Array:
    """Return the direction in the space of the `C` classes along which orderings differ most, ``[C]``.

    Averaged over all scores, the direction has mean 0 and mean square 1. `sums` and `counts`
    hold the sum and the number of each ordering's residuals in each class, ``[m, C]``.
    """
    profiles = sums / (counts + PRIOR_NOISE_RATIO)
    profiles -= profiles.mean(axis=1, keepdims=True)
    direction = np.linalg.svd(profiles, full_matrices=False)[2][0]
    shares = counts.sum(axis=0) / counts.sum()
    direction = direction - direction @ shares
    return np.asarray(direction / np.sqrt(direction**2 @ shares + 1e-12))


def covariance_of_means(kernels: Families, table: ScoreTable) -> Array:
    """Return the covariance ``[m, m]`` of the errors in mean scores.

    The unit is the noise variance of a single score. Similar orderings do well on the same
    examples, so their errors on shared examples are correlated.
    """
    # Add kernels with cubed correlations, because nearly identical orderings agree more than linear
    # functions of features can express.
    sharper = []
    for kernel in kernels:
        lengths = np.sqrt(np.diag(kernel)) + 1e-12
        sharper.append(kernel * (kernel / np.outer(lengths, lengths)) ** 2)
    kernels = [*kernels, *sharper]
    # Residuals multiplied by these roots are equally noisy for all orderings.
    roots = np.sqrt(table.information_weights)[:, None]
    shares = preference_shares(kernels, table.residuals(table.adjusted_means) * roots, table.known)
    size = len(table.counts)
    preferences = np.zeros((size, size))
    for share, kernel in zip(shares, kernels, strict=True):
        preferences = preferences + share * kernel
    call_variances = np.maximum(1.0 - np.diag(preferences), 1.0 - MAX_SHARE)
    weights = table.known / np.maximum(1, table.counts)[:, None] / roots
    return np.asarray(preferences * (weights @ weights.T) + np.diag(call_variances / table.sizes))


def preference_shares(kernels: Families, residuals: Array, known: Mask) -> Array:
    """Return the fraction of the residuals' variance that each kernel explains.

    The fractions are estimated from products of two orderings' residuals on the same example, using
    non-negative least squares (J. K. Haseman and R. C. Elston, Behavior Genetics 2, 1972).
    `residuals` has the shape ``[m, E]``.
    """
    total = float(np.vdot(residuals, residuals))
    if total <= 0.0 or not kernels:
        return np.zeros(len(kernels))
    is_known = known.astype(np.float64)
    common = is_known @ is_known.T
    counts = is_known.sum(axis=1)
    # This fraction of a pair's covariance remains after subtracting the orderings' own means.
    remaining = 1.0 - 1.0 / counts - 1.0 / counts[:, None] + common / np.outer(counts, counts)
    np.fill_diagonal(remaining, 0.0)
    regressors = []
    for kernel in kernels:
        # The effects of examples absorb the mean over all orderings, so center the kernel.
        means = kernel.mean(axis=0)
        centered = kernel - means - means[:, None] + means.mean()
        regressors.append((remaining * centered).ravel())
    design = np.stack(regressors)
    products = (residuals @ residuals.T).ravel() * (is_known.sum() / total)
    # Each pair of orderings occurs twice, so multiply by 0.5.
    gram = (design * (0.5 * common).ravel()) @ design.T + PRIOR_PRECISION * np.eye(len(kernels))
    moments = 0.5 * (design @ products) + PRIOR_PRECISION * PRIOR_SHARE / len(kernels)
    factor = np.linalg.cholesky(gram)
    shares: Array = optimize.nnls(factor.T, np.linalg.solve(factor, moments))[0]
    return shares * min(1.0, MAX_SHARE / max(float(shares.sum()), 1e-12))


class AdditiveProcess:
    """An additive Gaussian process, fitted to the scores of orderings on examples.

    Args:
        features: One array ``[m, d]`` for each family.
        table: The scores. Each ordering must have at least one.
        classes: Index of each example's class, ``[E]``.
        references: Features of random orderings. Label bias is modeled only if `references` and
            several classes are given.
        outsider_variances: Prior variances of outsiders' effects, relative to the noise, ``[m]``, and
            0 for other orderings. An outsider's effect is independent of all other effects.
        extra_variances: Variances to add to the estimated prior variances, ``[m]``.
        has_random_shares: Whether gains depend on the sample's class shares. False for a metric over a set.

    Attributes:
        mean, variances: Posterior means and variances of the orderings' scores on an average
            example, ``[m]``.
        unshrunk: Estimates of these scores, not shrunk towards other orderings, ``[m]``.
        fit: The fitted components, with variances relative to the noise.
    """

    def __init__(
        self,
        features: Families,
        table: ScoreTable,
        *,
        classes: Numbers | None = None,
        references: Families | None = None,
        outsider_variances: Array | None = None,
        extra_variances: Array | float = 0.0,
        has_random_shares: bool = True,
    ) -> None:
        if outsider_variances is None:
            outsider_variances = np.zeros(len(table.counts))
        self._outsiders: Array = np.diag(outsider_variances)
        self._own_effects = own_effects = np.diag((outsider_variances == 0.0).astype(np.float64))
        self._unit = float(np.nanmax(np.abs(table.scores))) or 1.0
        table = ScoreTable(table.scores / self._unit, information_weights=table.information_weights)
        self._effects = table.shrunk_means
        kernels = kernels_of(features)
        self._label_bias: LabelBias | None = None
        self._share_errors: Array | float = 0.0
        if classes is not None and classes.max() > 0 and references is not None:
            self._label_bias = LabelBias(features, [*kernels, own_effects], table, classes, references)
            table = table.minus(self._label_bias.explained)
            if has_random_shares:
                self._share_errors = self._label_bias.share_errors
        self._table = table
        self._num_examples = int(table.seen.sum())
        self._errors = covariance_of_means(kernels, table)
        self._features = self._all_features(features)
        scores = table.scores[table.known]
        self._score_variance = float(scores.var())
        self._varies = self._score_variance > 1e-18 * float(np.abs(scores).max()) ** 2
        self.fit = fit_components(
            self._features,
            [*kernels_of(self._features), own_effects],
            self._errors,
            self._measure,
            noise=max(self._score_variance, 1e-12),
            fixed=self._outsiders,
            extra_variances=extra_variances / self._unit**2,
        )
        self._deviation = float(np.sqrt(self.fit.noise))
        mean_example = float(table.example_effects(self._effects)[table.seen].mean())
        self._level = mean_example + self._center
        self.unshrunk = self._unit * (self._means + mean_example)
        self.mean: Array = self._unit * (self.fit.values + self._level)
        self.variances = self._unit**2 * self.fit.posterior_variances

    def _measure(self, covariance: Array, inverse: Array) -> tuple[Array, float]:
        """Return the measured values and the noise variance for `fit_components()`.

        The values are the mean scores of orderings, adjusted for the difficulty of examples and
        centered. This method also stores the current posterior means, because the next adjustment
        needs them.
        """
        table = self._table
        self._means = table.ordering_effects(self._effects)
        # Scores of similar orderings are correlated, so take the generalized least-squares mean.
        self._center = float(inverse.sum(axis=0) @ self._means / inverse.sum())
        values = self._means - self._center
        self._effects = covariance @ (inverse @ values) + self._center
        if not self._varies:
            return values, 1.0
        count = table.counts.sum()
        degrees = count - (float(np.vdot(covariance, inverse)) + table.num_example_parameters)
        squares = table.squares(table.residuals(self._effects))
        return values, max(squares / max(degrees, MIN_FREE_SHARE * count), 1e-6 * self._score_variance)

    def _all_features(self, features: Families) -> list[Array]:
        """Return the features, including those of the label bias if it is modeled."""
        if self._label_bias is None:
            return list(features)
        return self._label_bias.add_to(features)

    def predict(self, features: Families) -> Array:
        """Return the posterior mean scores of new orderings, ``[c]``."""
        return self._unit * (linear(self._all_features(features), self.fit.weights) + self._level)

    def gains(
        self,
        reference: int,
        *,
        outsider_scales: Sequence[float] = OUTSIDER_SCALES,
        may_differ: bool = False,
    ) -> Gains:
        """Return the gains of fitted orderings over a reference.

        If `may_differ`, treat the reference as an outsider, because it may be unlike all other
        orderings.
        """
        outsiders = self._outsiders.copy()
        if may_differ:
            outsiders[reference, reference] = OUTSIDER_VARIANCE
        gains = expected_gains(
            self._means / self._deviation,
            covariance=self.fit.covariance - self.fit.fixed,
            outsiders=outsiders,
            noise=self._errors + self._share_errors / self._deviation**2,
            reference=reference,
            num_examples=self._num_examples,
            outsider_scales=outsider_scales,
        )
        return gains.times(self._unit * self._deviation)

    def sample(
        self,
        features: Families,
        num_draws: int,
        rng: np.random.Generator,
        extra_variances: Array | float = 0.0,
    ) -> Array:
        """Draw mean scores from the joint posterior of fitted and new orderings, ``[draws, m + c]``.

        Use Matheron's rule: draw from the prior, then correct each draw by its differences from the
        measured scores (J. T. Wilson et al., "Efficiently sampling functions from Gaussian process
        posteriors", ICML 2020). `extra_variances` are added to the new orderings' prior variances,
        ``[c]``.
        """
        fit = self.fit
        size = len(self.mean)
        count = len(features[0]) if features else 0
        features = self._all_features(features)
        *variances, own_variance = fit.variances
        slopes = []
        for variance, family in zip(variances, self._features, strict=True):
            slopes.append(np.sqrt(variance) * rng.normal(size=(family.shape[1], num_draws)))
        own_covariance = own_variance * self._own_effects + fit.fixed
        own_effects = np.linalg.cholesky(own_covariance) @ rng.normal(size=(size, num_draws))
        extra = extra_variances / (self._unit * self._deviation) ** 2 + np.zeros(count)
        others = rng.normal(size=(count, num_draws)) * np.sqrt(own_variance + extra)[:, None]
        noise = np.linalg.cholesky(self._errors) @ rng.normal(size=(size, num_draws))
        measured = own_effects + noise + linear(self._features, slopes)
        # (K + E)^-1 (y - measured)
        correction = fit.solved[:, None] / self._deviation - fit.inverse @ measured
        for number, (variance, family) in enumerate(zip(variances, self._features, strict=True)):
            slopes[number] = slopes[number] + variance * (family.T @ correction)
        own_effects += linear(self._features, slopes) + own_covariance @ correction
        others += linear(features, slopes)
        values = np.concatenate([own_effects, others])
        return np.asarray(self._unit * (self._level + self._deviation * values.T))
