"""The money of a compile: what its calls have cost, and whether another one may begin."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable

from plr_dspy.scoring.ledger import Tokens

MARGIN = 1.1
"""Calls to come are taken for so much dearer than those made: they are of other examples."""

DEVIATIONS = 4.0
"""Standard deviations that the cost of calls to come may lie above what is expected."""


class Purse:
    """What a compile may spend. Threads may share it.

    No call begins when what is spent, and what the calls under way and this one may cost, would pass the allowance: a
    call may cost what the dearest one so far did. As long as none is known, calls begin.

    Args:
        limit: Dollars that are not to be passed; None for no limit.
        price: Dollars for the tokens of a call; None where a model has no price.
        expected: Dollars for a call, as long as none was made; None where nobody knows.
        earlier: Tokens of the calls that an earlier part made.

    Attributes:
        limit: The same.
        allowance: What the phase of the compile that is under way may bring the sum to.
        spent: Dollars, those of the earlier part included.
        refused, was_short: Whether a call was not begun for want of money, in this phase and in any.
    """

    def __init__(
        self,
        limit: float | None = None,
        *,
        price: Callable[[Tokens], float | None] = lambda _: 0.0,
        expected: float | None = None,
        earlier: Iterable[Tokens] = (),
    ) -> None:
        self.limit = self.allowance = limit
        self.spent = 0.0
        self.refused = self.was_short = False
        self._price = price
        self._expected = expected
        self._num_paid = 0  # free calls, from a cache or failed, tell nothing of those to come
        self._squares = self._largest = 0.0
        self._under_way = 0
        self._unpriced: list[str] = []
        self._lock = threading.Lock()
        for tokens in earlier:
            self.add(tokens)

    def begin(self) -> bool:
        """Set the money for a call aside, or say that there is too little; `note` ends the call."""
        with self._lock:
            if self.allowance is not None:
                may_cost = (self._under_way + 1) * (self._dearest or 0.0)
                if self._unpriced or self.spent + may_cost > self.allowance:
                    self.refused = self.was_short = True
                    return False
            self._under_way += 1
            return True

    def give_back(self) -> None:
        """Say that a call was not made after all."""
        with self._lock:
            self._under_way -= 1

    def note(self, tokens: Tokens) -> None:
        """Pay for a call that has ended."""
        with self._lock:
            self._under_way -= 1
            self.add(tokens)

    def check(self) -> None:
        """Raise if a call has used a model without a price.

        Raises:
            ValueError: with its name.
        """
        if self._unpriced:
            raise ValueError(f"max_cost needs a price for {self._unpriced[0]}: pass max_metric_calls instead")

    def cost(self, num_calls: float) -> float | None:
        """Dollars that pay for so many further calls, with a margin; None where nobody knows what a call costs."""
        if not self._dearest:
            return None if self._dearest is None else 0.0
        mean, deviation = self._moments()
        return MARGIN * num_calls * mean + DEVIATIONS * deviation * math.sqrt(num_calls) + self._dearest

    def num_calls(self) -> int:
        """Further calls that the money left to the limit pays for, with the margin of `cost`."""
        if self.limit is None or not self._dearest:
            return sys.maxsize
        mean, deviation = self._moments()
        left = self.limit - self.spent - self._dearest
        if left <= 0:
            return 0
        linear, root = MARGIN * mean, DEVIATIONS * deviation
        return int(((math.sqrt(root**2 + 4 * linear * left) - root) / (2 * linear)) ** 2)

    @property
    def _dearest(self) -> float | None:
        """What a call may cost; None where nobody knows."""
        return self._largest if self._num_paid else self._expected

    def _moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the cost of a call."""
        if not self._num_paid:
            return self._expected or 0.0, 0.0
        mean = self.spent / self._num_paid
        return mean, math.sqrt(max(0.0, self._squares / self._num_paid - mean**2))

    def add(self, tokens: Tokens) -> None:
        """Count a call as paid for that was not begun here."""
        cost = 0.0 if self.limit is None else self._price(tokens)
        if cost is None:
            self._unpriced += [model for model in tokens if self._price({model: tokens[model]}) is None]
        elif cost > 0:
            self.spent += cost
            self._num_paid += 1
            self._squares += cost**2
            self._largest = max(self._largest, cost)
