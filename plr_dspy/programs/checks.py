"""Checks of the user's input: optimizer arguments, programs, examples and saved programs."""

import difflib
import inspect
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import dspy
import orjson
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    StrictBool,
    ValidationError,
)
from pydantic.dataclasses import dataclass
from typing_extensions import dataclass_transform

from plr_dspy.dspy_compat import allows_none, serialize_object
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.metrics.by_example import SHOWN, Metric, function_of, metric_caller
from plr_dspy.metrics.copies import check_copies
from plr_dspy.programs.copying import is_language_model, language_models
from plr_dspy.programs.hidden_demos import warn_of_hidden_demos
from plr_dspy.report.formats import one_line

logger = logging.getLogger(__name__)


def _as_folder(value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise UserError(
            f"log_dir must be the path of a folder, or None; got {short_repr(value)}: pass a path such as 'runs/1'"
        )
    return Path(value).expanduser().absolute()


Flag = StrictBool
# Many JSON readers do not support integers above this limit.
WholeNumber = Annotated[int, Field(strict=True, le=2**63 - 1)]
Count = Annotated[WholeNumber, Field(ge=1)]
Seed = Annotated[WholeNumber, Field(ge=0)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0.0)]
Fraction = Annotated[Number, Field(gt=0.0, le=1.0)]
Probability = Annotated[Number, Field(ge=0.0, le=1.0)]
Folder = Annotated[str | Path, BeforeValidator(_as_folder)]
AnyMetric = Annotated[
    SkipValidation[Metric], AfterValidator(lambda metric: metric_caller(metric) and metric)
]

_T = TypeVar("_T")


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
def arguments(kind: type[_T]) -> type[_T]:
    """Turn a class's annotated attributes into validated constructor arguments."""
    config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
    checked_class: Any = dataclass(kw_only=True, eq=False, repr=False, config=config)(kind)
    validate = checked_class.__init__

    @wraps(validate)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        if values:  # Pass the value by name, so that errors show the argument's name.
            names = [field.name for field in fields(self) if not field.kw_only]
            if not names:
                raise UserTypeError(
                    f"{type(self).__name__} takes no positional arguments; got {short_repr(values[0])}: pass all "
                    "arguments by name"
                )
            if len(values) > 1 or names[0] in named:
                raise UserTypeError(
                    f"{type(self).__name__} takes one positional argument, {names[0]}: pass it only once, and the "
                    "other arguments by name"
                )
            named[names[0]] = values[0]
        with _one_line_errors(checked_class, named):
            validate(self, **named)

    checked_class.__init__ = __init__
    result: type[_T] = checked_class
    return result


@arguments
class Checked:
    """The arguments shared by all classes that make program calls. Assignments are also validated."""

    # Types are quoted so that signatures show their names.
    num_threads: "Count | None" = None
    max_errors: "Count | None" = None
    seed: "Seed" = 0
    display_progress: "Flag" = True

    def check_together(self) -> None:
        """Raise a ValueError if arguments conflict. The arguments of this class cannot conflict."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in type(self).__pydantic_fields__:  # type: ignore[attr-defined]
            super().__setattr__(name, value)
            return
        with _one_line_errors(type(self), {name: value}):
            self.__pydantic_validator__.validate_assignment(self, name, value)  # type: ignore[attr-defined]

    def get_params(self) -> dict[str, Any]:
        """Return the arguments as a new dict, so that experiment trackers may modify it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def _seed(self, seed: int | None) -> int:
        """Return `seed` after validation, or the constructor's seed if `seed` is None."""
        return self.seed if seed is None else Checked(seed=seed).seed


@contextmanager
def _one_line_errors(checked_class: Any, values: Mapping[str, object]) -> Iterator[None]:
    """Turn a pydantic error into a one-line `UserError` that shows each invalid argument and its value.

    If a field has a description, the description replaces pydantic's message.
    """
    try:
        yield
    except ValidationError as error:
        sentences = []
        for detail in error.errors(include_url=False):
            name = "".join(map(str, detail["loc"][:1]))
            field = checked_class.__pydantic_fields__.get(name)
            sentence = detail["msg"].removeprefix("Value error, ")
            if detail["type"] == "unexpected_keyword_argument":
                sentence = _unknown_argument(checked_class, name, values.get(name))
            elif detail["type"] == "missing":
                sentence = f"{name} is missing: pass {name}=..."
            elif name in values and field is not None and field.description:
                sentence = f"{name} must be {field.description}; got {short_repr(values[name])}"
            elif name not in sentence:
                requirement = re.sub(r"^\w+ should", "must", sentence)
                sentence = f"{name} {requirement}; got {short_repr(detail['input'])}"
            sentences.append(sentence)
        raise UserError("; ".join(dict.fromkeys(sentences))) from None


