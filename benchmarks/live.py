"""What a call tells, live: held-out accuracy of several ways to spend calls, over tasks and draws of demos.

python benchmarks/live.py --tasks mr subj --data-dir DATA --sides original PLReorder@250 scores@250 scores@1000
python benchmarks/live.py --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 --threads 8 ...

The sides: the program in its original order; `PLReorder` as it is, learning from scores alone, and with
`calibrate=True`; Top-K, and Top-K by calibrated answers; the original order calibrated (64 calls without a number).
A side is a name of the list below and, after @, its program calls. All sides of a draw begin with the same labelled
examples and demos, and meet the same held-out examples. What is done is kept in `--out` by everything that decides it,
so that the same command goes on where it was stopped; the tables come from there.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import numpy as np
from kept import folder_of, kept

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from paper.held_out import HeldOut
from paper.model import LOCAL, ServedModel
from paper.tasks import CLASSIFICATION
from plr_dspy import BatchCalibration, CalibratedProgram, PLReorder
from plr_dspy.baselines import StaticOrder, TopKOrder
from plr_dspy.labels.batch_calibration import read_replies
from plr_dspy.labels.calibrated_program import calibrated_output
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.statistics.calibration import calibrated
from plr_dspy.statistics.comparisons import mean_interval
from quickstart import Data, load_data, mean

Side = Callable[..., tuple[dspy.Module, int]]
"""Compiles a program on a trainset, with a metric, a number of calls, a seed and threads; gives it and its calls."""

ORDERS = 10
"""Of Top-K: each on a tenth of the calls."""


def by(kind: Callable[..., Reorderer], **options: Any) -> Side:
    """The side of an optimizer of orders."""

    def compiled(
        program: dspy.Module, trainset: list[dspy.Example], *, metric: Any, calls: int | None, **common: Any
    ) -> tuple[dspy.Module, int]:
        budget = {} if calls is None else {"max_metric_calls": calls}
        optimizer = kind(metric, display_progress=False, **options, **budget, **common)
        made = optimizer.compile(program, trainset=trainset)
        return made, optimizer.report.program_calls["total"]

    return compiled


def calibrated_alone(
    program: dspy.Module,
    trainset: list[dspy.Example],
    *,
    metric: Any,
    calls: int | None,
    seed: int,
    num_threads: int,
) -> tuple[dspy.Module, int]:
    """The program in its own order, calibrated."""
    optimizer = BatchCalibration(
        num_inputs=calls or 64, num_threads=num_threads, seed=seed, display_progress=False
    )
    made = optimizer.compile(program, trainset=trainset)
    return made, made.calibration.num_inputs


def top_k_calibrated(
    program: dspy.Module,
    trainset: list[dspy.Example],
    *,
    metric: Any,
    calls: int | None,
    seed: int,
    num_threads: int,
) -> tuple[dspy.Module, int]:
    """The best of random orders by calibrated answers, each calibrated on the inputs that it is scored on."""
    rng = random.Random(seed)
    output = calibrated_output(program, None)
    demos = program.predictors()[0].demos
    pool = [example for example in trainset if not any(example.toDict() == dict(demo) for demo in demos)]
    examples = rng.sample(pool, min(len(pool), (calls or 250) // ORDERS))
    right = np.array([list(output.labels).index(example[output.name]) for example in examples])
    best, found = -1.0, program
    for number in range(ORDERS):
        order = list(demos) if not number else rng.sample(list(demos), len(demos))
        ordered = program.deepcopy()
        ordered.predictors()[0].demos = order
        told = read_replies(ordered, examples, output, num_threads=num_threads, max_errors=1)
        kept = told.calibrated_to()
        moved = calibrated(told.log_probabilities, kept.offsets, unseen=told.unseen)
        correct = moved.argmax(axis=1) == right[told.inputs]
        if correct.sum() / len(examples) > best:
            best = correct.sum() / len(examples)
            found = CalibratedProgram(ordered, kept)
    return found, ORDERS * len(examples)


SIDES: Mapping[str, Side] = {
    "original": by(StaticOrder),
    "PLReorder": by(PLReorder),
    "scores": by(PLReorder, signal="score"),
    "TopKOrder": by(TopKOrder),
    "calibrated": calibrated_alone,
    "calibrate": by(PLReorder, calibrate=True),
    "TopK calibrated": top_k_calibrated,
}


@dataclass(frozen=True)
class Result:
    """Held-out scores by example, and what it took to get there."""

    scores: list[float]
    program_calls: int
    seconds: float

    @property
    def accuracy(self) -> float:
        return mean(self.scores)


def draw(data: Data, seed: int, args: argparse.Namespace) -> dict[str, Result]:
    """What each side comes to on one draw of demos and examples."""
    rng = random.Random(seed)
    trainset = rng.sample(data.train, min(args.pool + args.demos, len(data.train)))
    test = rng.sample(data.test, min(args.test, len(data.test)))
    program = dspy.LabeledFewShot(k=args.demos).compile(dspy.Predict(data.task.signature), trainset=trainset)
    found = {}
    for side in args.sides:
        folder = folder_of(
            args, script=__file__, task=data.task.name, seed=seed, side=side, examples=[trainset, test]
        )
        make = partial(run, side, program, trainset, test, data=data, seed=seed, args=args)
        found[side] = result = Result(**kept(folder, make))
        print(
            f"{data.task.name}, draw {seed}: {side} {result.accuracy:.3f}, {result.program_calls:,} calls, "
            f"{result.seconds:.0f} s",
            flush=True,
        )
    return found


def run(
    side: str,
    program: dspy.Module,
    trainset: list[dspy.Example],
    test: list[dspy.Example],
    *,
    data: Data,
    seed: int,
    args: argparse.Namespace,
) -> Result:
    """Compile the program, and score it on the held-out examples."""
    name, _, calls = side.partition("@")
    metric = data.task.metric()
    began = time.perf_counter()
    compiled, num_calls = SIDES[name](
        program,
        trainset,
        metric=metric,
        calls=int(calls) if calls else None,
        seed=seed,
        num_threads=args.threads,
    )
    seconds = time.perf_counter() - began
    held_out = HeldOut(compiled, metric=metric, examples=test, num_threads=args.threads)
    return Result(held_out.scores(), num_calls, seconds)


def table(draws: list[dict[str, Result]]) -> str:
    """Lines of Markdown: each side, and its difference to each side before it, with 95 % intervals over the draws."""
    sides = list(draws[0])
    rows = [["", "accuracy", *(f"less {side}" for side in sides[:-1]), "calls", "s"]]
    rows.append(["---"] * len(rows[0]))
    for i, side in enumerate(sides):
        results = [each[side] for each in draws]
        less = [_gain([each[side].accuracy - each[other].accuracy for each in draws]) for other in sides[:i]]
        rows.append(
            [
                side,
                f"{mean([result.accuracy for result in results]):.3f}",
                *less,
                *([""] * (len(sides) - 1 - len(less))),
                f"{mean([result.program_calls for result in results]):,.0f}",
                f"{mean([result.seconds for result in results]):.0f}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _gain(gains: list[float]) -> str:
    if len(gains) < 2:
        return f"{gains[0]:+.3f}"
    low, high = mean_interval(gains)
    return f"{mean(gains):+.3f} [{low:+.3f}, {high:+.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["mr", "subj"], choices=list(CLASSIFICATION))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--draws", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--sides", nargs="+", required=True, metavar="SIDE", help=f"of {list(SIDES)}")
    parser.add_argument("--demos", type=int, default=8)
    parser.add_argument("--pool", type=int, default=100)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--model", default=LOCAL, help="litellm name of a model with a completions endpoint")
    parser.add_argument("--api-base", nargs="+", default=[], metavar="URL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/live"))
    args = parser.parse_args()
    found: dict[str, list[dict[str, Result]]] = {task: [] for task in args.tasks}
    served_model = ServedModel(args.model, tuple(args.api_base))
    with served_model.open(format="plain") as make_lm:
        for seed, task in itertools.product(args.draws, args.tasks):
            data = load_data(task, args.data_dir)
            lm = make_lm(data.task.max_tokens("plain"))
            with dspy.context(lm=lm, adapter=data.task.adapter("plain")):
                found[task].append(draw(data, seed, args))
    for task, draws in found.items():
        print(f"\n{task}, {args.demos} demos, {len(draws)} draw(s), {args.test} held-out examples each\n")
        print(table(draws))
    if len(found) > 1:
        print(f"\nAll {len(found)} tasks\n")
        print(table([each for draws in found.values() for each in draws]))


if __name__ == "__main__":
    main()
