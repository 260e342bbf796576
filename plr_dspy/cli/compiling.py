"""What the commands of `plr-dspy` run once their arguments are checked."""

import argparse
import contextlib
import importlib
import os
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import dspy

from plr_dspy.cli.examples import read_examples
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.evaluation import evaluate_programs, load_program
from plr_dspy.labels.outputs import label_output
from plr_dspy.lm.engines import completion_lm
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter
from plr_dspy.local import local_lm
from plr_dspy.metrics import OVER_SETS, confusion
from plr_dspy.optimizer.fewshot import PLFewShot
from plr_dspy.optimizer.plreorder import PLReorder
from plr_dspy.programs.checks import PICKLE, json_obstacle
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.report.text import KEEP

ADAPTERS = {"chat": dspy.ChatAdapter, "json": dspy.JSONAdapter, "plain": PlainTextAdapter}


def run_compile(args: argparse.Namespace) -> None:
    """Order or choose the demos of a program, and save it with its report; with --estimate, print the cost alone."""
    program = _named_program(args.program, args.demos)
    metric = _named_metric(args.metric, program)
    trainset = read_examples(args.train, args.inputs, program)
    valset = None
    if args.val is not None:
        valset = read_examples(args.val, args.inputs, program)
    if args.out is not None:
        _check_saveable(program, trainset, adds_demos=bool(args.select))
    optimizer = _optimizer(args, metric)
    with _language_model(args):
        if args.estimate:
            print(optimizer.estimate(program, trainset=trainset, valset=valset))
            return
        next_step = KEEP
        try:
            compiled = optimizer.compile(program, trainset=trainset, valset=valset)
            _save(compiled, args.out)
            next_step = f"it is kept in {args.out}; load it: plr_dspy.load_program(student, {str(args.out)!r})"
        finally:
            if optimizer.report is not None:
                if args.report is not None:
                    optimizer.report.save(args.report)
                print(optimizer.report.details().replace(KEEP, next_step))


def run_evaluate(args: argparse.Namespace) -> None:
    """Print the scores of a program and of saved ones."""
    program = _named_program(args.program, args.demos)
    programs = {args.program: program}
    for path in args.programs:
        programs[str(path)] = _named_program(args.program, path)
    with _language_model(args):
        metrics = {reference: _named_metric(reference, program) for reference in args.metric}
        devset = read_examples(args.data, args.inputs, program)
        metric = metrics if len(metrics) > 1 else metrics[args.metric[0]]
        print(evaluate_programs(programs, metric, devset, num_threads=args.threads))


def _optimizer(args: argparse.Namespace, metric: Any) -> PLReorder | PLFewShot:
    """Return the optimizer with the options of the command line."""
    optimizer_class = PLFewShot if args.select else PLReorder
    names = {field.name for field in fields(optimizer_class)} - {"metric", "demos"}
    options = {name: value for name, value in vars(args).items() if name in names and value is not None}
    if args.select:
        options["demos"] = args.select
    return optimizer_class(metric, max_metric_calls=args.max_calls, num_threads=args.threads, **options)


def _check_saveable(program: dspy.Module, trainset: list[dspy.Example], *, adds_demos: bool) -> None:
    """Raise unless JSON can hold the program, and each row that may become one of its demos."""
    possible_demos = {}
    for name, predictor in program.named_predictors():
        if adds_demos or not predictor.demos:
            possible_demos[name] = trainset
    obstacle = json_obstacle(program) or json_obstacle(ProgramFactory(program).build(possible_demos))
    if obstacle:
        raise UserError(f"--out: {obstacle}")


def _save(program: dspy.Module, path: Path) -> None:
    """Save a program through a temporary file, so that an interrupt leaves the old file as it was."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        program.save(temporary)
        os.replace(temporary, path)


def _named_metric(reference: str, program: dspy.Module) -> Any:
    """Return the metric of a reference; a metric over a set gets the field of the program's label."""
    name, _, label = reference.partition(":")
    name = name.lower()
    if name not in OVER_SETS:
        return _named_object(reference, "metric")
    metric_class = getattr(confusion, OVER_SETS[name])
    field = getattr(label_output(program), "name", None)
    if label:
        return metric_class(label, field=field)
    return metric_class(field=field)


def _language_model(args: argparse.Namespace) -> contextlib.ExitStack:
    """Return a context in which DSPy uses the named model and adapter."""
    stack = contextlib.ExitStack()
    options: dict[str, Any] = {}
    if args.max_tokens is not None:
        options["max_tokens"] = args.max_tokens
    if args.lm == "local":
        lm = stack.enter_context(local_lm("completion" if args.adapter == "plain" else "chat", **options))
    elif args.adapter == "plain":
        lm = completion_lm(args.lm, api_base=args.api_base, api_key_env=args.api_key_env, **options)
    else:
        if args.api_base:
            options["api_base"] = args.api_base
        if args.api_key_env is not None:
            options["api_key"] = os.environ[args.api_key_env]
        lm = dspy.LM(args.lm, **options)
    stack.enter_context(dspy.context(lm=lm, adapter=ADAPTERS[args.adapter]()))
    return stack


def _named_object(reference: str, argument: str) -> Any:
    """Return the object of a reference; a file can import its neighbours, and runs only once."""
    place, _, name = reference.rpartition(":")
    folder = Path.cwd()
    module_name = place
    if place.endswith(".py"):
        path = Path(place).resolve()
        folder = path.parent
        module_name = path.stem
        loaded = sys.modules.get(module_name)
        if loaded is not None and getattr(loaded, "__file__", None) != str(path):
            raise UserError(f"{argument}: another module is called {path.stem!r}; give {path.name} another name")
    if module_name not in sys.modules:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise UserError(f"{place} cannot be imported: it raised {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UserError(f"{argument}: {place} has no {name!r}")
    return getattr(module, name)


def _named_program(reference: str, saved: Path | None) -> dspy.Module:
    """Return the module of a reference, or what its function returns, with the state of the saved file."""
    program = _named_object(reference, "program")
    expected = "program: expected a DSPy module, or a function that returns one"
    if callable(program) and not isinstance(program, dspy.Module):
        try:
            program = program()
        except Exception as error:
            raise UserTypeError(f"{expected}; {reference} raised {type(error).__name__}: {error}") from error
    if not isinstance(program, dspy.Module):
        raise UserTypeError(f"{expected}; {reference} gave {program!r}")
    if saved is None:
        return program
    if saved.suffix == PICKLE:
        raise UserError(
            f"{saved} is a pickle, which can run code when it is loaded: save the program as JSON, with "
            "program.save('program.json')"
        )
    return load_program(program, saved)
