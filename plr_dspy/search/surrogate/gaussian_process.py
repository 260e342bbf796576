"""The Gaussian process itself: how scores on single examples depend on features of orderings.

    score of ordering o on example e  =  effect of e + f(o) + leaning of o towards the class of e + g_e(o) + noise

The effects of examples are shrunk means. f is a Gaussian process: a sum of linear functions of feature families
with a variance each (`variance_components`), of a smooth function of the leaning (`class_leaning`), and of an
effect of every ordering's own. g_e is what one example prefers (`interactions`): f alone says what orderings
score on examples not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plr_dspy.search.surrogate.class_leaning import Leaning
from plr_dspy.search.surrogate.crossed_effects import (
    example_effects,
    example_shrinkage,
    ordering_effects,
    parameters_used,
    shrunk_means,
)
from plr_dspy.search.surrogate.gains import Gains, expected_gains, generalised_mean
from plr_dspy.search.surrogate.interactions import covariance_of_means
from plr_dspy.search.surrogate.variance_components import begin, posterior, stepped

Array = NDArray[np.float64]

APART = 1.0
"""Variance of the effect of a program that is not one of the orderings, over the noise's: little is known of it."""


class Surrogate:
    """The Gaussian process f over orderings, given as features.

    Args:
        references: Features of random orderings; they scale the leaning, which without them is not modelled.
        earlier: `state_dict` of the surrogate that this one goes on from.

    Attributes:
        variances: Of the families, and of an ordering's own effect, over the noise's; None before `fit`.
        mean: Posterior mean score of the orderings fitted, ``[m]``, on a mean example.
    """

    def __init__(
        self, references: Sequence[Array] | None = None, *, earlier: Mapping[str, Any] | None = None
    ) -> None:
        known = {name: (earlier or {}).get(name) for name in ("variances", "leaning")}
        state = {name: None if v is None else np.array(v) for name, v in known.items()}
        self.variances: Array | None = state.get("variances")
        self._leaning_variances: Array | None = state.get("leaning")
        self._references = references
        self._leaning: Leaning | None = None
        self.mean: Array

    def state_dict(self) -> dict[str, Any]:
        """The variances that the next fit goes on from, as JSON data."""
        variances = {"variances": self.variances, "leaning": self._leaning_variances}
        return {name: None if v is None else v.tolist() for name, v in variances.items()}

    def fit(
        self,
        features: Sequence[Array],
        scores: Array,
        classes: NDArray[np.int64] | None = None,
        *,
        apart: NDArray[np.bool_] | None = None,
        doubts: Array | None = None,
    ) -> None:
        """Learn from orderings' scores on examples.

        Args:
            features: ``[m, d]`` for each family.
            scores: ``[m, E]``, NaN where there is none; each row has one at least.
            classes: Of the examples, numbers from 0 without gaps, ``[E]``; None for none.
            apart: Whether a row is no ordering of the others' kind, ``[m]``; None for none.
            doubts: Prior variances of the rows' effects, beside those that are estimated, ``[m]``; None for none.
        """
        self._unit = float(np.nanmax(np.abs(scores))) or 1.0
        scores = scores / self._unit
        kernels = [family @ family.T for family in features]
        self._apart = APART * np.asarray(np.zeros(len(scores)) if apart is None else apart, dtype=np.float64)
        self._doubts = np.zeros(len(scores)) if doubts is None else doubts / self._unit**2
        own = np.diag((self._apart == 0.0).astype(np.float64))
        effects = shrunk_means(scores)
        self._leaning = None
        if classes is not None and classes.max() > 0 and self._references is not None:
            self._leaning = Leaning(
                features,
                [*kernels, own],
                scores,
                classes,
                effects,
                references=self._references,
                earlier=self._leaning_variances,
            )
            self._leaning_variances = self._leaning.variances
            scores = scores - self._leaning.explained
        self._features = self._with_leaning(features)
        noise = covariance_of_means(kernels, scores)
        kernels += [family @ family.T for family in self._features[len(kernels) :]]
        self._fit([*kernels, own], scores, effects, noise)

    def _fit(self, kernels: Sequence[Array], scores: Array, effects: Array, unexplained: Array) -> None:
        known = ~np.isnan(scores)
        variances, num_steps = begin(self.variances, len(kernels))
        self._shrinkage = example_shrinkage(scores)
        noise = max(float(np.nanvar(scores)), 1e-12)
        for step in range(num_steps + 1):
            self._fixed = self._apart + self._doubts / noise
            covariance, inverse = posterior(variances, kernels, unexplained, fixed=self._fixed)
            means = ordering_effects(scores, effects, self._shrinkage)
            centre = generalised_mean(means, inverse)
            effects = covariance @ (inverse @ (means - centre)) + centre
            if step < num_steps:
                noise = self._noise(scores, known, effects, float(np.vdot(covariance, inverse)))
                solved = inverse @ (means - centre) / np.sqrt(noise)
                variances = stepped(variances, kernels, inverse, solved)
        self.variances = variances
        self._deviation = float(np.sqrt(noise))
        self._unexplained, self._covariance, self._inverse = unexplained, covariance, inverse
        self._means = means
        self._solved = inverse @ (means - centre)
        self._weights = [v * (f.T @ self._solved) for v, f in zip(variances, self._features, strict=False)]
        examples = example_effects(scores, effects, self._shrinkage)
        self._level = float(examples[known.any(axis=0)].mean() + centre)
        self.mean = self._unit * (covariance @ self._solved + self._level)

    def _noise(self, scores: Array, known: NDArray[np.bool_], effects: Array, parameters: float) -> float:
        """Noise variance from what is left over, for the parameters used; 1 where all scores are equal."""
        spread = float(np.nanvar(scores))
        if spread <= 1e-18 * float(np.nanmax(np.abs(scores))) ** 2:
            return 1.0
        rest = np.where(
            known, scores - example_effects(scores, effects, self._shrinkage) - effects[:, None], 0.0
        )
        used = parameters + parameters_used(known, self._shrinkage)
        total = known.sum()
        return max(float((rest**2).sum() / max(total - used, 0.25 * total)), 1e-6 * spread)

    def predict(self, features: Sequence[Array]) -> Array:
        """Posterior mean score at other orderings."""
        pairs = zip(self._with_leaning(features), self._weights, strict=True)
        mean: Array = sum((family @ weights for family, weights in pairs), np.zeros(1)) + self._level
        return self._unit * mean

    def gains(self, reference: int) -> Gains:
        """What the orderings fitted score on new examples above one of them, which is the ordering of this number."""
        gains = expected_gains(
            self._means / self._deviation,
            covariance=self._covariance - np.diag(self._fixed),
            apart=self._apart,
            noise=self._unexplained,
            reference=reference,
        )
        return gains.scaled(self._unit * self._deviation)

    def sample(
        self,
        features: Sequence[Array],
        num_draws: int,
        rng: np.random.Generator,
        *,
        doubts: Array | float = 0.0,
    ) -> Array:
        """Joint posterior draws of the scores of the orderings fitted and of others, ``[draws, m + c]``.

        Args:
            features: Of the others, ``[c, d]`` for each family.
            num_draws: How many.
            rng: Decides the draws.
            doubts: Prior variances of the others' effects, beside those that were estimated, ``[c]``.

        By Matheron's rule: draws from the prior, corrected by what they miss of the scores (J. T. Wilson et al.,
        "Efficiently sampling functions from Gaussian process posteriors", ICML 2020).
        """
        assert self.variances is not None
        num_known, own_variance = len(self.mean), self.variances[-1]
        pairs = zip(self._features, self._with_leaning(features), strict=True)
        families = [np.concatenate([known, other]) for known, other in pairs]
        slopes = [
            np.sqrt(v) * rng.normal(size=(family.shape[1], num_draws))
            for v, family in zip(self.variances[:-1], families, strict=True)
        ]
        fixed = np.zeros(len(families[0]))
        fixed[:num_known] = self._fixed
        fixed[num_known:] = doubts / (self._unit * self._deviation) ** 2
        drawn = np.sqrt(own_variance + fixed)[:, None] * rng.normal(size=(len(fixed), num_draws))
        noise = np.linalg.cholesky(self._unexplained) @ rng.normal(size=(num_known, num_draws))
        seen = sum(
            (f[:num_known] @ w for f, w in zip(families, slopes, strict=True)), drawn[:num_known] + noise
        )
        missed = self._solved[:, None] / self._deviation - self._inverse @ seen
        for v, family, slope in zip(self.variances[:-1], families, slopes, strict=True):
            drawn += family @ (slope + v * (family[:num_known].T @ missed))
        drawn[:num_known] += (own_variance + self._fixed)[:, None] * missed
        sampled: Array = self._unit * (self._level + self._deviation * drawn.T)
        return sampled

    def _with_leaning(self, features: Sequence[Array]) -> list[Array]:
        return [*features] if self._leaning is None else [*features, self._leaning.family(features)]
