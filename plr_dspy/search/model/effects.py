"""Effects of orderings and of examples on the log-probabilities of labels.

    z[o, e]  =  a[e]  +  b[o]  +  q[o] g[e]  +  noise          (3)

    symbol  code        shape      meaning
    m, E                           orderings o, examples e
    d                              orthonormal contrasts of d + 1 labels
    z       contrasts   [m, E, d]  log-probabilities as contrasts, NaN for unknown cells
    a       examples    [E, d]     effect of the example
    b       label_bias  [m, d]     label bias of the ordering
    q       slope       [m]        what the ordering adds to labels with high scores
    g       directions  [E, d]     direction of the labels with high scores
    w       weights     [m, E]     weights of the cells in the effects of orderings

Two examples tell b of an ordering almost exactly, so its score on all others follows from few of them.
The effects and their variances are fitted by expectation and maximisation (N. M. Laird and J. H. Ware, Biometrics 38,
1982).
"""

from typing import NamedTuple

import numpy as np

from plr_dspy.search.model.components import Variances, fit_components
from plr_dspy.search.model.gains import Families
from plr_dspy.statistics.arrays import Array, Mask

NUM_SWEEPS = 12
NUM_QUICK_SWEEPS = 3  # of a fit that only ranks orderings
SETTLED = 3e-4  # relative change of the noise that ends the sweeps; with many cells, after six
PRIOR_COUNT = 5.0  # orderings, examples or answers that the prior of a variance counts as
# Prior variances, in squared natural logarithms of odds.
PRIOR_LABEL_BIAS = 0.1
PRIOR_SLOPE = 0.01
PRIOR_EXAMPLE = 0.5
PRIOR_NOISE = 0.05
# Further prior variances of candidates without features.
OUTSIDER_LABEL_BIAS = 4.0
OUTSIDER_SLOPE = 0.4
MAX_LEVERAGE = 0.9


class Posterior(NamedTuple):
    """The posterior of an effect with k dimensions, independent for each ordering."""

    means: Array  # [m, k]
    variances: Array  # in each dimension, [m]
    prior_mean: Array  # [k]
    prior_variances: Array  # [m]; smallest for orderings with features


