"""The choice among the finalists, by what all scores let one expect of each on new examples."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from plr_dspy.plackett_luce.distribution import PlackettLuce
from plr_dspy.report.data import (
    CalibrationEffect,
    Comparison,
    Evidence,
    Iteration,
    LabelProbabilities,
    Leaning,
)
from plr_dspy.report.text import MIN_PROBABILITY
from plr_dspy.search.model.offsets import Calibrated
from plr_dspy.search.model.ordering_model import DEVIATIONS, FittedModel, Gain, OrderingModel
from plr_dspy.search.model.table import Scores
from plr_dspy.search.space import Ordering
from plr_dspy.statistics.calibration import Array, brier_score, expected_calibration_error
from plr_dspy.statistics.comparisons import paired_interval

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Finalist:
    """An ordering that meets the others on the selection split.

    Attributes:
        origin: "original", "best seen" (in a racing plan, in the race), "mode" or "draw"; or "calibrated", which is the
            original with its answers calibrated, where it is scored without.
    """

    origin: str
    ordering: Ordering


@dataclass(frozen=True)
class Result:
    """What a finalist came to.

    Attributes:
        finalist: The ordering and where it comes from.
        score: Its mean score on the selection split.
        gain: What is expected of it beside the original one on new examples; of the original itself, nothing. It
            reaches no further than the highest and the lowest score.
        beyond: How much further the estimate of the gain reaches; it counts where gains are compared.
        offsets: Of the labels, that calibrate it; empty where it is not to be calibrated.
    """

    finalist: Finalist
    score: float
    gain: Gain
    offsets: tuple[float, ...] = ()
    beyond: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What a compile found.

    Attributes:
        ordering: The chosen one.
        distributions: The final distribution of each block.
        comparison: Chosen against original; None if nothing was compared.
        candidates: The finalists, with what chose among them.
        evidence: What there was to tell orderings apart by; None if the metric did not score them.
        history: Rounds of the search.
        program_calls: Program calls by phase, as in `Report`.
        stopped: Why the search ended.
        leaning: How often the original order and the chosen one answer each label; None where it is not known.
        calibration: What calibration does to both; None where it is not known.
        chosen: The number of the candidate that is the chosen one; None if nothing was compared.
        offsets: Of the labels, that calibrate the chosen one; empty where it is not to be calibrated.
        fitted: The model of all scores, those of the final comparison included; None if nothing was compared.
    """

    ordering: Ordering
    distributions: Sequence[PlackettLuce]
    comparison: Comparison | None
    candidates: list[Result]
    evidence: Evidence | None
    history: list[Iteration]
    program_calls: dict[str, int]
    stopped: str
    leaning: Leaning | None = None
    calibration: CalibrationEffect | None = None
    chosen: int | None = None
    offsets: tuple[float, ...] = ()
    fitted: FittedModel | None = None


def make_results(
    entries: Sequence[Finalist], rows: Sequence[Sequence[float]], fitted: FittedModel
) -> list[Result]:
    """What the first entries came to, those that have rows of scores.

    Args:
        entries: The original first.
        rows: Of scores, one for each of the first entries.
        fitted: To all scores known.
    """
    original = entries[0].ordering
    estimates, expected = fitted.gains(original), fitted.expected_scores(original)
    before = fitted.as_it_is(original)

    def result(entry: Finalist, row: Sequence[float]) -> Result:
        as_it_is = entry is entries[0] and fitted.calibrating
        estimate = Gain(0.0, 0.0) if as_it_is else estimates[entry.ordering]
        gain = 0.0 if as_it_is else round(expected[entry.ordering] - before, 9)
        found = None if as_it_is else fitted.calibration(entry.ordering)
        return Result(
            entry,
            math.fsum(row) / len(row),
            replace(estimate, expected=gain),
            () if found is None else found.offsets,
            beyond=round(estimate.expected - gain, 9),
        )

    return [result(entry, row) for entry, row in zip(entries, rows, strict=False)]


def choose(results: Sequence[Result], *, min_probability: float = MIN_PROBABILITY) -> int:
    """The number of the result that is expected to score best on new examples; among equals the first.

    Args:
        results: Of the finalists, the original first.
        min_probability: Of being better than the original as it is, and than the original calibrated where answers are
            calibrated: those with less of either are not chosen.
    """
    gains = [result.gain for result in results]
    sure = [
        i
        for i, gain in enumerate(gains)
        if not i or min(gain.probability, gain.probability_calibrated) >= min_probability
    ]
    return max(sure, key=lambda i: (results[i].gain.expected + results[i].beyond, -i))


def comparison(
    original: Sequence[float],
    chosen: Sequence[float],
    *,
    num_candidates: int,
    gain: Gain,
    expected_original: tuple[float, float, float] | None = None,
    expected_chosen: tuple[float, float, float] | None = None,
) -> Comparison:
    """Compare two orderings by their scores on the same examples.

    Args:
        original, chosen: Scores by example.
        num_candidates: Orderings among which the chosen one was the best, the original included.
        gain: What is expected of the chosen one on new examples.
        expected_original, expected_chosen: As attributes of a `Comparison`.
    """
    gains = [b - a for a, b in zip(original, chosen, strict=True)]
    margin = DEVIATIONS * gain.deviation
    scores = [0.0, 1.0, *original, *chosen]
    largest = max(scores) - min(scores)
    low, high = paired_interval(gains, CONFIDENCE, num_comparisons=max(1, num_candidates - 1))
    return Comparison(
        original=sum(original) / len(original),
        chosen=sum(chosen) / len(chosen),
        gain=sum(gains) / len(gains),
        interval=(max(low, -largest), min(high, largest)),
        confidence=CONFIDENCE,
        num_examples=len(gains),
        num_candidates=num_candidates,
        expected_gain=gain.expected,
        probability=gain.probability,
        gain_interval=(round(gain.expected - margin, 6), round(gain.expected + margin, 6)),
        expected_original=expected_original,
        expected_chosen=expected_chosen,
    )


def any_difference(scores: Scores) -> bool:
    """Whether two orderings have different scores on any example: without that, none can be better than another.

    Args:
        scores: By example, of all orderings.
    """
    seen: dict[int, float] = {}
    return any(
        seen.setdefault(example, score) != score for row in scores.values() for example, score in row.items()
    )


def weigh(scores: Scores, original: Ordering, other: Ordering) -> Evidence:
    """Count the examples that could tell orderings apart, and those that did.

    Args:
        scores: By example, of all orderings.
        original, other: Two of them.
    """
    by_example: dict[int, list[float]] = defaultdict(list)
    for row in scores.values():
        for example, score in row.items():
            by_example[example].append(score)
    met = [seen for seen in by_example.values() if len(seen) > 1]
    return Evidence(
        num_met=len(met),
        num_differing=sum(min(seen) < max(seen) for seen in met),
        num_compared=len(scores[original].keys() & scores[other].keys()),
    )


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
    )
