"""The inputs that a program takes, and whether examples give them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter
from typing import Any

import dspy

from plr_dspy.programs.copies import named_predictors


def check_examples(name: str, examples: Any, student: dspy.Module) -> None:
    """Raise unless this is a sequence of `dspy.Example` with inputs set.

    Args:
        name: What the user knows it by.
        examples: What the user passed.
        student: The program; errors name its inputs.
    """
    if isinstance(examples, (str, bytes, dict)) or not isinstance(examples, Sequence):
        raise TypeError(f"{name} must be a list of dspy.Example; got {type(examples).__name__}")
    for i, example in enumerate(examples):
        if not isinstance(example, dspy.Example):
            made = "dspy.Example(**example)" if isinstance(example, Mapping) else "dspy.Example(...)"
            raise TypeError(
                f"{name}[{i}] must be a dspy.Example; got {type(example).__name__}: pass "
                + _with_inputs(made, name, example, student)
            )
        if not getattr(example, "_input_keys", None):
            raise ValueError(
                f"{name}[{i}] has no inputs: pass {_with_inputs('example', name, example, student)}"
            )


def check_fields(student: dspy.Module, **datasets: Sequence[dspy.Example]) -> None:
    """Raise when an example lacks an input of the program, or when no prompt shows a field of any demo.

    What larger programs pass to their predictors cannot be known before they run.
    """
    takes = _inputs_taken(student)
    for dataset, examples in datasets.items():
        for i, example in enumerate(examples):
            given = example.inputs().keys()
            if problem := takes(set(given)):
                raise ValueError(
                    f"{dataset}[{i}] must give the program's inputs: {problem}; it has {sorted(given)}: rename "
                    "the fields of the examples or of the program, or name the inputs in with_inputs"
                )
    mismatches = [
        f"demos of predictor {name!r} hold {sorted(held)}, and its prompt shows only {sorted(shown)}"
        for name, predictor in named_predictors(student)
        if predictor.demos
        and not (held := {field for demo in predictor.demos for field in demo})
        & (shown := set(predictor.signature.fields))
    ]
    if mismatches and len(mismatches) == sum(bool(predictor.demos) for predictor in student.predictors()):
        raise ValueError("; ".join(mismatches) + ": rename the fields of the demos or of the signature")


def input_names(student: dspy.Module) -> list[str]:
    """The names of the inputs that a program needs; none where its forward does not say them."""
    if isinstance(student, (dspy.Predict, dspy.ChainOfThought)):
        fields = student.predictors()[0].signature.input_fields
        return [name for name, field in fields.items() if field.is_required()]
    forward = _signature(student)
    return [
        name
        for name, parameter in ({} if forward is None else forward.parameters).items()
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        and parameter.default is Parameter.empty
    ]


def forward_of(student: dspy.Module) -> Callable[..., Any] | None:
    """The method that a call runs; DSPy warns where it is read as an attribute."""
    method = getattr(type(student), "forward", None)
    return vars(student).get("forward") or (method and partial(method, student))


def _with_inputs(made: str, dataset: str, example: Any, student: dspy.Module) -> str:
    """The code that gives examples their inputs, with the names if the example has the fields that the program needs.

    Args:
        made: The code that makes an example of each.
        dataset: What the user knows them by.
        example: One that has no inputs.
        student: The program.
    """
    code = f"[{made}.with_inputs({{}}) for example in {dataset}]"
    names = input_names(student)
    is_known = not isinstance(example, (dspy.Example, Mapping)) or set(names) <= set(example.keys())
    if names and is_known:
        quoted = ", ".join(f'"{name}"' for name in names)
        return code.format(quoted)
    needs = f"; the program needs {names}" if names else ""
    return f"{code.format('...')}, with the names of the inputs{needs}"


def _signature(student: dspy.Module) -> inspect.Signature | None:
    """The signature of what a call of the program runs; None where that is not written in Python."""
    try:
        return inspect.signature(forward_of(student) or student)
    except (TypeError, ValueError):
        return None


def _inputs_taken(student: dspy.Module) -> Callable[[set[str]], str]:
    """A function that says what is wrong with an example's input names; empty if nothing is."""
    if isinstance(student, (dspy.Predict, dspy.ChainOfThought)):
        needed = set(input_names(student))
        return lambda given: f"it needs {sorted(needed)}" if needed - given else ""
    if (forward := _signature(student)) is None:
        return lambda given: ""

    def problem(given: set[str]) -> str:
        try:
            forward.bind(**dict.fromkeys(given))
        except TypeError as error:
            return f"forward{forward} cannot take them ({error})"
        return ""

    return problem
