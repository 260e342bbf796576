"""Effects of orderings and of examples on the log-probabilities of labels.

z[o, e]  =  a_e  +  b_o  +  q_o g_e  +  noise

symbol  code        shape      meaning
m, E                           orderings o, examples e
d                              orthonormal contrasts of d + 1 labels
z       contrasts   [m, E, d]  log-probabilities as contrasts, NaN for unknown cells
a       examples    [E, d]     effect of the example
b       label_bias  [m, d]     label bias of the ordering
q       slope       [m]        what the ordering adds to labels with high scores
g       directions  [E, d]     direction of the labels with high scores
w       weights     [m, E]     weights of the cells in the effects of orderings

Two examples tell b of an ordering almost exactly, so its score on all others follows
from few of them. The effects are fitted in turn (N. M. Laird and J. H. Ware, Biometrics
38, 1982).
"""

from typing import NamedTuple

import numpy as np

from plr_dspy.search.model.gains import Array, Families, Mask
from plr_dspy.search.model.gaussian_process import GaussianProcess

NUM_SWEEPS = 10
PRIOR_COUNT = 5.0  # examples or answers that the prior of a variance counts as
MAX_LEVERAGE = 0.9
# Prior variances, in squared natural logarithms of odds.
LABEL_BIAS_VARIANCE = 0.5
SLOPE_VARIANCE = 0.02
PRIOR_EXAMPLE = 0.5
PRIOR_NOISE = 0.05
# Those of candidates without features.
OUTSIDER_LABEL_BIAS = 4.5
OUTSIDER_SLOPE = 0.4


class Posterior(NamedTuple):
    """The posterior of an effect with k dimensions and prior mean 0, independent for each ordering."""

    means: Array  # [m, k]
    variances: Array  # in each dimension, [m]
    prior_variances: Array  # [m]


