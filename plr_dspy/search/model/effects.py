"""Effects of orderings and of examples on the log-probabilities of labels.

    z[o, e]  =  a_e  +  b_o  +  q_o g_e  +  noise

z are the log-probabilities of L labels less their mean, as L - 1 orthonormal contrasts. a is the example's own; b leans
an ordering towards labels, and q is what it adds to the labels that the metric scores high (g). Two examples tell b of
an ordering nearly whole, so that its score on all others follows from few of them.
All effects are normal, with variances that are estimated with them by expectation and maximisation (N. M. Laird and
J. H. Ware, Biometrics 38, 1982).
"""

from typing import NamedTuple

import numpy as np

from plr_dspy.search.model.gains import Array, Families, Mask
from plr_dspy.search.model.process import Earlier, fit_components

NUM_SWEEPS, NUM_QUICK_SWEEPS = 12, 3  # at most, and of a fit that only says which orderings promise most
SETTLED = 3e-4  # change of the noise, as a share of it, at which sweeps end: with many cells, after six
PRIOR_COUNT = 5.0  # orderings, examples or answers that the prior of a variance counts as much as
# Prior variances of b, of q, of a, and of the noise: squared natural logarithms of odds.
PRIOR_LEANING, PRIOR_SLOPE, PRIOR_EXAMPLE, PRIOR_NOISE = 0.1, 0.01, 0.5, 0.05
APART_LEANING, APART_SLOPE = 4.0, 0.4  # further variances of b and of q of a program that is not one of the orderings
MAX_LEVERAGE = 0.9


class Posterior(NamedTuple):
    """What is known of an effect of orderings in each of its k dimensions, each ordering for itself."""

    means: Array  # [m, k]
    variances: Array  # in each dimension, [m]
    prior_mean: Array  # what it began with, [k]
    prior_variances: Array  # [m]; usual orderings have the smallest


class ResponseEffects:
    """The effects, as they were fitted to z, ``[m, E, d]``, NaN where there is none; g is ``[E, d]``.

    Attributes:
        examples, example_variances: Posterior means of a, ``[E, d]``, and variances, ``[E]``.
        leaning, slope: What is known of b and of q; priors of rows that are `apart` are wider.
        noise: Variance of a contrast, of which a cell's own fit explains a share, the `leverage`, ``[m, E]``.
        residuals: What is left of the cells known; 0 for others, ``[m, E, d]``.
        weights: Cells known of each ordering, ``[m]``; one counts less where its example is known from no other.
    """

    def __init__(self, contrasts: Array, directions: Array, *, apart: Mask, num_sweeps: int = NUM_SWEEPS) -> None:
        # Contrasts come first in here: sums over them are sums of few large tables.
        known, num_contrasts = ~np.isnan(contrasts[..., 0]), contrasts.shape[2]
        self._shown, self._seen = known.astype(np.float64), known.any(axis=0)
        self._contrasts = np.ascontiguousarray(np.moveaxis(np.nan_to_num(contrasts), 2, 0))
        self._directions, self._apart, self._lengths = directions.T, apart, (directions**2).sum(axis=1)
        self.noise, self._example_variance, self._mean = 0.5, 2.0, np.zeros(num_contrasts)
        self._leaning_variance, self._slope_variance = 1.0, PRIOR_SLOPE
        self._examples, self._rest = np.zeros((num_contrasts, len(directions))), self._contrasts
        self.weights = np.zeros(len(known))
        for _ in range(num_sweeps):
            before = self.noise
            self._fit_examples()
            self._fit_orderings()
            self._fit_noise()
            if abs(self.noise - before) < SETTLED * before:
                break
        self.examples = self._examples.T
        self.residuals = np.moveaxis(self._left, 0, 2)

    def _fit_examples(self) -> None:
        """Give examples the posterior means of their effects, about a line in the direction that is right."""
        directions, seen = self._directions, self._seen
        rest = (self._rest * self._shown).sum(axis=1)
        prior = np.zeros_like(self._examples)
        if seen.any():
            level = self._examples[:, seen].mean(axis=1)[:, None]
            along = float(((self._examples - level) * directions)[:, seen].sum())
            prior = level + along / (self._lengths[seen].sum() + 1e-9) * directions
        precision = self._shown.sum(axis=0) / self.noise + 1.0 / self._example_variance
        self._examples = (rest / self.noise + prior / self._example_variance) / precision
        self.example_variances = 1.0 / precision
        spread = ((self._examples - prior)[:, seen] ** 2).mean(axis=0) + self.example_variances[seen]
        self._example_variance = _posterior_variance(spread, PRIOR_EXAMPLE)

    def _fit_orderings(self) -> None:
        """Give orderings the posterior of their leanings and slopes, from variances by those of the sweep before."""
        usual = ~self._apart & (self.weights > 0)
        if usual.any():
            leanings, squares = self.leaning.means[usual], self.slope.means[usual, 0] ** 2
            self._mean = leanings.mean(axis=0)
            spread = ((leanings - self._mean) ** 2).mean(axis=1) + self.leaning.variances[usual]
            self._leaning_variance = _posterior_variance(spread, PRIOR_LEANING)
            self._slope_variance = _posterior_variance(squares + self.slope.variances[usual], PRIOR_SLOPE)
        leaning_priors = self._leaning_variance + np.where(self._apart, APART_LEANING, 0.0)
        slope_priors = self._slope_variance + np.where(self._apart, APART_SLOPE, 0.0)
        own, directions, num_contrasts = self._shown / self.noise, self._directions, len(self._contrasts)
        # Each cell is held against what the other orderings say of its example: an example that knows the cell would
        # repeat some of its noise, which then looks like an effect of the ordering.
        precision = 1.0 / self.example_variances - own
        others = (self._examples / self.example_variances)[:, None] - own * self._rest
        weights = self._shown * self.noise / (self.noise + 1.0 / precision)
        seen = (self._contrasts - others / precision) * weights
        self.weights = weights.sum(axis=1)
        ridge = self.noise / leaning_priors
        total, cross = self.weights + ridge, directions @ weights.T
        sums = seen.sum(axis=2) + ridge * self._mean[:, None]
        moments = (seen @ directions[..., None])[..., 0].sum(axis=0)
        left = weights @ self._lengths - (cross**2).sum(axis=0) / total
        inverse = 1.0 / (left + self.noise / slope_priors)
        slopes = inverse * (moments - (cross * sums).sum(axis=0) / total)
        leanings = (sums - slopes * cross) / total
        variances = self.noise * (1.0 / total + ((cross / total) ** 2).sum(axis=0) * inverse / num_contrasts)
        self.leaning: Posterior = Posterior(leanings.T, variances, self._mean, leaning_priors)
        self.slope: Posterior = Posterior(slopes[:, None], self.noise * inverse, np.zeros(1), slope_priors)
        self._of_slopes = weights * np.outer(inverse, self._lengths) / num_contrasts
        self._rest = self._contrasts - (leanings[..., None] + slopes[:, None] * directions[:, None])

    def _fit_noise(self) -> None:
        """Estimate the noise from what is left over, for the parameters used."""
        # The joint posterior of leanings, which are measured against one another, follows from the smaller of two
        # systems, of orderings or of examples (Woodbury).
        own, rows = self._shown / self.noise, 1.0 / self.example_variances
        columns = 1.0 / self.leaning.prior_variances + own.sum(axis=1)
        if by_ordering := len(columns) <= len(rows):
            rows, columns = columns, rows
        table = own if by_ordering else own.T
        reach = table / columns
        joint = np.linalg.inv(np.diag(rows) - table @ reach.T)
        moved = joint @ reach
        unsure = np.diag(joint)[:, None] - 2.0 * moved + (1.0 / columns + (reach * moved).sum(axis=0))
        unsure = unsure if by_ordering else unsure.T  # what they leave in each cell
        self.leverage = np.minimum(unsure / self.noise + self._of_slopes, MAX_LEVERAGE)
        self._left = (self._rest - self._examples[:, None]) * self._shown
        free = float(((1.0 - self.leverage) * self._shown).sum()) * len(self._left)
        total = float(np.vdot(self._left, self._left))
        self.noise = (total + PRIOR_COUNT * PRIOR_NOISE) / (free + PRIOR_COUNT)


