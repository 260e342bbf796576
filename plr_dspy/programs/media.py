"""Pictures, sounds and files in examples and prompts: what identifies them, and what they count as in tokens.

DSPy writes one as text between two identifiers, with its data in base64, and makes a part of a message of that before
it calls the language model. A saved program holds this text in its place.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import dspy

from plr_dspy.dspy_compat import (
    CUSTOM_TYPE_END_IDENTIFIER,
    CUSTOM_TYPE_START_IDENTIFIER,
    serialize_object,
    split_message_content_for_custom_types,
)

COUNTED = ("text", "file", "document")
"""Types of parts of messages that litellm counts by what they hold."""
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
"""What parts of all other types count as: litellm has one number for all pictures, and none for sounds."""

_texts: WeakKeyDictionary[dspy.Type, str] = WeakKeyDictionary()


def named_by_digest(value: Any) -> Any:
    """Return a value with a digest in place of the data of each picture, sound or file in it."""
    if isinstance(value, dspy.Type):
        return _text_of(value)
    if isinstance(value, str):
        return replaced_in(value, _digest)
    if isinstance(value, dict):
        return {name: named_by_digest(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [named_by_digest(part) for part in value]
    return value


def replaced_in(text: str, replacement: Callable[[str], str]) -> str:
    """Return a text with a replacement for each picture, sound or file that is written in it.

    A regular expression takes much longer for that, as their data are long.
    """
    before, start, rest = text.partition(CUSTOM_TYPE_START_IDENTIFIER)
    parts = [before]
    while start:
        data, _, rest = rest.partition(CUSTOM_TYPE_END_IDENTIFIER)
        parts.append(replacement(data))
        before, start, rest = rest.partition(CUSTOM_TYPE_START_IDENTIFIER)
        parts.append(before)
    return "".join(parts)


def text_without(value: Any) -> str | None:
    """Return a value as text, without the pictures, sounds and files in it; None if it is nothing else."""
    if isinstance(value, dspy.Type):
        return None
    text = str(serialize_object(value))
    rest = replaced_in(text, lambda data: "")
    return rest if rest or not text else None


def countable(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages as they are sent, of parts that litellm can count."""
    return [_countable(message) for message in messages]


def _countable(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if message.get("role") == "user" and isinstance(content, str) and CUSTOM_TYPE_START_IDENTIFIER in content:
        (sent,) = split_message_content_for_custom_types([dict(message)])
        content = sent["content"]
    if not isinstance(content, list):
        return message
    parts = [part if isinstance(part, str) or part.get("type") in COUNTED else PICTURE for part in content]
    return {**message, "content": parts}


def _text_of(value: dspy.Type) -> Any:
    """Return the text that is written for a value, with digests of its data; for one that cannot change only once."""
    try:
        known = _texts.get(value)
    except TypeError:  # It has no hash, as it can change.
        return named_by_digest(serialize_object(value))
    if known is None:
        known = named_by_digest(serialize_object(value))
        _texts[value] = known
    return known


def _digest(data: str) -> str:
    return f"[{hashlib.sha256(data.encode(errors='backslashreplace')).hexdigest()}]"
