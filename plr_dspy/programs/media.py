"""Functions for the images, audio clips and files that DSPy embeds in text between two identifiers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plr_dspy.dspy_compat import (
    CUSTOM_TYPE_END_IDENTIFIER,
    CUSTOM_TYPE_START_IDENTIFIER,
    split_message_content_for_custom_types,
)

# This image replaces all non-text parts when tokens are counted, because litellm cannot count audio.
PLACEHOLDER_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


def replaced_in(text: str, replacement: Callable[[str], str]) -> str:
    """Return text with each embedded image, audio clip or file replaced by the result of `replacement`."""
    first, *others = text.split(CUSTOM_TYPE_START_IDENTIFIER)
    parts = [first]
    for other in others:
        data, _, rest = other.partition(CUSTOM_TYPE_END_IDENTIFIER)
        parts += [replacement(data), rest]
    return "".join(parts)


def text_without(text: str) -> str:
    """Return text without embedded images, audio clips and files."""
    return replaced_in(text, lambda data: "")


def countable(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages with a placeholder image in place of each part that is not text."""
    countable_messages: list[Mapping[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            (sent_message,) = split_message_content_for_custom_types([dict(message)])
            content = sent_message["content"]
        if isinstance(content, list):
            content = [part if part.get("type") == "text" else PLACEHOLDER_IMAGE for part in content]
        countable_messages.append({**message, "content": content})
    return countable_messages
