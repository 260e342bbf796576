"""A function that reads examples from a file or from the Hugging Face hub."""

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import dspy
import pydantic

from plr_dspy.data.examples import as_examples
from plr_dspy.data.loading import HubSplit, load_file, load_hub_split
from plr_dspy.dspy_compat import allows_none, parse_value
from plr_dspy.errors import UserError
from plr_dspy.lm.plain_text_adapter import without_none


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
    converters = {}
    for predictor in program.predictors():
        for name, field in predictor.signature.fields.items():
            converters[name] = FieldConverter(field.annotation)
    for example in examples:
        for name in example.keys() & converters.keys():
            example[name] = converters[name].converted(example[name])
    return examples


class FieldConverter:
    """A converter of values to a field's type."""

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        self._kind = without_none(annotation)
        self._adapter: pydantic.TypeAdapter[Any] | None = None
        with contextlib.suppress(pydantic.errors.PydanticUserError):
            self._adapter = pydantic.TypeAdapter(annotation)

    def converted(self, value: Any) -> Any:
        """Return a value as the field's type. Keep it if that fails, because later checks report invalid labels."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return value
        is_number = isinstance(value, (bool, int, float))
        if is_number and (self._kind is str or str(value) in get_args(self._kind)):
            return str(value)
        if isinstance(value, str) and self._accepts(value):
            return value
        if value == "" and allows_none(self._annotation):
            return None
        with contextlib.suppress(ValueError):
            return parse_value(value, self._annotation)
        return value

    def _accepts(self, text: str) -> bool:
        """Return whether the field's type accepts text as it is. Parsing it as JSON might change it."""
        if self._kind is str:
            return True
        if self._adapter is None:
            return False
        with contextlib.suppress(ValueError):
            return bool(self._adapter.validate_python(text, strict=True) == text)
        return False
