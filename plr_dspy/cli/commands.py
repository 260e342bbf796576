"""The commands of `plr-dspy`: their arguments, and their exit codes. It imports nothing slow."""

import argparse
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plr_dspy._version import __version__
from plr_dspy.compilation.plan import BUDGETS, SIGNALS
from plr_dspy.errors import USER_ERRORS, UserError
from plr_dspy.metrics import OVER_SETS
from plr_dspy.runtime import Redactor, Unfailing

# Exit codes: bad arguments or data; a program, a model or a machine that failed; Ctrl-C.
USER_ERROR, FAILED, INTERRUPTED = 2, 1, 130

OPTIONS = {  # what the command calls the arguments that messages name, where it has other names for them
    "max_metric_calls": "--max-calls",
    "num_threads": "--threads",
    "accept_changes=True": "--accept-changes",
    "calibrate=True": "--calibrate",
    "demos='auto'": "--select auto",
    "num_inputs": "--max-calls",
    "devset": "--data",
    "trainset": "--train",
    "valset": "--val",
}

METRIC = """FILE.py:NAME or MODULE:NAME of metric(example, prediction); or f1:LABEL, f1 (the mean over labels), mcc, or
balanced-accuracy, which are metrics over all examples"""

EXAMPLE = """
example:
  plr-dspy compile app.py:program --metric app.py:accuracy --train train.jsonl --inputs question \\
      --lm openai/gpt-4o-mini --out program.json

app.py holds a DSPy module with demos (or --demos loads them from a file that an optimizer saved) and a metric;
train.jsonl an object for each example, such as {"question": "...", "answer": "..."}, or it is a .csv with a header.
--estimate says what it would cost, and makes no call. With --log-dir, the same command goes on where it was stopped.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code, or exits with 2 where the arguments are refused."""
    with contextlib.ExitStack() as stack:
        for redirect, stream in ((contextlib.redirect_stdout, sys.stdout), (contextlib.redirect_stderr, sys.stderr)):
            stack.callback(stack.enter_context(redirect(_Output(stream))).flush)
        return _run(_parser().parse_args(arguments))


