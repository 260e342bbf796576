"""All methods on one task: held-out accuracy, program calls and time.

python benchmarks/compare.py                                  # the bundled reviews, the local model
python benchmarks/compare.py --task mr --data-dir DATA        # DATA/mr_train.jsonl, DATA/mr_test.jsonl
python benchmarks/compare.py --methods TopKOrder PLReorder --seeds 0 1 2
python benchmarks/compare.py --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 --threads 16

Every method orders the same demos, drawn anew for each seed. PLReorder, TopKOrder and PDO's unlabelled settings have
`--max-calls` program calls; LocalE, GlobalE, PDO, DEmO and the paper's search make what their papers make. Every call
is kept in `--out`, so that what was stopped goes on (and is not counted as time).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from paper.held_out import HeldOut
from paper.model import LOCAL, ServedModel
from paper.tasks import CLASSIFICATION
from plr_dspy import PLReorder
from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE, StaticOrder, TopKOrder
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.statistics.comparisons import mean_interval, paired_interval
from quickstart import BUNDLED, Data, load_data

Maker = Callable[..., Reorderer]
EXTRA = "PLReorder paper"
"""Takes hours: only when it is asked for."""


@dataclass(frozen=True)
class Result:
    """Held-out scores by example, and what the order cost."""

    scores: list[float]
    program_calls: int
    seconds: float


def methods(max_calls: int) -> dict[str, Maker]:
    """A constructor for each line of the table; they take the metric and the common arguments."""

    def maker(kind: Maker, **settings: Any) -> Maker:
        return lambda metric, **common: kind(metric, **settings, **common)

    return {
        "StaticOrder": maker(StaticOrder),
        "TopKOrder": maker(TopKOrder, max_metric_calls=max_calls),
        "LocalE": maker(LocalE),
        "LocalE (plr)": maker(LocalE, variant="plr"),
        "GlobalE": maker(GlobalE),
        "GlobalE (plr)": maker(GlobalE, variant="plr"),
        "PDO few-shot": maker(PDO),
        "PDO unlabelled": maker(PDO, setting="unlabelled", max_metric_calls=max_calls),
        "PDO prior": maker(PDO, setting="prior", max_metric_calls=max_calls),
        "DEmO": maker(DEmO),
        "PLReorder": maker(PLReorder, max_metric_calls=max_calls),
        EXTRA: maker(PLReorder, auto="paper"),
    }


def run(data: Data, seed: int, args: argparse.Namespace) -> dict[str, Result]:
    """What each method comes to, by name."""
    rng = random.Random(seed)
    trainset = rng.sample(data.train, min(args.pool + args.demos, len(data.train)))
    test = rng.sample(data.test, min(args.test, len(data.test)))
    student = dspy.Predict(data.task.signature)
    program = dspy.LabeledFewShot(k=args.demos).compile(student, trainset=trainset)
    metric, makers = data.task.metric(), methods(args.max_calls)
    results = {}
    for name in args.methods:
        folder = args.out / args.task / f"seed{seed}" / name.replace(" ", "_")
        optimizer = makers[name](
            metric, num_threads=args.threads, seed=seed, log_dir=folder, display_progress=False
        )
        started = time.perf_counter()
        compiled = optimizer.compile(program, trainset=trainset)
        seconds = time.perf_counter() - started
        held_out = HeldOut(compiled, metric=metric, examples=test, num_threads=args.threads, folder=folder)
        result = Result(held_out.scores(), optimizer.report.program_calls["total"], seconds)
        results[name] = result
        print(
            f"seed {seed}: {name} {sum(result.scores) / len(test):.3f}, {result.program_calls:,} calls, "
            f"{seconds:.0f} s, against {args.methods[0]} {difference(result, results[args.methods[0]])}",
            flush=True,
        )
    return results


def difference(*pairs: Result) -> str:
    """Of results and those they are compared with, in turns: the mean, with an interval over paired examples."""
    gains = [
        a - b
        for result, base in zip(pairs[::2], pairs[1::2], strict=True)
        for a, b in zip(result.scores, base.scores, strict=True)
    ]
    low, high = paired_interval(gains)
    return f"{sum(gains) / len(gains):+.3f} [{low:+.3f}, {high:+.3f}]"


def table(seeds: list[dict[str, Result]]) -> str:
    """Lines of Markdown."""
    base = next(iter(seeds[0]))
    by_seed = [f"draw {i + 1}" for i in range(len(seeds))] if len(seeds) > 1 else []
    header = ["method", "held-out accuracy", f"against {base}", *by_seed, "program calls", "s"]
    rows = [header, ["---"] * len(header)]
    for name in seeds[0]:
        results = [seed[name] for seed in seeds]
        pooled = [score for result in results for score in result.scores]
        low, high = mean_interval(pooled)
        against = difference(*(r for seed in seeds for r in (seed[name], seed[base])))
        rows.append(
            [
                name,
                f"{sum(pooled) / len(pooled):.3f} [{low:.3f}, {high:.3f}]",
                against,
                *(f"{sum(r.scores) / len(r.scores):.3f}" for r in results if by_seed),
                f"{sum(r.program_calls for r in results) / len(results):,.0f}",
                f"{sum(r.seconds for r in results) / len(results):.0f}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(methods(1))
    usual = [name for name in names if name != EXTRA]
    parser.add_argument("--task", default=BUNDLED, choices=[BUNDLED, *CLASSIFICATION])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--methods", nargs="+", default=usual, choices=names, metavar="METHOD", help=f"of {names}"
    )
    parser.add_argument("--demos", type=int, default=8)
    parser.add_argument("--pool", type=int, default=100)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--max-calls", type=int, default=1_000)
    parser.add_argument("--model", default=LOCAL, help="litellm name of a model with a completions endpoint")
    parser.add_argument("--api-base", nargs="+", default=[], metavar="URL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/compare"))
    args = parser.parse_args()
    data = load_data(args.task, args.data_dir)
    served_model = ServedModel(args.model, tuple(args.api_base))
    with served_model.open(format="plain") as make_lm:
        lm = make_lm(data.task.max_tokens("plain"))
        with dspy.context(lm=lm, adapter=data.task.adapter("plain")):
            results = [run(data, seed, args) for seed in args.seeds]
    print(
        f"\n{args.task}, {args.demos} demos, {len(args.seeds)} draw(s) of them, 95 % intervals over examples\n"
    )
    print(table(results))


if __name__ == "__main__":
    main()
