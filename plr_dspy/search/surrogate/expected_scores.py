"""What orderings answer on examples, and what that scores, as their effects let one expect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plr_dspy.search.surrogate.label_offsets import LabelOffsets
from plr_dspy.search.surrogate.response_effects import ResponseEffects
from plr_dspy.search.surrogate.softmax import softmax_of

Array = NDArray[np.float64]

NUM_DRAWS = 8
"""Draws of an ordering's effects that say how sure its expected score is; an even number."""


class ExpectedScores:
    """Makes scores of effects.

    Args:
        effects: Of the examples.
        scores: What the labels score, ``[E, L]``.
        directions: Towards the labels that score high, ``[E, d]``.
        basis: From labels to contrasts, ``[d, L]``.
        offsets: Calibrate answers.
        calibrating: Whether answers are calibrated.
    """

    def __init__(
        self,
        effects: ResponseEffects,
        scores: Array,
        *,
        directions: Array,
        basis: Array,
        offsets: LabelOffsets,
        calibrating: bool,
    ) -> None:
        self._effects = effects
        self._scores = scores
        self._directions = directions
        self._basis = basis
        self._offsets = offsets
        self._calibrating = calibrating

    def table(
        self, leanings: Array, slopes: Array, examples: NDArray[np.int64], further: Array | float = 0.0
    ) -> Array:
        """Expected scores of orderings on examples, ``[m, E]``.

        Args:
            leanings, slopes: Of the orderings, ``[m, d]`` and ``[m, 2]``.
            examples: Their numbers.
            further: Variances of the leanings, ``[m]``.
        """
        means, variances = self.contrasts(leanings, slopes, examples)
        if self._calibrating and self._offsets.calibrates:
            # Calibration takes a leaning away, and with it the doubt about it.
            means = self.calibrated(means, variances)
        else:
            variances = variances + np.reshape(further, (-1, 1))
        table: Array = np.einsum("mel,el->me", self.answers(means, variances), self._scores[examples])
        return table

    def contrasts(self, leanings: Array, slopes: Array, examples: NDArray[np.int64]) -> tuple[Array, Array]:
        """Means ``[m, E, d]`` and variances ``[m, E]`` of the contrasts of orderings on examples."""
        effects, scale = self._effects, 1.0 + slopes[:, :1]
        means = scale[..., None] * effects.examples[examples] + leanings[:, None]
        means += slopes[:, 1:, None] * self._directions[examples]
        return means, effects.noise + scale**2 * effects.example_variances[examples]

    def calibrated(self, means: Array, variances: Array) -> Array:
        """Means of contrasts ``[m, E, d]`` after calibration by what is expected on the same examples."""
        return self.moved(means, self._offsets.expected(means @ self._basis, variances))

    def moved(self, means: Array, offsets: Array) -> Array:
        """Means of contrasts ``[m, E, d]`` with the offsets of labels ``[m, L]`` added."""
        moved: Array = means + (offsets @ self._basis.T)[:, None]
        return moved

    def answers(self, means: Array, variances: Array) -> Array:
        """Probability that each label is the likeliest, ``[..., L]``, by the logistic approximation of the normal."""
        scale = np.pi / np.sqrt(6.0 * variances)
        probabilities: Array = softmax_of((means @ self._basis) * scale[..., None])
        return probabilities

    def drawn(
        self,
        leanings: Array,
        slopes: Array,
        examples: NDArray[np.int64],
        *,
        variances: Array,
        covariances: Array,
    ) -> Array:
        """Expected mean scores under draws of the orderings' effects, the same ones for all, ``[draws, m]``.

        Args:
            leanings, slopes, examples: As in `table`.
            variances, covariances: Of the leanings ``[m]`` and of the slopes ``[m, 2, 2]``.
        """
        num = leanings.shape[1]
        half = np.random.default_rng(0).normal(size=(NUM_DRAWS // 2, num + 2))
        deviations = np.sqrt(variances)[:, None]
        factors = np.linalg.cholesky(covariances + 1e-12 * np.eye(2))
        return np.stack(
            [
                self.table(leanings + deviations * draw[:num], slopes + factors @ draw[num:], examples).mean(
                    axis=1
                )
                for draw in (*half, *-half)
            ]
        )
