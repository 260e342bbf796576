"""What a cell costs beside its program call: seconds, memory and bytes of the log, as cells grow in number.

python benchmarks/cells.py

Each size runs in a process of its own. The program answers at once; 1,000 examples, 10 orders a round.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dspy
from throughput import metric, shuffled_orders

from plr_dspy.programs.evaluator import program_scorer
from plr_dspy.programs.identity import digest
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.scoring.ledger import Ledger

NUM_EXAMPLES, ORDERS_A_ROUND = 1_000, 10


class Instant(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self.answer.demos = [dspy.Example(question=f"demo {i}", answer="a") for i in range(8)]

    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(answer="a")


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(num_cells: int, num_threads: int) -> dict[str, float]:
    examples = [
        dspy.Example(question=f"question {i}", answer="a").with_inputs("question")
        for i in range(NUM_EXAMPLES)
    ]
    student = Instant()
    slots = ProgramSlots(student)
    orders = shuffled_orders(8, num_cells // NUM_EXAMPLES, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cells.jsonl"
        ledger = Ledger(path)
        ledger.number_examples(list(map(digest, examples)))
        scorer = program_scorer(
            student, slots, metric=metric, examples=examples, num_threads=num_threads, ledger=ledger
        )
        before, start = peak_bytes(), time.perf_counter()
        for first in range(0, len(orders), ORDERS_A_ROUND):
            scorer.table(orders[first : first + ORDERS_A_ROUND], range(NUM_EXAMPLES))
        seconds, after = time.perf_counter() - start, peak_bytes()
        ledger.close()
        start = time.perf_counter()
        assert Ledger(path).num_resumed == num_cells
        return {
            "cells": num_cells,
            "milliseconds": 1000 * seconds / num_cells,
            "megabytes": (after - before) / 1e6,
            "log": path.stat().st_size / num_cells,
            "reading": time.perf_counter() - start,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.threads)))
        return
    print("  cells   ms a cell   growth (MB)   log bytes a cell   reading the log (s)")
    for size in arguments.sizes:
        command = [sys.executable, __file__, "--one", str(size), "--threads", str(arguments.threads)]
        line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        row = json.loads(line)
        print(
            f"{row['cells']:7,d}   {row['milliseconds']:9.2f}   {row['megabytes']:11.1f}   {row['log']:16.0f}"
            f"   {row['reading']:19.2f}"
        )


if __name__ == "__main__":
    main()
