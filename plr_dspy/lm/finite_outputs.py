"""Output fields that have few possible values, and what these are called in a prompt."""

import enum
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from dspy.adapters.types.decision import Choice, Noul
from dspy.adapters.utils import annotation_allows_none

BLANK_LINES = re.compile(r"\n\s*\n")


def without_none(annotation: Any) -> Any:
    """Return the annotation without its alternative None."""
    others = [each for each in get_args(annotation) if each is not type(None)]
    return others[0] if len(others) == 1 and annotation_allows_none(annotation) else annotation


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
    return {name_of_label(value): value for value in values}


def name_of_label(value: Any) -> str:
    """Return what demos call a value: of an enum's member, the text of what it stands for."""
    return one_block(str(value.value if isinstance(value, enum.Enum) else value))


def decided(value: Any) -> Any:
    """Return the label that a decision (`dspy.experimental.Choice`, `Noul`) holds; other values as they are."""
    return value.value if isinstance(value, (Choice, Noul)) else value


def label_text(labels: Mapping[str, Any], value: Any) -> str | None:
    """Return what demos call a value, given all labels as `labels_of` does; None for what is none of them."""
    value = decided(value)
    return next((text for text, each in labels.items() if type(each) is type(value) and each == value), None)


def one_block(text: str) -> str:
    """Return the text stripped, without blank lines, which separate demos."""
    return BLANK_LINES.sub("\n", text.replace("\r\n", "\n").replace("\r", "\n")).strip()
