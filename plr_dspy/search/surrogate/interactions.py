"""Interactions of orderings and examples: what makes one ordering better on one example, and not on others.

Orderings that look alike do well on the same examples, so that scores on n examples, however many, tell of other
examples only up to the variance of the interactions over n. In a real model's answers a third to a half of the variance
that orderings and examples do not explain by themselves is of this kind.

    rest of the score of ordering o on example e  =  g_e(o) + noise

The g_e are independent Gaussian processes, one for each example, with one covariance: a sum of kernels over orderings
with a variance each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from plr_dspy.search.surrogate.crossed_effects import adjusted_means, example_effects, example_shrinkage

Array = NDArray[np.float64]

PRIOR_SHARE = 0.2
"""Prior mean of the share of the residual variance that the interactions have."""

PRIOR_PRECISION = 40.0
"""Of each kernel's share about its prior mean, over that of one pair of scores on one example."""

MAX_SHARE = 0.95
"""Of the interactions; the rest is noise of single calls."""


def shared_examples(known: NDArray[np.bool_]) -> Array:
    """The number of examples that two orderings share, over the product of the numbers of theirs, ``[m, m]``.

    Times the covariance of interactions it is that of the orderings' mean scores.

    Args:
        known: Whether an ordering was scored on an example, ``[m, E]``.
    """
    shares = known / np.maximum(1, known.sum(axis=1, keepdims=True))
    overlap: Array = shares @ shares.T
    return overlap


def covariance_of_means(kernels: Sequence[Array], scores: Array) -> Array:
    """Covariance of what mean scores have beside true scores, over the variance of one score, ``[m, m]``.

    Args:
        kernels: Covariances of the interactions at variance 1, ``[m, m]`` each; their diagonals are about 1.
        scores: ``[m, E]``, NaN where there is none.
    """
    known = ~np.isnan(scores)
    means = adjusted_means(scores)
    effects = example_effects(scores, means, example_shrinkage(scores))
    rest = np.where(known, scores - effects - means[:, None], 0.0)
    # Orderings that are nearly the same agree more than any that are linear in their features would.
    kernels = [*kernels, *map(_sharpened, kernels)]
    interactions = np.zeros((len(scores), len(scores)))
    for share, kernel in zip(interaction_shares(kernels, rest, known), kernels, strict=True):
        interactions += share * kernel
    single = np.maximum(1.0 - np.diag(interactions), 1.0 - MAX_SHARE)
    covariance: Array = interactions * shared_examples(known) + np.diag(single / known.sum(axis=1))
    return covariance


def interaction_shares(kernels: Sequence[Array], rest: Array, known: NDArray[np.bool_]) -> Array:
    """The share of the residual variance that the interactions along each kernel have, ``[k]``.

    Least squares on the products of two orderings' residuals on one example (J. K. Haseman and R. C. Elston, "The
    investigation of linkage between a quantitative trait and a marker locus", Behavior Genetics 2, 1972), none below 0.

    Args:
        kernels: Covariances at variance 1, ``[m, m]`` each; their diagonals are about 1.
        rest: Scores less their orderings' and their examples' means, ``[m, E]``, 0 where there is none.
        known: Whether there is one, ``[m, E]``.
    """
    total = float((rest**2).sum())
    if total <= 0.0 or not kernels:
        return np.zeros(len(kernels))
    shown = known.astype(np.float64)
    products = rest @ rest.T * (shown.sum() / total)
    both, counts = shown @ shown.T, shown.sum(axis=1)
    # What taking off the orderings' own means leaves of the covariance of two of them.
    left = 1.0 - 1.0 / counts - 1.0 / counts[:, None] + both / np.outer(counts, counts)
    rows, columns = np.triu_indices(len(rest), 1)
    met = both[rows, columns] > 0
    rows, columns = rows[met], columns[met]
    seen = np.stack([left[rows, columns] * _centre(kernel)[rows, columns] for kernel in kernels])
    prior = np.full(len(kernels), PRIOR_SHARE / len(kernels))
    gram = (seen * both[rows, columns]) @ seen.T + PRIOR_PRECISION * np.eye(len(kernels))
    moments = seen @ products[rows, columns] + PRIOR_PRECISION * prior
    factor = np.linalg.cholesky(gram)
    shares: Array = optimize.nnls(factor.T, np.linalg.solve(factor, moments))[0]
    return shares * min(1.0, MAX_SHARE / max(float(shares.sum()), 1e-12))


def _centre(kernel: Array) -> Array:
    """The kernel of a process less its mean over the orderings: example effects take that."""
    means = kernel.mean(axis=0)
    centred: Array = kernel - means - means[:, None] + means.mean()
    return centred


def _sharpened(kernel: Array) -> Array:
    """A kernel with the third powers of its correlations."""
    lengths = np.sqrt(np.diag(kernel)) + 1e-12
    scale = np.outer(lengths, lengths)
    sharpened: Array = scale * (kernel / scale) ** 3
    return sharpened
