"""What `plr-dspy experiment` runs, once its arguments are checked."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from plr_dspy.cli.log_levels import logged
from plr_dspy.experiments.analysis.outputs import save_ablations, save_figures, save_tables
from plr_dspy.experiments.analysis.published import load_published
from plr_dspy.experiments.names import ABLATIONS, METHODS
from plr_dspy.experiments.runs.executors import Executor, here, in_processes, on_ray
from plr_dspy.experiments.runs.grid import run_grid
from plr_dspy.experiments.runs.protocol import Protocol, grid
from plr_dspy.experiments.runs.results import Result, Run, read_results
from plr_dspy.experiments.runs.runner import Experiment, Worker
from plr_dspy.experiments.runs.served_model import ServedModel
from plr_dspy.experiments.runs.store import Store, results_path
from plr_dspy.runtime.redaction import Redactor
from plr_dspy.runtime.signals import Interrupts


def make_runs(args: argparse.Namespace, served_model: ServedModel) -> int:
    """Make the runs of a grid that have no result yet, and say what became of them."""
    methods = list(dict.fromkeys([*args.methods, *(m for name in args.ablations for m in ABLATIONS[name])]))
    runs = grid(
        tasks=args.tasks, num_demos=args.num_demos, seeds=args.seeds, methods=methods, rankings=args.rankings
    )
    experiment = Experiment(
        Protocol(pool=args.pool, test=args.test, format=args.format, metric=args.metric),
        served_model,
        folder=args.out.resolve(),
        data_dir=None if args.data_dir is None else args.data_dir.resolve(),
        num_threads=args.threads,
    )
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


def write_part(args: argparse.Namespace) -> int:
    """Write the files of a part, of the results in a folder."""
    save = {"table": _save_tables, "ablation": _save_ablations, "figure": save_figures}[args.part]
    for written in save(read_results(results_path(args.out)), args.to or args.out / args.part):
        print(written)
    return 0


def _save_tables(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write the tables of the paper's methods, with what it reports for them."""
    results = [result for result in results if result.method in METHODS]
    if not results:
        raise ValueError(f"no results of {', '.join(METHODS)}: make some with plr-dspy experiment run")
    return save_tables(results, folder, published=load_published())


def _save_ablations(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write the ablations, with what the paper reports for them."""
    return save_ablations(results, folder, published=load_published())
