"""A model of scores as it was fitted: estimates, gains, posterior draws, and what calibration does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import ScoreEstimate
from plr_dspy.report.schema import Leaning
from plr_dspy.runtime.threads import one_thread
from plr_dspy.search.surrogate.gaussian_process import Array, Surrogate
from plr_dspy.search.surrogate.response_model import ResponseModel

Scores: TypeAlias = Mapping[Ordering, Mapping[int, float]]
"""Scores by example of each ordering."""


@dataclass(frozen=True)
class Gain:
    """What is expected of an ordering beside another one, on examples that nobody has seen.

    Attributes:
        expected: Its mean score less the other's.
        probability: That this is above 0.
    """

    expected: float
    probability: float


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

        That is the score of one of them, and the gain of each over it, which is shrunk for being the best of many. No
        score lies beyond those that were given.

        Args:
            reference: One of the orderings fitted. Its own calls say its score, where these brought log-probabilities.

        Raises:
            ValueError: when it was not fitted.
        """
        gains, known = self.gains(reference), self.calibration(reference)
        if known is None:
            score = dict(self.estimates())[reference]
        else:
            score = known.after if self.calibrating else known.before
        table = self.table
        least, most = float(np.nanmin(table)), float(np.nanmax(table))
        score = min(max(least, score), most)
        return {
            ordering: round(min(max(least, score + gain.expected), most), 9)
            for ordering, gain in gains.items()
        }

    def gains(self, reference: Ordering) -> dict[Ordering, Gain]:
        """What is expected of each ordering fitted beside one of them.

        Raises:
            ValueError: when the reference was not fitted.
        """
        with one_thread():
            number = self.orderings.index(reference)
            gains = self._surrogate.gains(number)
            if self._responses is not None:
                gains += self._responses.gains(number)
            expected, probabilities = gains.summary()
        return {
            # Rounded to what arithmetic gives again on another day.
            ordering: Gain(round(float(gain), 9), round(float(probability), 6))
            for ordering, gain, probability in zip(self.orderings, expected, probabilities, strict=True)
        }

    def leaning(self, original: Ordering, chosen: Ordering) -> Leaning | None:
        """How often two of the orderings fitted answer each label; None without log-probabilities."""
        if self._responses is None:
            return None
        shares = [self._responses.answers(self.orderings.index(ordering)) for ordering in (original, chosen)]
        right, *answered = (np.round(share, 6).tolist() for share in (self._responses.right(), *shares))
        return Leaning(right, *answered)

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

    def calibration(self, ordering: Ordering) -> Calibrated | None:
        """What calibration does to one of the orderings fitted; None without log-probabilities."""
        if self._responses is None or self._table is None or ordering not in self.orderings:
            return None
        number = self.orderings.index(ordering)
        examples, raw, told, scores = self._responses.told(number)
        before, after = self._responses.expected_means(number)
        others = np.delete(self._table[number], examples)
        others = others[~np.isnan(others)]
        # Calls that brought none, such as replies that are no label, have a share of all as they were scored.
        share = len(others) / (len(examples) + len(others))
        scored = float(others.mean()) if len(others) else 0.0
        before = (1 - share) * before + share * scored
        if self.calibrating:  # Otherwise it is not known which of them calibration would read.
            after = (1 - share) * after + share * scored
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
