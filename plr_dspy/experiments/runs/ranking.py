"""All orders of a few demos: how probable a search finds each, and how accurate it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats


@dataclass(frozen=True)
class Ranking:
    """Learned probability and held-out accuracy of every order of k demos.

    Orders that render to equal prompts may be given once, so that there can be fewer than k!.

    Attributes:
        orders: Demo indices by position, ``[m, k]`` with m up to k!.
        log_probs: Natural logarithms of the orders' probabilities under the learned distribution, ``[m]``.
        accuracies: Accuracies of the orders on held-out examples, as fractions, ``[m]``.

    Raises:
        ValueError: when the three do not fit together, an order is no permutation or comes twice, or a number is not
            finite.
    """

    orders: tuple[tuple[int, ...], ...]
    log_probs: tuple[float, ...]
    accuracies: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = [len(self.orders), len(self.log_probs), len(self.accuracies)]
        if len(set(lengths)) > 1 or not lengths[0]:
            raise ValueError(
                "orders, log_probs and accuracies must have one entry for each order, and at least one; "
                f"got {lengths[0]}, {lengths[1]} and {lengths[2]}"
            )
        identity = list(range(len(self.orders[0])))
        for order in self.orders:
            if sorted(order) != identity:
                raise ValueError(
                    f"orders must hold permutations of 0 to {len(identity) - 1}; got {list(order)}"
                )
        if len({tuple(order) for order in self.orders}) < len(self.orders):
            raise ValueError("orders must differ from each other; got one twice: keep its first entry")
        for name, values in (("log_probs", self.log_probs), ("accuracies", self.accuracies)):
            if not all(math.isfinite(value) for value in values):
                raise ValueError(f"{name} must be finite; got {list(values)}")

    @property
    def kendall(self) -> tuple[float, float]:
        """Kendall's tau-b of log-probabilities and accuracies, and the p-value of a two-sided test of independence.

        Tau is positive where probable orders are accurate. Both are NaN where all orders are equally accurate.
        """
        result = stats.kendalltau(self.log_probs, self.accuracies)
        return float(result.statistic), float(result.pvalue)

    @property
    def by_probability(self) -> list[int]:
        """Indices of the orders, the most probable first."""
        return sorted(range(len(self.orders)), key=lambda i: -self.log_probs[i])

    @property
    def original(self) -> int | None:
        """Index of the order that the demos came in; None where another with its prompt stands for it."""
        identity = tuple(range(len(self.orders[0])))
        return next((i for i, order in enumerate(self.orders) if tuple(order) == identity), None)
