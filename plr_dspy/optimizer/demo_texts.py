"""Demos as text, for people to read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
from dspy.adapters.utils import format_field_value

LONGEST = 500
"""Characters of a field's text."""

_DATA = re.compile(r"<<CUSTOM-TYPE-START-IDENTIFIER>>.*?<<CUSTOM-TYPE-END-IDENTIFIER>>", re.S)
"""What DSPy makes of pictures, sounds and files."""


def demo_texts(
    predictor: dspy.Predict, demos: Sequence[Mapping[str, Any]], *, redact: Callable[[str], str]
) -> list[dict[str, str]]:
    """The fields of each demo that the predictor's prompt shows, as it shows them, in the signature's order.

    Args:
        predictor: Its signature says what is shown.
        demos: Examples or dicts.
        redact: Takes secrets out of a text.
    """
    return [
        {
            name: _start(redact(_DATA.sub("[data]", format_field_value(field, demo[name]))))
            for name, field in predictor.signature.fields.items()
            if name in demo
        }
        for demo in demos
    ]


def _start(text: str) -> str:
    """The text in characters that can be written, cut where it is long."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"
