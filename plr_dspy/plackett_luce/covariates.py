"""Plackett-Luce with covariates: what an item is worth depends on its features, and on what was chosen before it.

The coefficients are shared by any number of choices, each from items of its own, so that what was learnt from some
inputs holds for others. It is the rank-ordered (or exploded) logit: S. Beggs, S. Cardell and J. Hausman, "Assessing the
potential demand for electric cars", Journal of Econometrics 17 (1981).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

Array: TypeAlias = NDArray[np.float64]

Features: TypeAlias = Callable[[Sequence[int]], Array]
"""The features of the items of one choice, ``[n, f]``, when these items have been chosen already, in this order."""


class CovariatePlackettLuce:
    """Plackett-Luce distribution over ordered subsets of items whose logits are ``features @ coefficients``.

    With one choice, and an indicator of each item as features, it is `PlackettLuce` with the coefficients as logits.

    Args:
        coefficients: Of the features, ``[f]``.

    Attributes:
        coefficients: The same.

    Raises:
        ValueError: for coefficients that are no finite vector.
    """

    def __init__(self, coefficients: Sequence[float] | Array) -> None:
        self.coefficients: Array = np.asarray(coefficients, dtype=np.float64)
        if self.coefficients.ndim != 1 or not np.isfinite(self.coefficients).all():
            raise ValueError(f"coefficients must be a vector of finite numbers; got {coefficients!r}")

    def mode(self, features: Features, length: int) -> tuple[int, ...]:
        """The items that are likeliest one after the other; of equal ones the first.

        Args:
            features: Of the items.
            length: How many are chosen, k.
        """
        chosen: list[int] = []
        for _ in range(length):
            chosen.append(int(self._logits(features, chosen).argmax()))
        return tuple(chosen)

    def sample(self, features: Features, length: int, rng: np.random.Generator) -> tuple[int, ...]:
        """Draw k items, one after the other; arguments are those of `mode`, and a random source."""
        chosen: list[int] = []
        for _ in range(length):
            logits = self._logits(features, chosen)
            chosen.append(int((logits + rng.gumbel(size=len(logits))).argmax()))
        return tuple(chosen)

    def log_prob(self, features: Features, ranking: Sequence[int]) -> float:
        """Log-probability that these items are chosen in this order."""
        stages = (log_softmax(self._logits(features, ranking[:place])) for place in range(len(ranking)))
        return float(sum(stage[item] for stage, item in zip(stages, ranking, strict=True)))

    def _logits(self, features: Features, chosen: Sequence[int]) -> Array:
        """Of the items, ``[n]``; -inf of those that were chosen already."""
        logits: Array = features(chosen) @ self.coefficients
        logits[list(chosen)] = -np.inf
        return logits

    @classmethod
    def fit(
        cls,
        features: Sequence[Features],
        rankings: Sequence[Sequence[int]],
        weights: Sequence[float] | Array | None = None,
        *,
        l2: float = 1e-3,
        start: Sequence[float] | Array | None = None,
    ) -> CovariatePlackettLuce:
        """The coefficients of the largest weighted likelihood of rankings, less ``l2 / 2 * |coefficients|^2``.

        The objective is concave, so that any start finds the same.

        Args:
            features: Of the items that each ranking is of, m of them.
            rankings: Chosen items, the first one first, ``[m]``.
            weights: Of the rankings, ``[m]``, not negative; None for 1.
            l2: Strength of the penalty, positive: without one, rankings that agree have no finite maximum.
            start: Coefficients to begin with; None for 0.

        Raises:
            ValueError: for arguments that do not fit.
        """
        if not rankings or len(features) != len(rankings) or not l2 > 0.0:
            raise ValueError(
                f"fit needs as many features as rankings, at least one, and l2 > 0; got {len(features)}, "
                f"{len(rankings)} and {l2}"
            )
        shares = np.ones(len(rankings)) if weights is None else np.asarray(weights, dtype=np.float64)
        if shares.shape != (len(rankings),) or not np.isfinite(shares).all() or (shares < 0).any():
            raise ValueError(f"weights must be {len(rankings)} finite numbers, none negative; got {weights!r}")
        stages = []  # Of each place of each ranking: the features less those of the item chosen, and the weight.
        for of_items, ranking, share in zip(features, rankings, shares, strict=True):
            for place, item in enumerate(ranking):
                table = of_items(ranking[:place])
                left = np.setdiff1d(np.arange(len(table)), ranking[:place])
                stages.append((table[left] - table[item], share))

        def loss(coefficients: Array) -> tuple[float, Array]:
            value, slope = float(l2 / 2 * coefficients @ coefficients), l2 * coefficients
            for table, share in stages:
                logits = table @ coefficients
                value += float(share * np.logaddexp.reduce(logits))
                slope = slope + share * softmax(logits) @ table
            return value, slope

        size = stages[0][0].shape[1] if stages else len(np.atleast_1d(start if start is not None else 0.0))
        begin = np.zeros(size) if start is None else np.asarray(start, dtype=np.float64)
        return cls(minimize(loss, begin, jac=True, method="L-BFGS-B", options={"gtol": 1e-8}).x)
