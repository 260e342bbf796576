"""The commands of `plr-dspy`: their arguments, their checks, and their exit codes.

What a command runs is imported when its arguments are checked: DSPy, torch and pandas take seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from plr_dspy._version import __version__
from plr_dspy.cli.checks import check_count, check_file, check_key, check_parent, split_reference
from plr_dspy.cli.experiment import add_experiment
from plr_dspy.cli.log_levels import logged
from plr_dspy.compilation.budget import BUDGETS, SIGNALS
from plr_dspy.runtime.redaction import Redactor

USER_ERROR, FAILED, INTERRUPTED = 2, 1, 130
"""Exit codes: bad arguments or data; a program, a model or a machine that failed; Ctrl-C."""

PACKAGE = Path(__file__).parents[1]

ADAPTERS = ("chat", "json", "plain")

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
    with _readers_may_leave():
        args = _parser().parse_args(arguments)
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        try:
            with logged({"plr_dspy": logging.INFO}):
                return int(args.run(args) or 0)
        except KeyboardInterrupt:
            kept = "interrupted; what was paid for is kept where there is a folder for it"
            print(f"plr-dspy: {kept}", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            if args.debug:
                raise
            users = _is_usage_error(error)
            kind = "" if users else f"{type(error).__name__}: "
            hide = Redactor([], variables=[getattr(args, "api_key_env", None)])
            print(f"plr-dspy: {kind}{hide(str(error))}", file=sys.stderr)
            if not users:
                print("plr-dspy: --debug shows where", file=sys.stderr)
            return USER_ERROR if users else FAILED


def _is_usage_error(error: Exception) -> bool:
    """Whether a check of this package raised the error; what a program, a model or Python raised is a failure."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    checked = Path(place.filename).is_relative_to(PACKAGE) and (place.line or "").startswith("raise")
    return checked and isinstance(error, (ValueError, TypeError, ImportError))


@contextlib.contextmanager
def _readers_may_leave() -> Iterator[None]:
    """Let whoever reads the output stop at any time, as `head` does: nothing that is printed then raises."""
    output, errors = _Output(sys.stdout), _Output(sys.stderr)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            yield
        finally:
            output.flush()
            errors.flush()


