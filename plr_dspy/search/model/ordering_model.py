"""The model that a search uses to estimate the scores of orderings and to draw from their posterior.

A Gaussian process (Eq. 2 in `process.py`) models the scores y of calls. If most calls return
log-probabilities of labels, `ResponseModel` predicts the scores from them. The process then models the
differences y - s from these predictions s. Otherwise, the process includes the label bias if there are
features and the examples have several classes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import scipy.linalg  # noqa: F401  # loads a separate BLAS that `one_thread` must limit
import torch
from threadpoolctl import ThreadpoolController

from plr_dspy.search.model.answers import Revision
from plr_dspy.search.model.features import Features
from plr_dspy.search.model.gains import Gains, GainSummary
from plr_dspy.search.model.process import OUTSIDER_VARIANCE, UNEXPLAINED_OUTSIDER_VARIANCE, AdditiveProcess
from plr_dspy.search.model.response_model import ResponseModel
from plr_dspy.search.model.responses import Calls, LabelResponses
from plr_dspy.search.model.score_table import InformationWeights, ScoreTable
from plr_dspy.search.space import (
    Candidate,
    Ordering,
    OrderingSpace,
    ScoreEstimate,
    Scores,
    WholeProgram,
    best_first,
)
from plr_dspy.statistics.arrays import Array, Mask
from plr_dspy.statistics.comparisons import likely_bounds

# Use log-probabilities only if more than this fraction of calls returned them. Otherwise, scores
# alone predict better.
LEAST_SHARE = 0.5
DEVIATIONS = 1.96  # half the width of a 95% interval, in standard errors

# Maximum distance between the score that `FittedModel.as_it_is()` returns and the estimate based on
# the ordering's own scores, in standard errors (B. Efron and C. Morris, JASA 67, 1972).
MOST_SHRUNK = 0.7

_LIBRARIES = ThreadpoolController()
_ARITHMETIC = threading.RLock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run linear algebra in one thread, because this is faster for small matrices.

    While this context is active, other Python threads wait to enter it.
    """
    with _ARITHMETIC, _LIBRARIES.limit(limits=1, user_api="blas"):
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(num_threads)


class OrderingModel:
    """A model that learns from known scores to predict the scores of new orderings on new examples.

    Args:
        space, classes, example_classes, responses: As in `ThompsonSearch`.
        with_features: Whether to use features. With features, the model expects similar orderings
            to have similar scores.

    Attributes:
        information_weights: A function that returns a weight for each candidate: how informative
            one of its scores is. None if all scores are equally informative.
        calibrates_answers: Whether calibrated answers are scored if log-probabilities are used.
        varies_in_length: Whether orderings may show different numbers of demos.
    """

    information_weights: InformationWeights | None = None

    def __init__(
        self,
        space: OrderingSpace,
        *,
        classes: Sequence[Sequence[int]] | None = None,
        example_classes: Sequence[int] | None = None,
        responses: LabelResponses | None = None,
        with_features: bool = True,
    ) -> None:
        self._space = space
        self._responses = responses
        self._features = Features(space, classes=classes) if with_features else None
        self._example_classes = None if example_classes is None else np.array(example_classes)
        self.calibrates_answers = responses is not None and responses.are_calibrated
        self.varies_in_length = space.from_end

    def fit(self, scores: Scores) -> FittedModel:
        """Return the model fitted to `scores`."""
        with one_thread():
            candidates = list(scores)
            scored = ScoreTable.from_rows([*scores.values()], self.information_weights)
            features = self.features(candidates)
            is_outsider = np.array([self._arrangement(candidate) is None for candidate in candidates])
            responses = self._respond(scores, scored, features, is_outsider)
            counted_scores = scored.scores
            unexplained = scored
            classes = None
            outsider_variances = OUTSIDER_VARIANCE * is_outsider
            extra_variances: Array | float = 0.0
            if responses is not None:
                counted_scores = responses.answers.scores
                differences = counted_scores - responses.expected
                unexplained = ScoreTable(differences, information_weights=responses.information_weights)
                is_explained = is_outsider & ~responses.is_mute_outsider
                outsider_variances[is_explained] = UNEXPLAINED_OUTSIDER_VARIANCE
                extra_variances = responses.mean_variances
            elif self._example_classes is not None:
                classes = np.unique(self._example_classes[scored.examples], return_inverse=True)[1]
            process = AdditiveProcess(
                features,
                unexplained,
                classes=classes,
                references=None if self._features is None else self._features.references,
                outsider_variances=outsider_variances,
                extra_variances=extra_variances,
                has_random_shares=self.information_weights is None,
            )
        return FittedModel(self, candidates, process, responses, scored, counted_scores)

    def features(self, candidates: Sequence[Candidate]) -> list[Array]:
        """Return the features ``[m, d]`` of each family.

        All features of an outsider, such as a whole program, are 0. The model therefore treats an
        outsider like an average ordering.
        """
        if self._features is None:
            return []
        arrangements = [self._arrangement(candidate) for candidate in candidates]
        is_inside = np.array([arrangement is not None for arrangement in arrangements], dtype=bool)
        orderings = [arrangement or self._space.identity for arrangement in arrangements]
        return [family * is_inside[:, None] for family in self._features(orderings)]

    def _respond(
        self, scores: Scores, scored: ScoreTable, features: Sequence[Array], is_outsider: Mask
    ) -> ResponseModel | None:
        """Return a model fitted to the log-probabilities, or None if too few calls have log-probabilities."""
        if self._responses is None:
            return None
        labels = self._responses.table(scores, scored.examples)
        if labels.known.sum() <= LEAST_SHARE * scored.counts.sum():
            return None
        is_program = np.array([isinstance(candidate, WholeProgram) for candidate in scores])
        return ResponseModel(self._responses, Calls(scored, labels, is_program, is_outsider), features)

    def _arrangement(self, candidate: Candidate) -> Ordering | None:
        """Return the candidate if it is an ordering in the space and shows any items, else None."""
        return candidate if self._space.contains(candidate) and any(candidate) else None


