"""A function that reads examples from a file or from the Hugging Face hub."""

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import pydantic

from plr_dspy.data.examples import as_examples
from plr_dspy.data.loading import HubSplit, load_file, load_hub_split
from plr_dspy.dspy_compat import parse_value
from plr_dspy.errors import UserError
from plr_dspy.lm.plain_text_adapter import allows_none, without_none


def read_examples(
    source: Path | HubSplit, inputs: Sequence[str] | None, program: dspy.Module
) -> list[dspy.Example]:
    """Read examples from a file, or from a split of a data set on the hub.

    If possible, convert each value to the type of the program's field with the same name.
    """
    rows = load_hub_split(source) if isinstance(source, HubSplit) else load_file(source)
    examples = as_examples(
        rows, program, name=str(source), inputs=inputs, place=lambda index: f"row {index + 1} of {source}"
    )
    if not examples:
        raise UserError(f"{source} must contain at least one example; got no rows: add rows with examples")
    types: dict[str, Any] = {}
    for predictor in program.predictors():
        for name, field in predictor.signature.fields.items():
            types[name] = field.annotation
    for example in examples:
        for name in example.keys() & types.keys():
            example[name] = _converted(example[name], types[name])
    return examples


def _converted(value: Any, annotation: Any) -> Any:
    """Return a value as a field's type. Keep it if that fails, because later checks report invalid labels."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return value
    if without_none(annotation) is str:
        return str(value) if isinstance(value, (bool, int, float)) else value
    if isinstance(value, str) and _is_valid(value, annotation):
        return value
    if value == "" and allows_none(annotation):
        return None
    with contextlib.suppress(ValueError):
        return parse_value(value, annotation)
    return value


def _is_valid(text: str, annotation: Any) -> bool:
    """Return whether a field's type accepts text as it is. Parsing it as JSON might change it."""
    try:
        value: object = pydantic.TypeAdapter(annotation).validate_python(text, strict=True)
    except (ValueError, pydantic.errors.PydanticUserError):
        return False
    return value == text
