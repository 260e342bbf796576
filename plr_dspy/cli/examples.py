"""A function that reads examples from a file or from the Hugging Face hub."""

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
            if types[name] is not str and example[name] is not None:
                # Keep values that cannot be parsed, because later checks report invalid labels.
                with contextlib.suppress(ValueError):
                    example[name] = parse_value(example[name], types[name])
    return examples
