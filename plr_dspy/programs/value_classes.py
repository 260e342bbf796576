"""A function that finds the user-defined classes in the types of a program's fields."""

import dataclasses
from contextlib import suppress
from enum import Enum
from typing import get_args, get_origin, get_type_hints

import dspy
from pydantic import BaseModel


def value_classes(program: dspy.Module) -> set[type]:
    """Return the pydantic models, dataclasses, enums and named tuples in the types of a program's fields."""
    signatures = [predictor.signature for predictor in program.predictors()]
    pending = [field.annotation for signature in signatures for field in signature.fields.values()]
    classes = set[type]()
    while pending:
        annotation = pending.pop()
        pending += get_args(annotation)
        if isinstance(annotation, Enum):  # A Literal may contain enum members.
            pending.append(type(annotation))
        # In Python 3.10, list[int] is an instance of `type` but not a class.
        if not isinstance(annotation, type) or get_origin(annotation) is not None or annotation in classes:
            continue
        is_named_tuple = issubclass(annotation, tuple) and hasattr(annotation, "_fields")
        if (
            is_named_tuple
            or issubclass(annotation, (BaseModel, Enum))
            or dataclasses.is_dataclass(annotation)
        ):
            classes.add(annotation)
        with suppress(Exception):  # Annotations may contain undefined names.
            pending += get_type_hints(annotation).values()
        if issubclass(annotation, BaseModel):
            pending += [field.annotation for field in annotation.model_fields.values()]
    return classes
