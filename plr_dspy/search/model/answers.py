"""The answers that a search scores: as programs gave them, or calibrated.

    code          shape      meaning
    m, E, n                  orderings, examples, examples in a subset
    L, S                     labels, alternatives for their shares
    logs          [m, E, L]  log-probabilities of labels, NaN if unknown
    label_scores  [E, L]     score of each label on each example
    call_scores   [m, E]     scores of calls, NaN if unknown
    shares        [S, L]     how often each label is to be answered; NaN leaves answers as they are
    offsets       [m, L]     log shares - log mean probabilities, less their mean       (5)
    answers       [m, E]     argmax of logs + offsets                                   (6)

`OwnAnswers` and `CalibratedAnswers` share an interface, so the model of scores need not know
which one it uses. The equation numbers are those of docs/method.md.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from scipy.special import log_softmax

from plr_dspy.search.model.gains import Gains
from plr_dspy.search.model.logits import LabelLogits, LabelTable, likeliest_chances, mean_probabilities, softmax
from plr_dspy.statistics.arrays import Array, Mask, Numbers
from plr_dspy.statistics.calibration import calibrated, label_offsets, log_mean

MAX_EXAMPLES = 128  # maximum number of examples to average expected scores over
PRIOR_CELLS = 4.0  # weight of expected answers, in cells
PRIOR_DEVIATIONS = (0.0, 0.05, 0.15, 0.5)  # equally likely prior deviations of the gain of calibration


class Revision(NamedTuple):
    """How a program's answers are revised, for the builder of the returned program."""

    offsets: tuple[float, ...]  # of the labels, [L]
    shares: tuple[float, ...]  # target shares of the labels, [L]; empty without calibration
    adjective: str = "calibrated"  # describes the program in reports


class CalibrationEstimate(NamedTuple):
    """The effect of calibration on an ordering, with the share of unread replies in its calls."""

    offsets: tuple[float, ...]  # of the labels
    before: float  # expected mean score over all examples, without calibration
    after: float  # the same, with calibration


class CalibratedLabels(NamedTuple):
    """The labels that orderings answer after calibration to given shares."""

    shares: Array  # [L]; NaN if answers stay as they are
    offsets: Array  # 0 on average, [m, L]
    answers: Numbers  # the likeliest labels, [m, E]; an unseen label is never the likeliest
    known: Mask  # whether answers are known, [m, E]
    never_seen: Mask  # labels that were unseen in all answers, [L]
    calibrates: bool  # False if answers stay as they are


class SetMetricWeights(Protocol):
    """The methods of `ConfusionScores` that weight scores."""

    def weights(self, known: Mask, examples: Numbers) -> Array:
        """Return the weights of known scores on examples, ``[m, n]``."""

    def reweighted(self, table: Array, examples: Numbers) -> Array:
        """Return scores ``[m, n]`` rescaled so that each row's mean is its weighted mean."""


class ExampleWeights:
    """The weights of examples in mean scores; see `ConfusionScores.weights`.

    Args:
        influence: Weights for a metric over a set; None if all examples count the same.
        examples: Numbers of the examples, ``[E]``.
        is_seen: Examples with a known answer, ``[E]``. Expected scores are averaged over
            these, or over an evenly spread subset of `MAX_EXAMPLES`.

    Attributes:
        all: Weights of all examples, ``[E]``, with the sum 1.
        columns, of_columns: Examples to average expected scores over, and their weights,
            ``[n]``.
    """

    def __init__(self, influence: SetMetricWeights | None, examples: Numbers, is_seen: Mask) -> None:
        self._influence = influence
        self._examples = examples
        self.all = self._mean_weights(np.arange(len(examples)))
        seen = np.flatnonzero(is_seen)
        places = np.linspace(0, len(seen) - 1, min(len(seen), MAX_EXAMPLES)).round().astype(np.int64)
        self.columns = seen[places]
        self.of_columns = self._mean_weights(self.columns)

    def of_scores(self, known: Mask) -> Array:
        """Return the weights of known scores on all examples, ``[m, E]``."""
        return self._weights(known, self._examples)

    def reweighted(self, scores: Array, columns: Numbers | None = None) -> Array:
        """Return rescaled scores, ``[m, n]``; see `ConfusionScores.reweighted`."""
        if self._influence is None:
            return scores
        examples = self._examples if columns is None else self._examples[columns]
        return self._influence.reweighted(scores, examples)

    def _weights(self, known: Mask, examples: Numbers) -> Array:
        if self._influence is None:
            return known.astype(np.float64)
        return self._influence.weights(known, examples)

    def _mean_weights(self, columns: Numbers) -> Array:
        is_known = np.ones((1, len(columns)), dtype=bool)
        weights = self._weights(is_known, self._examples[columns])[0]
        return np.asarray(weights / weights.sum())


