"""Inputs without content, which show how far a prompt leans by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTENT_FREE = ("[N/A]", "", "[MASK]")


def check_text_inputs(
    purpose: str, inputs: Mapping[str, Any], *, cure: str = "use PLReorder or TopKOrder"
) -> None:
    """Raise unless all inputs are text.

    Raises:
        ValueError: that names the first one that is not.
    """
    for name, value in inputs.items():
        if not isinstance(value, str):
            raise ValueError(
                f"{purpose} makes inputs of its own, which must be text; input {name!r} is a {type(value).__name__}: "
                f"{cure}"
            )
