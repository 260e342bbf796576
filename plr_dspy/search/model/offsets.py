"""Batch calibration of orderings that are known on some examples only: what a model expects fills the gaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from plr_dspy.search.model.table import Array, Mask
from plr_dspy.statistics.calibration import calibrated, label_offsets

PRIOR_CELLS = 4.0
"""Cells that what is expected of an ordering counts as much as; of one that is `alone`, answers in these shares."""


class Calibrated(NamedTuple):
    """What calibration does to an ordering. Replies that say nothing of labels count as in its own cells, but for those
    with calibration where answers are not calibrated."""

    offsets: tuple[float, ...]  # of the labels
    before: float  # mean score over all examples that is expected without calibration
    after: float  # and with it


class LabelOffsets:
    """Finds the offsets of orderings, from log-probabilities ``[m, E, L]`` with NaN where there are none.

    Labels that were `unseen` were not among the likeliest tokens, ``[m, E, L]``. `shares`, ``[S, L]``, are guesses of
    how many examples each label is right for, of which `settle` takes one; until then the first counts. One of NaN
    stands for answers that are not calibrated. What is expected of orderings that are `alone`, ``[m]``, is of others,
    so that their own cells calibrate them. `weigh` says what each known cell of a row counts, ``[m, E]``.
    """

    def __init__(
        self, log_probabilities: Array, unseen: Mask, shares: Array, *, alone: Mask, weigh: Callable[[Mask], Array]
    ) -> None:
        self._guesses, self.shares, self._alone = shares, shares[0], alone[:, None]
        self.known, self._unseen = ~np.isnan(log_probabilities[..., 0]), unseen
        self._logs = np.where(self.known[..., None], log_probabilities, 0.0)
        self._normalised = self._logs - np.logaddexp.reduce(self._logs, axis=-1, keepdims=True)
        self._weigh, self._weights = weigh, weigh(self.known)
        self._never_seen: Mask = np.asarray(unseen[self.known].all(axis=0) & self.known.any())

    @property
    def calibrates(self) -> bool:
        """Whether answers are calibrated by the guess that counts."""
        return not np.isnan(self.shares).any()

    def expected(self, logits: Array, variances: Array, counts: Array) -> Array:
        """Offsets ``[c, L]``, 0 on the mean, of any orderings, from what is expected of them.

        That is logits of labels up to a constant, ``[c, E, L]``, the variance of each contrast of them, and what each
        example counts, ``[E]``.
        """
        return self._of(np.log(counts @ _probable(logits, variances)))

    def of_cells(self, logits: Array, variances: Array) -> Array:
        """Offsets ``[m, L]`` of the orderings, from their cells and, where these are not known, what is expected."""
        expected, known = np.log(_probable(logits, variances)), self.known[..., None]
        counts = self.known.sum(axis=1)[:, None]
        every = self._weigh(np.ones((1, logits.shape[1]), dtype=bool))
        cells = np.where(counts > 0, self._weights, every)  # Without any cell, what is known is what is expected.
        told = np.where(known, self._normalised, expected)
        found, foreseen = (_log_mean(logs, cells) for logs in (told, expected))
        weights, own = counts / (counts + PRIOR_CELLS), softmax_of(found)
        own = np.log(np.maximum(weights * own + (1 - weights) * self.shares, 1e-300))
        return self._of(np.where(self._alone, own, _log_mean(expected, every) + weights * (found - foreseen)))

    def settle(self, logits: Array, variances: Array, scores: Array) -> None:
        """Take the guess by which the cells' calibrated answers score best: the first, unless another clearly does, or
        does at all where the first leaves answers as they are.

        `scores` are those of labels, ``[E, L]``.
        """
        if len(self._guesses) == 1:
            return
        means, seen = [], np.asarray(self.known.any(axis=0))
        counts = self._weigh(seen[None])[0, seen]
        counts /= counts.sum()
        for shares in self._guesses:
            self.shares = shares
            found = np.where(self.known, self.scores_of(self.of_cells(logits, variances), scores), 0.0)
            means.append((found.sum(axis=0) / np.maximum(1, self.known.sum(axis=0)))[seen])
        gains = np.array(means) - means[0]
        # Scores of a few rare examples differ far too much for a gain to be clear, and it is the larger for it.
        sure = not np.isnan(self._guesses[0]).any()
        mean_gains = gains @ counts
        errors = sure * np.sqrt((gains - mean_gains[:, None]) ** 2 @ counts**2)
        best = np.where(mean_gains > errors, mean_gains, 0.0).argmax()
        self.shares = self._guesses[int(best)]

    def scores_of(self, offsets: Array, scores: Array) -> Array:
        """What the calibrated answers score, ``[m, E]``, by offsets ``[m, L]``; an unseen label wins none."""
        answers = calibrated(self._logs, offsets[:, None], unseen=self._unseen).argmax(axis=2)
        return np.asarray(scores[np.arange(len(scores)), answers])

    def _of(self, log_means: Array) -> Array:
        """Offsets from the logarithms of mean probabilities of labels, ``[m, L]`` each."""
        if not self.calibrates:
            return np.zeros_like(log_means)
        return label_offsets(log_means, self.shares, held=self._never_seen)


def softmax_of(logits: Array) -> Array:
    """The softmax over the last axis, ``[..., L]``, in a third of the time that scipy takes for short rows."""
    by_label = np.ascontiguousarray(np.moveaxis(logits, -1, 0))
    by_label -= by_label.max(axis=0)
    np.exp(by_label, out=by_label)
    by_label /= by_label.sum(axis=0)
    return np.ascontiguousarray(np.moveaxis(by_label, 0, -1))


def _probable(logits: Array, variances: Array) -> Array:
    """Mean probabilities of labels under normal noise, by the probit approximation (MacKay, 1992)."""
    return softmax_of(logits / np.sqrt(1.0 + np.pi / 4.0 * variances)[..., None])


def _log_mean(logs: Array, weights: Array) -> Array:
    """Log of the weighted sum of probabilities ``[m, E, L]`` over the examples, less that of their number, ``[m, L]``.

    Weights are ``[m, E]``, or of one row for all.
    """
    shown = np.where(weights[..., None] > 0, logs, -np.inf)
    most = shown.max(axis=1, keepdims=True)
    means = (np.exp(shown - most) * weights[..., None]).sum(axis=1) / weights.sum(axis=1, keepdims=True)
    return np.asarray(np.log(means) + most[:, 0])
