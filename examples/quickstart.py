"""Order the demos of a sentiment program on a local model, and look at the result on held-out reviews.

python examples/quickstart.py                                       # the bundled reviews
python examples/quickstart.py --task mr --data-dir data             # data/mr_train.jsonl, data/mr_test.jsonl
python examples/quickstart.py --task rotten_tomatoes                # a data set of the Hugging Face hub
python examples/quickstart.py --seeds 0 1 2 3 4                     # five runs with fresh demos each
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dspy

from plr_dspy import CrossEntropySearch, PlainTextAdapter, PLReorder
from plr_dspy.data import load_reviews
from plr_dspy.local import local_lm
from plr_dspy.scoring import CellScorer
from plr_dspy.slots import ProgramSlots
from plr_dspy.space import Ordering
from plr_dspy.statistics import paired_interval

FIELDS = {
    "reviews": ("review", "sentiment"),
    "mr": ("review", "sentiment"),
    "sst5": ("review", "sentiment"),
    "subj": ("input", "type"),
    "trec": ("question", "type"),
    "agnews": ("article", "topic"),
}
"""Names of the input and the output field by task; they become the titles in the prompt."""


@dataclass(frozen=True)
class Task:
    """Labelled texts and the signature that maps one to the other."""

    signature: Any
    train: list[dspy.Example]
    test: list[dspy.Example]
    output: str

    def metric(self, example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
        return bool(example[self.output] == prediction[self.output])


def load_task(name: str, data_dir: Path | None) -> Task:
    """The bundled reviews, JSON lines of {"text", "label"} in a folder, or a data set of the hub."""
    text_field, label_field = FIELDS.get(name, ("text", "label"))
    if name == "reviews":
        train, test = load_reviews("train"), load_reviews("test")
    else:
        train, test = (
            [
                dspy.Example({text_field: text, label_field: label}).with_inputs(text_field)
                for text, label in read_texts(name, data_dir, part)
            ]
            for part in ("train", "test")
        )
    labels = tuple(sorted({example[label_field] for example in train}))
    signature = dspy.Signature(
        {text_field: (str, dspy.InputField()), label_field: (Literal[labels], dspy.OutputField())}
    )
    return Task(signature, train, test, label_field)


def read_texts(name: str, data_dir: Path | None, part: str) -> list[tuple[str, str]]:
    import datasets

    if data_dir is None:
        rows = datasets.load_dataset(name, split=part)
    else:
        files = {part: str(data_dir / f"{name}_{part}.jsonl")}
        rows = datasets.load_dataset("json", data_files=files, split=part)
    to_name = getattr(rows.features["label"], "int2str", str)
    return [(row["text"].strip(), to_name(row["label"])) for row in rows]


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


def run(task: Task, args: argparse.Namespace, seed: int) -> Result:
    """Choose demos, order them, and score orders on held-out examples."""
    rng = random.Random(seed)
    trainset = rng.sample(task.train, min(args.pool + args.demos, len(task.train)))
    test = rng.sample(task.test, min(args.test, len(task.test)))

    program = dspy.LabeledFewShot(k=args.demos).compile(dspy.Predict(task.signature), trainset=trainset)
    optimizer = PLReorder(
        task.metric, update=args.update, auto=args.auto, num_threads=args.threads, seed=seed
    )
    ordered = optimizer.compile(program, trainset=trainset)
    print(optimizer.report)

    held_out = HeldOut(program, task, test, args.threads)
    random_orders = CrossEntropySearch(held_out.slots.space, seed=seed + 1).draw(args.random_orders)
    result = Result(
        original=held_out.scores(held_out.slots.space.identity),
        chosen=HeldOut(ordered, task, test, args.threads).scores(held_out.slots.space.identity),
        random=[held_out.scores(order) for order in random_orders],
        calls=optimizer.report.program_calls["total"],
        seconds=optimizer.report.seconds,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    ordered.save(args.out / "program.json")
    optimizer.report.save(args.out / "report.json")
    return result


class HeldOut:
    """Scores orders of a program on examples that no optimizer has seen."""

    def __init__(self, program: dspy.Module, task: Task, test: list[dspy.Example], threads: int) -> None:
        self.slots = ProgramSlots(program)
        self.examples = range(len(test))
        self.scorer = CellScorer(program, self.slots, metric=task.metric, examples=test, num_threads=threads)

    def scores(self, order: Ordering) -> list[float]:
        self.scorer.score([order], self.examples)
        return [self.scorer.cell(order, example).score or 0.0 for example in self.examples]


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
    over_seeds = paired_interval(gains)
    pooled = [b - a for r in results.values() for a, b in zip(r.original, r.chosen, strict=True)]
    over_examples = paired_interval(pooled)
    print(
        f"mean gain {mean(gains):+.3f}; 95 % intervals: "
        f"over {len(gains)} seeds [{over_seeds[0]:+.3f}, {over_seeds[1]:+.3f}], "
        f"over {len(pooled):,} paired examples [{over_examples[0]:+.3f}, {over_examples[1]:+.3f}]"
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="reviews", help="reviews, a task in --data-dir, or a hub data set")
    parser.add_argument("--data-dir", type=Path, help="folder with TASK_train.jsonl and TASK_test.jsonl")
    parser.add_argument("--demos", type=int, default=8, help="demos in the prompt")
    parser.add_argument("--pool", type=int, default=200, help="labelled examples beside the demos")
    parser.add_argument("--test", type=int, default=100, help="held-out examples")
    parser.add_argument("--random-orders", type=int, default=12, help="orders that show the spread")
    parser.add_argument("--update", default="mle", choices=["mle", "ema", "mixture"])
    parser.add_argument("--auto", default="light", choices=["light", "medium", "heavy", "paper"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run with fresh demos for each")
    parser.add_argument("--threads", type=int, default=2, help="calls under way at once")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/quickstart"), help="folder of the last program and report"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("plr_dspy").setLevel(logging.INFO)
    logging.getLogger("plr_dspy.teleprompter").setLevel(logging.WARNING)  # the report is printed below
    started = time.monotonic()
    task = load_task(args.task, args.data_dir)
    results = {}
    with local_lm() as lm, dspy.context(lm=lm, adapter=PlainTextAdapter()):
        for seed in args.seeds:
            results[seed] = run(task, args, seed)
            print_result(results[seed])
    if len(results) > 1:
        print_seeds(results)
    print(f"saved {args.out / 'program.json'} and report.json; {time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
