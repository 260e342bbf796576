"""Checks of what a user gives: arguments of optimizers, programs and examples, and files of saved programs."""

import inspect
import logging
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from plr_dspy.metrics.copies import check_copies
from plr_dspy.programs.copying import is_language_model, language_models

logger = logging.getLogger(__name__)

PICKLE = ".pkl"
"""How the names of files end that can run code when they are loaded."""

LARGEST = 2**63 - 1  # what a file of JSON can hold

TAKEN_BY_MODULES = frozenset({"instance", "self"})
"""Names that no input of a program can have: the calls of DSPy's modules have arguments of these names."""
TAKEN_BY_PREDICTORS = TAKEN_BY_MODULES | {"completions", "config", "demos", "lm", "new_signature", "signature"}
"""Names that no input of a predictor can have: its calls take them for arguments of their own."""


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
        raise UserError(f"log_dir must be the path of a folder, or None; got {shown(value)}") from error


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
    made: Any = dataclass(kw_only=True, eq=False, repr=False, config=config)(kind)
    validate, signature = made.__init__, inspect.signature(made)

    @wraps(validate)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        try:
            given = signature.bind(*values, **named).arguments
        except TypeError as error:
            raise UserTypeError(f"{type(self).__name__}: {error}") from None
        with _in_a_line():
            validate(self, **given)

    made.__init__ = __init__
    checked: type[_T] = made
    return checked


@arguments
class Checked:
    """Arguments of all that makes calls. They are checked when they are set after the constructor, too; other
    attributes are free."""

    num_threads: "Count | None" = None  # These types are quoted for signatures, which show them so.
    max_errors: "Count | None" = None
    seed: "Seed" = 0
    display_progress: "Flag" = True

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
        return self.seed if seed is None else Checked(seed=seed).seed


@contextmanager
def _in_a_line() -> Iterator[None]:
    """Say what pydantic found in a line that names the argument and shows what came."""
    try:
        yield
    except ValidationError as found:
        errors: dict[Any, Any] = {}
        for error in found.errors(include_url=False):  # Each type that an argument may have tells its own.
            first = errors.setdefault((error["loc"][:1], id(error["input"])), error)
            if first is not error:
                first["msg"] += error["msg"].replace("Input should be", " or")
        raise UserError("; ".join(_sentence(error) for error in errors.values())) from None


