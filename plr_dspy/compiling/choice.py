"""The choice of a finalist according to its expected gain on new examples."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import special

from plr_dspy.compiling.comparison import ENOUGH_DIFFERING, compare_by_set_metric, compare_mean_scores
from plr_dspy.compiling.effect import effect_on_set_metric, estimate_effect
from plr_dspy.plackett_luce.distribution import PlackettLuce
from plr_dspy.report.rules import MIN_ODDS, USER_PROGRAM_ODDS
from plr_dspy.report.schema import CalibrationEffect, Comparison, Evidence, Iteration
from plr_dspy.report.stop import Stop
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.effective_scores import Labels
from plr_dspy.scoring.observations import Observations
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.model.ordering_model import FittedModel, Gain, OrderingModel
from plr_dspy.search.space import Candidate, Scores
from plr_dspy.statistics.comparisons import paired_probability


@dataclass(frozen=True)
class Result:
    """The score of a finalist and its gain over a reference, such as the original.

    Attributes:
        candidate: The finalist.
        score: Mean score on the compared examples. For a metric over a set, the metric's value on
            all examples that the finalist and the reference answered.
        gain: Gain over the reference on new examples, limited so that the expected score is possible.
        estimate: Expected gain, by which finalists are ranked unless scores decide. It is not
            limited, except for a metric over a set.
        comparison: The comparison with the reference by a metric over a set. None for any other
            metric.
    """

    candidate: Candidate
    score: float
    gain: Gain
    estimate: float = 0.0
    comparison: Comparison | None = None


@dataclass(frozen=True)
class Decision:
    """The chosen candidate, and the evidence for choosing it.

    Attributes:
        candidate: The chosen candidate.
        comparison: The comparison of the chosen candidate with the original, or None if
            nothing was compared.
        best_user_program: The best of the user's programs, or None if that program is the
            original or the chosen candidate.
        over_best_user_program: The comparison of the chosen candidate with `best_user_program`,
            or None if `best_user_program` is None.
        results: The results of the finalists.
        chosen: Index of the chosen candidate's result in `results`, or None if nothing was
            compared.
        evidence: As in `ReportData`.
        effect: Effect of calibration, or None if it is unknown.
        fitted: The score model, fitted to the scores on which the decision is based. None if
            nothing was compared.
    """

    candidate: Candidate
    comparison: Comparison | None = None
    best_user_program: Candidate | None = None
    over_best_user_program: Comparison | None = None
    results: Sequence[Result] = ()
    chosen: int | None = None
    evidence: Evidence | None = None
    effect: CalibrationEffect | None = None
    fitted: FittedModel | None = None

    @property
    def revision(self) -> Revision | None:
        """The revision that calibrates the chosen candidate, or None if its answers are not calibrated."""
        effect = self.effect
        if effect is None or not effect.applied:
            return None
        return Revision(tuple(effect.offsets), tuple(effect.shares))

    def scale_of_metric(self, reference: Candidate) -> Callable[[float], float]:
        """Return a function that converts the model's expected scores to the scale of the metric.

        The model only approximates a metric over a set, so the function rescales gains over the
        reference. If the model expects the chosen candidate to gain, its rescaled gain equals
        `comparison.expected_gain`.
        """
        fitted = self.fitted
        comparison = self.comparison
        if fitted is None or comparison is None:
            return float
        start = comparison.expected_original[0]
        before = fitted.as_it_is(reference)
        linear_gain = fitted.expected_scores(reference)[self.candidate] - before
        share = 1.0
        if linear_gain > 0 and self.chosen:
            share = comparison.expected_gain / linear_gain

        def to_metric_scale(expected: float) -> float:
            # Losses are not on the way to the chosen candidate, so do not increase them.
            factor = share if expected > before else min(1.0, share)
            return start + factor * (expected - before)

        return to_metric_scale


@dataclass(frozen=True)
class Outcome:
    """The outcome of a compile run."""

    decision: Decision
    distributions: Sequence[PlackettLuce]  # final distribution of each block
    history: list[Iteration]
    program_calls: dict[str, int]  # number of calls in each phase, as in `ReportData`
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
    user_programs: Collection[Candidate] = (),
) -> Decision:
    """Choose one of the finalists, and compare it with the original.

    First, choose one of the user's programs: the original, unless another of them is probably better.
    Then replace this program with another finalist if that finalist is likely enough to be better.

    Args:
        finalists: The finalists, starting with the original.
        examples: Examples that all finalists were scored on.
        observations: The calls on which to base the choice.
        min_probability, by_score: As in `choose`.
        num_dropped: Number of candidates that a race dropped because of scores on these examples.
        user_programs: The user's programs other than the original.
    """
    original = finalists[0]
    scores = observations.counted()
    fitted = model.fit(scores)
    scored_finalists = _ScoredFinalists(finalists, examples, observations, scores, fitted, num_dropped)
    results = scored_finalists.results(original)
    promising = max(results[1:], key=lambda result: result.gain.probability).candidate
    # With a metric over a set, `scores` are weighted, and equal scores may become different. So use
    # the unweighted scores to find the examples on which scores differ.
    counted_scores = fitted.counted(scores) if fitted.calibrates_answers else observations.scores()
    if fitted.calibrates_answers or count_evidence(counted_scores).num_differing:
        choice = _choose_in_two_steps(scored_finalists, results, user_programs, min_probability, by_score)
    else:  # No score differs, so no finalist is better than another.
        results = [replace(result, gain=Gain(0.0, 0.0)) for result in results]
        choice = _Choice()
    chosen = choice.chosen
    candidate = results[chosen].candidate
    comparison_with_original = scored_finalists.compared(results, 0, chosen)
    results[0] = replace(results[0], score=comparison_with_original.original)
    best_user_program = None
    over_best_user_program = None
    if choice.best_of_user not in (0, chosen):
        best_user_program = results[choice.best_of_user].candidate
        over_best_user_program = scored_finalists.compared(
            choice.over_best_of_user, choice.best_of_user, chosen
        )
    return Decision(
        candidate,
        comparison_with_original.model_copy(update=over_calibrated(fitted, original, results[chosen])),
        best_user_program=best_user_program,
        over_best_user_program=over_best_user_program,
        results=results,
        chosen=chosen,
        evidence=count_evidence(counted_scores, original, candidate if chosen else promising),
        effect=scored_finalists.effect(original, candidate, applied=chosen > 0),
        fitted=fitted,
    )


@dataclass(frozen=True)
class _Choice:
    """The result of choosing a finalist.

    Attributes:
        chosen: Index of the chosen finalist.
        best_of_user: Index of the best of the user's programs, including the original.
        over_best_of_user: Results of all finalists, with gains over the best of the user's
            programs.
    """

    chosen: int = 0
    best_of_user: int = 0
    over_best_of_user: Sequence[Result] = ()


def _choose_in_two_steps(
    scored_finalists: "_ScoredFinalists",
    results: Sequence[Result],
    user_programs: Collection[Candidate],
    min_probability: float | None,
    by_score: bool,
) -> _Choice:
    """Choose one of the user's programs, then decide whether another finalist replaces it.

    Args:
        scored_finalists: The finalists and their scores.
        results: Results of all finalists, with gains over the original.
        user_programs, min_probability, by_score: As in `compare_finalists`.
    """
    of_user = [0]
    others: list[int] = []
    for number, result in enumerate(results[1:], start=1):
        numbers = of_user if result.candidate in user_programs else others
        numbers.append(number)
    best = of_user[choose([results[number] for number in of_user], min_probability, odds=USER_PROGRAM_ODDS)]
    over_best = results
    if best:
        over_best = scored_finalists.results(results[best].candidate)
    allowed = [best, *others]
    chosen = allowed[choose([over_best[number] for number in allowed], min_probability, by_score)]
    return _Choice(chosen, best, over_best)


@dataclass(frozen=True)
class _ScoredFinalists:
    """The finalists, the scores of all candidates, and a model fitted to these scores."""

    finalists: Sequence[Candidate]
    examples: Sequence[int]
    observations: Observations
    scores: Scores
    fitted: FittedModel
    num_dropped: int

    def results(self, reference: Candidate) -> list[Result]:
        """Return the results of the finalists, including their gains over the reference.

        The results are in the order of the finalists. If answers are calibrated, a result for the
        uncalibrated reference comes first, and all other results are for calibrated answers.
        """
        results = self._by_model(reference)
        metric = self.observations.effective_scores
        if not isinstance(metric, ConfusionScores):
            return results
        # Measure the gains with the metric itself, because the model only approximates it.
        fitted = self.fitted
        before = self._answers(metric, reference, {})
        measured = []
        for number, result in enumerate(results):
            labels = fitted.revised_labels(result.candidate) if number else {}
            gain, compared = compare_by_set_metric(
                metric,
                before,
                self._answers(metric, result.candidate, labels),
                result.gain,
                num_orderings=len(fitted.orderings),
                num_candidates=self.num_dropped + len(results),
            )
            measured.append(Result(result.candidate, compared.chosen, gain, gain.expected, compared))
        return measured

    def _answers(
        self, metric: ConfusionScores, candidate: Candidate, labels: Labels
    ) -> dict[int, str | None]:
        """Return a candidate's answers. As in the model, most failed calls count as incorrect answers."""
        failures = self.observations.counted_failures(candidate)
        return metric.answers(self.observations.records[candidate], labels, failures=failures)

    def _by_model(self, reference: Candidate) -> list[Result]:
        """Return the finalists' results, with gains estimated by the score model."""
        fitted = self.fitted
        scores = self.scores
        before = fitted.as_it_is(reference)
        counted = fitted.counted(scores)
        gains = fitted.gains(reference)
        expected = fitted.expected_scores(reference)
        results = []
        if fitted.calibrates_answers:
            results.append(Result(reference, self._mean(scores[reference]), Gain(0.0, 0.0)))
        for ordering in self.finalists:
            # Adding 0.0 turns -0.0 into 0.0.
            expected_gain = round(expected[ordering] - before, 9) + 0.0
            gain = replace(gains[ordering], expected=expected_gain)
            if ordering != reference and fitted.responses is None:
                gain = _limit_certainty(gain, scores[reference], scores[ordering])
            results.append(Result(ordering, self._mean(counted[ordering]), gain, gains[ordering].expected))
        return results

    def _mean(self, row: Mapping[int, float]) -> float:
        return math.fsum(row[example] for example in self.examples) / len(self.examples)

    def compared(self, results: Sequence[Result], reference: int, chosen: int) -> Comparison:
        """Return the comparison of the chosen finalist with the reference.

        Args:
            results: Results of all finalists, with gains over this reference.
            reference, chosen: Indices of the two finalists' results in `results`.
        """
        result = results[chosen]
        if result.comparison is not None:
            return result.comparison
        fitted = self.fitted
        first = results[reference].candidate
        candidate = result.candidate
        chosen_scores = self.scores if chosen == reference else fitted.counted(self.scores)
        before = fitted.as_it_is(first)
        after = before + result.gain.expected
        return compare_mean_scores(
            [self.scores[first][example] for example in self.examples],
            [chosen_scores[candidate][example] for example in self.examples],
            num_candidates=self.num_dropped + len(results),
            gain=result.gain,
            expected_original=(before, *fitted.interval(first, before, reference=first)),
            expected_chosen=(after, *fitted.interval(candidate, after, reference=first)),
            original_stays=chosen == reference,
        )

    def effect(self, original: Candidate, chosen: Candidate, *, applied: bool) -> CalibrationEffect | None:
        """Return the effect of calibration, or None if too few calls returned log-probabilities.

        For a metric over a set, compute the effect with the metric itself, not from the model's scores.
        """
        effect = estimate_effect(self.fitted, original, chosen, applied=applied)
        metric = self.observations.effective_scores
        if effect is None or not isinstance(metric, ConfusionScores):
            return effect
        return effect_on_set_metric(effect, metric, self.observations.records, self.fitted, original)