class _Output(Unfailing):
    """What is printed, with "?" for what the stream has no character for. Once its reader is gone, as `head` goes, it
    is the null device for the whole process, which flushes it at its end."""

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self.flush(text.encode(encoding, "replace").decode(encoding))
        return len(text)

    def flush(self, text: str | None = None) -> None:
        try:
            _ = self._stream.flush() if text is None else self._stream.write(text)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def _run(args: argparse.Namespace) -> int:
    """Run a command, and say in a line what ended it before its end."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        if args.command == "report":
            from plr_dspy.report.report import Report

            report = Report.load(args.path)
            if args.html is None:
                print(report.details())
            else:
                report.to_html(args.html)
                print(f"the page is {args.html}")
        else:
            if args.adapter is None:
                args.adapter = "plain" if args.lm == "local" else "chat"
            _check_together(args)
            from plr_dspy.cli import compiling

            getattr(compiling, f"run_{args.command}")(args, compiling.named_program(args.program, args.demos))
        return 0
    except KeyboardInterrupt:
        folder = getattr(args, "log_dir", None)
        kept = f"; what was paid for is kept in {folder}" if folder else ""
        print(f"plr-dspy: interrupted{kept}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if args.debug:
            raise
        full_message = " ".join([str(error), *getattr(error, "__notes__", ())])
        message = Redactor([], variables=[getattr(args, "api_key_env", None)])(full_message)
        if isinstance(error, USER_ERRORS):
            alike = {name: f"--{name.replace('_', '-')}" for name in vars(args) if "_" in name}
            for argument, option in (OPTIONS | alike).items():
                message = message.replace(argument, option)
            message = re.sub(r"\b(signal|update|auto)='(\w+)'", r"--\1 \2", message)
            print(f"plr-dspy: {message}", file=sys.stderr)
            return USER_ERROR
        print(f"plr-dspy: {type(error).__name__}: {message}", file=sys.stderr)
        print("plr-dspy: --debug shows where", file=sys.stderr)
        return FAILED


def _check_together(args: argparse.Namespace) -> None:
    """Raise unless the arguments go together, as far as that can be told without loading anything."""
    if args.command == "compile" and not args.select and (args.max_demos or args.max_demo_tokens):
        raise UserError("--max-demos and --max-demo-tokens need --select")
    if args.command == "compile" and args.out is None and not args.estimate:
        raise UserError("--out: name the file for the program, or pass --estimate")
    if args.command == "predict" and args.out.suffix.lower() == ".csv":
        raise UserError("--out: predictions are written as JSON lines; name a file that ends in .jsonl")
    if args.lm == "local":
        return
    if args.api_key_env is not None and not os.environ.get(args.api_key_env):
        raise UserError(f"--api-key-env: the variable {args.api_key_env} is not set")
    if args.adapter == "plain" and args.api_base is None:
        raise UserError("--api-base: plain prompts go to a completions endpoint; pass its address")


def _parser() -> argparse.ArgumentParser:
    """Make the parser. What it names must be there: files to read, and the folders of files to write."""
    parser = argparse.ArgumentParser(
        prog="plr-dspy", description="Choose the few-shot demos of a DSPy program, and their order."
    )
    parser.add_argument("--version", action="version", version=f"plr-dspy {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    new_program = partial(_new_file, suffix=".json")

    add = _add_command(
        commands,
        "compile",
        "order the demos of a program by a metric, or choose them, and save the program",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add("--metric", type=_metric, required=True, help=METRIC)
    add("--train", type=_file, required=True, help="examples: JSON lines, or a .csv")
    add("--val", type=_file, help="examples of the final comparison (default: 20 %% of --train)")
    add("--out", type=new_program, help="the program in its new order (JSON); needed without --estimate")
    add("--report", type=_new_file, help="the report (JSON)")
    add("--auto", choices=[*BUDGETS, "paper"], default="light", help="budget (default: light)")
    add("--update", choices=["mle", "ema", "mixture"], default="mle", help="default: mle")
    learns = "learn from scores alone, or from log-probabilities of labels as well (default: auto, where they come)"
    add("--signal", choices=SIGNALS, default="auto", help=learns)
    add("--calibrate", action="store_true", help="score calibrated answers, and save a calibrated program")
    add(
        "--select",
        nargs="?",
        const="fixed",
        choices=["fixed", "auto", "retrieved"],
        help="choose the demos as well: which, how many, in what order, from those of the program, and labelled and "
        "bootstrapped ones of --train; auto and retrieved also find demos for each input (see docs/fewshot.md)",
    )
    add("--max-demos", type=int, help="with --select: demos of a predictor (default: 8)")
    add("--max-demo-tokens", type=int, help="with --select: tokens of all demos together")
    add("--max-calls", type=int, help="program calls at most, instead of --auto's")
    add("--max-seconds", type=float, help="no call begins later")
    add("--max-cost", type=float, help="US dollars that calls may cost, by litellm's prices")
    add("--seed", type=int, default=0, help="default: 0")
    add("--log-dir", type=Path, help="folder that keeps every finished call")
    accepted = "go on from --log-dir though code or arguments changed: its scores hold all the same"
    add("--accept-changes", action="store_true", help=accepted)
    add("--estimate", action="store_true", help="say what it would cost, and stop")

    add = _add_command(commands, "calibrate", "take away how far a classifier leans to some labels")
    add("--train", type=_file, required=True, help="examples: JSON lines, or a .csv; their labels are used, if any")
    add("--metric", type=_set_metric, help="f1:LABEL, f1, mcc or balanced-accuracy, in place of accuracy")
    add("--max-calls", type=int, default=64, help="examples that are used, at most (default: 64)")
    add("--out", type=new_program, required=True, help="the calibrated program (JSON)")

    add = _add_command(commands, "evaluate", "score the program and saved ones side by side")
    several = f"{METRIC}. Several, one after the other, score the same answers"
    add("--metric", type=_metric, nargs="+", action="extend", required=True, help=several)
    add("--data", type=_file, required=True, help="examples that no optimizer has seen: JSON lines, or a .csv")
    add("--programs", type=_file, nargs="+", default=[], help="saved programs (JSON) to score beside it")

    add = _add_command(commands, "predict", "answer the rows of a file")
    add("--data", type=_file, required=True, help="rows with the inputs: JSON lines, or a .csv")
    add("--out", type=_new_file, required=True, help="the same rows with the answers, as JSON lines")

    report = commands.add_parser("report", help="print a saved report")
    report_file = partial(_file, within="report.json")
    report.add_argument("path", type=report_file, help="a report, or a folder with report.json")
    report.add_argument("--html", type=_new_file, metavar="FILE", help="write a page with the figure instead")
    return parser


def _add_command(commands: Any, name: str, what: str, **options: Any) -> Callable[..., Any]:
    """Add a command that runs a program; returns what adds arguments to it."""
    description, usage = f"{what[0].upper()}{what[1:]}.", f"plr-dspy {name} program [options], see --help"
    parser = commands.add_parser(name, usage=usage, help=what, description=description, **options)
    add: Callable[..., Any] = parser.add_argument
    add("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # here, too
    add("program", type=_reference, help="FILE.py:NAME or MODULE:NAME of a DSPy module, or of what makes one")
    add("--inputs", nargs="+", required=True, help="names of the input fields")
    add("--demos", type=_file, help="a saved program (JSON), which is loaded first")
    add("--lm", required=True, help="litellm name, such as openai/gpt-4o-mini; or local")
    add("--api-base", help="address of the model's server")
    add("--api-key-env", help="environment variable that holds the key")
    add("--max-tokens", type=int, help="longest answer")
    formats = "prompt format (default: chat, or plain with --lm local)"
    add("--adapter", choices=["chat", "json", "plain"], help=formats)
    add("--threads", type=int, help="calls under way at once")
    return add


def _file(text: str, within: str = "") -> Path:
    path = Path(text) / within if os.path.isdir(text) else Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no file {path}")
    return path


def _new_file(text: str, suffix: str = "") -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {path.parent}: make it first")
    if suffix and path.suffix != suffix:
        raise argparse.ArgumentTypeError(f"must end in {suffix}; got {text}")
    return path


def _reference(text: str) -> str:
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise argparse.ArgumentTypeError(f"expected FILE.py:NAME or MODULE:NAME; got {text!r}")
    if place.endswith(".py"):
        _file(place)
    return text


def _metric(text: str) -> str:
    return _set_metric(text) if text.partition(":")[0].lower() in OVER_SETS else _reference(text)


def _set_metric(text: str) -> str:
    name, colon, label = text.partition(":")
    if name.lower() not in OVER_SETS or (colon and not (name.lower() == "f1" and label)):
        raise argparse.ArgumentTypeError(
            f"expected f1:LABEL, or f1, mcc or balanced-accuracy, which are about all labels; got {text!r}"
        )
    return text
