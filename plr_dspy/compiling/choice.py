"""The choice among the finalists, by their expected scores on new examples."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import special

from plr_dspy.compiling.comparison import (
    ENOUGH_DIFFERING,
    MIN_ODDS,
    MeasuredGain,
    comparison,
    effect_on_set_metric,
    measure_gain,
)
from plr_dspy.plackett_luce.distribution import PlackettLuce
from plr_dspy.report.schema import CalibrationEffect, Comparison, Evidence, Iteration
from plr_dspy.report.stop import Stop
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.observations import Observations
from plr_dspy.search.model.ordering_model import FittedModel, Gain, OrderingModel
from plr_dspy.search.space import Candidate, Scores
from plr_dspy.statistics.comparisons import paired_probability


@dataclass(frozen=True)
class Result:
    """The result of a finalist.

    Attributes:
        origin: "original", "best seen", "mode" or "draw"; or "calibrated": the original with calibrated answers.
        ordering: The finalist.
        score: Mean score, or value of a metric over a set, on the compared examples.
        gain: Gain over the original on new examples, within the range of scores.
        estimate: Gain without that limit, which ranks results.
        offsets: Label offsets that calibrate the finalist; empty if uncalibrated.
    """

    origin: str
    ordering: Candidate
    score: float
    gain: Gain
    estimate: float = 0.0
    offsets: tuple[float, ...] = ()

    def measured(self, by_metric: MeasuredGain) -> "Result":
        """Return the result measured by the set metric itself."""
        gain = by_metric.gain
        return replace(self, score=by_metric.comparison.chosen, gain=gain, estimate=gain.expected)


@dataclass(frozen=True)
class Decision:
    """The chosen candidate and the evidence for it; most attributes are as in `Report`.

    Attributes:
        ordering: The chosen candidate.
        chosen: Index of its result in `candidates`.
        offsets: Label offsets that calibrate it.
        fitted: Model fitted to all scores, including those of the final comparison.
        answered: For a metric over a set, examples with the answers of the original and of the chosen candidate.
    """

    ordering: Candidate
    comparison: Comparison | None = None
    candidates: Sequence[Result] = ()
    chosen: int | None = None
    evidence: Evidence | None = None
    calibration: CalibrationEffect | None = None
    offsets: tuple[float, ...] = ()
    fitted: FittedModel | None = None
    answered: Sequence[tuple[int, str | None, str | None]] = ()

    def scale_of_metric(self, reference: Candidate) -> Callable[[float], float]:
        """Return a function that rescales expected scores to the comparison, by gains over a reference.

        For a metric over a set, the model's scores are linear, unlike those of the comparison.
        """
        fitted = self.fitted
        comparison = self.comparison
        if fitted is None or comparison is None or comparison.expected_original is None:
            return float
        start = comparison.expected_original[0]
        before = fitted.as_it_is(reference)
        linear_gain = fitted.expected_scores(reference)[self.ordering] - before
        share = 1.0
        if linear_gain > 0 and self.chosen:
            share = comparison.expected_gain / linear_gain
        return lambda expected: start + share * (expected - before)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a compile."""

    decision: Decision
    distributions: Sequence[PlackettLuce]  # final distribution of each block
    history: list[Iteration]
    program_calls: dict[str, int]  # by phase, as in `Report`
    stop: Stop  # why the search ended


