"""What calibration does to the original order and to the chosen one, by the cells that are paid."""

from __future__ import annotations

import numpy as np

from plr_dspy.orderings.space import Ordering
from plr_dspy.report.schema import CalibrationEffect, LabelProbabilities
from plr_dspy.search.surrogate.fitted_model import Calibrated, FittedModel, Scores
from plr_dspy.search.surrogate.model import OrderingModel
from plr_dspy.statistics.calibration import Array, brier_score, expected_calibration_error, reliability


def calibration_effect(fitted: FittedModel, original: Ordering, chosen: Ordering) -> CalibrationEffect | None:
    """Compare both orderings as they are and calibrated; None where log-probabilities do not say it.

    In the way that the ordering was chosen by, the scores are those that the fitted model expects of both: they
    differ from that of the original as it is by the expected gain, which is shrunk for being the best of many.

    Args:
        fitted: To all scores.
        original, chosen: Two of its orderings.
    """
    before, after = fitted.calibration(original), fitted.calibration(chosen)
    if before is None or after is None:
        return None
    calibrating, expected = fitted.calibrating, fitted.expected_scores(original)
    return CalibrationEffect(
        num_examples=fitted.num_examples,
        original=round(fitted.as_it_is(original), 6),
        original_calibrated=round(expected[original] if calibrating else before.after, 6),
        chosen=round(after.before if calibrating else expected[chosen], 6),
        chosen_calibrated=round(expected[chosen] if calibrating else after.after, 6),
        offsets=list(after.offsets),
        before=_quality(after, after.log_probabilities),
        after=_quality(after, after.calibrated),
        shares=fitted.shares,
        always=fitted.always,
    )


def effect_without_comparison(
    model: OrderingModel, scores: Scores, original: Ordering, chosen: Ordering
) -> CalibrationEffect | None:
    """What `calibration_effect` says where nothing was compared; None where too little is known.

    Args:
        model: Calibrates answers.
        scores: Of the search.
        original, chosen: Two orderings; one without scores is left out.
    """
    known = [ordering for ordering in (original, chosen) if ordering in scores]
    if not known:
        return None
    return calibration_effect(model.fit(scores, kept=known), known[0], known[-1])


def _quality(found: Calibrated, log_probabilities: Array) -> LabelProbabilities | None:
    """How well probabilities hold on the cells of an ordering; None without cells."""
    if not len(log_probabilities):
        return None
    right = found.scores == found.scores.max(axis=1, keepdims=True)
    return LabelProbabilities(
        num_examples=len(log_probabilities),
        brier_score=round(brier_score(log_probabilities, right), 6),
        calibration_error=round(expected_calibration_error(log_probabilities, right), 6),
        reliability=[
            (each.count, *np.round([each.confidence, each.accuracy], 6).tolist())
            for each in reliability(log_probabilities, right)
        ],
    )