def _unknown_argument(checked_class: Any, name: str, value: object) -> str:
    """Return the error message for an argument that a class does not have."""
    similar = difflib.get_close_matches(name, checked_class.__pydantic_fields__)
    fix = f"omit {name}"
    if similar:
        fix += f", or pass {' or '.join(similar)} instead"
    return f"{checked_class.__name__} has no argument {name}; got {name}={short_repr(value)}: {fix}"


def short_repr(value: object) -> str:
    """Return a value's repr as one line of limited length."""
    return one_line(repr(value), SHOWN)


def check_module(
    program: object, name: str, *, fix: str = "pass an instance, such as dspy.Predict('question -> answer')"
) -> None:
    """Raise a TypeError unless `program` is a DSPy program."""
    if not isinstance(program, dspy.Module):
        raise UserTypeError(f"{name} must be a dspy.Module; got {type(program).__name__}: {fix}")


def check_given(student: Any, *, name: str = "student", to_order: bool = True, **datasets: Any) -> None:
    """Raise an error if a program cannot run on the given examples.

    The check depends on DSPy's current settings, such as the LM. Also warn about demos that no
    prompt shows and, if `to_order`, about the first demo that JSON cannot store.

    Args:
        student: The program to check.
        name: The program's name in messages.
        to_order: Whether the program must have predictors that can hold demos.
        datasets: Lists of examples. Messages refer to each list by its keyword, such as "trainset".
    """
    check_module(student, name)
    forward = function_of(student)
    if inspect.iscoroutinefunction(forward) or (forward is None and hasattr(student, "aforward")):
        raise UserTypeError(
            f"{name} must not be an async program, because worker threads cannot run it: define aforward, not an "
            "async forward, and pass dspy.syncify(program), which needs nest_asyncio in notebooks"
        )
    if to_order and not student.predictors():
        raise UserError(
            f"{name} has no predictors that can hold demos: create predictors in __init__, not in forward. If they "
            "are in a compiled sub-module, pass the sub-module itself, or set its _compiled to False"
        )
    _check_predictors(student, name)
    if to_order:
        warn_of_json_obstacle(student)
    for dataset, examples in datasets.items():
        _check_examples(student, name, dataset, examples)
        check_copies(dataset, examples)
    lm = dspy.settings.lm
    if lm is None and not language_models(student):
        raise UserError("no LM is configured: call dspy.configure(lm=dspy.LM(...)) first")
    if lm is not None and not is_language_model(lm):
        fix = "dspy.LM(...)"
        if isinstance(lm, str):
            fix = f"dspy.LM({lm!r})"
        raise UserTypeError(f"lm must be a dspy.LM; got {lm!r}: call dspy.configure(lm={fix})")
    check_adapter()
    warn_of_hidden_demos(student, name)


def check_adapter() -> None:
    """Raise a TypeError unless DSPy's `adapter` setting is an adapter or None."""
    adapter = dspy.settings.adapter
    if inspect.isclass(adapter) or not (adapter is None or callable(adapter)):
        raise UserTypeError(
            f"adapter must be an instance of dspy.Adapter; got {adapter!r}: call "
            "dspy.configure(adapter=dspy.ChatAdapter())"
        )


def _check_predictors(program: dspy.Module, program_name: str) -> None:
    """Raise a TypeError if a predictor's demos have the wrong type or its LM is a string."""
    for name, predictor in program.named_predictors():
        place = f"predictor {name!r} of {program_name}"
        if not isinstance(predictor.demos, Iterable):
            raise UserTypeError(
                f"the demos of {place} must be a list; got {short_repr(predictor.demos)}: set demos to a list, such as "
                "[]"
            )
        for index, demo in enumerate(predictor.demos):
            if not isinstance(demo, (dspy.Example, Mapping)):
                raise UserTypeError(
                    f"demo {index} of {place} must be a dspy.Example or a dict; got {short_repr(demo)}: use a "
                    "dspy.Example, or a dict with the demo's fields"
                )
        if isinstance(predictor.lm, str):
            raise UserTypeError(
                f"the lm of {place} must be a dspy.LM; got {predictor.lm!r}: use dspy.LM({predictor.lm!r})"
            )


