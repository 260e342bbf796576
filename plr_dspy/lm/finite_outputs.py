"""Output fields that have few possible values, and what these are called in a prompt."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from dspy.adapters.types.decision import Choice, Noul
from dspy.adapters.utils import annotation_allows_none, get_annotation_name

_BLANK_LINES = re.compile(r"\n\s*\n")


def without_none(annotation: Any) -> Any:
    """Return the annotation without its alternative None."""
    if get_origin(annotation) is not Literal and annotation_allows_none(annotation):
        kept = [argument for argument in get_args(annotation) if argument is not type(None)]
        return kept[0] if len(kept) == 1 else annotation
    return annotation


def labels_of(annotation: Any) -> dict[str, Any] | None:
    """Return the values of a type that has few, by what demos call them; None for other types."""
    if annotation is bool:
        return {"True": True, "False": False}
    if get_origin(annotation) is Literal:
        values = list(get_args(annotation))
    elif isinstance(annotation, enum.EnumMeta):
        values = list(annotation.__members__.values())
    else:
        return None
    return {one_block(str(getattr(value, "value", value))): value for value in values}


def decided(value: Any) -> Any:
    """Return the label that a decision (`dspy.experimental.Choice`, `Noul`) holds; other values as they are."""
    return value.value if isinstance(value, (Choice, Noul)) else value


def label_text(labels: Mapping[str, Any], value: Any) -> str | None:
    """Return what demos call a value, given all labels as `labels_of` does; None for what is none of them."""
    value = decided(value)
    return next((text for text, each in labels.items() if type(each) is type(value) and each == value), None)


def one_block(text: str) -> str:
    """Return the text stripped, without blank lines, which separate demos."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _BLANK_LINES.sub("\n", text).strip()


def finite_output(signature: Any, *, purpose: str) -> tuple[str, dict[str, Any]]:
    """Find the output field with few possible values, and these by what demos call them.

    Args:
        signature: The signature of a predictor.
        purpose: What needs the field, for the message.

    Raises:
        ValueError: If there is no such field, or more than one, or one that has fewer than two values.
    """
    annotations = {name: field.annotation for name, field in signature.output_fields.items()}
    finite = {
        name: labels
        for name, annotation in annotations.items()
        if (labels := labels_of(without_none(annotation))) is not None
    }
    if len(finite) != 1:
        described = ", ".join(f"{name}: {get_annotation_name(kind)}" for name, kind in annotations.items())
        raise ValueError(
            f"{purpose} needs a finite label set: exactly one output field that is a Literal, an enum or a bool; the "
            f"outputs are {described}. Give {'only ' * bool(finite)}one of them such a type, or use PLReorder or "
            "TopKOrder, which need none"
        )
    ((name, labels),) = finite.items()
    if "" in labels:
        raise ValueError(f"{purpose} needs labels with a text; output {name!r} has {list(labels)}")
    if len(labels) < 2:
        raise ValueError(f"{purpose} needs at least two labels; output {name!r} has {list(labels)}")
    return name, labels
