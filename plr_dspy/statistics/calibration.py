"""Calibration of label probabilities, with or without labeled examples.

Calibration adds an offset to each label's log-probability, and normalizes the results. A label is
"unseen" if it was not among the likeliest tokens of a reply. "Shares" are relative frequencies
of labels. Shapes: N inputs, L labels, E examples, S sets of label shares.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc, log_softmax, logsumexp  # scipy.stats would take a second to import

from plr_dspy.statistics.arrays import Array, Mask, Numbers

# Label counts are clearly imbalanced if the p-value of a chi-squared test is below this limit.
MAX_P_VALUE = 0.01
MIN_GAP = 1e-6  # minimum gap between the log-probabilities of seen and unseen labels
# Numbers of decimal places to which log-probabilities and offsets are rounded before an answer is
# chosen. Run logs contain rounded log-probabilities, and searches use rounded offsets.
LOG_DECIMALS = 4
OFFSET_DECIMALS = 6
# Labels are tied if their log-probabilities differ by at most this much. Rounding errors vary between
# calls, and can cause differences of this size.
MAX_TIE = 1e-3


def batch_offsets(
    log_probabilities: ArrayLike,
    *,
    prior: ArrayLike | None = None,
    unseen: ArrayLike = False,
    weights: ArrayLike = 1.0,
) -> Array:
    """Return the offsets ``[L]`` of batch calibration (H. Zhou et al., arXiv:2309.17249, Eq. 3).

    The mean of the offsets is 0.

    Args:
        log_probabilities: Normalized log-probabilities of the labels, ``[N, L]``.
        prior: Assumed label shares, ``[L]``. None means equal shares.
        unseen: Whether each label is unseen, ``[N, L]``. The probability of an unseen label is
            assumed to be 0.
        weights: Weights of the inputs, ``[N]``.
    """
    logs = np.asarray(log_probabilities)
    num_inputs, num_labels = logs.shape
    is_unseen = np.broadcast_to(unseen, logs.shape)
    means = log_mean(np.where(is_unseen, -np.inf, logs), np.broadcast_to(weights, num_inputs))
    shares = np.full(num_labels, 1.0 / num_labels) if prior is None else np.asarray(prior)
    return label_offsets(means, shares, held=is_unseen.all(axis=0))


def log_mean(log_probabilities: Array, weights: Array) -> Array:
    """Return the logs of weighted mean probabilities, ``[..., L]``.

    `log_probabilities` has the shape ``[..., N, L]``, and `weights` has the shape ``[..., N]``.
    """
    sums = logsumexp(log_probabilities, axis=-2, b=weights[..., None])
    return np.asarray(sums - np.log(weights.sum(axis=-1, keepdims=True)))


def label_offsets(log_means: Array, shares: Array, *, held: ArrayLike) -> Array:
    """Return offsets ``[..., L]`` that move mean probabilities towards shares ``[L]``.

    The mean of the offsets is 0. A label is held if its share is 0, or if its entry in `held`,
    ``[L]``, is true. All held labels get the smallest offset of the labels that are not held.
    """
    is_held = np.asarray(held) | (shares <= 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        offsets = np.log(shares) - log_means
    if is_held.all():
        offsets = np.zeros_like(offsets)
    elif is_held.any():
        smallest = offsets[..., ~is_held].min(axis=-1, keepdims=True)
        offsets = np.where(is_held, smallest, offsets)
    return np.asarray(offsets - offsets.mean(axis=-1, keepdims=True))


def calibrated(log_probabilities: ArrayLike, offsets: ArrayLike, *, unseen: ArrayLike = False) -> Array:
    """Return calibrated log-probabilities, ``[..., L]``. Seen labels are likelier than all unseen labels."""
    is_unseen = np.asarray(unseen)
    logs = log_softmax(np.asarray(log_probabilities) + np.asarray(offsets), axis=-1)
    least_seen = np.where(is_unseen, np.inf, logs).min(axis=-1, keepdims=True)
    capped = np.minimum(logs, least_seen - MIN_GAP)
    return np.asarray(log_softmax(np.where(is_unseen, capped, logs), axis=-1))


def likeliest_labels(
    log_probabilities: ArrayLike, offsets: ArrayLike, *, unseen: ArrayLike = False
) -> Numbers:
    """Return the index of each reply's likeliest label after calibration, ``[...]``.

    Among tied labels, take the one that was likeliest before calibration. If several of them were
    tied before calibration too, take the first. Log-probabilities and offsets are rounded as in run
    logs and searches. So a search that uses a run log finds the calibrated program's answers.

    Args:
        log_probabilities: Log-probabilities of the labels, ``[..., L]``.
        offsets: The offsets of the labels, ``[..., L]``.
        unseen: Whether each label is unseen, ``[..., L]``. An unseen label cannot be the answer
            unless all labels are unseen.
    """
    # Use whole numbers of millionths. Their sums are exact, so ties do not depend on rounding errors.
    unit = 10.0**OFFSET_DECIMALS
    margin = np.rint(MAX_TIE * unit)
    before = np.rint(np.asarray(log_probabilities) * 10.0**LOG_DECIMALS) * (unit / 10.0**LOG_DECIMALS)
    after = before + np.rint(np.asarray(offsets) * unit)
    is_unseen = np.broadcast_to(unseen, after.shape)
    is_possible = ~is_unseen | is_unseen.all(axis=-1, keepdims=True)
    is_likeliest_after = _is_near_highest(after, is_possible, margin)
    is_likeliest_before = _is_near_highest(before, is_likeliest_after, margin)
    return np.asarray(is_likeliest_before.argmax(axis=-1), dtype=np.int64)


def _is_near_highest(values: Array, is_possible: Mask, margin: float) -> Mask:
    """Return whether each value, ``[..., L]``, is possible and within `margin` of the possible maximum."""
    possible_values = np.where(is_possible, values, -np.inf)
    return np.asarray(possible_values >= possible_values.max(axis=-1, keepdims=True) - margin)


def likely_shares(counts: ArrayLike, *, between: bool = False) -> Array:
    """Return the label shares to try as calibration targets, ``[S, L]``, likeliest first.

    If the label counts ``[L]`` are not clearly imbalanced, return only equal shares. Otherwise,
    the smoothed observed shares come first, and equal shares last. If `between` is true, shares
    proportional to the square roots of the smoothed counts come second, because they suit metrics
    that depend on rare labels.
    """
    counts = np.asarray(counts, dtype=np.float64)
    even = np.full(len(counts), 1.0 / len(counts))
    if not _are_uneven(counts):
        return even[None]
    smoothed = counts + 1.0
    alternatives = [smoothed / smoothed.sum()]
    if between:
        roots = np.sqrt(smoothed)
        alternatives.append(roots / roots.sum())
    return np.stack([*alternatives, even])


def _are_uneven(counts: Array) -> bool:
    """Return whether label counts ``[L]`` are clearly imbalanced."""
    mean = counts.mean()
    p_value = chdtrc(len(counts) - 1, ((counts - mean) ** 2 / max(mean, 1e-9)).sum())
    return bool(p_value < MAX_P_VALUE)


def right_counts(scores: ArrayLike) -> Array:
    """Return the number of examples for which each label is correct, ``[L]``.

    `scores` has the shape ``[E, L]``. The correct label of an example is the one with the highest
    score. If several labels are tied, the example is divided equally among them. Examples on which
    all labels are tied are ignored.
    """
    is_best = np.asarray(scores) == np.max(scores, axis=1, keepdims=True)
    shares = is_best / is_best.sum(axis=1, keepdims=True)
    return np.asarray(shares[~is_best.all(axis=1)].sum(axis=0))


def shares_to_try(scores: ArrayLike, *, between: bool = False) -> Array:
    """Return the label shares to try, ``[S, L]``, given each label's scores on examples, ``[E, L]``.

    A row of NaN means that answers are not calibrated. It is first if `between` is true, else last.
    """
    shares = likely_shares(right_counts(scores), between=between)
    uncalibrated = np.full((1, shares.shape[1]), np.nan)
    if between:
        return np.concatenate([uncalibrated, shares])
    return np.concatenate([shares, uncalibrated])


def cross_validated(
    log_probabilities: ArrayLike, shares: ArrayLike, *, unseen: ArrayLike = False, weights: ArrayLike = 1.0
) -> Numbers:
    """Return the index of each input's likeliest label after calibration on all other inputs, ``[N]``.

    There must be at least two inputs. `shares` is the `prior` of `batch_offsets()`. All other
    arguments are as in that function.
    """
    logs = np.asarray(log_probabilities)
    is_unseen = np.broadcast_to(unseen, logs.shape)
    weights = np.broadcast_to(weights, len(logs))
    labels = []
    for i in range(len(logs)):
        others = np.arange(len(logs)) != i
        offsets = batch_offsets(
            logs[others], prior=shares, unseen=is_unseen[others], weights=weights[others]
        )
        labels.append(likeliest_labels(logs[i], offsets, unseen=is_unseen[i]))
    return np.array(labels, dtype=np.int64)
