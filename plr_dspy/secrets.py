"""Takes keys out of texts that are logged or written to disk: providers repeat them in their errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

HIDDEN = "[hidden]"

SECRET_NAME = re.compile(r"key|secret|passw|credential|authorization|(^|_)token$", re.I)

SHAPES = (
    re.compile(r"(?i)(?<=bearer )[^\s\"',;]+"),
    re.compile(r"(?i)(?<=[?&]key=)[^\s\"'&]+"),
    re.compile(r"(?i)((?<=api_key=)|(?<=apikey=)|(?<=api-key=)|(?<=token=))[^\s\"'&]+"),
    re.compile(r"\b(?:sk|pk|gsk|hf|xai|key)[-_][\w*-]{4,}|\bAIza[\w-]{10,}"),
)

SHORTEST = 6
"""Shorter values are no keys, and could be any word."""


class Redactor:
    """Hides known secrets, and what looks like one.

    Args:
        models: LMs whose arguments may be secrets. Variables of the environment may, too.
    """

    def __init__(self, models: Iterable[Any]) -> None:
        values = [value for name, value in os.environ.items() if SECRET_NAME.search(name)]
        for model in models:
            arguments = getattr(model, "kwargs", {})
            values += [v for name, v in arguments.items() if SECRET_NAME.search(name) and isinstance(v, str)]
            headers = arguments.get("extra_headers") or arguments.get("headers") or {}
            values += [str(value) for value in dict(headers).values()]
        self._values = sorted({v for v in values if len(v) >= SHORTEST}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without them."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        for shape in SHAPES:
            text = shape.sub(HIDDEN, text)
        return text