def _posterior_variance(squares: Array, prior: float) -> float:
    """Posterior mean of a variance, from expected squares."""
    return float((squares.sum() + PRIOR_COUNT * prior) / (len(squares) + PRIOR_COUNT))


class EffectProcess:
    """A Gaussian process of one effect of orderings, of which each was measured by itself, with a noise of its own.

    `components` are the variances of families of features and of own effects, over the unit; `means`, ``[m, k]``, and
    `variances`, ``[m]``, those of the posterior that knows all.
    """

    def __init__(
        self, features: Families, kernels: Families, measured: Posterior, *, unit: float, earlier: Earlier = None
    ) -> None:
        means, variances, level, priors = measured
        # What the ordering's own cells say: the posterior less the prior.
        precisions = np.maximum(1.0 / variances - 1.0 / priors, 1e-6)
        told = (means / variances[:, None] - level / priors[:, None]) / precisions[:, None] - level
        usual = float(priors.min())
        apart = (priors - usual) / unit
        fit = fit_components(
            features,
            [*kernels, np.diag((apart == 0.0).astype(np.float64))],
            np.diag(1.0 / (precisions * unit)),
            lambda covariance, inverse: (told, unit),
            earlier=earlier,
            total=usual / unit,
            fixed=np.diag(apart),
        )
        self.fit, self.level, self._precisions, self.components = fit, level, precisions, fit.variances
        self.means: Array = fit.covariance @ fit.solved + level
        self.variances = fit.left(np.diag(fit.covariance), fit.covariance)

    def errors(self, alike: Array, chosen: Mask) -> Array:
        """Covariance ``[c, c]`` of posterior means by the noise of those chosen, whose own is `alike` in any unit."""
        deviations = 1.0 / np.sqrt(self._precisions[chosen] * np.diag(alike))
        gain = (self.fit.covariance @ self.fit.inverse)[np.ix_(chosen, chosen)]
        return np.asarray(gain @ (alike * np.outer(deviations, deviations)) @ gain.T)

    def predict(self, across: Families, squares: Array) -> tuple[Array, Array]:
        """Posterior means ``[c, k]`` and variances ``[c]`` of other orderings' effects, from products of their features
        with those fitted, ``[c, m]`` for each family, and with their own, ``[c, families]``."""
        covariance = np.tensordot(self.components[:-1], across, axes=1)
        before = squares @ self.components[:-1] + self.components[-1]
        return covariance @ self.fit.solved + self.level, self.fit.left(before, covariance)
