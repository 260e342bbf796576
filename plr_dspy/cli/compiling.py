"""Functions that run the commands `compile`, `evaluate` and `choose` with parsed arguments."""

import argparse
import difflib
import importlib
import inspect
import os
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import dspy

from plr_dspy.cli.examples import read_examples
from plr_dspy.cli.fixes import in_options
from plr_dspy.cli.output import show
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.evaluation import evaluate_programs
from plr_dspy.labels.outputs import label_output
from plr_dspy.lm.engines import completion_lm
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter
from plr_dspy.loading import load_program
from plr_dspy.local import local_lm
from plr_dspy.metrics.by_example import Metric
from plr_dspy.metrics.confusion import F1, BalancedAccuracy, MatthewsCorrelation, SetMetric
from plr_dspy.optimizer.choosing import choose_program
from plr_dspy.optimizer.estimating import estimate
from plr_dspy.optimizer.fewshot import PLFewShot
from plr_dspy.optimizer.plreorder import PLReorder
from plr_dspy.programs.checks import json_obstacle
from plr_dspy.programs.copying import ProgramFactory

SAVED_SUFFIXES = (".json", ".pkl")
"""The suffixes of files that `program.save` writes. Only .json files can be loaded."""

ADAPTERS = {"chat": dspy.ChatAdapter, "json": dspy.JSONAdapter, "plain": PlainTextAdapter}
SET_METRICS: dict[str, type[SetMetric]] = {
    "f1": F1,
    "mcc": MatthewsCorrelation,
    "balanced-accuracy": BalancedAccuracy,
}


def run_compile(args: argparse.Namespace) -> None:
    """Run the command `compile`: order or choose demos, save the program, and print the report.

    If --report is passed, also save the report. If --estimate is passed, only print the estimated cost.
    """
    for option, value in _selecting(args).items():
        if value is not None and not args.select:
            raise UserError(f"{option} needs --select, which is missing: pass --select, or omit {option}")
    _check_paths(args)
    if args.out is None and not args.estimate:
        raise UserError("--out is missing: pass a file for the compiled program, or pass --estimate")
    student = _named_program(args.program)
    program = _with_saved_state(student, args.demos)
    programs = _other_programs(args, student)
    metric = _named_metric(args.metric, program)
    examples = _examples(args, program)
    if args.out is not None:
        _check_saveable(program, examples["trainset"], programs, adds_demos=bool(args.select))
    optimizer = _optimizer(args, metric)
    data = {**examples, "programs": programs or None}
    with _language_model(args):
        if args.estimate:
            show(in_options(str(optimizer.estimate(program, **data)), args))
            return
        try:
            optimizer.compile(program, **data).save(args.out)
        finally:
            if optimizer.report is not None:
                if args.report is not None:
                    optimizer.report.save(args.report)
                show(optimizer.report.details())
    show(
        f"saved in {args.out}; to load the program in Python: plr_dspy.load_program(student, {str(args.out)!r})"
    )
    report = optimizer.report
    assert report is not None
    is_version = not report.returned.name or report.returned.name.endswith(".json")
    if is_version and not report.original_stays:
        show(
            "to check the program, run this command, with ROWS replaced by examples that no search has seen:\n"
            f"  {_check_command(args)}"
        )


def _check_command(args: argparse.Namespace) -> str:
    """Return the shell command that compares the original program with the compiled program."""
    options = {
        "--metric": args.metric,
        "--inputs": args.inputs,
        "--demos": args.demos,
        "--lm": args.lm,
        "--api-base": args.api_base and "URL",  # Hide the URL, because it may contain a key.
        "--api-key-env": args.api_key_env,
        "--max-tokens": args.max_tokens,
        "--adapter": args.adapter,
        "--threads": args.num_threads,
        "--programs": args.out,
        "--data": "ROWS",
    }
    words = ["plr-dspy", "evaluate", args.program]
    for option, value in options.items():
        if value is not None:
            values = value if isinstance(value, list) else [value]
            words += [option, *map(str, values)]
    return shlex.join(words)


def run_evaluate(args: argparse.Namespace) -> None:
    """Run the command `evaluate`: print the scores of a program, its saved versions and other programs."""
    student = _named_program(args.program)
    program = _with_saved_state(student, args.demos)
    programs = {args.program: program, **_other_programs(args, student)}
    metrics = {reference: _named_metric(reference, program) for reference in args.metric}
    devset = read_examples(args.data, args.inputs, program)
    metric = metrics if len(metrics) > 1 else metrics[args.metric[0]]
    options = _passed(args, {"num_threads", "log_dir", "accept_changes"})
    with _language_model(args):
        show(evaluate_programs(programs, metric, devset, **options))


