"""The commands of `plr-dspy`: their arguments, and their exit codes. It imports nothing slow."""

import argparse
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plr_dspy._version import __version__
from plr_dspy.compilation.plan import BUDGETS, SIGNALS
from plr_dspy.errors import USER_ERRORS, UserError
from plr_dspy.metrics import OVER_SETS
from plr_dspy.runtime import Redactor, Unfailing

USER_ERROR = 2
"""Exit code: an argument or a file is refused."""
FAILED = 1
"""Exit code: the program, the metric, the model or the machine failed."""
INTERRUPTED = 130
"""Exit code: the user pressed Ctrl-C."""

OPTIONS = {
    "max_metric_calls": "--max-calls",
    "num_threads": "--threads",
    "accept_changes=True": "--accept-changes",
    "calibrate=True": "--calibrate",
    "demos='auto'": "--select auto",
    "devset": "--data",
    "trainset": "--train",
    "valset": "--val",
}
"""What the command line calls the arguments that messages of the package name."""

METRIC = (
    "FILE.py:NAME or MODULE:NAME of metric(example, prediction); or a metric over all examples: f1:LABEL, f1 (the mean "
    "over labels), mcc or balanced-accuracy"
)

EXAMPLE = """
example:
  plr-dspy compile app.py:program --metric app.py:accuracy --train train.jsonl --inputs question \\
      --lm openai/gpt-4o-mini --out program.json

app.py contains a DSPy module with demos and a metric; --demos loads the demos from a saved program instead.
train.jsonl contains one object per line, such as {"question": "...", "answer": "..."}; a .csv with a header works too.
--estimate prints the cost and makes no call. With --log-dir, the same command continues where it was stopped.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; exit with 2 if the arguments are refused."""
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(contextlib.redirect_stdout(_Output(sys.stdout)))
        stack.callback(output.flush)
        errors = stack.enter_context(contextlib.redirect_stderr(_Output(sys.stderr)))
        stack.callback(errors.flush)
        return _run(_parser().parse_args(arguments))


