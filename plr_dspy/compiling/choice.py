"""The choice among the finalists by their expected gains on new examples."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import special

from plr_dspy.compiling.comparison import ENOUGH_DIFFERING, MIN_ODDS, comparison, measure_gain
from plr_dspy.compiling.effect import effect_on_set_metric, estimate_effect
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
        ordering: The finalist.
        score: Mean score on the compared examples or, for a metric over a set, the metric's
            value on them.
        gain: Gain over the original on new examples, clipped to the range of scores.
        estimate: Expected gain before clipping, which ranks the finalists.
    """

    ordering: Candidate
    score: float
    gain: Gain
    estimate: float = 0.0


@dataclass(frozen=True)
class Decision:
    """The chosen candidate, and the evidence for choosing it.

    Attributes that are not listed are as in `Report`.

    Attributes:
        ordering: The chosen candidate.
        chosen: Index of the chosen candidate's result in `candidates`; None if nothing was
            compared.
        effect: Effect of calibration; None if calls returned no log-probabilities.
        fitted: Model fitted to all scores, including those of the final comparison.
    """

    ordering: Candidate
    comparison: Comparison | None = None
    candidates: Sequence[Result] = ()
    chosen: int | None = None
    evidence: Evidence | None = None
    effect: CalibrationEffect | None = None
    fitted: FittedModel | None = None

    @property
    def revision(self) -> Revision | None:
        """The revision of the chosen candidate's answers, or None if the answers are unchanged."""
        effect = self.effect
        if effect is None or not effect.applied:
            return None
        return Revision(tuple(effect.offsets), tuple(effect.shares))

    def scale_of_metric(self, reference: Candidate) -> Callable[[float], float]:
        """Return a function that converts expected scores to the scale of the comparison.

        The model approximates a metric over a set linearly, so its gains over the reference
        are rescaled to match the expected gain in the comparison.
        """
        fitted = self.fitted
        comparison = self.comparison
        if fitted is None or comparison is None:
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
    finalists: Sequence[Candidate],
    examples: Sequence[int],
    observations: Observations,
    model: OrderingModel,
    *,
    min_probability: float | None,
    by_score: bool = False,
    num_dropped: int = 0,
) -> Decision:
    """Choose one of the finalists, and compare it with the original.

    Args:
        finalists: The finalists, starting with the original.
        examples: Examples that all finalists were scored on.
        observations: The calls on which to base the choice.
        min_probability, by_score: As in `choose`.
        num_dropped: Number of candidates dropped because of their scores on these examples.
    """
    original = finalists[0]
    scores = observations.counted()
    fitted = model.fit(scores, kept=finalists)
    results = _results(finalists, examples, scores, fitted)
    num_candidates = num_dropped + len(results)
    metric = observations.effective
    by_metric: list[tuple[Gain, Comparison]] = []
    if isinstance(metric, ConfusionScores):
        by_metric = _measure(results, observations, metric, fitted, num_candidates)
        for number, (gain, measured) in enumerate(by_metric):
            results[number] = Result(results[number].ordering, measured.chosen, gain, gain.expected)
    counted = fitted.counted(scores)
    if fitted.keeps_scores:
        counted = observations.scores()  # Weighted by a metric over a set, equal scores may differ.
    promising = max(results[1:], key=lambda result: result.gain.probability).ordering
    evidence = count_evidence(counted, original, promising)
    chosen = 0
    if evidence.num_differing or not fitted.keeps_scores:
        chosen = choose(results, min_probability=min_probability, by_score=by_score)
    else:  # No score differs, so no finalist is better than another.
        results = [replace(result, gain=Gain(0.0, 0.0)) for result in results]
    ordering = results[chosen].ordering
    if chosen:
        evidence = count_evidence(counted, original, ordering)
    effect = estimate_effect(fitted, original, ordering, applied=chosen > 0)
    if isinstance(metric, ConfusionScores):
        compared = by_metric[chosen][1]
        results[0] = replace(results[0], score=compared.original)
        if effect is not None:
            effect = effect_on_set_metric(effect, metric, observations.records, fitted, original)
    else:
        compared = _compare_means(results, chosen, examples, scores, fitted, num_candidates)
    return Decision(ordering, compared, results, chosen, evidence, effect, fitted)


