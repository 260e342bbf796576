"""The score model for whole programs that are scored on the same examples.

    y[o, e]  =  t[o]  +  a[e]  +  noise

A score y is the sum of a program's effect t, an example's effect a, and noise. On each example, the
noise may be correlated between programs. `PairedProcess` standardizes all scores to mean 0 and, if
they differ, standard deviation 1. Shapes: n programs, E examples, H hypotheses about the
effects of programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from plr_dspy.search.model.gains import OUTSIDER_SCALES, Gains, conditional_gains
from plr_dspy.search.model.ordering_model import FittedModel, OrderingModel, one_thread
from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.search.space import Candidate, Scores
from plr_dspy.statistics.arrays import Array

# Equally likely prior standard deviations of the programs' effects. The unit of all deviations in
# this module is the standard deviation of scores, and its square is the unit of all variances.
EFFECT_DEVIATIONS = (0.04, 0.08, 0.16, 0.32)
PRIOR_NO_EFFECT = 0.05  # prior probability that all programs score the same on new examples
PRIOR_OUTSIDER = 0.5  # prior probability that one program is an outsider, given that programs differ
OUTSIDER_DEVIATION = 0.2  # additional prior standard deviation of an outsider's effect
PRIOR_EXAMPLES = 50.0  # weight of the prior that errors are independent, as a number of examples
MAX_ROUNDING = 1e-9  # maximum relative deviation of scores that differ only by rounding errors
# Minimum variance of errors, because equal scores on a few examples may be due to chance.
MIN_VARIANCE = 0.02


class PairedProcess:
    """The estimated effects of programs scored on the same examples, and the covariance of the estimates.

    Attributes:
        mean: Posterior mean scores of programs on an average example, ``[n]``.
        unshrunk: Least-squares estimates of the same scores, ``[n]``.
    """

    def __init__(self, table: ScoreTable) -> None:
        known = table.known.astype(np.float64)
        level = float(np.nanmean(table.scores))
        self._unit = _unit_of(table.scores)
        values = np.where(table.known, (table.scores - level) / self._unit, 0.0)
        counts = np.maximum(1.0, known.sum(axis=0))
        deviations = known * (values - values.sum(axis=0) / counts)
        # The Laplacian is singular, because a common shift of all effects cannot be identified. Use
        # its pseudoinverse.
        inverse = np.linalg.inv(_laplacian(known) + 1.0 / len(known)) - 1.0 / len(known)
        self._effects = inverse @ deviations.sum(axis=1)
        example_effects = (values - self._effects[:, None] * known).sum(axis=0) / counts
        self._effects += example_effects[table.seen].mean()
        self.unshrunk: Array = level + self._unit * self._effects
        self._num_examples = int(table.seen.sum())
        residuals = deviations - known * (self._effects[:, None] - (self._effects @ known) / counts)
        self._noise = self._noise_covariance(known, residuals, np.asarray(inverse, dtype=np.float64))

    def _noise_covariance(self, known: Array, residuals: Array, inverse: Array) -> Array:
        """Return the covariance ``[n, n]`` of the errors in the programs' effects.

        Errors on the same example may be correlated, so use the sandwich estimator (K.-Y. Liang
        and S. L. Zeger, Biometrika 73, 1986). The estimate is shrunk towards independent errors.
        """
        count = self._num_examples
        degrees = max(1.0, known.sum() - count - len(known) + 1)
        variance = max(float((residuals**2).sum()) / degrees, MIN_VARIANCE)
        # Dropped programs have fewer scores, so give the prior more weight on their examples.
        num_examples = np.where(known > 0, known.sum(axis=1, keepdims=True), np.inf).min(axis=0)
        prior_weights = PRIOR_EXAMPLES / (num_examples + PRIOR_EXAMPLES)
        products = (1.0 - prior_weights) * residuals @ residuals.T + variance * _laplacian(
            known, prior_weights
        )
        # Make the matrix invertible by adding the variance of a common shift. This changes no gain.
        return np.asarray(inverse @ products @ inverse + 1.0 / count)

    @cached_property
    def mean(self) -> Array:
        gains = self.gains(0)
        expected = gains.probabilities @ gains.means
        return np.asarray(self.unshrunk.mean() + expected - expected.mean())

    def gains(
        self,
        reference: int,
        *,
        outsider_scales: Sequence[float] = OUTSIDER_SCALES,
        may_differ: bool = False,
    ) -> Gains:
        """Return the gains of the programs over a reference on new examples.

        `outsider_scales` and `may_differ` are ignored, because any program may be an outsider.
        """
        return self._relative_gains(reference, self._num_examples).times(self._unit)

    def _relative_gains(self, reference: int, num_examples: float) -> Gains:
        """Return gains over a reference, in units of the standard deviation of scores.

        The errors are extrapolated to `num_examples` examples.
        """
        probabilities, priors = self._hypotheses()
        noise = self._noise * (self._num_examples / num_examples)
        hypotheses = ((prior, noise) for prior in priors)
        return conditional_gains(self._effects, hypotheses, probabilities, reference)

    def _hypotheses(self) -> tuple[Array, Array]:
        """Return the hypotheses' prior probabilities, ``[H]``, and prior covariances, ``[H, n, n]``."""
        size = len(self._effects)
        weight = (1.0 - PRIOR_NO_EFFECT) / len(EFFECT_DEVIATIONS)
        probabilities = [PRIOR_NO_EFFECT]
        variances = [np.zeros(size)]
        for deviation in EFFECT_DEVIATIONS:
            equal = np.full(size, deviation**2)
            probabilities += [
                (1.0 - PRIOR_OUTSIDER) * weight,
                *np.full(size, PRIOR_OUTSIDER * weight / size),
            ]
            variances += [equal, *(equal + OUTSIDER_DEVIATION**2 * np.eye(size))]
        priors = np.array(variances)[:, :, None] * np.eye(size)
        return np.array(probabilities), priors

    def improvements(self, reference: int, num_examples: float) -> Array:
        """Return each program's expected gain over the reference after `num_examples` examples, ``[n]``.

        If the program turns out to be worse than the reference, its gain is taken to be 0. The
        expected gain is called the knowledge gradient (P. Frazier, W. Powell and S. Dayanik, SIAM
        J. Control Optim. 47, 2008). Its unit is the standard deviation of scores.
        """
        now = self._relative_gains(reference, self._num_examples)
        later = self._relative_gains(reference, num_examples)
        deviations = np.sqrt(np.maximum(now.variances - later.variances, 1e-18))
        z_scores = now.means / deviations
        densities = np.exp(-0.5 * z_scores**2) / np.sqrt(2.0 * np.pi)
        improvements = deviations * densities + now.means * special.ndtr(z_scores)
        return np.asarray(now.probabilities @ improvements)


