"""The effect of calibration on the original's score, and the calibration of the returned program."""

import numpy as np
from scipy import special

from plr_dspy.compiling.comparison import paired_gain_by_metric
from plr_dspy.report.schema import CalibrationEffect
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.observations import CallRecords
from plr_dspy.search.model.ordering_model import DEVIATIONS, FittedModel
from plr_dspy.search.space import Candidate


def estimate_effect(
    fitted: FittedModel, original: Candidate, chosen: Candidate, *, applied: bool
) -> CalibrationEffect | None:
    """Return the estimated effect of calibration, or None if too few calls returned log-probabilities.

    Args:
        applied: Whether the chosen program differs from the original, even if only by
            calibration.
    """
    responses = fitted.responses
    if responses is None:
        return None
    answers = responses.answers
    score = fitted.as_it_is(original)
    # The offsets were fitted to the same answers, so use the model's shrunk estimate of the gain.
    gain = answers.gain_of_calibration(fitted.orderings.index(original)).summary()
    label_scores = responses.labels.scores
    calibrated = np.clip(score + gain.expected[0], label_scores.min(), label_scores.max())
    return CalibrationEffect(
        original=round(score, 6),
        original_calibrated=round(float(calibrated), 6),
        probability=round(float(gain.above[0]), 6),
        offsets=list(answers.rounded_offsets(fitted.orderings.index(chosen))),
        applied=applied and fitted.calibrates_answers,
        shares=list(answers.calibrated_shares),
    )


def effect_on_set_metric(
    effect: CalibrationEffect,
    metric: ConfusionScores,
    records: CallRecords,
    fitted: FittedModel,
    original: Candidate,
) -> CalibrationEffect:
    """Return a copy of `effect` in which the original's scores are measured with the metric itself.

    The offsets were fitted to the same answers, so the gain is shrunk by the share of its square that
    is expected from noise alone.
    """
    before = metric.answers(records[original], {})
    after = metric.answers(records[original], fitted.calibrated_labels(original))
    measured = paired_gain_by_metric(metric, before, after)
    value = metric.value(before.items())
    gain = 0.0
    probability = 0.5
    if measured is not None and measured.gain:
        low, high = measured.interval
        relative_error = (high - low) / (2 * DEVIATIONS) / measured.gain
        gain = measured.gain * max(0.0, 1.0 - relative_error**2)
        probability = float(gain > 0)
        if relative_error:
            probability = float(special.ndtr(1.0 / relative_error))
    return effect.model_copy(
        update={
            "original": round(value, 6),
            "original_calibrated": round(value + gain, 6),
            "probability": round(probability, 6),
        }
    )
