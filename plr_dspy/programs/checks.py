"""Checks of what a user gives: arguments of optimizers, programs and examples, and files of saved programs."""

import inspect
import logging
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import dspy
import numpy as np
import orjson
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SkipValidation, StrictBool, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import dataclass_transform

from plr_dspy.dspy_compat import get_dependency_versions, has_inputs, serialize_object
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.metrics.by_example import SHOWN, Metric, forward_of, metric_caller
from plr_dspy.programs.copying import is_language_model, language_models

logger = logging.getLogger(__name__)

PICKLE = ".pkl"
"""The suffix of files that can run code when they are loaded."""

LARGEST = 2**63 - 1
"""The largest number that a file of JSON can hold."""

TAKEN_BY_MODULES = frozenset({"instance", "self"})
"""Names that no input of a program can have: the calls of DSPy's modules have arguments of these names."""
TAKEN_BY_PREDICTORS = TAKEN_BY_MODULES | {"completions", "config", "demos", "lm", "new_signature", "signature"}
"""Names that no input of a predictor can have: its calls take them for arguments of their own."""


def _as_python(value: Any) -> Any:
    """Return a number or a bool of numpy as Python's own, and everything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _as_folder(value: Any) -> Path:
    """Return the absolute path of a folder."""
    refusal = f"log_dir must be the path of a folder, or None; got {shown(value)}"
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise UserError(refusal)
    try:
        return Path(value).expanduser().absolute()
    except (TypeError, RuntimeError) as error:  # A path may be of bytes, and a home unknown.
        raise UserError(refusal) from error


Flag = Annotated[StrictBool, BeforeValidator(_as_python)]
WholeNumber = Annotated[int, BeforeValidator(_as_python), Field(strict=True, le=LARGEST)]
Count = Annotated[WholeNumber, Field(ge=1)]
Seed = Annotated[WholeNumber, Field(ge=0)]
Number = Annotated[float, BeforeValidator(_as_python), Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0.0)]
Fraction = Annotated[Number, Field(gt=0.0, le=1.0)]
Probability = Annotated[Number, Field(ge=0.0, le=1.0)]
Folder = Annotated[str | Path, BeforeValidator(_as_folder)]
AnyMetric = Annotated[SkipValidation[Metric], AfterValidator(lambda metric: metric_caller(metric) and metric)]

_T = TypeVar("_T")


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
def arguments(kind: type[_T]) -> type[_T]:
    """Make the annotated attributes of a class the arguments of its constructor."""
    config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
    checked_class: Any = dataclass(kw_only=True, eq=False, repr=False, config=config)(kind)
    validate = checked_class.__init__
    signature = inspect.signature(checked_class)

    @wraps(validate)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        try:
            given = signature.bind(*values, **named).arguments
        except TypeError as error:
            raise UserTypeError(f"{type(self).__name__}: {error}") from None
        with _in_a_line():
            validate(self, **given)

    checked_class.__init__ = __init__
    result: type[_T] = checked_class
    return result


@arguments
class Checked:
    """The arguments of everything that makes calls. They are also checked when they are set later."""

    # These types are quoted because signatures show them so.
    num_threads: "Count | None" = None
    max_errors: "Count | None" = None
    seed: "Seed" = 0
    display_progress: "Flag" = True

    def check_together(self) -> None:
        """Raise a ValueError if arguments do not go together."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in type(self).__pydantic_fields__:  # type: ignore[attr-defined]
            super().__setattr__(name, value)
            return
        with _in_a_line():
            self.__pydantic_validator__.validate_assignment(self, name, value)  # type: ignore[attr-defined]

    def get_params(self) -> dict[str, Any]:
        """Return the arguments as a new dict, because trackers add to it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def _seed(self, seed: int | None) -> int:
        """Return the seed of a compile, which wins over the constructor's."""
        return self.seed if seed is None else Checked(seed=seed).seed


@contextmanager
def _in_a_line() -> Iterator[None]:
    """Raise what pydantic finds as one line that names the argument and shows its value."""
    try:
        yield
    except ValidationError as error:
        details: dict[Any, Any] = {}
        # There is one for each type that the argument may have.
        for detail in error.errors(include_url=False):
            key = (detail["loc"][:1], id(detail["input"]))
            if key in details:
                details[key]["msg"] += detail["msg"].replace("Input should be", " or")
            else:
                details[key] = detail
        raise UserError("; ".join(map(_sentence, details.values()))) from None


