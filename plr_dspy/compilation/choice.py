"""The choice among the finalists, by what all scores let one expect of each on new examples."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from plr_dspy.plackett_luce.distribution import PlackettLuce
from plr_dspy.report.schema import CalibrationEffect, Comparison, Evidence, Iteration
from plr_dspy.report.stop import Stop
from plr_dspy.scoring.confusion_scores import Answer, ConfusionScores
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.model.ordering_model import DEVIATIONS, FittedModel, Gain, OrderingModel
from plr_dspy.search.space import Candidate, Scores
from plr_dspy.statistics.comparisons import Array, paired_interval, paired_probability

CONFIDENCE = 0.95

MIN_ODDS = 3.0  # of being better, over being worse, that it takes to replace the original
ENOUGH_DIFFERING = 20  # examples that two orderings score differently on, from which on the normal model says how sure


@dataclass(frozen=True)
class Result:
    """What a finalist, an ordering that met the others on the selection split, came to."""

    origin: str  # "original", "best seen", "mode", "draw"; or "calibrated": the original, where it is scored without
    ordering: Candidate
    score: float  # mean score on the selection split
    gain: Gain  # over the original on new examples, no further than the highest and the lowest score
    estimate: float = 0.0  # the gain without that limit, by which results are compared
    offsets: tuple[float, ...] = ()  # of the labels, that calibrate it; empty where it is not to be calibrated


@dataclass(frozen=True)
class Decision:
    """What a compile returns, and what that rests on; many of these are as in `Report`."""

    ordering: Candidate  # the chosen one
    comparison: Comparison | None = None
    candidates: Sequence[Result] = ()
    chosen: int | None = None  # the number of the candidate that is the chosen one
    evidence: Evidence | None = None
    calibration: CalibrationEffect | None = None
    offsets: tuple[float, ...] = ()  # of the labels, that calibrate the chosen one
    fitted: FittedModel | None = None  # to all scores, those of the final comparison included
    answered: Sequence[tuple[int, str | None, str | None]] = ()  # by a metric over a set: example, labels of both

    def scale_of_metric(self, reference: Candidate) -> Callable[[float], float]:
        """Return what puts expected scores on the scale of the comparison, by their gains over a reference.

        By a metric over a set the model's scores are linear, and those of the comparison are not.
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
    """What a compile found."""

    decision: Decision
    distributions: Sequence[PlackettLuce]  # the final ones, of each block
    history: list[Iteration]
    program_calls: dict[str, int]  # by phase, as in `Report`
    stop: Stop  # why the search ended


def compare_finalists(
    entries: Sequence[tuple[str, Candidate]],
    examples: Sequence[int],
    scores: Scores,
    model: OrderingModel,
    *,
    as_they_came: Scores,
    min_probability: float | None,
    by_score: bool,
) -> Decision:
    """Choose among finalists, and compare the chosen one with the original.

    Args:
        entries: Origins and orderings of the finalists, the original first.
        examples: Those on which all finalists have scores.
        scores: All scores that are known, as they count; they all decide.
        model: The search's model of scores.
        as_they_came: The same scores before any reweighting.
        min_probability, by_score: As in `choose`.
    """
    original = entries[0][1]
    fitted = model.fit(scores, kept=[ordering for _, ordering in entries])
    counted = fitted.counted(scores)
    if fitted.calibrating:
        entries = [entries[0], ("calibrated", original), *entries[1:]]
    rows = [[scores[original][example] for example in examples]]
    rows += [[counted[ordering][example] for example in examples] for _, ordering in entries[1:]]
    results = _results(entries, rows, fitted, scores)
    promising = max(range(1, len(results)), key=lambda number: results[number].gain.probability)
    compared = counted if fitted.calibrating else as_they_came  # Equal scores may not count the same.
    best = 0
    evidence = count_evidence(compared, original, entries[promising][1])
    if fitted.calibrating or evidence.num_differing:
        best = choose(results, min_probability=min_probability, by_score=by_score)
    else:  # None can be better than another.
        results = [replace(result, gain=Gain(0.0, 0.0)) for result in results]
    ordering = entries[best][1]
    if best:
        evidence = count_evidence(compared, original, ordering)
    before = fitted.as_it_is(original)
    after = before + results[best].gain.expected
    compared_rows = comparison(
        rows[0],
        rows[best],
        num_candidates=len(rows),
        gain=results[best].gain,
        expected_original=(before, *fitted.interval(original, before, reference=original)),
        expected_chosen=(after, *fitted.interval(ordering, after, reference=original)),
    )
    return Decision(
        ordering,
        comparison=compared_rows,
        candidates=results,
        chosen=best,
        evidence=evidence,
        calibration=calibration_effect(fitted, original, ordering, applied=fitted.calibrating and best > 0),
        offsets=results[best].offsets,
        fitted=fitted,
    )


