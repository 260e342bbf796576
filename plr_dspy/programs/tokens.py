"""Counts of prompt tokens. GPT-4o's tokenizer is used for all models."""

import os
import sys
from collections.abc import Callable
from typing import Any

from plr_dspy.programs.media import countable

Messages = list[dict[str, Any]]

# This environment variable keeps litellm from downloading prices when it is imported.
LOCAL_PRICES = "LITELLM_LOCAL_MODEL_COST_MAP"


def token_counter() -> Callable[[Messages], int]:
    """Return a function that counts tokens, with a fixed count for each image or audio clip."""
    is_first_import = "litellm" not in sys.modules and LOCAL_PRICES not in os.environ
    if is_first_import:
        os.environ[LOCAL_PRICES] = "True"
    try:
        import litellm
    finally:
        if is_first_import:
            del os.environ[LOCAL_PRICES]

    def count(messages: Messages) -> int:
        # Nothing is downloaded: litellm includes this tokenizer, and does not open images.
        options: dict[str, Any] = {"messages": countable(messages), "use_default_image_token_count": True}
        return int(litellm.token_counter("gpt-4o", **options))

    return count
