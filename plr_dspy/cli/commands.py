"""The arguments and exit codes of the `plr-dspy` commands.

This module imports no slow packages, so that --help is fast.
"""

import argparse
import io
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from plr_dspy._version import __version__
from plr_dspy.cli.fixes import OptionFormatter, in_options
from plr_dspy.cli.output import OutputClosed, discard_output, printing, show
from plr_dspy.compiling.plan import BUDGETS, SIGNALS
from plr_dspy.data.loading import HUB, HubSplit, hub_split
from plr_dspy.errors import USER_ERRORS, UserError
from plr_dspy.runtime import Redactor

Options: TypeAlias = dict[str, dict[str, Any]]

# The exit codes of all commands.
USER_ERROR = 2  # An argument or a file is invalid.
FAILED = 1  # The program, metric, model or machine failed.
INTERRUPTED = 130  # The user pressed Ctrl-C.
OUTPUT_CLOSED = 141  # The reader of the output closed the pipe. Like shells, use 128 + SIGPIPE.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Raises:
        SystemExit: If the arguments are invalid (exit code 2), or if --help or --version is
            passed (exit code 0).
        Exception: Any error of the command, if --debug is passed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Some terminals cannot encode the arrows in reports.
    try:
        with printing():
            args = _parser().parse_args(arguments)
        log_lines = logging.StreamHandler(sys.stderr)
        log_lines.setFormatter(OptionFormatter(args))
        logging.basicConfig(level=logging.WARNING, handlers=[log_lines])
        return _exit_code(args)
    except OutputClosed:
        discard_output()
        return OUTPUT_CLOSED


def _exit_code(args: argparse.Namespace) -> int:
    """Run the parsed command and return its exit code. Print errors to stderr, or raise them with --debug."""
    try:
        _run(args)
    except OutputClosed:
        raise
    except KeyboardInterrupt:
        print(
            "plr-dspy: interrupted; if --log-dir was passed, run the same command again to resume",
            file=sys.stderr,
        )
        return INTERRUPTED
    except Exception as error:
        if args.debug:
            raise
        message = in_options(" ".join([str(error), *getattr(error, "__notes__", ())]), args)
        message = re.sub(r"\s*\n\s*", " ", message)
        message = Redactor([], variables=[getattr(args, "api_key_env", None)])(message)
        if isinstance(error, USER_ERRORS):
            print(f"plr-dspy: {message}", file=sys.stderr)
            return USER_ERROR
        print(
            f"plr-dspy: {type(error).__name__}: {message}\nplr-dspy: pass --debug for a traceback",
            file=sys.stderr,
        )
        return FAILED
    return 0


def _run(args: argparse.Namespace) -> None:
    if args.command == "report":
        from plr_dspy.report.report import Report

        show(Report.load(args.path).details())
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
    if text and path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: pass the path of a file")
    if not path.is_file():
        raise argparse.ArgumentTypeError(
            f"file not found: {text or repr(text)}: pass the path of an existing file"
        )
    return path


def _data(text: str) -> Path | HubSplit:
    """Return the file or the data set split that an argument names.

    Arguments that begin with "hub:" name a split of a data set on the Hugging Face hub.
    """
    if not text.startswith(HUB):
        return _file(text)
    try:
        return hub_split(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _report_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        path /= "report.json"
    return _file(str(path))


def _new_file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"folder not found: {path.parent}: create the folder first")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: pass the path of a file")
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"folder not writable: {path.parent}: pass a file in another folder"
        )
    return path


def _model_name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty: pass a name such as openai/gpt-4o-mini")
    if ".py:" in text:
        raise argparse.ArgumentTypeError(
            f"{text} names an object in a file, not a model: pass a name such as openai/gpt-4o-mini"
        )
    return text


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: pass the path of a folder")
    return Path(text)


def _at_least(minimum: int) -> Callable[[str], int]:
    """Return a function that converts an argument to a whole number of at least `minimum`."""

    def whole_number(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {minimum}; got {text!r}: pass {minimum} or a larger number"
            )
        return int(text)

    return whole_number


