"""The model of whole programs, which have no features: all that is known of them are scores on the same examples.

symbol  code         shape      meaning
n, E, H                         programs, examples, hypotheses
y       scores       [n, E]     score of a program on an example, NaN if unknown
t       means        [n]        effects of programs, as scores on a mean example
a                    [E]        effects of examples
L       laplacian    [n, n]     normal equations of t after elimination of a
N       noise        [n, n]     covariance of the errors of t
P       priors       [H, n, n]  prior covariance of true effects

y  =  t  +  a  +  noise, which programs may share on an example
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from plr_dspy.search.model.gains import OUTSIDER_SCALES, Gains
from plr_dspy.search.model.ordering_model import FittedModel, OrderingModel, one_thread
from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.search.space import Candidate, Scores
from plr_dspy.statistics.arrays import Array

# Prior deviations of effects, equally likely, over the deviation of scores.
DEVIATIONS_OF_EFFECTS = (0.04, 0.08, 0.16, 0.32)
PRIOR_NOTHING = 0.05  # prior probability that all programs are equal on new examples
PRIOR_OUTSIDER = 0.5  # prior probability that one program is unlike the others
DEVIATION_OF_OUTSIDER = 0.2  # its further prior deviation, over that of scores
PRIOR_EXAMPLES = 50.0  # examples with independent errors that count as seen
MIN_VARIANCE = 0.02  # minimum variance of errors, over that of scores: some examples may agree by chance


class _Posterior(NamedTuple):
    """The hypotheses given the scores."""

    probabilities: Array  # [H]
    priors: Array  # P
    inverses: Array  # of the covariances of measured effects, [H, n, n]
    solved: Array  # measured effects without their mean, times these inverses, [H, n]


class PairedProcess:
    """Effects of programs that were scored on the same examples, with the covariance of their errors.

    Attributes:
        mean: Posterior mean scores on a mean example, ``[n]``.
        unshrunk: Least-squares estimates of the same, ``[n]``.
        state: Nothing, because each fit begins anew.
    """

    def __init__(self, table: ScoreTable) -> None:
        self.state: dict[str, Any] = {}
        known = table.known.astype(np.float64)
        values = np.where(table.known, table.scores, 0.0)
        counts = np.maximum(1.0, known.sum(axis=0))
        deviations = known * (values - values.sum(axis=0) / counts)
        laplacian = np.diag(known.sum(axis=1)) - (known / counts) @ known.T
        inverse = np.linalg.inv(laplacian + 1.0 / len(known)) - 1.0 / len(known)  # a common shift is not known
        effects = inverse @ deviations.sum(axis=1)
        examples = (values - effects[:, None] * known).sum(axis=0) / counts
        self.unshrunk: Array = effects + examples[table.seen].mean()
        self._num_examples = int(table.seen.sum())
        self._deviation = float(np.nanstd(table.scores)) or 1.0
        self._noise = self._errors(known, known * (values - effects[:, None] - examples), inverse)

    def _errors(self, known: Array, residuals: Array, inverse: Array) -> Array:
        """Return N by the sandwich estimator, with independent errors on some prior examples.

        Errors on one example may be correlated in any way (K.-Y. Liang and S. L. Zeger, Biometrika 73, 1986).
        """
        size = len(known)
        count = self._num_examples
        degrees = max(1.0, known.sum() - count - size + 1)
        variance = max(float((residuals**2).sum()) / degrees, MIN_VARIANCE * self._deviation**2)
        prior = variance * (np.eye(size) - 1.0 / size)
        products = residuals @ residuals.T + PRIOR_EXAMPLES * prior
        noise = inverse @ products @ inverse * (count / (count + PRIOR_EXAMPLES))
        # A common shift is no gain, and makes the matrix regular.
        return np.asarray(noise + self._deviation**2 / count)

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
        num_examples: float | None = None,
    ) -> Gains:
        """Return the gains of the programs over one of them on new examples.

        Args:
            reference: The number of that program.
            outsider_scales, may_differ: As in `AdditiveProcess.gains`; any program may be an outsider here.
            num_examples: Foreseen number of examples, on which errors are smaller; None for those seen.
        """
        now = self._posterior
        inverses = now.inverses
        priors = now.priors
        if num_examples is not None:
            shrunk = self._noise * (self._num_examples / num_examples)
            inverses = np.asarray(np.linalg.inv(priors + shrunk), dtype=np.float64)
        contrasts = priors - priors[:, [reference]]
        slopes = contrasts @ inverses
        diagonals = np.diagonal(priors, axis1=1, axis2=2)
        prior_variances = diagonals + diagonals[:, [reference]] - 2.0 * priors[:, reference]
        precisions = inverses.sum(axis=(1, 2))
        explained = (slopes * contrasts).sum(axis=2) - slopes.sum(axis=2) ** 2 / precisions[:, None]
        variances = np.maximum(prior_variances - explained, 0.0)
        means = (contrasts @ now.solved[..., None])[..., 0]
        return Gains(now.probabilities, means, variances, prior_variances > 1e-12)

    @cached_property
    def _posterior(self) -> _Posterior:
        """Weight the hypotheses by their likelihood."""
        probabilities, priors = self._hypotheses()
        inverses = np.asarray(np.linalg.inv(priors + self._noise), dtype=np.float64)
        sums = inverses.sum(axis=1)
        precisions = sums.sum(axis=1)
        # The generalised least-squares mean is unknown, so the likelihood is restricted.
        rest = self.unshrunk - (sums @ self.unshrunk / precisions)[:, None]
        solved = (inverses @ rest[..., None])[..., 0]
        log_determinants = np.linalg.slogdet(inverses)[1]
        log_likelihoods = 0.5 * (log_determinants - np.log(precisions) - (rest * solved).sum(axis=1))
        weights = probabilities * np.exp(log_likelihoods - log_likelihoods.max())
        return _Posterior(weights / weights.sum(), priors, inverses, solved)

    def _hypotheses(self) -> tuple[Array, Array]:
        """Return prior probabilities ``[H]`` and P."""
        size = len(self.unshrunk)
        share = (1.0 - PRIOR_NOTHING) / len(DEVIATIONS_OF_EFFECTS)
        probabilities = [PRIOR_NOTHING]
        variances = [np.zeros(size)]
        for deviation in DEVIATIONS_OF_EFFECTS:
            alike = np.full(size, deviation**2)
            probabilities += [(1.0 - PRIOR_OUTSIDER) * share, *np.full(size, PRIOR_OUTSIDER * share / size)]
            variances += [alike, *(alike + DEVIATION_OF_OUTSIDER**2 * np.eye(size))]
        priors = self._deviation**2 * np.array(variances)[:, :, None] * np.eye(size)
        return np.array(probabilities), priors

    def improvements(self, reference: int, num_examples: float) -> Array:
        """Return the expected gain of each program as an alternative after more examples, over the deviation of scores.

        It is the knowledge gradient (P. Frazier, W. Powell and S. Dayanik, SIAM J. Control Optim. 47, 2008).

        Args:
            reference: The number of the program that would be taken now.
            num_examples: Number of examples in the end.
        """
        now = self.gains(reference)
        later = self.gains(reference, num_examples=num_examples)
        deviations = np.sqrt(np.maximum(now.variances - later.variances, 1e-18))
        standard = now.means / deviations
        density = np.exp(-0.5 * standard**2) / np.sqrt(2.0 * np.pi)
        gains = deviations * density + now.means * special.ndtr(standard)
        return np.asarray(now.probabilities @ gains / self._deviation)


@dataclass(eq=False)
class FittedPrograms(FittedModel):
    """The model fitted to scores of whole programs on the same examples."""

    process: PairedProcess  # type: ignore[assignment]

    def interval(self, ordering: Candidate, score: float, *, reference: Candidate) -> tuple[float, float]:
        """Return the 95 % interval of an expected score, which extends beyond the mean of the program's own scores.

        Paired gains add hardly any error to it.
        """
        own = float(self.process.unshrunk[self.orderings.index(ordering)])
        low, _ = super().interval(ordering, score, reference=ordering)
        _, high = super().interval(ordering, max(score, self.clip(own)), reference=ordering)
        return low, high


class ProgramModel(OrderingModel):
    """What scores of whole programs on the same examples tell of new examples."""

    def fit(
        self, scores: Scores, *, earlier: Mapping[str, Any] | None = None, kept: Sequence[Candidate] = ()
    ) -> FittedPrograms:
        """Fit the effects of all programs anew; other arguments are for searches that model some of many."""
        with one_thread():
            table = ScoreTable.from_rows([*scores.values()], self.information_weights)
            process = PairedProcess(table)
            return FittedPrograms(self, list(scores), process, None, table, table.scores)
