"""The criteria of LocalE, GlobalE, PDO and DEmO, as functions of label probabilities: larger is better.

Tables are ``[E, L]``: a probability distribution over L labels for each of E inputs. Entropies are in nats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from plr_dspy.statistics.calibration import Array


def entropy(distribution: ArrayLike) -> Array:
    """Entropy of distributions ``[..., L]``."""
    entropies: Array = entr(np.asarray(distribution, dtype=np.float64)).sum(axis=-1)
    return entropies


def local_entropy(table: ArrayLike) -> float:
    """Mean entropy over the inputs (LocalE; Lu et al., ACL 2022, Eq. 5): high where no answer is over-confident."""
    return float(entropy(table).mean())


def global_entropy(table: ArrayLike) -> float:
    """Entropy of the shares of the predicted labels (GlobalE; Lu et al., ACL 2022, Eq. 3): high where all occur.

    Of equally probable labels the first is predicted.
    """
    table = np.asarray(table)
    return float(entropy(np.bincount(table.argmax(axis=1), minlength=table.shape[1]) / len(table)))


def mean_confidence(table: ArrayLike) -> float:
    """Minus the mean entropy over the inputs: LocalE as arXiv:2603.21373 words it, which prefers confidence."""
    return -local_entropy(table)


def best_confidence(table: ArrayLike) -> float:
    """Minus the least entropy of any input: GlobalE as arXiv:2603.21373 words it."""
    return -float(entropy(table).min())


def closeness(table: ArrayLike, prior: ArrayLike) -> float:
    """Minus KL(mean distribution || prior) (PDO; Xu et al., NAACL Findings 2024); 0 at best.

    No label has a share of 0 in `prior`, ``[L]``.
    """
    mean = np.asarray(table).mean(axis=0)
    return float(entropy(mean) + mean @ np.log(prior))


def fairness(table: ArrayLike) -> float:
    """Entropy of the mean distribution over content-free inputs (DEmO's filter; Guo et al., ACL Findings 2024)."""
    return float(entropy(np.asarray(table).mean(axis=0)))


def influence(distribution: ArrayLike, content_free: ArrayLike) -> float:
    """How much an input adds to the probability of the label predicted for it (DEmO's choice; Guo et al. 2024).

    Args:
        distribution: Of the input, ``[L]``.
        content_free: Mean one of content-free inputs, ``[L]``.
    """
    p, label = np.asarray(distribution), int(np.argmax(distribution))
    return float(p[label] - np.asarray(content_free)[label])