class OwnAnswers:
    """The answers that programs gave, and the estimated effect of calibrating them.

    Args:
        logits: Logits of labels under the effects of orderings.
        table: Log-probabilities of labels.
        label_scores: Score of each label on each example, ``[E, L]``.
        call_scores: Scores of calls, ``[m, E]``.
        is_program: Whole programs, ``[m]``, which have no effects.
        shares: Alternatives for the shares of labels, ``[L]`` or ``[S, L]``; None for even
            ones.
        weights: Weights of the examples.
        are_drawn: Whether programs sample their answers instead of giving the likeliest
            label.

    Attributes:
        keeps_scores: Whether calls keep the metric's scores; False if their answers are
            calibrated.
        adjective: Describes the candidates in reports; empty for own answers.
    """

    keeps_scores: ClassVar[bool] = True
    adjective: ClassVar[str] = ""

    def __init__(
        self,
        logits: LabelLogits,
        table: LabelTable,
        label_scores: Array,
        *,
        call_scores: Array,
        is_program: Mask,
        shares: Array | None,
        weights: ExampleWeights,
        are_drawn: bool,
    ) -> None:
        num_labels = label_scores.shape[1]
        self._logits = logits
        self._table = table
        self._label_scores = label_scores
        self._call_scores = call_scores
        self._is_program = is_program
        self._shares = np.full(num_labels, 1.0 / num_labels) if shares is None else shares
        self._weights = weights
        self._are_drawn = are_drawn
        self._all = np.arange(len(label_scores))

    @property
    def scores(self) -> Array:
        """Scores of calls, or of the answers that replace theirs, ``[m, E]``."""
        return self._call_scores

    def chances(self, logits: Array, variances: Array) -> Array:
        """Return the chance of each label being the answer, ``[m, n, L]``."""
        return self._own_chances(logits, variances)

    def decision_logits(
        self, logits: Array, variances: Array, weights: Array, bias_variances: Array | float
    ) -> tuple[Array, Array]:
        """Return the logits that decide the expected answers, and their variances.

        Args:
            logits: Logits under the effects, ``[m, n, L]``.
            variances: Variances of the contrasts, ``[n]``.
            weights: Weights of the examples, ``[n]``.
            bias_variances: Further variances of the label bias, ``[m]``.
        """
        return logits, variances + np.reshape(bias_variances, (-1, 1))

    def decision_logits_of_calls(self, logits: Array) -> Array:
        """Return the logits that decide the answers of calls, ``[m, E, L]``."""
        return logits

    def labels_of(self, number: int) -> tuple[Numbers, Numbers]:
        """Return the indices of the examples whose answers are replaced, and of the new labels."""
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing

    def revision(self, number: int) -> Revision | None:
        """Return how the answers of an ordering are revised; None if they are not."""
        return None

    def gain_of_revision(self, number: int) -> Gains | None:
        """Return the gain from revising an ordering's answers, as one column, or None."""
        return None

    @cached_property
    def calibrated_labels(self) -> CalibratedLabels:
        """Return labels calibrated to the best-scoring shares; to the first if none is clearly better."""
        options = [self._calibrate(alternative) for alternative in np.atleast_2d(self._shares)]
        known = self._table.known
        is_seen = np.asarray(known.any(axis=0))
        tables = np.array([np.where(known, self._label_scores[self._all, option.answers], 0.0) for option in options])
        means = (tables.sum(axis=1) / np.maximum(1, known.sum(axis=0)))[:, is_seen]
        weights = self._weights.of_scores(is_seen[None])[0, is_seen]
        weights = weights / weights.sum()
        gains = means - means[0]
        mean_gains = gains @ weights
        min_gains = np.zeros(len(options))
        # With a metric over a set, uncalibrated answers come first, and a few rare examples
        # dominate both the gain and its error. Requiring a clear gain would rule out
        # calibration.
        if options[0].calibrates:
            min_gains = np.sqrt((gains - mean_gains[:, None]) ** 2 @ weights**2)
        best = int(np.where(mean_gains > min_gains, mean_gains, 0.0).argmax())
        return options[best]

    @cached_property
    def calibrated_scores(self) -> Array:
        """Return the scores of calls ``[m, E]``, calibrated if log-probabilities are known."""
        labels = self.calibrated_labels
        scores = self._label_scores[self._all, labels.answers]
        of_calls = np.where(np.isnan(self._call_scores), np.nan, scores)
        of_calls = self._weights.reweighted(of_calls)
        return np.where(labels.known, of_calls, self._call_scores)

    @property
    def calibrated_shares(self) -> tuple[float, ...]:
        """Return the shares that labels are calibrated to, ``[L]``; empty if they are not."""
        labels = self.calibrated_labels
        if not labels.calibrates:
            return ()
        return tuple(round(share, 6) for share in labels.shares.tolist())

    def rounded_offsets(self, number: int) -> tuple[float, ...]:
        """Return the offsets that calibrate an ordering, ``[L]``, rounded."""
        return tuple(np.round(self.calibrated_labels.offsets[number], 6).tolist())

    def calibrated_labels_of(self, number: int) -> tuple[Numbers, Numbers]:
        """Return the examples with known log-probabilities, and the calibrated answers to them."""
        labels = self.calibrated_labels
        columns = np.flatnonzero(labels.known[number])
        return columns, labels.answers[number, columns]

    def estimate(self, number: int) -> CalibrationEstimate:
        """Estimate the effect of calibration on an ordering."""
        offsets = self.rounded_offsets(number)
        if self._is_program[number]:
            before, gain, _ = self.corrected(number)
            lowest = self._label_scores.min()
            before, after = np.clip([before, before + gain], lowest, self._label_scores.max()).tolist()
            return CalibrationEstimate(offsets, before, after)
        weights = self._weights
        before, after = (self._expected_scores(number, weights.columns) @ weights.of_columns).tolist()
        is_called = ~np.isnan(self._call_scores[number])
        is_unread = is_called & ~self._table.known[number]
        if is_unread.any():
            share = is_unread.sum() / is_called.sum()
            mean_score = self._call_scores[number, is_unread].mean()
            before = float((1 - share) * before + share * mean_score)
            if not self.keeps_scores:  # Otherwise, calibration might read labels in these replies.
                after = float((1 - share) * after + share * mean_score)
        return CalibrationEstimate(offsets, before, after)

    def corrected(self, number: int) -> tuple[float, float, Array]:
        """Return an ordering's uncalibrated score, the gain of calibration, and the gain's errors.

        Scores of the ordering's own n calls correct the expected ones, so unread replies
        count. The errors ``[n]`` are those on these calls.
        """
        weights = self._weights
        call_scores = self._call_scores[number]
        own = np.flatnonzero(~np.isnan(call_scores))
        before, after = self._expected_scores(number, weights.columns) @ weights.of_columns
        own_before, own_after = weights.reweighted(self._expected_scores(number, own), own)
        differences = (self.calibrated_scores[number] - call_scores)[own] - (own_after - own_before)
        score = float(before + (call_scores[own] - own_before).mean())
        return score, float(after - before + differences.mean()), differences

    def _expected_scores(self, number: int, examples: Numbers) -> Array:
        """Return expected scores of an ordering, uncalibrated and calibrated, ``[2, n]``."""
        # Ignore the ordering's own cells, which look too good if it was selected for them.
        logits, variances = self._logits.under(self._logits.effects[[number]], examples)
        label_scores = self._label_scores[examples]
        before = expected_scores(self._own_chances(logits, variances), label_scores)
        offsets = self.calibrated_labels.offsets[number]
        after = expected_scores(likeliest_chances(logits + offsets, variances), label_scores)
        return np.concatenate([before, after])

    def _own_chances(self, logits: Array, variances: Array) -> Array:
        if self._are_drawn:
            return mean_probabilities(logits, variances)
        return likeliest_chances(logits, variances)

    def _calibrate(self, shares: Array) -> CalibratedLabels:
        """Calibrate all orderings to shares of labels ``[L]``; NaN leaves answers as they are."""
        known = self._table.known
        logs = np.where(known[..., None], self._table.logs, 0.0)
        unseen = self._table.unseen
        never_seen: Mask = np.asarray(unseen[known].all(axis=0) & known.any())
        log_means, own_shares, shrinkage = self._log_means
        # Whole programs have no effects, so mix the means over their own cells with the
        # shares.
        of_programs = np.log(np.maximum(shrinkage * own_shares + (1 - shrinkage) * shares, 1e-300))
        log_means = np.where(self._is_program[:, None], of_programs, log_means)
        calibrates = not np.isnan(shares).any()
        offsets = np.zeros_like(log_means)
        if calibrates:
            offsets = label_offsets(log_means, shares, held=never_seen)  # Eq. 5
        answers = calibrated(logs, offsets[:, None], unseen=unseen).argmax(axis=2)  # Eq. 6
        return CalibratedLabels(shares, offsets, answers, known, never_seen, calibrates)

    @cached_property
    def _log_means(self) -> tuple[Array, Array, Array]:
        """Return log mean probabilities ``[m, L]``, means over own cells ``[m, L]``, and their shrinkage ``[m, 1]``.

        The mean over all examples is the expected one, corrected by the difference on the own
        cells.
        """
        known = self._table.known
        logs = np.where(known[..., None], self._table.logs, 0.0)
        counts = known.sum(axis=1)[:, None]
        logits, variances = self._logits.under(self._logits.effects, self._all)
        expected = np.log(mean_probabilities(logits, variances))
        filled = np.where(known[..., None], log_softmax(logs, axis=-1), expected)
        all_weights = self._weights.of_scores(np.ones((1, len(self._all)), dtype=bool))
        own_weights = np.where(counts > 0, self._weights.of_scores(known), all_weights)
        own = log_mean(filled, own_weights)
        shrinkage = counts / (counts + PRIOR_CELLS)
        correction = own - log_mean(expected, own_weights)
        return log_mean(expected, all_weights) + shrinkage * correction, softmax(own), shrinkage


