"""The budget of a compile: what it has spent of calls, dollars and seconds, and whether another call may begin.

Dollars are by the price table that comes with litellm; nothing is downloaded.
"""

import importlib.util
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from plr_dspy.report.text import BUDGET
from plr_dspy.scoring.ledger import Ledger, Tokens

CALL_LIMIT, TIME_LIMIT, COST_LIMIT = BUDGET, "time limit", "cost limit"  # why a phase ended: used up, or kept
MARGIN = 1.15  # calls to come are taken for so much dearer and slower than those made: they are of other examples
MAX_KEPT = 0.6  # share of money and time, at most, that a phase leaves to those after it
RECENT = 16  # calls to come may take as long as most of so many last ones did, where all took less: servers become slow

# Providers that the table names together with a part of theirs, such as "vertex_ai-anthropic_models".
WITH_PARTS = ("bedrock", "cohere", "fireworks_ai", "vertex_ai")
UNCOUNTED = "replies_without_usage"  # kind, beside those of tokens, of replies that did not say how many they took


@dataclass(kw_only=True)
class Budget:
    """What a compile may spend. Threads may share it.

    No call begins past a limit, of which the money counts with what the calls under way and this one may cost: what the
    dearest one so far did, or before one was made, what is expected; as long as that is not known, calls begin. Each
    phase may use money and time up to a share, and leaves time to some calls after it, however slow they get (`allow`).
    """

    ledger: Ledger = field(default_factory=Ledger, kw_only=False)  # counts the calls, those of an earlier part included
    max_calls: int = sys.maxsize
    max_cost: float | None = None  # in dollars
    max_seconds: float | None = None
    planned: int = sys.maxsize  # program calls that the compile itself may ask for, whatever others paid for before
    started: float | None = None  # when the time began, by `time.monotonic`; None for now
    expected: float | None = None  # dollars for a call, as long as none was made; None where nobody knows

    def __post_init__(self) -> None:
        self.cost = 0.0  # dollars spent, those of the earlier parts included
        self.refused = ""  # the limit that the phase under way has met
        self._started = time.monotonic() if self.started is None else self.started
        self._share, self._kept = 1.0, 0
        self.unpriced = ""  # the first model whose price, or whose tokens in a call, nobody knows
        self._lock = threading.Lock()
        self.expect(self.expected)
        self._under_way, self._most_under_way = len(self.ledger.paid), 0
        for tokens in self.ledger.paid:
            self.end(tokens)

    def expect(self, dollars: float | None) -> None:
        """Take the calls to come for others than those made, such as a teacher's were, of which so much is expected."""
        self.expected, self._before = dollars, (len(self.ledger.paid), now := time.monotonic())
        self._ended = deque([now], RECENT + 1)  # when the last calls did
        self._num_paid = 0  # without free calls, from a cache or failed, which tell nothing of those to come
        self._paid = 0.0
        self.dearest = dollars or 0.0  # that a call may cost; 0 where nobody knows
        self.needs_one = self.max_cost is not None  # a call is made alone, to tell what those beside it may cost

    def allow(self, share: float, *, kept: int = 0) -> None:
        """Begin a phase, which may use money and time up to this share of all, and leaves time to so many calls."""
        self._share, self._kept, self.refused = share, kept, ""

    def begin(self) -> bool:
        """Set a call, and its time and money, aside, or say that there is none; `end` ends the call."""
        with self._lock:
            if self.max_cost is not None and (
                self.unpriced or self.cost + (self._under_way + 1) * self.dearest > self._share * self.max_cost
            ):
                self.refused = COST_LIMIT
            elif (seconds := self.max_seconds) is not None and time.monotonic() - self._started >= min(
                self._share * seconds, seconds - min(self._kept * MARGIN * self._recent, MAX_KEPT * seconds)
            ):
                self.refused = TIME_LIMIT
            elif len(self.ledger.paid) + self._under_way >= self.max_calls:
                self.refused = CALL_LIMIT
            else:
                self._under_way += 1
                self._most_under_way = max(self._most_under_way, self._under_way)
                return True
            return False

    def end(self, tokens: Tokens) -> None:
        """Pay for a call that has ended; one that was not made after all has no tokens."""
        with self._lock:
            self._ended.append(time.monotonic())
            self._under_way -= 1
            self.needs_one = self.needs_one and not tokens
            cost = 0.0 if self.max_cost is None else cost_of(tokens)
            if cost is None:
                model = next(each for each in tokens if cost_of({each: tokens[each]}) is None)
                lacking = "the number of tokens in each reply of" if price_of(model) else "a price for"
                self.unpriced = self.unpriced or f"{lacking} {model}"
            elif cost > 0:
                self.dearest = max(cost, self.dearest) if self._num_paid else cost
                self.cost += cost
                self._paid += cost
                self._num_paid += 1

    @property
    def calls_left(self) -> int:
        """Further calls that the scarcest of the limits pays for, at the price and the pace of those made."""
        num_made, now = len(self.ledger.paid), time.monotonic()
        left: list[float] = [max(0, self.max_calls - num_made)]
        mean = self._paid / self._num_paid if self._num_paid else self.expected
        if self.max_cost is not None and mean:
            left.append((self.max_cost - self.cost - self.dearest) / (MARGIN * mean))
        made, taken = num_made - self._before[0], now - self._before[1]
        if self.max_seconds is not None and made:
            pace = MARGIN * max(taken / made, self._recent, 1e-9)
            # Of calls under way together all but one may end later.
            left.append((self._started + self.max_seconds - now) / pace + max(0, self._most_under_way - 1))
        return max(0, int(min(left)))

    @property
    def _recent(self) -> float:
        """Seconds between two ends of the last calls, the median: one that stalls is none of those to come. 0 where
        there were few, or several at once."""
        gaps = [after - before for before, after in pairwise(self._ended)]
        return median(gaps) if len(gaps) == RECENT else 0.0


def price_of(model: str) -> dict[str, float] | None:
    """Dollars for a token of a "prompt", of a "completion" (with hidden reasoning), and of a prompt what the provider's
    cache held ("cached") or takes in ("written"), by DSPy's name for the model; None where none are known."""
    # The user's own prices are in litellm's table, too, where that is imported.
    table = getattr(sys.modules.get("litellm"), "model_cost", None) or _table_on_disk()
    provider, _, name = model.partition("/")
    if (entry := table.get(model)) is None:
        entry = table.get(name, {})
        named = str(entry.get("litellm_provider"))
        if named != provider and not (provider in WITH_PARTS and named.startswith(provider)):
            return None  # it is what another provider serves under this name
    prompt, completion = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
    if prompt is None or completion is None:
        return None
    cached, written = entry.get("cache_read_input_token_cost"), entry.get("cache_creation_input_token_cost")
    found = {"prompt": prompt, "completion": completion, "cached": prompt if cached is None else cached}
    return {kind: float(price) for kind, price in {**found, "written": written or prompt}.items()}


def cost_of(tokens: Mapping[str, Mapping[str, float]]) -> float | None:
    """Dollars for tokens by model and kind, as usage records have them; None where price or tokens are not known."""
    cost = 0.0
    for model, counts in tokens.items():
        if (price := price_of(model)) is None or (counts.get(UNCOUNTED) and any(price.values())):
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
    found = importlib.util.find_spec("litellm")
    (folder,) = (found and found.submodule_search_locations) or [""]
    path = Path(folder, "model_prices_and_context_window_backup.json")
    return dict(orjson.loads(path.read_bytes())) if path.exists() else {}  # Another version has none there.
