"""The choice among the finalists, by what all scores let one expect of each on new examples."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from plr_dspy.plackett_luce.distribution import PlackettLuce
from plr_dspy.report.data import CalibrationEffect, Comparison, Evidence, Iteration
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
class Outcome:
    """What a compile found; many of these are as in `Report`."""

    ordering: Candidate  # the chosen one
    distributions: Sequence[PlackettLuce]  # the final ones, of each block
    history: list[Iteration]
    program_calls: dict[str, int]
    stopped: str  # why the search ended
    comparison: Comparison | None = None
    candidates: Sequence[Result] = ()
    chosen: int | None = None  # the number of the candidate that is the chosen one
    evidence: Evidence | None = None
    calibration: CalibrationEffect | None = None
    offsets: tuple[float, ...] = ()  # of the labels, that calibrate the chosen one
    fitted: FittedModel | None = None  # to all scores, those of the final comparison included
    answered: Sequence[tuple[int, Any, Any]] = ()  # what a metric over a set reads of both programs, by example

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


def judge(
    entries: Sequence[tuple[str, Candidate]],
    examples: Sequence[int],
    scores: Scores,
    model: OrderingModel,
    *,
    as_they_came: Scores,
    min_probability: float | None,
    by_score: bool,
) -> dict[str, Any]:
    """Choose among finalists, given by origin and ordering, the original first, and compare the chosen one with it:
    fields of the outcome.

    All scores that are known decide, as they count; all finalists have them on these examples. The rest is as in
    `choose`.
    """
    original = entries[0][1]
    fitted, results = model.fit(scores, kept=[ordering for _, ordering in entries]), list[Result]()
    counted, before = fitted.counted(scores), fitted.as_it_is(original)
    rows = [[scores[original][example] for example in examples]]
    if fitted.calibrating:
        entries = [entries[0], ("calibrated", original), *entries[1:]]
    rows += [[counted[ordering][example] for example in examples] for _, ordering in entries[1:]]
    estimates, expected = fitted.gains(original), fitted.expected_scores(original)
    for number, ((origin, ordering), row) in enumerate(zip(entries, rows, strict=True)):
        score = math.fsum(row) / len(row)
        if fitted.calibrating and not number:  # The original as it is.
            results.append(Result(origin, ordering, score, Gain(0.0, 0.0)))
            continue
        estimate, calibration = estimates[ordering], fitted.calibration(ordering)
        limited = replace(estimate, expected=round(expected[ordering] - before, 9) + 0.0)  # never -0.0
        if number and calibration is None:
            limited = _by_few(limited, scores[original], scores[ordering])
        offsets = calibration.offsets if calibration is not None and fitted.calibrating else ()
        results.append(Result(origin, ordering, score, limited, estimate.expected, offsets))
    promising = max(range(1, len(results)), key=lambda i: results[i].gain.probability)
    told = counted if fitted.calibrating else as_they_came  # Equal scores may not count the same.
    best, evidence = 0, count_evidence(told, original, entries[promising][1])
    if fitted.calibrating or evidence.num_differing:
        best = choose(results, min_probability=min_probability, by_score=by_score)
    else:  # None can be better than another.
        results = [replace(each, gain=Gain(0.0, 0.0)) for each in results]
    ordering, after = entries[best][1], before + results[best].gain.expected
    compared = comparison(
        rows[0],
        rows[best],
        num_candidates=len(rows),
        gain=results[best].gain,
        expected_original=(before, *fitted.interval(original, before, reference=original)),
        expected_chosen=(after, *fitted.interval(ordering, after, reference=original)),
    )
    return {
        "ordering": ordering,
        "comparison": compared,
        "candidates": results,
        "chosen": best,
        "offsets": results[best].offsets,
        "evidence": count_evidence(told, original, ordering) if best else evidence,
        "calibration": calibration_effect(fitted, original, ordering, applied=fitted.calibrating and best > 0),
        "fitted": fitted,
    }


def choose(results: Sequence[Result], *, min_probability: float | None = None, by_score: bool = False) -> int:
    """The number of the result that is expected to score best on new examples; among equals the first.

    Those that are not `likely` better than the original, the first, are not chosen. By score the best score decides, as
    by PLR Algorithm 1.
    """
    worth = [each.score if by_score else each.estimate for each in results]
    allowed = [number for number, each in enumerate(results) if not number or likely(each.gain, min_probability)]
    return max(allowed, key=worth.__getitem__)


def likely(gain: Gain, min_probability: float | None) -> bool:
    """Whether a gain over the original, as it is and as calibrated, has this probability; None asks for odds."""
    if min_probability is not None:
        return min(gain.probability, gain.probability_calibrated) >= min_probability
    odds = (gain.probability, gain.worse), (gain.probability_calibrated, gain.worse_calibrated)
    return all(better > 0.0 and better >= MIN_ODDS * worse for better, worse in odds)


def comparison(
    original: Sequence[float],
    chosen: Sequence[float],
    *,
    num_candidates: int,
    gain: Gain,
    **expected: tuple[float, float, float],
) -> Comparison:
    """Compare two orderings, the best of so many candidates and the original, by their scores on the same examples."""
    gains = [after - before for before, after in zip(original, chosen, strict=True)]
    scores = [0.0, 1.0, *original, *chosen]
    largest, margin = max(scores) - min(scores), DEVIATIONS * gain.deviation
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


def measure(outcome: Outcome, scorer: CellScorer, original: Candidate, *, examples: Collection[int] | None) -> Outcome:
    """The outcome by a metric over a set itself, on those of some examples (None for all) that both programs answered.

    Scores stand for the metric half way between both, so that their mean difference is that of the metric but for terms
    of the third order. So the interval is that of the infinitesimal jackknife (B. Efron, "The jackknife, the bootstrap
    and other resampling plans", 1982). Where scores alone are known, or answers are calibrated by these examples, a
    gain is no surer than by them alone.
    """
    influence, fitted, effect = scorer.influence, outcome.fitted, outcome.calibration
    assert influence is not None and fitted is not None
    assert outcome.comparison is not None and outcome.chosen is not None
    answers = [
        scorer.outputs(each.ordering, fitted.answers(each.ordering) if each.offsets else {})
        for each in outcome.candidates
    ]
    before, after = answers[0], answers[outcome.chosen]
    both = sorted(before.keys() & after.keys() & set(before if examples is None else examples))
    if not both:  # All calls of one of them failed.
        return outcome
    # What is linear near the best programs may be far from it at the original.
    as_it_is = influence.value(before.items())

    def scored() -> Array:
        """The scores ``[2, n]`` of both as they count."""
        table = [[influence.score(example, each[example]) for example in both] for each in (before, after)]
        return influence.stratified(np.array(table), np.array(both))

    linear = float(np.diff(scored(), axis=0).mean())
    influence.refer((example, each[example]) for each in (before, after) for example in both)
    rows = scored().tolist()
    values = [influence.value((example, each[example]) for example in both) for each in (before, after)]
    kept = (values[1] - values[0]) / linear if linear else 1.0
    share = min(1.0, kept) if kept > 0 else 1.0
    expected = [influence.limited(as_it_is + share * each.gain.expected) for each in outcome.candidates]
    gains = [replace(e.gain, expected=value - as_it_is) for e, value in zip(outcome.candidates, expected, strict=True)]
    gain, (low, high) = gains[outcome.chosen], influence.bounds
    # Answers by which the metric is the same say nothing of a gain; others say less than log-probabilities do.
    sure = float(values[0] != values[1])
    if sure and (effect is None or fitted.calibrating):
        sure = _surely_better(np.diff(rows, axis=0)[0], num_orderings=len(fitted.orderings))
    gain = _no_surer(gain, sure, largest=high - low)
    wider = influence.centring  # by groups of few examples little is known
    of_shares = DEVIATIONS * influence.error_of_shares
    gain = gains[outcome.chosen] = replace(gain, deviation=min(wider * gain.deviation, high - low))

    def with_interval(ordering: Candidate, value: float, further: float = 0.0) -> tuple[float, float, float]:
        least, most = fitted.interval(ordering, value, reference=original)
        least = value - math.hypot(wider * (value - least), of_shares)
        most = value + math.hypot(wider * (most - value), of_shares) + further
        return value, influence.limited(least), influence.limited(most)

    after_it = as_it_is + gain.expected
    # As of gains: what is shrunk may be as large as was seen, or more.
    further = max(0.0, values[1] - after_it) if gain.expected else 0.0
    compared = comparison(
        *rows,
        num_candidates=outcome.comparison.num_candidates,
        gain=gain,
        expected_original=with_interval(original, as_it_is),
        expected_chosen=with_interval(outcome.ordering, after_it, further),
    )
    seen = values[1] - values[0], *compared.interval  # From few groups the interval may be beside what was seen.
    intervals = np.clip([(min(seen), max(seen)), compared.gain_interval], low - high, high - low).tolist()
    changed: dict[str, Any] = {"original": values[0], "chosen": values[1], "gain": seen[0]}
    changed |= zip(("interval", "gain_interval"), map(tuple, intervals), strict=True)
    if effect is not None:
        effect = effect.model_copy(update=_effect_on_metric(outcome, scorer, original, expected))
    finalists = []
    for number, (each, told) in enumerate(zip(outcome.candidates, answers, strict=True)):
        counted = both if number in (0, outcome.chosen) else [e for e in told if examples is None or e in examples]
        score = influence.value((example, told[example]) for example in counted) if counted else each.score
        finalists.append(replace(each, score=score, gain=gains[number]))
    return replace(
        outcome,
        comparison=compared.model_copy(update=changed),
        calibration=effect,
        candidates=finalists,
        answered=[(example, before[example], after[example]) for example in both],
    )


def _by_few(gain: Gain, original: Mapping[int, float], other: Mapping[int, float]) -> Gain:
    """A gain no surer than the few examples that tell both apart: near the highest score the best of many has had no
    misses, which the normal model of scores takes for an effect."""
    differences = [other[example] - original[example] for example in original.keys() & other.keys()]
    if not differences or gain.expected <= 0 or sum(map(bool, differences)) >= ENOUGH_DIFFERING:
        return gain
    return _no_surer(gain, paired_probability(differences), largest=max(map(abs, differences)))


def _surely_better(differences: Array, *, num_orderings: int) -> float:
    """How surely the best of so many orderings is better by a metric over a set, by differences of scores alone.

    Where few of these decide, such as those of a rare label, it is no surer than that none of so many looks as good by
    chance (Bonferroni), or as it takes to replace the original.
    """
    squares, sure = differences**2, paired_probability(differences.tolist())
    if squares.sum() ** 2 >= ENOUGH_DIFFERING * np.square(squares).sum():
        return sure
    return max(1.0 - num_orderings * (1.0 - sure), min(sure, MIN_ODDS / (1.0 + MIN_ODDS)))


def _no_surer(gain: Gain, sure: float, *, largest: float) -> Gain:
    """A gain that is above 0 with this probability at most, and below 0 with the rest of it where that is the larger;
    its interval is as wide as gives this."""
    gain = gain if sure > 0.0 else replace(gain, expected=min(gain.expected, 0.0))  # Nothing tells both apart.
    probability = min(gain.probability, sure) if gain.expected > 0 else 0.0
    if probability < gain.probability and gain.expected > 0:
        deviation = min(gain.expected / max(float(special.ndtri(probability)), 1e-9), largest)
        gain = replace(gain, deviation=max(gain.deviation, deviation))
    if 0.0 < sure < 0.5 and gain.expected > 0:
        gain = replace(gain, worse=max(gain.worse, 1.0 - sure))
    return replace(gain, probability=probability)


def _effect_on_metric(
    outcome: Outcome, scorer: CellScorer, original: Candidate, expected: Sequence[float]
) -> dict[str, Any]:
    """Fields of what calibration does by a metric over a set: the metric of the answers that the calls gave, and of
    what was returned, and the original calibrated, the scores that are `expected` of the candidates."""
    influence, fitted, effect = scorer.influence, outcome.fitted, outcome.calibration
    assert influence is not None and fitted is not None and effect is not None and outcome.chosen is not None
    told: dict[str, Any] = {
        "always": [influence.value(enumerate(each)) for each in zip(*influence.of_labels, strict=True)]
    }
    for name, ordering in (("original", original), ("chosen", outcome.ordering)):
        for suffix, calibrated in (("", False), ("_calibrated", True)):
            answered = scorer.outputs(ordering, fitted.answers(ordering, calibrated=calibrated))
            told[name + suffix] = round(influence.value(answered.items()), 6)
    told["chosen_calibrated" if effect.applied else "chosen"] = round(expected[outcome.chosen], 6)
    for each, score in zip(outcome.candidates, expected, strict=True):
        if each.origin == "calibrated":
            told["original_calibrated"] = round(score, 6)
    return told


def count_evidence(scores: Scores, *compared: Candidate) -> Evidence:
    """Count the examples that could tell orderings apart, by all scores, those that did, and those of all compared."""
    by_example: dict[int, list[float]] = defaultdict(list)
    for row in scores.values():
        for example, score in row.items():
            by_example[example].append(score)
    met = [seen for seen in by_example.values() if len(seen) > 1]
    return Evidence(
        num_met=len(met),
        num_differing=sum(min(seen) < max(seen) for seen in met),
        num_compared=len(set.intersection(*(set(scores[each]) for each in compared))) if compared else 0,
    )


def calibration_effect(
    fitted: FittedModel, original: Candidate, chosen: Candidate, *, applied: bool
) -> CalibrationEffect | None:
    """Compare both orderings as they are and calibrated; None where log-probabilities do not say it.

    In the way that the ordering was chosen by, the scores are those that the fitted model expects of both: they
    differ from that of the original as it is by the expected gain, which is shrunk for being the best of many.
    """
    before, after, responses = fitted.calibration(original), fitted.calibration(chosen), fitted.responses
    if before is None or after is None or responses is None:
        return None
    shares = [round(share, 6) for share in responses.labels.shares.tolist()] if responses.labels.calibrates else []
    calibrating, expected = fitted.calibrating, fitted.expected_scores(original)
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
