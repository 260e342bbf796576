"""How many program calls a second one process can make, and two Ray workers: the limit is DSPy's own work.

python benchmarks/scale.py

The model answers after `--latency` seconds without using the CPU, so that many threads wait for it at once. DSPy's
formatting, parsing and bookkeeping of a call run under Python's global lock, which each process has for itself.
"""

from __future__ import annotations

import argparse
import time

import dspy
import ray
from dspy import lm15
from throughput import metric, shuffled_orders

from plr_dspy.programs.evaluator import program_scorer
from plr_dspy.programs.slots import ProgramSlots

NUM_EXAMPLES, NUM_DEMOS = 200, 8


class Waiting:
    """An engine that answers every request after a while."""

    def __init__(self, latency: float) -> None:
        self.latency = latency

    def complete(self, request: lm15.Request) -> lm15.Response:
        time.sleep(self.latency)
        text = "[[ ## answer ## ]]\na\n\n[[ ## completed ## ]]"
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 400, "completion_tokens": 8, "total_tokens": 408}
        return lm15.response_from_openai_chat({"choices": [choice], "usage": usage}, model=request.model)

    def close(self) -> None:
        """Nothing is open."""


def score(num_orders: int, seed: int, threads: int, latency: float) -> int:
    """Score orders of a program on examples; returns the number of calls."""
    student = dspy.Predict("question -> answer")
    student.demos = [dspy.Example(question=f"demo {i}", answer="a") for i in range(NUM_DEMOS)]
    examples = [
        dspy.Example(question=f"question {i}", answer="a").with_inputs("question")
        for i in range(NUM_EXAMPLES)
    ]
    lm = dspy.LM("fake/waiting", engine=Waiting(latency), cache=False)
    with dspy.context(lm=lm):
        scorer = program_scorer(
            student, ProgramSlots(student), metric=metric, examples=examples, num_threads=threads
        )
        scorer.table(shuffled_orders(NUM_DEMOS, num_orders, seed=seed), range(NUM_EXAMPLES))
    return scorer.budget.calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--orders", type=int, default=10, help="for each worker and round")
    parser.add_argument("--threads", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--latency", type=float, default=0.05, help="seconds")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    ray.init(address="local", log_to_driver=False, include_dashboard=False)
    remote = ray.remote(num_cpus=1)(score)
    ray.get([remote.remote(1, 0, 8, 0.0) for _ in range(2)])  # both workers have imported everything
    score(1, 0, 8, 0.0)
    for threads in args.threads:
        for number in range(args.rounds):
            start = time.perf_counter()
            one = score(args.orders, number, threads, args.latency) / (time.perf_counter() - start)
            start = time.perf_counter()
            calls = ray.get(
                [remote.remote(args.orders, number + 10 * w, threads, args.latency) for w in (1, 2)]
            )
            two = sum(calls) / (time.perf_counter() - start)
            print(
                f"{threads:4d} threads, {args.latency * 1000:.0f} ms a call: one process {one:6.0f} calls/s, "
                f"two Ray workers {two:6.0f} calls/s, {two / one:.2f} times as many",
                flush=True,
            )


if __name__ == "__main__":
    main()