def run_choose(args: argparse.Namespace) -> None:
    """Run the command `choose`: race programs and print the report.

    Save the report if --report is passed, and the chosen program if --out is passed. If
    --estimate is passed, only print the estimated cost.
    """
    _check_paths(args)
    student = _named_program(args.program)
    first = _with_saved_state(student, args.demos)
    programs = {args.program: first, **_other_programs(args, student)}
    metric = _named_metric(args.metric, first)
    examples = _examples(args, first)
    if args.out is not None:
        _check_json(programs.values())
    names = inspect.signature(choose_program).parameters.keys() - {"programs", "metric"}
    options = _passed(args, names)
    with _language_model(args):
        if args.estimate:
            show(in_options(str(estimate(choose_program, programs, metric, **examples, **options)), args))
            return
        choice = choose_program(programs, metric, **examples, **options)
    if args.report is not None:
        choice.report.save(args.report)
    if args.out is not None:
        choice.program.save(args.out)
    show(choice.report.details())
    show(f"chosen: {choice.name}")
    if args.out is not None:
        show(f"saved in {args.out}")


def _examples(args: argparse.Namespace, program: dspy.Module) -> dict[str, Any]:
    """Return the examples from --train and --val, keyed by "trainset" and "valset".

    Omit "valset" if --val is not passed.
    """
    paths = {"trainset": args.train, "valset": args.val}
    return {
        name: read_examples(path, args.inputs, program) for name, path in paths.items() if path is not None
    }


def _other_programs(args: argparse.Namespace, student: dspy.Module) -> dict[str, dspy.Module]:
    """Return the programs to compare with the first program, keyed by their references in `args`.

    Load saved programs into the student, not into the program from --demos. The latter may be
    calibrated, and could then load only calibrated programs.
    """
    programs: dict[str, dspy.Module] = {}
    for reference in args.programs:
        if reference == args.program or reference in programs:
            raise UserError(
                f"the programs must be distinct; got {reference!r} twice: pass each program once"
            )
        if Path(reference).suffix in SAVED_SUFFIXES:
            if not Path(reference).is_file():
                raise UserError(
                    f"file not found: {reference}: pass the path of a program saved with program.save"
                )
            programs[reference] = load_program(student, reference)
        else:
            programs[reference] = _named_program(reference, others=", or FILE.json of a saved program")
    return programs


