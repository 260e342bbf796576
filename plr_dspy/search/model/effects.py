"""Effects of orderings and examples on the log-probabilities of labels.

    z[o, e]  =  a[e]  +  b[o]  +  q[o] g[e]  +  noise          (3)

The contrasts z of log-probabilities are defined in `logits.py`. The directions g are the normalized
contrasts of the labels' scores. Log-probabilities on two examples determine an ordering's label bias b
almost exactly. A few examples are therefore enough to predict the ordering's scores on other examples.
The effects and their variances are fitted using expectation-maximization (N. M. Laird and J. H. Ware,
Biometrics 38, 1982).
"""

from typing import NamedTuple

import numpy as np

from plr_dspy.search.model.components import fit_components
from plr_dspy.search.model.gains import Families
from plr_dspy.statistics.arrays import Array, Mask

NUM_SWEEPS = 12  # maximum number of sweeps in a fit
TOLERANCE = 3e-4  # a fit ends if the noise changes by less than this fraction, usually in the sixth sweep
PRIOR_COUNT = 5.0  # weight of the prior of each variance, as a number of observations

# Prior variances of the effects and of the noise, on the scale of log-odds (natural logarithms).
PRIOR_LABEL_BIAS = 0.1
PRIOR_SLOPE = 0.01
PRIOR_EXAMPLE = 0.5
PRIOR_NOISE = 0.05
# Values to add to the prior variances of candidates without features.
OUTSIDER_LABEL_BIAS = 4.0
OUTSIDER_SLOPE = 0.4
MAX_LEVERAGE = 0.9  # upper limit of `leverage`, because leave-one-out predictions divide by 1 - leverage


class Posterior(NamedTuple):
    """Independent posteriors of a `k`-dimensional effect, one for each ordering."""

    means: Array  # posterior means, [m, k]
    variances: Array  # posterior variances, equal for all dimensions, [m]
    prior_mean: Array  # prior mean, equal for all orderings, [k]
    prior_variances: Array  # prior variances, larger for candidates without features, [m]