def choose(
    results: Sequence[Result],
    min_probability: float | None = None,
    by_score: bool = False,
    *,
    odds: float = MIN_ODDS,
) -> int:
    """Return the index of the result with the highest estimate or, if `by_score`, the highest score.

    The first result belongs to the reference. Any other result can be chosen only if its gain over
    the reference is sufficiently probable (see `likely`). If several results are equal, choose the first.
    """
    values = [result.score if by_score else result.estimate for result in results]
    allowed = [0]
    for number, result in enumerate(results):
        if number and likely(result.gain, min_probability, odds=odds):
            allowed.append(number)
    return max(allowed, key=values.__getitem__)


def likely(gain: Gain, min_probability: float | None, *, odds: float = MIN_ODDS) -> bool:
    """Return whether a gain over a reference is likely enough for the candidate to replace the reference.

    The probability of a gain must be at least `min_probability`. If `min_probability` is None,
    a gain must be at least `odds` times as likely as a loss. If answers are calibrated, the gain
    over the calibrated reference must meet the same condition.
    """
    probability = min(gain.probability, gain.probability_alike)
    if min_probability is not None:
        return probability >= min_probability
    is_better = gain.probability >= odds * gain.worse
    is_better_alike = gain.probability_alike >= odds * gain.worse_alike
    return probability > 0.0 and is_better and is_better_alike


