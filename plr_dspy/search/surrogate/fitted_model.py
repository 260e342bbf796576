"""A model of scores as it was fitted: estimates, gains, posterior draws, and what calibration does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plr_dspy.report.data import Leaning
from plr_dspy.runtime.threads import one_thread
from plr_dspy.search.space import Ordering, ScoreEstimate
from plr_dspy.search.surrogate.gains import gain_of_calibration
from plr_dspy.search.surrogate.gaussian_process import Array, Surrogate
from plr_dspy.search.surrogate.response_model import ResponseModel

Scores: TypeAlias = Mapping[Ordering, Mapping[int, float]]
"""Scores by example of each ordering."""


DEVIATIONS = 1.96
"""Standard errors on either side of a mean that an interval of 95 % has."""


@dataclass(frozen=True)
class Gain:
    """What is expected of an ordering beside another one, on examples that nobody has seen.

    Attributes:
        expected: Its mean score less the other's.
        probability: That this is above 0.
        deviation: Standard deviation of the gain, as far as it is not known.
        probability_calibrated: Where answers are calibrated, the probability that it scores more than the other when
            this one is calibrated, too: else the gain is that of calibration. 1 for the other itself, and elsewhere.
    """

    expected: float
    probability: float
    deviation: float = 0.0
    probability_calibrated: float = 1.0


@dataclass(frozen=True)
class Calibrated:
    """What calibration does to an ordering.

    Attributes:
        offsets: Of the labels, ``[L]``.
        before, after: Mean scores over all examples that are expected without calibration and with it. Replies that say
            nothing of labels have the share and the scores that they had in the ordering's own cells, but for those
            with calibration where answers are not calibrated.
        log_probabilities, calibrated: Of labels, as its cells told them and calibrated, ``[n, L]``.
        scores: What the labels score there, ``[n, L]``.
    """

    offsets: tuple[float, ...]
    before: float
    after: float
    log_probabilities: Array
    calibrated: Array
    scores: Array


class FittedModel:
    """The process as it was fitted to some scores.

    Args:
        orderings: Those that it was fitted to; others have been ruled out.
        surrogate: The process.
        features: Makes features of orderings.
        earlier: The variances that the fit went on from.
        responses: What log-probabilities say; None without any.
        table: Scores of the orderings as they were told, ``[m, E]``.

    Attributes:
        orderings, earlier: The same.
    """

    def __init__(
        self,
        orderings: Sequence[Ordering],
        surrogate: Surrogate,
        *,
        features: Any,
        earlier: Mapping[str, Any],
        responses: ResponseModel | None = None,
        table: Array | None = None,
    ) -> None:
        self._responses = responses
        self._table = table
        self.orderings = list(orderings)
        self.earlier = earlier
        self._surrogate = surrogate
        self._features = features

    @property
    def table(self) -> Array:
        """Scores of the orderings fitted as they count, ``[m, E]``; NaN where there is none."""
        table = np.zeros((0, 0)) if self._table is None else self._table
        return table if self._responses is None else self._responses.counted(table)

    @property
    def variances(self) -> dict[str, Any]:
        """What the next fit may go on from."""
        responses = None if self._responses is None else self._responses.components
        return {**self._surrogate.state_dict(), "responses": responses}

    def estimates(self) -> list[ScoreEstimate]:
        """The process' estimates of the mean scores of the orderings fitted, best first."""
        means: Sequence[float] = []
        if self.orderings:
            means = (self._expected() + self._surrogate.mean).tolist()
        estimates = map(ScoreEstimate, self.orderings, means)
        return sorted(estimates, key=lambda estimate: -estimate.score)

    def expected_scores(self, reference: Ordering) -> dict[Ordering, float]:
        """What each ordering fitted is expected to score on new examples.

        That is the score of one of them as it is, and the gain of each over it, which is shrunk for being the best of
        many. No score lies beyond those that were given.

        Args:
            reference: One of the orderings fitted.

        Raises:
            ValueError: when it was not fitted.
        """
        least, most = self._limits()
        score = self.as_it_is(reference)
        return {
            ordering: round(min(max(least, score + gain.expected), most), 9)
            for ordering, gain in self.gains(reference).items()
        }

    def as_it_is(self, ordering: Ordering) -> float:
        """What one of the orderings fitted is expected to score without calibration: the program that the user has.

        Its own calls say it, where these brought log-probabilities.
        """
        known = self.calibration(ordering)
        score = dict(self.estimates())[ordering] if known is None else known.before
        if known is not None and self.calibrating:
            score = self._corrected(ordering)[0]
        least, most = self._limits()
        return min(max(least, score), most)

    def interval(self, ordering: Ordering, score: float, *, reference: Ordering) -> tuple[float, float]:
        """The 95 % interval of an expected score: as wide as the ordering's own calls, and those of the reference, say.

        Intervals of the model itself are narrower, and too narrow where it does not fit the program.

        Args:
            ordering: One of those fitted.
            score: What is expected of it.
            reference: What its gain is over.
        """
        known = ~np.isnan(self.table)
        cells = self.table[known]
        numbers = {self.orderings.index(each) for each in (ordering, reference)}
        margin = DEVIATIONS * float(cells.std()) * float(np.sqrt(sum(1 / known[n].sum() for n in numbers)))
        least, most = self._limits()
        return round(max(least, score - margin), 6), round(min(most, score + margin), 6)

    def _corrected(self, ordering: Ordering) -> tuple[float, float, Array]:
        """What an ordering scores as it is, and what calibration adds: as is expected, corrected by its own calls.

        So they hold whatever its answers as they are go by: replies that cannot be read, or a calibration of its own.

        Returns:
            The score, the difference, and by how much the difference was missed on each of its calls, ``[n]``.
        """
        assert self._responses is not None and self._table is not None
        number = self.orderings.index(ordering)
        told, counted = self._table[number], self.table[number]
        own = np.flatnonzero(~np.isnan(told))
        before, after = self._responses.expected_of(number)
        own_before, own_after = self._responses.expected_of(number, own)
        missed = (counted - told)[own] - (own_after - own_before)
        score = float(before.mean() + (told[own] - own_before).mean())
        return score, float((after - before).mean() + missed.mean()), missed

    def _limits(self) -> tuple[float, float]:
        """The lowest and the highest of the scores that were given, as they are and as they count."""
        told = self.table if self._table is None else np.stack([self.table, self._table])
        return float(np.nanmin(told)), float(np.nanmax(told))

    def gains(self, reference: Ordering) -> dict[Ordering, Gain]:
        """What is expected of each ordering fitted beside one of them as it is.

        Where answers are calibrated, that one gains by its own calibration.

        Raises:
            ValueError: when the reference was not fitted.
        """
        with one_thread():
            number = self.orderings.index(reference)
            gains = self._surrogate.gains(number)
            if self._responses is not None:
                gains += self._responses.gains(number)
            calibrated = np.ones(len(self.orderings))
            if self.calibrating:
                calibrated = gains.summary()[1].round(6)
                calibrated[number] = 1.0
                _, change, missed = self._corrected(reference)
                gains += gain_of_calibration(change, missed, len(self.orderings))
            columns = zip(self.orderings, *gains.summary(), gains.deviations, calibrated, strict=True)
        return {
            # Rounded to what arithmetic gives again on another day.
            ordering: Gain(
                round(float(gain), 9), round(float(chance), 6), round(float(deviation), 9), float(alone)
            )
            for ordering, gain, chance, deviation, alone in columns
        }

    def leaning(self, original: Ordering, chosen: Ordering) -> Leaning | None:
        """How often two of the orderings fitted answer each label; None without log-probabilities."""
        if self._responses is None:
            return None
        shares = [self._responses.answers(self.orderings.index(ordering)) for ordering in (original, chosen)]
        right, *answered = (np.round(share, 6).tolist() for share in (self._responses.right(), *shares))
        return Leaning(right=right, original=answered[0], chosen=answered[1])

    def counted(self, scores: Scores) -> Scores:
        """The scores that it was fitted to as they count, of the orderings fitted; others as they are."""
        if not self.calibrating:
            return scores
        examples = sorted({example for ordering in self.orderings for example in scores[ordering]})
        return {**scores} | {
            ordering: {
                e: float(value) for e, value in zip(examples, row, strict=True) if e in scores[ordering]
            }
            for ordering, row in zip(self.orderings, self.table, strict=True)
        }

    @property
    def calibrating(self) -> bool:
        """Whether scores are those of calibrated answers."""
        return self._responses is not None and self._responses.calibrating

    @property
    def num_examples(self) -> int:
        """Examples that scores expected from log-probabilities are means of."""
        return 0 if self._responses is None else self._responses.num_examples

    @property
    def shares(self) -> list[float]:
        """Of the labels, that answers are calibrated to; empty where they are not."""
        return [] if self._responses is None else self._responses.calibrated_to

    @property
    def always(self) -> list[float]:
        """The mean score of answering each label to all examples; empty without log-probabilities."""
        return [] if self._responses is None else self._responses.always

    def calibration(self, ordering: Ordering) -> Calibrated | None:
        """What calibration does to one of the orderings fitted; None without log-probabilities."""
        if self._responses is None or self._table is None or ordering not in self.orderings:
            return None
        number = self.orderings.index(ordering)
        examples, raw, told, scores = self._responses.told(number)
        before, after = (float(scores.mean()) for scores in self._responses.expected_of(number))
        own = self._table[number]
        silent = ~np.isnan(own)
        silent[examples] = False
        # Calls that brought none, such as replies that are no label, have a share of all as they were scored.
        if self.calibrating:  # Otherwise it is not known which of them calibration would read.
            after = _mixed(after, own, silent)
        before = _mixed(before, own, silent)
        offsets = tuple(np.round(self._responses.offsets[number], 6).tolist())
        return Calibrated(offsets, before, after, raw, told, scores)

    def predict(self, orderings: Sequence[Ordering]) -> Array:
        """What the process expects of orderings, ``[m]``."""
        features = self._features(orderings)
        known = 0.0 if self._responses is None else self._responses.predict_means(features)
        return self._surrogate.predict(features) + known

    def sample(self, others: Sequence[Ordering], num_draws: int, rng: np.random.Generator) -> Array:
        """Joint posterior draws of the scores of the orderings fitted, then of others, ``[draws, m + c]``."""
        features = self._features(others or self.orderings[:1])
        features = [family[: len(others)] for family in features]
        if self._responses is None:
            return self._surrogate.sample(features, num_draws, rng)
        means, doubts = self._responses.predict(features)
        drawn = self._surrogate.sample(features, num_draws, rng, doubts=doubts)
        return np.concatenate([self._expected(), means]) + drawn

    def _expected(self) -> Array | float:
        """What log-probabilities let one expect of the orderings fitted, ``[m]``; 0 without any."""
        return 0.0 if self._responses is None else self._responses.means


def _mixed(expected: float, scores: Array, silent: NDArray[np.bool_]) -> float:
    """An expected score, with the calls that it says nothing of in their share of all, as they were scored.

    Args:
        expected: Of the other calls.
        scores: Of all calls, ``[E]``; NaN where there is none.
        silent: Which calls it says nothing of, ``[E]``.
    """
    share = silent.sum() / max(1, (~np.isnan(scores)).sum())
    return float((1 - share) * expected + share * (scores[silent].mean() if share else 0.0))
