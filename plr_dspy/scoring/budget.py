"""A run's budget in calls, dollars and seconds. Prices come from litellm's price table."""

import importlib.util
import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from plr_dspy.report.stop import StopReason
from plr_dspy.scoring.run_log import CallKey, RunLog, Tokens

MAX_RESERVED = 0.6  # maximum fraction of the affordable calls that a search reserves for later phases
MARGIN = 1.15  # safety factor for the estimated cost and duration of future calls

# Providers whose names have a suffix in the price table, as in "vertex_ai-anthropic_models".
SUFFIXED_PROVIDERS = ("bedrock", "cohere", "fireworks_ai", "vertex_ai")
# Key in a model's token counts for the number of replies without usage data.
UNCOUNTED = "replies_without_usage"


@dataclass(kw_only=True)
class Budget:
    """A run's limits, and the calls, dollars and seconds used so far. The budget is thread-safe.

    A call does not start if it is expected to exceed a limit. For each running call, the budget
    reserves the expected cost, or the cost of the most expensive call so far if that is higher. If
    an example is longer than usual, the cost of the additional tokens is also reserved. Calls
    recalled from the log count towards `max_calls` and `max_cost` like new calls. `max_cost` limits
    the total cost of all runs in the log.

    Attributes:
        started: Start time as returned by `time.monotonic()`. By default, the current time.
        expected_cost: Expected dollars per call, or None if unknown. This is the assumed mean cost
            until a call has been paid for. At least this amount is reserved per call, because
            the first call may be unusually cheap, for example without demos.
        extra_costs: Additional dollars per call on each unusually long example, keyed by its index.
        share: Fraction of the cost and time limits that may be used by the end of the current phase.
        limit_reached: The limit that prevented the last requested call, or None if that call started.
        unpriced: A description of the first missing price or token count, or an empty string.
        largest_cost: Dollars to reserve for a call on an example of usual length, or 0 if unknown.
        needs_one: Whether one call must end before others start, to measure the cost of a call.
    """

    log: RunLog = field(default_factory=RunLog, kw_only=False)
    max_calls: int = sys.maxsize
    max_cost: float | None = None
    max_seconds: float | None = None
    started: float | None = None
    expected_cost: float | None = None
    extra_costs: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limit_reached: StopReason | None = None
        self.share = 1.0
        self.unpriced = ""
        self.cost = 0.0
        self._cost_of_log = 0.0  # cost of all logged calls, including calls of earlier runs
        self._started = time.monotonic() if self.started is None else self.started
        self._lock = threading.Lock()
        self._num_under_way = 0
        self._extra_under_way = 0.0  # additional cost of the running calls on long examples, in dollars
        self._num_made = 0
        self.reserve(0)
        self.expect(self.expected_cost)
        for tokens in self.log.tokens_before:
            self._cost_of_log += self._price(tokens)

    def expect(self, cost: float | None, *, reserve: float = 0.0) -> None:
        """Reset the estimated cost and duration of a call, for example after a teacher's calls have ended.

        Args:
            cost: Expected dollars per call, or None if unknown.
            reserve: Dollars to reserve per call, if this is more than `cost`.
        """
        self.expected_cost = cost
        self.largest_cost = max(cost or 0.0, reserve)
        self.needs_one = self.max_cost is not None
        self._cost_of_paid = 0.0
        # This number excludes free calls (cached or failed), because they do not predict later costs.
        self._num_paid = 0
        self._num_timed = 0
        self._timed_from = time.monotonic()

    def reserve(self, calls: int, *, planned: int = 0) -> None:
        """Reserve money and time for `calls` later calls, and reset `limit_reached`.

        If the budget suffices for only a fraction of the `planned` calls, reserve only this fraction
        of `calls`. If `planned` is 0, reserve all `calls`. In both cases, reserve at most the
        fraction `MAX_RESERVED` of the affordable calls.
        """
        self._num_reserved = calls
        self._planned = planned
        self.limit_reached = None

    @contextmanager
    def other_model(self, share: float) -> Iterator[None]:
        """Within the context, estimate cost and time from calls to another model.

        These calls may use the fraction `share` of the cost and time limits, in addition to what
        was used before. Set their expected cost with `expect()`. On exit, the previous estimates and
        reserves are restored.
        """
        of_model = (
            "expected_cost",
            "largest_cost",
            "needs_one",
            "_cost_of_paid",
            "_num_paid",
            "_num_timed",
        )
        of_phase = ("share", "limit_reached", "_num_reserved", "_planned")
        old_values = {name: getattr(self, name) for name in (*of_model, *of_phase, "_timed_from")}
        start = time.monotonic()
        used = 0.0
        if self.max_cost is not None:
            used = max(used, self.cost / self.max_cost)
        if self.max_seconds is not None:
            used = max(used, (start - self._started) / self.max_seconds)
        self.reserve(0)
        self.expect(None)
        self.share = min(1.0, used + share)
        try:
            yield
        finally:
            for name, value in old_values.items():
                setattr(self, name, value)
            # Exclude the time of the other model's calls.
            self._timed_from = self._timed_from + time.monotonic() - start

    def recall(self, key: CallKey, *, example: int | None = None, last_failures: bool = False) -> bool:
        """Reuse a logged call without paying again. Return False if the log has no such call to reuse.

        Args:
            key: The key of the call.
            example: The example that was scored, or None if the call scored no example.
            last_failures: As in `RunLog.recall`.
        """
        call = self.log.recall(key, last_failures=last_failures)
        if call is not None:
            self._count(self._price(call.tokens), self._extra_cost(example))
            self.needs_one = self.needs_one and not call.tokens
        return call is not None

    def begin(self, example: int | None = None) -> bool:
        """Begin a new call. Return False if the call would exceed a limit.

        `example` is the example to score, or None if the call scores no example.
        """
        with self._lock:
            extra = self._extra_cost(example)
            self.limit_reached = self._exceeded_limit(extra)
            if self.limit_reached is not None:
                return False
            if not self._num_timed and not self._num_under_way:
                # Start timing now, because recalled calls do not show how long new calls take.
                self._timed_from = time.monotonic()
            self._num_under_way += 1
            self._extra_under_way += extra
            return True

    def end(self, tokens: Tokens, example: int | None = None) -> None:
        """End a call and add its cost.

        Args:
            tokens: The token counts of the call, or an empty dict if the model was not called.
            example: As in `begin`.
        """
        with self._lock:
            extra = self._extra_cost(example)
            self._num_under_way -= 1
            self._extra_under_way -= extra
            self._num_made += 1
            self._num_timed += 1
            self.needs_one = self.needs_one and not tokens
            cost = self._price(tokens)
            self._cost_of_log += cost
            self._count(cost, extra)

    @property
    def estimated_calls_left(self) -> int:
        """The number of further calls that the limits allow, given the mean cost and duration so far."""
        return max(0, int(min(self._calls_by_limit().values())))

    @property
    def tightest_limit(self) -> StopReason:
        """The limit that allows the fewest further calls."""
        calls = self._calls_by_limit()
        return min(calls, key=calls.__getitem__)

    def _calls_by_limit(self) -> dict[StopReason, float]:
        """Return the number of further calls that each limit allows."""
        # A resumed run must plan like the original run. Until it makes a new call, ignore the cost of
        # logged calls that it has not recalled yet.
        spent = self._cost_of_log if self._num_made else self.cost
        return {
            StopReason.BUDGET: self.max_calls - self.log.num_calls,
            StopReason.COST: self._calls_for_money(self.largest_cost + spent),
            StopReason.TIME: self._calls_for_time(),
        }

    def _extra_cost(self, example: int | None) -> float:
        return 0.0 if example is None else self.extra_costs.get(example, 0.0)

    def _exceeded_limit(self, extra: float) -> StopReason | None:
        """Return the limit that the running, next and reserved calls would exceed, or None.

        `extra` is the additional cost of the next call: 0 unless the call's example is long.
        """
        if self.log.num_calls + self._num_under_way >= self.max_calls:
            return StopReason.BUDGET
        if self.max_cost is not None:
            next_calls = (self._num_under_way + 1) * self.largest_cost + self._extra_under_way + extra
            reserved = self._cost_of_log + next_calls
            # All logged calls count towards the limit. Only new and recalled calls count towards
            # the fraction of the limit that the current phase may use.
            is_over = reserved > self.max_cost or self.cost + next_calls > self.share * self.max_cost
            if self.unpriced or is_over or self._needs_reserve(self._calls_for_money(reserved)):
                return StopReason.COST
        if self.max_seconds is not None:
            has_ended = time.monotonic() - self._started >= self.share * self.max_seconds
            if has_ended or self._needs_reserve(self._calls_for_time()):
                return StopReason.TIME
        return None

    def _needs_reserve(self, calls_left: float) -> bool:
        if not self._num_reserved or math.isinf(calls_left):
            return False
        affordable = calls_left + self.log.num_calls
        reserved = min(float(self._num_reserved), MAX_RESERVED * affordable)
        if self._planned:
            reserved = min(reserved, self._num_reserved * affordable / self._planned)
        return calls_left < 1.0 + reserved

    def _calls_for_money(self, spent: float) -> float:
        mean = self._cost_of_paid / self._num_paid if self._num_paid else self.expected_cost
        if self.max_cost is None or not mean:
            return math.inf
        return (self.max_cost - spent) / (MARGIN * mean)

    def _calls_for_time(self) -> float:
        if self.max_seconds is None or not self._num_timed:
            return math.inf
        now = time.monotonic()
        # Count each running call as half done. Otherwise, calls would appear to take n times as long
        # when the first of n parallel calls ends.
        num_done = self._num_timed + 0.5 * self._num_under_way
        mean = max(now - self._timed_from, 1e-9) / num_done
        return (self._started + self.max_seconds - now) / (MARGIN * mean)

    def _count(self, cost: float, extra: float) -> None:
        """Add a call's cost. The part `extra` of this cost is due to a long example."""
        self.cost += cost
        if cost > 0:
            self.largest_cost = max(cost - extra, self.largest_cost)
            self._cost_of_paid += cost
            self._num_paid += 1

    def _price(self, tokens: Tokens) -> float:
        """Return a call's cost in dollars, or 0 if there is no cost limit.

        If the cost is unknown, set `unpriced` and return 0.
        """
        if self.max_cost is None:
            return 0.0
        cost = cost_of(tokens)
        if cost is None:
            model = next(model for model in tokens if cost_of({model: tokens[model]}) is None)
            missing = "the number of tokens in each reply of" if price_of(model) else "the price of"
            self.unpriced = self.unpriced or f"{missing} {model}"
        return cost or 0.0


