"""Read the examples of a command from a file or from the Hugging Face hub."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy

from plr_dspy.data.examples import as_examples
from plr_dspy.data.loading import HubSplit, load_file, load_hub_split
from plr_dspy.dspy_compat import parse_value
from plr_dspy.errors import UserError


def read_examples(
    source: Path | HubSplit, inputs: Sequence[str] | None, program: dspy.Module
) -> list[dspy.Example]:
    """Read the examples of a file or a split, and parse their values as the types of the program's fields."""
    rows = load_hub_split(source) if isinstance(source, HubSplit) else load_file(source)
    examples = as_examples(
        rows, program, name=str(source), inputs=inputs, place=lambda index: f"row {index + 1} of {source}"
    )
    if not examples:
        raise UserError(f"{source} must contain at least one example; it has none: add rows")
    types: dict[str, Any] = {}
    for predictor in program.predictors():
        for name, field in predictor.signature.fields.items():
            types[name] = field.annotation
    for example in examples:
        for name in example.keys() & types.keys():
            if types[name] is not str and example[name] is not None:
                # A value that cannot be parsed is kept as it is.
                with contextlib.suppress(ValueError):
                    example[name] = parse_value(example[name], types[name])
    return examples