class ResponseEffects:
    """The effects of examples and orderings, fitted to log-probabilities.

    Attributes:
        examples, example_variances: Posterior means ``[E, d]`` and variances ``[E]`` of the
            examples' effects a.
        label_bias, slope: Posteriors of the orderings' label bias b and slope q.
        noise: Variance of the noise of one contrast.
        leverage: Influence of each cell on its own fitted value, at most `MAX_LEVERAGE`, ``[m, E]``.
        residuals: Residuals of the cells, ``[m, E, d]``; 0 for unknown cells.
        num_cells: Effective number of each ordering's known cells, ``[m]``. A cell has a lower
            weight if few other orderings were called on its example.
    """

    def __init__(self, contrasts: Array, directions: Array, *, is_outsider: Mask) -> None:
        # Make contrasts the first axis, because operations are faster on a few large tables than on
        # many short rows.
        is_known = ~np.isnan(contrasts[..., 0])
        num_contrasts = contrasts.shape[2]
        self._known = is_known.astype(np.float64)  # [m, E]
        self._is_seen = is_known.any(axis=0)  # [E]
        self._contrasts = np.ascontiguousarray(np.moveaxis(np.nan_to_num(contrasts), 2, 0))  # [d, m, E]
        self._directions = directions.T  # [d, E]
        self._squares = (directions**2).sum(axis=1)  # [E]
        self._is_outsider = is_outsider
        self.noise = 0.5
        self._example_variance = 2.0
        self._label_bias_mean = np.zeros(num_contrasts)
        self._label_bias_variance = 1.0
        self._slope_variance = PRIOR_SLOPE
        self._examples = np.zeros((num_contrasts, len(directions)))
        # Contrasts minus the effects of orderings, z - b - q g, [d, m, E].
        self._example_responses = self._contrasts
        self.num_cells = np.zeros(len(is_known))
        # The first sweep assigns the other attributes.
        self.example_variances: Array
        self.label_bias: Posterior
        self.slope: Posterior
        self._slope_leverage: Array  # the part of `leverage` that is due to the slope, [m, E]
        self.leverage: Array
        self.residuals: Array
        for _ in range(NUM_SWEEPS):
            noise_before = self.noise
            self._fit_examples()
            self._fit_variances()
            self._fit_orderings()
            self._fit_noise()
            if abs(self.noise - noise_before) < TOLERANCE * noise_before:
                break
        self.examples = self._examples.T

    def _fit_examples(self) -> None:
        """Update the effects of examples, using a prior mean that is linear in the directions g."""
        directions = self._directions
        is_seen = self._is_seen
        prior_mean = np.zeros_like(self._examples)
        if is_seen.any():
            level = self._examples[:, is_seen].mean(axis=1)[:, None]
            products = (self._examples - level) * directions
            slope = float(products[:, is_seen].sum()) / (self._squares[is_seen].sum() + 1e-9)
            prior_mean = level + slope * directions
        sums = (self._example_responses * self._known).sum(axis=1)
        precisions = self._known.sum(axis=0) / self.noise + 1.0 / self._example_variance
        self._examples = (sums / self.noise + prior_mean / self._example_variance) / precisions
        self.example_variances = 1.0 / precisions
        deviations = (self._examples - prior_mean)[:, is_seen]
        squares = (deviations**2).mean(axis=0) + self.example_variances[is_seen]
        self._example_variance = _posterior_variance(squares, PRIOR_EXAMPLE)

    def _fit_variances(self) -> None:
        """Update the priors of label bias and slope, given the posteriors from the previous sweep."""
        is_regular = ~self._is_outsider & (self.num_cells > 0)
        if not is_regular.any():
            return
        label_bias = self.label_bias.means[is_regular]
        self._label_bias_mean = label_bias.mean(axis=0)
        deviations = ((label_bias - self._label_bias_mean) ** 2).mean(axis=1)
        squares = deviations + self.label_bias.variances[is_regular]
        self._label_bias_variance = _posterior_variance(squares, PRIOR_LABEL_BIAS)
        squares = self.slope.means[is_regular, 0] ** 2 + self.slope.variances[is_regular]
        self._slope_variance = _posterior_variance(squares, PRIOR_SLOPE)

    def _fit_orderings(self) -> None:
        """Update the label bias and slope of each ordering by weighted ridge regression.

        The label bias is the intercept. The slope is the coefficient of the directions g.
        """
        noise = self.noise
        directions = self._directions
        num_contrasts = len(self._contrasts)
        additional_variances = np.where(self._is_outsider, OUTSIDER_LABEL_BIAS, 0.0)
        bias_priors = self._label_bias_variance + additional_variances  # [m]
        slope_priors = self._slope_variance + np.where(self._is_outsider, OUTSIDER_SLOPE, 0.0)  # [m]
        examples, example_variances = self._examples_without_own_cell()
        weights = self._known * noise / (noise + example_variances)  # [m, E]
        responses = (self._contrasts - examples) * weights  # [d, m, E]
        self.num_cells = weights.sum(axis=1)
        # To solve the normal equations of label bias and slope, eliminate the label bias first.
        ridge = noise / bias_priors  # [m]
        total = self.num_cells + ridge  # [m]
        cross = directions @ weights.T  # [d, m]
        sums = responses.sum(axis=2) + ridge * self._label_bias_mean[:, None]  # [d, m]
        moments = (responses @ directions[..., None])[..., 0].sum(axis=0)  # [m]
        remaining = weights @ self._squares - (cross**2).sum(axis=0) / total  # [m]
        inverse = 1.0 / (remaining + noise / slope_priors)  # [m]
        slopes = inverse * (moments - (cross * sums).sum(axis=0) / total)  # [m]
        label_bias = (sums - slopes * cross) / total  # [d, m]
        by_slope = ((cross / total) ** 2).sum(axis=0) * inverse / num_contrasts  # [m]
        bias_variances = noise * (1.0 / total + by_slope)  # [m]
        self.label_bias = Posterior(label_bias.T, bias_variances, self._label_bias_mean, bias_priors)
        self.slope = Posterior(slopes[:, None], noise * inverse, np.zeros(1), slope_priors)
        self._slope_leverage = weights * np.outer(inverse, self._squares) / num_contrasts
        self._example_responses = self._contrasts - (
            label_bias[..., None] + slopes[:, None] * directions[:, None]
        )

    def _examples_without_own_cell(self) -> tuple[Array, Array]:
        """Return the effect of each cell's example, estimated without the cell, and its variance.

        If an estimate contained part of the cell's noise, that part would look like an effect of
        the ordering. The estimates have the shape ``[d, m, E]``, and the variances ``[m, E]``.
        """
        own_precision = self._known / self.noise
        precision = 1.0 / self.example_variances - own_precision
        scaled = (self._examples / self.example_variances)[
            :, None
        ] - own_precision * self._example_responses
        return scaled / precision, 1.0 / precision

    def _fit_noise(self) -> None:
        """Update the leverage and the residuals, and estimate the noise from them."""
        own_precision = self._known / self.noise
        ordering_precisions = 1.0 / self.label_bias.prior_variances + own_precision.sum(axis=1)
        scaled = own_precision * self.example_variances
        ordering_covariance = np.linalg.inv(np.diag(ordering_precisions) - own_precision @ scaled.T)
        cross_covariance = ordering_covariance @ scaled
        of_examples = self.example_variances + (scaled * cross_covariance).sum(axis=0)
        variances = np.diag(ordering_covariance)[:, None] - 2.0 * cross_covariance + of_examples
        self.leverage = np.minimum(variances / self.noise + self._slope_leverage, MAX_LEVERAGE)
        residuals = (self._example_responses - self._examples[:, None]) * self._known
        self.residuals = np.moveaxis(residuals, 0, 2)
        degrees = float(((1.0 - self.leverage) * self._known).sum()) * len(residuals)
        squares = float(np.vdot(residuals, residuals))
        self.noise = (squares + PRIOR_COUNT * PRIOR_NOISE) / (degrees + PRIOR_COUNT)


