"""What log-probabilities of labels add to scores, on recorded answers of a real model.

python benchmarks/signals.py --recorded DATA/mr_k5_seed1.npz --budgets 125 250 500 1000 --splits 48 --jobs 2
python benchmarks/signals.py --choose DATA/mr_k8_r300_seed2.npz --splits 48 --jobs 2

The first runs `PLReorder` itself, through DSPy, with a language model that replays what was recorded for every order of
the demos, once with each `signal`. A half of the examples is the trainset, the other half is held out, and the original
order is a random one; both are drawn anew for each split. The second is for files that hold some orders or arrangements
only: half of the budget buys a first look at random ones of them, the other half further looks at those that the
package's model deems best. Regret is what the best order of all that were recorded gets above the chosen one on the
held-out half. Differences are paired, with 95 % intervals over splits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path

import dspy
import numpy as np
import torch
from choosing import chosen
from recorded import RecordedLandscape, Renamed
from replay import ReplayEngine, replayed_examples, replayed_program, shown_order

from plr_dspy import PLReorder
from plr_dspy.report.text import MIN_WIN_PROBABILITY
from plr_dspy.statistics.comparisons import mean_interval

FIRST_SEED = 50_000
SIGNALS = ("score", "logprobs")
HELD_OUT, REGRET, GAIN, CLAIMED, LM_CALLS, CALLS, SECONDS = range(7)

Rows = dict[str, np.ndarray]
"""Numbers ``[splits, columns]`` of each signal."""


def metric(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> bool:
    return bool(example.label == prediction.label)


def compile_split(seed: int, path: Path, budget: int) -> list[list[float]]:
    """Compile one split with each signal; return a row of numbers each."""
    torch.set_num_threads(1)
    recorded, labels = RecordedLandscape(path, seed), [str(label) for label in np.load(path)["labels"]]
    original = np.random.default_rng(seed).permutation(recorded.num_demos).tolist()
    landscape, size = Renamed(recorded, original), recorded.num_examples // 2
    best = recorded.best(range(size, recorded.num_examples))
    trainset = replayed_examples(landscape, labels)[:size]
    program = replayed_program(landscape, labels)
    before = landscape.answers(tuple(range(landscape.num_demos)))[size:].mean()
    rows = []
    for signal in SIGNALS:
        engine = ReplayEngine(landscape, labels)
        lm = dspy.LM("openai/replay", engine=engine, cache=False, num_retries=0)
        optimizer = PLReorder(
            metric,
            signal=signal,
            max_metric_calls=budget,
            num_threads=1,
            seed=seed,
            display_progress=False,
        )
        start = time.perf_counter()
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter(), disable_history=True):
            compiled = optimizer.compile(program, trainset=trainset)
        seconds, report = time.perf_counter() - start, optimizer.report
        assert report is not None and report.comparison is not None and report.signal is not None
        calls = report.program_calls["total"]
        assert engine.calls == calls <= budget and report.signal.used == signal
        assert engine.told == (calls if signal == "logprobs" else 0)
        after = landscape.answers(shown_order(compiled))[size:].mean()
        claimed = report.comparison.probability >= MIN_WIN_PROBABILITY
        rows.append([after, best - after, after - before, claimed, engine.calls, calls, seconds])
    return rows


def choose_split(seed: int, path: Path, budget: int) -> list[list[float]]:
    """Choose among the orders recorded on one split with each signal, and with all answers of the pool known."""
    torch.set_num_threads(1)
    data, landscape = np.load(path), RecordedLandscape(path, seed)
    size = landscape.num_examples // 2
    recorded = [tuple(int(item) for item in order) for order in data["orders"]]
    right = np.array([landscape.answers(order) for order in recorded])
    best, held_out = right[:, size:].mean(axis=1).max(), right[:, size:].mean(axis=1)
    rows = []
    for signal in SIGNALS:
        start = time.perf_counter()
        order, calls = chosen(landscape, recorded, budget=budget, signal=signal, seed=seed)
        found = held_out[recorded.index(order)]
        rows.append([found, best - found, np.nan, np.nan, np.nan, calls, time.perf_counter() - start])
    pooled = right[:, :size].mean(axis=1)
    found = held_out[pooled == pooled.max()].mean()
    return [*rows, [found, best - found, np.nan, np.nan, np.nan, size * len(recorded), 0.0]]


def with_interval(values: np.ndarray) -> str:
    low, high = mean_interval(list(values))
    return f"{values.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def table_rows(name: str, budget: int, rows: Rows) -> str:
    """A line of Markdown for each signal; "worse" is what lost more than a point against the original order."""
    lines = []
    for signal, numbers in rows.items():
        held_out, regret, gain, claimed, lm_calls, calls, seconds = numbers.T
        line = f"| {name} | {budget:,} | {signal} | {held_out.mean():.3f} | {regret.mean():.3f} | "
        line += with_interval(held_out - rows["score"][:, HELD_OUT]) if signal == "logprobs" else ""
        if not np.isnan(gain).any():
            worse = gain < -0.01
            lost, sure = -gain[worse].mean() if worse.any() else 0.0, claimed > 0
            wrong = f"{100 * worse[sure].mean():.0f} %" if sure.any() else "none"
            line += f" | {100 * worse.mean():.0f} % | {lost:.3f} | {100 * sure.mean():.0f} % | {wrong}"
            line += f" | {lm_calls.mean():,.0f}"
        lines.append(f"{line} | {calls.mean():,.0f} | {seconds.mean():.1f} |")
    return "\n".join(lines)


def run(
    work: Callable[..., list[list[float]]], path: Path, options: argparse.Namespace, executor: Executor
) -> dict[int, Rows]:
    """Print the table of one landscape; return its numbers by budget."""
    seeds, found = range(options.first_seed, options.first_seed + options.splits), {}
    for budget in options.budgets:
        each = np.array(list(executor.map(partial(work, path=path, budget=budget), seeds)), dtype=float)
        names = (*SIGNALS, "whole pool")[: each.shape[1]]
        found[budget] = {signal: each[:, i] for i, signal in enumerate(names)}
        print(table_rows(path.stem, budget, found[budget]), flush=True)
    return found


def across_budgets(results: dict[str, dict[int, Rows]]) -> str:
    """Lines that compare log-probabilities at each budget with scores at the largest one."""
    most, lines = max(next(iter(results.values()))), []
    for budget in next(iter(results.values())):
        gains = {
            name: rows[budget]["logprobs"][:, HELD_OUT] - rows[most]["score"][:, HELD_OUT]
            for name, rows in results.items()
        }
        gains |= {"all of them": np.mean(list(gains.values()), axis=0)} if len(gains) > 1 else {}
        told = "; ".join(f"{name} {with_interval(values)}" for name, values in gains.items())
        lines.append(f"logprobs with {budget:,} calls against score with {most:,}, held-out: {told}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    files = parser.add_mutually_exclusive_group(required=True)
    files.add_argument("--recorded", type=Path, nargs="+", help="files that hold all orders")
    files.add_argument("--choose", type=Path, nargs="+", help="files that hold some orders or arrangements")
    parser.add_argument("--budgets", type=int, nargs="+", help="program calls")
    parser.add_argument("--splits", type=int, default=48)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    if options.splits < 2:
        parser.error("--splits must be at least 2, for intervals")
    options.budgets = options.budgets or ([160, 320, 640, 1280] if options.choose else [125, 250, 500, 1000])
    shown = "landscape | budget | signal | held-out | regret | logprobs - score"
    if options.recorded:
        shown += " | worse | lost then | better, p >= .9 | worse of these | LM calls"
    print(f"| {shown} | program calls | s |\n|" + (shown.count("|") + 3) * "---|", flush=True)
    work, start = compile_split if options.recorded else choose_split, time.perf_counter()
    with ProcessPoolExecutor(options.jobs) as executor:
        paths = options.recorded or options.choose
        results = {path.stem: run(work, path, options, executor) for path in paths}
    print("\n" + across_budgets(results))
    number = len(paths) * len(options.budgets) * options.splits * len(SIGNALS)
    print(f"{60 * number / (time.perf_counter() - start):.0f} of either kind a minute")


if __name__ == "__main__":
    main()
