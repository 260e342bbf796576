"""Arguments of optimizers: each is declared once, and pydantic checks it, when it is given and when it is set later."""

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SkipValidation, StrictBool, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import dataclass_transform

from plr_dspy.metrics.by_example import SHOWN, Metric, metric_caller

LARGEST = 2**63 - 1  # what a file of JSON can hold


def _as_python(value: Any) -> Any:
    """A number or a bool of numpy as Python's own; everything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _as_folder(value: Any) -> Path:
    """The absolute path of a folder."""
    try:
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            raise TypeError
        return Path(value).expanduser().absolute()
    except (TypeError, RuntimeError) as error:  # RuntimeError: of a home that is not known
        raise ValueError(f"log_dir must be the path of a folder, or None; got {shown(value)}") from error


def _as_metric(metric: Any) -> Any:
    """The metric, if it can be called with an example and a prediction."""
    metric_caller(metric)
    return metric


Flag = Annotated[StrictBool, BeforeValidator(_as_python)]
WholeNumber = Annotated[int, BeforeValidator(_as_python), Field(strict=True, le=LARGEST)]
Count = Annotated[WholeNumber, Field(ge=1)]
Seed = Annotated[WholeNumber, Field(ge=0)]
Number = Annotated[float, BeforeValidator(_as_python), Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0.0)]
Fraction = Annotated[Number, Field(gt=0.0, le=1.0)]
Probability = Annotated[Number, Field(ge=0.0, le=1.0)]
Folder = Annotated[str | Path, BeforeValidator(_as_folder)]
AnyMetric = Annotated[SkipValidation[Metric], AfterValidator(_as_metric)]

_T = TypeVar("_T")


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
def arguments(kind: type[_T]) -> type[_T]:
    """Make the annotated attributes of a class the arguments of its constructor."""
    config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
    made: Any = dataclass(kw_only=True, eq=False, repr=False, config=config)(kind)
    validate = made.__init__

    @wraps(validate)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        with _in_a_line([field.name for field in fields(made) if not field.kw_only]):
            validate(self, *values, **named)

    made.__init__ = __init__
    checked: type[_T] = made
    return checked


class Checked:
    """Checks arguments that are set after the constructor, too; other attributes are free."""

    seed: Seed

    def check_together(self) -> None:
        """Raise a ValueError where arguments do not go together."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in type(self).__pydantic_fields__:  # type: ignore[attr-defined]
            super().__setattr__(name, value)
            return
        with _in_a_line():
            self.__pydantic_validator__.validate_assignment(self, name, value)  # type: ignore[attr-defined]

    def get_params(self) -> dict[str, Any]:
        """The arguments, as a dict of its own: trackers add to what they get."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def _seed(self, seed: int | None) -> int:
        """The seed of a compile, which wins over the constructor's."""
        checked = copy.copy(self)
        checked.seed = self.seed if seed is None else seed
        return checked.seed


@contextmanager
def _in_a_line(positional: Sequence[str] = ()) -> Iterator[None]:
    """Say what pydantic found in a line that names the argument, a positional one too, and shows what came."""
    try:
        yield
    except ValidationError as found:
        errors: dict[Any, Any] = {}
        for error in found.errors(include_url=False):  # Each type that an argument may have tells its own.
            first = errors.setdefault((error["loc"][:1], id(error["input"])), error)
            if first is not error:
                first["msg"] += error["msg"].replace("Input should be", " or")
        raise ValueError("; ".join(_sentence(error, positional) for error in errors.values())) from None


def shown(value: Any) -> str:
    """A value in a line that is not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _sentence(error: Any, positional: Sequence[str]) -> str:
    """What pydantic found wrong with an argument, as "seed must be a valid integer; got 1.5"."""
    place = error["loc"][0] if error["loc"] else ""
    name = positional[place] if isinstance(place, int) and place < len(positional) else str(place)
    message = error["msg"].removeprefix("Value error, ")
    if (rest := message.removeprefix("Input should ")) != message:
        return f"{name} must {rest}; got {shown(error['input'])}"
    if error["type"] == "unexpected_positional_argument":
        return f"only {', '.join(positional)} may come without a name; got {shown(error['input'])}"
    if error["type"] in ("missing", "missing_argument"):
        return f"{name} is missing: pass it"
    if error["type"] == "unexpected_keyword_argument":
        return f"{name} is no argument; got {shown(error['input'])} for it: help() lists those that there are"
    return message if name in message else f"{name}: {message}"