def _amount(text: str) -> float:
    with suppress(ValueError):
        amount = float(text)
        if 0 < amount < math.inf:
            return amount
    raise argparse.ArgumentTypeError(
        f"must be a finite number above 0; got {text!r}: pass a number such as 1.5"
    )


def _new_program(text: str) -> Path:
    if not text.endswith(".json"):
        raise argparse.ArgumentTypeError(f"must end in .json; got {text!r}: add the suffix .json")
    return _new_file(text)


DATA = (
    "a JSON Lines, .csv or .parquet file; or a split of a data set on the Hugging Face hub, as hub:NAME:SPLIT or "
    "hub:NAME:CONFIGURATION:SPLIT, such as hub:SetFit/subj:train"
)
METRIC = (
    "FILE.py:NAME or MODULE:NAME of a function that is called as metric(example, prediction); or the name of a "
    "metric over all examples: f1:LABEL, f1 (the mean over labels), mcc or balanced-accuracy"
)
SELECT = (
    "also choose which demos to show, and how many. fixed (the default) shows the same demos for every input: the "
    "program's own, or labeled and bootstrapped examples from --train. retrieved shows the examples that are most "
    "similar to each input. auto compares both (see docs/fewshot.md)"
)

INSTRUCTIONS = (
    "with --select: instructions to choose from, if the program has only one predictor; or propose, to let a model "
    "write instructions. The program's own instruction is always included"
)

