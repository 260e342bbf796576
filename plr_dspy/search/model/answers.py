"""The answers that a search scores: the programs' original answers or calibrated answers.

offsets[o]     =  centered(log shares - log mean probabilities of o)              (5)
answers[o, e]  =  argmax of p[o, e] + offsets[o]                                  (6)
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from plr_dspy.search.model.gains import Gains
from plr_dspy.search.model.logits import LabelLogits, likeliest_chances, mean_probabilities, softmax
from plr_dspy.search.model.responses import Calls, SetMetricWeights
from plr_dspy.statistics.arrays import Array, Mask, Numbers
from plr_dspy.statistics.calibration import OFFSET_DECIMALS, label_offsets, likeliest_labels, log_mean

MAX_EXAMPLES = 128  # maximum number of examples over which expected scores are averaged
PRIOR_CELLS = 4.0  # weight of the expected label probabilities, as a number of calls
# Equally likely prior standard deviations of the gain from calibration, relative to the range of
# label scores.
PRIOR_DEVIATIONS = (0.0, 0.05, 0.15, 0.5)
ALL = slice(None)


class Revision(NamedTuple):
    """The calibration that a program applies to its answers."""

    offsets: tuple[float, ...]  # values to add to the log-probabilities of labels, [L]
    shares: tuple[float, ...]  # target shares of the labels, [L]; empty if answers are not calibrated


class CalibratedLabels(NamedTuple):
    """The answers of orderings after calibration to given label shares."""

    shares: Array  # target shares of the labels, [L]; NaN if answers are not calibrated
    offsets: Array  # rounded values to add to the labels' log-probabilities; their mean is about 0, [m, L]
    answers: Numbers  # indices of the likeliest seen labels after calibration, [m, E]
    never_seen: Mask  # whether each label is unseen in all known cells, [L]
    calibrates: bool  # whether answers are calibrated


class ExampleWeights:
    """The weights of examples in mean scores.

    For a metric over a set, `ConfusionScores.weights()` calculates the weights. Otherwise, all
    weights are equal. Each of the following arrays of weights sums to 1.

    Attributes:
        all: Weights of all examples, ``[E]``.
        seen, of_seen: Columns and weights of the examples with log-probabilities.
        columns, of_columns: Columns and weights of the examples over which expected scores are
            averaged, ``[n]``: at most `MAX_EXAMPLES` of those with log-probabilities.
        are_equal: Whether all weights are equal, so the metric is not over a set.
    """

    def __init__(self, set_weights: SetMetricWeights | None, examples: Numbers, is_seen: Mask) -> None:
        self._set_weights = set_weights
        self.are_equal = set_weights is None
        self._examples = examples
        self.all = self._mean_weights(np.arange(len(examples)))
        self.seen = np.flatnonzero(is_seen)
        self.of_seen = self._mean_weights(self.seen)
        places = (
            np.linspace(0, len(self.seen) - 1, min(len(self.seen), MAX_EXAMPLES)).round().astype(np.int64)
        )
        self.columns = self.seen[places]
        self.of_columns = self._mean_weights(self.columns)

    def of_scores(self, known: Mask, columns: Numbers | slice = ALL) -> Array:
        """Return the weight of each known score in its row's mean, ``[m, n]``."""
        if self._set_weights is None:
            return known.astype(np.float64)
        return self._set_weights.weights(known, self._examples[columns])

    def reweighted(self, scores: Array, columns: Numbers | slice = ALL) -> Array:
        """Return the scores ``[m, n]``, rescaled so that each row's plain mean equals its weighted mean."""
        if self._set_weights is None:
            return scores
        return self._set_weights.reweighted(scores, self._examples[columns])

    def _mean_weights(self, columns: Numbers) -> Array:
        weights = self.of_scores(np.ones((1, len(columns)), dtype=bool), columns)[0]
        return np.asarray(weights / weights.sum())


