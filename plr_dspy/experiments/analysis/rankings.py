"""All orders of a few demos: how probable a search finds each, and how accurate it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats


@dataclass(frozen=True)
class Ranking:
    """Learned probability and held-out accuracy of every order of k demos.

    Orders that render to equal prompts may be given once, so that there can be fewer than k!.

    Attributes:
        task: Name of the task.
        num_demos: Number of demos k.
        seed: Of the run.
        orders: Demo indices by position, ``[m, k]`` with m up to k!.
        log_probs: Of the orders under the learned distribution, ``[m]``.
        accuracies: Of the orders on held-out examples, as fractions, ``[m]``.
    """

    task: str
    num_demos: int
    seed: int
    orders: Sequence[Sequence[int]]
    log_probs: Sequence[float]
    accuracies: Sequence[float]

    def __post_init__(self) -> None:
        if not len(self.orders) == len(self.log_probs) == len(self.accuracies) > 0:
            raise ValueError(
                "orders, log_probs and accuracies must have one entry for each order, and at least one; "
                f"got {len(self.orders)}, {len(self.log_probs)} and {len(self.accuracies)}"
            )
        for order in self.orders:
            if sorted(order) != list(range(self.num_demos)):
                raise ValueError(
                    f"orders must hold permutations of 0 to {self.num_demos - 1}, for num_demos = "
                    f"{self.num_demos}; got {list(order)}"
                )
        if len({tuple(order) for order in self.orders}) < len(self.orders):
            raise ValueError("orders must differ from each other; got one twice: keep its first entry")
        for name, values in (("log_probs", self.log_probs), ("accuracies", self.accuracies)):
            if not all(math.isfinite(value) for value in values):
                raise ValueError(f"{name} must be finite; got {list(values)}")

    @property
    def kendall(self) -> tuple[float, float]:
        """Kendall's tau of log-probabilities and accuracies, and its p-value.

        Tau is positive where probable orders are accurate, and NaN (p too) where all are equally so.
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
        identity = tuple(range(self.num_demos))
        return next((i for i, order in enumerate(self.orders) if tuple(order) == identity), None)

    def to_dict(self) -> dict[str, Any]:
        """The ranking as plain data (dicts, lists, strings, numbers)."""
        return {
            "task": self.task,
            "num_demos": self.num_demos,
            "seed": self.seed,
            "orders": [[int(demo) for demo in order] for order in self.orders],
            "log_probs": [float(value) for value in self.log_probs],
            "accuracies": [float(value) for value in self.accuracies],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ranking:
        """Inverse of `to_dict`; other fields are ignored.

        Raises:
            ValueError: when a field is missing, or the fields do not fit together.
        """
        names = ("task", "num_demos", "seed", "orders", "log_probs", "accuracies")
        missing = [name for name in names if name not in data]
        if missing:
            raise ValueError(f"expected a ranking with the fields {', '.join(names)}; {missing} missing")
        return cls(
            task=data["task"],
            num_demos=data["num_demos"],
            seed=data["seed"],
            orders=tuple(tuple(order) for order in data["orders"]),
            log_probs=tuple(data["log_probs"]),
            accuracies=tuple(data["accuracies"]),
        )
