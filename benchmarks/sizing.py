"""What the paper's whole grid takes: program calls, prompt tokens and GPU-hours, from measured lengths of prompts.

python benchmarks/sizing.py --data-dir DATA                        # token counts of the local model's tokenizer
python benchmarks/sizing.py --data-dir DATA --seeds 1 --tasks mr   # of a part

A server with a prefix cache reads the demos of an order once, and then of each prompt only what comes after them.
GPU-hours are tokens read / `--tokens-per-second`, which depends on model and GPU: measure yours (`vllm bench serve`).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import dspy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from paper.data import load
from paper.protocol import METHODS, OUR_SHARE, applies, paper_calls
from paper.tasks import TASKS, Task
from plr_dspy.local import LocalServer

POOL, TRAIN, SELECTION = 1_000, 800, 200
SAMPLE = 200
"""Prompts whose tokens are counted for each task."""


@dataclass(frozen=True)
class Lengths:
    """Mean tokens of one demo and of the rest of a prompt."""

    demo: float
    query: float


def lengths(task: Task, train: list[dspy.Example], server: LocalServer) -> Lengths:
    """Count tokens of real prompts."""
    adapter, signature = task.adapter("plain"), task.signature
    examples = random.Random(0).sample(train, SAMPLE)

    def tokens(text: str) -> int:
        address = server.api_base.removesuffix("/v1")
        body = json.dumps({"content": text}).encode()
        request = urllib.request.Request(f"{address}/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return len(json.load(reply)["tokens"])

    demos = [adapter.format_demos(signature, [e])[0]["content"] + "\n\n" for e in examples]
    queries = [adapter.format(signature, [], dict(e.inputs().items()))[0]["content"] for e in examples]
    return Lengths(fmean(map(tokens, demos)), fmean(map(tokens, queries)))


def calls_and_orders(method: str, num_demos: int, num_test: int) -> tuple[int, int]:
    """Program calls of one run, those on the held-out examples included, and orders whose demos are read."""
    orders = min(225, math.factorial(num_demos))
    sampled = (orders * TRAIN + 11 * SELECTION, orders)
    candidates = min(24, math.factorial(num_demos))
    written = (candidates * (1 + candidates), candidates)
    search = {
        "Static": (0, 0),
        "Top-K": sampled,
        "PLR-EMA": sampled,
        "PLR-1": sampled,
        "PLR-4": sampled,
        "LocalE": written,
        "GlobalE": written,
        "PDO-FewShot": (candidates, candidates),
        "PDO-FewShotU": (candidates * TRAIN, candidates),
        "PDO-FewShotUP": (candidates * TRAIN, candidates),
        "DEmO": (3 * min(100, math.factorial(num_demos)), min(100, math.factorial(num_demos))),
        # It looks at an order on 8 examples at a time; between two looks a server may have forgotten it.
        "Ours": (ours := min(int(OUR_SHARE * paper_calls(TRAIN, SELECTION)), orders * POOL), ours // 8),
    }
    calls, orders = search[method]
    return calls + num_test * (4 if method == "DEmO" else 1), orders + 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--num-demos", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--tokens-per-second", type=float, default=20_000.0, help="that the server reads")
    args = parser.parse_args()
    totals = dict.fromkeys(METHODS, (0.0, 0.0, 0.0))
    print("| task | tokens of a demo | of the rest | held-out examples |\n|---|---|---|---|")
    with LocalServer(num_threads=1, context_length=512) as server:
        for name in args.tasks:
            train, test = load(TASKS[name], data_dir=args.data_dir)
            size = lengths(TASKS[name], train, server)
            print(f"| {TASKS[name].title} | {size.demo:.0f} | {size.query:.0f} | {len(test):,} |", flush=True)
            for method in METHODS:
                if not applies(method, name):
                    continue
                for num_demos in args.num_demos:
                    calls, orders = calls_and_orders(method, num_demos, len(test))
                    whole = calls * (num_demos * size.demo + size.query)
                    cached = orders * num_demos * size.demo + calls * size.query
                    more = (args.seeds * calls, args.seeds * whole, args.seeds * cached)
                    totals[method] = tuple(a + b for a, b in zip(totals[method], more, strict=True))  # type: ignore[assignment]
    rate = args.tokens_per_second * 3_600
    print(
        f"\n| method | program calls | prompt tokens | read with a prefix cache | GPU-hours | with it |\n"
        f"|---|---|---|---|---|---|  <!-- at {args.tokens_per_second:,.0f} tokens a second -->"
    )
    for method, (calls, whole, cached) in [
        *totals.items(),
        ("all", tuple(map(sum, zip(*totals.values(), strict=True)))),
    ]:
        print(
            f"| {method} | {calls:,.0f} | {whole / 1e6:,.0f} M | {cached / 1e6:,.0f} M | {whole / rate:,.1f} | "
            f"{cached / rate:,.1f} |"
        )


if __name__ == "__main__":
    main()
