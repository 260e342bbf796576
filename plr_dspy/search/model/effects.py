"""Effects of orderings and of examples on the log-probabilities of labels.

    z[o, e]  =  a_e  +  b_o  +  q_o g_e  +  noise

z are the log-probabilities of L labels less their mean, as L - 1 orthonormal contrasts. a is the example's own; b leans
an ordering towards labels, and q is what it adds to the labels that the metric scores high (g). Two examples tell b of
an ordering nearly whole, so that its score on all others follows from few of them.

All effects are normal, with variances that are estimated with them by expectation and maximisation (N. M. Laird and
J. H. Ware, "Random-effects models for longitudinal data", Biometrics 38, 1982).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plr_dspy.search.model.components import fit_components, inverted
from plr_dspy.search.model.table import Array, Mask

NUM_SWEEPS, NUM_QUICK_SWEEPS = 12, 4
"""Of expectation and maximisation, and of a fit that only says which orderings promise most."""

PRIOR_COUNT = 5.0
"""Orderings, examples or answers that the prior of a variance counts as much as."""

PRIOR_LEANING, PRIOR_SLOPE, PRIOR_EXAMPLE, PRIOR_NOISE = 0.1, 0.01, 0.5, 0.05
"""Prior variances of b, of q, of a, and of the noise: squared natural logarithms of odds."""

APART_LEANING, APART_SLOPE = 4.0, 0.4
"""Further variances of b and of q of a program that is not one of the orderings."""

MAX_LEVERAGE = 0.9


class ResponseEffects:
    """The effects, as they were fitted.

    Args:
        contrasts: z, ``[m, E, d]``, NaN where there is none.
        directions: g, ``[E, d]``.
        apart: Whether a row is no ordering of the others' kind, ``[m]``.
        num_sweeps: Of expectation and maximisation.

    Attributes:
        examples: a, ``[E, d]``.
        example_variances: Of their posterior, ``[E]``.
        leanings: b, ``[m, d]``.
        leaning_variances: Of their posterior, ``[m]``.
        slopes: q, ``[m]``.
        slope_variances: Of their posterior, ``[m]``.
        leverage: Share of a cell's noise that its own fit explains, ``[m, E]``.
        residuals: Of the cells known; 0 for others, ``[m, E, d]``.
        weights: Cells known of each ordering, ``[m]``; one counts less where its example is known from no other.
        noise: Variance of a contrast.
        mean: Of b among orderings, ``[d]``.
        leaning_priors, slope_priors: Prior variances of b and of q, ``[m]``.
    """

    def __init__(
        self, contrasts: Array, directions: Array, *, apart: Mask, num_sweeps: int = NUM_SWEEPS
    ) -> None:
        # Contrasts come first in here: sums over them are sums of few large tables.
        known, num_contrasts = ~np.isnan(contrasts[..., 0]), contrasts.shape[2]
        self._shown, self._seen = known.astype(np.float64), known.any(axis=0)
        self._contrasts = np.ascontiguousarray(np.moveaxis(np.nan_to_num(contrasts), 2, 0))
        self._directions, self._apart = directions.T, apart
        outside = apart.astype(np.float64)
        self._lengths = (directions**2).sum(axis=1)
        self.noise, self._example_variance, self.mean = 0.5, 2.0, np.zeros(num_contrasts)
        self._leaning_variance, self._slope_variance = 1.0, PRIOR_SLOPE
        self._leanings, self.slopes = np.zeros((num_contrasts, len(known))), np.zeros(len(known))
        self._examples, self._rest = np.zeros((num_contrasts, len(directions))), self._contrasts
        for sweep in range(num_sweeps):
            self._fit_examples(first=sweep == 0)
            if sweep:
                self._fit_variances()
            self.leaning_priors: Array = self._leaning_variance + APART_LEANING * outside
            self.slope_priors: Array = self._slope_variance + APART_SLOPE * outside
            self._fit_orderings()
            self._fit_noise()
        self.leanings, self.examples = self._leanings.T, self._examples.T
        self.residuals = np.moveaxis(self._left, 0, 2)

    def _fit_examples(self, *, first: bool) -> None:
        """Give examples the posterior means of their effects, about a line in the direction that is right."""
        directions, seen = self._directions, self._seen
        rest = (self._rest * self._shown).sum(axis=1)
        prior = np.zeros_like(self._examples)
        if not first and seen.any():
            level = self._examples[:, seen].mean(axis=1)[:, None]
            along = float(((self._examples - level) * directions)[:, seen].sum())
            prior = level + along / (self._lengths[seen].sum() + 1e-9) * directions
        precision = self._shown.sum(axis=0) / self.noise + 1.0 / self._example_variance
        self._examples = (rest / self.noise + prior / self._example_variance) / precision
        self.example_variances = 1.0 / precision
        spread = ((self._examples - prior)[:, seen] ** 2).mean(axis=0) + self.example_variances[seen]
        self._example_variance = _posterior_variance(spread, PRIOR_EXAMPLE)

    def _fit_variances(self) -> None:
        """Estimate the variances of the orderings' effects: before these are fitted, which then agree with them."""
        usual = ~self._apart & (self.weights > 0)
        if usual.any():
            leanings = self._leanings[:, usual]
            self.mean = leanings.mean(axis=1)
            spread = ((leanings - self.mean[:, None]) ** 2).mean(axis=0) + self.leaning_variances[usual]
            self._leaning_variance = _posterior_variance(spread, PRIOR_LEANING)
            squares = self.slopes[usual] ** 2 + self.slope_variances[usual]
            self._slope_variance = _posterior_variance(squares, PRIOR_SLOPE)

    def _fit_orderings(self) -> None:
        """Give orderings the posterior of their leanings and slopes.

        Each cell is held against what the other orderings say of its example. An example that knows the cell would
        repeat some of its noise, which then looks like an effect of the ordering.
        """
        own, directions, num_contrasts = self._shown / self.noise, self._directions, len(self._contrasts)
        precision = 1.0 / self.example_variances - own
        others = (self._examples / self.example_variances)[:, None] - own * self._rest
        weights = self._shown * self.noise / (self.noise + 1.0 / precision)
        seen = (self._contrasts - others / precision) * weights
        self.weights = weights.sum(axis=1)
        ridge = self.noise / self.leaning_priors
        total, cross = self.weights + ridge, directions @ weights.T
        sums = seen.sum(axis=2) + ridge * self.mean[:, None]
        moments = (seen @ directions[..., None])[..., 0].sum(axis=0)
        left = weights @ self._lengths - (cross**2).sum(axis=0) / total
        inverse = 1.0 / (left + self.noise / self.slope_priors)
        self.slopes = inverse * (moments - (cross * sums).sum(axis=0) / total)
        self._leanings = (sums - self.slopes * cross) / total
        back = ((cross / total) ** 2).sum(axis=0) * inverse
        self.leaning_variances = self.noise * (1.0 / total + back / num_contrasts)
        self.slope_variances = self.noise * inverse
        self._of_slopes = weights * np.outer(inverse, self._lengths) / num_contrasts
        effects = self._leanings[..., None] + self.slopes[:, None] * directions[:, None]
        self._rest = self._contrasts - effects

    def _variance_left(self) -> Array:
        """The variance that leanings and examples leave in each cell, ``[m, E]``.

        All leanings are measured against one another: their joint posterior says how sure each is. It follows from the
        smaller one of two systems, of orderings or of examples (Woodbury).
        """
        own, variances = self._shown / self.noise, self.example_variances
        precisions = 1.0 / self.leaning_priors + own.sum(axis=1)
        if len(own) <= len(variances):
            reach = own * variances
            joint, _ = inverted(np.diag(precisions) - own @ reach.T)
            moved, of_orderings = joint @ reach, np.diag(joint)
            of_examples = variances + (reach * moved).sum(axis=0)
        else:
            scaled = own / precisions[:, None]
            joint, _ = inverted(np.diag(1.0 / variances) - own.T @ scaled)
            moved, of_examples = scaled @ joint, np.diag(joint)
            of_orderings = 1.0 / precisions + (moved * scaled).sum(axis=1)
        left: Array = of_examples - 2.0 * moved + of_orderings[:, None]
        return left

    def _fit_noise(self) -> None:
        """Estimate the noise from what is left over, for the parameters used."""
        self.leverage = np.minimum(self._variance_left() / self.noise + self._of_slopes, MAX_LEVERAGE)
        self._left = (self._rest - self._examples[:, None]) * self._shown
        free = float(((1.0 - self.leverage) * self._shown).sum()) * len(self._left)
        total = float(np.vdot(self._left, self._left))
        self.noise = (total + PRIOR_COUNT * PRIOR_NOISE) / (free + PRIOR_COUNT)