def shown(value: Any) -> str:
    """Return a value as one line of limited length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _sentence(detail: Any) -> str:
    """Return what pydantic finds wrong with an argument, as "seed must be a valid integer; got 1.5"."""
    name = "".join(map(str, detail["loc"][:1]))
    message: str = detail["msg"].removeprefix("Value error, ")
    if message.startswith("Input should "):
        return f"{name} must {message.removeprefix('Input should ')}; got {shown(detail['input'])}"
    if name in message:
        return message
    return f"{name}: {message}"


def check_given(student: Any, *, name: str = "student", to_order: bool = True, **datasets: Any) -> None:
    """Raise unless a program can run on these examples as DSPy is configured.

    Args:
        student: The program.
        name: What messages call it.
        to_order: Whether it must have predictors whose demos can be ordered.
        datasets: Lists of examples, by what messages call them.
    """
    _check_student(student, name, to_order)
    _check_inputs(student, name)
    _check_demos(student, to_order)
    _warn_of_async_tools(student, name)
    for dataset, examples in datasets.items():
        _check_examples(student, dataset, examples)
    _check_settings(student)


def _check_examples(student: dspy.Module, dataset: str, examples: Any) -> None:
    """Raise unless these are examples with inputs that a program takes."""
    if isinstance(examples, (str, bytes, dict)) or not isinstance(examples, Sequence):
        raise UserTypeError(f"{dataset} must be a list of dspy.Example; got {type(examples).__name__}")
    taken = TAKEN_BY_MODULES
    signature = None
    if isinstance(student, (dspy.Predict, dspy.ChainOfThought)):
        input_fields = student.predictors()[0].signature.input_fields
        # Examples may contain other arguments of predictors on purpose, such as other demos for each call.
        taken |= TAKEN_BY_PREDICTORS & input_fields.keys()
        needed = {}
        for field_name, field in input_fields.items():
            if field.is_required() and type(None) not in get_args(field.annotation):
                needed[field_name] = field.annotation
    else:
        signature = _signature_of(student)
        needed = _required_parameters(signature)
    quoted = ", ".join(f'"{field_name}"' for field_name in needed)
    with_inputs = f"with_inputs({quoted or '...'})"
    for i, example in enumerate(examples):
        if not isinstance(example, dspy.Example):
            cure = f"make each one dspy.Example(...).{with_inputs}"
            raise UserTypeError(f"{dataset}[{i}] must be a dspy.Example; got {type(example).__name__}: {cure}")
        if not has_inputs(example):
            raise UserError(f"{dataset}[{i}] has no inputs: name those of each example by {with_inputs}")
        given = sorted(example.inputs().keys())
        refused = taken.intersection(given)
        if refused:
            raise UserError(f"{dataset}[{i}]: {_taken(min(refused))}")
        problem = _problem_of_inputs(given, needed, signature)
        if problem:
            cure = _cure_of_inputs(given, needed)
            raise UserError(f"{dataset}[{i}] must give the program's inputs: {problem}; it has {given}: {cure}")


def _signature_of(program: dspy.Module) -> inspect.Signature | None:
    """Return the signature of what a call runs; None if it is not written in Python."""
    try:
        return inspect.signature(forward_of(program) or program)
    except (TypeError, ValueError):
        return None


def _required_parameters(signature: inspect.Signature | None) -> dict[str, Any]:
    """Return the parameters without a default, with their types."""
    required = {}
    for parameter in signature.parameters.values() if signature else ():
        is_named = parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        if is_named and parameter.default is Parameter.empty:
            required[parameter.name] = parameter.annotation
    return required


def _check_settings(student: dspy.Module) -> None:
    """Raise unless DSPy is configured with a language model, and with an adapter if any."""
    lm = dspy.settings.lm
    adapter = dspy.settings.adapter
    if lm is None and not language_models(student):
        raise UserError("no LM is configured: call dspy.configure(lm=dspy.LM(...)) first")
    if lm is not None and not is_language_model(lm):
        cure = f"dspy.LM({lm!r})" if isinstance(lm, str) else "dspy.LM(...)"
        raise UserTypeError(f"lm must be a dspy.LM; got {lm!r}: call dspy.configure(lm={cure})")
    if adapter is not None and not isinstance(adapter, dspy.Adapter):
        raise UserTypeError(
            f"adapter must be a dspy.Adapter; got {adapter!r}: pass one, such as dspy.ChatAdapter(), to dspy.configure"
        )


def _problem_of_inputs(given: Sequence[str], needed: Mapping[str, Any], signature: inspect.Signature | None) -> str:
    """Return why a program cannot be called with inputs of these names; empty if no reason is known.

    What larger programs pass to their predictors is only known when they run.
    """
    if signature is None:
        return "" if needed.keys() <= set(given) else f"it needs {sorted(needed)}"
    try:
        signature.bind(**dict.fromkeys(given))
    except TypeError as error:
        return f"forward{signature} cannot take them ({error})"
    return ""


def _cure_of_inputs(given: Sequence[str], needed: Mapping[str, Any]) -> str:
    """Return what to do about examples that lack inputs of a program, whose types are `needed`."""
    missing = {name: kind for name, kind in needed.items() if name not in given}
    histories = [name for name, kind in missing.items() if kind in (dspy.History, "dspy.History")]
    cure = "rename the fields of the examples or of the program, or name the inputs in with_inputs"
    if not histories:
        return cure
    first = f"give each example {histories[0]}=dspy.History(messages=[]), and name it in with_inputs"
    return first if len(missing) == len(histories) else f"{first}; {cure}"


def _check_student(student: Any, name: str, to_order: bool) -> None:
    """Raise unless this is a program that can run, with predictors if it is to be ordered."""
    if not isinstance(student, dspy.Module):
        hint = ": pass an instance, not the class" if isinstance(student, type) else ""
        raise UserTypeError(f"{name} must be a dspy.Module; got {type(student).__name__}{hint}")
    forwards = [vars(module).get("forward") for _, module in student.named_sub_modules()]
    if to_order and any("KNNFewShot" in getattr(forward, "__qualname__", "") for forward in forwards):
        raise UserTypeError(
            f"{name} was compiled by KNNFewShot, which picks demos anew at each call, so that there are none to order: "
            "pass the program that it was made of to PLFewShot(metric, demos='retrieved'), which shows nearest demos"
        )
    if to_order and type(student).__qualname__.startswith("Ensemble.compile."):
        raise UserTypeError(f"{name} is an Ensemble: compile its members with PLReorder first, then ensemble them")
    forward = forward_of(student)
    cure = "wrap it with dspy.syncify(program) and compile that; in notebooks that needs nest_asyncio"
    if inspect.iscoroutinefunction(forward):
        cure = f"rename its forward to aforward, {cure}"
    if inspect.iscoroutinefunction(forward) or (forward is None and hasattr(student, "aforward")):
        raise UserTypeError(f"{name} is an async program, which cannot run in worker threads as it is: {cure}")
    if forward is None and type(student).__call__ is dspy.Module.__call__:
        raise UserTypeError(f"{name} must have a forward method; {type(student).__name__} has none: define one")
    names = [predictor_name for predictor_name, _ in student.named_predictors()]
    if len(set(names)) < len(names):
        raise UserError(
            f"{name} has several predictors of one name: {sorted(names)}; rename dict keys that print alike"
        )
    if to_order and not names:
        raise UserError(
            f"{name} has no predictors to order demos in. Create them in __init__, not in forward; those in frozen "
            "(compiled) sub-modules are left alone: compile the sub-module itself, or set its _compiled to False"
        )


def _check_inputs(student: dspy.Module, name: str) -> None:
    """Raise if DSPy would take an input of a predictor for another argument of the call."""
    for predictor_name, predictor in student.named_predictors():
        for field_name, field in predictor.signature.input_fields.items():
            if field_name in TAKEN_BY_PREDICTORS and field.is_required():
                raise UserError(f"{name}: predictor {predictor_name!r}: {_taken(field_name)}")


def _taken(field: str) -> str:
    """Return that an input cannot have its name, and what to do."""
    return (
        f"input {field!r} cannot be passed, as DSPy's own calls have an argument of this name: rename it in the "
        "signature and in the examples"
    )


def _warn_of_async_tools(student: dspy.Module, name: str) -> None:
    """Warn of async tools in agents that run synchronously, where every call of them fails."""
    if dspy.settings.allow_tool_async_sync_conversion:
        return
    awaiting: list[str] = []  # names of modules that are run asynchronously, with all that they hold
    for path, module in student.named_sub_modules():
        if any(path == outer or path.startswith(f"{outer}.") for outer in awaiting):
            continue
        # DSPy warns where `forward` is read as an attribute.
        forward = vars(module).get("forward") or getattr(type(module), "forward", None)
        if getattr(forward, "__qualname__", "").startswith("syncify."):
            awaiting.append(path)
            continue
        held = getattr(module, "tools", None)
        tools: Iterable[Any] = ()
        if isinstance(held, Mapping):
            tools = held.values()
        elif isinstance(held, (list, tuple)):
            tools = held
        failing = [tool.name for tool in tools if isinstance(tool, dspy.Tool) and _is_async(tool.func)]
        if failing:
            logger.warning(
                "%s has async tools %s in %s, and every call of them fails in a synchronous program: call "
                "dspy.configure(allow_tool_async_sync_conversion=True), or pass dspy.syncify(program)",
                *(name, failing, path),
            )


def _is_async(function: Any) -> bool:
    """Return whether a call of this gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _check_demos(student: dspy.Module, to_order: bool) -> None:
    """Raise unless all demos are examples or dicts with a field that prompts show.

    If the program is to be saved, warn of demos that JSON cannot hold.
    """
    mismatches = []
    num_with_demos = 0
    for name, predictor in student.named_predictors():
        demos = predictor.demos
        if not isinstance(demos, Sequence):
            raise UserTypeError(
                f"demos of predictor {name!r} must be a list; got {type(demos).__name__}: pass [] for none"
            )
        demo_fields: set[str] = set()
        for i, demo in enumerate(demos):
            if not isinstance(demo, (dspy.Example, Mapping)):
                raise UserTypeError(
                    f"demo {i} of predictor {name!r} must be a dspy.Example or a dict; got {type(demo).__name__}"
                )
            demo_fields.update(demo)
        if not demos:
            continue
        num_with_demos += 1
        prompt_fields = set(predictor.signature.fields)
        if not demo_fields & prompt_fields:
            mismatches.append(
                f"demos of predictor {name!r} hold {sorted(demo_fields)}, and its prompt shows {sorted(prompt_fields)}"
            )
    obstacle = json_obstacle(student) if to_order else ""
    if obstacle:
        logger.warning("%s", obstacle)
    if mismatches and len(mismatches) == num_with_demos:
        raise UserError("; ".join(mismatches) + ": rename the fields of the demos or of the signature")


