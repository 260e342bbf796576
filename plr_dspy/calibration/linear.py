"""Linear calibration: a scale and an offset for each label, fitted to labelled examples.

Source: M. Abbas et al., "Enhancing in-context learning via linear probe calibration", AISTATS 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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


class Fit(NamedTuple):
    """A linear calibration.

    Attributes:
        scales, offsets: Of the labels, ``[L]``; 1 and 0 where nothing was better.
        loss: Mean log loss by cross-validation.
        loss_without: The same without calibration.
    """

    scales: Array
    offsets: Array
    loss: float
    loss_without: float


def fit_linear(log_probabilities: Array, answers: NDArray[np.int64], *, seed: int = 0) -> Fit:
    """Fit scales and offsets by penalised logistic regression; change nothing where cross-validation finds no gain.

    Deviation: The paper multiplies probabilities by a full matrix; log-probabilities with one scale for each label need
    fewer examples, and batch calibration is a special case of them.

    Args:
        log_probabilities: Of labels, ``[N, L]``, N at least 2.
        answers: Number of the right label of each example, ``[N]``.
        seed: Of the division into folds.
    """
    num, num_labels = log_probabilities.shape
    rows = np.arange(num)
    without = -log_softmax(log_probabilities, axis=1)[rows, answers]
    shuffled = np.random.default_rng(seed).permutation(num)
    shuffled = shuffled[
        np.argsort(answers[shuffled], kind="stable")
    ]  # Each fold has its share of each label.
    fold_of = np.empty(num, dtype=np.int64)
    fold_of[shuffled] = rows % min(MAX_FOLDS, num)
    losses = np.zeros(num)
    for fold in range(fold_of.max() + 1):
        held = fold_of == fold
        scales, offsets = _fit(log_probabilities[~held], answers[~held])
        told = log_softmax(log_probabilities[held] * scales + offsets, axis=1)
        losses[held] = -told[np.arange(held.sum()), answers[held]]
    gains = without - losses
    if gains.mean() <= gains.std(ddof=1) / np.sqrt(num):  # No more than its error.
        return Fit(np.ones(num_labels), np.zeros(num_labels), float(without.mean()), float(without.mean()))
    return Fit(*_fit(log_probabilities, answers), float(losses.mean()), float(without.mean()))


def penalised_loss(
    log_probabilities: Array, answers: NDArray[np.int64]
) -> Callable[[Array], tuple[float, Array]]:
    """Return what a fit makes least: a function of scales and offsets, one after the other, and its gradient."""
    num, num_labels = log_probabilities.shape
    rows, penalty = np.arange(num), PENALTY / num

    def loss(parameters: Array) -> tuple[float, Array]:
        scales, offsets = parameters[:num_labels], parameters[num_labels:]
        told = log_softmax(log_probabilities * scales + offsets, axis=1)
        slopes = np.exp(told)
        slopes[rows, answers] -= 1.0
        away = np.concatenate([scales - 1.0, offsets])
        gradient = np.concatenate([(slopes * log_probabilities).mean(axis=0), slopes.mean(axis=0)])
        value = -told[rows, answers].mean() + penalty * (away**2).sum()
        return float(value), gradient + 2.0 * penalty * away

    return loss


def _fit(log_probabilities: Array, answers: NDArray[np.int64]) -> tuple[Array, Array]:
    num_labels = log_probabilities.shape[1]
    start = np.concatenate([np.ones(num_labels), np.zeros(num_labels)])
    found = minimize(penalised_loss(log_probabilities, answers), start, jac=True, method="L-BFGS-B").x
    return found[:num_labels], found[num_labels:]
