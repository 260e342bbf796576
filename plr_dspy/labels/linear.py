"""Linear calibration: a scale and an offset for each label, fitted to labelled examples.

Source: M. Abbas et al., "Enhancing in-context learning via linear probe calibration", AISTATS 2024.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

Array = NDArray[np.float64]

PENALTY = 2.0
"""On squared distances of scales from 1 and of offsets from 0, beside the log losses of all examples: as if distances
of .5 were expected before any example is seen. Weaker ones lose more on 10 and 20 examples than they gain on 100."""

MAX_FOLDS = 10
"""Parts of the examples for cross-validation."""


def fit_linear(
    log_probabilities: Array, answers: NDArray[np.int64], *, seed: int = 0
) -> tuple[Array, Array] | None:
    """Fit scales and offsets of the labels, each ``[L]``, by penalised logistic regression.

    Deviation: The paper multiplies probabilities by a full matrix; log-probabilities with one scale for each label need
    fewer examples, and batch calibration is a special case of them.

    Args:
        log_probabilities: Of labels, ``[N, L]``, N at least 2.
        answers: Number of the right label of each example, ``[N]``.
        seed: Of the division into folds.

    Returns:
        None where cross-validation finds no gain in log loss beyond its error.
    """
    num = len(answers)
    shuffled = np.random.default_rng(seed).permutation(num)
    shuffled = shuffled[
        np.argsort(answers[shuffled], kind="stable")
    ]  # Each fold has its share of each label.
    fold_of = np.empty(num, dtype=np.int64)
    fold_of[shuffled] = np.arange(num) % min(MAX_FOLDS, num)
    gains = np.zeros(num)
    for fold in range(fold_of.max() + 1):
        held = fold_of == fold
        scales, offsets = _fit(log_probabilities[~held], answers[~held])
        told = log_softmax(log_probabilities[held] * scales + offsets, axis=1)
        without = log_softmax(log_probabilities[held], axis=1)
        gains[held] = (told - without)[np.arange(held.sum()), answers[held]]
    if gains.mean() <= gains.std(ddof=1) / np.sqrt(num):
        return None
    return _fit(log_probabilities, answers)


def penalised_loss(parameters: Array, known: Array, answers: NDArray[np.int64]) -> tuple[float, Array]:
    """Return what a fit makes least, of scales and offsets one after the other, ``[2 L]``, and its gradient."""
    (num, num_labels), rows = known.shape, np.arange(len(known))
    told = log_softmax(known * parameters[:num_labels] + parameters[num_labels:], axis=1)
    slopes = np.exp(told)
    slopes[rows, answers] -= 1.0
    away = parameters - np.repeat([1.0, 0.0], num_labels)
    gradient = np.concatenate([(slopes * known).mean(axis=0), slopes.mean(axis=0)])
    value = -told[rows, answers].mean() + PENALTY / num * (away**2).sum()
    return float(value), gradient + 2.0 * PENALTY / num * away


def _fit(known: Array, answers: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the scales and offsets with the least penalised loss."""
    num_labels = known.shape[1]
    start = np.repeat([1.0, 0.0], num_labels)
    found = minimize(penalised_loss, start, args=(known, answers), jac=True, method="L-BFGS-B").x
    return found[:num_labels], found[num_labels:]