OF_PROGRAM: Options = {
    "program": {"help": "FILE.py:NAME or MODULE:NAME of a DSPy module, or of a function that returns one"},
    "--inputs": {"nargs": "+", "help": "names of the input columns (default: the program's inputs)"},
    "--demos": {"type": _file, "help": "saved program (JSON) to start from"},
    "--lm": {
        "type": _model_name,
        "required": True,
        "help": "litellm name of the model, such as openai/gpt-4o-mini; or local, to run SmolLM2 on this machine",
    },
    "--api-base": {"help": "address of the model's server"},
    "--api-key-env": {"help": "environment variable that contains the API key"},
    "--max-tokens": {"type": _at_least(1), "help": "maximum number of tokens in an answer"},
    "--adapter": {
        "choices": ["chat", "json", "plain"],
        "help": "prompt format (default: chat, or plain with --lm local)",
    },
    "--threads": {
        "type": _at_least(1),
        "dest": "num_threads",
        "help": "maximum number of concurrent calls",
    },
}
OF_COMPILE: Options = {
    "--metric": {"required": True, "help": METRIC},
    "--train": {"type": _data, "required": True, "help": f"examples: {DATA}"},
    "--val": {"type": _data, "help": "examples for the final comparison (default: 20%% of --train)"},
    "--out": {
        "type": _new_program,
        "help": "file for the compiled program (JSON); required unless --estimate is passed",
    },
    "--report": {"type": _new_file, "help": "file for the report (JSON)"},
    "--auto": {
        "choices": [*BUDGETS, "paper"],
        "default": "light",
        "help": "budget of program calls; or paper, to use the settings of the PLR paper (default: light)",
    },
    "--signal": {
        "choices": SIGNALS,
        "default": "auto",
        "help": "what the search learns from. score uses only scores. logprobs also uses log-probabilities of labels. "
        "auto (the default) uses log-probabilities if they are available",
    },
    "--calibrate": {
        "action": "store_true",
        "help": "calibrate answers before they are scored, and calibrate the saved program if this is probably better",
    },
    "--select": {"nargs": "?", "const": "fixed", "choices": ["fixed", "auto", "retrieved"], "help": SELECT},
    "--max-demos": {
        "type": _at_least(1),
        "help": "with --select: maximum number of demos per predictor (default: 8)",
    },
    "--instructions": {"nargs": "+", "metavar": "TEXT", "help": INSTRUCTIONS},
    "--prompt-model": {
        "help": "with --instructions propose: litellm name of the model that writes the instructions (default: --lm). "
        "The API key of this model is read from the provider's environment variable"
    },
    "--num-instructions": {
        "type": _at_least(1),
        "help": "with --instructions propose: number of instructions to propose for each predictor before the search "
        "(default: 6)",
    },
    "--programs": {
        "nargs": "+",
        "default": [],
        "help": "programs that compete with the search's candidates: saved versions of the program (JSON), or other "
        "programs as FILE.py:NAME",
    },
    "--max-calls": {
        "type": _at_least(0),
        "dest": "max_metric_calls",
        "help": "maximum number of program calls; overrides --auto",
    },
    "--max-seconds": {"type": _amount, "help": "number of seconds after which no new call starts"},
    "--max-cost": {"type": _amount, "help": "maximum cost in US dollars, at litellm's list prices"},
    "--seed": {"type": _at_least(0), "default": 0, "help": "random seed (default: 0)"},
    "--log-dir": {
        "type": _folder,
        "help": "folder that stores finished calls, so that an interrupted run can be resumed",
    },
    "--accept-changes": {
        "action": "store_true",
        "help": "reuse the calls in --log-dir even if code or arguments have changed. Pass this only if the logged "
        "scores are still valid",
    },
    "--estimate": {"action": "store_true", "help": "print the estimated cost without calling any program"},
}
OF_EVALUATE: Options = {
    "--metric": {
        "nargs": "+",
        "required": True,
        "help": f"{METRIC}. To score the same answers with several metrics, separate the metrics by spaces",
    },
    "--data": {"type": _data, "required": True, "help": f"examples that no optimizer has seen: {DATA}"},
    "--programs": {
        "nargs": "+",
        "default": [],
        "help": "programs to compare with the first program: saved versions of it (JSON), or other programs as "
        "FILE.py:NAME",
    },
    "--log-dir": OF_COMPILE["--log-dir"],
    "--accept-changes": OF_COMPILE["--accept-changes"],
}
SHARED = (
    "--train",
    "--val",
    "--report",
    "--max-calls",
    "--max-seconds",
    "--max-cost",
    "--seed",
    "--log-dir",
)
OF_CHOOSE: Options = {
    "programs": {
        "nargs": "+",
        "help": "programs to race against the first program: saved versions of the first program (JSON), or other "
        "programs as FILE.py:NAME",
    },
    **{name: OF_COMPILE[name] for name in ("--metric", *SHARED, "--accept-changes")},
    "--val": {"type": _data, "help": "more examples, used in the same way as --train"},
    "--max-calls": {
        "type": _at_least(1),
        "dest": "max_metric_calls",
        "help": "maximum number of program calls (default: unlimited)",
    },
    "--out": {"type": _new_program, "help": "file for the chosen program (JSON)"},
    "--estimate": OF_COMPILE["--estimate"],
}
OF_REPORT: Options = {
    "path": {"type": _report_file, "help": "report file, or a folder that contains report.json"}
}
COMMANDS = {
    "compile": (
        "find the best order of a program's demos (with --select, also the best demos), and save the program",
        OF_PROGRAM | OF_COMPILE,
    ),
    "evaluate": (
        "compare the scores of a program, its saved versions and other programs",
        OF_PROGRAM | OF_EVALUATE,
    ),
    "choose": ("choose the best of several programs in a race", OF_PROGRAM | OF_CHOOSE),
    "report": ("print a saved report", OF_REPORT),
}


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages do not list all options."""

    def error(self, message: str) -> NoReturn:
        self.exit(USER_ERROR, f"{self.prog}: {message}\n{self.prog}: pass --help to list all options\n")


def _parser() -> argparse.ArgumentParser:
    description = "Choose the few-shot demos of a DSPy program and their order."
    parser = _Parser(prog="plr-dspy", description=description)
    parser.add_argument("--version", action="version", version=f"plr-dspy {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (purpose, options) in COMMANDS.items():
        command = commands.add_parser(name, help=purpose)
        command.add_argument("--debug", action="store_true", help="show the traceback if the command fails")
        for option, settings in options.items():
            command.add_argument(option, **settings)
    return parser
