"""The commands of `plr-dspy`: their arguments, their checks, and their exit codes.

What a command runs is imported when its arguments are checked: DSPy and torch take seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plr_dspy._version import __version__
from plr_dspy.compilation.plan import BUDGETS, SIGNALS
from plr_dspy.metrics import OVER_SETS
from plr_dspy.runtime.redaction import Redactor

USER_ERROR, FAILED, INTERRUPTED = 2, 1, 130
"""Exit codes: bad arguments or data; a program, a model or a machine that failed; Ctrl-C."""

OPTIONS = {
    "max_metric_calls": "--max-calls",
    "max_seconds": "--max-seconds",
    "max_cost": "--max-cost",
    "num_threads": "--threads",
    "max_demo_tokens": "--max-demo-tokens",
    "max_demos": "--max-demos",
    "log_dir": "--log-dir",
    "accept_changes=True": "--accept-changes",
    "num_inputs": "--max-calls",
    "devset": "--data",
    "trainset": "--train",
    "valset": "--val",
}
"""What the command calls the arguments that messages name."""

PACKAGE = Path(__file__).parents[1]

NAMED = "FILE.py:NAME or MODULE:NAME of "

METRIC = (
    f"{NAMED}metric(example, prediction); or f1:LABEL, f1 (the mean over labels), mcc, or balanced-accuracy, which are "
    "metrics over all examples"
)

EXAMPLE = """
example:
  plr-dspy compile app.py:program --metric app.py:accuracy --train train.jsonl --inputs question \\
      --lm openai/gpt-4o-mini --out program.json

app.py holds a DSPy module with demos (or --demos loads them from a file that an optimizer saved) and a metric;
train.jsonl an object for each example, such as {"question": "...", "answer": "..."}. --estimate says what it would
cost, and makes no call. With --log-dir, the same command goes on where it was stopped.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    output, errors = _Output(sys.stdout), _Output(sys.stderr)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            return _run(_parser().parse_args(arguments))
        finally:
            output.flush()
            errors.flush()