def json_obstacle(program: dspy.Module) -> str:
    """Return why `program.save("x.json")` would fail, and what to do; empty if it would not."""
    obstacles = []
    for name, predictor in program.named_predictors():
        for i, demo in enumerate(predictor.demos):
            for field, value in demo.items():
                try:
                    orjson.dumps(serialize_object(value))
                except TypeError as error:
                    held = f"holds a {type(value).__name__} in field {field!r} ({error})"
                    obstacles.append(f"demo {i} of predictor {name!r} {held}")
    if obstacles:
        first = obstacles[0]
        if len(obstacles) > 1:
            first += f", and {len(obstacles) - 1} more fields are like it"
        return (
            f"{first}: program.save('x.json') will fail; convert it to plain data, such as int(...), "
            "str(...) or list(...), or save with save_program=True"
        )
    try:
        orjson.dumps(program.dump_state())
    except Exception as error:
        return (
            f"program.save('x.json') will fail ({type(error).__name__}: {error}): leave language models to "
            "dspy.configure(lm=...), and keep to plain data, or save with save_program=True"
        )
    return ""


def saved_state(path: str | Path, *, allow_pickle: bool = False) -> dict[str, Any]:
    """Read what `program.save` wrote, as `load_state` takes it, and warn if that was with other versions.

    Raises:
        OSError: if the file cannot be read.
        TypeError: if the path is that of no file.
        ValueError: if it holds no saved program, or is a pickle and these are not allowed.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UserTypeError(f"path must be that of a file that save wrote; got {path!r}")
    path = Path(path)
    if path.suffix not in (".json", PICKLE):
        raise UserError(
            f"path must end in .json or .pkl; got {str(path)!r}: save the program with program.save('x.json'), or load "
            "what was saved with save_program=True with dspy.load"
        )
    if path.suffix == PICKLE and not allow_pickle:
        raise UserError(
            f"{path} is a pickle, which can run code when it is loaded: pass allow_pickle=True if you trust the file, "
            "or save the program as JSON, with program.save('program.json')"
        )
    content = path.read_bytes()
    try:
        state = pickle.loads(content) if path.suffix == PICKLE else orjson.loads(content)
        versions = dict(state.pop("metadata")["dependency_versions"])
    except Exception as error:  # Pickles may raise anything.
        reason = f" ({type(error).__name__}: {error})" if path.suffix == PICKLE else ""
        cure = "pass a file that program.save('x.json') or program.save('x.pkl') wrote"
        raise UserError(f"{path} holds no program{reason}: {cure}") from error
    for name, version in get_dependency_versions().items():
        if versions.get(name) not in (version, None):
            logger.warning("%s was saved with %s %s, and this is %s", path, name, versions[name], version)
    saved: dict[str, Any] = state
    return saved
