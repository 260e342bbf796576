"""The commands `run`, `table` and `figure`.

`run` makes the runs of a grid of tasks, numbers of demos, seeds and methods. `table` and `figure` present the results.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import get_args

from plr_dspy.runtime import Redactor, interrupts

from .figures import save_figures
from .model import LOCAL, ServedModel
from .protocol import ABLATIONS, MAX_RANKED, METHODS, PROBABILITY, Experiment, Run, grid
from .results import RESULTS, open_store, read_results
from .runner import Engine, count_calls, run_grid, run_here, run_on_ray
from .tables import all_tables, frame_of
from .tasks import CLASSIFICATION, TASKS, Format, MetricName

FAILED = 1
USER_ERROR = 2
INTERRUPTED = 130

ABLATION_HELP = (
    "the paper's ablations to run in addition to --methods; 'probability' scores all orders of at most "
    f"{MAX_RANKED} demos, to plot their accuracies against their learned probabilities"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args = _parse(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    package_logger = logging.getLogger("plr_dspy")
    experiment_logger = logging.getLogger(__package__)
    levels = [package_logger.level, experiment_logger.level]
    package_logger.setLevel(logging.WARNING)  # Log only one line per run.
    experiment_logger.setLevel(logging.INFO)
    try:
        with interrupts():
            return int(args.command(args))
    except KeyboardInterrupt:
        print("interrupted; all finished calls are saved", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if args.debug:
            raise
        hide = Redactor([], variables=[getattr(args, "api_key_env", None)])
        print(f"{type(error).__name__}: {hide(str(error))} (--debug shows the traceback)", file=sys.stderr)
        return USER_ERROR if isinstance(error, (ValueError, ImportError)) else FAILED
    finally:
        package_logger.setLevel(levels[0])
        experiment_logger.setLevel(levels[1])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python examples/paper", description=__doc__)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="make the runs that have no result yet",
        epilog="Runs that have a result in --out are skipped, and runs that were killed resume.",
    )
    run.set_defaults(command=_run)
    _add_run_arguments(run)
    table = commands.add_parser("table", help="write the tables of the results, as Markdown and CSV")
    table.set_defaults(command=_table)
    table.add_argument("--to", type=Path, help="folder for the files (default: OUT/table)")
    figure = commands.add_parser(
        "figure", help="plot accuracy against learned probability, and the ranks of methods"
    )
    figure.set_defaults(command=_figure)
    figure.add_argument("--to", type=Path, help="folder for the files (default: OUT/figure)")
    for command in (run, table, figure):
        command.add_argument(
            "--out",
            type=Path,
            default=Path("runs/experiment"),
            help="folder with the results (default: runs/experiment)",
        )
    return parser.parse_args(arguments)


def _add_run_arguments(run: argparse.ArgumentParser) -> None:
    add = run.add_argument
    add_list = partial(run.add_argument, nargs="+")
    add_list(
        "--tasks",
        default=list(CLASSIFICATION),
        choices=list(TASKS),
        help="default: the classification tasks",
    )
    add_list("--num-demos", type=int, default=[4, 8, 16, 32], metavar="K", help="default: 4 8 16 32")
    add_list("--seeds", type=int, default=[1, 2, 3, 4, 5], metavar="SEED", help="default: 1 2 3 4 5")
    add(
        "--methods",
        nargs="*",
        default=list(METHODS),
        metavar="METHOD",
        help=f"default: {', '.join(METHODS)}",
    )
    add("--ablations", nargs="*", default=[], choices=[*ABLATIONS, "probability"], help=ABLATION_HELP)
    add(
        "--pool",
        type=int,
        default=1_000,
        help="number of labeled examples besides the demos, split 80/20 (default: 1000)",
    )
    add("--test", type=int, help="number of held-out examples (default: all)")
    add(
        "--format",
        default="plain",
        choices=get_args(Format),
        help="prompt format (default: plain, as in the paper)",
    )
    add(
        "--metric",
        default="strict",
        choices=get_args(MetricName),
        help="metric for reasoning tasks (default: strict)",
    )
    add(
        "--model",
        default=LOCAL,
        help="litellm name of the model, or local for SmolLM2-135M (default: local)",
    )
    add_list("--api-base", default=[], metavar="URL", help="addresses of the model's servers")
    add("--api-key-env", help="environment variable that holds the API key")
    add(
        "--cache", action="store_true", help="let DSPy cache answers, so that methods share identical calls"
    )
    add(
        "--data-dir",
        type=Path,
        help="folder with TASK_train.jsonl and TASK_test.jsonl (default: the Hugging Face hub)",
    )
    add(
        "--threads",
        type=_positive,
        default=2,
        help="number of concurrent calls in each worker (default: 2)",
    )
    add("--jobs", type=_positive, help="number of concurrent runs, with Ray (default: one per --api-base)")
    add("--ray", metavar="ADDRESS", help="address of a Ray cluster for the runs; can also be auto or local")
    add("--dry-run", action="store_true", help="print how many runs and calls are missing, and exit")


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {text}")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    """Make the runs of a grid that have no result yet, and print a summary."""
    methods = list(args.methods)
    for name in args.ablations:
        methods += PROBABILITY if name == "probability" else ABLATIONS[name]
    runs = grid(tasks=args.tasks, num_demos=args.num_demos, seeds=args.seeds, methods=methods)
    model = ServedModel(args.model, tuple(args.api_base), args.api_key_env, cache=args.cache)
    model.check(args.format)
    experiment = Experiment(
        args.out.resolve(),
        None if args.data_dir is None else args.data_dir.resolve(),
        pool=args.pool,
        test=args.test,
        format=args.format,
        metric=args.metric,
        model=model,
        num_threads=args.threads,
    )
    if args.dry_run:
        _print_missing(experiment, runs)
        return 0
    outcome = run_grid(experiment, runs, engine=_engine(args))
    counts = f"{outcome.num_known} made before, {outcome.num_made} made now, {len(outcome.failed)} failed"
    print(f"{len(runs)} runs: {counts}; results in {experiment.folder}")
    hide = Redactor([], variables=[args.api_key_env])
    for run, error in outcome.failed.items():
        print(f"  {run}: {type(error).__name__}: {hide(str(error))}")
    return FAILED if outcome.failed else 0


def _engine(args: argparse.Namespace) -> Engine:
    """Return a function that makes the runs, either in this process or on Ray."""
    if args.ray:
        return partial(run_on_ray, address=args.ray, num_workers=args.jobs)
    num_workers = args.jobs or len(args.api_base)
    if num_workers > 1:
        return partial(run_on_ray, address="local", num_workers=num_workers)
    return run_here


def _print_missing(experiment: Experiment, runs: Sequence[Run]) -> None:
    """Print the number of runs without a result, and the maximum number of their program calls."""
    with open_store(experiment.folder, experiment.settings()) as store:
        missing = [run for run in runs if run not in store]
    calls: Counter[str] = Counter()
    for run in missing:
        calls[run.method] += count_calls(experiment, run)
    limit = f"at most {calls.total():,} program calls, including calls on held-out examples"
    print(f"{len(runs)} runs, {len(missing)} of them without a result: {limit}")
    for method, count in calls.items():
        print(f"  {method}: {count:,}")


def _table(args: argparse.Namespace) -> int:
    """Make tables of the results in the folder --out."""
    for table in all_tables(frame_of(read_results(args.out / RESULTS))):
        print(*table.save(args.to or args.out / "table"), sep="\n")
    return 0


def _figure(args: argparse.Namespace) -> int:
    """Draw figures of the results in the folder --out."""
    results = read_results(args.out / RESULTS)
    print(*save_figures(results, frame_of(results), args.to or args.out / "figure"), sep="\n")
    return 0