def _limit_certainty(gain: Gain, original: Mapping[int, float], other: Mapping[int, float]) -> Gain:
    """Limit the certainty of a gain if scores differ on only a few examples.

    Near the highest possible score, the best of many orderings may get a perfect score by chance.
    The score model would mistake this selection bias for an effect, because it assumes normal errors.
    So reduce the probability of a gain to the estimate from the paired scores, and increase the
    deviation. If this estimate is at most 0.5, also increase the probability of a loss. Otherwise,
    keep the model's probability of a loss, because the model has other evidence, too.
    """
    differences = [other[example] - original[example] for example in original.keys() & other.keys()]
    if not differences or gain.expected <= 0 or sum(map(bool, differences)) >= ENOUGH_DIFFERING:
        return gain
    probability = paired_probability(differences)
    if probability < gain.probability:
        # If no score differs, the deviation could be anything up to the range of the scores.
        scores = [*original.values(), *other.values()]
        largest = max(map(abs, differences)) or max(scores) - min(scores)
        deviation = gain.expected / max(float(special.ndtri(probability)), 1e-9)
        gain = replace(gain, deviation=max(gain.deviation, min(deviation, largest)))
    if probability <= 0.5:  # The paired scores are no evidence of a gain.
        gain = replace(gain, worse=max(gain.worse, 1.0 - probability))
    return replace(gain, probability=min(gain.probability, probability))


def over_calibrated(fitted: FittedModel | None, original: Candidate, result: Result) -> dict[str, float]:
    """Return the probabilities that a result is better or worse than the calibrated original.

    The keys are fields of `Comparison`. The dict is empty if answers are not calibrated, or
    if the result belongs to the original itself.
    """
    if fitted is None or not fitted.calibrates_answers or result.candidate == original:
        return {}
    gain = result.gain
    return {"over_calibrated": gain.probability_alike, "worse_than_calibrated": gain.worse_alike}


def count_evidence(scores: Scores, *compared: Candidate) -> Evidence:
    """Count examples with several scores, with different scores, and with scores of all in `compared`."""
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
