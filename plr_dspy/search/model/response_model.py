"""Expected scores of orderings, given the log-probabilities of labels.

    s[o, e]  =  sum_l P[o, e, l] M[e, l]          (4)

The probability P of a label is calculated from the effects of the ordering and the example. The
label's score M comes from the metric. No effects are fitted for whole programs, so a whole program
is expected to score like an average ordering. A reply is "unread" if it has a score but no
log-probabilities of labels. "Read scores" are the expected scores of all other replies.
"""

import math

import numpy as np

from plr_dspy.search.model.answers import Answers, ExampleWeights
from plr_dspy.search.model.gains import Families, Gains, class_share_errors, independent_gains
from plr_dspy.search.model.logits import LabelLogits, softmax
from plr_dspy.search.model.responses import Calls, LabelResponses
from plr_dspy.search.model.unread import UnreadReplies
from plr_dspy.statistics.arrays import Array, Numbers

UNDERSTATED = 1.6  # factor by which fits underestimate the effects' error variances, found by simulation
STEP = 0.05  # step size for numerical derivatives with respect to an effect
# Additional prior variance of an outsider's mean score, relative to the squared range of scores.
OUTSIDER_SCORE = np.float64(0.04)
MIN_VARIANCE = 0.02  # minimum variance of a score, relative to the squared range of scores


