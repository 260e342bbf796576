"""Crossed effects of orderings and examples: means of scores that know how easy the examples were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from plr_dspy.variances import PRIOR_VARIANCE

Array = NDArray[np.float64]

EXAMPLE_SHRINKAGE = 3.0
"""Noise variance over the variance of examples' effects: an example's mean counts as much as so many scores."""


def score_table(rows: Sequence[Mapping[int, float]]) -> Array:
    """Scores ``[m, E]`` from the scores by example of each ordering, NaN where there is none."""
    columns = {example: i for i, example in enumerate(sorted({example for row in rows for example in row}))}
    table = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        table[i, [columns[example] for example in row]] = list(row.values())
    return table


def example_effects(scores: Array, effects: Array) -> Array:
    """Shrunk mean of each example over the orderings that it has scored, ``[E]``.

    Args:
        scores: Of orderings on examples, ``[m, E]``; NaN where there is none.
        effects: Of the orderings, ``[m]``.
    """
    known = ~np.isnan(scores)
    rest = np.where(known, scores - effects[:, None], 0.0)
    counts = known.sum(axis=0)
    shrunk: Array = (rest.sum(axis=0) + EXAMPLE_SHRINKAGE * rest.sum() / max(1, counts.sum())) / (
        counts + EXAMPLE_SHRINKAGE
    )
    return shrunk


def parameters_used(known: NDArray[np.bool_]) -> float:
    """Parameters that the shrunk effects of examples use up, of scores known ``[m, E]``."""
    counts = known.sum(axis=0)
    return float((counts / (counts + EXAMPLE_SHRINKAGE)).sum())


def ordering_effects(scores: Array, effects: Array) -> Array:
    """Mean of each ordering above the effects of its examples, ``[m]``; arguments as in `example_effects`."""
    known = ~np.isnan(scores)
    rest = np.where(known, scores - example_effects(scores, effects), 0.0)
    means: Array = rest.sum(axis=1) / np.maximum(1, known.sum(axis=1))
    return means


def adjusted_means(scores: Array, *, num_rounds: int = 10) -> Array:
    """Mean score of each ordering as if all had been scored on all examples, less the mean example, ``[m]``.

    Two-way additive fit with shrunk effects, by alternation.

    Args:
        scores: Of orderings on examples, ``[m, E]``; NaN where there is none.
        num_rounds: Alternations.
    """
    counts = (~np.isnan(scores)).sum(axis=1)
    effects = np.zeros(len(scores))
    for _ in range(num_rounds):
        means = ordering_effects(scores, effects)
        effects = _shrunk(means, counts)
    return means


def shrunk_means(scores: Array) -> Array:
    """`adjusted_means`, the nearer to 0 the fewer examples they come from."""
    return _shrunk(adjusted_means(scores), (~np.isnan(scores)).sum(axis=1))


def _shrunk(means: Array, counts: NDArray[np.int64]) -> Array:
    shrunk: Array = means * counts / (counts + 0.5 / PRIOR_VARIANCE)
    return shrunk