def shown(value: Any) -> str:
    """A value in a line that is not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _sentence(error: Any) -> str:
    """What pydantic found wrong with an argument, as "seed must be a valid integer; got 1.5"."""
    name, message = "".join(map(str, error["loc"][:1])), error["msg"].removeprefix("Value error, ")
    if (rest := message.removeprefix("Input should ")) != message:
        return f"{name} must {rest}; got {shown(error['input'])}"
    return message if name in message else f"{name}: {message}"


def check_given(student: Any, *, name: str = "student", to_order: bool = True, **datasets: Any) -> None:
    """Raise unless a program can be run on these examples, with what is configured; names are what users know.

    One that is `to_order` must have predictors whose demos can be.
    """
    _check_student(student, name, to_order)
    _check_inputs(student, name)
    _check_demos(student, to_order)
    _warn_of_async_tools(student, name)
    taken_by_calls = TAKEN_BY_MODULES
    signature: inspect.Signature | None = None  # of what a call of another module runs, where that is in Python
    if isinstance(student, (dspy.Predict, dspy.ChainOfThought)):
        fields_of_it = student.named_predictors()[0][1].signature.input_fields
        # Examples may hold some of the others on purpose, such as other demos for each call.
        taken_by_calls |= TAKEN_BY_PREDICTORS & fields_of_it.keys()
        kinds = {name: field.annotation for name, field in fields_of_it.items() if field.is_required()}
        needed = {name: kind for name, kind in kinds.items() if type(None) not in get_args(kind)}
    else:
        with suppress(TypeError, ValueError):
            signature = inspect.signature(forward_of(student) or student)
        named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        parameters = [each for each in signature.parameters.values() if each.kind in named] if signature else []
        needed = {each.name: each.annotation for each in parameters if each.default is each.empty}
    quoted = ", ".join(f'"{each}"' for each in needed)
    with_inputs = f"with_inputs({quoted or '...'})"
    for dataset, examples in datasets.items():
        if isinstance(examples, (str, bytes, dict)) or not isinstance(examples, Sequence):
            raise UserTypeError(f"{dataset} must be a list of dspy.Example; got {type(examples).__name__}")
        for i, example in enumerate(examples):
            if not isinstance(example, dspy.Example):
                cure = f"make each one dspy.Example(...).{with_inputs}"
                raise UserTypeError(f"{dataset}[{i}] must be a dspy.Example; got {type(example).__name__}: {cure}")
            if not has_inputs(example):
                raise UserError(f"{dataset}[{i}] has no inputs: name those of each example by {with_inputs}")
            given = sorted(example.inputs().keys())
            if taken := taken_by_calls.intersection(given):
                raise UserError(f"{dataset}[{i}]: {_taken(min(taken))}")
            if problem := _problem_of_inputs(given, needed, signature):
                raise UserError(
                    f"{dataset}[{i}] must give the program's inputs: {problem}; it has {given}: "
                    f"{_cure_of_inputs(given, needed)}"
                )
        check_copies(dataset, examples)
    lm, adapter = dspy.settings.lm, dspy.settings.adapter
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
    """Say why a program cannot be called with inputs of these names; empty if it can, as far as that is known.

    What larger programs pass to their predictors is not known before they run.
    """
    if signature is None:
        return "" if needed.keys() <= set(given) else f"it needs {sorted(needed)}"
    try:
        signature.bind(**dict.fromkeys(given))
    except TypeError as error:
        return f"forward{signature} cannot take them ({error})"
    return ""


def _cure_of_inputs(given: Sequence[str], needed: Mapping[str, Any]) -> str:
    """Say what to do about examples without some of the inputs that a program needs, given by their types."""
    missing = {name: kind for name, kind in needed.items() if name not in given}
    histories = [name for name, kind in missing.items() if kind in (dspy.History, "dspy.History")]
    cure = "rename the fields of the examples or of the program, or name the inputs in with_inputs"
    if not histories:
        return cure
    first = f"give each example {histories[0]}=dspy.History(messages=[]), and name it in with_inputs"
    return first if len(missing) == len(histories) else f"{first}; {cure}"


def _check_student(student: Any, name: str, to_order: bool) -> None:
    """Raise unless this is a program that can run, and has predictors where it is to be ordered."""
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
    is_async = inspect.iscoroutinefunction(forward)
    if is_async or (forward is None and hasattr(student, "aforward")):
        raise UserTypeError(
            f"{name} is an async program, which cannot run in worker threads as it is: "
            f"{'rename its forward to aforward, ' * is_async}wrap it with dspy.syncify(program) and compile "
            "that; in notebooks that needs nest_asyncio"
        )
    if forward is None and type(student).__call__ is dspy.Module.__call__:
        raise UserTypeError(f"{name} must have a forward method; {type(student).__name__} has none: define one")
    names = [predictor for predictor, _ in student.named_predictors()]
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
    """Raise where DSPy cannot pass an input of a predictor, as it takes it for another argument of the call."""
    for predictor, each in student.named_predictors():
        for field, info in each.signature.input_fields.items():
            if field in TAKEN_BY_PREDICTORS and info.is_required():
                raise UserError(f"{name}: predictor {predictor!r}: {_taken(field)}")


def _taken(field: str) -> str:
    """Say that an input has a name that it cannot have, and what to do."""
    return (
        f"input {field!r} cannot be passed, as DSPy's own calls have an argument of this name: rename it in the "
        "signature and in the examples"
    )


def _warn_of_async_tools(student: dspy.Module, name: str) -> None:
    """Warn of tools that fail at every call, as agents that run synchronously cannot await them."""
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
    """Raise unless all demos are examples or dicts, of which prompts show a field; warn of those that JSON cannot hold
    where the program is to be saved."""
    mismatches, with_demos = [], 0
    for name, predictor in student.named_predictors():
        demos, shown = predictor.demos, set(predictor.signature.fields)
        if not isinstance(demos, Sequence):
            raise UserTypeError(
                f"demos of predictor {name!r} must be a list; got {type(demos).__name__}: pass [] for none"
            )
        for i, demo in enumerate(demos):
            if not isinstance(demo, (dspy.Example, Mapping)):
                raise UserTypeError(
                    f"demo {i} of predictor {name!r} must be a dspy.Example or a dict; got {type(demo).__name__}"
                )
        held = {field for demo in demos for field in demo}
        with_demos += bool(demos)
        if demos and not held & shown:
            mismatches.append(f"demos of predictor {name!r} hold {sorted(held)}, and its prompt shows {sorted(shown)}")
    if to_order and (obstacle := json_obstacle(student)):
        logger.warning("%s", obstacle)
    if mismatches and len(mismatches) == with_demos:
        raise UserError("; ".join(mismatches) + ": rename the fields of the demos or of the signature")


def json_obstacle(program: dspy.Module) -> str:
    """Say what keeps `program.save("x.json")` from its work, and what to do; empty if nothing does."""
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
        more = f", and {len(obstacles) - 1} more fields are like it" * (len(obstacles) > 1)
        return (
            f"{obstacles[0]}{more}: program.save('x.json') will fail; convert it to plain data, such as int(...), "
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
