"""Batch calibration of orderings that are known on some examples only: what a model expects fills the gaps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from plr_dspy.statistics.calibration import calibrated

Array = NDArray[np.float64]

MOSTLY = 0.5
"""A label that is not among the likeliest tokens in more than this share of the cells is not made more likely."""


PRIOR_CELLS = 4.0
"""Cells that what is expected of an ordering counts as much as."""


class LabelOffsets:
    """Finds the offsets of orderings.

    Args:
        log_probabilities: Of labels, ``[m, E, L]``, NaN where there are none.
        unseen: Where a label was not among the likeliest tokens, ``[m, E, L]``.
        shares: Of the examples that each label is right for, ``[S, L]``: several guesses, of which `settle` takes one;
            until then the first counts. One of NaN stands for answers that are not calibrated.

    Attributes:
        shares: The guess that counts, ``[L]``.
    """

    def __init__(self, log_probabilities: Array, unseen: NDArray[np.bool_], shares: Array) -> None:
        self._guesses, self.shares = shares, shares[0]
        self._log_probabilities = log_probabilities
        self._unseen = unseen
        self._known = ~np.isnan(log_probabilities[..., :1])
        self._normalised = log_softmax(np.where(self._known, log_probabilities, 0.0), axis=-1)
        shown = np.broadcast_to(self._known, unseen.shape)
        self._said = np.array(
            [not shown[..., i].any() or _share(unseen, shown, i) <= MOSTLY for i in range(shares.shape[1])]
        )

    def expected(self, logits: Array, variances: Array) -> Array:
        """Offsets of any orderings, from what is expected of them.

        Args:
            logits: Of labels, up to a constant, ``[c, E, L]``.
            variances: Of each contrast of labels there, ``[c, E]``.

        Returns:
            Offsets ``[c, L]``, 0 on the mean.
        """
        return self._of(_log_mean(_log_probable(logits, variances)))

    def of_cells(self, logits: Array, variances: Array) -> Array:
        """Offsets ``[m, L]`` of the orderings, from their cells and, where these are not known, what is expected."""
        expected = _log_probable(logits, variances)
        counts = self._known.sum(axis=1)
        shown = self._known | (counts == 0)[:, None]  # Without any cell, what is known is what is expected.
        told = np.where(self._known, self._normalised, expected)
        known, foreseen = (_log_mean(np.where(shown, logs, -np.inf)) for logs in (told, expected))
        return self._of(_log_mean(expected) + counts / (counts + PRIOR_CELLS) * (known - foreseen))

    def settle(self, logits: Array, variances: Array, scores: Array) -> None:
        """Take the guess by which the cells' calibrated answers score best; the first unless another clearly does.

        Args:
            logits, variances: As in `expected`.
            scores: What labels score, ``[E, L]``.
        """
        if len(self._guesses) == 1:
            return
        means = []
        for shares in self._guesses:
            self.shares = shares
            found = np.full(self._known.shape[:2], np.nan)
            for number, offsets in enumerate(self.of_cells(logits, variances)):
                examples, _, told = self.told(number, offsets)
                found[number, examples] = scores[examples, told.argmax(axis=1)]
            seen = ~np.isnan(found).all(axis=0)
            means.append(np.nanmean(found[:, seen], axis=0))
        gains = np.array(means) - means[0]
        errors = gains.std(axis=1) / np.sqrt(gains.shape[1])
        self.shares = self._guesses[
            int(np.where(gains.mean(axis=1) > errors, gains.mean(axis=1), 0.0).argmax())
        ]

    @property
    def calibrates(self) -> bool:
        """Whether answers are calibrated by the guess that counts."""
        return not np.isnan(self.shares).any()

    def _of(self, log_means: Array) -> Array:
        if not self.calibrates:
            return np.zeros_like(log_means)
        offsets = np.log(self.shares) - log_means
        if self._said.any():
            least = offsets[:, self._said].min(axis=1, keepdims=True)
            offsets = np.where(self._said, offsets, np.minimum(offsets, least))
        centred: Array = offsets - offsets.mean(axis=1, keepdims=True)
        return centred

    def told(self, number: int, offsets: Array) -> tuple[NDArray[np.int64], Array, Array]:
        """What the cells of an ordering say, as it is and calibrated.

        Args:
            number: Of the ordering.
            offsets: Its offsets ``[L]``.

        Returns:
            Numbers of the examples ``[n]``, and log-probabilities of labels ``[n, L]`` as they came and calibrated. An
            unseen label cannot become the likeliest.
        """
        examples = np.flatnonzero(self._known[number, :, 0])
        raw = self._log_probabilities[number, examples]
        return examples, raw, calibrated(raw, offsets, unseen=self._unseen[number, examples])


def _share(unseen: NDArray[np.bool_], shown: NDArray[np.bool_], label: int) -> float:
    return float(unseen[..., label][shown[..., label]].mean())


def _log_probable(logits: Array, variances: Array) -> Array:
    """Logs of mean probabilities of labels under normal noise, by the probit approximation (MacKay, 1992)."""
    logs: Array = log_softmax(logits / np.sqrt(1.0 + np.pi / 4.0 * variances)[..., None], axis=-1)
    return logs


def _log_mean(logs: Array) -> Array:
    """Log of the sum of probabilities over the examples ``[m, E, L]``, less the log of their number, ``[m, L]``."""
    mean: Array = logsumexp(logs, axis=1) - np.log(logs.shape[1])
    return mean
