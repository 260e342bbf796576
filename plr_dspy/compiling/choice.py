"""The choice among the finalists by their expected gains on new examples."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import special

from plr_dspy.compiling.comparison import ENOUGH_DIFFERING, MIN_ODDS, MeasuredGain, comparison, measure_gain
from plr_dspy.compiling.effect import effect_on_set_metric, estimate_effect, revision_of
from plr_dspy.plackett_luce.distribution import PlackettLuce
from plr_dspy.report.schema import CalibrationEffect, Comparison, Evidence, Iteration
from plr_dspy.report.stop import Stop
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.observations import Observations
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.model.ordering_model import FittedModel, Gain, OrderingModel
from plr_dspy.search.space import Candidate, Scores
from plr_dspy.statistics.comparisons import paired_probability


@dataclass(frozen=True)
class Result:
    """The score of a finalist and its gain over the original.

    Attributes:
        origin: "original", "best seen", "mode" or "draw"; "calibrated" is the original with
            calibrated answers.
        ordering: The finalist.
        score: Mean score on the compared examples; for a metric over a set, its value there.
        gain: Gain over the original on new examples, clipped to the range of scores.
        estimate: Expected gain before clipping, which ranks the finalists.
    """

    origin: str
    ordering: Candidate
    score: float
    gain: Gain
    estimate: float = 0.0

    def measured(self, by_metric: MeasuredGain) -> "Result":
        """Return the result with the score and gain that the set metric itself gives."""
        gain = by_metric.gain
        return replace(self, score=by_metric.comparison.chosen, gain=gain, estimate=gain.expected)


@dataclass(frozen=True)
class Decision:
    """The chosen candidate and the evidence for it; most attributes are as in `Report`.

    Attributes:
        ordering: The chosen candidate.
        chosen: Index of its result in `candidates`; None without a comparison.
        effect: Effect of calibration; None without log-probabilities.
        fitted: Model fitted to all scores, including those of the final comparison.
        answered: For a metric over a set, each example with the original's and the chosen
            candidate's answer.
    """

    ordering: Candidate
    comparison: Comparison | None = None
    candidates: Sequence[Result] = ()
    chosen: int | None = None
    evidence: Evidence | None = None
    effect: CalibrationEffect | None = None
    fitted: FittedModel | None = None
    answered: Sequence[tuple[int, str | None, str | None]] = ()

    @property
    def revision(self) -> Revision | None:
        """The revision of the chosen candidate's answers; None if they are unchanged."""
        return revision_of(self.effect)

    def scale_of_metric(self, reference: Candidate) -> Callable[[float], float]:
        """Return a function that converts the model's expected scores to the scale of the comparison.

        The model approximates a metric over a set linearly, so its gains over the reference
        are scaled to the expected gain in the comparison.
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
    num_dropped: int = 0,
) -> Decision:
    """Choose among finalists, and compare the chosen one with the original.

    Args:
        finalists: Origins by finalist, the original first.
        examples: Examples that all finalists were scored on.
        observations: The calls to decide by.
        min_probability, by_score: As in `choose`.
        num_dropped: Number of other candidates, which dropped out because of their scores on
            these examples.
    """
    original, *_ = finalists
    scores = observations.counted()
    fitted = model.fit(scores, kept=list(finalists))
    results = _results(finalists, examples, scores, fitted)
    metric = observations.effective
    measured: list[MeasuredGain] = []
    if isinstance(metric, ConfusionScores):
        measured = _measure(results, observations, metric, fitted, num_dropped)
        results = [result.measured(by_metric) for result, by_metric in zip(results, measured, strict=True)]
    promising = max(results[1:], key=lambda result: result.gain.probability).ordering
    compared: Scores = fitted.counted(scores)
    if fitted.keeps_scores:
        compared = observations.scores()  # A set metric may weight equal scores differently.
    evidence = count_evidence(compared, original, promising)
    chosen = 0
    if evidence.num_differing or not fitted.keeps_scores:
        chosen = choose(results, min_probability=min_probability, by_score=by_score)
    else:  # No score differs, so no finalist is better than another.
        results = [replace(result, gain=Gain(0.0, 0.0)) for result in results]
    ordering = results[chosen].ordering
    if chosen:
        evidence = count_evidence(compared, original, ordering)
    decision = Decision(
        ordering,
        candidates=results,
        chosen=chosen,
        evidence=evidence,
        effect=estimate_effect(fitted, original, ordering, applied=chosen > 0),
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
        num_candidates=num_dropped + len(results),
        gain=gain,
        expected_original=(before, *fitted.interval(original, before, reference=original)),
        expected_chosen=(after, *fitted.interval(ordering, after, reference=original)),
    )
    return replace(decision, comparison=compared_scores)


def _results(
    finalists: Mapping[Candidate, str], examples: Sequence[int], scores: Scores, fitted: FittedModel
) -> list[Result]:
    """Return the finalists' results by the score model, starting with the unchanged original."""
    original, *_ = finalists
    entries = [(origin, ordering) for ordering, origin in finalists.items()]
    if not fitted.keeps_scores:
        entries.insert(1, ("calibrated", original))
    before = fitted.as_it_is(original)
    counted = fitted.counted(scores)
    gains = fitted.gains(original)
    expected = fitted.expected_scores(original)
    results = []
    for number, (origin, ordering) in enumerate(entries):
        row = counted[ordering] if number else scores[original]
        score = math.fsum(row[example] for example in examples) / len(examples)
        if number == 0 and not fitted.keeps_scores:
            results.append(Result(origin, ordering, score, Gain(0.0, 0.0)))
            continue
        gain = replace(gains[ordering], expected=round(expected[ordering] - before, 9) + 0.0)  # never -0.0
        if number and fitted.responses is None:
            gain = _limit_certainty(gain, scores[original], scores[ordering])
        results.append(Result(origin, ordering, score, gain, gains[ordering].expected))
    return results


