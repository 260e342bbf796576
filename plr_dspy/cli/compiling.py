"""What the commands of `plr-dspy` run, once their arguments are checked, and what these name."""

import argparse
import contextlib
import csv
import importlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import dspy
from dspy.adapters.utils import parse_value

from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.evaluation import Answers, evaluate_programs, load_program
from plr_dspy.labels.batch_calibration import BatchCalibration
from plr_dspy.labels.outputs import label_output
from plr_dspy.lm.engines import completion_lm
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter
from plr_dspy.local import local_lm
from plr_dspy.metrics import OVER_SETS, confusion
from plr_dspy.optimizer.fewshot import PLFewShot
from plr_dspy.optimizer.plreorder import PLReorder
from plr_dspy.programs.checks import PICKLE, check_given, json_obstacle, shown
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.report.text import KEEP, count
from plr_dspy.runtime import as_json, progress_bar, write_atomically

ADAPTERS = {"chat": dspy.ChatAdapter, "json": dspy.JSONAdapter, "plain": PlainTextAdapter}


def run_compile(args: argparse.Namespace, program: dspy.Module) -> None:
    """Order the demos of a program, and save it with its report; with --estimate, say what that would cost."""
    metric = _named_metric(args.metric, program)
    trainset = _read_examples(args.train, args.inputs, program)
    valset = None if args.val is None else _read_examples(args.val, args.inputs, program)
    if args.out is not None:
        # Rows may become demos, which are saved with all that they hold.
        rows = {name: trainset for name, each in program.named_predictors() if args.select or not each.demos}
        if obstacle := json_obstacle(program) or json_obstacle(ProgramFactory(program).build(rows)):
            raise UserError(f"--out: {obstacle}")
    kind = PLFewShot if args.select else PLReorder
    names = {field.name for field in fields(kind)} - {"metric", "demos"}
    options = {name: value for name, value in vars(args).items() if name in names and value is not None}
    options |= {"demos": args.select} if args.select else {}
    optimizer = kind(metric, max_metric_calls=args.max_calls, num_threads=args.threads, **options)
    with _language_model(args):
        if args.estimate:
            print(optimizer.estimate(program, trainset=trainset, valset=valset))
            return
        saved = KEEP
        try:
            _save(optimizer.compile(program, trainset=trainset, valset=valset), args.out)
            saved = f"it is kept in {args.out}; load it: plr_dspy.load_program(student, {str(args.out)!r})"
        finally:
            if optimizer.report is not None:
                if args.report is not None:
                    optimizer.report.save(args.report)
                print(optimizer.report.details().replace(KEEP, saved))


def run_calibrate(args: argparse.Namespace, program: dspy.Module) -> None:
    """Calibrate a program, save it, and print what was compared."""
    metric = None if args.metric is None else _named_metric(args.metric, program)
    if obstacle := json_obstacle(program):
        raise UserError(f"--out: {obstacle}")
    optimizer = BatchCalibration(num_inputs=args.max_calls, metric=metric, num_threads=args.threads)
    trainset = _read_examples(args.train, args.inputs, program)
    with _language_model(args):
        calibrated = optimizer.compile(program, trainset=trainset)
    _save(calibrated, args.out)
    print(optimizer.report)
    print(f"the program is {args.out}")


def run_evaluate(args: argparse.Namespace, program: dspy.Module) -> None:
    """Print what a program scores, and saved ones beside it."""
    programs = {args.program: program}
    programs |= {str(path): named_program(args.program, path) for path in args.programs}
    with _language_model(args):
        metrics = {reference: _named_metric(reference, program) for reference in args.metric}
        devset = _read_examples(args.data, args.inputs, program)
        metric = metrics if len(metrics) > 1 else metrics[args.metric[0]]
        print(evaluate_programs(programs, metric, devset, num_threads=args.threads))


def run_predict(args: argparse.Namespace, program: dspy.Module) -> None:
    """Write the rows of a file with their predictions, or with what left them without one."""
    rows = _read_examples(args.data, args.inputs, program)
    work, lines = Answers(program, {}, rows), list[bytes]()
    try:
        with _language_model(args), progress_bar(len(rows), display=True, title="predict") as bar:
            check_given(program, name="program", to_order=False, devset=rows)
            work.ask(num_threads=args.threads, max_errors=len(rows), on_cell=bar.update)
    finally:
        if cells := {example: cell for (_, example), cell in work.log.records.items()}:  # what was paid for
            num_told = 0
            for number, (row, answer) in enumerate(zip(rows, work.predictions, strict=True)):
                told = answer.toDict() if isinstance(answer, dspy.Prediction) else answer
                line = {**row.toDict(), "prediction": told}
                line.pop("error", None)  # of an earlier answer
                if (cell := cells.get(number)) is None or cell.error:
                    line["error"] = "no call was made" if cell is None else f"{cell.error}: {cell.message}"
                num_told += "error" not in line
                lines.append(as_json(line) + b"\n")
            write_atomically(args.out, b"".join(lines))
            print(f"{count(num_told, 'prediction')} in {args.out}, of {count(len(cells), 'call')}")
            if without := len(rows) - num_told:
                print(f"{count(without, 'row')} without a prediction: each has the error", file=sys.stderr)


