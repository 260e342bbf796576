"""Expected scores of orderings, given the log-probabilities of labels.

    symbol  code          shape      meaning
    m, E                             orderings, examples
    L                                labels
    S                                alternatives for the shares of labels among right answers
    p       logs          [m, E, L]  log-probabilities of labels, NaN if unknown
    z       contrasts     [m, E, d]  p B^T, d = L - 1, see effects
    B       basis         [d, L]     orthonormal contrasts
    b, q    effects       [m, d+1]   label bias and slope of orderings, see effects
    y       call_scores   [m, E]     scores of calls, NaN if unknown
    M       scores        [E, L]     score of each label on each example
    w       mean_weights  [n]        weights of the examples that expected scores are means of

The effects say which label an ordering would answer on each example, and the metric what that label scores.
Whole programs have no effects: their prompts differ by example. They are expected to score as a mean ordering.
"Unread" replies have a score, but no label.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import helmert
from scipy.special import log_softmax

from plr_dspy.search.model.components import Variances, kernels_of, linear
from plr_dspy.search.model.effects import NUM_QUICK_SWEEPS, NUM_SWEEPS, EffectProcess, Posterior, ResponseEffects
from plr_dspy.search.model.gains import Families, Gains, independent_gains
from plr_dspy.search.model.process import AdditiveProcess, covariance_of_means
from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.arrays import Array, Mask, Numbers
from plr_dspy.statistics.calibration import calibrated, label_offsets, log_mean

MAX_EXAMPLES = 128  # that expected scores are means of
MIN_LOG = -1e3  # servers write -9999 or nothing for a probability of 0
MAX_CONTRAST = 8.0  # how unlikely an impossible label is says little
NUM_DRAWS = 8  # of the effects of an ordering, for the variance of its expected score; an even number
UNDERSTATED = 1.6  # error variances of effects over those of the fit, in simulations
STEP = 0.05  # of an effect, for numerical derivatives
OUTSIDER_SCORE = np.float64(0.25)  # variance of the mean score of a candidate without features
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
    """What calibration does to an ordering; unread replies count by their share of its own calls."""

    offsets: tuple[float, ...]  # of the labels
    before: float  # expected mean score over all examples without calibration
    after: float  # and with it


class CalibratedLabels(NamedTuple):
    """The labels that orderings answer after calibration to some shares."""

    shares: Array  # that labels are to have, [L]; NaN if answers stay as they are
    offsets: Array  # 0 on average, [m, L]
    answers: Numbers  # the likeliest labels, [m, E]; an unseen label is never the likeliest
    known: Mask  # whether answers are known, [m, E]
    never_seen: Mask  # labels that were unseen in all answers, [L]
    calibrates: bool


def softmax(logits: Array) -> Array:
    """Return the softmax over the last axis, ``[..., L]``, in a third of scipy's time for short rows."""
    by_label = np.moveaxis(logits, -1, 0).copy()
    odds = np.exp(by_label - by_label.max(axis=0))
    return np.moveaxis(odds / odds.sum(axis=0), 0, -1)


def probable(logits: Array, variances: Array) -> Array:
    """Return mean probabilities of labels under normal noise, by the probit approximation (MacKay, 1992)."""
    return softmax(logits / np.sqrt(1.0 + np.pi / 4.0 * variances)[..., None])