def _results(
    entries: Sequence[tuple[str, Candidate]], rows: Sequence[Sequence[float]], fitted: FittedModel, scores: Scores
) -> list[Result]:
    """Return what finalists with these rows of scores came to."""
    original = entries[0][1]
    before = fitted.as_it_is(original)
    gains = fitted.gains(original)
    expected = fitted.expected_scores(original)
    results = []
    for number, ((origin, ordering), row) in enumerate(zip(entries, rows, strict=True)):
        score = math.fsum(row) / len(row)
        if fitted.calibrating and number == 0:  # The original as it is.
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
    """Return the number of the result with the best estimate, or as in PLR Algorithm 1 with the best score.

    Results that are not `likely` better than the original, the first, are not chosen. Among equals the first is.
    """
    values = [result.score if by_score else result.estimate for result in results]
    allowed = [number for number, result in enumerate(results) if not number or likely(result.gain, min_probability)]
    return max(allowed, key=values.__getitem__)


def likely(gain: Gain, min_probability: float | None) -> bool:
    """Tell whether a gain over the original, as it is and as calibrated, has this probability; None asks for odds."""
    least = min(gain.probability, gain.probability_calibrated)
    if min_probability is not None:
        return least >= min_probability
    is_better = gain.probability >= MIN_ODDS * gain.worse
    return least > 0.0 and is_better and gain.probability_calibrated >= MIN_ODDS * gain.worse_calibrated


def comparison(
    original: Sequence[float],
    chosen: Sequence[float],
    *,
    num_candidates: int,
    gain: Gain,
    **expected: tuple[float, float, float],
) -> Comparison:
    """Compare the original with the best of this many candidates by their scores on the same examples."""
    gains = [after - before for before, after in zip(original, chosen, strict=True)]
    scores = [0.0, 1.0, *original, *chosen]
    largest = max(scores) - min(scores)
    margin = DEVIATIONS * gain.deviation
    low, high = paired_interval(gains, CONFIDENCE, num_comparisons=max(1, num_candidates - 1))
    # What is expected is shrunk, so that the gain may be larger rather than smaller: as large as was seen, or more.
    least = max(gain.expected - margin, -largest)
    # The interval reaches below 0 only where the gain is not this surely above it.
    least = max(least, 0.0) if gain.probability > (1 + CONFIDENCE) / 2 else min(least, 0.0)
    most = min(max(gain.expected, sum(gains) / len(gains)) + margin, largest)
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
        probability_worse=gain.worse,
        gain_interval=(round(least, 6), round(most, 6)),
        **expected,
    )


@dataclass(frozen=True)
class _ComparedAnswers:
    """The labels that the original and the chosen candidate answer to the same examples."""

    metric: ConfusionScores
    examples: Sequence[int]
    original: Mapping[int, str | None]
    chosen: Mapping[int, str | None]

    def values(self) -> tuple[float, float]:
        """Return the metric itself of both."""
        original = self.metric.value((example, self.original[example]) for example in self.examples)
        chosen = self.metric.value((example, self.chosen[example]) for example in self.examples)
        return original, chosen

    def scores(self) -> Array:
        """Return the scores of both on each example, ``[2, n]``, as they count."""
        original = [self.metric.score(example, self.original[example]) for example in self.examples]
        chosen = [self.metric.score(example, self.chosen[example]) for example in self.examples]
        return self.metric.reweighted(np.array([original, chosen]), np.array(self.examples))

    def gains(self) -> Array:
        """Return the differences of both scores, ``[n]``."""
        original, chosen = self.scores()
        return np.asarray(chosen - original)

    def linearize_between(self) -> None:
        """Take the answers of both as the reference of scores."""
        reference: list[Answer] = []
        for answers in (self.original, self.chosen):
            reference += [(example, answers[example]) for example in self.examples]
        self.metric.linearize_at(reference)


