"""Batch calibration of orderings that are known on some examples only: what a model expects fills the gaps."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from plr_dspy.search.model.table import Array, Mask
from plr_dspy.statistics.calibration import calibrated, label_offsets, log_mean

PRIOR_CELLS = 4.0  # that what is expected of an ordering counts as; of one that is alone, answers in these shares


class Calibrated(NamedTuple):
    """What calibration does to an ordering. Replies that say nothing of labels count as in its own cells, but for those
    with calibration where answers are not calibrated."""

    offsets: tuple[float, ...]  # of the labels
    before: float  # mean score over all examples that is expected without calibration
    after: float  # and with it


class LabelOffsets:
    """The offsets of labels that calibrate orderings, from their cells and, where these are unknown, what is expected.

    Attributes:
        shares, offsets: The guess that was taken, ``[L]``, and the offsets, 0 on the mean, ``[m, L]``.
        calibrates: Whether that guess calibrates answers.
        answers: The likeliest labels with these, ``[m, E]``; an unseen label wins none. They are `known` in some cells.
    """

    def __init__(
        self,
        log_probabilities: Array,  # of labels, [m, E, L], NaN where there are none
        unseen: Mask,  # which of these were not among the likeliest tokens
        logits: Array,  # what is expected, up to a constant, [m, E, L]
        variances: Array,  # of contrasts of these
        *,
        guesses: Array,  # of how many examples each label is right for, [S, L]; one of NaN: answers stay as they are
        scores: Array,  # of the labels, [E, L]
        alone: Mask,  # whose own cells calibrate them, as what is expected of them is of others, [m]
        weigh: Callable[[Mask], Array],  # what each known cell of a row counts, [m, E]
    ) -> None:
        self.known = known = ~np.isnan(log_probabilities[..., 0])
        logs, counts = np.where(known[..., None], log_probabilities, 0.0), known.sum(axis=1)[:, None]
        self._never_seen: Mask = np.asarray(unseen[known].all(axis=0) & known.any())
        expected, every = np.log(probable(logits, variances)), weigh(np.ones((1, logits.shape[1]), dtype=bool))
        told = np.where(known[..., None], log_softmax(logs, axis=-1), expected)
        cells = np.where(counts > 0, weigh(known), every)  # Without any cell, what is known is what is expected.
        found, trust = log_mean(told, cells), counts / (counts + PRIOR_CELLS)
        filled = log_mean(expected, every) + trust * (found - log_mean(expected, cells))
        own, options = softmax(found), []
        for shares in guesses:
            of_alone = np.log(np.maximum(trust * own + (1 - trust) * shares, 1e-300))
            offsets = self._of(np.where(alone[:, None], of_alone, filled), shares)
            options.append((shares, offsets, calibrated(logs, offsets[:, None], unseen=unseen).argmax(axis=2)))
        seen, right = np.asarray(known.any(axis=0)), np.arange(len(scores))
        tables = np.array([np.where(known, scores[right, answers], 0.0) for *_, answers in options])
        means = (tables.sum(axis=1) / np.maximum(1, known.sum(axis=0)))[:, seen]
        weights = weigh(seen[None])[0, seen]
        gains, weights = means - means[0], weights / weights.sum()
        mean_gains = gains @ weights
        # Scores of a few rare examples differ far too much for a gain to be clear, and it is the larger for it.
        errors = np.sqrt((gains - mean_gains[:, None]) ** 2 @ weights**2) * (not np.isnan(guesses[0]).any())
        best = int(np.where(mean_gains > errors, mean_gains, 0.0).argmax())
        self.shares, self.offsets, self.answers = options[best]
        self.calibrates = not np.isnan(self.shares).any()

    def expected(self, logits: Array, variances: Array, counts: Array) -> Array:
        """Offsets ``[c, L]`` of any orderings from what is expected of them alone; each example counts so much."""
        return self._of(np.log(counts @ probable(logits, variances)), self.shares)

    def _of(self, log_means: Array, shares: Array) -> Array:
        """Offsets from the logarithms of mean probabilities of labels, ``[m, L]`` each."""
        if np.isnan(shares).any():
            return np.zeros_like(log_means)
        return label_offsets(log_means, shares, held=self._never_seen)


def softmax(logits: Array) -> Array:
    """The softmax over the last axis, ``[..., L]``, in a third of the time that scipy takes for short rows."""
    by_label = np.moveaxis(logits, -1, 0).copy()
    odds = np.exp(by_label - by_label.max(axis=0))
    return np.moveaxis(odds / odds.sum(axis=0), 0, -1)


def probable(logits: Array, variances: Array) -> Array:
    """Mean probabilities of labels under normal noise, by the probit approximation (MacKay, 1992)."""
    return softmax(logits / np.sqrt(1.0 + np.pi / 4.0 * variances)[..., None])
