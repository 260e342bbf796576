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
from plr_dspy.statistics.comparisons import PSEUDO_EXAMPLES, SIGNIFICANT, TAIL, likely_bounds

# Scale of the prior for the standard deviation between programs, relative to the range of scores.
USUAL_SPREAD = 0.2
NO_VARIANCE = 1e-15  # maximum variance to attribute to rounding errors
MIN_BETA_SIZE = 1.0  # minimum sum of the two parameters of a beta distribution
QUANTILES = np.linspace(-4.0, 4.0, 81)  # normal values at which beta quantiles are calculated
MOST_SPREAD = 5  # maximum standard deviation between programs, relative to `USUAL_SPREAD`


@dataclass(frozen=True)
class Gain:
    """The expected gain of a program over another program on new examples.

    Attributes:
        value: Estimate of the gain, shrunk towards 0, because the largest of several observed
            gains is biased upwards.
        observed: Estimate of the gain without shrinkage.
        draws: Draws of the true gain from its posterior, ``[D]``.
        least: Cautious draws of the gain, ``[D]``. They ignore differences between programs that
            may be due to chance.
        noise_share: Share of the observed variance between programs that is noise. None unless
            this is the gain of the best of several programs, and their mean scores differ.
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
        """Return whether the cautious draws exceed `other` with a probability above ``1 - tail``."""
        baseline = other.least if isinstance(other, Gain) else other
        return bool(np.quantile(self.least - baseline, tail) > 0)


class PairedExperiment:
    """An experiment that scored several programs on the same random examples.

    Draws of each program's true mean score have a beta distribution, so they are within the
    bounds. The draws of two programs are correlated like their scores (a Gaussian copula). So the
    interval for a difference is narrower if both programs are right on the same examples.

    Args:
        scores: Scores ``[C, E]``. The first row is the baseline.
        bounds: Bounds of a metric over a set, or None for other metrics. Likely bounds replace
            None and infinite bounds.
        seed: Seed of the draws.
    """

    def __init__(self, scores: Array, *, bounds: tuple[float, float] | None = None, seed: int = 0) -> None:
        self._rng = rng = np.random.default_rng(seed)
        scores, (lowest, highest), self._disagreement = _prepared(scores, bounds)
        self._scores = scores
        self._lowest = lowest
        self._highest = highest
        self._range = highest - lowest
        self.means = scores.mean(axis=1)
        self.num_examples = num_examples = scores.shape[1]
        freedom = num_examples - 1
        centered = scores - self.means[:, None]
        errors = rng.normal(size=(comparisons.NUM_DRAWS, num_examples)) @ centered.T / math.sqrt(freedom)
        # Artificial examples add variance to the difference between two programs. So add half of this
        # variance to the variance of each program.
        pseudo_variance = PSEUDO_EXAMPLES / 4 / num_examples * self._disagreement**2
        errors += math.sqrt(pseudo_variance) * rng.normal(size=errors.shape)
        variances = (centered**2).sum(axis=1) / freedom + pseudo_variance
        # The variances are only estimates, so widen the draws as in Student's t distribution.
        widened = variances / num_examples * freedom / max(1, freedom - 2)
        # The mean of a beta distribution cannot equal a bound. So add one artificial example, half with
        # the lowest score and half with the highest score (Jeffreys' prior).
        centers = (num_examples * self.means + (lowest + highest) / 2) / (num_examples + 1)
        self._draws = lowest + self._range * _beta_draws(
            errors / np.sqrt(variances), (centers - lowest) / self._range, widened / self._range**2
        )
        self._deviations_of: dict[tuple[int, ...], tuple[Array, float]] = {}

    @property
    def own_interval(self) -> tuple[float, float]:
        """The 95% interval for the baseline's mean score on new examples."""
        low, high = np.quantile(self._draws[:, 0], (TAIL, 1 - TAIL))
        return float(low), float(high)

    def gain(self, rows: Sequence[int]) -> Gain:
        """Return the expected gain of the program in `rows` over the baseline.

        If `rows` contains several programs, they are treated as a random sample of programs. The
        result is then the gain of a random program.
        """
        scores = self._draws[:, rows].mean(axis=1)
        if len(rows) > 1:
            spreads, _ = self._deviations(rows)
            spreads = np.minimum(spreads, self._largest_deviations(scores))
            scores = scores + spreads / math.sqrt(len(rows)) * self._rng.normal(size=len(scores))
        draws = self._possible(scores) - self._draws[:, 0]
        observed = float(self.means[rows].mean() - self.means[0])
        return Gain(self._shrunk(observed, draws), observed, draws, draws)

    def gain_on_top(self, base: Gain, row: int, base_row: int) -> Gain:
        """Return the sum of `base` and the gain of the program in `row` over the program in `base_row`."""
        difference = self._draws[:, row] - self._draws[:, base_row]
        own = self._draws[:, 0]
        observed = base.observed + float(self.means[row] - self.means[base_row])
        observed = float(self._possible(self.means[0] + observed) - self.means[0])
        draws = self._possible(own + base.draws + difference) - own
        least = self._possible(own + base.least + difference) - own
        return Gain(self._shrunk(observed, draws), observed, draws, least)

    def gain_of_best(self, rows: Sequence[int], average: Gain, num_searched: int) -> Gain:
        """Return the expected gain of the best of `num_searched` programs, given a random sample of them.

        The best observed score is biased upwards. So the result is the `average` gain plus a
        multiple of the standard deviation of true scores. The multiple approximates the expected
        maximum of `num_searched` standard normal values (G. Blom, 1958).
        """
        height = float(special.ndtri((num_searched - 0.375) / (num_searched + 0.25)))
        deviations, variance = self._deviations(rows)
        own = self._draws[:, 0]
        deviations = np.minimum(deviations, self._largest_deviations(own + average.draws))
        draws = self._possible(own + average.draws + height * deviations) - own
        sample = self._scores[rows]
        p_value = comparisons.p_value_of(sample, self._rng)
        observed_variance = float(sample.mean(axis=1).var(ddof=1))
        variance = max(0.0, variance)
        observed = average.observed + height * math.sqrt(variance)
        value = min(self._shrunk(observed, draws), self._highest - float(self.means[0]))
        noise_share = None
        if observed_variance > NO_VARIANCE:
            noise_share = 1.0 - variance / observed_variance
        return Gain(
            value,
            observed,
            draws,
            least=average.least if p_value > SIGNIFICANT else draws,
            noise_share=noise_share,
        )

    def _possible(self, scores: Array) -> Array:
        return np.clip(scores, self._lowest, self._highest)

    def _largest_deviations(self, means: Array) -> Array:
        """Return the largest standard deviation of scores with each mean (R. Bhatia and C. Davis, 2000)."""
        means = self._possible(means)
        return np.sqrt((means - self._lowest) * (self._highest - means))

    def _shrunk(self, gain: float, draws: Array) -> float:
        """Return the posterior mean of a gain, given its observed value and draws of the true gain.

        In the prior, the gain is normally distributed with mean 0. Its standard deviation has a
        half-normal prior with the scale `USUAL_SPREAD` times the range, so large gains with small
        errors hardly shrink.
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

        The results are cached, so that all gains of the same programs use the same draws.
        """
        key = tuple(rows)
        if key not in self._deviations_of:
            usual = USUAL_SPREAD * self._range
            self._deviations_of[key] = comparisons.draw_deviations(
                self._scores[rows], self._range / 2, self._disagreement, self._rng, usual=usual
            )
        return self._deviations_of[key]