def _check_examples(
    student: dspy.Module, name: str, dataset: str, examples: Sequence[dspy.Example]
) -> None:
    """Raise an error unless the examples have all inputs that the program needs."""
    required = needed_inputs(student)
    for i, example in enumerate(examples):
        input_names = set(example.inputs().keys())
        missing = sorted(set(required) - input_names)
        if missing:
            raise UserError(
                f"{dataset}[{i}] must have the inputs {missing} of {name}; its inputs are {sorted(input_names)}: "
                "rename the fields of the examples or of the program, or add the missing names to with_inputs(...) "
                "(--inputs on the command line)"
            )


def needed_inputs(program: dspy.Module) -> dict[str, Any]:
    """Return the types of a program's required inputs, keyed by input name."""
    return {name: value.annotation for name, value in program_inputs(program).items() if value.is_required}


class ProgramInput(NamedTuple):
    """The type of a program's input, and whether the input is required."""

    annotation: Any
    is_required: bool


def program_inputs(program: dspy.Module) -> dict[str, ProgramInput]:
    """Return a program's inputs, keyed by name.

    If the program is a single predictor, the inputs are those of its signature. Otherwise, they
    are the named parameters of `forward`. A wrapper has the same inputs as the program inside.
    """
    program = unwrapped(program)
    if is_single_step(program):
        return predictor_inputs(program.predictors()[0])
    inputs = {}
    for parameter in inspect.signature(function_of(program) or program).parameters.values():
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            is_required = parameter.default is Parameter.empty
            inputs[parameter.name] = ProgramInput(parameter.annotation, is_required)
    return inputs


def predictor_inputs(predictor: dspy.Predict) -> dict[str, ProgramInput]:
    """Return a predictor's inputs, keyed by name."""
    inputs = {}
    for name, field in predictor.signature.input_fields.items():
        is_required = field.is_required() and not allows_none(field.annotation)
        inputs[name] = ProgramInput(field.annotation, is_required)
    return inputs


def is_single_step(program: dspy.Module) -> bool:
    """Return whether a program is a single predictor, possibly in a wrapper.

    The signature of such a program defines its inputs.
    """
    return isinstance(unwrapped(program), (dspy.Predict, dspy.ChainOfThought))


def unwrapped(program: dspy.Module) -> dspy.Module:
    """Return the program inside a wrapper that passes all inputs on, or else the program itself."""
    while getattr(type(program), "passes_inputs_on", False):
        program = program.program
    return program


def json_obstacle(program: dspy.Module) -> str:
    """Return a message about the first demo that JSON cannot store, or "" if JSON can store all demos."""
    for name, predictor in program.named_predictors():
        for i, demo in enumerate(predictor.demos):
            for field, value in demo.items():
                try:
                    orjson.dumps(serialize_object(value))
                except TypeError as error:
                    return (
                        f"demo {i} of predictor {name!r} has a value of type {type(value).__name__} in field "
                        f"{field!r}, and JSON cannot store this value ({error})"
                    )
    return ""


def warn_of_json_obstacle(program: dspy.Module) -> None:
    """Log a warning if JSON cannot store one of the program's demos."""
    obstacle = json_obstacle(program)
    if obstacle:
        logger.warning(
            "%s, so program.save('x.json') will fail: convert the value to plain data, or use program.save('folder', "
            "save_program=True)",
            obstacle,
        )


def saved_state(path: str | Path) -> dict[str, Any]:
    """Return the state in a JSON file that `program.save` wrote."""
    path = Path(path)
    if path.suffix != ".json":
        raise UserError(
            f"path must end in .json; got {str(path)!r}: save the program with program.save('x.json'). If it was saved "
            "in another way, load it with DSPy (student.load or dspy.load), and pass the loaded program (on the "
            "command line, FILE.py:NAME)."
        )
    content = path.read_bytes()
    try:
        state: dict[str, Any] = orjson.loads(content)
        del state["metadata"]
    except (LookupError, TypeError, ValueError) as error:
        fix = "pass a file that program.save('x.json') wrote"
        raise UserError(
            f"{path} holds no saved program ({type(error).__name__}: {error}): {fix}"
        ) from error
    return state