class ResponseEffects:
    """The effects that were fitted to log-probabilities.

    Attributes:
        examples, example_variances: Posterior means of a, ``[E, d]``, and their variances, ``[E]``.
        label_bias, slope: Posteriors of b and q.
        noise: Variance of a contrast.
        leverage: Share of it that the fit of a cell explains by the cell itself, ``[m, E]``.
        residuals: Rest of the known cells, 0 for others, ``[m, E, d]``.
        num_cells: Known cells of each ordering, ``[m]``. A cell counts less if its example is known from no other.
    """

    def __init__(self, contrasts: Array, directions: Array, *, is_outsider: Mask, num_sweeps: int = NUM_SWEEPS) -> None:
        # Contrasts come first in here: sums over them are sums of few large tables.
        is_known = ~np.isnan(contrasts[..., 0])
        num_contrasts = contrasts.shape[2]
        self._known = is_known.astype(np.float64)
        self._is_seen = is_known.any(axis=0)
        self._contrasts = np.ascontiguousarray(np.moveaxis(np.nan_to_num(contrasts), 2, 0))
        self._directions = directions.T
        self._squares = (directions**2).sum(axis=1)
        self._is_outsider = is_outsider
        self.noise = 0.5
        self._example_variance = 2.0
        self._label_bias_mean = np.zeros(num_contrasts)
        self._label_bias_variance = 1.0
        self._slope_variance = PRIOR_SLOPE
        self._examples = np.zeros((num_contrasts, len(directions)))
        self._of_examples = self._contrasts  # z - b - q g
        self.num_cells = np.zeros(len(is_known))
        for _ in range(num_sweeps):
            noise_before = self.noise
            self._fit_examples()
            self._fit_variances()
            self._fit_orderings()
            self._fit_noise()
            if abs(self.noise - noise_before) < SETTLED * noise_before:
                break
        self.examples = self._examples.T

    def _fit_examples(self) -> None:
        """Update a, whose prior mean is a line in the direction g."""
        directions = self._directions
        is_seen = self._is_seen
        prior_mean = np.zeros_like(self._examples)
        if is_seen.any():
            level = self._examples[:, is_seen].mean(axis=1)[:, None]
            products = (self._examples - level) * directions
            slope = float(products[:, is_seen].sum()) / (self._squares[is_seen].sum() + 1e-9)
            prior_mean = level + slope * directions
        sums = (self._of_examples * self._known).sum(axis=1)
        precisions = self._known.sum(axis=0) / self.noise + 1.0 / self._example_variance
        self._examples = (sums / self.noise + prior_mean / self._example_variance) / precisions
        self.example_variances = 1.0 / precisions
        deviations = (self._examples - prior_mean)[:, is_seen]
        squares = (deviations**2).mean(axis=0) + self.example_variances[is_seen]
        self._example_variance = _posterior_variance(squares, PRIOR_EXAMPLE)

    def _fit_variances(self) -> None:
        """Update the prior of b and q from the posteriors of the sweep before."""
        is_usual = ~self._is_outsider & (self.num_cells > 0)
        if not is_usual.any():
            return
        label_bias = self.label_bias.means[is_usual]
        self._label_bias_mean = label_bias.mean(axis=0)
        deviations = ((label_bias - self._label_bias_mean) ** 2).mean(axis=1)
        squares = deviations + self.label_bias.variances[is_usual]
        self._label_bias_variance = _posterior_variance(squares, PRIOR_LABEL_BIAS)
        squares = self.slope.means[is_usual, 0] ** 2 + self.slope.variances[is_usual]
        self._slope_variance = _posterior_variance(squares, PRIOR_SLOPE)

    def _fit_orderings(self) -> None:
        """Update b and q, by weighted ridge regression on 1 and g."""
        noise = self.noise
        directions = self._directions
        num_contrasts = len(self._contrasts)
        bias_priors = self._label_bias_variance + np.where(self._is_outsider, OUTSIDER_LABEL_BIAS, 0.0)
        slope_priors = self._slope_variance + np.where(self._is_outsider, OUTSIDER_SLOPE, 0.0)
        # Compare each cell with what the other orderings say of its example. An example that
        # knows the cell would repeat some of its noise, which then looks like an effect of the ordering.
        own_precision = self._known / noise
        precision = 1.0 / self.example_variances - own_precision
        scaled = (self._examples / self.example_variances)[:, None] - own_precision * self._of_examples
        weights = self._known * noise / (noise + 1.0 / precision)
        responses = (self._contrasts - scaled / precision) * weights
        self.num_cells = weights.sum(axis=1)
        # Normal equations of b and q, b eliminated.
        ridge = noise / bias_priors
        total = self.num_cells + ridge
        cross = directions @ weights.T
        sums = responses.sum(axis=2) + ridge * self._label_bias_mean[:, None]
        moments = (responses @ directions[..., None])[..., 0].sum(axis=0)
        remaining = weights @ self._squares - (cross**2).sum(axis=0) / total
        inverse = 1.0 / (remaining + noise / slope_priors)
        slopes = inverse * (moments - (cross * sums).sum(axis=0) / total)
        label_bias = (sums - slopes * cross) / total
        by_slope = ((cross / total) ** 2).sum(axis=0) * inverse / num_contrasts
        bias_variances = noise * (1.0 / total + by_slope)
        self.label_bias = Posterior(label_bias.T, bias_variances, self._label_bias_mean, bias_priors)
        self.slope = Posterior(slopes[:, None], noise * inverse, np.zeros(1), slope_priors)
        self._slope_leverage = weights * np.outer(inverse, self._squares) / num_contrasts
        self._of_examples = self._contrasts - (label_bias[..., None] + slopes[:, None] * directions[:, None])

    def _fit_noise(self) -> None:
        """Update the noise from the residuals and the parameters used."""
        own_precision = self._known / self.noise
        example_precisions = 1.0 / self.example_variances
        ordering_precisions = 1.0 / self.label_bias.prior_variances + own_precision.sum(axis=1)
        # Invert the smaller one of two systems (Woodbury).
        if len(ordering_precisions) <= len(example_precisions):
            variances = _sum_variances(own_precision, ordering_precisions, example_precisions)
        else:
            variances = _sum_variances(own_precision.T, example_precisions, ordering_precisions).T
        self.leverage = np.minimum(variances / self.noise + self._slope_leverage, MAX_LEVERAGE)
        residuals = (self._of_examples - self._examples[:, None]) * self._known
        self.residuals = np.moveaxis(residuals, 0, 2)
        degrees = float(((1.0 - self.leverage) * self._known).sum()) * len(residuals)
        squares = float(np.vdot(residuals, residuals))
        self.noise = (squares + PRIOR_COUNT * PRIOR_NOISE) / (degrees + PRIOR_COUNT)


