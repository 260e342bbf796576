"""What tokens cost in US dollars, by the price table that comes with litellm; nothing is downloaded."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import dspy
import orjson

WITH_PARTS = ("bedrock", "cohere", "fireworks_ai", "vertex_ai")
"""Providers that the table names together with a part of theirs, such as "vertex_ai-anthropic_models"; litellm takes
the part for the whole with these alone."""


@dataclass(frozen=True)
class Price:
    """Dollars for a token: of the prompt, of the answer with its hidden reasoning, and of those of the prompt that the
    provider's cache held, or has taken in."""

    prompt: float
    completion: float
    cached: float
    written: float

    def cost(self, counts: Mapping[str, float]) -> float:
        """Dollars for token counts by kind, as a usage record has them."""
        cached = counts.get("cached_tokens") or counts.get("cache_read_input_tokens") or 0
        written = counts.get("cache_creation_tokens") or counts.get("cache_creation_input_tokens") or 0
        fresh = max(0, counts.get("prompt_tokens", 0) - cached - written)
        answered = counts.get("completion_tokens", 0)
        asked = fresh * self.prompt + cached * self.cached + written * self.written
        return asked + answered * self.completion


def price_of(model: str) -> Price | None:
    """The price of a model by DSPy's name for it, such as "openai/gpt-4o-mini"; None where none is known."""
    registered = getattr(sys.modules.get("litellm"), "model_cost", None)  # the user's own prices, too
    table = registered if isinstance(registered, dict) else _table_on_disk()
    provider, _, name = model.partition("/")
    if not isinstance(entry := table.get(model), dict):
        if not isinstance(entry := table.get(name), dict):
            return None
        named = str(entry.get("litellm_provider"))
        if named != provider and not (provider in WITH_PARTS and named.startswith(provider)):
            return None  # it is what another provider serves under this name
    prompt, completion = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
    if prompt is None or completion is None:
        return None
    cached = entry.get("cache_read_input_token_cost")
    written = entry.get("cache_creation_input_token_cost") or prompt
    return Price(
        float(prompt), float(completion), float(prompt if cached is None else cached), float(written)
    )


def cost_of(tokens: Mapping[str, Mapping[str, float]]) -> float | None:
    """Dollars for tokens by model and kind; None where no price is known for one of the models."""
    prices = {model: price_of(model) for model in tokens}
    costs = [price.cost(tokens[model]) for model, price in prices.items() if price is not None]
    return sum(costs, 0.0) if len(costs) == len(tokens) else None


def without_price(models: Iterable[dspy.BaseLM]) -> list[str]:
    """The names of those of the models that no price is known for."""
    return sorted({name for lm in models if price_of(name := str(lm.model)) is None})


@lru_cache(maxsize=1)
def _table_on_disk() -> Mapping[str, Any]:
    """Read the table in litellm's folder without litellm, which takes seconds to import."""
    found = importlib.util.find_spec("litellm")
    try:
        folders = (found and found.submodule_search_locations) or []
        table = orjson.loads(Path(folders[0], "model_prices_and_context_window_backup.json").read_bytes())
    except (OSError, ValueError, IndexError):  # another version of litellm, or none
        return {}
    return table if isinstance(table, dict) else {}
