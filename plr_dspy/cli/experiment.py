"""`plr-dspy experiment`: the paper's protocol, one command each."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

from plr_dspy.experiments.analysis.frames import in_order
from plr_dspy.experiments.analysis.outputs import save_ablations, save_figures, save_tables
from plr_dspy.experiments.analysis.published import load_published
from plr_dspy.experiments.runs.executors import Executor, here, in_processes, on_ray
from plr_dspy.experiments.runs.grid import run_grid
from plr_dspy.experiments.runs.methods import ABLATIONS, METHODS
from plr_dspy.experiments.runs.protocol import Protocol, grid
from plr_dspy.experiments.runs.results import Result, Run, read_results
from plr_dspy.experiments.runs.runner import Experiment, Worker
from plr_dspy.experiments.runs.served_model import LOCAL, ServedModel
from plr_dspy.experiments.runs.store import Store, results_path
from plr_dspy.experiments.tasks.tasks import CLASSIFICATION, TASKS, Format, MetricName
from plr_dspy.programs.validation import whole_number
from plr_dspy.runtime.redaction import Redactor
from plr_dspy.runtime.signals import Interrupts

DEFAULT_OUT = Path("runs/experiment")
"""Folder of the results."""

EXAMPLES = """
examples:
  # a small grid on the local model
  plr-dspy experiment run --tasks mr trec --num-demos 4 8 --seeds 1 2 --pool 20 --test 40 --data-dir data
  # the paper's classification tables on a vLLM server
  plr-dspy experiment run --model hosted_vllm/Qwen/Qwen2.5-7B --api-base http://127.0.0.1:8000/v1 --threads 32
  # the same over a Ray cluster, with a server on each of two machines
  plr-dspy experiment run --model hosted_vllm/Qwen/Qwen2.5-7B --api-base http://a:8000/v1 http://b:8000/v1 --ray auto

