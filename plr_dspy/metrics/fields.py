"""A check for metrics that read a field that no example has."""

import difflib
from collections.abc import Sequence
from itertools import chain

import dspy

from plr_dspy.dspy_compat import field_not_found
from plr_dspy.errors import MissingFieldError


def columns_of(examples: Sequence[dspy.Example]) -> list[str]:
    """Return the names of all fields in the examples."""
    return list(dict.fromkeys(chain.from_iterable(example.keys() for example in examples)))


def check_field(
    error: BaseException, example: dspy.Example, examples: Sequence[dspy.Example], *, dataset: str = ""
) -> None:
    """Raise a `MissingFieldError` if a metric failed because it read a field that no example has.

    Args:
        error: The error that the metric raised.
        example: The example that the metric received, usually a copy of one of `examples`.
        examples: The data set that contains the example.
        dataset: The name of the data set in the message, if known.
    """
    name = field_not_found(error, example)
    columns = columns_of(examples)
    if name is None or name in columns:
        return
    similar = difflib.get_close_matches(name, columns, n=1)
    column = repr(similar[0]) if similar else "the column that holds it"
    place = f"{dataset}: " if dataset else ""
    raise MissingFieldError(
        f"{place}the metric reads the field {name!r}, which no example has; the columns are {columns}: change the "
        f"metric, or rename {column} to {name!r}"
    ) from error
