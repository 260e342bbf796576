"""The budget of a run in calls, dollars and seconds; dollars are by the price table that comes with litellm."""

import importlib.util
import math
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from plr_dspy.report.stop import StopReason
from plr_dspy.scoring.run_log import CallKey, RunLog, Tokens

MARGIN = 1.15  # calls to come may be so much dearer and slower than those made: they are on other examples
MAX_KEPT = 0.6  # share of the affordable calls that a search leaves to what follows, at most

# Providers that the table names together with a part of theirs, such as "vertex_ai-anthropic_models".
WITH_PARTS = ("bedrock", "cohere", "fireworks_ai", "vertex_ai")
UNCOUNTED = "replies_without_usage"  # kind, beside those of tokens, of replies that did not say how many they took


@dataclass(kw_only=True)
class Budget:
    """What a run may spend. Threads may share it.

    No call begins past a limit. Calls under way count as much as the dearest call so far. Recalled calls count like
    those of this run, and `max_cost` holds for all runs of the log together.

    Attributes:
        started: When the time began, by `time.monotonic`; None for now.
        expected_cost: Dollars for a call, until one was made; None if unknown.
        share: The share of money and time that may be used for now.
        refused: The limit that the last call met which could not begin.
        unpriced: The first model whose price, or whose tokens in a call, are unknown.
        dearest: What a call may cost; 0 if unknown.
        needs_one: Whether a call must run alone, to tell what the others may cost.
    """

    log: RunLog = field(default_factory=RunLog, kw_only=False)
    max_calls: int = sys.maxsize
    max_cost: float | None = None
    max_seconds: float | None = None
    started: float | None = None
    expected_cost: float | None = None

    def __post_init__(self) -> None:
        self.refused: StopReason | None = None
        self.share = 1.0
        self.unpriced = ""
        self.cost = 0.0
        self._cost_of_log = 0.0  # of all calls, those of earlier runs included
        self._started = time.monotonic() if self.started is None else self.started
        self._lock = threading.Lock()
        self._num_under_way = 0
        self._num_made = 0
        self.keep(0)
        self.expect(self.expected_cost)
        for tokens in self.log.tokens_before:
            self._cost_of_log += self._price(tokens)

    def expect(self, cost: float | None) -> None:
        """Forget what calls took so far, since other calls follow, such as a student's after a teacher's."""
        self.expected_cost = cost
        self.dearest = cost or 0.0
        self.needs_one = self.max_cost is not None
        self._cost_of_paid = 0.0
        self._num_paid = 0  # without free calls, such as cached and failed ones, which tell nothing of those to come
        self._num_timed = 0
        self._timed_from = time.monotonic()

    def keep(self, calls: int, *, planned: int = 0) -> None:
        """Leave money and time to these calls from now on.

        If money or time pay for fewer than the `planned` calls of the run, fewer are kept in proportion.
        """
        self._kept = calls
        self._planned = planned
        self.refused = None

    def recall(self, key: CallKey) -> bool:
        """Take a call from the log if it holds it, which costs nothing again."""
        call = self.log.recall(key)
        if call is not None:
            self._count(self._price(call.tokens))
            self.needs_one = self.needs_one and not call.tokens
        return call is not None

    def begin(self) -> bool:
        """Reserve the money of a call that begins; return False if no limit leaves room for it."""
        with self._lock:
            self.refused = self._limit_met()
            if self.refused is not None:
                return False
            if not self._num_timed and not self._num_under_way:
                # Recalled calls take time of their own, which says nothing of the pace of new ones.
                self._timed_from = time.monotonic()
            self._num_under_way += 1
            return True

    def end(self, tokens: Tokens) -> None:
        """Pay for a call that has ended; one that was not made after all has no tokens."""
        with self._lock:
            self._num_under_way -= 1
            self._num_made += 1
            self._num_timed += 1
            self.needs_one = self.needs_one and not tokens
            cost = self._price(tokens)
            self._cost_of_log += cost
            self._count(cost)

    @property
    def calls_left(self) -> int:
        """Further calls that the scarcest limit pays for, at the mean cost and pace of those made."""
        # A run that has only recalled calls plans as the run that made them.
        spent = self._cost_of_log if self._num_made else self.cost
        calls = self.max_calls - self.log.num_calls
        return max(0, int(min(calls, self._calls_for_money(self.dearest + spent), self._calls_for_time())))

    def _limit_met(self) -> StopReason | None:
        """Return the limit that the next call would pass, or that leaves no more than the calls to keep."""
        if self.log.num_calls + self._num_under_way >= self.max_calls:
            return StopReason.BUDGET
        if self.max_cost is not None:
            reserved = self._cost_of_log + (self._num_under_way + 1) * self.dearest
            left = self._calls_for_money(reserved)
            if self.unpriced or reserved > self.share * self.max_cost or self._keeps(left):
                return StopReason.COST
        if self.max_seconds is not None:
            has_ended = time.monotonic() - self._started >= self.share * self.max_seconds
            if has_ended or self._keeps(self._calls_for_time()):
                return StopReason.TIME
        return None

    def _keeps(self, left: float) -> bool:
        """Return whether one call more would leave fewer calls than are to be kept."""
        if not self._kept or math.isinf(left):
            return False
        affordable = left + self.log.num_calls
        kept = min(float(self._kept), MAX_KEPT * affordable)
        if self._planned:
            kept = min(kept, self._kept * affordable / self._planned)
        return left < 1.0 + kept

    def _calls_for_money(self, spent: float) -> float:
        mean = self._cost_of_paid / self._num_paid if self._num_paid else self.expected_cost
        if self.max_cost is None or not mean:
            return math.inf
        return (self.max_cost - spent) / (MARGIN * mean)

    def _calls_for_time(self) -> float:
        if self.max_seconds is None or not self._num_timed:
            return math.inf
        now = time.monotonic()
        mean = max(now - self._timed_from, 1e-9) / self._num_timed
        return (self._started + self.max_seconds - now) / (MARGIN * mean)

    def _count(self, cost: float) -> None:
        self.cost += cost
        if cost > 0:
            self.dearest = max(cost, self.dearest) if self._num_paid else cost
            self._cost_of_paid += cost
            self._num_paid += 1

    def _price(self, tokens: Tokens) -> float:
        """Return the dollars for a call; if a price is not known, note which."""
        if self.max_cost is None:
            return 0.0
        cost = cost_of(tokens)
        if cost is None:
            model = next(model for model in tokens if cost_of({model: tokens[model]}) is None)
            lacking = "the number of tokens in each reply of" if price_of(model) else "a price for"
            self.unpriced = self.unpriced or f"{lacking} {model}"
        return cost or 0.0


def price_of(model: str) -> dict[str, float] | None:
    """Return the dollars for a token by kind, or None if they are not known.

    Kinds are "prompt", "completion" (with hidden reasoning), and prompts that a cache held or takes in.
    """
    # The user's own prices are in litellm's table, too, if it is imported.
    table = getattr(sys.modules.get("litellm"), "model_cost", None) or _table_on_disk()
    entry = table.get(model)
    if entry is None:
        provider, _, name = model.partition("/")
        entry = table.get(name, {})
        of_entry = str(entry.get("litellm_provider"))
        if of_entry != provider and not (provider in WITH_PARTS and of_entry.startswith(provider)):
            return None  # Another provider serves a model of this name.
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


def cost_of(tokens: Mapping[str, Mapping[str, float]]) -> float | None:
    """Return the dollars for tokens by model and kind, as usage records have them; None if they are not known."""
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
    """Read the table in litellm's folder without litellm, which takes seconds to import."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    path = Path(spec.origin).parent / "model_prices_and_context_window_backup.json"
    return dict(orjson.loads(path.read_bytes())) if path.exists() else {}  # Another version has none there.
