"""The model that a search asks: orderings and their scores in, estimates, gains and posterior draws out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plr_dspy.runtime.threads import one_thread
from plr_dspy.search.space import Ordering, OrderingSpace, ScoreEstimate
from plr_dspy.search.surrogate.arrangement_features import ArrangementFeatures
from plr_dspy.search.surrogate.crossed_effects import score_table, shrunk_means
from plr_dspy.search.surrogate.features import OrderingFeatures
from plr_dspy.search.surrogate.fitted_model import FittedModel, Scores
from plr_dspy.search.surrogate.gaussian_process import Array, Surrogate
from plr_dspy.search.surrogate.label_responses import LabelResponses
from plr_dspy.search.surrogate.response_model import ResponseModel

MAX_MODELLED = 256
"""Orderings that the process is fitted to: the most promising. Bounds the time of a fit."""

LEAST_SHARE = 0.5
"""Of the calls must have brought log-probabilities along: where they seldom come, scores tell more."""

MOST_SCORED = 32
"""As many of them are those with the most scores, whatever these are: the finalists are among them."""


class OrderingModel:
    """Fits a Gaussian process that generalises from scored orderings to others, and from examples to others.

    Args:
        space: Of the orderings, or of arrangements. What it does not hold, such as `WITHOUT_DEMOS`, may be scored too;
            it has an effect of its own.
        classes: For each block the class of each of its items; None for none.
        example_classes: The class of each example; None for none.
        families: Of features (`features.FAMILIES`, or those of `arrangement_features`); None takes all, and without
            any, orderings have effects of their own only.
        responses: The log-probabilities of labels; None for none.
    """

    def __init__(
        self,
        space: OrderingSpace,
        *,
        classes: Sequence[Sequence[int]] | None = None,
        example_classes: Sequence[int] | None = None,
        families: Sequence[str] | None = None,
        responses: LabelResponses | None = None,
    ) -> None:
        self._responses = responses
        self._space = space
        known = families is None or len(families) > 0
        self._families = _make_features(space, classes, families) if known else None
        self._references = None if self._families is None else self._families(self._families.references)
        self._example_classes = example_classes if known else None

    @property
    def calibrating(self) -> bool:
        """Whether orderings are scored by calibrated answers."""
        return self._responses is not None and self._responses.calibrating

    def fit(
        self, scores: Scores, *, earlier: Mapping[str, Any] | None = None, kept: Sequence[Ordering] = ()
    ) -> FittedModel:
        """Fit the process to the orderings that were scored most, and to those that promise most.

        Args:
            scores: One at least of each ordering.
            earlier: Variances of an earlier fit, which this one goes on from in fewer steps.
            kept: Orderings that are fitted whatever their scores, where they have any.
        """
        orderings = self._promising(scores, kept)
        earlier = earlier or {}
        surrogate = Surrogate(self._references, earlier=earlier)
        responses = told = None
        if orderings:
            with one_thread():
                features, told = self._features(orderings), _table(scores, orderings)
                table = told
                apart = self._apart(orderings)
                classes = self._classes_of(scores, orderings)
                responses = self._respond(
                    scores, orderings, apart, features=features, earlier=earlier.get("responses")
                )
                if responses is not None:
                    table, classes = responses.counted(table) - responses.expected, None
                doubts = None if responses is None else responses.doubts
                surrogate.fit(features, table, classes, apart=apart, doubts=doubts)
        return FittedModel(
            orderings,
            surrogate,
            features=self._features,
            earlier=earlier,
            responses=responses,
            table=told,
        )

    def shown(self, estimates: Sequence[ScoreEstimate], scores: Scores) -> list[ScoreEstimate]:
        """The estimates as people may be told them, in the same order.

        The process is linear and knows no limits: it may expect 1.035 where a metric gives 0 or 1. A mean never lies
        outside of what single scores can be, on any scale: those seen, and those that the metric gives for labels.

        Args:
            estimates: Of orderings; a search goes by them as they are.
            scores: All that are known.
        """
        values = [score for row in scores.values() for score in row.values()]
        if self._responses is not None:
            values += [float(self._responses.scores.min()), float(self._responses.scores.max())]
        least, most = min(values, default=0.0), max(values, default=0.0)
        return [ScoreEstimate(ordering, min(max(least, score), most)) for ordering, score in estimates]

    def _promising(self, scores: Scores, kept: Sequence[Ordering]) -> list[Ordering]:
        """The orderings that the process is fitted to."""
        orderings = list(scores)
        if len(orderings) <= MAX_MODELLED:
            return orderings
        apart = self._apart(orderings)
        responses = self._respond(scores, orderings, apart)
        means = shrunk_means(_table(scores, orderings)) if responses is None else responses.means
        counts = [len(scores[ordering]) for ordering in orderings]
        means[np.argsort(counts, kind="stable")[-MOST_SCORED:]] = np.inf
        means[[ordering in kept for ordering in orderings]] = np.inf
        best = np.sort(np.argsort(-means, kind="stable")[:MAX_MODELLED])
        return [orderings[index] for index in best]

    def _respond(
        self,
        scores: Scores,
        orderings: Sequence[Ordering],
        apart: NDArray[np.bool_],
        *,
        features: Sequence[Array] | None = None,
        earlier: Sequence[Sequence[float]] | None = None,
    ) -> ResponseModel | None:
        """What log-probabilities say; None where most of the calls brought none."""
        if self._responses is None:
            return None
        examples = sorted({example for ordering in orderings for example in scores[ordering]})
        table, unseen = self._responses.table({o: scores[o].keys() for o in orderings}, examples)
        known = int((~np.isnan(table[..., 0])).sum())
        if known <= LEAST_SHARE * sum(len(scores[ordering]) for ordering in orderings):
            return None
        return ResponseModel(
            features,
            table,
            self._responses.scores[examples],
            apart=apart,
            earlier=earlier,
            unseen=unseen,
            shares=self._responses.shares,
            calibrating=self.calibrating,
        )

    def _features(self, orderings: Sequence[Ordering]) -> list[Array]:
        """Features ``[m, d]`` of each family; all 0 for what the space does not hold, as of a mean ordering."""
        if self._families is None:
            return []
        apart, identity = self._apart(orderings), self._space.identity
        families = self._families([identity if a else o for o, a in zip(orderings, apart, strict=True)])
        return [family * ~apart[:, None] for family in families]

    def _apart(self, orderings: Sequence[Ordering]) -> NDArray[np.bool_]:
        """Whether each is not of the others' kind, ``[m]``: none of the space, or a program without demos."""
        return np.array([not self._space.holds(o) or not any(o) for o in orderings], dtype=bool)

    def _classes_of(self, scores: Scores, orderings: Sequence[Ordering]) -> NDArray[np.int64] | None:
        """The classes of the examples that are columns of the table of scores, numbered anew."""
        if self._example_classes is None:
            return None
        examples = sorted({example for ordering in orderings for example in scores[ordering]})
        codes = np.unique([self._example_classes[example] for example in examples], return_inverse=True)[1]
        return np.asarray(codes, dtype=np.int64)


def _table(scores: Scores, orderings: Sequence[Ordering]) -> Array:
    """Scores ``[m, E]`` with NaN where there is none."""
    return score_table([scores[ordering] for ordering in orderings])


def _make_features(
    space: OrderingSpace, classes: Sequence[Sequence[int]] | None, families: Sequence[str] | None
) -> OrderingFeatures | ArrangementFeatures:
    """The features of a space's own kind; of the families named, None for all."""
    chosen: dict[str, Any] = {"classes": classes} | ({} if families is None else {"families": families})
    if space.from_end:
        return ArrangementFeatures(space, **chosen)
    return OrderingFeatures(space, **chosen)