def _results(
    finalists: Sequence[Candidate], examples: Sequence[int], scores: Scores, fitted: FittedModel
) -> list[Result]:
    """Return the finalists' results by the score model, starting with the unchanged original.

    If answers are calibrated, the second result is that of the calibrated original.
    """
    original = finalists[0]
    before = fitted.as_it_is(original)
    counted = fitted.counted(scores)
    gains = fitted.gains(original)
    expected = fitted.expected_scores(original)
    results = []
    if not fitted.keeps_scores:
        results.append(Result(original, _mean(scores[original], examples), Gain(0.0, 0.0)))
    for ordering in finalists:
        # Adding 0.0 turns -0.0 into 0.0.
        gain = replace(gains[ordering], expected=round(expected[ordering] - before, 9) + 0.0)
        if results and fitted.responses is None:
            gain = _limit_certainty(gain, scores[original], scores[ordering])
        results.append(Result(ordering, _mean(counted[ordering], examples), gain, gains[ordering].expected))
    return results


def _mean(row: Mapping[int, float], examples: Sequence[int]) -> float:
    return math.fsum(row[example] for example in examples) / len(examples)


def _measure(
    results: Sequence[Result],
    observations: Observations,
    metric: ConfusionScores,
    fitted: FittedModel,
    num_candidates: int,
) -> list[tuple[Gain, Comparison]]:
    """Measure the gains of all finalists with the metric over a set, not with its approximation by the model."""
    before = metric.answers(observations.records[results[0].ordering], {})
    measured = []
    for number, result in enumerate(results):
        labels = fitted.revised_labels(result.ordering) if number else {}
        after = metric.answers(observations.records[result.ordering], labels)
        gain = measure_gain(
            metric,
            before,
            after,
            result.gain,
            num_orderings=len(fitted.orderings),
            num_candidates=num_candidates,
        )
        measured.append(gain)
    return measured


def _compare_means(
    results: Sequence[Result],
    chosen: int,
    examples: Sequence[int],
    scores: Scores,
    fitted: FittedModel,
    num_candidates: int,
) -> Comparison:
    """Compare the chosen finalist with the unchanged original by their mean scores."""
    original = results[0].ordering
    ordering = results[chosen].ordering
    gain = results[chosen].gain
    chosen_scores = fitted.counted(scores) if chosen else scores
    before = fitted.as_it_is(original)
    after = before + gain.expected
    return comparison(
        [scores[original][example] for example in examples],
        [chosen_scores[ordering][example] for example in examples],
        num_candidates=num_candidates,
        gain=gain,
        expected_original=(before, *fitted.interval(original, before, reference=original)),
        expected_chosen=(after, *fitted.interval(ordering, after, reference=original)),
    )


def choose(results: Sequence[Result], *, min_probability: float | None = None, by_score: bool = False) -> int:
    """Return the index of the result with the best estimate or, with `by_score`, the best score.

    The first result is that of the original. Only a finalist whose gain is `likely` can
    replace the original. The first result wins ties.
    """
    values = [result.score if by_score else result.estimate for result in results]
    allowed = [
        number for number, result in enumerate(results) if not number or likely(result.gain, min_probability)
    ]
    return max(allowed, key=values.__getitem__)


def likely(gain: Gain, min_probability: float | None) -> bool:
    """Return whether a gain is likely enough to replace the original.

    The threshold is `min_probability` or, if that is None, the odds `MIN_ODDS`. If answers are
    calibrated, the gain over the calibrated original must reach this threshold, too.
    """
    if min_probability is not None:
        return gain.min_probability >= min_probability
    is_better = gain.probability >= MIN_ODDS * gain.worse
    is_better_alike = gain.probability_alike >= MIN_ODDS * gain.worse_alike
    return gain.min_probability > 0.0 and is_better and is_better_alike


def _limit_certainty(gain: Gain, original: Mapping[int, float], other: Mapping[int, float]) -> Gain:
    """Limit the certainty of a gain if scores differ on only a few examples.

    Near the highest possible score, the best of many orderings may be perfect by chance. The
    normal model mistakes this selection bias for an effect.
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


def count_evidence(scores: Scores, *compared: Candidate) -> Evidence:
    """Count the examples with several scores, with different scores, and with scores of all `compared` candidates."""
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
