"""A script that orders a sentiment program's demos on a local model, and scores orders on held-out reviews.

python examples/quickstart.py                                       # the bundled reviews
python examples/quickstart.py --task mr                             # a task of the paper, from the Hugging Face hub
python examples/quickstart.py --task mr --data-dir data             # data/mr_train.jsonl, data/mr_test.jsonl
python examples/quickstart.py --seeds 0 1 2 3 4                     # five runs with different demos
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import dspy

from paper.data import DataError, load
from paper.tasks import CLASSIFICATION, TASKS, Task
from plr_dspy import Evaluation, PLReorder, evaluate_programs
from plr_dspy.data import load_reviews
from plr_dspy.local import local_lm
from plr_dspy.statistics.comparisons import mean_interval

BUNDLED = "reviews"
MINIMUMS = {"demos": 2, "pool": 2, "test": 2, "random_orders": 1, "threads": 1}


@dataclass(frozen=True)
class Data:
    """A task and its examples."""

    task: Task
    train: list[dspy.Example]
    test: list[dspy.Example]


def load_data(name: str, data_dir: Path | None) -> Data:
    """Load the bundled reviews, or the examples of a task."""
    if name == BUNDLED:
        return Data(TASKS["mr"], load_reviews("train"), load_reviews("test"))
    train, test = load(TASKS[name], data_dir=data_dir)
    return Data(TASKS[name], train, test)


@dataclass(frozen=True)
class Result:
    """The held-out accuracy of each order, and the cost of the search."""

    evaluation: Evaluation
    calls: int
    seconds: float

    @property
    def original(self) -> float:
        return self.evaluation.programs["original"].score

    @property
    def chosen(self) -> float:
        return self.evaluation.programs["chosen"].score

    @property
    def gain(self) -> float:
        return self.chosen - self.original

    @property
    def random_orders(self) -> list[float]:
        """Accuracies of the random orders, in ascending order."""
        programs = self.evaluation.programs
        return sorted(programs[name].score for name in programs if name.startswith("random"))


def run(data: Data, args: argparse.Namespace, seed: int) -> Result:
    """Draw and order demos, save the program, and score several orders on held-out examples."""
    rng = random.Random(seed)
    trainset = rng.sample(data.train, min(args.pool + args.demos, len(data.train)))
    testset = rng.sample(data.test, min(args.test, len(data.test)))
    metric = data.task.metric()

    student = dspy.Predict(data.task.signature)
    program = dspy.LabeledFewShot(k=args.demos).compile(student, trainset=trainset)
    optimizer = PLReorder(
        metric,
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

    programs = {"original": program, "chosen": ordered}
    for number in range(args.random_orders):
        shuffled = program.deepcopy()
        rng.shuffle(shuffled.demos)
        programs[f"random {number}"] = shuffled
    print(f"scoring {len(programs)} orders on {len(testset)} held-out examples ...", flush=True)
    evaluation = evaluate_programs(programs, metric, testset, num_threads=args.threads)
    return Result(evaluation, optimizer.report.program_calls["total"], optimizer.report.seconds)


def print_result(result: Result) -> None:
    """Print the accuracy of each order."""
    chosen = result.evaluation.programs["chosen"]
    low, high = chosen.difference_interval or (0.0, 0.0)
    scores = result.random_orders
    print(f"\norder            accuracy on {result.evaluation.num_examples} held-out examples")
    print(f"original         {result.original:.3f}")
    print(
        f"chosen           {result.chosen:.3f}   gain {result.gain:+.3f}, 95% interval [{low:+.3f}, {high:+.3f}]"
    )
    if len(scores) == 1:
        print(f"a random order   {scores[0]:.3f}")
    else:
        print(
            f"{len(scores):2d} random orders {mean(scores):.3f}   worst {scores[0]:.3f}, best {scores[-1]:.3f}"
        )
    print(f"{result.calls:,} program calls and {result.seconds:.0f} s to choose the order")


def print_seeds(results: dict[int, Result]) -> None:
    """Print a line for each seed, and then the mean gain over seeds with its interval."""
    print("\nseed  original  chosen    gain   random: worst   mean   best   calls  seconds")
    for seed, result in results.items():
        scores = result.random_orders
        print(
            f"{seed:4d}  {result.original:8.3f}  {result.chosen:6.3f}  {result.gain:+6.3f}  "
            f"{scores[0]:13.3f}  {mean(scores):5.3f}  {scores[-1]:5.3f}  {result.calls:6,}  {result.seconds:7.0f}"
        )
    gains = [result.gain for result in results.values()]
    low, high = mean_interval(gains)
    print(f"mean gain {mean(gains):+.3f}, 95% interval over {len(gains)} seeds [{low:+.3f}, {high:+.3f}]")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--task", default=BUNDLED, choices=[BUNDLED, *CLASSIFICATION])
    add(
        "--data-dir",
        type=Path,
        help="folder with TASK_train.jsonl and TASK_test.jsonl (default: the Hugging Face hub)",
    )
    add("--demos", type=int, default=8, help="number of demos in the prompt")
    add("--pool", type=int, default=200, help="number of labeled examples besides the demos")
    add("--test", type=int, default=100, help="number of held-out examples")
    add("--random-orders", type=int, default=12, help="number of random orders to score for comparison")
    add("--update", default="mle", choices=["mle", "ema", "mixture"])
    add("--auto", default="light", choices=["light", "medium", "heavy", "paper"])
    add("--max-calls", type=int, help="maximum number of program calls, instead of the limit from --auto")
    add("--signal", default="auto", choices=["auto", "score", "logprobs"])
    add("--seeds", type=int, nargs="+", default=[0], help="seeds; each run draws its own demos")
    add("--threads", type=int, default=2, help="number of concurrent calls")
    add(
        "--out",
        type=Path,
        default=Path("runs/quickstart"),
        help="folder for the program and the report of the last run",
    )
    args = parser.parse_args()
    for name, minimum in MINIMUMS.items():
        if getattr(args, name) < minimum:
            parser.error(
                f"--{name.replace('_', '-')} must be at least {minimum}; got {getattr(args, name)}"
            )
    if args.data_dir is not None and args.task == BUNDLED:
        parser.error(f"--data-dir={args.data_dir} requires a task: pass --task, or omit --data-dir")
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
    print(f"saved {args.out / 'program.json'} and report.json; {time.monotonic() - started:.0f} s in total")


if __name__ == "__main__":
    main()