class Answers:
    """The answers of orderings, and the estimated effect of calibration on their scores.

    Args:
        calls: The calls that returned the answers.
        logits: The logits fitted to the log-probabilities of these calls.
        weights: The weights of examples.
        shares, are_calibrated: As in `LabelResponses`.
        are_drawn: Whether programs sample their answers instead of returning the likeliest
            label.
    """

    def __init__(
        self,
        calls: Calls,
        logits: LabelLogits,
        weights: ExampleWeights,
        *,
        shares: Array | None,
        are_drawn: bool,
        are_calibrated: bool,
    ) -> None:
        self._calls = calls
        self._call_scores = calls.scored.scores
        self._labels = calls.labels
        self._logits = logits
        self._weights = weights
        num_examples, num_labels = calls.labels.scores.shape
        self._shares = np.full(num_labels, 1.0 / num_labels) if shares is None else shares
        self._own_chances = mean_probabilities if are_drawn else likeliest_chances
        self._are_calibrated = are_calibrated
        self._all = np.arange(num_examples)

    @property
    def scores(self) -> Array:
        """The scores of calibrated answers if the search uses them, else of original answers, ``[m, E]``."""
        return self.calibrated_scores if self._are_calibrated else self._call_scores

    def expected_scores(
        self, effects: Array, examples: Numbers, weights: Array, bias_variances: Array | float = 0.0
    ) -> Array:
        """Return the expected scores ``[m, n]`` of orderings, given their effects ``[m, d + 1]``.

        `examples` are the columns of the examples, and `weights` are their weights, ``[n]``.
        `bias_variances` are the error variances of the label bias, ``[m]``.
        """
        logits, variances = self._logits.under(effects, examples)  # Eq. 3
        if self._are_calibrated and self.calibrated_labels.calibrates:
            # Calibration removes the label bias, so `bias_variances` does not matter.
            labels = self.calibrated_labels
            log_means = np.log(weights @ mean_probabilities(logits, variances))
            logits = logits + label_offsets(log_means, labels.shares, held=labels.never_seen)[:, None]
        else:
            variances = variances + np.reshape(bias_variances, (-1, 1))
        chances = likeliest_chances if self._are_calibrated else self._own_chances
        return mean_scores(chances(logits, variances), self._labels.scores[examples])

    def expected_scores_of_calls(self) -> Array:
        """Return the expected score of each call that returned log-probabilities, ``[m, E]``.

        The score of each call is predicted from all other calls.
        """
        logits, variances = self._logits.leave_one_out()
        if not self._are_calibrated:
            return mean_scores(self._own_chances(logits, variances), self._labels.scores)
        logits = logits + self.calibrated_labels.offsets[:, None]
        return mean_scores(likeliest_chances(logits, variances), self._labels.scores)

    @cached_property
    def calibrated_labels(self) -> CalibratedLabels:
        """The answers after calibration to the label shares that give the highest mean score.

        Of several alternative shares, the first are chosen unless others score higher. If the
        metric scores single examples, others must score clearly higher.
        """
        options = [self._calibrate(alternative) for alternative in np.atleast_2d(self._shares)]
        known = self._labels.known
        means = []
        for option in options:
            scores = np.where(known, self._labels.scores[self._all, option.answers], 0.0)
            means.append((scores.sum(axis=0) / np.maximum(1, known.sum(axis=0)))[self._weights.seen])
        weights = self._weights.of_seen
        gains = np.array(means) - means[0]
        mean_gains = gains @ weights
        min_gains = np.zeros(len(options))
        # Require a gain above one standard error, except for a metric over a set. With such a metric,
        # the first option is no calibration. A few rare examples dominate both the gain from
        # calibration and its standard error, so this requirement would always rule out calibration.
        if options[0].calibrates:
            min_gains = np.sqrt((gains - mean_gains[:, None]) ** 2 @ weights**2)
        best = int(np.where(mean_gains > min_gains, mean_gains, 0.0).argmax())
        return options[best]

    @cached_property
    def calibrated_scores(self) -> Array:
        """The scores of calls after calibration, ``[m, E]``.

        Answers without log-probabilities cannot be calibrated, so their scores are unchanged.
        """
        scores = self._labels.scores[self._all, self.calibrated_labels.answers]
        of_calls = self._weights.reweighted(np.where(self._calls.scored.known, scores, np.nan))
        return np.where(self._labels.known, of_calls, self._call_scores)

    @property
    def calibrated_shares(self) -> tuple[float, ...]:
        """The label shares to which answers are calibrated, ``[L]``. Empty if answers are not calibrated."""
        labels = self.calibrated_labels
        if not labels.calibrates:
            return ()
        return tuple(round(share, 6) for share in labels.shares.tolist())

    def rounded_offsets(self, number: int) -> tuple[float, ...]:
        """Return the rounded offsets that calibrate an ordering's answers, ``[L]``."""
        return tuple(self.calibrated_labels.offsets[number].tolist())

    def score_as_it_is(self, number: int) -> float:
        """Return an ordering's expected score without calibration."""
        if self._calls.is_program[number]:
            score, _, _ = self.corrected(number)
            return float(np.clip(score, self._labels.scores.min(), self._labels.scores.max()))
        weights = self._weights
        score = float(self._own_expected_scores(number, weights.columns)[0] @ weights.of_columns)
        is_called = self._calls.scored.known[number]
        is_unread = is_called & ~self._labels.known[number]
        if is_unread.any():
            share = is_unread.sum() / is_called.sum()
            score = float((1 - share) * score + share * self._call_scores[number, is_unread].mean())
        return score

    def corrected(self, number: int) -> tuple[float, float, Array]:
        """Return an ordering's uncalibrated score, its gain from calibration, and the errors of this gain.

        The score and the gain are expected values, corrected by the mean prediction error on the
        ordering's own calls. These include calls with unread replies. The errors are the actual
        minus the predicted gain of each of these calls.
        """
        weights = self._weights
        call_scores = self._call_scores[number]
        own = np.flatnonzero(self._calls.scored.known[number])
        before, after = self._own_expected_scores(number, weights.columns) @ weights.of_columns
        own_before, own_after = weights.reweighted(self._own_expected_scores(number, own), own)
        differences = (self.calibrated_scores[number] - call_scores)[own] - (own_after - own_before)
        score = float(before + (call_scores[own] - own_before).mean())
        return score, float(after - before + differences.mean()), differences

    def gain_of_calibration(self, number: int) -> Gains:
        """Return an ordering's gain from calibration on new examples.

        The result has only one column, so that `Gains.plus()` can add it to all orderings' gains.
        """
        unit = self._labels.unit
        _, expected, errors = self.corrected(number)
        expected /= unit
        errors = errors / unit
        count = len(errors)
        squares = float(((errors - errors.mean()) ** 2).sum())
        weights = self._weights.of_columns
        before, after = self._own_expected_scores(number, self._weights.columns) / unit
        differences = after - before
        noise = (squares + 0.25) / (count + 1) / count
        # The predicted gain is a mean over a sample of examples, so it also has a sampling error.
        noise += float(weights**2 @ (differences - weights @ differences) ** 2)
        priors = np.square(PRIOR_DEVIATIONS)
        totals = priors + noise
        log_likelihoods = -0.5 * np.log(totals) - 0.5 * expected**2 / totals
        shrinkage = (priors / totals)[:, None]
        gains = Gains(
            softmax(log_likelihoods), shrinkage * expected, shrinkage * noise, (priors > 0)[:, None]
        )
        return gains.times(unit)

    def _own_expected_scores(self, number: int, examples: Numbers) -> Array:
        """Return an ordering's expected scores without and with calibration, ``[2, n]``."""
        # Predict the logits from effects. The ordering's own log-probabilities are biased if the
        # ordering was selected because of them.
        logits, variances = self._logits.under(self._logits.effects[[number]], examples)
        offsets = self.calibrated_labels.offsets[number]
        chances = [self._own_chances(logits, variances), likeliest_chances(logits + offsets, variances)]
        return mean_scores(np.concatenate(chances), self._labels.scores[examples])

    def _calibrate(self, shares: Array) -> CalibratedLabels:
        """Return the orderings' answers after calibration to label shares ``[L]``.

        If the shares are NaN, do not calibrate the answers.
        """
        known = self._labels.known
        unseen = self._labels.unseen
        never_seen: Mask = np.asarray(unseen[known].all(axis=0) & known.any())
        log_means, own_shares, shrinkage = self._log_means
        # Whole programs have no effects from which to predict probabilities. Instead, shrink the
        # mean probabilities in their own cells towards the target shares.
        of_programs = np.log(np.maximum(shrinkage * own_shares + (1 - shrinkage) * shares, 1e-300))
        log_means = np.where(self._calls.is_program[:, None], of_programs, log_means)
        calibrates = not np.isnan(shares).any()
        offsets = np.zeros_like(log_means)
        if calibrates:
            # The returned program uses rounded offsets, so score the answers with rounded offsets.
            offsets = label_offsets(log_means, shares, held=never_seen).round(OFFSET_DECIMALS)  # Eq. 5
        logs = np.nan_to_num(self._labels.logs)
        answers = likeliest_labels(logs, offsets[:, None], unseen=unseen)  # Eq. 6
        return CalibratedLabels(shares, offsets, answers, never_seen, calibrates)

    @cached_property
    def _log_means(self) -> tuple[Array, Array, Array]:
        """Each ordering's log mean probabilities of labels over all examples, and two related arrays.

        The log mean probabilities ``[m, L]`` are predicted from effects, then corrected by the
        prediction errors in each ordering's own cells. The other arrays are the mean probabilities
        in these cells, ``[m, L]``, and the weights of the corrections, ``[m, 1]``.
        """
        known = self._labels.known
        counts = known.sum(axis=1)[:, None]
        logits, variances = self._logits.under(self._logits.effects, self._all)
        expected = np.log(mean_probabilities(logits, variances))
        filled = np.where(known[..., None], log_softmax(self._labels.logs, axis=-1), expected)
        all_weights = self._weights.all[None]
        own_weights = np.where(counts > 0, self._weights.of_scores(known), all_weights)
        own = log_mean(filled, own_weights)
        shrinkage = counts / (counts + PRIOR_CELLS)
        correction = own - log_mean(expected, own_weights)
        return log_mean(expected, all_weights) + shrinkage * correction, softmax(own), shrinkage


def mean_scores(chances: Array, label_scores: Array) -> Array:
    """Return the expected scores ``[m, n]``, given the probabilities of labels ``[m, n, L]`` (Eq. 4)."""
    return np.asarray(np.einsum("mel,el->me", chances, label_scores))
