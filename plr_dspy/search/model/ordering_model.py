"""The model that a search uses: scores of orderings in, estimates, gains and posterior draws out.

code         shape   meaning
m, c, E              fitted orderings, other orderings, examples
scored       [m, E]  scores of orderings on examples, NaN if unknown
table        [m, E]  scores as they count, those of calibrated answers if a search calibrates
is_outsider  [m]     whether a candidate has an own effect and no features
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import scipy.linalg  # noqa: F401  # loads its own BLAS, which must be among the limited libraries
import torch
from threadpoolctl import ThreadpoolController

from plr_dspy.search.model.features import Features
from plr_dspy.search.model.gains import Array, Mask, gain_of_calibration
from plr_dspy.search.model.process import AdditiveProcess
from plr_dspy.search.model.responses import CalibrationEstimate, LabelResponses, ResponseModel
from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.search.space import Candidate, Ordering, OrderingSpace, ScoreEstimate, Scores, WholeProgram, best_first

MAX_MODELLED = 250  # orderings that the process is fitted to, which bounds its time
LEAST_SHARE = 0.5  # of the calls must have log-probabilities; with fewer, scores tell more
DEVIATIONS = 1.96  # standard errors from a mean to the ends of its 95 % interval
# Standard errors, at most, between an expected score and the mean of the own scores of an ordering
# (B. Efron and C. Morris, JASA 67, 1972).
MOST_SHRUNK = 0.7

_LIBRARIES = ThreadpoolController()
_ARITHMETIC = threading.RLock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run linear algebra and torch in one thread, which is faster for small matrices; compiles take turns."""
    with _ARITHMETIC, _LIBRARIES.limit(limits=1, user_api="blas"):
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(num_threads)