class ResponseEffects:
    """The effects that were fitted to log-probabilities.

    Attributes:
        examples, example_variances: Posterior of a, ``[E, d]`` and ``[E]``.
        label_bias, slope: Posteriors of b and q.
        noise: Variance of a contrast.
        leverage: About the share of the noise of a cell that its fit follows, ``[m, E]``.
        residuals: Rest of the known cells, 0 for others, ``[m, E, d]``.
        num_cells: Known cells of each ordering, ``[m]``; less if no other ordering
            knows their examples.
    """

    def __init__(self, contrasts: Array, directions: Array, *, is_outsider: Mask) -> None:
        num_orderings, num_examples, num_contrasts = contrasts.shape
        self._known = ~np.isnan(contrasts[..., 0])
        self._contrasts = np.nan_to_num(contrasts)
        self.directions = directions
        self._bias_priors = np.where(is_outsider, OUTSIDER_LABEL_BIAS, LABEL_BIAS_VARIANCE)
        self._slope_priors = np.where(is_outsider, OUTSIDER_SLOPE, SLOPE_VARIANCE)
        self.noise = 0.5
        self._example_variance = 2.0
        self.examples = np.zeros((num_examples, num_contrasts))
        self.num_cells = np.zeros(num_orderings)
        nothing = np.zeros((num_orderings, num_contrasts))
        self.label_bias = Posterior(nothing, self._bias_priors, self._bias_priors)
        self.slope = Posterior(nothing[:, :1], self._slope_priors, self._slope_priors)
        for _ in range(NUM_SWEEPS):
            self._fit_examples()
            self._fit_orderings()
            self._fit_noise()

    def _of_examples(self) -> Array:
        """Return z - b - q g in the known cells, 0 in others, ``[m, E, d]``."""
        of_orderings = self.label_bias.means[:, None] + self.slope.means[:, None] * self.directions
        return np.asarray((self._contrasts - of_orderings) * self._known[..., None])

    def _fit_examples(self) -> None:
        """Update a, whose prior mean is a line in the direction g."""
        is_seen = self._known.any(axis=0)
        directions = self.directions
        level = self.examples[is_seen].sum(axis=0) / max(1, is_seen.sum())
        products = (self.examples - level) * directions
        slope = products[is_seen].sum() / ((directions[is_seen] ** 2).sum() + 1e-9)
        prior_mean = level + slope * directions
        precisions = self._known.sum(axis=0) / self.noise + 1.0 / self._example_variance
        sums = self._of_examples().sum(axis=0) / self.noise + prior_mean / self._example_variance
        self.examples = sums / precisions[:, None]
        self.example_variances = 1.0 / precisions
        squares = ((self.examples - prior_mean) ** 2).mean(axis=1) + self.example_variances
        self._example_variance = _posterior_variance(squares[is_seen], PRIOR_EXAMPLE)

    def _fit_orderings(self) -> None:
        """Update b and q, by weighted ridge regression on 1 and g."""
        noise = self.noise
        directions = self.directions
        # Compare each cell with what the other orderings say of its example.
        own_precision = self._known / noise
        precision = 1.0 / self.example_variances - own_precision
        scaled = self.examples / self.example_variances[:, None] - self._of_examples() / noise
        weights = self._known * noise / (noise + 1.0 / precision)
        responses = (self._contrasts - scaled / precision[..., None]) * weights[..., None]
        self.num_cells = weights.sum(axis=1)
        # Normal equations of b and q, b eliminated.
        total = self.num_cells + noise / self._bias_priors
        cross = weights @ directions
        sums = responses.sum(axis=1)
        moments = (responses * directions).sum(axis=(1, 2)) - (cross * sums).sum(axis=1) / total
        remaining = weights @ (directions**2).sum(axis=1) - (cross**2).sum(axis=1) / total
        slope_variances = noise / (remaining + noise / self._slope_priors)
        slopes = (slope_variances / noise * moments)[:, None]
        label_bias = (sums - slopes * cross) / total[:, None]
        by_slope = slope_variances * ((cross / total[:, None]) ** 2).mean(axis=1)
        self.label_bias = Posterior(label_bias, noise / total + by_slope, self._bias_priors)
        self.slope = Posterior(slopes, slope_variances, self._slope_priors)

    def _fit_noise(self) -> None:
        """Update the noise from the residuals and the parameters used."""
        variances = self.label_bias.variances[:, None] + self.example_variances
        self.leverage = np.minimum(variances / self.noise, MAX_LEVERAGE)
        self.residuals = self._of_examples() - self.examples * self._known[..., None]
        degrees = ((1.0 - self.leverage) * self._known).sum() * self.examples.shape[1]
        squares = (self.residuals**2).sum()
        self.noise = float((squares + PRIOR_COUNT * PRIOR_NOISE) / (degrees + PRIOR_COUNT))


def _posterior_variance(squares: Array, prior: float) -> float:
    """Return the posterior mean of a variance, given expected squares."""
    return float((squares.sum() + PRIOR_COUNT * prior) / (len(squares) + PRIOR_COUNT))


class EffectProcess(GaussianProcess):
    """A Gaussian process of one effect of orderings, each measured alone with a noise of its own."""

    def __init__(self, features: Families, measured: Posterior, *, noise: float) -> None:
        # What an ordering's own cells say is its posterior without the prior.
        self._precisions = np.maximum(1.0 / measured.variances - 1.0 / measured.prior_variances, 1e-6)
        usual_variance = float(measured.prior_variances.min())
        super().__init__(
            features,
            measured.prior_variances == usual_variance,
            values=measured.means / (measured.variances * self._precisions)[:, None],
            errors=np.diag(1.0 / (self._precisions * noise)),
            noise=noise,
            fixed=measured.prior_variances - usual_variance,
            total=usual_variance / noise,
        )

    def sampling_errors(self) -> Array:
        """Return the covariance ``[m, m]`` of posterior means because of the noise of cells."""
        gain = self.prior @ self.inverse
        return np.asarray((gain / self._precisions) @ gain.T)
