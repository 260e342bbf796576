"""The tokens of prompts, as GPT-4o counts them, whatever the model."""

import os
import sys
from collections.abc import Callable
from typing import Any

from plr_dspy.programs.media import countable

Messages = list[dict[str, Any]]

# While it is set, litellm's import looks for no prices on the network.
LOCAL_PRICES = "LITELLM_LOCAL_MODEL_COST_MAP"


def token_counter() -> Callable[[Messages], int]:
    """Return a function that counts the tokens of messages; a picture or a sound has a fixed number of them."""
    is_first_import = "litellm" not in sys.modules and LOCAL_PRICES not in os.environ
    if is_first_import:
        os.environ[LOCAL_PRICES] = "True"
    try:
        import litellm
    finally:
        if is_first_import:
            del os.environ[LOCAL_PRICES]

    def count(messages: Messages) -> int:
        # Nothing is downloaded: litellm brings this tokenizer along, and looks at no picture.
        options: dict[str, Any] = {"messages": countable(messages), "use_default_image_token_count": True}
        return int(litellm.token_counter("gpt-4o", **options))

    return count
