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
        num_distinct: Orders of the demos that there are.
        num_examples: Examples that scored each.
        num_unusable: Answers that could not be parsed, and prompts too long for the model; they count as wrong.
        p_value: How often chance puts mean scores at least so far apart if all orders score the same on new examples.
        noise: Standard deviation that the choice of examples gives to the mean score of an order, beside the others.
        deviation: Standard deviation of the true scores of all orders, with that noise taken out.
        deviation_interval: Its 95 % interval.
        num_searched: Orders of which `expected_gain` takes the best: all, or 100 random ones.
        expected_gain: True score of the best of these less that of the program's own, as estimated; 0 if none is
            better. Never more than lies between the program's own score and the highest that is possible (1, or the
            highest seen).
        gain_interval: Its 95 % interval; it reaches no further than from the least plausible score of the program's own
            order to the highest possible one.
        program_calls: Made for this.
        calibrated: The same of calibrated answers, by the same calls; None where these told no log-probabilities.
    """

    scores: list[float]
    num_distinct: int
    num_examples: int
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
            f"examples, the program's own {self.scores[0]:.3f} ({self.program_calls:,} program calls).\n"
            f"{self._verdict()}"
        )
        if (moved := self.calibrated) is None:
            return said
        own, before = moved.scores[0], sum(self.scores) / len(self.scores)
        first = "Calibrate first, which needs no search (BatchCalibration): c" if own > before else "C"
        return (
            f"{said}\n{first}alibrated, they {moved._range()}, the program's own {own:.3f}, by the same calls. "
            f"{moved._verdict(calibrate=True)}"
        )

    def _range(self) -> str:
        return f"score {min(self.scores):.3f} to {max(self.scores):.3f}"

    __repr__ = __str__

    def _verdict(self, *, calibrate: bool = False) -> str:
        """Say whether a search has anything to find; one that calibrates is named."""
        num_answers, high = len(self.scores) * self.num_examples, self.gain_interval[1]
        if 2 * self.num_unusable > num_answers:
            return (
                f"{self.num_unusable:,} of {num_answers:,} answers could not be parsed, or had a prompt too long for "
                "the model, and count as wrong: this says nothing about the order. See what the model answers "
                "(dspy.inspect_history()), mend the program or the adapter, and run this again."
            )
        every = self.num_searched == self.num_distinct
        best = f"the best of {'all ' if every else ''}{self.num_searched}{'' if every else ' random'} orders"
        most = f"on new examples {best} may be up to {high:+.3f} better than the program's own"
        if not self.noise and not self.deviation:
            return f"No answer changed with the order: a search has nothing to find here ({most})."
        if self.matters:
            return self._gain(best, " with calibrate=True" * calibrate)
        chance = f"Chance alone would put them as far apart (p = {self.p_value:.3f})"
        if high < WORTHWHILE:
            return f"{chance}: a search has nothing to find ({most})."
        return (
            f"{chance}: it is not known whether the order matters. True scores of orders may have a standard "
            f"deviation of up to {self.deviation_interval[1]:.3f}; {most}. {self._advice()}"
        )

    def _gain(self, best: str, how: str) -> str:
        """Say what a search should gain, where the order matters."""
        low, high = self.gain_interval
        if high < WORTHWHILE:
            verdict, advice = "but the program's own is a good one already", ""
        elif low > 0 and self.expected_gain >= WORTHWHILE:
            verdict, advice = f"and a search{how} is worth its calls", ""
        elif self.expected_gain >= WORTHWHILE:
            verdict, advice = f"and a search{how} may pay", f" {self._advice()}"
        else:
            verdict, advice = "but the program's own may be a good one already", f" {self._advice()}"
        ends = "[{:.3f}, {:.3f}]".format(*self.deviation_interval)
        return (
            f"The order matters (p = {self.p_value:.4f}; true scores of orders have a standard deviation of "
            f"{self.deviation:.3f} {ends}), {verdict}: {best} should be {self.expected_gain:+.3f} "
            f"[{low:+.3f}, {high:+.3f}] better.{advice}"
        )

    def _advice(self) -> str:
        """Say what would narrow the interval of the gain.

        Its error is that of the program's own score, from too few examples, and about twice that of the mean of
        orders, from too few of them.
        """
        count, more = len(self.scores), 4 * self.num_examples
        few_orders = count < self.num_distinct and self.noise < 2 * self.deviation / math.sqrt(count - 1)
        if self.matters and few_orders:
            more = min(4 * count, self.num_distinct)
            return f"More orders would tell: num_orders={more}, max_metric_calls={more * self.num_examples}."
        return f"More examples would tell: {more:,} of them (max_metric_calls={more * count}) about halve these limits."