@dataclass(frozen=True)
class LabelResponses:
    """Access to the log-probabilities of labels, and the scores of labels.

    Attributes:
        scores: What the metric gives for each label on each example, ``[E, L]``.
        logprobs_of: Returns log-probabilities, and the numbers of unseen labels, by candidate and example; or None.
        shares: Shares of examples that labels are right for, ``[L]`` or ``[S, L]``; None for even ones.
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
        for row, (candidate, own_examples) in enumerate(rows.items()):
            for column, example in enumerate(examples.tolist()):
                response = self.logprobs_of(candidate, example) if example in own_examples else None
                if response is not None:
                    logs[row, column] = response[0]
                    unseen[row, column, list(response[1])] = True
        return LabelTable(logs, unseen)


class UnreadReplies:
    """The mean score of unread replies, and the share of read ones of each ordering.

    Orderings may differ in that by far more than in the labels, so it has a process of its own.

    Attributes:
        mean_score: Of unread replies.
        shares, variances: Posterior of the shares of read replies, ``[m]``.
        state: Variances of the process, as JSON data.
    """

    def __init__(
        self, call_scores: Array, read: Mask, features: Families | None, is_outsider: Mask, earlier: Variances
    ) -> None:
        self.mean_score = 0.0
        self.shares = np.ones(len(read))
        self.variances = np.zeros(len(read))
        self.process: AdditiveProcess | None = None
        self.state: list[float] = []
        is_called = ~np.isnan(call_scores)
        is_unread = is_called & ~read
        if not is_unread.any():
            return
        self.mean_score = float(call_scores[is_unread].mean())
        table = ScoreTable(np.where(is_called, read, np.nan))
        shares = table.scores[table.known].mean() + table.shrunk_means
        if features is not None:
            self.process = AdditiveProcess(features, table, is_outsider=is_outsider, earlier={"variances": earlier})
            shares = self.process.mean
            self.variances = self.process.variances
            self.state = self.process.state["variances"]
        self.shares = np.clip(shares, 0.0, 1.0)

    def predict(self, features: Families) -> Array:
        """Return the expected shares of other orderings, ``[c]``."""
        shares = 1.0 if self.process is None else self.process.predict(features)
        return np.clip(shares, 0.0, 1.0)

    def mixed(self, scores: Array, shares: Array) -> Array:
        """Return expected scores of all replies, given those of read ones and their shares."""
        return np.asarray(self.mean_score + shares * (scores - self.mean_score))


class ResponseModel:
    """Expected scores of orderings, given the log-probabilities of labels.

    Args:
        examples: The columns, ``[E]``.
        is_outsider: As in `AdditiveProcess`.
        is_program: Whole programs, whose log-probabilities only serve to calibrate them, ``[m]``.
        features: None takes effects as measured, which is quick and cannot predict.
        earlier: `state` of the fit before.

    Attributes:
        means, mean_variances: Expected mean scores of the orderings, and their variances, ``[m]``.
        expected: Expected scores in cells with calls, ``[m, E]``.
        state: Variances of the processes of effects and of unread replies, as JSON data.
        num_examples: Examples that expected scores are means of.
        always: Mean score of answering each label to all examples, ``[L]``.
    """

    def __init__(
        self,
        responses: LabelResponses,
        examples: Numbers,
        table: LabelTable,
        *,
        is_outsider: Mask,
        is_program: Mask,
        call_scores: Array,
        features: Families | None = None,
        earlier: Sequence[Sequence[float]] | None = None,
    ) -> None:
        self._responses = responses
        self._examples = examples
        self._table = LabelTable(np.maximum(table.logs, MIN_LOG), table.unseen)
        self._is_outsider = is_outsider
        self._is_program = is_program
        self._call_scores = call_scores
        self._scores = responses.scores[examples]
        self.calibrating = responses.calibrating
        self._draws_answers = False
        if responses.influence is None:
            of_orderings = ~is_program
            self._draws_answers = _are_drawn(call_scores[of_orderings], table.logs[of_orderings], self._scores)
        bias_variances, slope_variances, unread_variances = earlier or (None, None, None)
        self._unread = UnreadReplies(call_scores, table.known, features, is_outsider, unread_variances)
        self._choose_examples()
        self._fit_effects(features, [bias_variances, slope_variances])
        self._all = np.arange(len(examples))
        all_weights = self._weights_of(self._all)
        expected = self._expected_scores(self._effects, self._all, all_weights)
        self._label_scores: Array = np.asarray(expected[:, self._mean_examples] @ self._mean_weights)
        self.means = self._unread.mixed(self._label_scores, self._unread.shares)
        self.always = np.round(all_weights @ self._scores, 6).tolist()
        if features is not None:
            self._predict_calls(expected)

    def _choose_examples(self) -> None:
        """Choose the examples that expected scores are means of: those seen, or some of very many, evenly spread."""
        seen = np.flatnonzero(self._table.known.any(axis=0))
        count = min(len(seen), MAX_EXAMPLES)
        places = np.linspace(0, len(seen) - 1, count).round().astype(np.int64)
        self._mean_examples = seen[places]
        self._mean_weights = self._weights_of(self._mean_examples)
        self.num_examples = count

    def _fit_effects(self, features: Families | None, earlier: Sequence[Variances]) -> None:
        """Fit the effects of orderings and examples, then the processes of those of orderings."""
        self._basis = helmert(self._scores.shape[1])
        directions = self._scores @ self._basis.T
        lengths = np.sqrt((directions**2).sum(axis=1, keepdims=True))
        self._directions = np.where(lengths > 1e-9, directions / np.maximum(lengths, 1e-9), 0.0)
        logs = np.where(self._is_program[:, None, None], np.nan, self._table.logs)
        self._contrasts = np.clip(logs @ self._basis.T, -MAX_CONTRAST, MAX_CONTRAST)
        num_sweeps = NUM_QUICK_SWEEPS if features is None else NUM_SWEEPS
        self._cells = ResponseEffects(
            self._contrasts, self._directions, is_outsider=self._is_outsider, num_sweeps=num_sweeps
        )
        measured = [self._cells.label_bias, self._cells.slope]
        posteriors: Sequence[Posterior | EffectProcess] = measured
        if features is not None:
            self._features = features
            self._kernels = kernels_of(features)
            self._processes = []
            for posterior, variances in zip(measured, earlier, strict=True):
                process = EffectProcess(features, self._kernels, posterior, unit=self._cells.noise, earlier=variances)
                self._processes.append(process)
            self.state = [process.fit.variances.tolist() for process in self._processes]
            self.state.append(self._unread.state)
            posteriors = self._processes
        self._effects = np.concatenate([posterior.means for posterior in posteriors], axis=1)
        self._variances = np.stack([posterior.variances for posterior in posteriors], axis=1)

    def _predict_calls(self, expected: Array) -> None:
        """Set the variances of mean scores, and the scores that were expected of the calls."""
        unread = self._unread
        draws = self._draw(self._effects, self._variances)
        by_effects = draws.var(axis=0, ddof=1) * ~self._is_program
        by_shares = (self._label_scores - unread.mean_score) ** 2 * unread.variances
        self.mean_variances = unread.shares**2 * by_effects + by_shares
        is_known = ~np.isnan(self._contrasts[..., 0])
        of_labels = np.where(is_known, self._leave_one_out_scores(), expected)
        of_calls = unread.mixed(of_labels, unread.shares[:, None])
        of_calls = np.where(np.isnan(self._call_scores), np.nan, of_calls)
        self.expected = self._responses.reweighted(of_calls, self._examples)

    @cached_property
    def labels(self) -> CalibratedLabels:
        """Return the labels after calibration to the shares with the clearly best scores, else to the first ones."""
        shares = self._responses.shares
        if shares is None:
            num_labels = self._scores.shape[1]
            shares = np.full(num_labels, 1.0 / num_labels)
        options = [self._calibrate(alternative) for alternative in np.atleast_2d(shares)]
        known = self._table.known
        is_seen = np.asarray(known.any(axis=0))
        rows = np.arange(len(self._scores))
        tables = np.array([np.where(known, self._scores[rows, option.answers], 0.0) for option in options])
        means = (tables.sum(axis=1) / np.maximum(1, known.sum(axis=0)))[:, is_seen]
        weights = self._responses.weights(is_seen[None], self._examples)[0, is_seen]
        weights = weights / weights.sum()
        gains = means - means[0]
        mean_gains = gains @ weights
        min_gains = np.zeros(len(options))
        # Scores of a few rare examples differ far too much for a gain to be clear, and it is the larger for it.
        # So uncalibrated answers, if they come first, are replaced by any better ones.
        if options[0].calibrates:
            min_gains = np.sqrt((gains - mean_gains[:, None]) ** 2 @ weights**2)
        best = int(np.where(mean_gains > min_gains, mean_gains, 0.0).argmax())
        return options[best]

    def _calibrate(self, shares: Array) -> CalibratedLabels:
        """Calibrate all orderings to shares of labels ``[L]``; NaN leaves answers as they are."""
        known = self._table.known
        logs = np.where(known[..., None], self._table.logs, 0.0)
        unseen = self._table.unseen
        never_seen: Mask = np.asarray(unseen[known].all(axis=0) & known.any())
        log_means, own_shares, shrinkage = self._log_means
        # Whole programs have no effects, so their own cells and the shares decide.
        of_programs = np.log(np.maximum(shrinkage * own_shares + (1 - shrinkage) * shares, 1e-300))
        log_means = np.where(self._is_program[:, None], of_programs, log_means)
        calibrates = not np.isnan(shares).any()
        offsets = np.zeros_like(log_means)
        if calibrates:
            offsets = label_offsets(log_means, shares, held=never_seen)
        answers = calibrated(logs, offsets[:, None], unseen=unseen).argmax(axis=2)
        return CalibratedLabels(shares, offsets, answers, known, never_seen, calibrates)

    @cached_property
    def _log_means(self) -> tuple[Array, Array, Array]:
        """Return log mean probabilities ``[m, L]``, means over own cells ``[m, L]``, and their shrinkage ``[m, 1]``.

        The mean over all examples is the expected one, corrected by what the own cells differ from expectation.
        """
        known = self._table.known
        logs = np.where(known[..., None], self._table.logs, 0.0)
        counts = known.sum(axis=1)[:, None]
        logits, variances = self._logits(self._effects, self._all)
        expected = np.log(probable(logits, variances))
        filled = np.where(known[..., None], log_softmax(logs, axis=-1), expected)
        all_weights = self._responses.weights(np.ones((1, len(self._all)), dtype=bool), self._examples)
        own_weights = np.where(counts > 0, self._responses.weights(known, self._examples), all_weights)
        own = log_mean(filled, own_weights)
        shrinkage = counts / (counts + PRIOR_CELLS)
        correction = own - log_mean(expected, own_weights)
        return log_mean(expected, all_weights) + shrinkage * correction, softmax(own), shrinkage

    def _leave_one_out_scores(self) -> Array:
        """Return expected scores in the known cells, each given all other cells, ``[m, E]``."""
        rest = 1.0 - self._cells.leverage
        logits = np.nan_to_num(self._contrasts - self._cells.residuals / rest[..., None]) @ self._basis
        if self.calibrating:
            logits = logits + self.labels.offsets[:, None]
        return self._scores_of(logits, self._cells.noise / rest, self._scores, calibrated=self.calibrating)

    def _weights_of(self, examples: Numbers) -> Array:
        """Return the weights of these examples in a mean, ``[n]``."""
        every = np.ones((1, len(examples)), dtype=bool)
        weights = self._responses.weights(every, self._examples[examples])[0]
        return np.asarray(weights / weights.sum())

    def _logits(self, effects: Array, examples: Numbers) -> tuple[Array, Array]:
        """Return mean logits ``[m, n, L]`` under effects, and variances of contrasts ``[n]``."""
        label_bias = effects[:, None, :-1]
        slopes = effects[:, -1:, None]
        means = self._cells.examples[examples] + label_bias
        means += slopes * self._directions[examples]
        return means @ self._basis, self._cells.noise + self._cells.example_variances[examples]

    def _scores_of(self, logits: Array, variances: Array, scores: Array, *, calibrated: bool = False) -> Array:
        """Return expected scores ``[m, n]`` of the likeliest label, by the logistic approximation of the normal.

        If answers are drawn and not calibrated, labels have their own probabilities.
        """
        if self._draws_answers and not calibrated:
            chances = probable(logits, variances)
        else:
            chances = softmax(logits * (np.pi / np.sqrt(6.0 * variances))[..., None])
        return np.asarray(np.einsum("mel,el->me", chances, scores))

    def _expected_scores(
        self, effects: Array, examples: Numbers, weights: Array, extra_variances: Array | float = 0.0
    ) -> Array:
        """Return expected scores ``[m, n]`` under effects, whose label bias has further variances ``[m]``."""
        logits, variances = self._logits(effects, examples)
        if self.calibrating and self.labels.calibrates:
            # Calibration removes a label bias, and with it the doubt about it.
            log_means = np.log(weights @ probable(logits, variances))
            labels = self.labels
            logits = logits + label_offsets(log_means, labels.shares, held=labels.never_seen)[:, None]
        else:
            variances = variances + np.reshape(extra_variances, (-1, 1))
        return self._scores_of(logits, variances, self._scores[examples], calibrated=self.calibrating)

    def _mean_scores(self, effects: Array, extra_variances: Array | float = 0.0) -> Array:
        """Return expected mean scores under effects, ``[m]``."""
        expected = self._expected_scores(effects, self._mean_examples, self._mean_weights, extra_variances)
        return np.asarray(expected @ self._mean_weights)

    def _draw(self, effects: Array, variances: Array) -> Array:
        """Return expected mean scores ``[draws, m]`` under draws of effects, the same ones for all orderings.

        Args:
            effects: Their means, ``[m, d + 1]``.
            variances: Those of the label bias and of the slope, ``[m, 2]``.
        """
        half = np.random.default_rng(0).normal(size=(NUM_DRAWS // 2, effects.shape[1]))
        num_contrasts = effects.shape[1] - 1
        deviations = np.sqrt(variances).repeat([num_contrasts, 1], axis=1)
        return np.stack([self._mean_scores(effects + deviations * draw) for draw in (*half, *-half)])

    def predict(self, features: Families) -> tuple[Array, Array]:
        """Return expected mean scores of other orderings, and their variances, ``[c]`` each."""
        products = [other @ fitted.T for other, fitted in zip(features, self._features, strict=True)]
        squares = np.stack([(other**2).sum(axis=1) for other in features], axis=1)
        bias, bias_variances = self._processes[0].predict(products, squares)
        slopes, slope_variances = self._processes[1].predict(products, squares)
        effects = np.concatenate([bias, slopes], axis=1)
        draws = self._draw(effects, np.stack([bias_variances, slope_variances], axis=1))
        means = draws.mean(axis=0)
        shares = self._unread.predict(features)
        by_shares = (means - self._unread.mean_score) ** 2 * self._unread.variances.mean()
        variances = shares**2 * draws.var(axis=0, ddof=1) + by_shares
        return self._unread.mixed(means, shares), variances

    def predict_means(self, features: Families) -> Array:
        """Return about the means of `predict` in less time, ``[c]``."""
        effects = [linear(features, process.fit.weights) + process.level for process in self._processes]
        # The label bias has the mean variance of the fitted orderings.
        means = self._mean_scores(np.concatenate(effects, axis=1), self._variances[:, 0].mean())
        return self._unread.mixed(means, self._unread.predict(features))

    @cached_property
    def calibrated_scores(self) -> Array:
        """Return the scores of calls ``[m, E]``, of calibrated answers if log-probabilities are known."""
        scores = self._scores[self._all, self.labels.answers]
        of_calls = np.where(np.isnan(self._call_scores), np.nan, scores)
        of_calls = self._responses.reweighted(of_calls, self._examples)
        return np.where(self.labels.known, of_calls, self._call_scores)

    def _expected_of(self, number: int, examples: Numbers) -> Array:
        """Return expected scores of an ordering as it is and calibrated, ``[2, n]``."""
        # Its own cells count by its effects alone, because an ordering is chosen for cells that are too good.
        logits, variances = self._logits(self._effects[[number]], examples)
        scores = self._scores[examples]
        before = self._scores_of(logits, variances, scores)
        after = self._scores_of(logits + self.labels.offsets[number], variances, scores, calibrated=True)
        return np.concatenate([before, after])

    def calibration(self, number: int) -> CalibrationEstimate:
        """Return what calibration does to an ordering."""
        offsets = tuple(np.round(self.labels.offsets[number], 6).tolist())
        if self._is_program[number]:
            before, gain, _ = self.corrected(number)
            before, after = np.clip([before, before + gain], self._scores.min(), self._scores.max()).tolist()
            return CalibrationEstimate(offsets, before, after)
        before, after = (self._expected_of(number, self._mean_examples) @ self._mean_weights).tolist()
        is_called = ~np.isnan(self._call_scores[number])
        is_unread = is_called & ~self._table.known[number]
        if is_unread.any():
            share = is_unread.sum() / is_called.sum()
            mean_score = self._call_scores[number, is_unread].mean()
            before = float((1 - share) * before + share * mean_score)
            if self.calibrating:  # Otherwise nobody knows which of them calibration could read.
                after = float((1 - share) * after + share * mean_score)
        return CalibrationEstimate(offsets, before, after)

    def corrected(self, number: int) -> tuple[float, float, Array]:
        """Return an ordering's score as it is, the gain of calibration, and its errors on own calls, ``[n]``.

        Expectations are corrected by the own scores, so they hold for unread replies too.
        """
        call_scores = self._call_scores[number]
        own = np.flatnonzero(~np.isnan(call_scores))
        before, after = self._expected_of(number, self._mean_examples) @ self._mean_weights
        own_before, own_after = self._responses.reweighted(self._expected_of(number, own), self._examples[own])
        differences = (self.calibrated_scores[number] - call_scores)[own] - (own_after - own_before)
        score = float(before + (call_scores[own] - own_before).mean())
        return score, float(after - before + differences.mean()), differences

    def gains(self, reference: int) -> Gains | None:
        """Return the gains of the fitted orderings over one of them on new examples; None if nothing differs.

        They come from the labels of read replies, and from the share of these.
        """
        by_shares = None
        if self._unread.process is not None:
            by_shares = self._unread.process.gains(reference).condensed()
            by_shares = by_shares.times(float(self._label_scores[reference]) - self._unread.mean_score)
        # Candidates without log-probabilities are expected to score as a mean ordering, so one stands for all.
        is_mute = self._is_program | (self._cells.num_cells <= 0)
        first_mute = int(is_mute.argmax())
        chosen = ~is_mute
        chosen[first_mute] = True
        if chosen.sum() < 2:
            return by_shares
        representatives = np.where(is_mute, first_mute, np.arange(len(is_mute)))
        columns = (np.cumsum(chosen) - 1)[representatives]
        gains = independent_gains(
            self._label_scores[chosen],
            self._example_errors(chosen) + self._effect_errors(chosen, is_mute),
            outsiders=OUTSIDER_SCORE * (self._is_outsider & ~is_mute)[chosen],
            reference=int(columns[reference]),
            num_examples=self.num_examples,
        )
        gains = Gains(
            gains.probabilities, gains.means[:, columns], gains.variances[:, columns], gains.possible[:, columns]
        )
        by_labels = gains.times(self._unread.shares)
        if by_shares is None:
            return by_labels
        return by_labels.plus(by_shares)

    def _example_errors(self, chosen: Mask) -> Array:
        """Return the covariance ``[c, c]`` of errors of mean scores, because the examples are a sample."""
        examples = self._mean_examples
        expected = self._expected_scores(self._effects[chosen], examples, self._mean_weights)
        kinds = np.unique(self._scores[examples], axis=0, return_inverse=True)[1].ravel()
        of_kind = np.eye(kinds.max() + 1)[kinds]
        means = expected @ of_kind / of_kind.sum(axis=0)
        centred = expected - means @ of_kind.T
        share_free = max(1, len(examples) - of_kind.shape[1]) / len(examples)
        return np.asarray((centred * self._mean_weights**2) @ centred.T / share_free)

    def _effect_errors(self, chosen: Mask, is_mute: Mask) -> Array:
        """Return the covariance ``[c, c]`` of errors of mean scores, because effects are measured on some examples."""
        measured = chosen & ~is_mute
        places = np.flatnonzero(~is_mute[chosen])
        contrasts = self._contrasts[measured]
        contrasts = contrasts[:, ~np.isnan(contrasts[..., 0]).all(axis=0)]
        kernels = [kernel[np.ix_(measured, measured)] for kernel in self._kernels]
        tables = [ScoreTable(column) for column in np.moveaxis(contrasts, 2, 0)]
        alike = np.mean([covariance_of_means(kernels, table) for table in tables], axis=0)
        effects = self._effects[chosen]
        num_effects = effects.shape[1]
        errors = np.zeros((len(effects), len(effects)))
        for number, step in enumerate(STEP * np.eye(num_effects)):
            is_slope = number == num_effects - 1
            process = self._processes[int(is_slope)]
            change = self._mean_scores(effects + step) - self._mean_scores(effects - step)
            derivative = change[places] / (2.0 * STEP)
            of_effect = np.outer(derivative, derivative) * process.errors(alike, measured)
            errors[np.ix_(places, places)] += UNDERSTATED * of_effect
        return errors


def _are_drawn(call_scores: Array, logs: Array, scores: Array) -> bool:
    """Tell whether answers are drawn by their probabilities, as at a temperature of 1, or the likeliest ones.

    Args:
        call_scores: ``[m, E]``.
        logs: Log-probabilities of labels, ``[m, E, L]``.
        scores: Of labels, ``[E, L]``.
    """
    known = ~np.isnan(logs[..., 0]) & ~np.isnan(call_scores)
    of_labels = scores[np.nonzero(known)[1]]
    chances = softmax(np.maximum(logs[known], MIN_LOG))
    likeliest = np.take_along_axis(of_labels, chances.argmax(axis=1)[:, None], axis=1)[:, 0]
    num_agreeing = np.isclose(call_scores[known], likeliest).sum()
    # As many agree if all answers are the likeliest labels, or if all are drawn.
    num_if_likeliest = len(of_labels)
    num_if_drawn = (chances * np.isclose(of_labels, likeliest[:, None])).sum()
    return bool(2 * num_agreeing < num_if_likeliest + num_if_drawn)
