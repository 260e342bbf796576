"""The classes of the values that a program's calls take and return: those of its signatures and of its examples."""

import dataclasses
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import dspy
from pydantic import BaseModel

from plr_dspy.metrics.copies import IMMUTABLE


def value_classes(programs: Iterable[dspy.Module], examples: Iterable[dspy.Example]) -> set[type]:
    """Return the pydantic models, dataclasses, enums and named tuples among the types of fields and of values."""
    signatures = [predictor.signature for program in programs for predictor in program.predictors()]
    annotations = [field.annotation for signature in signatures for field in signature.fields.values()]
    return _in_annotations([*annotations, *_of_values(examples)])


def _in_annotations(annotations: Iterable[Any]) -> set[type]:
    """Return the classes in annotations, and in those of their fields."""
    classes = set[type]()
    pending = list(annotations)
    while pending:
        annotation = pending.pop()
        pending += get_args(annotation)
        if isinstance(annotation, Enum):  # A Literal may name a member.
            pending.append(type(annotation))
        # To Python 3.10, list[int] is an instance of type, and no class.
        if not isinstance(annotation, type) or get_origin(annotation) is not None or annotation in classes:
            continue
        if _has_fields(annotation) or issubclass(annotation, Enum):
            classes.add(annotation)
        with suppress(Exception):  # A name in an annotation may be defined nowhere.
            pending += get_type_hints(annotation).values()
        if issubclass(annotation, BaseModel):
            pending += [field.annotation for field in annotation.model_fields.values()]
    return classes


def _has_fields(kind: type) -> bool:
    """Tell whether a class says which fields its objects have."""
    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named_tuple or issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)


def _of_values(examples: Iterable[dspy.Example]) -> set[type]:
    """Return the types of all that examples hold."""
    kinds = set[type]()
    seen: dict[int, Any] = {}
    pending: list[Any] = list(examples)
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind in IMMUTABLE or id(value) in seen:
            continue
        seen[id(value)] = value
        kinds.add(kind)
        if isinstance(value, dspy.Example):
            pending += value.values(include_dspy=True)
        elif isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending += value
        elif not isinstance(value, Enum) and _has_fields(kind):
            pending += getattr(value, "__dict__", {}).values()
    return kinds