class OrderingModel:
    """What scores of orderings on some examples tell of other orderings, and of other examples."""

    def __init__(
        self,
        space: OrderingSpace,
        *,
        classes: Sequence[Sequence[int]] | None = None,  # this and the next two as in `ThompsonSearch`
        example_classes: Sequence[int] | None = None,
        responses: LabelResponses | None = None,
        with_features: bool = True,  # whether similar orderings tell of each other
    ) -> None:
        self._space = space
        self._responses = responses
        self._features = Features(space, classes=classes) if with_features else None
        self._example_classes = None if example_classes is None else np.array(example_classes)
        self.calibrating = responses is not None and responses.calibrating
        self.varies_in_length = space.from_end

    def fit(self, scores: Scores, *, kept: Sequence[Candidate] = ()) -> FittedModel:
        """Fit the process to the scores; candidates to be `kept` are modelled however many there are."""
        with one_thread():
            if len(scores) > MAX_MODELLED:
                scores = self._most_promising(scores, kept)
            candidates = list(scores)
            features = self.features(candidates)
            scored = ScoreTable.from_rows([*scores.values()])
            responses = self._respond(scores, scored, features)
            table = scored.scores
            unexplained = scored
            classes = None
            extra_variances: Array | float = 0.0
            if responses is not None:
                if responses.calibrating:
                    table = responses.calibrated_scores
                unexplained = ScoreTable(table - responses.expected)
                extra_variances = responses.mean_variances
            elif self._example_classes is not None:
                classes = np.unique(self._example_classes[scored.examples], return_inverse=True)[1]
            process = AdditiveProcess(
                features,
                unexplained,
                classes=classes,
                references=None if self._features is None else self._features.references,
                is_outsider=self._is_outsider(candidates),
                extra_variances=extra_variances,
            )
        return FittedModel(self, candidates, process, responses, scored, table)

    def features(self, candidates: Sequence[Candidate]) -> list[Array]:
        """Return the features ``[m, d]`` of each family; outsiders have 0, as a mean ordering."""
        if self._features is None:
            return []
        is_outsider = self._is_outsider(candidates)
        orderings = [self._arrangement(candidate) or self._space.identity for candidate in candidates]
        return [family * ~is_outsider[:, None] for family in self._features(orderings)]

    def _most_promising(self, scores: Scores, kept: Sequence[Candidate]) -> Scores:
        """Choose the candidates to be kept, those with the best means, and for contrast some of the others."""
        candidates = list(scores)
        means = ScoreTable.from_rows([*scores.values()]).shrunk_means
        for number, candidate in enumerate(candidates):
            if isinstance(candidate, WholeProgram) or candidate in kept:
                means[number] = np.inf
        ranked = np.argsort(-means, kind="stable")
        spread = np.linspace(MAX_MODELLED // 2, len(means), MAX_MODELLED // 2, endpoint=False).astype(np.int64)
        chosen = np.sort(ranked[[*range(MAX_MODELLED // 2), *spread]])
        return {candidates[number]: scores[candidates[number]] for number in chosen}

    def _respond(self, scores: Scores, scored: ScoreTable, features: Sequence[Array]) -> ResponseModel | None:
        """Fit the model of log-probabilities; None if most calls have none."""
        if self._responses is None:
            return None
        table = self._responses.table(scores, scored.examples)
        if table.known.sum() <= LEAST_SHARE * scored.counts.sum():
            return None
        return ResponseModel(
            self._responses,
            features,
            table,
            scored.examples,
            is_outsider=self._is_outsider(list(scores)),
            is_program=np.array([isinstance(candidate, WholeProgram) for candidate in scores], dtype=bool),
            call_scores=scored.scores,
        )

    def _arrangement(self, candidate: Candidate) -> Ordering | None:
        """Return an ordering of the space that shows demos; None for other candidates."""
        return candidate if self._space.contains(candidate) and any(candidate) else None

    def _is_outsider(self, candidates: Sequence[Candidate]) -> Mask:
        return np.array([self._arrangement(candidate) is None for candidate in candidates], dtype=bool)


@dataclass(frozen=True)
class Gain:
    """The gain of an ordering over another one on unseen examples."""

    expected: float
    probability: float  # of a gain above 0
    worse: float = 0.0  # probability of a gain below 0
    deviation: float = 0.0  # of the posterior
    # The same if the other one is calibrated too. Without calibration, and for the other one itself, 1 and 0.
    probability_calibrated: float = 1.0
    worse_calibrated: float = 0.0


@dataclass(eq=False)
class FittedModel:
    """A model that was fitted to scores; `predict` and `sample` alone take orderings that were not fitted."""

    model: OrderingModel
    orderings: list[Candidate]
    process: AdditiveProcess
    responses: ResponseModel | None
    scored: ScoreTable
    table: Array

    def __post_init__(self) -> None:
        both = np.stack([self.table, self.scored.scores])
        self._range = float(np.nanmin(both)), float(np.nanmax(both))
        self.calibrating = self.responses is not None and self.responses.calibrating

    def estimates(self) -> list[ScoreEstimate]:
        """Return the posterior mean scores of the fitted orderings, best first."""
        means = self.process.mean
        if self.responses is not None:
            means = self.responses.means + means
        return best_first(zip(self.orderings, means.tolist(), strict=True))

    def expected_scores(self, reference: Candidate) -> dict[Candidate, float]:
        """Return expected scores on unseen examples: that of the reference as it is, plus gains."""
        score = self.as_it_is(reference)
        gains = self.gains(reference)
        return {ordering: round(self.clip(score + gain.expected), 9) for ordering, gain in gains.items()}

    def as_it_is(self, ordering: Candidate) -> float:
        """Return the expected score of an ordering without calibration, never far from its own calls."""
        number = self.orderings.index(ordering)
        if self.responses is None:
            own = float(self.process.unshrunk[number])
            expected = dict(self.estimates())[ordering]
        else:
            own = self.responses.corrected(number)[0]
            expected = self.responses.calibration(number).before
        margin = 0.0 if self.calibrating else MOST_SHRUNK * self._error(ordering)
        return self.clip(min(max(expected, own - margin), own + margin))

    def interval(self, ordering: Candidate, score: float, *, reference: Candidate) -> tuple[float, float]:
        """Return the 95 % interval of an expected score, by the calls of the ordering and of the reference.

        If all calls scored the same, the margin is 3 over their number (J. Hanley and
        A. Lippman-Hand, JAMA 1983).
        """
        error = self._error(ordering, reference)
        if not error and 0.0 <= score <= 1.0:
            rows = [self.orderings.index(candidate) for candidate in (ordering, reference)]
            margin = 3.0 / int(self.scored.counts[rows].min())
            return round(max(0.0, score - margin), 6), round(min(1.0, score + margin), 6)
        low = self.clip(score - DEVIATIONS * error)
        high = self.clip(score + DEVIATIONS * error)
        return round(min(score, low), 6), round(max(score, high), 6)

    def _error(self, *orderings: Candidate) -> float:
        """Return the standard error of the sum of mean scores of different orderings, by their own calls."""
        rows = [self.orderings.index(ordering) for ordering in set(orderings)]
        # By a metric over a set, scores differ the more the rarer the decisive examples are in a row.
        variances = np.maximum(np.nanvar(self.scored.scores), np.nanvar(self.scored.scores[rows], axis=1))
        return float(np.sqrt((variances / self.scored.counts[rows]).sum()))

    def clip(self, score: float) -> float:
        """Return a score within the range of all scores."""
        return float(np.clip(score, *self._range))

    def gains(self, reference: Candidate) -> dict[Candidate, Gain]:
        """Return the gain of each fitted ordering over one of them as it is."""
        number = self.orderings.index(reference)
        with one_thread():
            foreseen = None if self.responses is None else self.responses.gains(number)
            # Without log-probabilities the reference may be unlike all others, because somebody has chosen it.
            gains = self.process.gains(number, may_differ=foreseen is None)
            if foreseen is not None:
                gains = gains.plus(foreseen)
            above_calibrated = np.ones(len(self.orderings))
            below_calibrated = np.zeros(len(self.orderings))
            if self.responses is not None and self.calibrating:
                _, above_calibrated, below_calibrated, _ = gains.summary()
                above_calibrated[number] = 1.0
                below_calibrated[number] = 0.0
                _, gain, differences = self.responses.corrected(number)
                gains = gains.plus(gain_of_calibration(gain, differences))
        summary = gains.summary()
        # Round to digits that another machine finds too.
        columns = (
            summary.expected.round(9),
            summary.above.round(6),
            summary.below.round(6),
            summary.deviations.round(9),
            above_calibrated.round(6),
            below_calibrated.round(6),
        )
        rows = np.column_stack(columns).tolist()
        return {ordering: Gain(*row) for ordering, row in zip(self.orderings, rows, strict=True)}

    def counted(self, scores: Scores) -> Scores:
        """Return scores as they count, calibrated ones for fitted orderings."""
        if not self.calibrating:
            return scores
        columns = {example: column for column, example in enumerate(self.scored.examples.tolist())}
        rows = dict(zip(self.orderings, self.table.tolist(), strict=True))
        counted: dict[Candidate, Mapping[int, float]] = dict(scores)
        for ordering in counted.keys() & rows.keys():
            counted[ordering] = {example: rows[ordering][columns[example]] for example in scores[ordering]}
        return counted

    def answers(self, ordering: Candidate, *, calibrated: bool | None = None) -> dict[int, int]:
        """Return the calibrated labels of an ordering by example, if the search or `calibrated` says so."""
        if calibrated is None:
            calibrated = self.calibrating
        if self.responses is None or not calibrated or ordering not in self.orderings:
            return {}
        number = self.orderings.index(ordering)
        known = self.responses.known[number]
        answers = self.responses.labels.answers[number, known]
        return dict(zip(self.scored.examples[known].tolist(), answers.tolist(), strict=True))

    def calibration(self, ordering: Candidate) -> CalibrationEstimate | None:
        """Return what calibration does to an ordering; None without log-probabilities, or if it was not fitted."""
        if self.responses is None or ordering not in self.orderings:
            return None
        return self.responses.calibration(self.orderings.index(ordering))

    def predict(self, orderings: Sequence[Candidate]) -> Array:
        """Return the expected scores of any orderings, ``[m]``."""
        features = self.model.features(orderings)
        expected = self.process.predict(features)
        return expected if self.responses is None else expected + self.responses.predict(features)

    def clipped(self, estimates: Sequence[ScoreEstimate]) -> list[ScoreEstimate]:
        """Return estimates within that range: the process is linear, and may expect 1.035 of scores of 0 or 1."""
        return [ScoreEstimate(ordering, self.clip(score)) for ordering, score in estimates]

    def expected_at_random(self, drawn: Sequence[Candidate], longest: Sequence[Candidate]) -> float:
        """Return the expected mean score of random orderings of the largest number of items.

        Args:
            drawn: Random orderings of any number of items that were scored, which most
                calls were not spent on.
            longest: Random orderings of the largest number of items.
        """
        estimates = dict(self.estimates())
        with one_thread():
            predicted = self.predict(drawn)
            own = [estimates.get(ordering, other) for ordering, other in zip(drawn, predicted.tolist(), strict=True)]
            mean = float(np.mean(own))
            if self.model.varies_in_length:
                mean += float(self.predict(longest).mean() - predicted.mean())
        return self.clip(mean)

    def sample(self, others: Sequence[Candidate], num_draws: int, rng: np.random.Generator) -> Array:
        """Draw jointly from the posterior of the fitted orderings, then of others, ``[draws, m + c]``."""
        features = [family[: len(others)] for family in self.model.features(others or self.orderings[:1])]
        if self.responses is None:
            return self.process.sample(features, num_draws, rng)
        variances = self.responses.predict_variances(features)
        draws = self.process.sample(features, num_draws, rng, extra_variances=variances)
        return np.asarray(draws + np.concatenate([self.responses.means, self.responses.predict(features)]))