def _posterior_variance(squares: Array, prior: float) -> float:
    """Posterior mean of a variance, from expected squares."""
    return float((squares.sum() + PRIOR_COUNT * prior) / (len(squares) + PRIOR_COUNT))


class EffectProcess:
    """A Gaussian process of one effect of orderings, of which each was measured by itself, with a noise of its own.

    Args:
        kernels: Of the families of features, ``[m, m]`` each.
        means: Posterior means of the effect in each of its k dimensions, ``[m, k]``, each ordering for itself.
        variances: Posterior variances in each dimension, ``[m]``.
        prior_mean: What these began with, ``[k]``.
        prior_variances: The same, ``[m]``; the smallest is that of usual orderings.
        unit: Variance of the noise, which the components are measured by.
        earlier: Components of the fit before; None for none.

    Attributes:
        components: Variances of the families and of own effects, over the unit.
        means: Posterior means of the orderings' effects, ``[m, k]``.
        variances: Posterior variances in each dimension, ``[m]``.
    """

    def __init__(
        self,
        kernels: Sequence[Array],
        *,
        means: Array,
        variances: Array,
        prior_mean: Array,
        prior_variances: Array,
        unit: float,
        earlier: Sequence[float] | None,
    ) -> None:
        # What the ordering's own cells say: the posterior less the prior.
        precisions = np.maximum(1.0 / variances - 1.0 / prior_variances, 1e-6)
        measured = (means / variances[:, None] - prior_mean / prior_variances[:, None]) / precisions[:, None]
        usual = float(prior_variances.min())
        apart = (prior_variances - usual) / unit
        fit = fit_components(
            [*kernels, np.diag((apart == 0.0).astype(np.float64))],
            np.diag(1.0 / (precisions * unit)),
            lambda covariance, inverse: (measured - prior_mean, unit),
            earlier=earlier,
            total=usual / unit,
            fixed=apart,
        )
        self.components = fit.variances
        self._gain, self._precisions = fit.covariance @ fit.inverse, precisions
        self.means: Array = fit.covariance @ fit.solved + prior_mean
        after = np.diag(fit.covariance) - (self._gain * fit.covariance).sum(axis=1)
        self.variances: Array = unit * np.maximum(after, 1e-9)
        self._fit, self._unit, self._level = fit, unit, prior_mean

    def errors(self, alike: Array, chosen: Mask) -> Array:
        """Covariance of the errors of posterior means that come from the noise of what was measured, ``[c, c]``.

        Args:
            alike: Covariance of that noise between the chosen orderings, in any unit, ``[c, c]``.
            chosen: Which orderings, ``[m]``; the noise of others is left out.
        """
        deviations = 1.0 / np.sqrt(self._precisions[chosen] * np.diag(alike))
        gain = self._gain[np.ix_(chosen, chosen)]
        errors: Array = gain @ (alike * np.outer(deviations, deviations)) @ gain.T
        return errors

    def predict(self, across: Sequence[Array], squares: Array) -> tuple[Array, Array]:
        """Posterior means ``[c, k]`` and variances ``[c]`` of other orderings' effects.

        Args:
            across: Products of the others' features with those of the orderings fitted, ``[c, m]`` for each family.
            squares: Squared lengths of the others' features in each family, ``[c, families]``.
        """
        covariance = np.tensordot(self.components[:-1], across, axes=1)
        before = squares @ self.components[:-1] + self.components[-1]
        after = before - ((covariance @ self._fit.inverse) * covariance).sum(axis=1)
        means: Array = covariance @ self._fit.solved + self._level
        return means, self._unit * np.maximum(after, 1e-9)
