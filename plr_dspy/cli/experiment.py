"""`plr-dspy experiment`: the paper's protocol, one command each."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from plr_dspy.cli.checks import check_count
from plr_dspy.experiments.names import (
    ABLATIONS,
    CLASSIFICATION,
    LOCAL,
    METHODS,
    REASONING,
    RESULTS,
    Format,
    MetricName,
    check_method,
)
from plr_dspy.experiments.runs.served_model import ServedModel

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
    for name, text in (
        ("table", "accuracy, paired comparisons and calls, as Markdown, LaTeX and CSV"),
        ("ablation", "the ablations, as a table and a picture"),
        ("figure", "accuracy by calls, and by learnt probability, as pictures"),
    ):
        part = parts.add_parser(name, help=text, description=f"Write {text}, of the results in a folder.")
        part.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder of the results")
        part.add_argument("--to", type=Path, help=f"folder for the files (default: OUT/{name})")
        part.set_defaults(run=_write, part=name)


def _add_grid(add: Callable[..., Any]) -> None:
    """Add the options that say what is run."""
    tasks = (*CLASSIFICATION, *REASONING)
    of_tasks = f"of {', '.join(tasks)} (default: {' '.join(CLASSIFICATION)})"
    several = partial(add, nargs="+")
    several("--tasks", default=list(CLASSIFICATION), choices=sorted(tasks), metavar="TASK", help=of_tasks)
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


def _run(args: argparse.Namespace) -> int:
    for method in args.methods:
        check_method(method)
    for option in ("threads", "jobs", "pool", "test"):
        check_count(getattr(args, option), option)
    served_model = ServedModel(args.model, tuple(args.api_base), args.api_key_env, cache=args.cache)
    served_model.check_key()
    from plr_dspy.cli.experiment_parts import make_runs

    return make_runs(args, served_model)


def _write(args: argparse.Namespace) -> int:
    if not (args.out / RESULTS).is_file():
        raise ValueError(f"no results in {args.out}: make some with plr-dspy experiment run --out {args.out}")
    from plr_dspy.cli.experiment_parts import write_part

    return write_part(args)
