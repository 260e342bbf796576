"""The criteria of LocalE, GlobalE, PDO and DEmO, as functions of label probabilities: larger is better.

Tables are ``[E, L]``: a probability distribution over L labels for each of E inputs. Entropies are in nats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from plr_dspy.statistics.calibration import Array


def entropy(distribution: ArrayLike) -> Array:
    """Of distributions ``[..., L]``; 0 log 0 is 0."""
    p = np.asarray(distribution, dtype=np.float64)
    total: Array = -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(axis=-1)
    return total


def local_entropy(table: ArrayLike) -> float:
    """Mean entropy over the inputs (LocalE; Lu et al., ACL 2022, Eq. 5): high where no answer is over-confident."""
    return float(entropy(_checked(table)).mean())


def global_entropy(table: ArrayLike) -> float:
    """Entropy of the shares of the predicted labels (GlobalE; Lu et al., ACL 2022, Eq. 3): high where all occur.

    Of equally probable labels the first is predicted.
    """
    table = _checked(table)
    counts = np.bincount(table.argmax(axis=1), minlength=table.shape[1])
    return float(entropy(counts / counts.sum()))


def mean_confidence(table: ArrayLike) -> float:
    """Minus the mean entropy over the inputs: LocalE as arXiv:2603.21373 words it, which prefers confidence."""
    return -local_entropy(table)


def best_confidence(table: ArrayLike) -> float:
    """Minus the least entropy of any input: GlobalE as arXiv:2603.21373 words it."""
    return -float(entropy(_checked(table)).min())


def closeness(table: ArrayLike, prior: ArrayLike) -> float:
    """Minus KL(mean distribution || prior) (PDO; Xu et al., NAACL Findings 2024); 0 at best.

    Args:
        table: Of the null input, or of unlabelled ones.
        prior: Of the labels, ``[L]``, none of them 0.
    """
    table, prior = _checked(table), np.asarray(prior, dtype=np.float64)
    if prior.shape != table.shape[1:] or not np.all(prior > 0) or not np.isclose(prior.sum(), 1.0):
        raise ValueError(
            f"prior must be a distribution over {table.shape[1]} labels, none of them 0; got {prior}"
        )
    mean = table.mean(axis=0)
    return float(entropy(mean) + mean @ np.log(prior))


def fairness(table: ArrayLike) -> float:
    """Entropy of the mean distribution over content-free inputs (DEmO's filter; Guo et al., ACL Findings 2024)."""
    return float(entropy(_checked(table).mean(axis=0)))


def influence(distribution: ArrayLike, content_free: ArrayLike) -> float:
    """How much an input adds to the probability of the label predicted for it (DEmO's choice; Guo et al. 2024).

    Args:
        distribution: Of the input, ``[L]``.
        content_free: Mean one of content-free inputs, ``[L]``.
    """
    p, p0 = np.asarray(distribution, dtype=np.float64), np.asarray(content_free, dtype=np.float64)
    label = int(p.argmax())
    return float(p[label] - p0[label])


def _checked(table: ArrayLike) -> Array:
    """The table, if it is one."""
    table = np.asarray(table, dtype=np.float64)
    if table.ndim != 2 or not table.size or not np.all(table >= 0) or not np.allclose(table.sum(axis=1), 1.0):
        raise ValueError(
            f"table must hold a distribution over labels in each row; got one of shape {table.shape}"
        )
    return table