A run that has a result in --out is not made again; a run that was killed goes on where it was.
"""


def add_experiment(commands: Any) -> None:
    """Add the command and its parts to the parsers of `plr-dspy`."""
    experiment = commands.add_parser(
        "experiment", help="the paper's protocol: runs, tables, ablations, figures"
    )
    parts = experiment.add_subparsers(required=True, metavar="PART")
    run = parts.add_parser(
        "run",
        help="make the runs that have no result yet",
        description="Make all runs of a grid: tasks x numbers of demos x seeds x methods.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_grid(run.add_argument)
    _add_place(run.add_argument)
    run.set_defaults(run=_run)
    for name, save, text in (
        ("table", _save_tables, "accuracy, paired comparisons and calls, as Markdown, LaTeX and CSV"),
        ("ablation", save_ablations, "the ablations, as a table and a picture"),
        ("figure", save_figures, "accuracy by calls, and by learnt probability, as pictures"),
    ):
        part = parts.add_parser(name, help=text, description=f"Write {text}, of the results in a folder.")
        part.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder of the results")
        part.add_argument("--to", type=Path, help=f"folder for the files (default: OUT/{name})")
        part.set_defaults(run=_write, part=name, save=save)


def _add_grid(add: Callable[..., Any]) -> None:
    """Add the options that say what is run."""
    of_tasks = f"of {', '.join(TASKS)} (default: {' '.join(CLASSIFICATION)})"
    several = partial(add, nargs="+")
    several("--tasks", default=list(CLASSIFICATION), choices=sorted(TASKS), metavar="TASK", help=of_tasks)
    several("--num-demos", type=int, default=[4, 8, 16, 32], metavar="K", help="default: 4 8 16 32")
    several("--seeds", type=int, default=[1, 2, 3, 4, 5], metavar="SEED", help="default: 1 2 3 4 5")
    any_number = partial(add, nargs="*")
    any_number("--methods", default=list(METHODS), metavar="METHOD", help=f"default: {', '.join(METHODS)}")
    any_number("--ablations", default=[], choices=list(ABLATIONS), help="methods of these ablations too")
    of_rankings = "also rank all orders of so many demos, such as 3 4 5"
    any_number("--rankings", type=int, default=[], metavar="K", help=of_rankings)
    of_pool = "labelled examples beside the demos, 80/20 (default: 1000)"
    add("--pool", type=int, default=1_000, help=of_pool)
    add("--test", type=int, help="held-out examples (default: all)")
    formats, metrics = get_args(Format), get_args(MetricName)
    add("--format", default="plain", choices=formats, help="prompts (default: plain, the paper's)")
    add("--metric", default="strict", choices=metrics, help="of reasoning tasks (default: strict)")


def _add_place(add: Callable[..., Any]) -> None:
    """Add the options that say with which model the runs are made, and where."""
    add("--model", default=LOCAL, help="litellm name (default: local, which is SmolLM2-135M)")
    add("--api-base", nargs="+", default=[], metavar="URL", help="servers that all serve the model")
    add("--api-key-env", help="environment variable that holds the key")
    add("--cache", action="store_true", help="let DSPy cache answers: what methods share is paid once")
    add("--data-dir", type=Path, help="folder with TASK_train.jsonl, TASK_test.jsonl (default: the hub)")
    add("--out", type=Path, default=DEFAULT_OUT, help="folder of the results")
    add("--threads", type=int, default=2, help="calls under way at once in each worker (default: 2)")
    add("--jobs", type=int, help="runs made at a time, in processes (default: one for each --api-base)")
    add("--ray", metavar="ADDRESS", help="make the runs on a Ray cluster: its address, auto, or local")
    add("--dry-run", action="store_true", help="say how many runs and calls are missing, and stop")


@contextmanager
def logged(levels: Mapping[str, int]) -> Iterator[None]:
    """Set the levels of some loggers while this context lasts."""
    before = {name: logging.getLogger(name).level for name in levels}
    try:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _run(args: argparse.Namespace) -> int:
    """Make the runs of a grid that have no result yet, and say what became of them."""
    methods = list(dict.fromkeys([*args.methods, *(m for name in args.ablations for m in ABLATIONS[name])]))
    runs = grid(
        tasks=args.tasks, num_demos=args.num_demos, seeds=args.seeds, methods=methods, rankings=args.rankings
    )
    whole_number("--threads", args.threads)
    whole_number("--jobs", args.jobs)
    experiment = Experiment(
        Protocol(pool=args.pool, test=args.test, format=args.format, metric=args.metric),
        ServedModel(args.model, tuple(args.api_base), args.api_key_env, cache=args.cache),
        folder=args.out.resolve(),
        data_dir=None if args.data_dir is None else args.data_dir.resolve(),
        num_threads=args.threads,
    )
    experiment.served_model.check_key()
    if args.dry_run:
        return _dry_run(experiment, runs)
    # A line for each run is enough.
    levels = {"plr_dspy": logging.WARNING, "plr_dspy.experiments": logging.INFO}
    with logged(levels), Interrupts():
        outcome = run_grid(experiment, runs, executor=_executor(args))
    print(
        f"{len(runs)} runs: {outcome.there} were there, {outcome.made} made, {len(outcome.failed)} failed; "
        f"results in {experiment.folder}"
    )
    hide = Redactor([], variables=[args.api_key_env])
    for run, error in outcome.failed.items():
        print(f"  {run}: {type(error).__name__}: {hide(str(error))}")
    return 1 if outcome.failed else 0


def _dry_run(experiment: Experiment, runs: Sequence[Run]) -> int:
    """Say how many runs and program calls are missing, and make none."""
    missing = list(runs)
    if results_path(experiment.folder).is_file():
        with Store(experiment.folder, experiment.settings()) as store:
            missing = store.missing(runs)
    calls: Counter[str] = Counter()
    with Worker(experiment) as worker:
        for run in missing:
            calls[run.method] += worker.calls(run)
    print(
        f"{len(runs)} runs, {len(missing)} of them without a result: {calls.total():,} program calls at most, those on "
        "held-out examples included"
    )
    for method, count in calls.items():
        print(f"  {method}: {count:,}")
    return 0


def _executor(args: argparse.Namespace) -> Executor:
    """What makes the runs: this process, further ones, or a Ray cluster."""
    jobs = args.jobs or max(1, len(args.api_base))
    if args.ray is not None:
        return partial(on_ray, address=args.ray, num_workers=args.jobs)
    return here if jobs == 1 else partial(in_processes, num_workers=jobs)


def _write(args: argparse.Namespace) -> int:
    """Write the files of a part, of the results in a folder."""
    path = results_path(args.out)
    if not path.is_file():
        raise ValueError(f"no results in {args.out}: make some with plr-dspy experiment run --out {args.out}")
    for written in args.save(read_results(path), args.to or args.out / args.part):
        print(written)
    return 0


def _save_tables(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write the tables of the paper's methods, with what it reports for them."""
    results = [result for result in results if result.method in METHODS]
    if not results:
        raise ValueError(f"no results of {', '.join(METHODS)}: make some with plr-dspy experiment run")
    published = load_published()
    sentence = published.sentence(in_order({result.task for result in results}, TASKS))
    notes = [] if sentence is None else [sentence]
    return save_tables(results, folder, published=published.cells(), notes=notes)
