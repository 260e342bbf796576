"""Calibration of the probabilities of labels, and how well probabilities hold.

Calibrated log-probabilities are ``scales * log p + offsets``, normalised. Batch calibration needs no labelled example.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc, log_softmax, logsumexp  # scipy.stats takes a second to import

Array = NDArray[np.float64]

CLEARLY_UNEVEN = 0.01  # labels are uneven where a chi-squared test gives less than this probability to their counts
FAR_FROM_EVEN = 0.2  # total variation distance of label shares from even ones that is warned of: that of .7 and .3
LESS = 1e-6  # by how much a label that was not among the likeliest tokens stays less likely than one that was


def batch_offsets(
    log_probabilities: ArrayLike,  # of labels on a batch of inputs, normalised over the labels, [N, L]
    *,
    prior: ArrayLike | None = None,  # share of the inputs that each label is right for, [L]; None for the same each
    unseen: ArrayLike = False,  # where a label was not among the likeliest tokens, [N, L]: it counts as none
    weights: ArrayLike = 1.0,  # what each input counts, [N]
) -> Array:
    """The offsets ``[L]``, 0 on the mean, of batch calibration (H. Zhou et al., arXiv:2309.17249, Eq. 3): those of the
    mean probabilities over a batch of inputs."""
    known = np.asarray(log_probabilities)
    hidden = np.broadcast_to(unseen, known.shape)
    means = log_mean(np.where(hidden, -np.inf, known), np.broadcast_to(weights, len(known)))
    shares = np.full(known.shape[1], 1.0 / known.shape[1]) if prior is None else np.asarray(prior)
    return label_offsets(means, shares, held=hidden.all(axis=0))


def log_mean(log_probabilities: Array, weights: Array) -> Array:
    """Logarithms of weighted mean probabilities over inputs, ``[..., L]``, from ``[..., N, L]`` and ``[..., N]``."""
    sums = logsumexp(log_probabilities, axis=-2, b=weights[..., None])
    return np.asarray(sums - np.log(weights.sum(axis=-1, keepdims=True)))


def label_offsets(log_means: Array, shares: Array, *, held: ArrayLike) -> Array:
    """Offsets of labels ``[..., L]``, 0 on the mean: the log of the shares that they are to have, ``[L]``, less that of
    their mean probabilities ``[..., L]``. Those `held`, which were never among the likeliest tokens, ``[L]``, get the
    smallest offset of the others."""
    hidden = np.asarray(held) | (shares <= 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        offsets = np.log(shares) - log_means
    if hidden.any():
        least = 0.0 if hidden.all() else offsets[..., ~hidden].min(axis=-1, keepdims=True)
        offsets = np.where(hidden, least, offsets)
    return np.asarray(offsets - offsets.mean(axis=-1, keepdims=True))


def calibrated(
    log_probabilities: ArrayLike, offsets: ArrayLike, *, scales: ArrayLike = 1.0, unseen: ArrayLike = False
) -> Array:
    """Calibrated log-probabilities ``[..., L]``, normalised, by offsets and scales of the labels, ``[L]``; a label that
    was unseen, not among the likeliest tokens, ``[..., L]``, cannot become the likeliest."""
    hidden = np.asarray(unseen)
    moved = log_softmax(np.asarray(log_probabilities) * scales + np.asarray(offsets), axis=-1)
    # No calibration makes of "not among the likeliest" more than it was.
    seen_least = np.where(hidden, np.inf, moved).min(axis=-1, keepdims=True) - LESS
    return np.asarray(log_softmax(np.where(hidden, np.minimum(moved, seen_least), moved), axis=-1))


def likely_shares(counts: ArrayLike, *, between: bool = False) -> Array:
    """The shares of labels that a calibration may aim at, ``[S, L]``, the first unless another scores better.

    The same share for each label, unless the examples clearly have others: then theirs come first. A weak model that is
    calibrated to uneven shares may answer the frequent labels alone, so that the scores of its answers decide. Metrics
    that rare labels decide may want shares `between`: the square roots of theirs.
    """
    seen = np.asarray(counts, dtype=np.float64)
    even = np.full(len(seen), 1.0 / len(seen))
    if not is_uneven(seen):
        return even[None]
    tables = [seen + 1.0, *([np.sqrt(seen + 1.0)] if between else [])]
    return np.stack([*(table / table.sum() for table in tables), even])


def is_uneven(counts: ArrayLike, *, far: bool = False) -> bool:
    """Tell whether labels are clearly not equally frequent, by counts ``[L]`` of them, or even far from it."""
    seen = np.asarray(counts, dtype=np.float64)
    if not seen.sum() or chdtrc(len(seen) - 1, ((seen - seen.mean()) ** 2 / seen.mean()).sum()) >= CLEARLY_UNEVEN:
        return False
    return bool(not far or 0.5 * np.abs(seen / seen.sum() - 1.0 / len(seen)).sum() >= FAR_FROM_EVEN - 1e-9)


def right_counts(scores: ArrayLike) -> Array:
    """Examples that each label is right for, ``[L]``, by what labels score, ``[E, L]``; several of one share it, and
    where all score the same none is right."""
    best = np.asarray(scores) == np.max(scores, axis=1, keepdims=True)
    return np.asarray((best / best.sum(axis=1, keepdims=True))[~best.all(axis=1)].sum(axis=0))


def shares_to_try(scores: ArrayLike, *, between: bool = False) -> Array:
    """The shares of labels that a search calibrates to by way of trial, ``[S, L]``, by what labels score, ``[E, L]``.
    Those of NaN, for answers that stay as they are, come last; where metrics may want shares `between`, none is likely,
    and they come first."""
    shares = likely_shares(right_counts(scores), between=between)
    as_they_are = np.full((1, shares.shape[1]), np.nan)
    return np.concatenate([as_they_are, shares] if between else [shares, as_they_are])


def cross_validated(
    log_probabilities: ArrayLike, shares: ArrayLike, *, unseen: ArrayLike = False, weights: ArrayLike = 1.0
) -> NDArray[np.int64]:
    """The numbers of the labels that are answered to each of at least 2 inputs, ``[N]``, calibrated by all others to
    these shares; the rest is as in `batch_offsets`."""
    known, answers = np.asarray(log_probabilities), []
    hidden, counts = np.broadcast_to(unseen, known.shape), np.broadcast_to(weights, len(known))
    for i in range(len(known)):
        others = np.arange(len(known)) != i
        offsets = batch_offsets(known[others], prior=shares, unseen=hidden[others], weights=counts[others])
        answers.append(calibrated(known[i], offsets, unseen=hidden[i]).argmax())
    return np.array(answers, dtype=np.int64)
