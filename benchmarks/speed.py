"""What a compile costs beside its program calls, and how fast calls are made.

python benchmarks/speed.py                     # all but prefixes: 4 minutes
python benchmarks/speed.py --parts prefixes    # the local model: prompts that share their demos one after another

cells      milliseconds and memory for each scored example, of 100,000
rounds     milliseconds of CPU of an ask and a tell at the end of compiles with so many calls
threads    seconds against a loop of `dspy.Evaluate`: a call takes 50 ms, or 1 s for one in 20
pools      milliseconds to find 8 demos for an input among so many, by the words that they share
prefixes   calls a second in order and shuffled, of 6 orders on 25 reviews with `--demos`
"""

import hashlib
import logging
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import dspy
import numpy as np
import replay
from command import options, print_table
from landscapes import SyntheticLandscape
from replay import metric

from paper.held_out import HeldOut
from plr_dspy import CrossEntropySearch, OrderingSpace, PlainTextAdapter
from plr_dspy.data import load_reviews
from plr_dspy.local import LocalServer
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.retrieval.nearest import NearestDemos, Pool
from plr_dspy.search.search import ThompsonSearch


def questions(name: str, count: int) -> list[dspy.Example]:
    """Examples that are all answered alike."""
    return [dspy.Example(question=f"{name} {i}", label="a").with_inputs("question") for i in range(count)]


class Answering(dspy.Module):
    """Answers at once, or after a while that the question and the demos decide."""

    def __init__(self, *, sleeps: bool) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> label")
        self.sleeps = sleeps
        self.answer.demos = questions("demo", 8)

    def seconds(self, question: str) -> float:
        text = question + "|".join(demo.question for demo in self.answer.demos)
        return 1.0 if int(hashlib.sha256(text.encode()).hexdigest(), 16) % 20 == 0 else 0.05

    def forward(self, question: str) -> dspy.Prediction:
        if self.sleeps:
            time.sleep(self.seconds(question))
        return dspy.Prediction(label="a")


def cells(_: int) -> Iterator[dict[str, Any]]:
    """Of 100 orders on 1,000 examples, with a log on disk."""
    examples = questions("question", 1_000)
    orders = OrderingSpace.of_sizes(8).draw(101, np.random.default_rng(0))
    scored = {"metric": metric, "examples": examples, "num_threads": 8}
    HeldOut(Answering(sleeps=False), **scored).rows(orders[:1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        HeldOut(Answering(sleeps=False), **scored, folder=Path(folder)).rows(orders[1:])
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield {"ms a cell": f"{seconds / 100:.2f}", "KB a cell": f"{(after - before) / 100_000:.1f}"}


def timed(method: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    """A method that keeps the milliseconds of CPU that each call of it takes, whatever else is running."""

    def timing(*args: Any) -> Any:
        start = time.process_time()
        found = method(*args)
        taken.append(1_000 * (time.process_time() - start))
        return found

    return timing


def rounds(_: int) -> Iterator[dict[str, Any]]:
    ways = {"by scores": ("light", ThompsonSearch), "by log-probabilities": ("logprobs", ThompsonSearch)}
    ways["the paper's"] = ("paper", CrossEntropySearch)
    for num_demos, num_calls in ((8, 1_000), (8, 10_000), (16, 10_000), (32, 10_000)):
        landscape = SyntheticLandscape("mixed", num_demos, 0, num_examples=200)
        means = {}
        for name, (mode, kind) in ways.items():
            taken = []
            with mock.patch.multiple(kind, ask=timed(kind.ask, taken), tell=timed(kind.tell, taken)):
                replay.compiled(replay.Pool(landscape, 160), mode, num_calls, seed=0)
            means[f"{name}, ms"] = f"{sum(taken[-20:]) / 10:.1f}"
        yield {"demos": num_demos, "calls": f"{num_calls:,}", **means}


def threads(_: int, num_threads: int = 16) -> Iterator[dict[str, Any]]:
    logging.getLogger("dspy.evaluate").setLevel(logging.WARNING)
    student = Answering(sleeps=True)
    devset = questions("question", 100)
    slots = ProgramSlots(student)
    factory = ProgramFactory(student)
    evaluate = dspy.Evaluate(devset=devset, metric=metric, num_threads=num_threads, display_progress=False)
    for number in range(3):
        orders = slots.space.draw(15, np.random.default_rng(number))
        programs = [factory.build(slots.demos(order)) for order in orders]
        bound = sum(p.seconds(e.question) for p in programs for e in devset) / num_threads
        start = time.perf_counter()
        HeldOut(student, metric=metric, examples=devset, num_threads=num_threads).rows(orders)
        ours = time.perf_counter() - start
        start = time.perf_counter()
        for program in programs:
            evaluate(program)
        plain = time.perf_counter() - start
        taken = {"latency / threads, s": bound, "plr_dspy": ours, "Evaluate": plain}
        taken |= {"Evaluate / plr_dspy": plain / ours, "plr_dspy / latency": ours / bound}
        yield {name: f"{each:.2f}" for name, each in taken.items()}


def pools(num_demos: int) -> Iterator[dict[str, Any]]:
    """Inputs have 20 words of 5,000, the first ones more often."""
    rng = np.random.default_rng(0)
    for size in (100, 1_000, 10_000):
        words = (5_000 * rng.random((size + 200, 20)) ** 3).astype(int)
        texts = [" ".join(f"word{number}" for number in row) for row in words]
        demos = [dspy.Example(text=text, label=f"label {i % 5}") for i, text in enumerate(texts[:size])]
        pool = Pool(dspy.Predict("text -> label"), demos, [""] * size)
        taken = []
        shown = timed(pool.shown, taken)
        for text in texts[size:]:
            shown({"text": text}, NearestDemos(num_demos))
        yield {"demos": f"{size:,}", "an input, ms (median)": f"{median(taken):.1f}"}


def prefixes(num_demos: int, num_examples: int = 25) -> Iterator[dict[str, Any]]:
    student = dspy.Predict("review -> sentiment: Literal['negative', 'positive']")
    reviews = load_reviews("train")
    student.demos = reviews[:num_demos]
    examples = reviews[num_demos : num_demos + num_examples]
    slots = ProgramSlots(student)
    names = [str(i) for i in range(num_examples)]
    work = MetricWork(lambda example, prediction: example.sentiment == prediction.sentiment, examples)
    with LocalServer() as server, dspy.context(lm=server.lm(max_tokens=4), adapter=PlainTextAdapter()):
        for seed, name in enumerate(("ordering by ordering", "shuffled")):
            orders = slots.space.draw(6, np.random.default_rng(seed))
            cells = [((slots.fingerprint(order), i), order) for order in orders for i in range(num_examples)]
            if name == "shuffled":
                random.Random(0).shuffle(cells)
            evaluator = ProgramEvaluator(slots, work, names=names, num_threads=2)
            start = time.perf_counter()
            evaluator.pay(dict(cells))
            yield {"calls": name, "a second": f"{len(cells) / (time.perf_counter() - start):.1f}"}


def main() -> None:
    parts = {part.__name__: part for part in (cells, rounds, threads, pools, prefixes)}
    args = options(__doc__, among={"parts": list(parts)}, parts=[*parts][:-1], demos=8)
    for part in args.parts:
        print(f"\n{part}\n", flush=True)
        print_table(parts[part](args.demos))


if __name__ == "__main__":
    main()
