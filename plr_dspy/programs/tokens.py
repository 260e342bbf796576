"""A counter of prompt tokens.

GPT-4o's tokenizer is used for all models, because litellm would have to download most other tokenizers.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from plr_dspy.programs.media import countable

Messages = list[dict[str, Any]]

# If this environment variable is set, litellm does not download prices on import.
LOCAL_PRICES = "LITELLM_LOCAL_MODEL_COST_MAP"
# A model has GPT-4o's tokenizer if its name, without provider and "ft:", begins with one of these prefixes.
SAME_TOKENIZER = ("gpt-4o", "chatgpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-oss", "o1", "o3", "o4")


def has_counted_tokenizer(model: str) -> bool:
    """Return whether `token_counter` counts with the model's own tokenizer."""
    return model.rpartition("/")[2].removeprefix("ft:").startswith(SAME_TOKENIZER)


def token_counter() -> Callable[[Messages], int]:
    """Return a function that counts the tokens in messages, with a fixed count for each image or audio clip."""
    is_first_import = "litellm" not in sys.modules and LOCAL_PRICES not in os.environ
    if is_first_import:
        os.environ[LOCAL_PRICES] = "True"
    try:
        import litellm
    finally:
        if is_first_import:
            del os.environ[LOCAL_PRICES]

    def count(messages: Messages) -> int:
        # litellm includes GPT-4o's tokenizer. With the default token count for images, it opens no images.
        options: dict[str, Any] = {"messages": countable(messages), "use_default_image_token_count": True}
        return int(litellm.token_counter("gpt-4o", **options))

    return count