def _beta_draws(normals: Array, means: Array, variances: Array) -> Array:
    """Transform correlated standard normal draws into correlated draws from beta distributions.

    Args:
        normals: Correlated draws from the standard normal distribution, ``[D, C]``.
        means, variances: The means and variances of the beta distributions, ``[C]``.
    """
    draws = np.empty_like(normals)
    for column, (mean, variance) in enumerate(zip(means, variances, strict=True)):
        size = max(MIN_BETA_SIZE, mean * (1 - mean) / variance - 1)
        quantiles = special.betaincinv(size * mean, size * (1 - mean), special.ndtr(QUANTILES))
        draws[:, column] = np.interp(normals[:, column], QUANTILES, quantiles)
    return draws


def _finite(bounds: tuple[float, float], scores: Array) -> tuple[float, float]:
    """Return the bounds of a metric over a set, with likely bounds in place of infinite ones."""
    likely = likely_bounds(scores.mean(axis=1).tolist())
    # Most metrics range from 0 to 1. The range of other metrics is unknown, so use the range of the
    # scores of single examples, which is wider.
    if likely != (0.0, 1.0):
        likely = likely_bounds(scores.ravel().tolist())
    low, high = bounds
    if math.isinf(low):
        low = min(likely[0], high - 1.0)
    if math.isinf(high):
        high = max(likely[1], low + 1.0)
    return low, high


def _prepared(
    scores: Array, bounds: tuple[float, float] | None
) -> tuple[Array, tuple[float, float], float]:
    """Return rounded scores ``[C, E]``, the bounds of mean scores, and the largest difference on an example.

    If scores never differ on an example, this difference is the range of the bounds. The examples are
    sorted, so that their original order does not affect the draws.
    """
    scores = np.round(scores, 9)
    scores = scores[:, np.lexsort(scores)]
    if bounds is None:
        lowest, highest = likely_bounds(scores.ravel().tolist())
    else:
        lowest, highest = _finite(bounds, scores)
    disagreement = float(np.ptp(scores, axis=0).max()) or highest - lowest
    return scores, (lowest, highest), disagreement