class _Output:
    """A stream that goes nowhere once its reader is gone."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Callable[..., Any], *arguments: str) -> None:
        try:
            act(*arguments)
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
    report = commands.add_parser("report", help="print a saved report")
    report.add_argument("path", type=Path, help="a report, or a folder with report.json")
    report.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures instead")
    report.set_defaults(run=_report)
    add_experiment(commands)
    serve = commands.add_parser("serve-local", help="serve the local model (SmolLM2-135M) until Ctrl-C")
    serve.add_argument("--threads", type=int, help="CPU threads (default: one for each core, up to 8)")
    serve.add_argument("--parallel", type=int, default=1, help="calls served at a time (default: 1)")
    serve.add_argument("--context-length", type=int, default=4096, help="tokens of one call (default: 4096)")
    serve.set_defaults(run=_serve)
    return parser


def _add_compile(commands: Any) -> None:
    parser = commands.add_parser(
        "compile",
        help="order the demos of a program, or choose them",
        description="Order the demos of a DSPy program by a metric, or choose them, and save the program.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("program", help="FILE.py:NAME or MODULE:NAME of a DSPy module, or of what makes one")
    parser.add_argument(
        "--metric", required=True, help="FILE.py:NAME or MODULE:NAME of metric(example, prediction)"
    )
    parser.add_argument("--train", type=Path, required=True, help="examples, as JSON lines")
    parser.add_argument(
        "--val", type=Path, help="examples of the final comparison (default: 20 %% of --train)"
    )
    parser.add_argument("--inputs", nargs="+", required=True, help="names of the input fields")
    parser.add_argument("--demos", type=Path, help="a saved program (JSON), whose demos are loaded first")
    parser.add_argument("--out", type=Path, required=True, help="the program in its new order (JSON)")
    parser.add_argument("--report", type=Path, help="the report (JSON)")
    parser.add_argument("--lm", required=True, help="litellm name, such as openai/gpt-4o-mini; or local")
    parser.add_argument("--api-base", help="address of the model's server")
    parser.add_argument("--api-key-env", help="environment variable that holds the key")
    parser.add_argument("--max-tokens", type=int, help="longest answer")
    parser.add_argument("--adapter", choices=ADAPTERS, default="chat", help="prompt format (default: chat)")
    parser.add_argument(
        "--auto", choices=[*BUDGETS, "paper"], default="light", help="budget (default: light)"
    )
    parser.add_argument("--update", choices=["mle", "ema", "mixture"], default="mle", help="default: mle")
    parser.add_argument(
        "--signal",
        choices=SIGNALS,
        default="auto",
        help="what the search learns from a call: the metric's score alone, or the log-probabilities of labels as well "
        "(default: auto, these where they come with the calls)",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="score orders by calibrated answers, and save a calibrated program (see docs/calibration.md)",
    )
    parser.add_argument(
        "--select",
        action="store_true",
        help="choose the demos as well: which, how many, in what order, from those of the program, and labelled and "
        "bootstrapped ones of --train (see docs/fewshot.md)",
    )
    parser.add_argument("--max-demos", type=int, help="with --select: demos of a predictor (default: 8)")
    parser.add_argument("--max-demo-tokens", type=int, help="with --select: tokens of all demos together")
    parser.add_argument("--max-calls", type=int, help="program calls at most, instead of --auto's")
    parser.add_argument("--max-seconds", type=float, help="no call begins later")
    parser.add_argument("--max-cost", type=float, help="US dollars that calls may cost, by litellm's prices")
    parser.add_argument("--threads", type=int, help="calls under way at once")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--log-dir", type=Path, help="folder that keeps every finished call")
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="go on from --log-dir although code or arguments changed: its scores hold all the same",
    )
    parser.add_argument("--estimate", action="store_true", help="say what it would cost, and stop")
    parser.set_defaults(run=_compile)


def _compile(args: argparse.Namespace) -> int:
    split_reference(args.metric, "metric")
    split_reference(args.program, "program")
    for path, option in ((args.train, "--train"), (args.val, "--val"), (args.demos, "--demos")):
        check_file(path, option)
    for path in (args.out, args.report):
        check_parent(path)
    if args.out.suffix not in (".json", ".pkl"):
        raise ValueError(f"--out must end in .json or .pkl; got {args.out}")
    for option in ("max_calls", "threads", "max_tokens", "max_demos", "max_demo_tokens"):
        check_count(getattr(args, option), option)
    if not args.select and (args.max_demos or args.max_demo_tokens):
        raise ValueError("--max-demos and --max-demo-tokens need --select")
    if args.lm != "local":
        check_key(args.api_key_env)
        if args.adapter == "plain" and args.api_base is None:
            raise ValueError("--api-base: plain prompts go to a completions endpoint; pass its address")
    from plr_dspy.cli.compiling import compile_program

    return compile_program(args)


def _report(args: argparse.Namespace) -> int:
    path = args.path / "report.json" if args.path.is_dir() else args.path
    check_file(path, "report")
    check_parent(args.html)
    from plr_dspy.report.report import Report

    report = Report.load(path)
    if args.html is None:
        print(report)
    else:
        report.to_html(args.html)
    return 0


def _serve(args: argparse.Namespace) -> int:
    for option in ("threads", "parallel", "context_length"):
        check_count(getattr(args, option), option)
    from plr_dspy.local.server import LocalServer

    server = LocalServer(num_threads=args.threads, parallel=args.parallel, context_length=args.context_length)
    with server, contextlib.suppress(KeyboardInterrupt):  # which may come as soon as a line is read
        print(f"{server.model} at {server.api_base}; Ctrl-C stops it")
        print(f'lm = plr_dspy.completion_lm("{server.model}", api_base="{server.api_base}")', flush=True)
        threading.Event().wait()
    return 0
