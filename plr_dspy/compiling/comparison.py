"""Comparisons of a finalist with the original, based on mean scores or on a metric over a set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plr_dspy.report.rules import MIN_ODDS
from plr_dspy.report.schema import Comparison, PairedGain, ScoreRange
from plr_dspy.scoring.confusion_scores import Answers, ConfusionScores, Pair
from plr_dspy.search.model.ordering_model import DEVIATIONS, Gain
from plr_dspy.statistics.arrays import Array
from plr_dspy.statistics.comparisons import TAIL, limited_interval

# A normal approximation is reliable if scores differ on at least this many examples.
ENOUGH_DIFFERING = 20

# Maximum share of a metric's gain that half of the finalist's answers may cause.
MOST_AT_HALF = 0.75


def compare_mean_scores(
    original: Sequence[float],
    chosen: Sequence[float],
    *,
    num_candidates: int,
    gain: Gain,
    expected_original: ScoreRange,
    expected_chosen: ScoreRange,
    original_stays: bool = False,
) -> Comparison:
    """Compare the mean score of the original with that of the best of several candidates.

    Args:
        original, chosen: Scores of the original and of the best candidate on the same examples.
        num_candidates: Number of candidates, including the original.
        gain: Gain of the best candidate on new examples, estimated by the score model.
        expected_original, expected_chosen: As in `Comparison`.
        original_stays: Whether the best candidate is the original itself.
    """
    gains = [after - before for before, after in zip(original, chosen, strict=True)]
    lowest, highest = _range([*original, *chosen])
    mean_gain = sum(gains) / len(gains)
    least_chosen = expected_chosen[1] - lowest
    interval = (0.0, 0.0)
    if not original_stays:
        interval = limited_interval(gains, highest - lowest, num_comparisons=max(1, num_candidates - 1))
    return Comparison(
        original=sum(original) / len(original),
        chosen=sum(chosen) / len(chosen),
        gain=mean_gain,
        interval=interval,
        num_examples=len(gains),
        num_candidates=num_candidates,
        expected_gain=gain.expected,
        probability=gain.probability,
        probability_worse=gain.worse,
        gain_interval=_interval_of_expected(gain, mean_gain, highest - lowest, least_chosen),
        expected_original=expected_original,
        expected_chosen=expected_chosen,
    )


def _interval_of_expected(
    gain: Gain, observed: float, largest: float, least_chosen: float
) -> tuple[float, float]:
    """Return the 95% interval of the expected gain.

    If the observed gain is larger than the expected gain, the observed gain determines the upper
    end, because the model may shrink gains too strongly.

    Args:
        gain: The estimated gain on new examples.
        observed: The gain on the compared examples.
        largest: The largest possible gain.
        least_chosen: Lower end of the interval for the chosen candidate's score, minus the lowest
            possible score. The returned interval never starts above this value.
    """
    margin = DEVIATIONS * gain.deviation
    least = max(gain.expected - margin, -largest)
    # A 95% interval may exclude negative gains only if the probability of a gain exceeds 97.5%.
    least = max(least, 0.0) if gain.probability > 1 - TAIL else min(least, 0.0)
    most = min(max(gain.expected, observed) + margin, largest)
    return round(min(least, least_chosen), 6), round(most, 6)


def paired_gain(before: Mapping[int, float], after: Mapping[int, float]) -> PairedGain | None:
    """Return the gain in mean score on the examples with both scores, or None if no example has both.

    Args:
        before, after: Scores of two programs or methods, keyed by example index.
    """
    both = sorted(before.keys() & after.keys())
    if not both:
        return None
    differences = [after[example] - before[example] for example in both]
    lowest, highest = _range([*before.values(), *after.values()])
    return PairedGain(
        gain=sum(differences) / len(both),
        interval=limited_interval(differences, highest - lowest),
        num_examples=len(both),
    )


def _range(scores: Sequence[float]) -> tuple[float, float]:
    """Return the assumed range of the metric: 0 to 1, extended to include all of these scores."""
    return min(0.0, *scores), max(1.0, *scores)


def paired_gain_by_metric(metric: ConfusionScores, before: Answers, after: Answers) -> PairedGain | None:
    """Return the gain in a metric over a set on the examples with both answers, or None if there are none."""
    if not before.keys() & after.keys():
        return None
    measurement = _measure(metric, before, after)
    low, high = np.quantile(measurement.gains, [TAIL, 1.0 - TAIL]).tolist()
    observed = measurement.observed
    return PairedGain(
        gain=observed,
        interval=(min(low, observed), max(high, observed)),
        num_examples=len(measurement.answered),
    )


def compare_by_set_metric(
    metric: ConfusionScores,
    before: Answers,
    after: Answers,
    gain: Gain,
    *,
    num_orderings: int,
    num_candidates: int,
) -> tuple[Gain, Comparison]:
    """Return a finalist's gain over the original and a comparison of both, measured with the metric.

    The gain is the score model's gain after a correction. The correction is needed because the
    model only approximates a metric over a set.

    Args:
        before, after: Answers of the original and of the finalist.
        gain: Gain estimated by the score model.
        num_orderings: Number of orderings that the finalist was selected from.
        num_candidates: As in `compare_mean_scores`.
    """
    measurement = _measure(metric, before, after)
    corrected = _corrected_gain(metric, measurement, gain, num_orderings)
    return corrected, _measured_comparison(metric, measurement, corrected, num_candidates)


@dataclass(frozen=True)
class _Measurement:
    """A metric's values for the answers of the original and of a finalist.

    Attributes:
        answered: The examples with answers of both programs, each with the two answers. A failed
            call may count as an answer without a label.
        as_it_is: The metric's value for all answers of the original.
        before, after: The metric's values on the examples in `answered`, for the original and
            for the finalist.
        unseen_labels: Labels without an example in `answered`.
        spread: For each bootstrap sample, the deviations of the two programs' values from their
            means over all samples, ``[draws, 2]``. Unseen labels are ignored.
        spread_of_scores: Deviations from the same means as in `spread`, but of values that include
            random answers to examples with unseen labels.
        largest: The largest possible gain: the width of the metric's range.
    """

    answered: Sequence[Pair]
    as_it_is: float
    before: float
    after: float
    unseen_labels: list[str]
    spread: Array
    spread_of_scores: Array
    largest: float

    @property
    def observed(self) -> float:
        """The gain on the examples in `answered`."""
        return self.after - self.before

    @property
    def gains(self) -> Array:
        """The gains in the bootstrap samples, centered on the observed gain. Unseen labels are ignored."""
        return np.asarray(self.observed + self.spread[:, 1] - self.spread[:, 0])


def _measure(metric: ConfusionScores, before: Answers, after: Answers) -> _Measurement:
    """Calculate a metric for two programs' answers, and for bootstrap samples of these answers."""
    both = sorted(before.keys() & after.keys())
    if not both:  # The programs have no answered example in common, so assume no difference.
        before = before or after
        after = before
        both = sorted(before)
    answered = [(example, before[example], after[example]) for example in both]
    value_before = metric.value((example, label) for example, label, _ in answered)
    value_after = metric.value((example, label) for example, _, label in answered)
    as_it_is = metric.value(before.items())
    low, high = metric.bounds
    draws, draws_of_scores = metric.resampled(answered)
    if all(label == other for _, label, other in answered):
        draws[:, 1] = draws[:, 0]
        draws_of_scores[:, 1] = draws_of_scores[:, 0]
    return _Measurement(
        answered,
        as_it_is,
        value_before,
        value_after,
        unseen_labels=metric.unscored_labels(both),
        spread=draws - draws.mean(axis=0),
        spread_of_scores=draws_of_scores - draws.mean(axis=0),
        largest=high - low,
    )


