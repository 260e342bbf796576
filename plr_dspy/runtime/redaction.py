"""Takes keys out of texts that are logged or written to disk: providers repeat them in their errors."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

SECRET_NAME = re.compile(r"(^|_|-)(key|secret|passw|password|credential|credentials|token|authorization)$", re.I)

SHAPES = (  # what looks like a secret, after what is kept of it
    # "api_key": "...", token=..., Authorization: Basic ...
    r"(?i)((?:^|[^\w])(?:x[-_])?(?:api[-_]?key|access[-_]?token|auth[-_]?token|authorization|password|secret|token)"
    r"[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?)[^\s\"'&,;]{6,}",
    r"(?i)(\b(?:bearer|basic)\s+)[^\s\"',;]{6,}",
    r"(://[^\s/:@]+:)[^\s/@]+(?=@)",
    r"()\b(?:sk|pk|gsk|hf|xai|ghp|gho)[-_](?=[\w*-]*\d)[\w*-]{6,}",
    r"()\b(?:AKIA[A-Z0-9]{8,}|AIza[\w-]{10,})",
)

SHORTEST = 6  # shorter values of arguments are no keys; those of the environment need twice as many characters


class Redactor:
    """Hides secrets among the arguments of LMs and in the environment, by their names, and what looks like one.

    `variables` of the environment hold one, whatever they are called.
    """

    def __init__(self, models: Iterable[Any], *, variables: Iterable[str | None] = ()) -> None:
        values = {v for name, v in os.environ.items() if SECRET_NAME.search(name) and len(v) >= 2 * SHORTEST}
        values |= {value for model in models for value in _secrets(model) if len(value) >= SHORTEST}
        values |= {value for name in variables if name and (value := os.environ.get(name))}
        self._values = sorted(values, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without them."""
        for value in self._values:
            text = text.replace(value, "[hidden]")
        for shape in SHAPES:
            text = re.sub(shape, r"\g<1>[hidden]", text)
        return text


def _secrets(model: Any) -> Iterator[str]:
    """Of an LM's attributes and arguments, or an embedder's, its headers, and the engines that it holds."""
    given = {**getattr(model, "kwargs", {}), **getattr(model, "default_kwargs", {})}
    engines = [getattr(model, name, None) for name in ("_engine_spec", "_async_engine_spec")]
    held = [given.get("headers"), given.get("extra_headers")]
    held += [getattr(owner, "__dict__", None) for owner in (model, *engines)]
    for each in held:
        given.update(each if isinstance(each, Mapping) else {})
    for name, value in given.items():
        if name == "api_key_env" and isinstance(value, str):
            value = os.environ.get(value)
        elif not SECRET_NAME.search(name):
            continue
        if isinstance(value, str):
            yield value