def _posterior_variance(squares: Array, prior: float) -> float:
    """Return the posterior estimate of a variance, given its prior value and expected squared deviations."""
    return float((squares.sum() + PRIOR_COUNT * prior) / (len(squares) + PRIOR_COUNT))


class EffectProcess:
    """A Gaussian process of label biases or slopes that were measured with different precisions.

    Attributes:
        fit: The fitted components, with variances relative to `unit`, the noise variance of one
            contrast.
        means, variances: Posterior means ``[m, k]`` and variances ``[m]``, given the measurements
            of all orderings.
    """

    def __init__(self, features: Families, kernels: Families, measured: Posterior, *, unit: float) -> None:
        self.level = measured.prior_mean
        # The process has its own prior, so remove the effect's prior from each posterior. This leaves the
        # likelihood of the ordering's cells.
        posterior = 1.0 / measured.variances
        prior = 1.0 / measured.prior_variances
        self._precisions = np.maximum(posterior - prior, 1e-6)
        scaled = measured.means * posterior[:, None] - self.level * prior[:, None]
        values = scaled / self._precisions[:, None] - self.level
        usual_variance = float(measured.prior_variances.min())
        extra = (measured.prior_variances - usual_variance) / unit
        own_effects = np.diag((extra == 0.0).astype(np.float64))
        self.fit = fit_components(
            features,
            [*kernels, own_effects],
            np.diag(1.0 / (self._precisions * unit)),
            lambda covariance, inverse: (values, unit),
            total=usual_variance / unit,
            fixed=np.diag(extra),
        )
        self.means = self.fit.values + self.level
        self.variances = self.fit.posterior_variances

    def errors(self, noise: Array, is_measured: Mask) -> Array:
        """Return the covariance ``[c, c]`` of the errors that noise causes in the posterior means.

        Rows and columns correspond to the `c` orderings in the mask `is_measured`. `noise` is the
        covariance ``[c, c]`` of the noise in their measurements. Only its correlations matter.
        """
        deviations = 1.0 / np.sqrt(self._precisions[is_measured] * np.diag(noise))
        gain = (self.fit.covariance @ self.fit.inverse)[np.ix_(is_measured, is_measured)]
        return np.asarray(gain @ (noise * np.outer(deviations, deviations)) @ gain.T)

    def predict_variances(self, products: Families, squares: Array) -> Array:
        """Return the posterior variances of new orderings, ``[c]``.

        Args:
            products: For each family, inner products between the features of new and fitted
                orderings, ``[c, m]``.
            squares: Squared norms of new orderings' features in each family, ``[c, families]``.
        """
        *family_variances, own_variance = self.fit.variances
        covariance = np.tensordot(family_variances, products, axes=1)
        prior_variances = squares @ family_variances + own_variance
        return self.fit.remaining(prior_variances, covariance)