def price_of(model: str) -> dict[str, float] | None:
    """Return a model's price in dollars per token for each kind of token, or None if unknown.

    Prompt tokens are "cached" if they are read from the provider's cache, and "written" if they
    are added to the cache.
    """
    entry = _entry_of(model)
    prompt = entry.get("input_cost_per_token")
    completion = entry.get("output_cost_per_token")
    if prompt is None or completion is None:
        return None
    cached = entry.get("cache_read_input_token_cost")
    prices = {
        "prompt": prompt,
        "completion": completion,
        "cached": prompt if cached is None else cached,
        "written": entry.get("cache_creation_input_token_cost") or prompt,
    }
    return {kind: float(price) for kind, price in prices.items()}


def window_of(model: str) -> int | None:
    """Return the maximum number of tokens in a model's prompts, or None if unknown."""
    most = _entry_of(model).get("max_input_tokens")
    return most if isinstance(most, int) else None


def _entry_of(model: str) -> Mapping[str, Any]:
    """Return a model's entry in litellm's price table, or an empty mapping if the model is not listed."""
    # If litellm is imported, its table also contains the user's own prices.
    table = getattr(sys.modules.get("litellm"), "model_cost", None) or _table_on_disk()
    if model in table:
        return dict(table[model])
    provider, _, name = model.partition("/")
    entry = dict(table.get(name, {}))
    entry_provider = str(entry.get("litellm_provider"))
    has_suffix = provider in SUFFIXED_PROVIDERS and entry_provider.startswith(provider)
    if entry_provider != provider and not has_suffix:
        return {}  # The entry is for another provider's model with the same name.
    return entry


def cost_of(tokens: Mapping[str, Mapping[str, float]]) -> float | None:
    """Return the total cost of tokens in dollars, or None if a price or token count is unknown.

    `tokens` holds the token counts for each model and kind of token.
    """
    cost = 0.0
    for model, counts in tokens.items():
        price = price_of(model)
        if price is None or (counts.get(UNCOUNTED) and any(price.values())):
            return None
        cached = counts.get("cached_tokens") or counts.get("cache_read_input_tokens") or 0
        written = counts.get("cache_creation_tokens") or counts.get("cache_creation_input_tokens") or 0
        fresh = max(0, counts.get("prompt_tokens", 0) - cached - written)
        cost += fresh * price["prompt"] + cached * price["cached"] + written * price["written"]
        cost += counts.get("completion_tokens", 0) * price["completion"]
    return cost


@lru_cache(maxsize=1)
def _table_on_disk() -> Mapping[str, Any]:
    """Read the price table from litellm's folder, because importing litellm takes seconds."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    path = Path(spec.origin).parent / "model_prices_and_context_window_backup.json"
    return dict(orjson.loads(path.read_bytes())) if path.exists() else {}  # Some versions omit this file.
