"""The default search beside the paper's on the local model: held-out accuracy, program calls and time.

python benchmarks/live.py --data-dir DATA --task mr --seeds 0 1 2
python benchmarks/live.py --data-dir DATA --task subj --seeds 0

8 demos, 80 train, 20 selection and 200 held-out examples; the paper's search pays for distinct calls only.
Every call is kept in `--out`, so that what was stopped goes on (and is not counted as time).
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import dspy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from quickstart import Task, load_task

from plr_dspy import PlainTextAdapter, PLReorder
from plr_dspy.evaluation import program_scorer
from plr_dspy.ledger import Ledger
from plr_dspy.local import local_lm
from plr_dspy.slots import ProgramSlots
from plr_dspy.statistics import paired_interval

METHODS = {"default": {"max_metric_calls": 1_820}, "paper": {"auto": "paper"}}


def held_out(program: dspy.Module, task: Task, test: list[dspy.Example], folder: Path) -> list[float]:
    """Scores by example; the calls are kept in the folder."""
    slots = ProgramSlots(program)
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder / "held_out.jsonl")
    scorer = program_scorer(program, slots, metric=task.metric, examples=test, num_threads=2, ledger=ledger)
    _, (row,) = scorer.table([slots.space.identity], range(len(test)))
    ledger.close()
    return row


def run(task: Task, seed: int, args: argparse.Namespace) -> None:
    """One seed, all methods."""
    rng = random.Random(seed)
    trainset, test = rng.sample(task.train, args.pool + args.demos), rng.sample(task.test, args.test)
    program = dspy.LabeledFewShot(k=args.demos).compile(dspy.Predict(task.signature), trainset=trainset)
    folder = args.out / args.task / f"seed{seed}"
    original = held_out(program, task, test, folder / "original")
    print(f"seed {seed}: original {sum(original) / len(test):.3f}", flush=True)
    rows = {}
    for name in args.methods:
        optimizer = PLReorder(
            task.metric,
            **METHODS[name],
            num_threads=2,
            seed=seed,
            log_dir=folder / name,
            display_progress=False,
        )
        compiled = optimizer.compile(program, trainset=trainset)
        rows[name] = held_out(compiled, task, test, folder / name)
        report = optimizer.report
        print(
            f"seed {seed}: {name} {sum(rows[name]) / len(test):.3f}, {report.program_calls['total']:,} calls "
            f"({report.program_calls['resumed']:,} of an earlier part), {report.seconds:.0f} s",
            flush=True,
        )
    if len(rows) == len(METHODS):
        differences = [a - b for a, b in zip(rows["default"], rows["paper"], strict=True)]
        low, high = paired_interval(differences)
        gain = sum(differences) / len(differences)
        print(f"seed {seed}: default - paper {gain:+.3f} [{low:+.3f}, {high:+.3f}]", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="mr")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--demos", type=int, default=8)
    parser.add_argument("--pool", type=int, default=100)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/live"))
    args = parser.parse_args()
    task = load_task(args.task, args.data_dir)
    with local_lm(cache=False) as lm, dspy.context(lm=lm, adapter=PlainTextAdapter()):
        for seed in args.seeds:
            run(task, seed, args)


if __name__ == "__main__":
    main()