def _unit_of(scores: Array) -> float:
    """Return the unit of effects: the standard deviation of scores.

    If all scores are equal, return their absolute value, or 1 if all are 0.
    """
    deviation = float(np.nanstd(scores))
    largest = float(np.nanmax(np.abs(scores)))
    if deviation > MAX_ROUNDING * largest:
        return deviation
    return largest or 1.0


def _laplacian(known: Array, weights: Array | float = 1.0) -> Array:
    """Return the Laplacian ``[n, n]`` of the graph that links programs scored on the same examples.

    `known` is 1 where a program was scored on an example, else 0, ``[n, E]``. `weights` holds one
    weight for each example, ``[E]``, or is a single weight for all examples.
    """
    weighted = known * weights
    counts = np.maximum(1.0, known.sum(axis=0))
    return np.asarray(np.diag(weighted.sum(axis=1)) - (weighted / counts) @ known.T)


@dataclass(eq=False)
class FittedPrograms(FittedModel):
    """A `ProgramModel` fitted to scores."""

    process: PairedProcess  # type: ignore[assignment]

    def interval(self, ordering: Candidate, score: float, *, reference: Candidate) -> tuple[float, float]:
        """Return the 95% interval for a program's expected score.

        If the unshrunk score is higher than `score`, the upper end is calculated from the unshrunk
        score, in case `score` was shrunk too much. Only the program's own error is used: when
        scores on the same examples are compared, the reference's error cancels.
        """
        own = float(self.process.unshrunk[self.orderings.index(ordering)])
        low, _ = super().interval(ordering, score, reference=ordering)
        _, high = super().interval(ordering, max(score, self.clip(own)), reference=ordering)
        return low, high


class ProgramModel(OrderingModel):
    """A model that predicts the scores of whole programs on new examples."""

    def fit(self, scores: Scores) -> FittedPrograms:
        with one_thread():
            table = ScoreTable.from_rows([*scores.values()], self.information_weights)
            process = PairedProcess(table)
            return FittedPrograms(self, list(scores), process, None, table, table.scores)