def compare_finalists(
    finalists: Mapping[Candidate, str],
    examples: Sequence[int],
    observations: Observations,
    model: OrderingModel,
    *,
    min_probability: float | None,
    by_score: bool = False,
) -> Decision:
    """Choose among finalists, and compare the chosen one with the original.

    Args:
        finalists: The finalists with their origins, the original first.
        examples: Examples on which all finalists have scores.
        observations: All scores so far, which decide.
        model: The search's model of scores.
        min_probability, by_score: As in `choose`.
    """
    original, *_ = finalists
    scores = observations.counted()
    fitted = model.fit(scores, kept=list(finalists))
    results = _results(finalists, examples, scores, fitted)
    metric = observations.effective
    measured: list[MeasuredGain] = []
    if isinstance(metric, ConfusionScores):
        measured = _measure(results, observations, metric, fitted)
        results = [result.measured(by_metric) for result, by_metric in zip(results, measured, strict=True)]
    promising = max(results[1:], key=lambda result: result.gain.probability).ordering
    compared: Scores = observations.scores()  # Equal scores may not count equally.
    if fitted.calibrating:
        compared = fitted.counted(scores)
    evidence = count_evidence(compared, original, promising)
    chosen = 0
    if fitted.calibrating or evidence.num_differing:
        chosen = choose(results, min_probability=min_probability, by_score=by_score)
    else:  # No finalist can be better than another.
        results = [replace(result, gain=Gain(0.0, 0.0)) for result in results]
    ordering = results[chosen].ordering
    if chosen:
        evidence = count_evidence(compared, original, ordering)
    applied = fitted.calibrating and chosen > 0
    effect = calibration_effect(fitted, original, ordering, applied=applied)
    decision = Decision(
        ordering,
        candidates=results,
        chosen=chosen,
        evidence=evidence,
        calibration=effect,
        offsets=results[chosen].offsets,
        fitted=fitted,
    )
    if isinstance(metric, ConfusionScores):
        return _with_set_metric(decision, measured, observations, metric)
    gain = results[chosen].gain
    before = fitted.as_it_is(original)
    after = before + gain.expected
    chosen_scores = fitted.counted(scores) if chosen else scores
    compared_scores = comparison(
        [scores[original][example] for example in examples],
        [chosen_scores[ordering][example] for example in examples],
        num_candidates=len(results),
        gain=gain,
        expected_original=(before, *fitted.interval(original, before, reference=original)),
        expected_chosen=(after, *fitted.interval(ordering, after, reference=original)),
    )
    return replace(decision, comparison=compared_scores)


def _results(
    finalists: Mapping[Candidate, str], examples: Sequence[int], scores: Scores, fitted: FittedModel
) -> list[Result]:
    """Return the finalists' results by the model of scores, the unchanged original first."""
    original, *_ = finalists
    entries = [(origin, ordering) for ordering, origin in finalists.items()]
    if fitted.calibrating:
        entries.insert(1, ("calibrated", original))
    before = fitted.as_it_is(original)
    counted = fitted.counted(scores)
    gains = fitted.gains(original)
    expected = fitted.expected_scores(original)
    results = []
    for number, (origin, ordering) in enumerate(entries):
        row = counted[ordering] if number else scores[original]
        score = math.fsum(row[example] for example in examples) / len(examples)
        if fitted.calibrating and number == 0:
            results.append(Result(origin, ordering, score, Gain(0.0, 0.0)))
            continue
        calibration = fitted.calibration(ordering)
        gain = replace(gains[ordering], expected=round(expected[ordering] - before, 9) + 0.0)  # never -0.0
        if number and calibration is None:
            gain = _by_few(gain, scores[original], scores[ordering])
        offsets: tuple[float, ...] = ()
        if calibration is not None and fitted.calibrating:
            offsets = calibration.offsets
        results.append(Result(origin, ordering, score, gain, gains[ordering].expected, offsets))
    return results


def choose(results: Sequence[Result], *, min_probability: float | None = None, by_score: bool = False) -> int:
    """Return the index of the result with the best estimate or, as in PLR Algorithm 1, the best score.

    Other results must be `likely` better than the original, which is first. Ties go to the first.
    """
    values = [result.score if by_score else result.estimate for result in results]
    allowed = [number for number, result in enumerate(results) if not number or likely(result.gain, min_probability)]
    return max(allowed, key=values.__getitem__)


def likely(gain: Gain, min_probability: float | None) -> bool:
    """Tell whether gains over the original, as is and calibrated, have this probability; None uses `MIN_ODDS`."""
    least = min(gain.probability, gain.probability_calibrated)
    if min_probability is not None:
        return least >= min_probability
    is_better = gain.probability >= MIN_ODDS * gain.worse
    return least > 0.0 and is_better and gain.probability_calibrated >= MIN_ODDS * gain.worse_calibrated