def _save(program: dspy.Module, path: Path) -> None:
    """Save a program; whatever ends it, a file that was there is as it was, or whole."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        program.save(Path(folder) / path.name)
        os.replace(Path(folder) / path.name, path)


def _named_metric(reference: str, program: dspy.Module) -> Any:
    """The metric that a reference, or a name of one over a set, stands for; the latter is about the program's label."""
    name, _, label = reference.partition(":")
    if (name := name.lower()) not in OVER_SETS:
        return _named_object(reference, "metric")
    output = label_output(program)
    return getattr(confusion, OVER_SETS[name])(*filter(None, [label]), field=getattr(output, "name", None))


def _language_model(args: argparse.Namespace) -> contextlib.ExitStack:
    """The context in which the model and the adapter that are named are used."""
    settings, stack = {} if args.max_tokens is None else {"max_tokens": args.max_tokens}, contextlib.ExitStack()
    if args.lm == "local":
        lm = stack.enter_context(local_lm("completion" if args.adapter == "plain" else "chat", **settings))
    elif args.adapter == "plain":
        lm = completion_lm(args.lm, api_base=args.api_base, api_key_env=args.api_key_env, **settings)
    else:
        key = None if args.api_key_env is None else os.environ[args.api_key_env]
        served = {name: value for name, value in (("api_base", args.api_base), ("api_key", key)) if value}
        lm = dspy.LM(args.lm, **settings, **served)
    stack.enter_context(dspy.context(lm=lm, adapter=ADAPTERS[args.adapter]()))
    return stack


def _named_object(reference: str, what: str) -> Any:
    """The object that "FILE.py:NAME" or "MODULE:NAME" stands for; a file may import its neighbours, and runs once."""
    place, _, name = reference.rpartition(":")
    folder, module_name = Path.cwd(), place
    if place.endswith(".py"):
        path = Path(place).resolve()
        folder, module_name = path.parent, path.stem
        loaded = sys.modules.get(path.stem)
        if loaded is not None and getattr(loaded, "__file__", None) != str(path):
            raise UserError(f"{what}: another module is called {path.stem!r}; give {path.name} another name")
    if module_name not in sys.modules:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise UserError(f"{place} cannot be imported: it raised {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UserError(f"{what}: {place} has no {name!r}")
    return getattr(module, name)


def named_program(reference: str, saved: Path | None) -> dspy.Module:
    """The module that a reference names, or that what it names makes, as a file holds it where one is given."""
    named, wanted = _named_object(reference, "program"), "program: expected a DSPy module, or what makes one"
    try:
        program = named() if callable(named) and not isinstance(named, dspy.Module) else named
    except Exception as error:
        raise UserTypeError(f"{wanted}; {reference} raised {type(error).__name__}: {error}") from error
    if not isinstance(program, dspy.Module):
        raise UserTypeError(f"{wanted}; {reference} gave {program!r}")
    if saved is None:
        return program
    if saved.suffix == PICKLE:
        raise UserError(
            f"{saved} is a pickle, which can run code when it is loaded: save the program as JSON, with "
            "program.save('program.json')"
        )
    return load_program(program, saved)


def _read_examples(path: Path, inputs: Sequence[str], program: dspy.Module) -> list[dspy.Example]:
    """The examples of a file of JSON lines, or of CSV with a header, for a program."""
    signatures, examples = [each.signature for _, each in program.named_predictors()], []
    kinds = {name: field.annotation for each in signatures for name, field in each.fields.items()}
    for number, row in _csv_rows(path) if path.suffix.lower() == ".csv" else _json_lines(path):
        if missing := [name for name in inputs if not isinstance(row, dict) or name not in row]:
            found = f"it has {list(row)}" if isinstance(row, dict) else f"it is {shown(row)}"
            needs = f"line {number} of {path} must be an object with the inputs {list(inputs)}"
            raise UserError(f"{needs}, and lacks {missing}; {found}")
        for name in kinds.keys() - row.keys():
            if alike := [each for each in row if each.casefold() == name.casefold()]:
                raise UserError(f"line {number} of {path} has {alike[0]!r}, and the program {name!r}: use one name")
        for name in {each for each in kinds if row.get(each) is not None and kinds[each] is not str}:
            with contextlib.suppress(ValueError):  # What is of no such type is told as it is.
                row[name] = parse_value(row[name], kinds[name])
        examples.append(dspy.Example(row).with_inputs(*inputs))
    if not examples:
        raise UserError(f"{path} holds no example")
    return examples


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Each line by its number; JSON may hold other characters that `str.splitlines` takes for line ends."""
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise UserError(
                f"line {number} of {path} is no JSON ({error}): mend or remove it, or pass a file with an object of "
                "JSON on each line, or a .csv with a header"
            ) from error


def _csv_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Each row by the number of its last line."""
    content = path.read_bytes()
    csv.field_size_limit(2**31 - 1)  # what a C long holds everywhere
    try:
        lines = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header = [name.strip() for name in next(lines, [])]
        if len(set(header)) < len(header):
            raise UserError(f"two columns have the same name, in {header}")
        if len(header) == 1 and (other := set(header[0]) & set(";\t|")):
            raise UserError(f"commas must come between cells, and not {other.pop()!r}")
        for cells in filter(None, lines):
            if len(cells) != len(header):
                raise UserError(f"{len(cells)} cells, and {len(header)} in the header: quote those with commas")
            yield lines.line_num, dict(zip(header, cells, strict=True))
    except (ValueError, csv.Error) as error:
        number = content[: error.start].count(b"\n") + 1 if isinstance(error, UnicodeDecodeError) else lines.line_num
        raise UserError(f"line {number} of {path} cannot be read as CSV in UTF-8: {error}") from error