class _Output(Unfailing):
    """A stream that writes "?" for characters that it lacks.

    If its reader is gone, as after `| head`, the null device takes its place for the whole process, because Python
    flushes the stream at its end.
    """

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        with self._null_device_if_closed():
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        with self._null_device_if_closed():
            self._stream.flush()

    @contextlib.contextmanager
    def _null_device_if_closed(self) -> Any:
        try:
            yield
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def _run(args: argparse.Namespace) -> int:
    """Run a command, and print one line about what ended it early."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        args.run(args)
    except KeyboardInterrupt:
        log_dir = getattr(args, "log_dir", None)
        kept = f"; finished calls are kept in {log_dir}" if log_dir else ""
        print(f"plr-dspy: interrupted{kept}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if args.debug:
            raise
        full_message = " ".join([str(error), *getattr(error, "__notes__", ())])
        message = Redactor([], variables=[getattr(args, "api_key_env", None)])(full_message)
        if isinstance(error, USER_ERRORS):
            print(f"plr-dspy: {_with_options(message, args)}", file=sys.stderr)
            return USER_ERROR
        print(f"plr-dspy: {type(error).__name__}: {message}", file=sys.stderr)
        print("plr-dspy: --debug shows where", file=sys.stderr)
        return FAILED
    return 0


def _run_report(args: argparse.Namespace) -> None:
    """Print a saved report, or write it as a page."""
    from plr_dspy.report.report import Report

    report = Report.load(args.path)
    if args.html is None:
        print(report.details())
        return
    report.to_html(args.html)
    print(f"the page is {args.html}")


def _run_compile(args: argparse.Namespace) -> None:
    if not args.select and (args.max_demos or args.max_demo_tokens):
        raise UserError("--max-demos and --max-demo-tokens need --select")
    if args.out is None and not args.estimate:
        raise UserError("--out: name the file for the program, or pass --estimate")
    _check_model(args)
    from plr_dspy.cli import compiling

    compiling.run_compile(args)


def _run_evaluate(args: argparse.Namespace) -> None:
    _check_model(args)
    from plr_dspy.cli import compiling

    compiling.run_evaluate(args)


def _check_model(args: argparse.Namespace) -> None:
    """Choose the adapter, and raise unless the options of the model go together."""
    if args.adapter is None:
        args.adapter = "plain" if args.lm == "local" else "chat"
    if args.lm == "local":
        return
    if args.api_key_env is not None and not os.environ.get(args.api_key_env):
        raise UserError(f"--api-key-env: the variable {args.api_key_env} is not set")
    if args.adapter == "plain" and args.api_base is None:
        raise UserError("--api-base: plain prompts go to a completions endpoint; pass its address")


def _with_options(message: str, args: argparse.Namespace) -> str:
    """Return a message with the options of the command line in place of arguments."""
    options = {name: f"--{name.replace('_', '-')}" for name in vars(args) if "_" in name}
    for argument, option in (OPTIONS | options).items():
        message = message.replace(argument, option)
    return re.sub(r"\b(signal|update|auto)='(\w+)'", r"--\1 \2", message)


def _parser() -> argparse.ArgumentParser:
    """Return the parser, which checks that files to read and folders of files to write exist."""
    parser = argparse.ArgumentParser(
        prog="plr-dspy", description="Choose the few-shot demos of a DSPy program, and their order."
    )
    parser.add_argument("--version", action="version", version=f"plr-dspy {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_compile(commands)
    _add_evaluate(commands)
    report = commands.add_parser("report", help="print a saved report")
    report.set_defaults(run=_run_report)
    report.add_argument("path", type=_report_file, help="a report, or a folder with report.json")
    report.add_argument("--html", type=_new_file, metavar="FILE", help="write a page with the figure instead")
    return parser


def _add_compile(commands: Any) -> None:
    """Add the command that orders or chooses demos."""
    add = _add_command(
        commands,
        "compile",
        "order the demos of a program by a metric, or choose them, and save the program",
        _run_compile,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add("--metric", type=_metric, required=True, help=METRIC)
    add("--train", type=_file, required=True, help="examples: JSON lines, or a .csv")
    add("--val", type=_file, help="examples of the final comparison (default: 20 %% of --train)")
    add("--out", type=_new_program, help="file for the program (JSON); required without --estimate")
    add("--report", type=_new_file, help="file for the report (JSON)")
    add("--auto", choices=[*BUDGETS, "paper"], default="light", help="budget (default: light)")
    add("--update", choices=["mle", "ema", "mixture"], default="mle", help="default: mle")
    signal = "learn from scores alone, or also from log-probabilities of labels (default: auto, if they are available)"
    add("--signal", choices=SIGNALS, default="auto", help=signal)
    add("--calibrate", action="store_true", help="score calibrated answers, and save a calibrated program")
    select = (
        "also choose which demos to show, and how many, from those of the program and from labelled and bootstrapped "
        "ones of --train; auto and retrieved also find demos for each input (see docs/fewshot.md)"
    )
    add("--select", nargs="?", const="fixed", choices=["fixed", "auto", "retrieved"], help=select)
    add("--max-demos", type=int, help="with --select: demos of a predictor (default: 8)")
    add("--max-demo-tokens", type=int, help="with --select: tokens of all demos together")
    add("--max-calls", type=int, help="maximum number of program calls, instead of --auto's")
    add("--max-seconds", type=float, help="begin no call after this time")
    add("--max-cost", type=float, help="US dollars that calls may cost, by litellm's prices")
    add("--seed", type=int, default=0, help="default: 0")
    add("--log-dir", type=Path, help="folder that keeps every finished call")
    accept = "continue from --log-dir although code or arguments changed, because its scores are still right"
    add("--accept-changes", action="store_true", help=accept)
    add("--estimate", action="store_true", help="print the expected cost, and stop")


def _add_evaluate(commands: Any) -> None:
    """Add the command that scores programs."""
    add = _add_command(commands, "evaluate", "score the program and saved ones side by side", _run_evaluate)
    metrics = f"{METRIC}. Several, one after the other, score the same answers"
    add("--metric", type=_metric, nargs="+", action="extend", required=True, help=metrics)
    add("--data", type=_file, required=True, help="examples that no optimizer has seen: JSON lines, or a .csv")
    add("--programs", type=_file, nargs="+", default=[], help="saved programs (JSON) to compare it with")


def _add_command(
    commands: Any, name: str, purpose: str, run: Callable[[argparse.Namespace], None], **options: Any
) -> Callable[..., Any]:
    """Add a command that runs a program; return the function that adds arguments to it."""
    description = f"{purpose[0].upper()}{purpose[1:]}."
    usage = f"plr-dspy {name} program [options], see --help"
    parser = commands.add_parser(name, usage=usage, help=purpose, description=description, **options)
    parser.set_defaults(run=run)
    add: Callable[..., Any] = parser.add_argument
    # Users also write --debug after the command.
    add("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("program", type=_reference, help="FILE.py:NAME or MODULE:NAME of a DSPy module, or of a function that makes it")
    add("--inputs", nargs="+", required=True, help="names of the input fields")
    add("--demos", type=_file, help="a saved program (JSON), which is loaded first")
    add("--lm", required=True, help="litellm name, such as openai/gpt-4o-mini; or local")
    add("--api-base", help="address of the model's server")
    add("--api-key-env", help="environment variable that contains the key")
    add("--max-tokens", type=int, help="maximum length of an answer")
    adapters = "prompt format (default: chat, or plain with --lm local)"
    add("--adapter", choices=["chat", "json", "plain"], help=adapters)
    add("--threads", type=int, help="number of calls to make at once")
    return add


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no file {path}")
    return path


def _report_file(text: str) -> Path:
    path = Path(text)
    return _file(str(path / "report.json" if path.is_dir() else path))


def _new_file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {path.parent}: make it first")
    return path


def _new_program(text: str) -> Path:
    path = _new_file(text)
    if path.suffix != ".json":
        raise argparse.ArgumentTypeError(f"must end in .json; got {text}")
    return path


def _reference(text: str) -> str:
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise argparse.ArgumentTypeError(f"expected FILE.py:NAME or MODULE:NAME; got {text!r}")
    if place.endswith(".py"):
        _file(place)
    return text


def _metric(text: str) -> str:
    name, colon, label = text.partition(":")
    name = name.lower()
    if name not in OVER_SETS:
        return _reference(text)
    has_its_label = name == "f1" and label
    if colon and not has_its_label:
        raise argparse.ArgumentTypeError(
            f"expected f1:LABEL, or f1, mcc or balanced-accuracy, which are about all labels; got {text!r}"
        )
    return text
