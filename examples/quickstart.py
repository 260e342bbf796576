"""Order the demos of a sentiment program on a local model, and look at the result on held-out reviews.

python examples/quickstart.py                                       # the bundled reviews
python examples/quickstart.py --task mr --data-dir data             # data/mr_train.jsonl, data/mr_test.jsonl
python examples/quickstart.py --seeds 0 1 2 3 4                     # five runs with fresh demos each
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dspy
from tqdm import tqdm

from paper.data import DataError, load
from paper.held_out import HeldOut
from paper.tasks import CLASSIFICATION, TASKS, Task
from plr_dspy import CrossEntropySearch, PLReorder
from plr_dspy.data import load_reviews
from plr_dspy.local import local_lm
from plr_dspy.statistics.comparisons import mean_interval, paired_interval

BUNDLED = "reviews"


@dataclass(frozen=True)
class Data:
    """A task, and the parts of its examples."""

    task: Task
    train: list[dspy.Example]
    test: list[dspy.Example]


def load_data(name: str, data_dir: Path | None) -> Data:
    """The bundled reviews, or a task's examples from a folder."""
    if name == BUNDLED:
        return Data(TASKS["mr"], load_reviews("train"), load_reviews("test"))
    return Data(TASKS[name], *load(TASKS[name], data_dir=data_dir or Path()))


@dataclass(frozen=True)
class Result:
    """Held-out scores of one run: one row for each order, one column for each example."""

    original: list[float]
    chosen: list[float]
    random: list[list[float]]
    calls: int
    seconds: float

    @property
    def gain(self) -> float:
        return mean(self.chosen) - mean(self.original)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def run(data: Data, args: argparse.Namespace, seed: int) -> Result:
    """Choose demos, order them, save the program, and score orders on held-out examples."""
    rng = random.Random(seed)
    trainset = rng.sample(data.train, min(args.pool + args.demos, len(data.train)))
    test = rng.sample(data.test, min(args.test, len(data.test)))

    student = dspy.Predict(data.task.signature)
    program = dspy.LabeledFewShot(k=args.demos).compile(student, trainset=trainset)
    optimizer = PLReorder(
        data.task.metric(),
        update=args.update,
        auto=args.auto,
        max_metric_calls=args.max_calls,
        signal=args.signal,
        num_threads=args.threads,
        seed=seed,
    )
    ordered = optimizer.compile(program, trainset=trainset)
    print(optimizer.report)
    args.out.mkdir(parents=True, exist_ok=True)
    ordered.save(args.out / "program.json")
    optimizer.report.save(args.out / "report.json")

    print(f"scoring {args.random_orders + 2} orders on {len(test)} held-out examples ...", flush=True)
    new_held_out = partial(HeldOut, metric=data.task.metric(), examples=test, num_threads=args.threads)
    held_out = new_held_out(program)
    random_orders = CrossEntropySearch(held_out.slots.space, seed=seed + 1).draw(args.random_orders)
    return Result(
        original=held_out.scores(),
        chosen=new_held_out(ordered).scores(),
        random=[held_out.rows([order])[0] for order in tqdm(random_orders, desc="random orders", unit="order")],
        calls=optimizer.report.program_calls["total"],
        seconds=optimizer.report.seconds,
    )


def print_result(result: Result) -> None:
    """One small table."""
    gains = [b - a for a, b in zip(result.original, result.chosen, strict=True)]
    low, high = paired_interval(gains)
    spread = sorted(mean(scores) for scores in result.random)
    print(f"\norder            accuracy on {len(gains)} held-out examples")
    print(f"original         {mean(result.original):.3f}")
    print(
        f"chosen           {mean(result.chosen):.3f}   gain {result.gain:+.3f}, 95 % interval [{low:+.3f}, {high:+.3f}]"
    )
    if len(spread) == 1:
        print(f"a random order   {spread[0]:.3f}")
    else:
        print(f"{len(spread):2d} random orders {mean(spread):.3f}   worst {spread[0]:.3f}, best {spread[-1]:.3f}")
    print(f"{result.calls:,} program calls and {result.seconds:.0f} s to choose the order")


def print_seeds(results: dict[int, Result]) -> None:
    """One line a seed, and the mean gain with an interval over seeds."""
    print("\nseed  original  chosen    gain   random: worst   mean   best   calls  seconds")
    for seed, r in results.items():
        spread = sorted(mean(scores) for scores in r.random)
        print(
            f"{seed:4d}  {mean(r.original):8.3f}  {mean(r.chosen):6.3f}  {r.gain:+6.3f}  "
            f"{spread[0]:13.3f}  {mean(spread):5.3f}  {spread[-1]:5.3f}  {r.calls:6,}  {r.seconds:7.0f}"
        )
    gains = [r.gain for r in results.values()]
    over_seeds = mean_interval(gains)
    pooled = [b - a for r in results.values() for a, b in zip(r.original, r.chosen, strict=True)]
    over_examples = paired_interval(pooled)
    print(
        f"mean gain {mean(gains):+.3f}; 95 % intervals: "
        f"over {len(gains)} seeds [{over_seeds[0]:+.3f}, {over_seeds[1]:+.3f}], "
        f"over {len(pooled):,} paired examples [{over_examples[0]:+.3f}, {over_examples[1]:+.3f}]"
    )


def parse_args() -> argparse.Namespace:
    def at_least(least: int) -> Callable[[str], int]:
        def number(text: str) -> int:
            if int(text) < least:
                raise argparse.ArgumentTypeError(f"must be at least {least}")
            return int(text)

        return number

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default=BUNDLED, choices=[BUNDLED, *CLASSIFICATION])
    parser.add_argument("--data-dir", type=Path, help="folder with TASK_train.jsonl and TASK_test.jsonl")
    parser.add_argument("--demos", type=at_least(2), default=8, help="demos in the prompt")
    parser.add_argument("--pool", type=at_least(2), default=200, help="labelled examples beside the demos")
    parser.add_argument("--test", type=at_least(1), default=100, help="held-out examples")
    parser.add_argument("--random-orders", type=at_least(1), default=12, help="orders that show the spread")
    parser.add_argument("--update", default="mle", choices=["mle", "ema", "mixture"])
    parser.add_argument("--auto", default="light", choices=["light", "medium", "heavy", "paper"])
    parser.add_argument("--max-calls", type=at_least(1), help="program calls at most, instead of --auto's")
    parser.add_argument("--signal", default="auto", choices=["auto", "score", "logprobs"])
    parser.add_argument("--seeds", type=at_least(0), nargs="+", default=[0], help="one run with fresh demos for each")
    parser.add_argument("--threads", type=at_least(1), default=2, help="calls under way at once")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/quickstart"), help="folder of the last program and report"
    )
    args = parser.parse_args()
    if args.data_dir is not None and args.task == BUNDLED:
        parser.error("--data-dir needs --task; the bundled reviews are in the package")
    return args


def main() -> None:
    args = parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("plr_dspy").setLevel(logging.INFO)
    started = time.monotonic()
    try:
        data = load_data(args.task, args.data_dir)
    except DataError as error:
        raise SystemExit(f"quickstart: {error}") from error
    results = {}
    with local_lm() as lm, dspy.context(lm=lm, adapter=data.task.adapter("plain")):
        for seed in args.seeds:
            results[seed] = run(data, args, seed)
            print_result(results[seed])
    if len(results) > 1:
        print_seeds(results)
    print(f"saved {args.out / 'program.json'} and report.json; {time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
