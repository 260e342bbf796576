"""Count prompt tokens as GPT-4o does, whatever the model."""

import os
import sys
from collections.abc import Callable
from typing import Any

from plr_dspy.programs.media import countable

Messages = list[dict[str, Any]]

# While set, importing litellm fetches no prices.
LOCAL_PRICES = "LITELLM_LOCAL_MODEL_COST_MAP"


def token_counter() -> Callable[[Messages], int]:
    """Return a function that counts the tokens of messages; pictures and sounds have a fixed count."""
    is_first_import = "litellm" not in sys.modules and LOCAL_PRICES not in os.environ
    if is_first_import:
        os.environ[LOCAL_PRICES] = "True"
    try:
        import litellm
    finally:
        if is_first_import:
            del os.environ[LOCAL_PRICES]

    def count(messages: Messages) -> int:
        # Nothing is downloaded: litellm includes this tokenizer, and opens no pictures.
        options: dict[str, Any] = {"messages": countable(messages), "use_default_image_token_count": True}
        return int(litellm.token_counter("gpt-4o", **options))

    return count