def _by_few(gain: Gain, original: Mapping[int, float], other: Mapping[int, float]) -> Gain:
    """Limit the certainty of a gain if few examples tell both orderings apart.

    Near the highest score, the best of many had no misses by luck, which the normal model takes for an effect.
    """
    differences = [other[example] - original[example] for example in original.keys() & other.keys()]
    if not differences or gain.expected <= 0 or sum(map(bool, differences)) >= ENOUGH_DIFFERING:
        return gain
    sure = paired_probability(differences)
    if sure < gain.probability:
        deviation = gain.expected / max(float(special.ndtri(sure)), 1e-9)
        gain = replace(gain, deviation=max(gain.deviation, min(deviation, max(map(abs, differences)))))
    if sure < 0.5:
        gain = replace(gain, worse=max(gain.worse, 1.0 - sure))
    return replace(gain, probability=min(gain.probability, sure))


def _measure(
    results: Sequence[Result], observations: Observations, metric: ConfusionScores, fitted: FittedModel
) -> list[MeasuredGain]:
    """Measure the gains of all finalists by the set metric itself."""
    before = metric.answers(observations.records[results[0].ordering], {})
    measured = []
    for result in results:
        labels = fitted.answers(result.ordering) if result.offsets else {}
        after = metric.answers(observations.records[result.ordering], labels)
        gain = measure_gain(
            metric, before, after, result.gain, num_orderings=len(fitted.orderings), num_candidates=len(results)
        )
        measured.append(gain)
    return measured


def _with_set_metric(
    decision: Decision, measured: Sequence[MeasuredGain], observations: Observations, metric: ConfusionScores
) -> Decision:
    """Return the decision with its comparison and calibration effect by the set metric itself."""
    fitted = decision.fitted
    assert fitted is not None and decision.chosen is not None
    by_metric = measured[decision.chosen]
    original, *others = decision.candidates
    original = replace(original, score=by_metric.comparison.original)
    effect = decision.calibration
    if effect is not None:
        answers = {}
        for name, ordering in (("original", original.ordering), ("chosen", decision.ordering)):
            records = observations.records[ordering]
            answers[name] = metric.answers(records, {})
            answers[f"{name}_calibrated"] = metric.answers(records, fitted.answers(ordering, calibrated=True))
        effect = effect_on_set_metric(effect, metric, answers, by_metric.comparison)
    return replace(
        decision,
        comparison=by_metric.comparison,
        candidates=[original, *others],
        calibration=effect,
        answered=by_metric.answered,
    )


def count_evidence(scores: Scores, *compared: Candidate) -> Evidence:
    """Count the examples that could tell orderings apart, that did, and that all compared ones share."""
    by_example: dict[int, list[float]] = defaultdict(list)
    for row in scores.values():
        for example, score in row.items():
            by_example[example].append(score)
    repeated = [values for values in by_example.values() if len(values) > 1]
    common: set[int] = set()
    if compared:
        common = set.intersection(*(set(scores[ordering]) for ordering in compared))
    return Evidence(
        num_met=len(repeated),
        num_differing=sum(min(values) < max(values) for values in repeated),
        num_compared=len(common),
    )


def calibration_effect(
    fitted: FittedModel, original: Candidate, chosen: Candidate, *, applied: bool
) -> CalibrationEffect | None:
    """Compare both orderings as is and calibrated; return None without log-probabilities.

    Scores of the kind that decided the choice are the model's, which shrinks the best of many.
    """
    before = fitted.calibration(original)
    after = fitted.calibration(chosen)
    responses = fitted.responses
    if before is None or after is None or responses is None:
        return None
    shares = []
    if responses.labels.calibrates:
        shares = [round(share, 6) for share in responses.labels.shares.tolist()]
    expected = fitted.expected_scores(original)
    original_calibrated = before.after
    chosen_as_it_is = expected[chosen]
    chosen_calibrated = after.after
    if fitted.calibrating:
        original_calibrated = expected[original]
        chosen_as_it_is = fitted.as_it_is(chosen)
        chosen_calibrated = expected[chosen]
    return CalibrationEffect(
        num_examples=responses.num_examples,
        original=round(fitted.as_it_is(original), 6),
        original_calibrated=round(original_calibrated, 6),
        chosen=round(chosen_as_it_is, 6),
        chosen_calibrated=round(chosen_calibrated, 6),
        offsets=list(after.offsets),
        applied=applied,
        shares=shares,
        always=responses.always,
    )