def choose(results: Sequence[Result], *, min_probability: float | None = None, by_score: bool = False) -> int:
    """Return the index of the result with the best estimate; with `by_score`, the best score (PLR Algorithm 1).

    The original is first, and a result must be `likely` better to replace it. Ties go to the
    first.
    """
    values = [result.score if by_score else result.estimate for result in results]
    allowed = [number for number, result in enumerate(results) if not number or likely(result.gain, min_probability)]
    return max(allowed, key=values.__getitem__)


def likely(gain: Gain, min_probability: float | None) -> bool:
    """Return whether a gain over the original is likely enough to replace it.

    The threshold is `min_probability` or, if that is None, the odds `MIN_ODDS`. The gain must
    pass it over the original as it is and, if answers are calibrated, over the calibrated
    original.
    """
    if min_probability is not None:
        return gain.min_probability >= min_probability
    is_better = gain.probability >= MIN_ODDS * gain.worse
    is_better_alike = gain.probability_alike >= MIN_ODDS * gain.worse_alike
    return gain.min_probability > 0.0 and is_better and is_better_alike


def _limit_certainty(gain: Gain, original: Mapping[int, float], other: Mapping[int, float]) -> Gain:
    """Limit the certainty of a gain if scores differ on only a few examples.

    Near the highest score, the best of many orderings may be perfect by luck. The normal
    model mistakes this selection bias for an effect.
    """
    differences = [other[example] - original[example] for example in original.keys() & other.keys()]
    if not differences or gain.expected <= 0 or sum(map(bool, differences)) >= ENOUGH_DIFFERING:
        return gain
    probability = paired_probability(differences)
    if probability < gain.probability:
        deviation = gain.expected / max(float(special.ndtri(probability)), 1e-9)
        gain = replace(gain, deviation=max(gain.deviation, min(deviation, max(map(abs, differences)))))
    if probability < 0.5:
        gain = replace(gain, worse=max(gain.worse, 1.0 - probability))
    return replace(gain, probability=min(gain.probability, probability))


def _measure(
    results: Sequence[Result],
    observations: Observations,
    metric: ConfusionScores,
    fitted: FittedModel,
    num_dropped: int,
) -> list[MeasuredGain]:
    """Measure the gains of all finalists with the set metric itself."""
    original, *others = results
    before = metric.answers(observations.records[original.ordering], {})
    answers = [before]
    for result in others:
        labels = fitted.revised_labels(result.ordering)
        answers.append(metric.answers(observations.records[result.ordering], labels))
    num_candidates = num_dropped + len(results)
    measured = []
    for result, after in zip(results, answers, strict=True):
        gain = measure_gain(
            metric, before, after, result.gain, num_orderings=len(fitted.orderings), num_candidates=num_candidates
        )
        measured.append(gain)
    return measured


def _with_set_metric(
    decision: Decision, measured: Sequence[MeasuredGain], observations: Observations, metric: ConfusionScores
) -> Decision:
    """Return the decision, with its comparison and effect by the set metric."""
    fitted = decision.fitted
    assert fitted is not None and decision.chosen is not None
    by_metric = measured[decision.chosen]
    original, *others = decision.candidates
    original = replace(original, score=by_metric.comparison.original)
    effect = decision.effect
    if effect is not None:
        effect = effect_on_set_metric(
            effect,
            metric,
            observations.records,
            fitted,
            original=original.ordering,
            chosen=decision.ordering,
            compared=by_metric.comparison,
        )
    return replace(
        decision,
        comparison=by_metric.comparison,
        candidates=[original, *others],
        effect=effect,
        answered=by_metric.answered,
    )


def decide_without_comparison(
    ordering: Candidate,
    original: Candidate,
    scores: Callable[[], Scores],
    model: OrderingModel,
    *,
    evidence: Evidence | None = None,
) -> Decision:
    """Return the decision for a candidate that was not compared with the original.

    Args:
        scores: Returns all scores so far.
        evidence: Evidence on differences between candidates, if any.
    """
    decision = Decision(ordering, evidence=evidence)
    if model.keeps_scores:
        return decision
    known_scores = scores()
    scored = [candidate for candidate in (original, ordering) if candidate in known_scores]
    if not scored:
        return decision
    fitted = model.fit(known_scores, kept=scored)
    return replace(decision, effect=estimate_effect(fitted, scored[0], scored[-1], applied=ordering != original))


def count_evidence(scores: Scores, *compared: Candidate) -> Evidence:
    """Count the examples with several scores, those whose scores differ, and those that all of `compared` share."""
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
