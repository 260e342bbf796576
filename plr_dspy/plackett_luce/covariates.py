"""Plackett-Luce with covariates: what an item is worth depends on its features, and on what was chosen before it.

Items have the logits ``features @ coefficients``. The coefficients are shared by any number of choices, each from items
of its own, so that what was learnt from some inputs holds for others. With one choice, and an indicator of each item as
features, it is `PlackettLuce` with the coefficients as logits. It is the rank-ordered (or exploded) logit: S. Beggs, S.
Cardell and J. Hausman, "Assessing the potential demand for electric cars", Journal of Econometrics 17 (1981).
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import softmax

Array: TypeAlias = NDArray[np.float64]
Features: TypeAlias = Callable[[Sequence[int]], Array]  # of the items of one choice, [n, f], after those chosen already


def choose(
    coefficients: ArrayLike, features: Features, length: int, *, rng: np.random.Generator | None = None
) -> tuple[int, ...]:
    """So many items that are likeliest one after the other, of equal ones the first; with a random source a draw."""
    chosen: list[int] = []
    for _ in range(length):
        logits: Array = features(chosen) @ np.asarray(coefficients)
        logits[chosen] = -np.inf
        chosen.append(int((logits if rng is None else logits + rng.gumbel(size=len(logits))).argmax()))
    return tuple(chosen)


def fit(features: Sequence[Features], rankings: Sequence[Sequence[int]], weights: ArrayLike, *, l2: float) -> Array:
    """The coefficients of the largest weighted likelihood of rankings, of chosen items with features of their own, less
    ``l2 / 2 * |coefficients|^2``; without this penalty, rankings that agree have no finite maximum."""
    stages = []  # Of each place of each ranking: the features less those of the item chosen, and the weight.
    for of_items, ranking, share in zip(features, rankings, np.asarray(weights, dtype=np.float64), strict=True):
        for place, item in enumerate(ranking):
            table = of_items(ranking[:place])
            stages.append((np.delete(table, list(ranking[:place]), axis=0) - table[item], share))

    def loss(coefficients: Array) -> tuple[float, Array]:
        value, slope = float(l2 / 2 * coefficients @ coefficients), l2 * coefficients
        for table, share in stages:
            logits = table @ coefficients
            value += float(share * np.logaddexp.reduce(logits))
            slope = slope + share * softmax(logits) @ table
        return value, slope

    start = np.zeros(stages[0][0].shape[1])
    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-8}).x)