def rescore_with_set_metric(
    decision: Decision, scorer: CellScorer, original: Candidate, *, examples: Collection[int] | None
) -> Decision:
    """Return the decision by a metric over a set itself, on the given examples (None: all) that both programs answered.

    Scores are linear half way between both programs. So their mean difference is that of the metric, up to terms of the
    third order, and the interval is that of the infinitesimal jackknife (B. Efron, "The jackknife, the bootstrap and
    other resampling plans", 1982).
    """
    metric = scorer.influence
    fitted = decision.fitted
    assert metric is not None and fitted is not None and decision.chosen is not None
    answers = []
    for candidate in decision.candidates:
        calibrated = fitted.answers(candidate.ordering) if candidate.offsets else {}
        answers.append(scorer.answers(candidate.ordering, calibrated))
    before = answers[0]
    after = answers[decision.chosen]
    both = sorted(before.keys() & after.keys() & set(before if examples is None else examples))
    if not both:  # All calls of one of them failed.
        return decision
    compared = _ComparedAnswers(metric, both, before, after)
    # Scores that are linear near the best programs may be wrong for the original.
    as_it_is = metric.value(before.items())
    linear_gain = float(compared.gains().mean())
    compared.linearize_between()
    expected = _expected_by_metric(decision, compared, as_it_is, linear_gain)
    gains = [
        replace(candidate.gain, expected=value - as_it_is)
        for candidate, value in zip(decision.candidates, expected, strict=True)
    ]
    gain = _gain_by_metric(decision, compared, gains[decision.chosen])
    gains[decision.chosen] = gain
    candidates = []
    for number, candidate in enumerate(decision.candidates):
        score = _score_by_metric(candidate, answers[number], compared, examples)
        candidates.append(replace(candidate, score=score, gain=gains[number]))
    return replace(
        decision,
        comparison=_comparison_by_metric(decision, compared, gain, original, as_it_is),
        calibration=_effect_on_metric(decision, scorer, original, expected),
        candidates=candidates,
        answered=[(example, before[example], after[example]) for example in both],
    )


def _expected_by_metric(
    decision: Decision, compared: _ComparedAnswers, as_it_is: float, linear_gain: float
) -> list[float]:
    """Return the expected metric of the candidates, whose gains are smaller if the metric's own gain is."""
    before, after = compared.values()
    share = 1.0
    if linear_gain and (after - before) / linear_gain > 0:
        share = min(1.0, (after - before) / linear_gain)
    return [compared.metric.clip(as_it_is + share * candidate.gain.expected) for candidate in decision.candidates]


def _gain_by_metric(decision: Decision, compared: _ComparedAnswers, gain: Gain) -> Gain:
    """Return the gain of the chosen candidate, no surer than the answers to the compared examples allow."""
    fitted = decision.fitted
    assert fitted is not None
    before, after = compared.values()
    low, high = compared.metric.bounds
    sure = 1.0
    if before == after:  # Such answers say nothing of a gain.
        sure = 0.0
    elif decision.calibration is None or fitted.calibrating:  # Else log-probabilities say more than the answers.
        sure = _surely_better(compared.gains(), num_orderings=len(fitted.orderings))
    gain = _no_surer(gain, sure, largest=high - low)
    deviation = compared.metric.centring_factor * gain.deviation
    return replace(gain, deviation=min(deviation, high - low))


