"""The model that a search asks: orderings and their scores in, estimates, gains and posterior draws out."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  # brings a library of its own, which is to be among those limited
import torch
from threadpoolctl import ThreadpoolController

from plr_dspy.search.model.gains import KINDS, Array, Mask, gain_of_calibration
from plr_dspy.search.model.process import AdditiveProcess, Features, ScoreTable, Worth
from plr_dspy.search.model.responses import Calibrated, LabelResponses, ResponseModel
from plr_dspy.search.space import Candidate, Ordering, OrderingSpace, ScoreEstimate, Scores, WholeProgram, best_first

# Orderings that the process is fitted to, which bounds its time. Half of them are the most promising; the others are
# evenly spread over the rest: from good ones alone nobody learns what is bad.
MAX_MODELLED = 176
MOST_SCORED = 32  # as many of the most promising are those with the most scores: the finalists are among them
LEAST_SHARE = 0.5  # of the calls must have brought log-probabilities: where they seldom come, scores tell more
DEVIATIONS = 1.96  # standard errors on either side of a mean that an interval of 95 % has
# Standard errors, at most, between what is expected of a program as it is and what its own scores say: it may be of
# another kind than the orderings that tell of it (B. Efron and C. Morris, JASA 67, 1972).
MOST_SHRUNK = 0.7

_LIBRARIES, _ARITHMETIC = ThreadpoolController(), threading.RLock()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for linear algebra, whose number belongs to the process, so that compiles take turns, and for torch.

    For matrices of some hundred rows, further threads cost more than they bring: on a busy machine ten times as much.
    """
    with _ARITHMETIC, _LIBRARIES.limit(limits=1, user_api="blas"):
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class OrderingModel:
    """Fits a Gaussian process that generalises from scored orderings to others, and from examples to others. What the
    space does not hold, such as `WITHOUT_DEMOS`, may be scored too; it has an effect of its own."""

    worth: Worth | None = None  # says what scores of each ordering are worth, as in `ScoreTable`; None: all the same

    def __init__(
        self,
        space: OrderingSpace,
        *,
        classes: Sequence[Sequence[int]] | None = None,  # this and the two that follow are as in `ThompsonSearch`
        example_classes: Sequence[int] | None = None,
        responses: LabelResponses | None = None,
        with_features: bool = True,  # whether orderings that look alike tell of each other
    ) -> None:
        self._space, self._responses = space, responses
        self._features = Features(space, classes=classes) if with_features else None
        self._example_classes = None if example_classes is None else np.array(example_classes)
        self.calibrating = responses is not None and responses.calibrating
        self.varies_in_length = space.from_end

    def fit(
        self, scores: Scores, *, earlier: Mapping[str, Any] | None = None, kept: Sequence[Candidate] = ()
    ) -> FittedModel:
        """Fit the process to the orderings kept, those that were scored most, those that promise most, and some of the
        others; it goes on from the variances of an earlier fit in fewer steps."""
        earlier, orderings = earlier or {}, list(scores)
        with one_thread():
            told = ScoreTable.of_rows([*scores.values()], self.worth)
            programs = np.array([isinstance(candidate, WholeProgram) for candidate in orderings], dtype=bool)
            logs = None if self._responses is None else self._responses.table(scores, told.examples)
            if len(orderings) > MAX_MODELLED:
                responses = self._respond(told, logs, apart=self._apart(orderings), programs=programs)
                means = np.array(told.adjusted_means * told.trust if responses is None else responses.means)
                means[np.lexsort((means, told.counts))[-MOST_SCORED:]] = np.inf
                means[[ordering in kept for ordering in orderings] | programs] = np.inf
                top = min(max(MAX_MODELLED // 2, int(np.isinf(means).sum())), MAX_MODELLED)
                spread = np.linspace(top, len(means), MAX_MODELLED - top, endpoint=False).astype(np.int64)
                ranked = np.argsort(-means, kind="stable")
                chosen = np.sort(ranked[[*range(top), *spread]])
                orderings = [orderings[number] for number in chosen]
                programs = programs[chosen]
                columns = told.known[chosen].any(axis=0)
                cells = np.ix_(chosen, columns)
                told = ScoreTable(told.scores[cells], told.examples[columns], told.worth[chosen])
                logs = logs and (logs[0][cells], logs[1][cells])
            features = self.features(orderings)
            apart = self._apart(orderings)
            kinds = {"apart": apart, "programs": programs}
            responses = self._respond(told, logs, **kinds, features=features, earlier=earlier.get("responses"))
            table, classes = told.scores, None
            if responses is not None and responses.calibrating:
                table = responses.calibrated
            elif responses is None and self._example_classes is not None:
                classes = np.unique(self._example_classes[told.examples], return_inverse=True)[1]
            process = AdditiveProcess(
                features,
                told if responses is None else ScoreTable(table - responses.expected),
                classes=classes,
                references=None if self._features is None else self._features.references,
                apart=apart,
                extra_variances=0.0 if responses is None else responses.mean_variances,
                earlier=earlier,
            )
        return FittedModel(self, orderings, process, responses, told, table)

    def shown(self, estimates: Sequence[ScoreEstimate], scores: Scores) -> list[ScoreEstimate]:
        """The estimates as people may be told them, within all scores that are known, and those of labels: the process
        is linear, and may expect 1.035 where a metric gives 0 or 1."""
        values = [score for row in scores.values() for score in row.values()]
        values += [] if self._responses is None else self._responses.scores.ravel().tolist()
        least, most = min(values, default=0.0), max(values, default=0.0)
        return [ScoreEstimate(ordering, min(max(least, score), most)) for ordering, score in estimates]

    def features(self, orderings: Sequence[Candidate]) -> list[Array]:
        """Features ``[m, d]`` of each family; all 0 for what the space does not hold, as of a mean ordering."""
        if self._features is None:
            return []
        apart, identity = self._apart(orderings), self._space.identity
        families = self._features([self._arrangement(candidate) or identity for candidate in orderings])
        return [family * ~apart[:, None] for family in families] if apart.any() else families

    def _respond(self, told: ScoreTable, logs: tuple[Array, Mask] | None, **options: Any) -> ResponseModel | None:
        """What log-probabilities say; None where most of the calls brought none."""
        if self._responses is None or logs is None:
            return None
        if (~np.isnan(logs[0][..., 0])).sum() <= LEAST_SHARE * told.counts.sum():
            return None
        return ResponseModel(self._responses, told.examples, logs, told=told.scores, **options)

    def _arrangement(self, candidate: Candidate) -> Ordering | None:
        """Return an ordering of the space that shows demos; None for other candidates."""
        return candidate if self._space.holds(candidate) and any(candidate) else None

    def _apart(self, candidates: Sequence[Candidate]) -> Mask:
        """Return for each candidate whether it has an effect of its own and no features, ``[m]``."""
        return np.array([self._arrangement(candidate) is None for candidate in candidates], dtype=bool)


@dataclass(frozen=True)
class Gain:
    """What is expected of an ordering beside another one, on examples that nobody has seen."""

    expected: float  # its mean score less the other's
    probability: float  # that this is above 0
    worse: float = 0.0  # the probability that it is below
    deviation: float = 0.0  # of the gain, as far as it is not known
    # The same where the other is calibrated, too; so for that itself, and where answers are not calibrated.
    probability_calibrated: float = 1.0
    worse_calibrated: float = 0.0


@dataclass(eq=False)
class FittedModel:
    """A model of scores as it was fitted; most methods are about the orderings fitted, others being ruled out, but
    `predict` and `sample` take any."""

    model: OrderingModel
    orderings: list[Candidate]
    process: AdditiveProcess
    responses: ResponseModel | None
    told: ScoreTable
    table: Array  # their scores as they count, [m, E]: where answers are calibrated, those of these

    def __post_init__(self) -> None:
        self._both = np.stack([self.table, self.told.scores])
        self._ends = float(np.nanmin(self._both)), float(np.nanmax(self._both))
        self.calibrating = self.responses is not None and self.responses.calibrating
        # What the next fit may go on from, as JSON data.
        self.variances = {**self.process.state, "responses": self.responses and self.responses.components}

    def estimates(self) -> list[ScoreEstimate]:
        """The process' estimates of the mean scores of the orderings fitted, best first."""
        means = self.process.mean if self.responses is None else self.responses.means + self.process.mean
        return best_first(zip(self.orderings, means.tolist(), strict=True))

    def expected_scores(self, reference: Candidate) -> dict[Candidate, float]:
        """What each ordering fitted is expected to score on new examples: the score of one as it is, and the gain."""
        score, gains = self.as_it_is(reference), self.gains(reference)
        expected = np.clip([score + gain.expected for gain in gains.values()], *self._ends).tolist()
        return {ordering: round(value, 9) for ordering, value in zip(gains, expected, strict=True)}

    def as_it_is(self, ordering: Candidate) -> float:
        """What an ordering is expected to score without calibration, never far from what its own calls say: the program
        that the user has."""
        number = self.orderings.index(ordering)
        if self.responses is None:
            own, expected = float(self.process.unshrunk[number]), dict(self.estimates())[ordering]
        else:
            own, expected = self.responses.corrected(number)[0], self.responses.calibration(number).before
        most = 0.0 if self.calibrating else MOST_SHRUNK * self._error(ordering)
        return float(np.clip(min(max(expected, own - most), own + most), *self._ends))

    def interval(self, ordering: Candidate, score: float, *, reference: Candidate) -> tuple[float, float]:
        """The 95 % interval of an expected score: as wide as the ordering's own calls, and those of the one that its
        gain is over, say.

        Those of the model itself are too narrow where it does not fit the program. Where all calls scored the same,
        from 0 to 1, it is 3 over the number of calls (J. Hanley and A. Lippman-Hand, JAMA 1983).
        """
        error = self._error(ordering, reference)
        if not error and 0.0 <= score <= 1.0:
            counts = self.told.counts
            margin = 3.0 / min(int(counts[self.orderings.index(each)]) for each in (ordering, reference))
            return round(max(0.0, score - margin), 6), round(min(1.0, score + margin), 6)
        low, high = np.clip([score - DEVIATIONS * error, score + DEVIATIONS * error], *self._ends).tolist()
        return round(min(score, low), 6), round(max(score, high), 6)

    def _error(self, *orderings: Candidate) -> float:
        """The standard error of the sum of mean scores of different orderings, by their own calls."""
        rows = self._both[:, [self.orderings.index(each) for each in set(orderings)]]
        # Scores by a metric over a set differ the more the rarer the examples that decide are in a row.
        spreads = np.maximum(np.nanstd(self._both, axis=(1, 2)).max(), np.nanstd(rows, axis=2).max(axis=0))
        return float(np.sqrt((spreads**2 / (~np.isnan(rows[0])).sum(axis=1)).sum()))

    def gains(self, reference: Candidate) -> dict[Candidate, Gain]:
        """What is expected of each ordering beside one of them as it is."""
        number, found = self.orderings.index(reference), []
        alone = np.array([[1.0], [0.0]]) * np.ones(len(self.orderings))
        foreseen = None if self.responses is None else self.responses.gains(number)
        with one_thread():
            # Log-probabilities may take what is apart for that, and what else its own calls say for chance: where they
            # come, a gain is no surer than if it were of another kind for certain. Without them the reference may be
            # unlike all others: somebody has made or chosen it.
            for kinds in (KINDS,) if foreseen is None else ((1.0,), KINDS):
                gains = self.process.gains(number, kinds=kinds, may_differ=foreseen is None)
                gains = gains if foreseen is None else gains.plus(foreseen)
                if self.responses is not None and self.calibrating:
                    above, below = (each.round(6) for each in gains.summary()[1:3])
                    alone = np.stack([np.minimum(alone[0], above), np.maximum(alone[1], below)])
                    gains = gains.plus(gain_of_calibration(*self.responses.corrected(number)[1:]))
                found.append(gains.summary())
            alone[:, number] = 1.0, 0.0
            expected, above, below, deviations = map(np.array, zip(*found, strict=True))
            # Rounded to what arithmetic gives again on another day.
            chances = above.min(axis=0).round(6), below.max(axis=0).round(6)
            columns = expected[-1].round(9), *chances, deviations.max(axis=0).round(9)
        rows = np.column_stack([*columns, *alone]).tolist()
        return {ordering: Gain(*row) for ordering, row in zip(self.orderings, rows, strict=True)}

    def counted(self, scores: Scores) -> Scores:
        """The scores that it was fitted to as they count, of the orderings fitted; others as they are."""
        if not self.calibrating:
            return scores
        columns = {example: column for column, example in enumerate(self.told.examples.tolist())}
        rows = dict(zip(self.orderings, self.table.tolist(), strict=True))
        return {o: {e: rows[o][columns[e]] for e in row} if o in rows else row for o, row in scores.items()}

    def answers(self, ordering: Candidate, *, calibrated: bool | None = None) -> dict[int, int]:
        """The labels, by example, of an ordering's answers where they are, or as a search scores them, calibrated."""
        wanted = self.calibrating if calibrated is None else calibrated
        if self.responses is None or not wanted or ordering not in self.orderings:
            return {}
        number, labels = self.orderings.index(ordering), self.responses.labels
        known = labels.known[number]
        return dict(zip(self.told.examples[known].tolist(), labels.answers[number, known].tolist(), strict=True))

    def calibration(self, ordering: Candidate) -> Calibrated | None:
        """What calibration does to an ordering; None without log-probabilities, and for one that was not fitted."""
        if self.responses is None or ordering not in self.orderings:
            return None
        return self.responses.calibration(self.orderings.index(ordering))

    def predict(self, orderings: Sequence[Candidate]) -> Array:
        """What the process expects of orderings, fitted or not, ``[m]``."""
        features = self.model.features(orderings)
        expected = self.process.predict(features)
        return expected if self.responses is None else expected + self.responses.predict_means(features)

    def clip(self, scores: Sequence[float]) -> list[float]:
        """Return scores that lie no further out than the highest and the lowest score."""
        return [float(np.clip(score, *self._ends)) for score in scores]

    def expected_at_random(self, drawn: Sequence[Candidate], longest: Sequence[Candidate]) -> float:
        """Return what random orderings of the largest number of items are expected to score on average.

        Args:
            drawn: Orderings that were drawn at random and scored: their own scores keep the mean from leaning to the
                good orderings, which most calls were spent on.
            longest: Random orderings of the largest number of items, not scored: those drawn may show fewer.
        """
        estimates = dict(self.estimates())
        with one_thread():
            predicted = self.predict(drawn)
            own = [estimates.get(ordering, other) for ordering, other in zip(drawn, predicted.tolist(), strict=True)]
            mean = float(np.mean(own))
            if self.model.varies_in_length:
                mean += float(self.predict(longest).mean() - predicted.mean())
        return float(np.clip(mean, *self._ends))

    def sample(self, others: Sequence[Candidate], num_draws: int, rng: np.random.Generator) -> Array:
        """Joint posterior draws of the scores of the orderings fitted, then of others, ``[draws, m + c]``."""
        features = [f[: len(others)] for f in self.model.features(others or self.orderings[:1])]
        if self.responses is None:
            return self.process.sample(features, num_draws, rng)
        means, variances = self.responses.predict(features)
        drawn = self.process.sample(features, num_draws, rng, extra_variances=variances)
        return np.asarray(drawn + np.concatenate([self.responses.means, means]))
