"""What a compile costs beside its program calls, and how fast calls are made.

python benchmarks/speed.py                     # all but prefixes: 4 minutes
python benchmarks/speed.py --parts prefixes    # the local model: prompts that share their demos one after another

rounds     milliseconds of CPU of an ask and a tell, of the paper's search by update, and of the default one
cells      seconds and memory for each scored example; each size runs in a process of its own
threads    seconds against a loop of `dspy.Evaluate`: a call takes 50 ms, or 1 s for one in 20
pools      milliseconds to find 8 demos for an input among so many, by the words that they share
prefixes   calls a second in order and shuffled, of 6 orders on 25 reviews with `--demos`
"""

from __future__ import annotations

import hashlib
import logging
import random
import resource
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import dspy
import numpy as np
from command import head, options, row
from scipy.special import log_softmax

from plr_dspy import CrossEntropySearch, MaximumLikelihood, MixtureEM, OrderingSpace, PlainTextAdapter, RankEMA
from plr_dspy.data import load_reviews
from plr_dspy.local import LocalServer
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator
from plr_dspy.programs.copies import ProgramFactory
from plr_dspy.programs.identity import digest
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.retrieval.rule import Pool, Rule
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import Ordering
from plr_dspy.search.thompson import ThompsonSearch
from plr_dspy.statistics.calibration import shares_to_try


def questions(name: str, count: int) -> list[dspy.Example]:
    """Examples that are all answered alike."""
    return [dspy.Example(question=f"{name} {i}", answer="a").with_inputs("question") for i in range(count)]


class Answering(dspy.Module):
    """Answers at once, or after a while that the question and the demos decide."""

    def __init__(self, *, sleeps: bool) -> None:
        super().__init__()
        self.answer, self.sleeps = dspy.Predict("question -> answer"), sleeps
        self.answer.demos = questions("demo", 8)

    def seconds(self, question: str) -> float:
        text = question + "|".join(demo.question for demo in self.answer.demos)
        return 1.0 if int(hashlib.sha256(text.encode()).hexdigest(), 16) % 20 == 0 else 0.05

    def forward(self, question: str) -> dspy.Prediction:
        if self.sleeps:
            time.sleep(self.seconds(question))
        return dspy.Prediction(answer="a")