class CalibratedAnswers(OwnAnswers):
    """The likeliest labels after calibration, as the returned program will answer."""

    keeps_scores = False
    adjective = "calibrated"

    @property
    def scores(self) -> Array:
        return self.calibrated_scores

    def chances(self, logits: Array, variances: Array) -> Array:
        return likeliest_chances(logits, variances)

    def decision_logits(
        self, logits: Array, variances: Array, weights: Array, bias_variances: Array | float
    ) -> tuple[Array, Array]:
        """Return logits and variances without the label bias, which calibration removes."""
        labels = self.calibrated_labels
        if not labels.calibrates:
            return super().decision_logits(logits, variances, weights, bias_variances)
        log_means = np.log(weights @ mean_probabilities(logits, variances))
        return logits + label_offsets(log_means, labels.shares, held=labels.never_seen)[:, None], variances

    def decision_logits_of_calls(self, logits: Array) -> Array:
        return logits + self.calibrated_labels.offsets[:, None]

    def labels_of(self, number: int) -> tuple[Numbers, Numbers]:
        return self.calibrated_labels_of(number)

    def revision(self, number: int) -> Revision | None:
        return Revision(self.rounded_offsets(number), self.calibrated_shares)

    def gain_of_revision(self, number: int) -> Gains | None:
        _, gain, differences = self.corrected(number)
        return gain_of_calibration(gain, differences)


def expected_scores(chances: Array, label_scores: Array) -> Array:
    """Return the expected scores ``[m, n]`` of answers with chances ``[m, n, L]`` (Eq. 4)."""
    return np.asarray(np.einsum("mel,el->me", chances, label_scores))


def gain_of_calibration(expected: float, differences: Array) -> Gains:
    """Return the gain of calibrating an ordering on new examples, as one column.

    Args:
        expected: The expected gain.
        differences: Errors of the expectation on the ordering's own calls, ``[n]``.
    """
    count = len(differences)
    squares = 0.0
    if count:
        squares = float(((differences - differences.mean()) ** 2).sum())
    noise = (squares + 0.25) / (count + 1) / max(1, count)
    priors = np.square(PRIOR_DEVIATIONS)
    totals = priors + noise
    log_likelihoods = -0.5 * np.log(totals) - 0.5 * expected**2 / totals
    likelihoods = np.exp(log_likelihoods - log_likelihoods.max())
    shrinkage = (priors / totals)[:, None]
    return Gains(likelihoods / likelihoods.sum(), shrinkage * expected, shrinkage * noise, (priors > 0)[:, None])
