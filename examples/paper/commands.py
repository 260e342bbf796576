"""The commands: `run` makes the runs of a grid, `table` writes the tables of their results."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from plr_dspy.runtime import Redactor, interrupts

from .model import LOCAL, ServedModel
from .protocol import ABLATIONS, METHODS, Experiment, grid
from .results import RESULTS, opened, read_results
from .runner import count_calls, here, on_ray, run_grid
from .tables import all_tables, frame_of
from .tasks import CLASSIFICATION, TASKS, Format, MetricName

USER_ERROR, FAILED, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    args = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    levels = {"plr_dspy": logging.WARNING, str(__package__): logging.INFO}  # a line for each run is enough
    before = {name: logging.getLogger(name).level for name in levels}
    try:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        with interrupts():
            return int(args.command(args) or 0)
    except KeyboardInterrupt:
        print("interrupted; what was paid for is kept", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if args.debug:
            raise
        hide = Redactor([], variables=[getattr(args, "api_key_env", None)])
        print(f"{type(error).__name__}: {hide(str(error))} (--debug shows where)", file=sys.stderr)
        return USER_ERROR if isinstance(error, (ValueError, ImportError)) else FAILED
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python examples/paper", description=__doc__)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    epilog = "A run that has a result in --out is not made again; one that was killed goes on where it was."
    run = commands.add_parser("run", help="make the runs that have no result yet", epilog=epilog)
    several, any_number = partial(run.add_argument, nargs="+"), partial(run.add_argument, nargs="*")
    several("--tasks", default=list(CLASSIFICATION), choices=list(TASKS), help="default: the classifications")
    several("--num-demos", type=int, default=[4, 8, 16, 32], metavar="K", help="default: 4 8 16 32")
    several("--seeds", type=int, default=[1, 2, 3, 4, 5], metavar="SEED", help="default: 1 2 3 4 5")
    any_number("--methods", default=list(METHODS), metavar="METHOD", help=f"default: {', '.join(METHODS)}")
    any_number("--ablations", default=[], choices=list(ABLATIONS), help="methods of these ablations too")
    several("--api-base", default=[], metavar="URL", help="servers that all serve the model")
    add = run.add_argument
    add("--pool", type=int, default=1_000, help="labelled examples beside the demos, 80/20 (default: 1000)")
    add("--test", type=int, help="held-out examples (default: all)")
    add("--format", default="plain", choices=get_args(Format), help="prompts (default: plain, the paper's)")
    metrics = get_args(MetricName)
    add("--metric", default="strict", choices=metrics, help="of reasoning tasks (default: strict)")
    add("--model", default=LOCAL, help="litellm name (default: local, which is SmolLM2-135M)")
    add("--api-key-env", help="environment variable that holds the key")
    add("--cache", action="store_true", help="let DSPy cache answers: what methods share is paid once")
    add("--data-dir", type=Path, default=Path(), help="folder with TASK_train.jsonl, TASK_test.jsonl")
    add("--threads", type=_positive, default=2, help="calls under way at once in each worker (default: 2)")
    add("--jobs", type=_positive, help="runs made at a time, by Ray (default: one for each --api-base)")
    add("--ray", metavar="ADDRESS", help="make the runs on a Ray cluster: its address, auto, or local")
    add("--dry-run", action="store_true", help="say how many runs and calls are missing, and stop")
    run.set_defaults(command=_run)
    table = commands.add_parser("table", help="write the tables of the results, as Markdown and CSV")
    table.add_argument("--to", type=Path, help="folder for the files (default: OUT/table)")
    table.set_defaults(command=_table)
    for command in commands.choices.values():
        out = Path("runs/experiment")
        command.add_argument("--out", type=Path, default=out, help=f"folder of the results (default: {out})")
    return parser


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    """Make the runs of a grid that have no result yet, and say what became of them."""
    methods = [*args.methods, *(m for name in args.ablations for m in ABLATIONS[name])]
    runs = grid(tasks=args.tasks, num_demos=args.num_demos, seeds=args.seeds, methods=methods)
    model = ServedModel(args.model, tuple(args.api_base), args.api_key_env, cache=args.cache)
    model.check(args.format)
    experiment = Experiment(
        args.out.resolve(),
        args.data_dir.resolve(),
        **{name: getattr(args, name) for name in ("pool", "test", "format", "metric")},
        model=model,
        num_threads=args.threads,
    )
    if args.dry_run:
        with opened(experiment.folder, experiment.settings()) as store:
            missing = [run for run in runs if run not in store]
        calls: Counter[str] = Counter()
        for run in missing:
            calls[run.method] += count_calls(experiment, run)
        most = f"{calls.total():,} program calls at most, those on held-out examples included"
        print(f"{len(runs)} runs, {len(missing)} of them without a result: {most}")
        print("".join(f"  {method}: {count:,}\n" for method, count in calls.items()), end="")
        return 0
    jobs = args.jobs or max(1, len(args.api_base))
    engine: Any = here
    if args.ray or jobs > 1:
        engine = partial(on_ray, address=args.ray or "local", num_workers=args.jobs if args.ray else jobs)
    outcome = run_grid(experiment, runs, engine=engine)
    counts = f"{outcome.there} were there, {outcome.made} made, {len(outcome.failed)} failed"
    print(f"{len(runs)} runs: {counts}; results in {experiment.folder}")
    hide = Redactor([], variables=[args.api_key_env])
    for run, error in outcome.failed.items():
        print(f"  {run}: {type(error).__name__}: {hide(str(error))}")
    return FAILED if outcome.failed else 0


def _table(args: argparse.Namespace) -> None:
    """Write the tables of the results in a folder."""
    for table in all_tables(frame_of(read_results(args.out / RESULTS))):
        print(*table.save(args.to or args.out / "table"), sep="\n")