def _sum_variances(cross: Array, rows: Array, columns: Array) -> Array:
    """Return the variances ``[r, c]`` of the sum of each row's and each column's effect.

    Args:
        cross: Precisions that couple rows and columns, ``[r, c]``.
        rows: Precisions of the rows, ``[r]``.
        columns: Precisions of the columns, ``[c]``.
    """
    reach = cross / columns
    of_rows = np.linalg.inv(np.diag(rows) - cross @ reach.T)
    between = of_rows @ reach
    of_columns = 1.0 / columns + (reach * between).sum(axis=0)
    return np.asarray(np.diag(of_rows)[:, None] - 2.0 * between + of_columns)


def _posterior_variance(squares: Array, prior: float) -> float:
    """Return the posterior mean of a variance, given expected squares."""
    return float((squares.sum() + PRIOR_COUNT * prior) / (len(squares) + PRIOR_COUNT))


class EffectProcess:
    """A Gaussian process of one effect of orderings, each measured alone with a noise of its own.

    Attributes:
        fit: The components, in `unit`.
        means, variances: Of the posterior given all orderings, ``[m, k]`` and ``[m]``.
    """

    def __init__(
        self, features: Families, kernels: Families, measured: Posterior, *, unit: float, earlier: Variances = None
    ) -> None:
        self.level = measured.prior_mean
        # What an ordering's own cells say is its posterior without the prior.
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
            earlier=earlier,
            total=usual_variance / unit,
            fixed=np.diag(extra),
        )
        self.means = self.fit.values + self.level
        self.variances = self.fit.posterior_variances

    def errors(self, alike: Array, chosen: Mask) -> Array:
        """Return the covariance ``[c, c]`` of posterior means because of the noise of the chosen orderings.

        Args:
            alike: Covariance of that noise in any unit, ``[c, c]``.
            chosen: The orderings, ``[m]``.
        """
        deviations = 1.0 / np.sqrt(self._precisions[chosen] * np.diag(alike))
        gain = (self.fit.covariance @ self.fit.inverse)[np.ix_(chosen, chosen)]
        return np.asarray(gain @ (alike * np.outer(deviations, deviations)) @ gain.T)

    def predict(self, products: Families, squares: Array) -> tuple[Array, Array]:
        """Return posterior means ``[c, k]`` and variances ``[c]`` of other orderings.

        Args:
            products: Products of their features with those fitted, ``[c, m]`` for each family.
            squares: Products with their own, ``[c, families]``.
        """
        *of_families, own = self.fit.variances
        covariance = np.tensordot(of_families, products, axes=1)
        prior_variances = squares @ of_families + own
        return covariance @ self.fit.solved + self.level, self.fit.remaining(prior_variances, covariance)