def metric(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> bool:
    return bool(example.answer == prediction.answer)


def shuffled_orders(num_demos: int, count: int, seed: int) -> list[Ordering]:
    rng = random.Random(seed)
    return [(tuple(rng.sample(range(num_demos), num_demos)),) for _ in range(count)]


def milliseconds(function: Callable[[], object]) -> float:
    """The median CPU time of a function in 20 rounds, after one call to warm up."""
    function()
    timer = time.process_time  # Whatever else is running.
    return 1_000 * statistics.median(timeit.repeat(function, number=1, repeat=20, timer=timer))


def paper_round(rule: object, num_demos: int) -> float:
    """Time of an ask and a tell of the paper's search."""
    search = CrossEntropySearch(OrderingSpace.of_sizes(num_demos), update=rule, seed=0)

    def one_round() -> None:
        orderings = search.ask()
        search.tell(orderings, {ordering: {0: i / 100} for i, ordering in enumerate(orderings)})

    return milliseconds(one_round)


def default_round(num_demos: int, num_cells: int, *, by_labels: bool) -> float:
    """CPU time of an ask and a tell of the default search that knows so many scores, 8 to 40 an ordering.

    They are of two labels, and where told `by_labels`, the log-probabilities of these are known, too.
    """
    rng, right = np.random.default_rng(0), [i % 2 for i in range(160)]
    table = np.eye(2)[right]
    told: dict[tuple[Ordering, int], list[float]] = {}
    responses = LabelResponses(table, lambda *cell: (told[cell], ()), shares=shares_to_try(table))
    search = ThompsonSearch(
        OrderingSpace.of_sizes(num_demos),
        num_examples=160,
        classes=[[i % 2 for i in range(num_demos)]],
        example_classes=right,
        responses=responses if by_labels else None,
    )
    known: dict[Ordering, dict[int, float]] = {}

    def tell(orderings: list[Ordering]) -> None:
        for ordering in orderings:
            scores = known.setdefault(ordering, {})
            more = rng.permutation(160)[: 16 if scores else 8].tolist()
            answers = log_softmax(0.3 * table[more] + rng.normal(size=(len(more), 2)), axis=1)
            told.update(zip([(ordering, example) for example in more], answers.tolist(), strict=True))
            scores |= zip(more, table[more, answers.argmax(axis=1)].tolist(), strict=True)
        search.tell(orderings, known)

    tell(search.draw(num_cells // 24))
    tell(list(known))
    return milliseconds(lambda: tell(search.ask()))


def rounds(_: int) -> None:
    print(head("demos", "ema, ms", "mle, ms", "mixture, ms"))
    for num_demos in (8, 32, 256):
        times = [paper_round(rule, num_demos) for rule in (RankEMA(), MaximumLikelihood(), MixtureEM())]
        print(row(num_demos, *(f"{each:.1f}" for each in times)), flush=True)
    print("\n" + head("demos", "cells", "default search by scores, ms", "by log-probabilities, ms"))
    for num_demos, num_cells in ((8, 1_000), (8, 10_000), (16, 10_000), (32, 10_000)):
        times = [default_round(num_demos, num_cells, by_labels=by_labels) for by_labels in (False, True)]
        print(row(num_demos, f"{num_cells:,}", *(f"{each:.1f}" for each in times)), flush=True)


@contextmanager
def scoring(student: dspy.Module, examples: list[dspy.Example], num_threads: int) -> Iterator[CellScorer]:
    """Score a program's orders as a compile does, with a ledger on disk."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "cells.jsonl")
        ledger.number_examples(list(map(digest, examples)))
        common = {"names": [str(i) for i in range(len(examples))], "num_threads": num_threads}
        work, slots = MetricWork(metric, examples), ProgramSlots(student)
        yield CellScorer(ProgramEvaluator(slots, work, ledger=ledger, **common))
        ledger.close()


def cells_of(num_cells: int) -> tuple[float, float]:
    """Milliseconds and megabytes of so many cells, 10 orders a round on 1,000 examples."""
    examples = questions("question", 1_000)
    orders = shuffled_orders(8, num_cells // len(examples), seed=0)
    with scoring(Answering(sleeps=False), examples, num_threads=8) as scorer:
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        for first in range(0, len(orders), 10):
            scorer.table(orders[first : first + 10], range(len(examples)))
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1_000 * seconds, (after - before) * 1_024 / 1e6


def cells(_: int) -> None:
    print(head("cells", "ms a cell", "growth, MB"))
    for size in (1_000, 10_000, 100_000):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            taken, growth = process.submit(cells_of, size).result()
        print(row(f"{size:,}", f"{taken / size:.2f}", f"{growth:.1f}"), flush=True)


def threads(_: int, num_threads: int = 16) -> None:
    logging.getLogger("dspy.evaluate").setLevel(logging.WARNING)
    student, devset = Answering(sleeps=True), questions("question", 100)
    slots, factory = ProgramSlots(student), ProgramFactory(student)
    evaluate = dspy.Evaluate(devset=devset, metric=metric, num_threads=num_threads, display_progress=False)
    print(head("latency / threads, s", "plr_dspy", "Evaluate", "Evaluate / plr_dspy", "plr_dspy / latency"))
    for number in range(3):
        orders = shuffled_orders(8, 15, seed=number)
        programs = [factory.build(slots.demos(order)) for order in orders]
        bound = sum(p.seconds(e.question) for p in programs for e in devset) / num_threads
        with scoring(student, devset, num_threads) as scorer:
            start = time.perf_counter()
            scorer.table(orders, range(len(devset)))
            ours = time.perf_counter() - start
        start = time.perf_counter()
        for program in programs:
            evaluate(program)
        plain = time.perf_counter() - start
        found = (bound, ours, plain, plain / ours, ours / bound)
        print(row(*(f"{each:.2f}" for each in found)), flush=True)


def pools(num_demos: int) -> None:
    """Inputs have 20 words of 5,000, the first ones more often."""
    rng = np.random.default_rng(0)
    print(head("demos", "an input, ms (median)"))
    for size in (100, 1_000, 10_000):
        words = (5_000 * rng.random((size + 200, 20)) ** 3).astype(int)
        texts = [" ".join(f"word{number}" for number in row) for row in words]
        demos = [dspy.Example(text=text, label=f"label {i % 5}") for i, text in enumerate(texts[:size])]
        pool, taken = Pool(dspy.Predict("text -> label"), demos, [""] * size), []
        for text in texts[size:]:
            start = time.process_time()
            pool.shown({"text": text}, Rule(num_demos))
            taken.append(1e3 * (time.process_time() - start))
        print(row(f"{size:,}", f"{statistics.median(taken):.1f}"), flush=True)


def prefixes(num_demos: int, num_examples: int = 25) -> None:
    reviews = load_reviews("train")
    student = dspy.Predict("review -> sentiment: Literal['negative', 'positive']")
    student.demos = reviews[:num_demos]
    slots, examples = ProgramSlots(student), reviews[num_demos : num_demos + num_examples]
    work = MetricWork(lambda example, prediction: example.sentiment == prediction.sentiment, examples)
    speeds = {}
    with LocalServer() as server, dspy.context(lm=server.lm(max_tokens=4), adapter=PlainTextAdapter()):
        for seed, name in enumerate(("ordering by ordering", "shuffled")):
            orderings = {slots.fingerprint(order): order for order in shuffled_orders(num_demos, 6, seed)}
            keys = [(fingerprint, i) for fingerprint in orderings for i in range(num_examples)]
            if name == "shuffled":
                random.Random(0).shuffle(keys)
            names = [str(i) for i in range(num_examples)]
            evaluator = ProgramEvaluator(slots, work, names=names, num_threads=2)
            start = time.perf_counter()
            evaluator.pay({key: orderings[key[0]] for key in keys})
            speeds[name] = len(keys) / (time.perf_counter() - start)
            print(f"{name}: {speeds[name]:.1f} calls a second", flush=True)
    print(f"ratio: {speeds['ordering by ordering'] / speeds['shuffled']:.1f}")


def main() -> None:
    parts = {part.__name__: part for part in (rounds, cells, threads, pools, prefixes)}
    args = options(__doc__ or "", among={"parts": list(parts)}, parts=[*parts][:4], demos=8)
    for part in args.parts:
        print(f"\n{part}\n", flush=True)
        parts[part](args.demos)


if __name__ == "__main__":
    main()
