"""The effect of calibration on the original and on the chosen candidate, for the report and the returned program."""

from plr_dspy.report.schema import CalibrationEffect, Comparison
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.observations import CallRecords
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Candidate


def estimate_effect(
    fitted: FittedModel, original: Candidate, chosen: Candidate, *, applied: bool
) -> CalibrationEffect | None:
    """Compare both candidates with and without calibration; return None without log-probabilities.

    The search compared calibrated or uncalibrated scores. The model shrinks scores of that
    kind, to correct for selection bias.

    Args:
        applied: Whether anything but the unchanged original was chosen.
    """
    responses = fitted.responses
    if responses is None or original not in fitted.orderings or chosen not in fitted.orderings:
        return None
    answers = responses.answers
    original_estimate = answers.estimate(fitted.orderings.index(original))
    chosen_estimate = answers.estimate(fitted.orderings.index(chosen))
    expected = fitted.expected_scores(original)
    original_calibrated = original_estimate.after
    chosen_as_it_is = expected[chosen]
    chosen_calibrated = chosen_estimate.after
    if not fitted.keeps_scores:
        original_calibrated = expected[original]
        chosen_as_it_is = fitted.as_it_is(chosen)
        chosen_calibrated = expected[chosen]
    return CalibrationEffect(
        num_examples=responses.num_examples,
        original=round(fitted.as_it_is(original), 6),
        original_calibrated=round(original_calibrated, 6),
        chosen=round(chosen_as_it_is, 6),
        chosen_calibrated=round(chosen_calibrated, 6),
        offsets=list(chosen_estimate.offsets),
        applied=applied and not fitted.keeps_scores,
        shares=list(answers.calibrated_shares),
        always=responses.always,
    )


def effect_on_set_metric(
    effect: CalibrationEffect,
    metric: ConfusionScores,
    records: CallRecords,
    fitted: FittedModel,
    *,
    original: Candidate,
    chosen: Candidate,
    compared: Comparison,
) -> CalibrationEffect:
    """Return the effect of calibration on a metric over a set.

    Args:
        effect: Effect on the scores that approximate the metric.
        records: Calls by candidate and example.
        compared: Comparison of the chosen candidate with the original.
    """
    values = {}
    for name, candidate in (("original", original), ("chosen", chosen)):
        labels = fitted.calibrated_labels(candidate)
        values[name] = metric.value(metric.answers(records[candidate], {}).items())
        values[f"{name}_calibrated"] = metric.value(metric.answers(records[candidate], labels).items())
    if compared.expected_chosen is not None:
        values["chosen_calibrated" if effect.applied else "chosen"] = compared.expected_chosen[0]
    always = []
    for label in metric.labels[: len(effect.always)]:
        always.append(metric.value((example, label) for example in range(metric.num_examples)))
    rounded = {name: round(value, 6) for name, value in values.items()}
    return effect.model_copy(update={**rounded, "always": always})


def revision_of(effect: CalibrationEffect | None) -> Revision | None:
    """Return the revision of the chosen candidate's answers; None if they are unchanged."""
    if effect is None or not effect.applied:
        return None
    return Revision(tuple(effect.offsets), tuple(effect.shares))
