"""How fast cells are scored: against a loop of dspy.Evaluate, and in order against shuffled.

python benchmarks/throughput.py            a program that sleeps: 50 ms, and 1 s for 5 % of its calls
python benchmarks/throughput.py --local    the local model: prompts that share their demos one after another
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import tempfile
import time
from pathlib import Path

import dspy

from plr_dspy import PlainTextAdapter
from plr_dspy.data import load_reviews
from plr_dspy.local import LocalServer
from plr_dspy.programs.calls import MetricWork
from plr_dspy.programs.copies import ProgramFactory
from plr_dspy.programs.evaluator import ProgramEvaluator, program_scorer
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.scoring.ledger import Ledger

EXAMPLES = [dspy.Example(question=f"question {i}", answer="a").with_inputs("question") for i in range(110)]


class Sleepy(dspy.Module):
    """Takes 50 ms, or 1 s for one call in 20; which ones, the example and the order decide."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self.answer.demos = EXAMPLES[100:108]

    def seconds(self, question: str) -> float:
        text = question + "|".join(demo.question for demo in self.answer.demos)
        return 1.0 if int(hashlib.sha256(text.encode()).hexdigest(), 16) % 20 == 0 else 0.05

    def forward(self, question: str) -> dspy.Prediction:
        time.sleep(self.seconds(question))
        return dspy.Prediction(answer="a")


def metric(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> bool:
    return bool(example.answer == prediction.answer)


def shuffled_orders(num_demos: int, count: int, seed: int) -> list[tuple[tuple[int, ...], ...]]:
    rng = random.Random(seed)
    return [(tuple(rng.sample(range(num_demos), num_demos)),) for _ in range(count)]


logging.getLogger("dspy.evaluate").setLevel(logging.WARNING)


def against_evaluate(num_orders: int, num_threads: int, rounds: int) -> None:
    student = Sleepy()
    slots, factory, devset = ProgramSlots(student), ProgramFactory(student), EXAMPLES[:100]
    print(f"{num_orders} orders x {len(devset)} examples, {num_threads} threads; seconds")
    print("round   bound   plr_dspy   Evaluate   Evaluate / plr_dspy   plr_dspy / bound")
    for round_ in range(rounds):
        orders = shuffled_orders(8, num_orders, seed=round_)
        programs = [factory.build(slots.demos(order)) for order in orders]
        bound = sum(p.seconds(e.question) for p in programs for e in devset) / num_threads
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger(Path(folder) / "cells.jsonl")
            scorer = program_scorer(
                student, slots, metric=metric, examples=devset, num_threads=num_threads, ledger=ledger
            )
            start = time.perf_counter()
            scorer.table(orders, range(len(devset)))
            ours = time.perf_counter() - start
            ledger.close()
        evaluate = dspy.Evaluate(
            devset=devset, metric=metric, num_threads=num_threads, display_progress=False
        )
        start = time.perf_counter()
        for program in programs:
            evaluate(program)
        plain = time.perf_counter() - start
        print(
            f"{round_ + 1:5d}   {bound:5.1f}   {ours:8.1f}   {plain:8.1f}   {plain / ours:19.2f}   {ours / bound:16.2f}"
        )


def in_order_or_shuffled(num_orders: int, num_examples: int, num_demos: int) -> None:
    reviews = load_reviews("train")
    student = dspy.Predict("review -> sentiment: Literal['negative', 'positive']")
    student.demos = reviews[:num_demos]
    slots = ProgramSlots(student)
    examples = reviews[num_demos : num_demos + num_examples]
    print(f"{num_orders} orders of {num_demos} demos x {num_examples} examples; calls a second")
    with LocalServer() as server, dspy.context(lm=server.lm(max_tokens=4), adapter=PlainTextAdapter()):
        speeds = {}
        for seed, name in enumerate(("ordering by ordering", "shuffled")):
            orders = shuffled_orders(num_demos, num_orders, seed)
            orderings = {slots.fingerprint(order): order for order in orders}
            keys = [(fingerprint, i) for fingerprint in orderings for i in range(num_examples)]
            if name == "shuffled":
                random.Random(0).shuffle(keys)
            evaluator = ProgramEvaluator(
                student,
                slots,
                MetricWork(lambda example, prediction: example.sentiment == prediction.sentiment, examples),
                names=[str(i) for i in range(num_examples)],
                num_threads=2,
            )
            start = time.perf_counter()
            evaluator.pay(keys, orderings)
            speeds[name] = len(keys) / (time.perf_counter() - start)
            print(f"  {name}: {speeds[name]:.1f}")
    print(f"  ratio: {speeds['ordering by ordering'] / speeds['shuffled']:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--local", action="store_true", help="measure the local model's server instead")
    parser.add_argument("--orders", type=int, default=15)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--demos", type=int, default=8, help="of the local model's prompts")
    arguments = parser.parse_args()
    if arguments.local:
        in_order_or_shuffled(num_orders=6, num_examples=25, num_demos=arguments.demos)
    else:
        against_evaluate(arguments.orders, arguments.threads, arguments.rounds)


if __name__ == "__main__":
    main()
