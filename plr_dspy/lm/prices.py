"""What tokens cost in US dollars, by the price table that comes with litellm; nothing is downloaded."""

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import orjson

# Providers that the table names together with a part of theirs, such as "vertex_ai-anthropic_models".
WITH_PARTS = ("bedrock", "cohere", "fireworks_ai", "vertex_ai")


UNCOUNTED = "replies_without_usage"  # kind, beside those of tokens, of replies that did not say how many they took


class Price(NamedTuple):
    """Dollars for a token."""

    prompt: float
    completion: float  # with hidden reasoning
    cached: float  # of the prompt, that the provider's cache held
    written: float  # of the prompt, that it has taken in


def price_of(model: str) -> Price | None:
    """The price of a model by DSPy's name for it, such as "openai/gpt-4o-mini"; None where none is known."""
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
    cached = entry.get("cache_read_input_token_cost")
    written = entry.get("cache_creation_input_token_cost") or prompt
    return Price(*map(float, (prompt, completion, prompt if cached is None else cached, written)))


def cost_of(tokens: Mapping[str, Mapping[str, float]]) -> float | None:
    """Dollars for tokens by model and kind, as usage records have them; None where price or tokens are not known."""
    cost = 0.0
    for model, counts in tokens.items():
        if (price := price_of(model)) is None or (counts.get(UNCOUNTED) and any(price)):
            return None
        cached = counts.get("cached_tokens") or counts.get("cache_read_input_tokens") or 0
        written = counts.get("cache_creation_tokens") or counts.get("cache_creation_input_tokens") or 0
        fresh = max(0, counts.get("prompt_tokens", 0) - cached - written)
        cost += fresh * price.prompt + cached * price.cached + written * price.written
        cost += counts.get("completion_tokens", 0) * price.completion
    return cost


def without_price(models: Iterable[dspy.BaseLM]) -> list[str]:
    """The names of those of the models that no price is known for."""
    return sorted({name for lm in models if price_of(name := str(lm.model)) is None})


@lru_cache(maxsize=1)
def _table_on_disk() -> Mapping[str, Any]:
    """Read the table in litellm's folder without litellm, which takes seconds to import."""
    found = importlib.util.find_spec("litellm")
    (folder,) = (found and found.submodule_search_locations) or [""]
    path = Path(folder, "model_prices_and_context_window_backup.json")
    return dict(orjson.loads(path.read_bytes())) if path.exists() else {}  # Another version has none there.
