"""Posterior draws of the mean score of random orderings, given scores of each ordering on a few examples.

Both the orderings and the examples are random samples. In each draw, each ordering and each example gets
a random weight. The weight of a call is the product of its ordering's and its example's weight (A. Owen
and D. Eckles, Annals of Applied Statistics 6, 2012). So draws vary widely if there are only a few
examples, even with many calls.

Intervals based on the draws are conservative, because the noise variance of single calls is counted
about three times. If there is no other noise, an interval is 1.5 to 1.9 times as wide as necessary.

Shapes: R orderings, E examples, D draws, k kinds of values.
"""

from dataclasses import dataclass

import numpy as np

from plr_dspy.statistics.arrays import Array, Mask

NUM_DRAWS = 2_000
MIN_ORDERINGS = 3  # minimum number of orderings for an estimate of the variance between them
# Weight of each of two artificial examples: one has the best and one the worst score (Jeffreys' prior).
# Without these examples, equal scores on a few examples would imply certainty.
PSEUDO_EXAMPLES = 0.5


@dataclass(frozen=True)
class RandomOrderings:
    """Random weights of orderings, and the source of all further random numbers.

    Attributes:
        weights: The weights, ``[D, R]``. If scores depend only on the ordering, the variance of
            the drawn means is an unbiased estimate of the variance of the mean score.
    """

    weights: Array
    rng: np.random.Generator

    @classmethod
    def draw(cls, number: int, rng: np.random.Generator) -> "RandomOrderings":
        """Draw the weights of `number` orderings. The number must be at least `MIN_ORDERINGS`."""
        return cls(rng.gamma((number - 2) / number, size=(NUM_DRAWS, number)), rng)

    def means(self, values: Array, known: Mask) -> Array:
        """Draw the orderings' mean values on new examples, ``[D, k]``.

        All orderings have equal expected weights, even if a search called the better ones more often.

        Args:
            values: The values of calls, ``[k, R, E]``. Unknown values are ignored.
            known: Whether each ordering was called on each example, ``[R, E]``.
        """
        weights = self.weights / np.maximum(1, known.sum(axis=1))
        of_examples = self.rng.exponential(size=(len(weights), known.shape[1]))
        totals = ((weights @ known) * of_examples).sum(axis=1)
        sums = [((weights @ np.where(known, value, 0.0)) * of_examples).sum(axis=1) for value in values]
        return np.asarray(np.stack(sums, axis=1) / np.maximum(totals, 1e-300)[:, None])

    def with_pseudo_examples(
        self, means: Array, best: Array, worst: Array, known: Mask, *, weight: float = 1.0
    ) -> Array:
        """Average drawn means ``[D, k]`` with `best` and `worst`, the values of artificial examples ``[k]``.

        `known` and `weight` are as in `shares()`.
        """
        shares = self.shares(known, weight=weight)
        return np.asarray(shares[:, [0]] * means + shares[:, [1]] * best + shares[:, [2]] * worst)

    def shares(self, known: Mask, *, weight: float = 1.0) -> Array:
        """Draw the weights of the calls, the best and the worst artificial example in a mean, ``[D, 3]``.

        The three weights add up to 1.

        Args:
            known: Whether each ordering was called on each example, ``[R, E]``. At least one entry
                must be true.
            weight: Factor by which the weight of the artificial examples is multiplied. If there
                are several groups of examples, their factors should add up to 1.
        """
        pseudo = weight * PSEUDO_EXAMPLES
        # The first shape is at least 1, so the sum of the three variates cannot underflow to 0.
        shapes = [effective_number(known), pseudo, pseudo]
        shares = self.rng.gamma(shapes, size=(NUM_DRAWS, 3))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def effective_number(known: Mask) -> float:
    """Return the effective number of examples. It is below E if examples have unequal weights.

    `known`, ``[R, E]``, is true where an ordering was called on an example. All orderings have the
    same weight. It is divided equally among an ordering's examples.
    """
    shares = (known / np.maximum(1, known.sum(axis=1, keepdims=True))).sum(axis=0)
    squares = float((shares**2).sum())
    return float(shares.sum()) ** 2 / squares if squares else 0.0


def mean_of_orderings(values: Array, known: Mask) -> Array:
    """Average the values of each ordering, ``[k, R, E]``, and return the mean over orderings, ``[k]``.

    Orderings without calls are ignored. If no ordering has calls, return zeros.
    """
    counts = known.sum(axis=1)
    sums = np.where(known, values, 0.0).sum(axis=2)
    means = sums / np.maximum(1, counts)
    return np.asarray(means.sum(axis=1) / max(1, int((counts > 0).sum())))


def draw_means(scores: Array, low: float, high: float, rng: np.random.Generator) -> Array:
    """Draw the mean score of random orderings on new examples, ``[D]``.

    Args:
        scores: The scores ``[R, E]`` of at least `MIN_ORDERINGS` orderings. NaN marks unknown scores.
        low, high: The lowest and the highest possible score.
        rng: Source of random numbers.
    """
    known = ~np.isnan(scores)
    orderings = RandomOrderings.draw(len(scores), rng)
    means = orderings.means(scores[None], known)
    return orderings.with_pseudo_examples(means, np.array([high]), np.array([low]), known)[:, 0]
