"""The `plr-dspy` commands: arguments and exit codes. This module imports nothing slow."""

import argparse
import io
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from plr_dspy._version import __version__
from plr_dspy.compiling.plan import BUDGETS, SIGNALS
from plr_dspy.errors import USER_ERRORS
from plr_dspy.runtime import Redactor

Options: TypeAlias = dict[str, dict[str, Any]]

USER_ERROR = 2
"""Exit code: invalid argument or file."""
FAILED = 1
"""Exit code: program, metric, model or machine failure."""
INTERRUPTED = 130
"""Exit code: the user pressed Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; exit with 2 if the arguments are invalid."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Some terminals lack the arrows in reports.
    args = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        _run(args)
    except KeyboardInterrupt:
        print("plr-dspy: interrupted; with --log-dir, finished calls are kept", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if args.debug:
            raise
        message = " ".join([str(error), *getattr(error, "__notes__", ())])
        message = Redactor([], variables=[getattr(args, "api_key_env", None)])(message)
        if isinstance(error, USER_ERRORS):
            print(f"plr-dspy: {message}", file=sys.stderr)
            return USER_ERROR
        print(f"plr-dspy: {type(error).__name__}: {message}\nplr-dspy: --debug shows where", file=sys.stderr)
        return FAILED
    return 0


def _run(args: argparse.Namespace) -> None:
    if args.command == "report":
        from plr_dspy.report.report import Report

        report = Report.load(args.path)
        if args.html is None:
            print(report.details())
        else:
            report.to_html(args.html)
        return
    from plr_dspy.cli import compiling

    if args.command == "compile":
        compiling.run_compile(args)
    elif args.command == "choose":
        compiling.run_choose(args)
    else:
        compiling.run_evaluate(args)


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no file {path}")
    return path


def _report_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        path /= "report.json"
    return _file(str(path))


def _new_file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {path.parent}: make it first")
    return path


def _new_program(text: str) -> Path:
    if not text.endswith(".json"):
        raise argparse.ArgumentTypeError(f"must end in .json; got {text}")
    return _new_file(text)


METRIC = (
    "FILE.py:NAME or MODULE:NAME of metric(example, prediction); or a metric over all examples: f1:LABEL, f1 (the mean "
    "over labels), mcc or balanced-accuracy"
)
SELECT = (
    "also choose which demos to show, and how many, from those of the program and from labelled and bootstrapped ones "
    "of --train; auto and retrieved also find demos for each input (see docs/fewshot.md)"
)

OF_PROGRAM: Options = {
    "program": {"help": "FILE.py:NAME or MODULE:NAME of a DSPy module, or of a function that makes it"},
    "--inputs": {"nargs": "+", "required": True, "help": "names of the input fields"},
    "--demos": {"type": _file, "help": "a saved program (JSON), which is loaded first"},
    "--lm": {"required": True, "help": "litellm name, such as openai/gpt-4o-mini; or local"},
    "--api-base": {"help": "address of the model's server"},
    "--api-key-env": {"help": "environment variable that contains the key"},
    "--max-tokens": {"type": int, "help": "maximum length of an answer"},
    "--adapter": {
        "choices": ["chat", "json", "plain"],
        "help": "prompt format (default: chat, or plain with --lm local)",
    },
    "--threads": {"type": int, "dest": "num_threads", "help": "number of calls to make at once"},
}
OF_COMPILE: Options = {
    "--metric": {"required": True, "help": METRIC},
    "--train": {"type": _file, "required": True, "help": "examples: JSON lines, or a .csv"},
    "--val": {"type": _file, "help": "examples of the final comparison (default: 20 %% of --train)"},
    "--out": {"type": _new_program, "help": "file for the program (JSON); required without --estimate"},
    "--report": {"type": _new_file, "help": "file for the report (JSON)"},
    "--auto": {"choices": [*BUDGETS, "paper"], "default": "light", "help": "budget (default: light)"},
    "--signal": {
        "choices": SIGNALS,
        "default": "auto",
        "help": "learn from scores alone, or also from log-probabilities of labels (default: auto, if there are any)",
    },
    "--calibrate": {"action": "store_true", "help": "score calibrated answers, and save a calibrated program"},
    "--select": {"nargs": "?", "const": "fixed", "choices": ["fixed", "auto", "retrieved"], "help": SELECT},
    "--max-demos": {"type": int, "help": "with --select: demos of a predictor (default: 8)"},
    "--max-calls": {
        "type": int,
        "dest": "max_metric_calls",
        "help": "maximum number of program calls, instead of --auto's",
    },
    "--max-seconds": {"type": float, "help": "begin no call after this time"},
    "--max-cost": {"type": float, "help": "US dollars that calls may cost, by litellm's prices"},
    "--seed": {"type": int, "default": 0, "help": "default: 0"},
    "--log-dir": {"type": Path, "help": "folder that keeps every finished call"},
    "--accept-changes": {
        "action": "store_true",
        "help": "continue from --log-dir although code or arguments changed, because its scores are still right",
    },
    "--estimate": {"action": "store_true", "help": "print the expected cost, and stop"},
}
OF_EVALUATE: Options = {
    "--metric": {
        "nargs": "+",
        "required": True,
        "help": f"{METRIC}. Several, one after the other, score the same answers",
    },
    "--data": {"type": _file, "required": True, "help": "examples that no optimizer has seen: JSON lines, or a .csv"},
    "--programs": {"type": _file, "nargs": "+", "default": [], "help": "saved programs (JSON) to compare it with"},
}
SHARED = ("--train", "--val", "--report", "--max-calls", "--max-seconds", "--max-cost", "--seed", "--log-dir")
OF_CHOOSE: Options = {
    "programs": {
        "nargs": "+",
        "help": "programs to compare it with: saved ones (JSON), which are loaded into it, or others as FILE.py:NAME",
    },
    **{name: OF_COMPILE[name] for name in ("--metric", *SHARED, "--accept-changes")},
    "--val": {"type": _file, "help": "more examples, which count like those of --train"},
    "--max-calls": {"type": int, "dest": "max_metric_calls", "help": "maximum number of program calls (default: all)"},
    "--out": {"type": _new_program, "help": "file for the chosen program (JSON)"},
}
OF_REPORT: Options = {
    "path": {"type": _report_file, "help": "a report, or a folder with report.json"},
    "--html": {"type": _new_file, "metavar": "FILE", "help": "write a page with the figure instead"},
}
COMMANDS = {
    "compile": (
        "order the demos of a program by a metric, or choose them, and save the program",
        OF_PROGRAM | OF_COMPILE,
    ),
    "evaluate": ("score the program and saved ones side by side", OF_PROGRAM | OF_EVALUATE),
    "choose": ("choose the best of several programs in a race", OF_PROGRAM | OF_CHOOSE),
    "report": ("print a saved report", OF_REPORT),
}


def _parser() -> argparse.ArgumentParser:
    description = "Choose the few-shot demos of a DSPy program, and their order."
    parser = argparse.ArgumentParser(prog="plr-dspy", description=description)
    parser.add_argument("--version", action="version", version=f"plr-dspy {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (purpose, options) in COMMANDS.items():
        command = commands.add_parser(name, help=purpose)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        for option, settings in options.items():
            command.add_argument(option, **settings)
    return parser
