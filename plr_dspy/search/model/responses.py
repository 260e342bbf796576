"""Expected scores of orderings, given the log-probabilities of labels.

symbol  code         shape      meaning
m, E, L                         orderings, examples, labels
p       logs         [m, E, L]  log-probabilities of labels, NaN if unknown
z       contrasts    [m, E, d]  p B^T, d = L - 1, see effects
B       basis        [d, L]     orthonormal contrasts
b, q    effects      [m, d+1]   label bias and slope of orderings, see effects
y       call_scores  [m, E]     scores of calls, NaN if unknown
M       scores       [E, L]     score of each label on each example
w       weights      [E]        weights of the examples in means

The effects say which label an ordering would answer on each example, and the metric
what that label scores. Whole programs have no effects: their prompts differ by example.
They are expected to score as a mean ordering.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import helmert
from scipy.special import log_softmax, softmax

from plr_dspy.search.model.effects import EffectProcess, ResponseEffects
from plr_dspy.search.model.gains import Array, Families, Gains, Mask, Numbers, independent_gains
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.calibration import calibrated, label_offsets, log_mean

MIN_LOG = -1e3  # servers write -9999 or nothing for a probability of 0
MAX_CONTRAST = 8.0  # how unlikely an impossible label is says little
UNDERSTATED = 1.6  # error variances of effects over those of the fit, in simulations
STEP = 0.05  # of an effect, for numerical derivatives
OUTSIDER_SCORE = 0.25  # variance of the mean score of a candidate without features
PRIOR_CELLS = 4.0  # that expected answers count as


class LabelTable(NamedTuple):
    """Log-probabilities of labels, and labels that were not among the likeliest tokens, ``[m, E, L]`` each."""

    logs: Array  # NaN if unknown
    unseen: Mask

    @property
    def known(self) -> Mask:
        """Return which cells are known, ``[m, E]``."""
        return ~np.isnan(self.logs[..., 0])


class CalibrationEstimate(NamedTuple):
    """What calibration does to an ordering."""

    offsets: tuple[float, ...]  # of the labels
    before: float  # expected mean score over all examples without calibration
    after: float  # and with it


class CalibratedLabels(NamedTuple):
    """The labels that orderings answer after calibration to some shares."""

    shares: Array  # that labels are to have, [L]; NaN if answers stay as they are
    offsets: Array  # 0 on average, [m, L]
    answers: Numbers  # the likeliest labels, [m, E]; an unseen label is never the likeliest
    never_seen: Mask  # labels that were unseen in all answers, [L]

    @property
    def calibrates(self) -> bool:
        """Return whether answers change at all."""
        return not np.isnan(self.shares).any()


@dataclass(frozen=True)
class LabelResponses:
    """Access to the log-probabilities of labels, and the scores of labels.

    Attributes:
        scores: What the metric gives for each label on each example, ``[E, L]``.
        logprobs_of: Returns log-probabilities, and the numbers of unseen labels, by
            candidate and example; or None.
        shares: Shares of examples that labels are right for, ``[L]`` or ``[S, L]``;
            None for even ones.
        calibrating: Whether answers are calibrated to them.
        influence: The `ConfusionScores` of a metric over a set.
    """

    scores: Array
    logprobs_of: Callable[[Candidate, int], tuple[Sequence[float], Sequence[int]] | None]
    shares: Array | None = None
    calibrating: bool = False
    influence: Any = None

    def weights(self, known: Mask, examples: Numbers) -> Array:
        """Return the weights of scores on examples, ``[m, E]``; see `ConfusionScores.weights`."""
        if self.influence is None:
            return known.astype(np.float64)
        return np.asarray(self.influence.weights(known, examples))

    def reweighted(self, table: Array, examples: Numbers) -> Array:
        """Return scores on examples as they count, ``[m, E]``; see `ConfusionScores.reweighted`."""
        if self.influence is None:
            return table
        return np.asarray(self.influence.reweighted(table, examples))

    def table(self, rows: Mapping[Candidate, Collection[int]], examples: Numbers) -> LabelTable:
        """Return the table of candidates on their examples; the columns are all `examples`."""
        logs = np.full((len(rows), len(examples), self.scores.shape[1]), np.nan)
        unseen = np.zeros(logs.shape, dtype=bool)
        columns = {example: column for column, example in enumerate(examples.tolist())}
        for row, (candidate, own_examples) in enumerate(rows.items()):
            for example in own_examples:
                response = self.logprobs_of(candidate, example)
                if response is not None:
                    logs[row, columns[example]] = response[0]
                    unseen[row, columns[example], list(response[1])] = True
        return LabelTable(logs, unseen)


class ResponseModel:
    """Expected scores of orderings, given the log-probabilities of labels.

    Args:
        features: Of the orderings, ``[m, d]`` for each family.
        examples: The columns, ``[E]``.
        is_program: Whole programs, whose log-probabilities only serve to calibrate
            them, ``[m]``.

    Attributes:
        means, mean_variances: Expected mean scores of the orderings, and their
            variances, ``[m]``.
        num_examples: Examples that expected scores are means of.
        known: Whether log-probabilities are known, ``[m, E]``.
        always: Mean score of answering each label to all examples, ``[L]``.
    """

    def __init__(
        self,
        responses: LabelResponses,
        features: Families,
        table: LabelTable,
        examples: Numbers,
        *,
        is_outsider: Mask,
        is_program: Mask,
        call_scores: Array,
    ) -> None:
        self._responses = responses
        self._examples = examples
        self._logs = np.maximum(table.logs, MIN_LOG)
        self._unseen = table.unseen
        self.known = table.known
        self._is_outsider = is_outsider
        self._is_program = is_program
        self._call_scores = call_scores
        self._scores = responses.scores[examples]
        self.calibrating = responses.calibrating
        self.num_examples = len(examples)
        self._weights = responses.weights(np.ones((1, len(examples)), dtype=bool), examples)[0]
        self._weights = self._weights / self._weights.sum()
        self._basis = helmert(self._scores.shape[1])
        directions = self._scores @ self._basis.T
        directions = directions / np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-9)
        logs = np.where(is_program[:, None, None], np.nan, self._logs)
        self._contrasts = np.clip(logs @ self._basis.T, -MAX_CONTRAST, MAX_CONTRAST)
        self._cells = ResponseEffects(self._contrasts, directions, is_outsider=is_outsider)
        self._bias = EffectProcess(features, self._cells.label_bias, noise=self._cells.noise)
        self._slope = EffectProcess(features, self._cells.slope, noise=self._cells.noise)
        self._effects = np.concatenate([self._bias.means, self._slope.means], axis=1)
        self.means = self._mean_scores(self._effects)
        self._processes = [self._bias] * (self._effects.shape[1] - 1) + [self._slope]
        variances = np.array([process.posterior_variances for process in self._processes])
        self.mean_variances = (self._derivatives(self._effects) ** 2 * variances).sum(axis=0) * ~is_program
        self.always = np.round(self._weights @ self._scores, 6).tolist()

    def _derivatives(self, effects: Array) -> Array:
        """Return the derivatives of mean scores by the effects, ``[d + 1, m]``."""
        derivatives = []
        for step in STEP * np.eye(effects.shape[1]):
            change = self._mean_scores(effects + step) - self._mean_scores(effects - step)
            derivatives.append(change / (2.0 * STEP))
        return np.array(derivatives)

    @cached_property
    def expected(self) -> Array:
        """Return the expected scores in cells with calls, those with log-probabilities given all other cells."""
        rest = 1.0 - self._cells.leverage
        logits = np.nan_to_num(self._contrasts - self._cells.residuals / rest[..., None]) @ self._basis
        if self.calibrating:
            logits = logits + self.labels.offsets[:, None]
        left_out = self._scores_of(logits, self._cells.noise / rest)
        is_known = ~np.isnan(self._contrasts[..., 0])
        expected = np.where(is_known, left_out, self._expected_scores(self._effects))
        expected = np.where(np.isnan(self._call_scores), np.nan, expected)
        return self._responses.reweighted(expected, self._examples)

    @cached_property
    def labels(self) -> CalibratedLabels:
        """Return the labels after calibration to the shares with the best scores, the first ones among equals."""
        shares = self._responses.shares
        if shares is None:
            num_labels = self._scores.shape[1]
            shares = np.full(num_labels, 1.0 / num_labels)
        weights = self._weights / np.maximum(1, self.known.sum(axis=0))
        options = [self._calibrate(alternative) for alternative in np.atleast_2d(shares)]
        mean_scores = []
        for option in options:
            scores = np.where(self.known, self._scores[range(self.num_examples), option.answers], 0.0)
            mean_scores.append(scores.sum(axis=0) @ weights)
        return options[int(np.argmax(mean_scores))]

    def _calibrate(self, shares: Array) -> CalibratedLabels:
        """Calibrate all orderings to shares of labels ``[L]``; NaN leaves answers as they are."""
        never_seen: Mask = np.asarray(self._unseen[self.known].all(axis=0) & self.known.any())
        offsets = np.zeros_like(self._log_means)
        if not np.isnan(shares).any():
            offsets = label_offsets(self._log_means, shares, held=never_seen)
        answers = calibrated(np.nan_to_num(self._logs), offsets[:, None], unseen=self._unseen).argmax(axis=2)
        return CalibratedLabels(shares, offsets, answers, never_seen)

    @cached_property
    def _log_means(self) -> Array:
        """Return the log mean probabilities ``[m, L]``: the expected ones, corrected by the own cells."""
        counts = self.known.sum(axis=1)[:, None]
        expected = np.log(_probable(*self._logits(self._effects)))
        own = np.where(self.known[..., None], log_softmax(np.nan_to_num(self._logs), axis=-1), expected)
        weights = np.broadcast_to(self._weights, self.known.shape)
        own_weights = np.where(counts > 0, self._responses.weights(self.known, self._examples), weights)
        correction = log_mean(own, own_weights) - log_mean(expected, own_weights)
        return np.asarray(log_mean(expected, weights) + counts / (counts + PRIOR_CELLS) * correction)

    def _logits(self, effects: Array) -> tuple[Array, Array]:
        """Return mean logits ``[m, E, L]`` under effects, and variances of contrasts ``[E]``."""
        # z = a + b + q g
        means = self._cells.examples + effects[:, None, :-1] + effects[:, -1:, None] * self._cells.directions
        return means @ self._basis, self._cells.noise + self._cells.example_variances

    def _scores_of(self, logits: Array, variances: Array) -> Array:
        """Return expected scores ``[m, E]`` of the likeliest label, by the logistic approximation of the normal."""
        chances = softmax(logits * (np.pi / np.sqrt(6.0 * variances))[..., None], axis=-1)
        return np.asarray(np.einsum("mel,el->me", chances, self._scores))

    def _expected_scores(self, effects: Array, bias_variance: float = 0.0) -> Array:
        """Return expected scores ``[m, E]`` under effects, whose label bias has a variance."""
        logits, variances = self._logits(effects)
        if self.calibrating and self.labels.calibrates:
            # Calibration removes a label bias, and with it the doubt about it.
            log_means = np.log(self._weights @ _probable(logits, variances))
            logits = logits + label_offsets(log_means, self.labels.shares, held=self.labels.never_seen)[:, None]
        else:
            variances = variances + bias_variance
        return self._scores_of(logits, variances)

    def _mean_scores(self, effects: Array, bias_variance: float = 0.0) -> Array:
        """Return expected mean scores under effects, ``[m]``."""
        return np.asarray(self._expected_scores(effects, bias_variance) @ self._weights)

    def predict(self, features: Families) -> Array:
        """Return expected mean scores of other orderings, ``[c]``."""
        # The label bias has the mean variance of the fitted orderings.
        return self._mean_scores(self._predict_effects(features), float(self._bias.posterior_variances.mean()))

    def predict_variances(self, features: Families) -> Array:
        """Return the variances of their mean scores, ``[c]``."""
        variances = np.array([process.predict_variances(features) for process in self._processes])
        derivatives = self._derivatives(self._predict_effects(features))
        return np.asarray((derivatives**2 * variances).sum(axis=0))

    def _predict_effects(self, features: Families) -> Array:
        return np.concatenate([self._bias.predict(features), self._slope.predict(features)], axis=1)

    @cached_property
    def calibrated_scores(self) -> Array:
        """Return the scores of calls ``[m, E]``, of calibrated answers if log-probabilities are known."""
        scores = self._scores[range(self.num_examples), self.labels.answers]
        scores = np.where(np.isnan(self._call_scores), np.nan, scores)
        return np.where(self.known, self._responses.reweighted(scores, self._examples), self._call_scores)

    def calibration(self, number: int) -> CalibrationEstimate:
        """Return what calibration does to an ordering."""
        offsets = tuple(np.round(self.labels.offsets[number], 6).tolist())
        before, after = (self._before_and_after(number) @ self._weights).tolist()
        if self._is_program[number]:
            before, gain, _ = self.corrected(number)
            before, after = np.clip([before, before + gain], self._scores.min(), self._scores.max()).tolist()
        return CalibrationEstimate(offsets, before, after)

    def corrected(self, number: int) -> tuple[float, float, Array]:
        """Return an ordering's score as it is, the gain of calibration, and its errors on own calls, ``[n]``.

        Expectations are corrected by the own scores, so they hold for unread replies too.
        """
        call_scores = self._call_scores[number]
        is_own = ~np.isnan(call_scores)
        both = self._before_and_after(number)
        before, after = both @ self._weights
        own_before, own_after = self._responses.reweighted(both[:, is_own], self._examples[is_own])
        differences = (self.calibrated_scores[number] - call_scores)[is_own] - (own_after - own_before)
        score = float(before + (call_scores[is_own] - own_before).mean())
        return score, float(after - before + differences.mean()), differences

    def _before_and_after(self, number: int) -> Array:
        """Return expected scores of an ordering as it is and calibrated, ``[2, E]``."""
        # Its own cells count by its effects alone, because an ordering is chosen for cells that are too good.
        logits, variances = self._logits(self._effects[[number]])
        return self._scores_of(np.concatenate([logits, logits + self.labels.offsets[number]]), variances)

    def gains(self, reference: int) -> Gains:
        """Return the gains of the fitted orderings over one of them on new examples."""
        is_measured = ~self._is_program & (self._cells.num_cells > 0)
        return independent_gains(
            self.means,
            self._example_errors() + self._effect_errors(is_measured),
            outsiders=np.where(self._is_outsider & is_measured, OUTSIDER_SCORE, 0.0),
            reference=reference,
            num_examples=self.num_examples,
        )

    def _example_errors(self) -> Array:
        """Return the covariance ``[m, m]`` of errors because the examples are a sample."""
        expected = self._expected_scores(self._effects)
        kinds = np.unique(self._scores, axis=0, return_inverse=True)[1].ravel()
        of_kind = np.eye(kinds.max() + 1)[kinds]
        means = expected @ of_kind / of_kind.sum(axis=0)
        centred = expected - means @ of_kind.T
        share_free = max(1, self.num_examples - of_kind.shape[1]) / self.num_examples
        return np.asarray((centred * self._weights**2) @ centred.T / share_free)

    def _effect_errors(self, is_measured: Mask) -> Array:
        """Return the covariance ``[m, m]`` of errors because effects are measured on some examples."""
        errors = np.zeros((len(is_measured), len(is_measured)))
        for process, derivatives in zip(self._processes, self._derivatives(self._effects) * is_measured, strict=True):
            errors += UNDERSTATED * np.outer(derivatives, derivatives) * process.sampling_errors()
        return errors


def _probable(logits: Array, variances: Array) -> Array:
    """Return mean probabilities of labels under normal noise, by the probit approximation (MacKay, 1992)."""
    return np.asarray(softmax(logits / np.sqrt(1.0 + np.pi / 4.0 * variances)[..., None], axis=-1))