def _score_by_metric(
    candidate: Result, answers: Mapping[int, str | None], compared: _ComparedAnswers, examples: Collection[int] | None
) -> float:
    """Return the metric of a candidate's answers; of the two compared ones, on the same examples."""
    if answers is compared.original or answers is compared.chosen:
        counted: Collection[int] = compared.examples
    else:
        counted = [example for example in answers if examples is None or example in examples]
    if not counted:
        return candidate.score
    return compared.metric.value((example, answers[example]) for example in counted)


def _comparison_by_metric(
    decision: Decision, compared: _ComparedAnswers, gain: Gain, original: Candidate, as_it_is: float
) -> Comparison:
    """Compare the chosen candidate with the original by the metric itself."""
    assert decision.comparison is not None
    metric = compared.metric
    before, after = compared.values()
    expected_chosen = as_it_is + gain.expected
    larger = 0.0
    if gain.expected:  # The shrunk gain may be as large as the observed one.
        larger = max(0.0, after - expected_chosen)
    by_scores = comparison(
        *compared.scores().tolist(),
        num_candidates=decision.comparison.num_candidates,
        gain=gain,
        expected_original=_interval_by_metric(decision, metric, original, as_it_is, original),
        expected_chosen=_interval_by_metric(decision, metric, decision.ordering, expected_chosen, original, larger),
    )
    seen_gain = after - before
    low, high = metric.bounds
    # If few answers decide, the interval of the scores may miss the observed gain.
    limits = [*by_scores.interval, seen_gain]
    least, most = np.clip([min(limits), max(limits)], low - high, high - low).tolist()
    least_expected, most_expected = np.clip(by_scores.gain_interval, low - high, high - low).tolist()
    return by_scores.model_copy(
        update={
            "original": before,
            "chosen": after,
            "gain": seen_gain,
            "interval": (least, most),
            "gain_interval": (least_expected, most_expected),
        }
    )


def _interval_by_metric(
    decision: Decision,
    metric: ConfusionScores,
    ordering: Candidate,
    value: float,
    original: Candidate,
    larger: float = 0.0,
) -> tuple[float, float, float]:
    """Return an expected value with its interval, which new examples with other shares of labels widen."""
    assert decision.fitted is not None
    least, most = decision.fitted.interval(ordering, value, reference=original)
    of_shares = DEVIATIONS * metric.error_of_shares
    least = value - math.hypot(metric.centring_factor * (value - least), of_shares)
    most = value + math.hypot(metric.centring_factor * (most - value), of_shares) + larger
    return value, metric.clip(least), metric.clip(most)


def _by_few(gain: Gain, original: Mapping[int, float], other: Mapping[int, float]) -> Gain:
    """Return a gain no surer than the few examples that tell both apart.

    Near the highest score the best of many had no misses by luck, which the normal model takes for an effect.
    """
    differences = [other[example] - original[example] for example in original.keys() & other.keys()]
    if not differences or gain.expected <= 0 or sum(map(bool, differences)) >= ENOUGH_DIFFERING:
        return gain
    return _no_surer(gain, paired_probability(differences), largest=max(map(abs, differences)))


def _surely_better(differences: Array, *, num_orderings: int) -> float:
    """Return how surely the best of this many orderings is better by a metric over a set, by differences of scores.

    If few of them decide, such as those of a rare label, it is no surer than that none of the orderings looks as good
    by chance (Bonferroni), or as it takes to replace the original.
    """
    squares = differences**2
    sure = paired_probability(differences.tolist())
    if squares.sum() ** 2 >= ENOUGH_DIFFERING * np.square(squares).sum():
        return sure
    return max(1.0 - num_orderings * (1.0 - sure), min(sure, MIN_ODDS / (1.0 + MIN_ODDS)))


def _no_surer(gain: Gain, sure: float, *, largest: float) -> Gain:
    """Return a gain that is above 0 with at most this probability; its interval widens accordingly."""
    if sure <= 0.0:  # Nothing tells both apart.
        gain = replace(gain, expected=min(gain.expected, 0.0))
    probability = min(gain.probability, sure) if gain.expected > 0 else 0.0
    if probability < gain.probability and gain.expected > 0:
        deviation = min(gain.expected / max(float(special.ndtri(probability)), 1e-9), largest)
        gain = replace(gain, deviation=max(gain.deviation, deviation))
    if 0.0 < sure < 0.5 and gain.expected > 0:
        gain = replace(gain, worse=max(gain.worse, 1.0 - sure))
    return replace(gain, probability=probability)