def _corrected_gain(
    metric: ConfusionScores, measurement: _Measurement, gain: Gain, num_orderings: int
) -> Gain:
    """Return the score model's gain, corrected with the measured values of the metric.

    If the finalist is better, calculate the ratio of the model's expected gain to the observed gain,
    both in linear approximation. Return the gain that results if this share of the answers comes
    from the finalist, and the rest from the original. Limit the probability of a gain to the
    probability estimated from bootstrap samples, and raise the probability of a loss to at least
    its estimate from these samples.
    """
    gains = measurement.gains
    observed = measurement.observed
    linear_gains = metric.gains(measurement.answered)
    mean_linear_gain = float(linear_gains.mean())
    as_it_is = measurement.as_it_is
    expected_gain = min(gain.expected, observed)
    if min(gain.expected, observed, mean_linear_gain) > 0:
        share = min(1.0, gain.expected / mean_linear_gain)
        half_gain = metric.value_between(measurement.answered, share / 2) - measurement.before
        expected_gain = metric.value_between(measurement.answered, share) - measurement.before
        # Some metrics jump at small shares, or do not increase steadily with the share.
        is_steady = 0.0 < half_gain < MOST_AT_HALF * expected_gain
        if not is_steady or expected_gain > observed:
            expected_gain = share * observed
    # Adding 0.0 turns -0.0 into 0.0.
    expected = round(metric.clip(as_it_is + expected_gain) - as_it_is, 9) + 0.0
    probability = 0.0
    if expected > 0:
        probability = min(gain.probability, _bootstrapped_probability(gains, linear_gains, num_orderings))
    return replace(
        gain,
        expected=expected,
        probability=probability,
        worse=max(gain.worse, float((gains < 0).mean())),
        deviation=min(max(gain.deviation, float(gains.std())), measurement.largest),
    )


