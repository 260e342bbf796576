"""A Gaussian process as a sum of components, whose variances are estimated.

symbol  code        shape   meaning
m, c                        orderings that were fitted, and other orderings
k                           outputs
F_i     features    [m, d]  features of component i
K_i     kernels     [m, m]  F_i F_i^T; for the last component the own effects of orderings
v_i     variances   [n]     variances of the components
G       fixed       [m]     prior variances of single orderings that are not estimated, in units of the values
K       covariance  [m, m]  sum_i v_i K_i
P       prior       [m, m]  K + diag(G) / s
E       errors      [m, m]  covariance of the errors of the measured values
y       values      [m, k]  measured values
a       level       [k]     generalised least-squares mean of y
u       solved      [m, k]  (P + E)^-1 (y - a)
s       noise               variance of the noise, the unit of v, K, P and E
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plr_dspy.search.model.gains import Array, Families, Mask

PRIOR_VARIANCE = 0.02  # prior mean of orderings' variance over the noise's; at accuracy .6, orders differ by .06
PRIOR_SHAPE = 0.3  # of the Gamma prior of each variance; a small one lets components vanish
NUM_STEPS = 15
MIN_VARIANCE = 1e-9
JITTER = 1e-8  # added to a covariance before its root is taken


class GaussianProcess:
    """A sum of linear functions of feature families, and of own effects, fitted to values with errors.

    The variances maximise the likelihood under a Gamma prior, by fixed-point steps.

    Source: D. A. Harville, JASA 72, 1977.

    Args:
        has_own: Whether an ordering has an own effect of estimated variance, ``[m]``.
        total: Sum of the variances that the fit starts from.
        remeasure: Returns values and noise, given the means of all orderings and the number of parameters that
            these have used; None if they are known.

    Attributes:
        means, posterior_variances: Posterior of the fitted orderings, ``[m, k]`` and
            ``[m]``.
    """

    def __init__(
        self,
        features: Families,
        has_own: Mask,
        *,
        values: Array,
        errors: Array,
        noise: float,
        fixed: Array | float = 0.0,
        total: float = PRIOR_VARIANCE,
        remeasure: Callable[[Array, float], tuple[Array, float]] | None = None,
    ) -> None:
        self.values = values
        self.errors = errors
        self.noise = noise
        self._features = features
        kernels: Array = np.stack([*(family @ family.T for family in features), np.diag(has_own.astype(np.float64))])
        given = np.diag(np.zeros(len(values)) + fixed)
        count = len(kernels)
        rate = PRIOR_SHAPE * count / total
        self.variances = np.full(count, total / count)
        for step in range(NUM_STEPS + 1):
            self.covariance = np.tensordot(self.variances, kernels, axes=1)
            self.prior = self.covariance + given / self.noise
            self.inverse = np.linalg.inv(self.prior + errors)
            self.level = self.inverse.sum(axis=0) @ self.values / self.inverse.sum()
            self._solved = self.inverse @ (self.values - self.level)
            self.means = self.level + self.prior @ self._solved
            if step == NUM_STEPS:
                break
            if remeasure is not None:
                self.values, self.noise = remeasure(self.means, float(np.vdot(self.prior, self.inverse)))
            squares = np.array([np.vdot(self._solved, kernel @ self._solved) for kernel in kernels])
            explained = squares / (self.noise * values.shape[1])
            traces = kernels.reshape(count, -1) @ self.inverse.ravel()
            variances = (0.5 * self.variances * explained + PRIOR_SHAPE) / (0.5 * traces + rate)
            self.variances = np.maximum(variances, MIN_VARIANCE)
        self._weights = [v * (family.T @ self._solved) for v, family in zip(self.variances, features, strict=False)]
        explained = ((self.prior @ self.inverse) * self.prior).sum(axis=1)
        self.posterior_variances = self.noise * np.maximum(np.diag(self.prior) - explained, MIN_VARIANCE)

    def predict(self, features: Families) -> Array:
        """Return the posterior means of other orderings, ``[c, k]``."""
        terms = [family @ weights for family, weights in zip(features, self._weights, strict=True)]
        return np.asarray(self.level + sum(terms))

    def predict_variances(self, features: Families) -> Array:
        """Return the posterior variances of other orderings, ``[c]``."""
        *variances, own = self.variances
        prior = np.full(len(features[0]), own)
        across = np.zeros((len(prior), len(self.prior)))
        for variance, other, fitted in zip(variances, features, self._features, strict=True):
            prior += variance * (other**2).sum(axis=1)
            across += variance * (other @ fitted.T)
        explained = ((across @ self.inverse) * across).sum(axis=1)
        return np.asarray(self.noise * np.maximum(prior - explained, MIN_VARIANCE))

    def sample(self, features: Families, fixed: Array | float, num_draws: int, rng: np.random.Generator) -> Array:
        """Draw jointly from the posterior of the fitted orderings and of others, ``[draws, m + c]``.

        Args:
            features: Of the others.
            fixed: G of each of the others.
        """
        *variances, own = self.variances
        among = np.diag(np.zeros(len(features[0])) + own + fixed / self.noise)
        across = np.zeros((len(among), len(self.prior)))
        for variance, other, fitted in zip(variances, features, self._features, strict=True):
            among += variance * (other @ other.T)
            across += variance * (other @ fitted.T)
        with_fitted = np.concatenate([self.prior, across])
        joint = np.block([[self.prior, across.T], [across, among]])
        remaining = joint - with_fitted @ self.inverse @ with_fitted.T
        root = np.linalg.cholesky(remaining + JITTER * np.eye(len(joint)))
        noise = root @ rng.normal(size=(len(joint), num_draws))
        means = np.concatenate([self.means, self.predict(features)])
        return np.asarray((means + np.sqrt(self.noise) * noise).T)
