"""Expected gains over a baseline program, estimated from the scores of programs on the same examples.

Shapes: C programs, E examples, D draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from plr_dspy.statistics import comparisons
from plr_dspy.statistics.arrays import Array
from plr_dspy.statistics.comparisons import PSEUDO_EXAMPLES, SIGNIFICANT, TAIL

# Scale of the prior of the standard deviation between programs, relative to the range of scores.
USUAL_SPREAD = 0.2
MOST_SPREAD = 5  # upper limit of integrals over this standard deviation, relative to `USUAL_SPREAD`


@dataclass(frozen=True)
class Gain:
    """The expected gain of a program over another program on new examples.

    Attributes:
        value: The estimate, shrunk towards 0, because the largest of several observed gains is
            biased upwards.
        observed: The estimate without shrinkage.
        draws: Draws of the true gain from its posterior, ``[D]``.
        least: Cautious draws of the gain, ``[D]``. They ignore differences between programs that
            may be due to chance.
        noise_share: Share of the observed variance between programs that is noise. None unless
            the program is the best of several.
    """

    value: float
    observed: float
    draws: Array
    least: Array
    noise_share: float | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval for the true gain."""
        return float(np.quantile(self.least, TAIL)), float(np.quantile(self.draws, 1 - TAIL))

    def exceeds(self, other: "Gain | float", tail: float) -> bool:
        """Return whether this gain exceeds `other` with a probability above ``1 - tail``."""
        baseline = other.least if isinstance(other, Gain) else other
        return bool(np.quantile(self.least - baseline, tail) > 0)


class PairedExperiment:
    """An experiment that scored several programs on the same random examples.

    Draws of the programs' true mean scores have a joint Student's t distribution. Its covariance
    is estimated from the examples.

    Args:
        scores: Scores ``[C, E]``. The first row is the baseline.
        bounds: Bounds of mean scores, or None to use 0 and 1, widened to include all scores.
        seed: Seed of the draws.
    """

    def __init__(self, scores: Array, *, bounds: tuple[float, float] | None = None, seed: int = 0) -> None:
        self._rng = rng = np.random.default_rng(seed)
        scores, (lowest, highest), self._disagreement = _prepared(scores, bounds)
        self._scores = scores
        self._highest = highest
        self._range = highest - lowest
        self.means = scores.mean(axis=1)
        num_examples = scores.shape[1]
        freedom = num_examples - 1
        num_draws = comparisons.NUM_DRAWS
        centered = scores - self.means[:, None]
        errors = rng.normal(size=(num_draws, num_examples)) @ centered.T / math.sqrt(freedom)
        # Pseudo-examples add variance to the difference between two programs. So add half of this
        # variance to each program.
        pseudo_error = math.sqrt(PSEUDO_EXAMPLES / 4 / num_examples) * self._disagreement
        errors += pseudo_error * rng.normal(size=errors.shape)
        scales = np.sqrt(freedom / rng.chisquare(freedom, size=(num_draws, 1)) / num_examples)
        self._draws = self.means + errors * scales
        self._deviations_of: dict[tuple[int, ...], tuple[Array, float]] = {}

    def gain(self, rows: Sequence[int]) -> Gain:
        """Return the expected gain over the baseline of one program, or of a random program.

        `rows` holds the row of the one program. For a random program, `rows` holds the rows of a
        random sample of programs.
        """
        draws = self._draws[:, rows].mean(axis=1) - self._draws[:, 0]
        if len(rows) > 1:
            deviations, _ = self._deviations(rows)
            draws += deviations / math.sqrt(len(rows)) * self._rng.normal(size=len(draws))
        observed = float(self.means[rows].mean() - self.means[0])
        return Gain(self._shrunk(observed, draws), observed, draws, draws)

    def gain_on_top(self, base: Gain, row: int, base_row: int) -> Gain:
        """Return the gain `base` plus the gain of the program in `row` over the one in `base_row`."""
        difference = self._draws[:, row] - self._draws[:, base_row]
        observed = base.observed + float(self.means[row] - self.means[base_row])
        draws = base.draws + difference
        return Gain(self._shrunk(observed, draws), observed, draws, base.least + difference)

    def gain_of_best(self, rows: Sequence[int], average: Gain, num_searched: int) -> Gain:
        """Return the expected gain of the best of `num_searched` programs, given a random sample of them.

        The best observed score is biased upwards. So the result is the average gain plus a
        multiple of the standard deviation of true scores. The multiple is the expected maximum
        of `num_searched` standard normal values (G. Blom, 1958).
        """
        height = float(special.ndtri((num_searched - 0.375) / (num_searched + 0.25)))
        deviations, variance = self._deviations(rows)
        most = self._highest - self._draws[:, 0]
        draws = np.minimum(average.draws + height * deviations, most)
        sample = self._scores[rows]
        p_value = comparisons.p_value_of(sample, self._rng)
        observed_variance = float(sample.mean(axis=1).var(ddof=1))
        variance = max(0.0, variance)
        observed = average.observed + height * math.sqrt(variance)
        value = min(self._shrunk(observed, draws), self._highest - float(self.means[0]))
        return Gain(
            value,
            observed,
            draws,
            least=average.least if p_value > SIGNIFICANT else draws,
            noise_share=1.0 - variance / observed_variance if observed_variance else 1.0,
        )

    def _shrunk(self, gain: float, draws: Array) -> float:
        """Return the posterior mean of a gain, given its observed value and draws of the true gain.

        In the prior, the gain is normal with mean 0 and an unknown standard deviation. This
        deviation has a half-normal prior with the scale `USUAL_SPREAD`, so large gains with
        small errors hardly shrink.
        """
        usual = USUAL_SPREAD * self._range
        spreads = np.linspace(0.0, MOST_SPREAD * usual, comparisons.NUM_DEVIATIONS)
        totals = spreads**2 + draws.var()
        log_likelihood = -0.5 * (np.log(totals) + gain**2 / totals)
        log_prior = -0.5 * (spreads / usual) ** 2
        weights = special.softmax(log_likelihood + log_prior)
        return float(gain * (weights @ (spreads**2 / totals)))

    def _deviations(self, rows: Sequence[int]) -> tuple[Array, float]:
        """Return draws of the standard deviation of true scores, and an unbiased estimate of its square.

        The results are stored, so that gains that depend on the same programs use the same draws.
        """
        key = tuple(rows)
        if key not in self._deviations_of:
            usual = USUAL_SPREAD * self._range
            self._deviations_of[key] = comparisons.draw_deviations(
                self._scores[rows], self._range / 2, self._disagreement, self._rng, usual=usual
            )
        return self._deviations_of[key]


def _prepared(scores: Array, bounds: tuple[float, float] | None) -> tuple[Array, tuple[float, float], float]:
    """Return prepared scores ``[C, E]``, the bounds of mean scores, and the largest difference on an example.

    The scores are rounded and the examples are sorted, so that the order of examples does not
    affect the draws.
    """
    scores = np.round(scores, 9)
    scores = scores[:, np.lexsort(scores)]
    lowest, highest = bounds or (min(0.0, float(scores.min())), max(1.0, float(scores.max())))
    disagreement = float(np.ptp(scores, axis=0).max()) or highest - lowest
    return scores, (lowest, highest), disagreement
