"""Effects of orderings and of examples on the log-probabilities of labels.

    z[o, e]  =  (1 + t_o) a_e  +  b_o  +  q_o g_e  +  noise

z are the log-probabilities of L labels less their mean, as L - 1 orthonormal contrasts. a is the example's own; b leans
an ordering towards labels, t is its scale, and q what it adds to the labels that the metric scores high (g). Two
examples tell b of an ordering nearly whole, so that its score on all others follows from few of them.

All effects are normal, with variances that are estimated with them by expectation and maximisation (N. M. Laird and
J. H. Ware, "Random-effects models for longitudinal data", Biometrics 38, 1982).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NUM_SWEEPS = 12
"""Of expectation and maximisation."""

PRIOR_COUNT = 5.0
"""Orderings, examples or answers that the prior of a variance counts as much as."""

PRIOR_LEANING, PRIOR_SLOPES, PRIOR_EXAMPLES, PRIOR_NOISE = 0.1, 0.01, 0.5, 0.05
"""Prior variances of b, of t and q, of a, and of the noise: squared natural logarithms of odds."""

APART, SLOPES_APART = 4.0, 0.4
"""Further variances of b, and of t and q, of a program that is not one of the orderings."""


class ResponseEffects:
    """The effects, as they were fitted.

    Attributes:
        examples: a, ``[E, d]``.
        example_variances: Of their posterior, ``[E]``.
        leanings: b, ``[m, d]``.
        leaning_variances: Of their posterior, ``[m]``.
        slopes: t and q, ``[m, 2]``.
        slope_covariances: Of their posterior, ``[m, 2, 2]``.
        leverage: Share of a cell's noise that its own fit explains, ``[m, E]``.
        residuals: Of the cells known; 0 for others, ``[m, E, d]``.
        weights: Cells known of each ordering, ``[m]``; one counts less where its example is known from no other.
        noise: Variance of a contrast.
        mean, leaning_variance: Of b among orderings, ``[d]`` and a number.
        slope_variances: Of t and q, ``[2]``.

    Args:
        contrasts: z, ``[m, E, d]``, NaN where there is none.
        directions: g, ``[E, d]``.
        apart: Whether a row is no ordering of the others' kind, ``[m]``.
    """

    def __init__(self, contrasts: Array, directions: Array, *, apart: NDArray[np.bool_]) -> None:
        self._known = ~np.isnan(contrasts[..., 0])
        self._shown = self._known.astype(np.float64)
        self._contrasts = np.nan_to_num(contrasts)
        self._directions = directions
        self._apart = apart
        num_rows, num_examples, num_contrasts = contrasts.shape
        self.leanings = np.zeros((num_rows, num_contrasts))
        self.slopes = np.zeros((num_rows, 2))
        self.examples = np.zeros((num_examples, num_contrasts))
        self.noise, self._example_variance = 0.5, 2.0
        self.leaning_variance, self.slope_variances = 1.0, np.full(2, PRIOR_SLOPES)
        self.mean = np.zeros(num_contrasts)
        for sweep in range(NUM_SWEEPS):
            self._fit_examples(first=sweep == 0)
            if sweep:
                self._fit_variances()
            self._fit_orderings()
            self._fit_noise()

    def _fit_examples(self, *, first: bool) -> None:
        """Give examples the posterior means of their effects, about a line in the direction that is right."""
        shown, directions = self._shown, self._directions
        scale = 1.0 + self.slopes[:, 0]
        rest = self._contrasts - self.leanings[:, None] - self.slopes[:, 1, None, None] * directions
        rest *= shown[..., None]
        seen = self._known.any(axis=0)
        prior = np.zeros_like(self.examples)
        if not first and seen.any():
            level = self.examples[seen].mean(axis=0)
            size = (directions[seen] ** 2).sum()
            slope = ((self.examples[seen] - level) * directions[seen]).sum() / (size + 1e-9)
            prior = level + slope * directions
        precision = shown.T @ scale**2 / self.noise + 1.0 / self._example_variance
        sums = np.tensordot(scale, rest, axes=1) / self.noise + prior / self._example_variance
        self.examples = sums / precision[:, None]
        self.example_variances = 1.0 / precision
        spread = ((self.examples - prior)[seen] ** 2).mean(axis=1) + self.example_variances[seen]
        self._example_variance = _variance(spread, PRIOR_EXAMPLES)

    def _fit_variances(self) -> None:
        """Estimate the variances of the orderings' effects: before these are fitted, which then agree with them."""
        usual = ~self._apart & (self.weights > 0)
        if usual.any():
            self.mean = self.leanings[usual].mean(axis=0)
            spread = ((self.leanings - self.mean)[usual] ** 2).mean(axis=1) + self.leaning_variances[usual]
            self.leaning_variance = _variance(spread, PRIOR_LEANING)
            squares = self.slopes[usual] ** 2 + np.diagonal(self.slope_covariances[usual], axis1=1, axis2=2)
            self.slope_variances = np.array([_variance(column, PRIOR_SLOPES) for column in squares.T])

    def _fit_orderings(self) -> None:
        """Give orderings the joint posterior of their leanings and slopes.

        Each cell is held against what the other orderings say of its example. An example that knows the cell would
        repeat some of its noise, which then looks like a scale of the ordering.
        """
        scale = 1.0 + self.slopes[:, :1]
        own = scale * self._shown / self.noise
        rest = self._contrasts - self.leanings[:, None] - self.slopes[:, 1, None, None] * self._directions
        precision = 1.0 / self.example_variances - scale * own
        sums = self.examples / self.example_variances[:, None] - own[..., None] * rest
        weights = self._shown * self.noise / (self.noise + scale**2 / precision)
        self._solve(weights, sums / precision[..., None])
        self.weights = weights.sum(axis=1)
        # All leanings are measured against one another: the joint posterior says how sure each is.
        reach = own * self.example_variances
        prior = self.leaning_variance + APART * self._apart
        joint = np.linalg.inv(np.diag(1.0 / prior + self._shown.sum(axis=1) / self.noise) - own @ reach.T)
        moved = joint @ reach
        of_example = self.example_variances + (reach * moved).sum(axis=0)
        share = scale**2 * of_example - 2.0 * scale * moved + np.diag(joint)[:, None]
        self.leverage = np.minimum(share / self.noise + self._reach, 0.9)

    def _solve(self, weights: Array, examples: Array) -> None:
        """Set leanings, slopes, their variances and covariances, and each cell's leverage on them.

        Args:
            weights: Of the cells, ``[m, E]``.
            examples: Effect of each cell's example, ``[m, E, d]``.
        """
        ridge = self.noise / (self.leaning_variance + APART * self._apart)
        slope_ridge = self.noise / (self.slope_variances + SLOPES_APART * self._apart[:, None])
        rest = (self._contrasts - examples) * weights[..., None]
        designs = np.stack([examples, np.broadcast_to(self._directions, examples.shape)])  # [2, m, E, d]
        weighted = designs * weights[..., None]
        cross = weighted.sum(axis=2).swapaxes(0, 1)
        inner = np.einsum("kmed,lmed->mkl", weighted, designs)
        sums = rest.sum(axis=1) + ridge[:, None] * self.mean
        moments = np.einsum("med,kmed->mk", rest, designs)
        total = (weights.sum(axis=1) + ridge)[:, None]
        schur = inner - np.einsum("mkd,mld->mkl", cross, cross) / total[..., None]
        inverse = np.linalg.inv(schur + slope_ridge[:, :, None] * np.eye(2))
        self.slopes = np.einsum("mkl,ml->mk", inverse, moments - np.einsum("mkd,md->mk", cross, sums) / total)
        self.leanings = (sums - np.einsum("mk,mkd->md", self.slopes, cross)) / total
        back = cross / total[..., None]
        num_contrasts = examples.shape[2]
        variances = 1.0 / total[:, 0] + np.einsum("mkd,mkl,mld->m", back, inverse, back) / num_contrasts
        reach = np.einsum("kmed,mkl,lmed->me", designs, inverse, designs, optimize=True) / num_contrasts
        self.leaning_variances = self.noise * variances
        self.slope_covariances = self.noise * inverse
        self._reach = weights * reach

    def _fit_noise(self) -> None:
        """Estimate the noise from what is left over, for the parameters used."""
        self.residuals = (self._contrasts - self.fitted()) * self._shown[..., None]
        free = float(((1.0 - self.leverage) * self._shown).sum()) * self.residuals.shape[2]
        total = float((self.residuals**2).sum())
        self.noise = (total + PRIOR_COUNT * PRIOR_NOISE) / (free + PRIOR_COUNT)

    def fitted(self) -> Array:
        """The posterior means of z on every example, ``[m, E, d]``."""
        slopes = self.slopes
        scaled: Array = (1.0 + slopes[:, :1, None]) * self.examples + slopes[:, 1:, None] * self._directions
        return scaled + self.leanings[:, None]


def _variance(squares: Array, prior: float) -> float:
    """Posterior mean of a variance, from expected squares."""
    return float((squares.sum() + PRIOR_COUNT * prior) / (len(squares) + PRIOR_COUNT))