def _run(args: argparse.Namespace) -> int:
    """Run a command, and say in a line what ended it before its end."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        return int(args.run(args) or 0)
    except KeyboardInterrupt:
        folder = getattr(args, "log_dir", None)
        kept = f"; what was paid for is kept in {folder}" if folder else ", nothing is kept"
        print(f"plr-dspy: interrupted{kept}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if args.debug:
            raise
        # What a check of this package raised is the user's; what a program, a model or Python raised a failure.
        place = traceback.extract_tb(error.__traceback__)[-1]
        checked = Path(place.filename).is_relative_to(PACKAGE) and (place.line or "").startswith("raise")
        users = checked and isinstance(error, (ValueError, TypeError, ImportError))
        kind = "" if users else f"{type(error).__name__}: "
        said = Redactor([], variables=[getattr(args, "api_key_env", None)])(str(error))
        for argument, option in OPTIONS.items() if users else ():
            said = said.replace(argument, option)
        print(f"plr-dspy: {kind}{said}", file=sys.stderr)
        if not users:
            print("plr-dspy: --debug shows where", file=sys.stderr)
        return USER_ERROR if users else FAILED


class _Output:
    """A stream that goes nowhere once its reader is gone, as `head` goes: nothing that is printed then raises."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._do(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._do(self._stream.flush)

    def _do(self, action: Callable[..., Any], *arguments: Any) -> None:
        try:
            action(*arguments)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plr-dspy", description="Choose the few-shot demos of a DSPy program, and their order."
    )
    parser.add_argument("--version", action="version", version=f"plr-dspy {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_compile(commands)
    add = _add_command(
        commands, "calibrate", _calibrate, "take away how far a classifier leans to some labels"
    )
    add(
        "--train",
        type=Path,
        required=True,
        help="examples, as JSON lines; labels are used where they have some",
    )
    add(
        "--metric",
        help="f1:LABEL, f1, mcc or balanced-accuracy, where one of these decides instead of accuracy",
    )
    add("--max-calls", type=int, default=64, help="examples that are used, at most (default: 64)")
    add("--out", type=Path, required=True, help="the calibrated program (JSON)")
    add = _add_command(commands, "evaluate", _evaluate, "score the program and saved ones side by side")
    add("--metric", required=True, help=METRIC)
    add("--data", type=Path, required=True, help="examples that no optimizer has seen, as JSON lines")
    add("--programs", type=Path, nargs="+", default=[], help="saved programs (JSON) to score beside it")
    add = _add_command(commands, "predict", _predict, "answer the rows of a file")
    add("--data", type=Path, required=True, help="rows with the inputs, as JSON lines")
    add("--out", type=Path, required=True, help="the same rows with the answers, as JSON lines")
    report = commands.add_parser("report", help="print a saved report")
    report.add_argument("path", type=Path, help="a report, or a folder with report.json")
    report.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures instead")
    report.set_defaults(run=_report)
    return parser


def _add_command(commands: Any, name: str, run: Callable[..., int], what: str, **options: Any) -> Any:
    """Add a command that runs a program; returns what adds arguments to it."""
    parser = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", **options)
    add = parser.add_argument
    add("program", help=f"{NAMED}a DSPy module, or of what makes one")
    add("--inputs", nargs="+", required=True, help="names of the input fields")
    add("--demos", type=Path, help="a saved program (JSON), which is loaded first")
    add("--lm", required=True, help="litellm name, such as openai/gpt-4o-mini; or local")
    add("--api-base", help="address of the model's server")
    add("--api-key-env", help="environment variable that holds the key")
    add("--max-tokens", type=int, help="longest answer")
    add("--adapter", choices=["chat", "json", "plain"], default="chat", help="prompt format (default: chat)")
    add("--threads", type=int, help="calls under way at once")
    parser.set_defaults(run=run)
    return add


def _add_compile(commands: Any) -> None:
    what = "order the demos of a program by a metric, or choose them, and save the program"
    layout = argparse.RawDescriptionHelpFormatter
    add = _add_command(commands, "compile", _compile, what, epilog=EXAMPLE, formatter_class=layout)
    add("--metric", required=True, help=METRIC)
    add("--train", type=Path, required=True, help="examples, as JSON lines")
    add("--val", type=Path, help="examples of the final comparison (default: 20 %% of --train)")
    add("--out", type=Path, required=True, help="the program in its new order (JSON)")
    add("--report", type=Path, help="the report (JSON)")
    add("--auto", choices=[*BUDGETS, "paper"], default="light", help="budget (default: light)")
    add("--update", choices=["mle", "ema", "mixture"], default="mle", help="default: mle")
    learns = "what the search learns from a call: the metric's score alone, or the log-probabilities of labels as well"
    learns += " (default: auto, these where they come with the calls)"
    add("--signal", choices=SIGNALS, default="auto", help=learns)
    calibrated = "score orders by calibrated answers, and save a calibrated program (see docs/calibration.md)"
    add("--calibrate", action="store_true", help=calibrated)
    select = "choose the demos as well: which, how many, in what order, from those of the program, and labelled and"
    ways = "; auto and retrieved also find demos for each input"
    add(
        "--select",
        nargs="?",
        const="fixed",
        choices=["fixed", "auto", "retrieved"],
        help=f"{select} bootstrapped ones of --train{ways} (see docs/fewshot.md)",
    )
    add("--max-demos", type=int, help="with --select: demos of a predictor (default: 8)")
    add("--max-demo-tokens", type=int, help="with --select: tokens of all demos together")
    add("--max-calls", type=int, help="program calls at most, instead of --auto's")
    add("--max-seconds", type=float, help="no call begins later")
    add("--max-cost", type=float, help="US dollars that calls may cost, by litellm's prices")
    add("--seed", type=int, default=0, help="default: 0")
    add("--log-dir", type=Path, help="folder that keeps every finished call")
    accepted = "go on from --log-dir although code or arguments changed: its scores hold all the same"
    add("--accept-changes", action="store_true", help=accepted)
    add("--estimate", action="store_true", help="say what it would cost, and stop")


def _compile(args: argparse.Namespace) -> int:
    _check(args, "train", "val", "out", "report")
    if not args.select and (args.max_demos or args.max_demo_tokens):
        raise ValueError("--max-demos and --max-demo-tokens need --select")
    from plr_dspy.cli.compiling import compile_program

    return compile_program(args)


def _calibrate(args: argparse.Namespace) -> int:
    if args.metric is not None and args.metric.partition(":")[0].lower() not in OVER_SETS:
        raise ValueError(f"--metric must be f1:LABEL, f1, mcc or balanced-accuracy here; got {args.metric}")
    _check(args, "train", "out")
    from plr_dspy.cli.compiling import calibrate_program

    return calibrate_program(args)


def _evaluate(args: argparse.Namespace) -> int:
    _check(args, "data", *args.programs)
    from plr_dspy.cli.compiling import evaluate_saved

    return evaluate_saved(args)


def _predict(args: argparse.Namespace) -> int:
    _check(args, "data", "out")
    from plr_dspy.cli.compiling import predict_rows

    return predict_rows(args)


def _check(args: argparse.Namespace, *paths: str | Path) -> None:
    """Raise unless what the arguments name can be there: a metric, a program, a model, and files to read and write."""
    metric = getattr(args, "metric", None) or ""
    name, colon, label = metric.partition(":")
    name = name.lower()
    if name == "f1" and colon and not label:
        raise ValueError(f"metric: expected f1:LABEL, or f1 for the mean over labels; got {metric!r}")
    if label and name in OVER_SETS and name != "f1":
        raise ValueError(
            f"metric: {name} is about all labels; got {metric!r}: leave the label out, or pass f1:{label}"
        )
    for what in ["program"] if name in OVER_SETS or not metric else ["metric", "program"]:
        place, _, name = (reference := getattr(args, what)).rpartition(":")
        if not place or not name:
            raise ValueError(f"{what}: expected FILE.py:NAME or MODULE:NAME; got {reference!r}")
        if place.endswith(".py"):
            _check_file(Path(place), what)
    for each in ("demos", *paths):
        path = getattr(args, each) if isinstance(each, str) else each
        if each in ("out", "report"):
            _check_parents(path)
        else:
            _check_file(path, f"--{each}" if isinstance(each, str) else "--programs")
    if "train" in paths and args.out.suffix not in (".json", ".pkl"):
        raise ValueError(f"--out must end in .json or .pkl; got {args.out}")
    if args.lm != "local":
        if args.api_key_env is not None and not os.environ.get(args.api_key_env):
            raise ValueError(f"--api-key-env: the variable {args.api_key_env} is not set")
        if args.adapter == "plain" and args.api_base is None:
            raise ValueError("--api-base: plain prompts go to a completions endpoint; pass its address")


def _report(args: argparse.Namespace) -> int:
    path = args.path / "report.json" if args.path.is_dir() else args.path
    _check_file(path, "report")
    _check_parents(args.html)
    from plr_dspy.report.data import Report

    report = Report.load(path)
    if args.html is None:
        print(report.details())
    else:
        report.to_html(args.html)
    return 0


def _check_file(path: Path | None, what: str) -> None:
    """Raise unless a file is there, or none was named."""
    if path is not None and not path.is_file():
        raise ValueError(f"{what}: no file {path}")


def _check_parents(*paths: Path | None) -> None:
    """Raise unless the folders of all files that were named are there."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"no folder {path.parent}: make it first")
