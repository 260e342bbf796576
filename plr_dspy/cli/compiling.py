"""What `plr-dspy compile` runs, once its arguments are checked, and what these name."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import dspy

from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.lm.engines import completion_lm
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter
from plr_dspy.loading import load_program
from plr_dspy.local.server import local_lm
from plr_dspy.metrics import OVER_SETS, over_set
from plr_dspy.optimizer.fewshot import PLFewShot
from plr_dspy.optimizer.plreorder import PLReorder
from plr_dspy.programs.checks import json_obstacle

ADAPTERS = {"chat": dspy.ChatAdapter, "json": dspy.JSONAdapter, "plain": PlainTextAdapter}


def compile_program(args: argparse.Namespace) -> int:
    """Order the demos of a program, and save it with its report; with --estimate, say what that would cost."""
    name, _, label = args.metric.partition(":")
    if (name := name.lower()) in OVER_SETS:
        metric = getattr(over_set, OVER_SETS[name])(*filter(None, [label]))
    else:
        metric = named_object(args.metric, "metric")
    program = named_program(args.program)
    trainset = read_examples(args.train, args.inputs)
    valset = None if args.val is None else read_examples(args.val, args.inputs)
    if args.demos is not None:
        loaded = load_program(program, args.demos)
        program = loaded.program if isinstance(loaded, CalibratedProgram) else loaded
    if args.out.suffix == ".json" and (obstacle := json_obstacle(program)):
        raise ValueError(f"--out: {obstacle}")
    kind = PLFewShot if args.select else PLReorder
    names = {field.name for field in fields(kind)} - {"metric", "demos"}
    options = {name: value for name, value in vars(args).items() if name in names and value is not None}
    options |= {"demos": args.select} if args.select else {}
    optimizer = kind(metric, max_metric_calls=args.max_calls, num_threads=args.threads, **options)
    with _language_model(args) as lm, dspy.context(lm=lm, adapter=ADAPTERS[args.adapter]()):
        if args.estimate:
            print(optimizer.estimate(program, trainset=trainset, valset=valset))
            return 0
        try:
            optimizer.compile(program, trainset=trainset, valset=valset).save(args.out)
        finally:
            if optimizer.report is not None:
                if args.report is not None:
                    optimizer.report.save(args.report)
                print(optimizer.report.details())
    return 0


@contextlib.contextmanager
def _language_model(args: argparse.Namespace) -> Iterator[dspy.LM]:
    settings = {} if args.max_tokens is None else {"max_tokens": args.max_tokens}
    if args.lm == "local":
        with local_lm("completion" if args.adapter == "plain" else "chat", **settings) as lm:
            yield lm
    elif args.adapter == "plain":
        yield completion_lm(args.lm, api_base=args.api_base, api_key_env=args.api_key_env, **settings)
    else:
        key = None if args.api_key_env is None else os.environ[args.api_key_env]
        served = {name: value for name, value in (("api_base", args.api_base), ("api_key", key)) if value}
        yield dspy.LM(args.lm, **settings, **served)


def named_object(reference: str, what: str) -> Any:
    """The object that "FILE.py:NAME" or "MODULE:NAME" stands for; a file may import its neighbours, and runs once."""
    place, _, name = reference.rpartition(":")
    folder, module_name = Path.cwd(), place
    if place.endswith(".py"):
        path = Path(place).resolve()
        folder, module_name = path.parent, path.stem
        loaded = sys.modules.get(path.stem)
        if loaded is not None and getattr(loaded, "__file__", None) != str(path):
            raise ValueError(f"{what}: another module is called {path.stem!r}; give {path.name} another name")
    if module_name not in sys.modules:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ImportError(f"{place} cannot be imported: it raised {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise ValueError(f"{what}: {place} has no {name!r}")
    return getattr(module, name)


def named_program(reference: str) -> dspy.Module:
    """The module that a reference names, or that what it names makes."""
    named, wanted = named_object(reference, "program"), "program: expected a DSPy module, or what makes one"
    try:
        program = named() if callable(named) and not isinstance(named, dspy.Module) else named
    except Exception as error:
        raise TypeError(f"{wanted}; {reference} raised {type(error).__name__}: {error}") from error
    if not isinstance(program, dspy.Module):
        raise TypeError(f"{wanted}; {reference} gave {program!r}")
    return program


def read_examples(path: Path, inputs: Sequence[str]) -> list[dspy.Example]:
    """The examples of a file of JSON lines; JSON may hold others that `str.splitlines` takes for line ends."""
    examples = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} of {path} is no JSON ({error}): mend or remove it") from error
        missing = [name for name in inputs if not isinstance(fields, dict) or name not in fields]
        if missing:
            raise ValueError(
                f"line {number} of {path} must be an object with the inputs {list(inputs)}; it has no {missing}"
            )
        examples.append(dspy.Example(fields).with_inputs(*inputs))
    return examples