def _measured_comparison(
    metric: ConfusionScores, measurement: _Measurement, gain: Gain, num_candidates: int
) -> Comparison:
    """Return the comparison of a finalist with the original, given the finalist's corrected gain."""
    observed = measurement.observed
    largest = measurement.largest
    as_it_is = measurement.as_it_is
    tail_of_each = TAIL / max(1, num_candidates - 1)  # Bonferroni correction
    least, most = np.quantile(measurement.gains, [tail_of_each, 1.0 - tail_of_each])
    lower, upper = np.quantile(measurement.spread_of_scores, [TAIL, 1.0 - TAIL], axis=0)
    lower = np.minimum(lower, 0.0)
    upper = np.maximum(upper, 0.0)
    expected_chosen = as_it_is + gain.expected
    highest = expected_chosen
    if gain.expected:  # The model may shrink gains too strongly, so include the measured score.
        highest = max(highest, measurement.after)
    least_chosen = metric.clip(expected_chosen + lower[1])
    return Comparison(
        original=measurement.before,
        chosen=measurement.after,
        gain=observed,
        interval=(max(min(float(least), observed), -largest), min(max(float(most), observed), largest)),
        num_examples=len(measurement.answered),
        num_candidates=num_candidates,
        expected_gain=gain.expected,
        probability=gain.probability,
        probability_worse=gain.worse,
        gain_interval=_interval_of_expected(gain, observed, largest, least_chosen - metric.bounds[0]),
        expected_original=(as_it_is, metric.clip(as_it_is + lower[0]), metric.clip(as_it_is + upper[0])),
        expected_chosen=(expected_chosen, least_chosen, metric.clip(highest + upper[1])),
        unseen_labels=measurement.unseen_labels,
    )


def _bootstrapped_probability(gains: Array, linear_gains: Array, num_orderings: int) -> float:
    """Return the probability that a finalist is better, estimated from bootstrapped gains.

    If a few examples, such as those with a rare label, dominate the gain, an ordering may win by
    chance. In this case, the probability is corrected for the number of orderings (Bonferroni), but
    is not reduced below the default threshold for replacing the original.
    """
    probability = float((gains > 0).sum() / (len(gains) + 1))
    squares = linear_gains**2
    if squares.sum() ** 2 >= ENOUGH_DIFFERING * (squares**2).sum():
        return probability
    corrected = 1.0 - num_orderings * (1.0 - probability)
    enough_to_replace = MIN_ODDS / (1.0 + MIN_ODDS)
    return max(corrected, min(probability, enough_to_replace))
