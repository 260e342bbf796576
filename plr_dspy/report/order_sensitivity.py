"""Holds what scores of a few orders say about the order of a program's demos, and says it in words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

SIGNIFICANT = 0.05
"""Up to this p value, the order of the demos is said to matter."""

WORTHWHILE = 0.01
"""From this gain on, a search is said to be worth its calls."""


@dataclass(frozen=True)
class OrderSensitivity:
    """How much the order of a program's demos matters; `print` says it in words.

    Everything is said about new examples like those of the dataset.

    Attributes:
        scores: Mean score of each order, the program's own first; the others are random, or all there are.
        num_distinct, num_examples: Orders of the demos that there are, and examples that scored each of `scores`.
        num_usable: Examples of the dataset that can score orders.
        num_unusable: Answers that could not be parsed, and prompts too long for the model; they count as wrong.
        p_value: How often chance puts mean scores at least so far apart if all orders score the same on new examples.
        noise: Standard deviation that the choice of examples gives to the mean score of an order, beside the others.
        deviation, deviation_interval: Standard deviation of the true scores of all orders, and its 95 % interval.
        num_searched: Orders of which `expected_gain` takes the best: all, or 100 random ones.
        expected_gain, gain_interval: True score of the best of these less that of the program's own, 0 if none is
            better, and its 95 % interval. Neither reaches beyond the highest possible score (1, or the highest seen).
        calibrated: The same of calibrated answers, by the same calls; None where these told no log-probabilities.
        reverse: Where demos are found for each input: mean score of the program's own order the other way round.
    """

    scores: list[float]
    num_distinct: int
    num_examples: int
    num_usable: int
    num_unusable: int
    p_value: float
    noise: float
    deviation: float
    deviation_interval: tuple[float, float]
    num_searched: int
    expected_gain: float
    gain_interval: tuple[float, float]
    program_calls: int
    calibrated: OrderSensitivity | None = None
    reverse: float | None = None

    @property
    def matters(self) -> bool:
        """Tell whether orders lie further apart than chance alone would put them, at the level of 5 %."""
        return self.p_value <= SIGNIFICANT

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        said = (
            f"{len(self.scores)} of {self.num_distinct:,} orders of the demos {self._range()} on {self.num_examples} "
            f"examples, the program's own {self.scores[0]:.3f} ({self.program_calls:,} program calls)."
        )
        if self.reverse is not None:
            said += f" With the demos that it finds the other way round, it scores {self.reverse:.3f}."
        num_answers = len(self.scores) * self.num_examples
        if 2 * self.num_unusable > num_answers:
            return (
                f"{said}\n{self.num_unusable:,} of {num_answers:,} answers could not be parsed, or had a prompt too "
                "long for the model, and count as wrong: this says nothing about the order.\nRecommended: see what the "
                "model answers (dspy.inspect_history()), mend the program or the adapter, and run this again."
            )
        said, advice, calibrated = f"{said}\n{self._finding()}", self._advice("PLReorder"), self.calibrated
        if calibrated is not None:
            own, after = calibrated.scores[0], calibrated._advice("PLReorder with calibrate=True")
            said += (
                f"\nCalibrated, they {calibrated._range()}, the program's own {own:.3f}, by the same calls. "
                f"{calibrated._finding()}"
            )
            if own > max(self.scores[0], sum(self.scores) / len(self.scores)) + 1e-9:
                advice = f"calibrate first (BatchCalibration), which takes 64 calls and no search; after that {after}"
            elif calibrated._is_promising and not self._is_promising:
                advice = after
        return f"{said}\nRecommended: {advice}"

    __repr__ = __str__

    def _range(self) -> str:
        return f"score {min(self.scores):.3f} to {max(self.scores):.3f}"

    @property
    def _is_promising(self) -> bool:
        """Whether a search should find an order that is worth while."""
        return self.matters and self.expected_gain >= WORTHWHILE

    def _finding(self) -> str:
        """Say whether the order matters, and what the best one should gain."""
        every, (low, high) = self.num_searched == self.num_distinct, self.gain_interval
        best = f"the best of {'all ' if every else ''}{self.num_searched}{'' if every else ' random'} orders"
        least, largest = self.deviation_interval
        if not self.noise and not self.deviation:
            return f"No answer changed with the order, on these {self.num_examples} examples."
        if not self.matters:
            return (
                f"Chance alone would put them as far apart (p = {self.p_value:.3f}); true scores of orders may have a "
                f"standard deviation of up to {largest:.3f}, and on new examples {best} may be up to {high:+.3f} "
                "better than the program's own."
            )
        return (
            f"The order matters (p = {self.p_value:.4f}; true scores of orders have a standard deviation of "
            f"{self.deviation:.3f} [{least:.3f}, {largest:.3f}]): {best} should be {self.expected_gain:+.3f} "
            f"[{low:+.3f}, {high:+.3f}] better than the program's own."
        )

    def _advice(self, search: str) -> str:
        """Say whether to search, and what would narrow the interval of the gain where that is not sure."""
        if self.gain_interval[1] < WORTHWHILE:
            return "no search, which has nothing to find here."
        if self._is_promising and self.gain_interval[0] > 0:
            return f"a search ({search}), which is worth its calls."
        advice = f"a search ({search}), which may pay." if self._is_promising else "no search yet."
        # Its error is the own score's, from few examples, and about twice that of the mean of orders, from few orders.
        more = 4 * self.num_examples
        count = len(self.scores) + (self.reverse is not None and len(self.scores) < self.num_distinct)
        what = f"examples: {more:,} of them (max_metric_calls={more * count}) about halve these limits."
        if more > self.num_usable:
            all_of_them = f" (all of them: max_metric_calls={self.num_usable * count})"
            rest = all_of_them * (self.num_usable > self.num_examples)
            what = f"examples: {more:,} about halve these limits; the dataset has {self.num_usable:,}{rest}."
        few_orders = count < self.num_distinct and self.noise < 2 * self.deviation / math.sqrt(count - 1)
        if self.matters and few_orders:
            more = min(4 * count, self.num_distinct)
            what = f"orders: num_orders={more}, max_metric_calls={more * self.num_examples}."
        return f"{advice} To be surer, run this again with more {what}"
