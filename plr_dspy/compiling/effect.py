"""The effect of calibration on the original's score, and the calibration of the returned program."""

from plr_dspy.report.schema import CalibrationEffect
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.observations import CallRecords
from plr_dspy.search.model.ordering_model import FittedModel
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
    calibrated = answers.estimate(fitted.orderings.index(original)).after
    if fitted.calibrates_answers:
        # The search compared calibrated scores, so use the model's shrunk estimate.
        calibrated = fitted.expected_scores(original)[original]
    return CalibrationEffect(
        original=round(fitted.as_it_is(original), 6),
        original_calibrated=round(calibrated, 6),
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
    """Return a copy of `effect` in which the original's scores are measured with the metric itself."""
    calibrated_labels = fitted.calibrated_labels(original)
    before = metric.value(metric.answers(records[original], {}).items())
    after = metric.value(metric.answers(records[original], calibrated_labels).items())
    return effect.model_copy(update={"original": round(before, 6), "original_calibrated": round(after, 6)})
