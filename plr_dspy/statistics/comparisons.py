"""Intervals of paired differences and of means."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special  # scipy.stats takes half a second to import


def paired_interval(
    differences: Sequence[float], confidence: float = 0.95, *, num_comparisons: int = 1, largest: float = 0.0
) -> tuple[float, float]:
    """Confidence interval of a mean paired difference; 0 to 0 where all differences are 0.

    Student's t on the differences and two pseudo-examples: half of one each at the largest difference seen and at its
    negative, and one at 0. For right-or-wrong scores this is the adjusted Wald interval of Agresti and Min (Statistics
    in Medicine 24, 2005); it keeps a few examples that happen to agree from looking certain. So many comparisons hold
    together at the level `confidence` (Bonferroni). A difference may be as large as `largest`, if that is more than was
    seen.
    """
    mean, error, freedom = _with_pseudo_examples(differences, largest)
    margin = float(special.stdtrit(freedom, 1 - (1 - confidence) / (2 * num_comparisons))) * error
    return (mean - margin, mean + margin)


def paired_probability(differences: Sequence[float]) -> float:
    """Probability that a mean paired difference is above 0, by the `paired_interval`; .5 where all are 0."""
    mean, error, freedom = _with_pseudo_examples(differences)
    return float(special.stdtr(freedom, mean / error)) if error else 0.5


def _with_pseudo_examples(differences: Sequence[float], largest: float = 0.0) -> tuple[float, float, int]:
    """The mean of differences and two pseudo-examples, its standard error, and the degrees of freedom of that."""
    values = np.asarray(differences, dtype=float)
    if values.size == 0:
        raise ValueError("paired_interval needs at least one difference; got none")
    count, largest = values.size + 2, max(largest, float(np.abs(values).max()))
    mean = float(values.sum()) / count
    variance = (float((values**2).sum()) + largest**2) / count - mean**2
    return mean, math.sqrt(max(variance, 0.0) / count), count - 1


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student-t confidence interval of a mean of at least two values, such as that of the gains of several runs."""
    if len(values) < 2:
        raise ValueError(f"mean_interval needs at least two values; got {len(values)}")
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    margin = float(special.stdtrit(len(values) - 1, 0.5 + confidence / 2)) * error
    return (mean - margin, mean + margin)
