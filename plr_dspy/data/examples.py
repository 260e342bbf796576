"""Conversion of rows, such as dicts or the rows of a Hugging Face data set, to examples with inputs."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import dspy

from plr_dspy.dspy_compat import has_inputs
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.programs.checks import (
    is_single_step,
    needed_inputs,
    predictor_inputs,
    program_inputs,
    short_repr,
)

if TYPE_CHECKING:
    import datasets

Rows: TypeAlias = "Sequence[dspy.Example] | Sequence[Mapping[str, Any]] | datasets.Dataset"
"""Examples, dicts, or a Hugging Face data set."""


def as_examples(
    rows: Rows,
    program: dspy.Module,
    *,
    name: str = "rows",
    inputs: Sequence[str] | None = None,
    place: Callable[[int], str] | None = None,
    program_name: str = "the program",
) -> list[dspy.Example]:
    """Return rows as examples with inputs.

    Examples that declare their inputs are returned unchanged. For all other rows, the columns in
    `inputs` are declared as inputs. If `inputs` is None, the columns with the same names as the
    program's inputs are used. Rows may lack inputs that the program does not need.

    Args:
        rows: Examples, dicts, or a `datasets.Dataset`. In `ClassLabel` columns, class names
            replace class indices, and missing labels are omitted from the examples.
        program: The program to call on the examples.
        name: The name of `rows` in messages.
        inputs: Names of the input columns.
        place: A function that maps a row's index to the row's name in messages. By default,
            rows have names such as "trainset[3]".
        program_name: The program's name in messages.

    Raises:
        TypeError, ValueError: If `rows` or `inputs` has the wrong type, or if the inputs of a
            row are missing, ambiguous or contradictory.
    """
    _check_names(inputs)
    _check_no_outputs(inputs, program)
    needed = list(needed_inputs(program))
    optional = program_inputs(program).keys() - needed
    undeclared_inputs = inputs
    examples = []
    sequence = _sequence(rows, name)
    for index, row in enumerate(sequence):
        row_name = place(index) if place else f"{name}[{index}]"
        if not isinstance(row, (dspy.Example, Mapping)):
            raise UserTypeError(
                f"{row_name} must be a dspy.Example or a dict; got {type(row).__name__}: pass a dspy.Example, or a "
                "dict with the example's fields"
            )
        if isinstance(row, dspy.Example) and has_inputs(row):
            _check_same_inputs(row, inputs, row_name)
            examples.append(row)
            continue
        if undeclared_inputs is None:
            undeclared_inputs = _inferred_inputs(program, _columns(sequence), name, program_name)
        required = [column for column in undeclared_inputs if column not in optional]
        _check_values(row, required, needed, row_name)
        example = row if isinstance(row, dspy.Example) else dspy.Example(dict(row))
        examples.append(example.with_inputs(*undeclared_inputs))
    return examples


def _check_names(inputs: Any) -> None:
    """Raise a TypeError unless `inputs` is None or a non-empty list of names."""
    if inputs is None:
        return
    is_list = isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes))
    if not is_list or not inputs or not all(isinstance(name, str) for name in inputs):
        fix = f"pass [{inputs!r}]" if isinstance(inputs, str) else 'pass a list, such as ["question"]'
        raise UserTypeError(f"inputs must be a list of column names; got {short_repr(inputs)}: {fix}")


def _check_no_outputs(inputs: Sequence[str] | None, program: dspy.Module) -> None:
    """Raise a ValueError if the program is a single predictor, and `inputs` contains one of its outputs."""
    if inputs is None or not is_single_step(program):
        return
    for predictor in program.predictors():
        outputs = [name for name in inputs if name in predictor.signature.output_fields]
        if outputs:
            names = " and ".join(map(repr, outputs))
            raise UserError(
                f"inputs must not name outputs of the program; got {list(inputs)}: remove {names}"
            )


def _sequence(rows: Any, name: str) -> Sequence[Any]:
    """Return the rows as a sequence. Raise a TypeError unless `rows` is a sequence or a `datasets.Dataset`."""
    datasets = sys.modules.get("datasets")  # already imported if `rows` is a data set
    if datasets is not None and isinstance(rows, datasets.Dataset):
        return _named_rows(rows)
    if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        return rows
    fix = "pass a list"
    if type(rows).__name__ == "DataFrame" and hasattr(rows, "to_dict"):
        fix = f"pass {name}.to_dict('records')"
    elif isinstance(rows, Iterable) and not isinstance(rows, (str, bytes, Mapping)):
        fix = f"pass list({name})"
    if datasets is not None and isinstance(rows, datasets.DatasetDict):
        fix = f"pass one of its splits, such as {name}[{next(iter(rows), 'train')!r}]"
    elif datasets is not None and isinstance(rows, datasets.IterableDataset):
        fix = f"pass datasets.Dataset.from_list(list({name}))"
    raise UserTypeError(
        f"{name} must be a list of dspy.Example or of dicts, or a datasets.Dataset; got {type(rows).__name__}: {fix}"
    )


def _named_rows(dataset: "datasets.Dataset") -> list[dict[str, Any]]:
    """Return the rows of a data set as dicts, with class names in place of class indices."""
    import datasets

    classes = {}
    for column, feature in dataset.features.items():
        if isinstance(feature, datasets.ClassLabel):
            classes[column] = feature
    rows = []
    for row in dataset.with_format(None):
        named_row = {}
        for column, value in row.items():
            if column not in classes:
                named_row[column] = value
            elif value is not None and value >= 0:  # The index -1 marks a missing label.
                named_row[column] = classes[column].int2str(value)
        rows.append(named_row)
    return rows


def _columns(rows: Sequence[Any]) -> list[str]:
    """Return the columns of all rows that do not declare their inputs."""
    columns: dict[str, None] = {}
    for row in rows:
        is_row = isinstance(row, (dspy.Example, Mapping))
        if is_row and not (isinstance(row, dspy.Example) and has_inputs(row)):
            columns |= dict.fromkeys(row.keys())
    return list(columns)


def _check_same_inputs(example: dspy.Example, inputs: Sequence[str] | None, row_name: str) -> None:
    """Raise a ValueError if an example declares inputs that differ from `inputs`."""
    own_inputs = example.inputs().keys()
    if inputs is not None and set(own_inputs) != set(inputs):
        raise UserError(
            f"inputs must equal the inputs that the examples declare; got {list(inputs)}, but {row_name} declares "
            f"{sorted(own_inputs)}: omit inputs, or declare other inputs with Example.with_inputs"
        )


def _inferred_inputs(
    program: dspy.Module, columns: Sequence[str], name: str, program_name: str
) -> list[str]:
    """Return the columns that are inputs of the program. Raise a ValueError if inputs are missing or ambiguous."""
    given = program_inputs(program)
    are_certain = is_single_step(program)
    # If `forward` names no inputs, as in forward(**inputs), use the inputs of the first predictor.
    if not given and program.predictors():
        given = predictor_inputs(program.predictors()[0])
        are_certain = True
    present = [name for name in given if name in columns]
    missing = [name for name in given if given[name].is_required and name not in columns]
    if missing or not present:
        raise UserError(
            f"{name} must have columns for the inputs of {program_name}, {list(given)}; got the columns {columns}: "
            "rename the columns, or pass inputs=[...] with the names of the input columns"
        )
    doubtful = [name for name in present if not given[name].is_required]
    if doubtful and not are_certain:
        raise UserError(
            f"inputs must be passed, because {name} has the columns {doubtful}, which {program_name} accepts but "
            f"does not need: pass inputs={present}, or omit those of {doubtful} that are not inputs"
        )
    return present


def _check_values(row: Any, inputs: Sequence[str], needed: Sequence[str], row_name: str) -> None:
    """Raise a ValueError if a row lacks an input, or if an input that the program needs is None."""
    columns = list(row.keys())
    missing = [name for name in inputs if name not in columns]
    if missing:
        raise UserError(
            f"{row_name} must have the inputs {list(inputs)}; got the columns {columns}: add {missing}, or pass other "
            "names as inputs"
        )
    empty = [name for name in needed if name in columns and row[name] is None]
    if empty:
        raise UserError(
            f"{row_name} must have values for the inputs {empty}; got None: add the values, or remove the row"
        )