@dataclass(frozen=True)
class Gain:
    """An ordering's gain over a reference ordering on unseen examples.

    `margin` is the argument of `FittedModel.gains()`, by default 0.
    """

    expected: float
    probability: float  # probability of a gain above -margin
    worse: float = 0.0  # probability of a gain below -margin
    deviation: float = 0.0  # posterior standard deviation of the gain

    # The next two fields are probabilities that the gain over the calibrated reference is above and
    # below -margin. They are 1 and 0 for the reference itself. Without calibration, they are 1 and
    # 0 for all orderings.
    probability_alike: float = 1.0
    worse_alike: float = 0.0


@dataclass(eq=False)
class FittedModel:
    """A model fitted to the scores of `orderings`.

    Methods that predict or sample scores also accept other orderings.

    Attributes:
        counted_scores: The scores to which the model is fitted, ``[m, E]``. If answers are
            calibrated, those with log-probabilities are scored after calibration.
        calibrates_answers: Whether `counted_scores` contains scores of calibrated answers. False if
            log-probabilities are not used.
    """

    model: OrderingModel
    orderings: list[Candidate]
    process: AdditiveProcess
    responses: ResponseModel | None
    scored: ScoreTable
    counted_scores: Array

    def __post_init__(self) -> None:
        self._all_scores = np.stack([self.counted_scores, self.scored.scores])
        self._range = float(np.nanmin(self._all_scores)), float(np.nanmax(self._all_scores))
        self.calibrates_answers = self.responses is not None and self.model.calibrates_answers
        self._known_gains: dict[tuple[Candidate, float], dict[Candidate, Gain]] = {}

    def estimates(self) -> list[ScoreEstimate]:
        """Return each fitted ordering with its posterior mean score, best first.

        The process is linear, so it may predict impossible scores, such as 1.035 for an accuracy.
        These scores still rank orderings, so `clip` them only after ranking.
        """
        means = self.process.mean
        if self.responses is not None:
            means = self.responses.means + means
        return best_first(zip(self.orderings, means.tolist(), strict=True))

    def expected_scores(self, reference: Candidate) -> dict[Candidate, float]:
        """Return each fitted ordering's expected score on unseen examples.

        This score is the reference's expected score plus the ordering's gain over the reference.
        """
        score = self.as_it_is(reference)
        gains = self.gains(reference)
        return {ordering: round(self.clip(score + gain.expected), 9) for ordering, gain in gains.items()}

    def as_it_is(self, ordering: Candidate) -> float:
        """Return an ordering's expected score with uncalibrated answers.

        Shrinkage changes the estimate based on the ordering's own scores by at most `MOST_SHRUNK`
        standard errors. If calibrated answers are scored, this estimate is not shrunk.
        """
        number = self.orderings.index(ordering)
        if self.responses is None:
            own = float(self.process.unshrunk[number])
            expected = float(self.process.mean[number])
        else:
            own = self.responses.answers.corrected(number)[0]
            expected = self.responses.answers.score_as_it_is(number)
        margin = 0.0 if self.calibrates_answers else MOST_SHRUNK * self._error(ordering)
        return self.clip(min(max(expected, own - margin), own + margin))

    def interval(self, ordering: Candidate, score: float, *, reference: Candidate) -> tuple[float, float]:
        """Return the 95% interval for an ordering's expected score.

        The standard error includes the errors of both the ordering's and the reference's mean score.
        If all known scores are equal, the margin is 3 / n of the likely range of scores. Here, n is the
        smaller of the two candidates' numbers of scores (J. Hanley and A. Lippman-Hand, JAMA 1983).
        """
        error = self._error(ordering, reference)
        if not error:
            rows = [self.orderings.index(candidate) for candidate in (ordering, reference)]
            lowest, highest = likely_bounds([score])
            margin = 3.0 / int(self.scored.counts[rows].min()) * (highest - lowest)
            return round(max(lowest, score - margin), 6), round(min(highest, score + margin), 6)
        low = self.clip(score - DEVIATIONS * error)
        high = self.clip(score + DEVIATIONS * error)
        return round(min(score, low), 6), round(max(score, high), 6)

    def _error(self, *orderings: Candidate) -> float:
        """Return the standard error of the sum of the distinct orderings' mean scores."""
        rows = self._all_scores[:, [self.orderings.index(ordering) for ordering in set(orderings)]]
        # With a metric over a set, scores vary more in rows with few examples of a decisive label.
        # So use a row's own deviation if it is larger than the deviation of all scores.
        deviations = np.maximum(
            np.nanstd(self._all_scores, axis=(1, 2)).max(), np.nanstd(rows, axis=2).max(axis=0)
        )
        counts = (~np.isnan(rows[0])).sum(axis=1)
        return float(np.sqrt((deviations**2 / counts).sum()))

    def clip(self, score: float) -> float:
        """Return the score, clipped to the range of all known scores."""
        return float(np.clip(score, *self._range))

    def gains(self, reference: Candidate, *, margin: float = 0.0) -> dict[Candidate, Gain]:
        """Return each fitted ordering's gain over the uncalibrated reference.

        The gain's probabilities are those of gains above and below ``-margin``.
        """
        # Cache the gains, because they take up to a second and several parts of a report need them.
        key = (reference, margin)
        if key not in self._known_gains:
            self._known_gains[key] = self._compute_gains(reference, margin)
        return dict(self._known_gains[key])

    def _compute_gains(self, reference: Candidate, margin: float) -> dict[Candidate, Gain]:
        number = self.orderings.index(reference)
        above_alike = np.ones(len(self.orderings))
        below_alike = np.zeros(len(self.orderings))
        with one_thread():
            alternatives = self._alternative_gains(number)
            over_uncalibrated = alternatives
            if self.responses is not None and self.calibrates_answers:
                over_calibrated = self._summary(alternatives, number, margin)
                is_other = np.arange(len(self.orderings)) != number
                above_alike = np.where(is_other, over_calibrated.above, 1.0)
                below_alike = np.where(is_other, over_calibrated.below, 0.0)
                gain_of_calibration = self.responses.answers.gain_of_calibration(number)
                over_uncalibrated = [gains.plus(gain_of_calibration) for gains in alternatives]
            summary = self._summary(over_uncalibrated, number, margin)
        rows = np.column_stack([*summary, above_alike, below_alike]).tolist()
        return {ordering: Gain(*row) for ordering, row in zip(self.orderings, rows, strict=True)}

    def _alternative_gains(self, reference: int) -> list[Gains]:
        """Return the gains over a reference and, if needed, more cautious gains.

        Cautious gains exclude the hypothesis that outsiders resemble other orderings. They are needed
        if the model uses log-probabilities but an outsider has no usable ones. If answers are
        calibrated, all gains are over the calibrated reference.
        """
        label_gains = None if self.responses is None else self.responses.gains(reference)
        if self.responses is None or label_gains is None:
            # The reference may be unlike all other orderings, because a person made it.
            return [self.process.gains(reference, may_differ=True)]
        alternatives = [self.process.gains(reference).plus(label_gains)]
        if self.responses.is_mute_outsider.any():
            cautious = self.process.gains(reference, outsider_scales=(1.0,))
            alternatives.append(cautious.plus(label_gains))
        return alternatives

    def _summary(self, alternatives: Sequence[Gains], reference: int, margin: float) -> GainSummary:
        """Return a summary of the gains that `_alternative_gains()` returned for a reference."""
        summary, *cautious = [gains.summary(margin=margin) for gains in alternatives]
        if self.responses is not None and cautious:
            # An outsider without usable log-probabilities is expected to score like an average ordering.
            # If its scores confirm this, small differences seem too certain. So use the lower
            # certainty of both summaries.
            is_mute = self.responses.is_mute_outsider
            summary = _less_certain(summary, cautious[0], where=is_mute | is_mute[reference])
        # Round the results, because their last digits differ between machines.
        return GainSummary(
            summary.expected.round(9),
            summary.above.round(6),
            summary.below.round(6),
            summary.deviations.round(9),
        )

    def counted(self, scores: Scores) -> Scores:
        """Return `scores`, with `counted_scores` in place of the scores of fitted orderings."""
        if not self.calibrates_answers:
            return scores
        columns = {example: column for column, example in enumerate(self.scored.examples.tolist())}
        rows = dict(zip(self.orderings, self.counted_scores.tolist(), strict=True))
        counted: dict[Candidate, Mapping[int, float]] = dict(scores)
        for ordering in counted.keys() & rows.keys():
            counted[ordering] = {example: rows[ordering][columns[example]] for example in scores[ordering]}
        return counted

    def revised_labels(self, ordering: Candidate) -> dict[int, int]:
        """Return the labels that replace an ordering's original answers, keyed by example.

        The dict is empty if the original answers are scored or the ordering is not fitted.
        """
        if not self.calibrates_answers or ordering not in self.orderings:
            return {}
        return self.calibrated_labels(ordering)

    def calibrated_labels(self, ordering: Candidate) -> dict[int, int]:
        """Return an ordering's calibrated answers, keyed by example.

        Examples without log-probabilities are omitted.
        """
        assert self.responses is not None
        number = self.orderings.index(ordering)
        columns = np.flatnonzero(self.responses.labels.known[number])
        labels = self.responses.answers.calibrated_labels.answers[number, columns]
        return dict(zip(self.scored.examples[columns].tolist(), labels.tolist(), strict=True))

    def revision(self, ordering: Candidate) -> Revision | None:
        """Return the calibration of an ordering's answers, or None if the original answers are scored."""
        if self.responses is None or not self.calibrates_answers:
            return None
        answers = self.responses.answers
        return Revision(answers.rounded_offsets(self.orderings.index(ordering)), answers.calibrated_shares)

    def predict(self, orderings: Sequence[Candidate]) -> Array:
        """Return the expected mean scores of fitted or new orderings, ``[m]``."""
        features = self.model.features(orderings)
        expected = self.process.predict(features)
        return expected if self.responses is None else expected + self.responses.predict_means(features)

    def expected_at_random(self, drawn: Sequence[Candidate], longest: Sequence[Candidate]) -> float:
        """Return the expected mean score of random orderings that show as many items as possible.

        `drawn` and `longest` are as in `effect_of_length()`. All `drawn` orderings must be fitted.
        """
        estimates = dict(self.estimates())
        mean = float(np.mean([estimates[ordering] for ordering in drawn]))
        return self.clip(mean + self.effect_of_length(drawn, longest))

    def effect_of_length(self, drawn: Sequence[Candidate], longest: Sequence[Candidate]) -> float:
        """Return the expected difference in mean score between the `longest` and the `drawn` orderings.

        `drawn` holds random orderings of any length. `longest` holds another sample, in which each
        ordering shows as many items as possible.
        """
        if not self.model.varies_in_length:
            return 0.0
        with one_thread():
            return float(self.predict(longest).mean() - self.predict(drawn).mean())

    def sample(self, others: Sequence[Candidate], num_draws: int, rng: np.random.Generator) -> Array:
        """Draw mean scores from the joint posterior of `orderings` and `others`, ``[draws, m + c]``."""
        features = [family[: len(others)] for family in self.model.features(others or self.orderings[:1])]
        if self.responses is None:
            return self.process.sample(features, num_draws, rng)
        means, variances = self.responses.predict(features)
        draws = self.process.sample(features, num_draws, rng, extra_variances=variances)
        return np.asarray(draws + np.concatenate([self.responses.means, means]))


def _less_certain(summary: GainSummary, cautious: GainSummary, *, where: Mask) -> GainSummary:
    """Return `summary`, but use the lower certainty of both summaries for the gains in the mask `where`."""
    return GainSummary(
        summary.expected,
        np.where(where, np.minimum(summary.above, cautious.above), summary.above),
        np.where(where, np.maximum(summary.below, cautious.below), summary.below),
        np.where(where, np.maximum(summary.deviations, cautious.deviations), summary.deviations),
    )