def _passed(args: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """Return the arguments in `names`, keyed by name. Omit arguments that are None."""
    return {name: value for name, value in vars(args).items() if name in names and value is not None}


def _check_paths(args: argparse.Namespace) -> None:
    """Raise a UserError if --report and --out name the same file."""
    if args.out is None or args.report is None:
        return
    if Path(args.out).resolve() == Path(args.report).resolve():
        raise UserError(f"--report must differ from --out; got {args.report} for both: pass another file")


def _selecting(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the options that need --select, keyed by option."""
    return {
        "--max-demos": args.max_demos,
        "--instructions": args.instructions,
        "--prompt-model": args.prompt_model,
        "--num-instructions": args.num_instructions,
    }


def _optimizer(args: argparse.Namespace, metric: Metric) -> PLReorder | PLFewShot:
    optimizer_class = PLFewShot if args.select else PLReorder
    options = _passed(args, {field.name for field in fields(optimizer_class)} - {"metric", "demos"})
    if args.select:
        options["demos"] = args.select
    if args.instructions == ["propose"]:
        options["instructions"] = "propose"
    elif args.instructions and "propose" in args.instructions:
        raise UserError(
            f"propose must be the only value of --instructions; got {len(args.instructions)} values: pass either "
            "propose or your own instructions"
        )
    if args.prompt_model is not None:
        options["prompt_model"] = dspy.LM(args.prompt_model)
    return optimizer_class(metric, **options)


def _check_saveable(
    program: dspy.Module,
    trainset: list[dspy.Example],
    others: Mapping[str, dspy.Module],
    *,
    adds_demos: bool,
) -> None:
    """Raise a ValueError if a program, or an example that may become a demo, cannot be saved as JSON."""
    possible_demos = {}
    for name, predictor in program.named_predictors():
        if adds_demos or not predictor.demos:
            possible_demos[name] = trainset
    _check_json([program, ProgramFactory(program).build(possible_demos), *others.values()])


def _check_json(programs: Iterable[dspy.Module]) -> None:
    """Raise a ValueError if a program has a demo that JSON cannot store."""
    for obstacle in map(json_obstacle, programs):
        if obstacle:
            raise UserError(
                f"--out cannot be written, because {obstacle}: convert the value to plain data, such as text"
            )


def _named_metric(reference: str, program: dspy.Module) -> Metric:
    """Return the metric that a reference names. Metrics in `SET_METRICS` score the program's label output."""
    name, _, label = reference.partition(":")
    metric_class = SET_METRICS.get(name.lower())
    if metric_class is None:
        similar = difflib.get_close_matches(name.lower(), SET_METRICS, n=1, cutoff=0.8)
        if similar and not label:
            raise UserError(
                f"--metric {reference} is unknown: pass {similar[0]}, or FILE.py:NAME of your own metric"
            )
        metric: Metric = _named_object(reference, others=f", or {', '.join(SET_METRICS)} or f1:LABEL")
        if inspect.isclass(metric):
            raise UserTypeError(
                f"--metric {reference} is a class: write metric = {metric.__name__}(...) in a file, and pass "
                "FILE.py:metric"
            )
        return metric
    field = getattr(label_output(program), "name", None)
    if metric_class is F1:
        return F1(label or None, field=field)
    if label:
        raise UserError(f"--metric {name} takes no label; got {reference!r}: pass {name}")
    return metric_class(field=field)


@contextmanager
def _language_model(args: argparse.Namespace) -> Iterator[None]:
    """Within this context, make DSPy use the model and the adapter that the arguments name."""
    options: dict[str, Any] = {}
    if args.max_tokens is not None:
        options["max_tokens"] = args.max_tokens
    makes_calls = not getattr(args, "estimate", False)
    variable = args.api_key_env
    if makes_calls and variable is not None and args.lm != "local" and not os.environ.get(variable):
        raise UserError(
            f"--api-key-env needs a key, but the variable {variable!r} is not set, or is empty: set it to the API key"
        )
    adapter = args.adapter or ("plain" if args.lm == "local" else "chat")
    if args.lm == "local":
        if not makes_calls:
            options["start"] = False  # An estimate needs no server.
        model: AbstractContextManager[dspy.BaseLM] = local_lm(
            "completion" if adapter == "plain" else "chat", **options
        )
    elif adapter == "plain":
        if args.api_base is None:
            raise UserError(
                "--adapter plain needs a completions endpoint, but --api-base is missing: pass the address of the "
                "endpoint as --api-base, or pass another --adapter"
            )
        lm = completion_lm(args.lm, api_base=args.api_base, api_key_env=args.api_key_env, **options)
        model = nullcontext(lm)
    else:
        if args.api_base is not None:
            options["api_base"] = args.api_base
        if args.api_key_env is not None:
            options["api_key"] = os.environ.get(args.api_key_env)
        model = nullcontext(dspy.LM(args.lm, **options))
    with model as lm, dspy.context(lm=lm, adapter=ADAPTERS[adapter]()):
        yield


def _named_object(reference: str, *, others: str = "") -> Any:
    """Import and return the object that `reference` names.

    The object's file can import modules in its own folder. `others` describes other valid
    references, for error messages that say what to pass.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise UserError(f"{reference!r} names no object: pass FILE.py:NAME or MODULE:NAME{others}")
    file = Path(place).resolve() if place.endswith(".py") else None
    if file is not None and not file.is_file():
        raise UserError(f"file not found: {place}: pass FILE.py:NAME of an existing file{others}")
    module_name = place if file is None else file.stem
    if module_name not in sys.modules:
        sys.path.insert(0, str(Path.cwd() if file is None else file.parent))
    try:
        module = importlib.import_module(module_name)
        imported_file = str(getattr(module, "__file__", None))  # Built-in modules have no file.
        if file is not None and Path(imported_file).resolve() != file:
            raise UserError(
                f"{reference} cannot be loaded, because another module is also called {module_name}: rename the file"
            )
        return getattr(module, name)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # Importing and a module's __getattr__ run the user's code.
        raise UserError(
            f"{reference} cannot be loaded ({type(error).__name__}: {error}): pass FILE.py:NAME or MODULE:NAME"
            f"{others}, and check that Python can import the file or module"
        ) from error


def _named_program(reference: str, *, others: str = "") -> dspy.Module:
    """Return the DSPy module that a reference names, or that the named function returns.

    `others` is as in `_named_object`.
    """
    program = _named_object(reference, others=others)
    if callable(program) and not isinstance(program, dspy.Module):
        try:
            program = program()
        except Exception as error:  # The user's function may raise any exception.
            raise UserError(
                f"{reference} raised {type(error).__name__} ({error}): pass the name of a module, or of a function "
                "that returns one and needs no arguments"
            ) from error
    if not isinstance(program, dspy.Module):
        raise UserTypeError(
            f"program must be a DSPy module, or a function that returns one; got {program!r} from {reference}: pass "
            "the name of a module, or of a function that returns one"
        )
    return program


def _with_saved_state(student: dspy.Module, path: Path | None) -> dspy.Module:
    """Return the student with the state that is saved at `path`, or the student itself if `path` is None."""
    return student if path is None else load_program(student, path)