class ResponseModel:
    """Expected scores of orderings, given the log-probabilities of labels.

    Attributes:
        answers: The answers to score, original or calibrated.
        means, mean_variances: Expected mean scores of the orderings, and their variances,
            ``[m]``.
        expected: Expected scores of the calls, ``[m, E]``.
        information_weights: How informative the difference between a score and its expectation
            is, for each ordering, ``[m]``. All weights are 1 for a metric over a set.
        is_mute_outsider: A mask of the outsiders without usable log-probabilities, ``[m]``.
        num_examples: Number of examples over which expected scores are averaged.
    """

    def __init__(self, responses: LabelResponses, calls: Calls, features: Families) -> None:
        self._calls = calls
        self.labels = calls.labels
        self._unread = UnreadReplies(calls, features)
        self._logits = LabelLogits(calls, features)
        is_seen = np.asarray(calls.labels.known.any(axis=0))
        self.is_mute_outsider = calls.is_outsider & self._logits.is_mute
        self._weights = ExampleWeights(responses.set_weights, calls.scored.examples, is_seen)
        self.answers = Answers(
            calls,
            self._logits,
            self._weights,
            shares=responses.shares,
            are_drawn=responses.set_weights is None and _are_drawn(calls),
            are_calibrated=responses.are_calibrated,
        )
        self.num_examples = len(self._weights.columns)
        every_example = np.arange(len(calls.scored.examples))
        read_scores = self.answers.expected_scores(self._logits.effects, every_example, self._weights.all)
        self._read_means: Array = np.asarray(
            read_scores[:, self._weights.columns] @ self._weights.of_columns
        )
        self.means = self._unread.mixed(self._read_means, self._unread.shares)
        self.mean_variances = self._variances_of_means()
        self.expected = self._expected_of_calls(read_scores)
        self.information_weights = np.ones(len(calls.is_program))
        if responses.set_weights is None:
            self.information_weights = self._information_weights()

    def _variances_of_means(self) -> Array:
        """Return the variances of expected mean scores, ``[m]``."""
        unread = self._unread
        draws = self._draw(self._logits.effects, self._logits.effect_variances)
        by_effects = draws.var(axis=0) * ~self._calls.is_program
        by_shares = (self._read_means - unread.mean_score) ** 2 * unread.variances
        return np.asarray(unread.shares**2 * by_effects + by_shares)

    def _expected_of_calls(self, read_scores: Array) -> Array:
        """Return each call's expected score, predicted without its own log-probabilities, ``[m, E]``."""
        read_scores = np.where(self._logits.known, self.answers.expected_scores_of_calls(), read_scores)
        of_calls = self._unread.mixed(read_scores, self._unread.shares[:, None])
        return self._weights.reweighted(np.where(self._calls.scored.known, of_calls, np.nan))

    def _information_weights(self) -> Array:
        """Return the information weights of all orderings, ``[m]``.

        Scores vary less if their expectation is near the lowest or highest score. An outsider's
        scores may vary much more or much less than those of other orderings. So the weight of an
        outsider with usable log-probabilities is inversely proportional to the mean variance of its
        scores. All other weights are 1.
        """
        lowest = self.labels.scores.min()
        expected = np.clip((self.expected - lowest) / self.labels.unit, 0.0, 1.0)
        variances = np.maximum(expected * (1.0 - expected), MIN_VARIANCE)
        is_explained = self._calls.is_outsider & ~self.is_mute_outsider
        weights = np.ones(len(variances))
        weights[is_explained] = np.nanmean(variances) / np.nanmean(variances[is_explained], axis=1)
        return weights

    def _mean_scores(self, effects: Array, bias_variances: Array | float = 0.0) -> Array:
        """Return the expected mean scores of read replies, given the orderings' effects, ``[m]``."""
        weights = self._weights.of_columns
        read_scores = self.answers.expected_scores(effects, self._weights.columns, weights, bias_variances)
        return np.asarray(read_scores @ weights)

    def _draw(self, effects: Array, variances: Array) -> Array:
        """Return expected mean scores ``[points, m]`` of read replies at the sigma points of the effects.

        At each point, one effect is shifted by the same number of standard deviations in all orderings.
        The points have the mean and the variances of the effects (S. Julier and J. Uhlmann, 1997).
        """
        num_effects = effects.shape[1]
        deviations = np.sqrt(variances).repeat([num_effects - 1, 1], axis=1)
        shifts = math.sqrt(num_effects) * np.eye(num_effects)
        return np.stack([self._mean_scores(effects + deviations * shift) for shift in (*shifts, *-shifts)])

    def predict(self, features: Families) -> tuple[Array, Array]:
        """Return the expected mean scores of new orderings, ``[c]``, and their variances, ``[c]``."""
        unread = self._unread
        draws = self._draw(*self._logits.predict(features))
        read_means = draws.mean(axis=0)
        shares = unread.predict(features)
        by_shares = (read_means - unread.mean_score) ** 2 * unread.variances.mean()
        variances = shares**2 * draws.var(axis=0) + by_shares
        return unread.mixed(read_means, shares), variances

    def predict_means(self, features: Families) -> Array:
        """Return the expected mean scores of new orderings, ``[c]``.

        This method is faster but less exact than `predict()`.
        """
        # Variances of the label bias take long to compute for new orderings, so use the mean over
        # the fitted orderings.
        bias_variance = self._logits.effect_variances[:, 0].mean()
        read_means = self._mean_scores(self._logits.predict_effects(features), bias_variance)
        return self._unread.mixed(read_means, self._unread.predict(features))

    def gains(self, reference: int) -> Gains | None:
        """Return the gains over a reference on new examples, or None if orderings do not differ in the model.

        Orderings may differ in the labels of read replies or in the share of read replies.
        """
        share_gains = None
        if self._unread.process is not None:
            share_gains = self._unread.process.gains(reference).condensed()
            share_gains = share_gains.times(float(self._read_means[reference]) - self._unread.mean_score)
        # Compute the gain of only one candidate without usable log-probabilities, because the model
        # treats all these candidates as the same average ordering.
        is_mute = self._logits.is_mute
        representatives = np.where(is_mute, is_mute.argmax(), np.arange(len(is_mute)))
        chosen, columns = np.unique(representatives, return_inverse=True)
        if len(chosen) < 2:
            return share_gains
        unit = self.labels.unit
        example_errors, share_errors = self._example_errors(chosen)
        gains = independent_gains(
            self._read_means[chosen] / unit,
            (example_errors + self._effect_errors(chosen)) / unit**2,
            share_errors / unit**2,
            outsiders=OUTSIDER_SCORE * (self._calls.is_outsider & ~is_mute)[chosen],
            reference=int(columns[reference]),
            num_examples=self.num_examples,
        )
        label_gains = gains.of(columns).times(unit * self._unread.shares)
        if share_gains is None:
            return label_gains
        return label_gains.plus(share_gains)

    def _example_errors(self, chosen: Numbers) -> tuple[Array, Array]:
        """Return two covariances ``[c, c]`` of errors in mean scores due to the sampling of examples.

        The first is that of sampling within kinds of examples, and the second that of the kinds' shares.
        Examples are of the same kind if the metric gives each label the same score on them. A metric
        over a set has weights that adjust the shares, so the second covariance is 0.
        """
        examples = self._weights.columns
        weights = self._weights.of_columns
        read_scores = self.answers.expected_scores(self._logits.effects[chosen], examples, weights)
        kinds = np.unique(self._calls.labels.scores[examples], axis=0, return_inverse=True)[1].ravel()
        of_kind = np.eye(kinds.max() + 1)[kinds]
        means = read_scores @ of_kind / of_kind.sum(axis=0)
        centered = read_scores - means @ of_kind.T
        share_free = max(1, len(examples) - of_kind.shape[1]) / len(examples)
        errors = np.asarray((centered * weights**2) @ centered.T / share_free)
        if not self._weights.are_equal:
            return errors, np.zeros_like(errors)
        return errors, class_share_errors(means, of_kind.mean(axis=0), len(examples))

    def _effect_errors(self, chosen: Numbers) -> Array:
        """Return the covariance ``[c, c]`` of errors in mean scores due to errors in the effects."""
        is_mute = self._logits.is_mute
        places = np.flatnonzero(~is_mute[chosen])
        bias_errors, slope_errors = self._logits.effect_errors(~is_mute)
        effects = self._logits.effects[chosen]
        num_effects = effects.shape[1]
        errors = np.zeros((len(effects), len(effects)))
        for number, step in enumerate(STEP * np.eye(num_effects)):
            is_slope = number == num_effects - 1
            change = self._mean_scores(effects + step) - self._mean_scores(effects - step)
            derivative = change[places] / (2.0 * STEP)
            of_effect = np.outer(derivative, derivative) * (slope_errors if is_slope else bias_errors)
            errors[np.ix_(places, places)] += UNDERSTATED * of_effect
        return errors


def _are_drawn(calls: Calls) -> bool:
    """Return whether programs sample their answers instead of returning the likeliest label."""
    labels = calls.labels
    known = labels.known & calls.scored.known & ~calls.is_program[:, None]
    call_scores = calls.scored.scores[known]
    of_labels = labels.scores[np.nonzero(known)[1]]
    chances = softmax(labels.logs[known])
    likeliest = np.take_along_axis(of_labels, chances.argmax(axis=1)[:, None], axis=1)[:, 0]
    num_agreeing = np.isclose(call_scores, likeliest).sum()
    # If programs return the likeliest label, each call has the score of its likeliest label. If they
    # sample answers, fewer calls do. Choose the case whose expected number of such calls is closer
    # to the actual number.
    num_if_likeliest = len(of_labels)
    num_if_drawn = (chances * np.isclose(of_labels, likeliest[:, None])).sum()
    return bool(2 * num_agreeing < num_if_likeliest + num_if_drawn)