def _effect_on_metric(
    decision: Decision, scorer: CellScorer, original: Candidate, expected: Sequence[float]
) -> CalibrationEffect | None:
    """Return what calibration does by the metric of the answers, and by the `expected` metric of the candidates."""
    metric = scorer.influence
    fitted = decision.fitted
    effect = decision.calibration
    assert metric is not None and fitted is not None and decision.chosen is not None
    if effect is None:
        return None
    always = []
    for label in metric.labels[: len(effect.always)]:
        always.append(metric.value((example, label) for example in range(metric.num_examples)))
    values: dict[str, float] = {}
    for name, ordering in (("original", original), ("chosen", decision.ordering)):
        as_it_is = scorer.answers(ordering, fitted.answers(ordering, calibrated=False))
        calibrated = scorer.answers(ordering, fitted.answers(ordering, calibrated=True))
        values[name] = metric.value(as_it_is.items())
        values[f"{name}_calibrated"] = metric.value(calibrated.items())
    values["chosen_calibrated" if effect.applied else "chosen"] = expected[decision.chosen]
    for candidate, value in zip(decision.candidates, expected, strict=True):
        if candidate.origin == "calibrated":
            values["original_calibrated"] = value
    rounded = {name: round(value, 6) for name, value in values.items()}
    return effect.model_copy(update={**rounded, "always": always})


def limit_gains(results: Sequence[Result], limit: Gain) -> list[Result]:
    """Return the results with gains that are no larger, and no surer, than a limit."""
    limited = []
    for result in results:
        gain = result.gain
        gain = replace(
            gain,
            expected=min(gain.expected, limit.expected),
            probability=min(gain.probability, limit.probability),
            worse=max(gain.worse, limit.worse),
            probability_calibrated=min(gain.probability_calibrated, limit.probability_calibrated),
            worse_calibrated=max(gain.worse_calibrated, limit.worse_calibrated),
        )
        limited.append(replace(result, gain=gain))
    return limited


def count_evidence(scores: Scores, *compared: Candidate) -> Evidence:
    """Count the examples that could tell orderings apart, those that did, and those of all compared."""
    by_example: dict[int, list[float]] = defaultdict(list)
    for row in scores.values():
        for example, score in row.items():
            by_example[example].append(score)
    repeated = [values for values in by_example.values() if len(values) > 1]
    common = set.intersection(*(set(scores[ordering]) for ordering in compared)) if compared else ()
    return Evidence(
        num_met=len(repeated),
        num_differing=sum(min(values) < max(values) for values in repeated),
        num_compared=len(common),
    )


def calibration_effect(
    fitted: FittedModel, original: Candidate, chosen: Candidate, *, applied: bool
) -> CalibrationEffect | None:
    """Compare both orderings as they are and calibrated; None without log-probabilities.

    The scores by which the ordering was chosen are those that the model expects: the best of many is shrunk.
    """
    before = fitted.calibration(original)
    after = fitted.calibration(chosen)
    responses = fitted.responses
    if before is None or after is None or responses is None:
        return None
    shares = []
    if responses.labels.calibrates:
        shares = [round(share, 6) for share in responses.labels.shares.tolist()]
    calibrating = fitted.calibrating
    expected = fitted.expected_scores(original)
    return CalibrationEffect(
        num_examples=responses.num_examples,
        original=round(fitted.as_it_is(original), 6),
        original_calibrated=round(expected[original] if calibrating else before.after, 6),
        chosen=round(fitted.as_it_is(chosen) if calibrating else expected[chosen], 6),
        chosen_calibrated=round(expected[chosen] if calibrating else after.after, 6),
        offsets=list(after.offsets),
        applied=applied,
        shares=shares,
        always=responses.always,
    )
