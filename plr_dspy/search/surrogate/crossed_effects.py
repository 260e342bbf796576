"""Crossed effects of orderings and examples: means of scores that know how easy the examples were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from plr_dspy.search.surrogate.variance_components import PRIOR_VARIANCE

Array = NDArray[np.float64]

PRIOR_SHRINKAGE = 3.0
"""Noise variance over the variance of examples' effects, as long as little is known of them."""

PRIOR_EXAMPLES = 10.0
"""Examples that this prior counts as much as."""

MIN_SHRINKAGE, MAX_SHRINKAGE = 0.05, 30.0


def score_table(rows: Sequence[Mapping[int, float]]) -> Array:
    """Scores ``[m, E]`` from the scores by example of each ordering, NaN where there is none."""
    columns = {example: i for i, example in enumerate(sorted({example for row in rows for example in row}))}
    table = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        table[i, [columns[example] for example in row]] = list(row.values())
    return table


def example_shrinkage(scores: Array) -> float:
    """Noise variance over the variance of examples' effects.

    The mean of all scores counts as much as so many of an example's own. Where orderings agree on most examples it is
    small: an example that has met a few of them is known. Where they differ on most, examples are hardly easier or
    harder than others. By the analysis of variance of the examples that have two scores or more, and a prior.

    Args:
        scores: Of orderings on examples, ``[m, E]``; NaN where there is none.
    """
    counts = (~np.isnan(scores)).sum(axis=0)
    several = counts >= 2
    if not several.any():
        return PRIOR_SHRINKAGE
    table, counts = scores[:, several], counts[several]
    means = np.nanmean(table, axis=0)
    within = float(np.nansum((table - means) ** 2) / (counts - 1).sum())
    if within <= 0.0:
        return MIN_SHRINKAGE if means.var() > 0.0 else PRIOR_SHRINKAGE
    between = float(means.var(ddof=min(1, len(means) - 1)) - within * (1.0 / counts).mean())
    number = len(means)
    share = (number * max(between, 0.0) / within + PRIOR_EXAMPLES / PRIOR_SHRINKAGE) / (
        number + PRIOR_EXAMPLES
    )
    return float(np.clip(1.0 / share, MIN_SHRINKAGE, MAX_SHRINKAGE))


def example_effects(scores: Array, effects: Array, shrinkage: float) -> Array:
    """Shrunk mean of each example over the orderings that it has scored, ``[E]``.

    Args:
        scores: Of orderings on examples, ``[m, E]``; NaN where there is none.
        effects: Of the orderings, ``[m]``.
        shrinkage: As `example_shrinkage` says.
    """
    known = ~np.isnan(scores)
    rest = np.where(known, scores - effects[:, None], 0.0)
    counts = known.sum(axis=0)
    shrunk: Array = (rest.sum(axis=0) + shrinkage * rest.sum() / max(1, counts.sum())) / (counts + shrinkage)
    return shrunk


def parameters_used(known: NDArray[np.bool_], shrinkage: float) -> float:
    """Parameters that the shrunk effects of examples use up, of scores known ``[m, E]``."""
    counts = known.sum(axis=0)
    return float((counts / (counts + shrinkage)).sum())


def ordering_effects(scores: Array, effects: Array, shrinkage: float) -> Array:
    """Mean of each ordering above the effects of its examples, ``[m]``; arguments as in `example_effects`."""
    known = ~np.isnan(scores)
    rest = np.where(known, scores - example_effects(scores, effects, shrinkage), 0.0)
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
    effects, shrinkage = np.zeros(len(scores)), example_shrinkage(scores)
    for _ in range(num_rounds):
        means = ordering_effects(scores, effects, shrinkage)
        effects = _shrunk(means, counts)
    return means


def shrunk_means(scores: Array) -> Array:
    """`adjusted_means`, the nearer to 0 the fewer examples they come from."""
    return _shrunk(adjusted_means(scores), (~np.isnan(scores)).sum(axis=1))


def _shrunk(means: Array, counts: NDArray[np.int64]) -> Array:
    shrunk: Array = means * counts / (counts + 0.5 / PRIOR_VARIANCE)
    return shrunk
