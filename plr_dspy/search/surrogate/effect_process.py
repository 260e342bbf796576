"""A Gaussian process of one effect of orderings, of which each was measured by itself, with a noise of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plr_dspy.search.surrogate.variance_components import begin, posterior, stepped

Array = NDArray[np.float64]


class EffectProcess:
    """A sum of linear functions of feature families with a variance each, and of an effect of every ordering's own.

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
        earlier: Array | None,
    ) -> None:
        # What the ordering's own cells say: the posterior less the prior.
        precisions = np.maximum(1.0 / variances - 1.0 / prior_variances, 1e-6)
        measured = (means / variances[:, None] - prior_mean / prior_variances[:, None]) / precisions[:, None]
        usual = float(prior_variances.min())
        apart = (prior_variances - usual) / unit
        kernels = [*kernels, np.diag((apart == 0.0).astype(np.float64))]
        noise = np.diag(1.0 / (precisions * unit))
        components, num_steps = begin(earlier, len(kernels), total=usual / unit)
        for step in range(num_steps + 1):
            covariance, inverse = posterior(components, kernels, noise, fixed=apart)
            solved = inverse @ (measured - prior_mean)
            if step < num_steps:
                scaled = solved / np.sqrt(unit * measured.shape[1])
                components = stepped(components, kernels, inverse, scaled, total=usual / unit)
        self.components = components
        self._gain, self._precisions = covariance @ inverse, precisions
        self.means: Array = covariance @ solved + prior_mean
        after = np.diag(covariance) - (self._gain * covariance).sum(axis=1)
        self.variances: Array = unit * np.maximum(after, 1e-9)
        self._solved, self._inverse, self._unit, self._level = solved, inverse, unit, prior_mean

    def errors(self, alike: Array, chosen: NDArray[np.bool_]) -> Array:
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
        after = before - ((covariance @ self._inverse) * covariance).sum(axis=1)
        means: Array = covariance @ self._solved + self._level
        return means, self._unit * np.maximum(after, 1e-9)
