"""Held-out accuracy against program calls, for the searches of this package and what they must beat.

python benchmarks/efficiency.py                              # table, 48 landscapes of each kind
python benchmarks/efficiency.py --curve --plot curve.png     # 250 to 10,000 calls
python benchmarks/efficiency.py --ablation                   # the default with one part taken out
python benchmarks/efficiency.py --pool 1000 --budgets 18200
python benchmarks/efficiency.py --kinds triples "own effects"   # what the search has no model of, or half of one
python benchmarks/efficiency.py --recorded DATA/mr_k5_seed1.npz --budgets 500 1000 2000

Every method runs on the same landscapes with the same splits: 160 train, 40 selection and 1,000 held-out
examples, or as `--pool` says; of recorded ones a half are the pool, and the original
order is a random one. Differences are paired, with 95 %
intervals over landscapes. Landscapes with seeds below 20,000 were used to make the search; these begin there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from landscapes import KINDS, OWN, TRIPLES, Landscape, OwnEffectsLandscape, SyntheticLandscape
from methods import Method, Pool, ablation, default, halving, paper, paper_within, top_k
from recorded import RecordedLandscape, Renamed

from plr_dspy.statistics.comparisons import mean_interval

FIRST_SEED = 20_000
CURVE = (250, 500, 1_000, 3_000, 10_000)
HELD_OUT, ORIGINAL, CALLS, SECONDS = range(4)


def methods_for(arguments: argparse.Namespace, num_train: int) -> dict[str, Method]:
    """What to run, the reference first."""
    if arguments.ablation:
        return ablation(arguments.budgets[0])
    updates = ("mle", "ema", "mixture") if arguments.all_updates else ("mle",)
    methods: dict[str, Method] = {f"paper {update}": paper(update) for update in updates}
    methods["top-k"] = top_k()
    for budget in CURVE if arguments.curve else arguments.budgets:
        if arguments.curve or arguments.recorded:
            methods[f"paper mle {budget:,}"] = paper_within(budget)
            methods[f"top-k {budget:,}"] = top_k(budget)
        methods[f"halving {budget:,}"] = halving(budget)
        methods[f"default {budget:,}"] = default(budget)
        if arguments.logprobs:
            methods[f"logprobs {budget:,}"] = default(budget, "logprobs")
    return methods


def landscape_rows(
    seed: int, arguments: argparse.Namespace, *, num_demos: int = 0, kind: str = "", path: Path | None = None
) -> tuple[dict[str, list[float]], float]:
    """What each method got on one landscape, and the best held-out accuracy of any order where it is known."""
    torch.set_num_threads(1)
    if path is not None:
        recorded = RecordedLandscape(path, seed)
        size = recorded.num_examples // 2
        best = recorded.best(range(size, recorded.num_examples))
        original = np.random.default_rng(seed).permutation(recorded.num_demos).tolist()
        pool = Pool.of(Renamed(recorded, original), size)
    else:
        size, best = arguments.pool, float("nan")
        landscape: Landscape
        if kind == OWN:
            landscape = OwnEffectsLandscape(num_demos, seed, size + 1_000, common=0.3, own=0.8)
        else:
            landscape = SyntheticLandscape(kind, num_demos, seed, num_examples=size + 1_000)
        pool = Pool.of(landscape, size)
    held_out = pool.held_out(tuple(range(pool.landscape.num_demos)))
    rows = {}
    for name, method in methods_for(arguments, pool.num_train).items():
        start = time.perf_counter()
        order, calls = method(pool, seed)
        rows[name] = [pool.held_out(order), held_out, float(calls), time.perf_counter() - start]
    return rows, best


def run(arguments: argparse.Namespace, **landscape: object) -> tuple[dict[str, np.ndarray], float]:
    """Held-out accuracy, that of the original order, calls and seconds ``[landscapes, 4]`` of each method."""
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.landscapes)
    work = partial(landscape_rows, arguments=arguments, **landscape)
    if arguments.jobs == 1:
        results = list(map(work, seeds))
    else:
        with ProcessPoolExecutor(arguments.jobs) as executor:
            results = list(executor.map(work, seeds))
    rows = {name: np.array([row[name] for row, _ in results]) for name in results[0][0]}
    return rows, float(np.mean([best for _, best in results]))


def table(title: str, results: dict[str, np.ndarray], best: float = float("nan")) -> str:
    """Lines of Markdown; "worse" is the share of landscapes on which the original order was better."""
    reference, base = next(iter(results.items()))
    known = not np.isnan(best)
    lines = [f"\n{title}, {len(base)} landscapes" + (f"; best of all orders {best:.3f}" if known else ""), ""]
    lines += [f"| method | held-out | calls | against {reference} | worse than the original | s |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, rows in results.items():
        gains = rows[:, HELD_OUT] - base[:, HELD_OUT]
        low, high = mean_interval(list(gains), 0.95)
        worse = np.mean(rows[:, HELD_OUT] < rows[:, ORIGINAL])
        lines.append(
            f"| {name} | {rows[:, HELD_OUT].mean():.3f} | {rows[:, CALLS].mean():,.0f} | "
            f"{gains.mean():+.3f} [{low:+.3f}, {high:+.3f}] | {100 * worse:.0f} % | {rows[:, SECONDS].mean():.1f} |"
        )
    return "\n".join(lines)


def plot(panels: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    """Accuracy by calls, a panel each, with 95 % intervals; the paper's own budget is the last point of its line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(panels), 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    styles = {
        "default": ("PLReorder", "C0", "o"),
        "halving": ("halving of random orders", "C1", "s"),
        "top-k": ("Top-K", "C2", "^"),
        "paper mle": ("paper MLE", "C3", "D"),
    }
    for axis, (title, results) in zip(axes, panels.items(), strict=True):
        for method, (label, colour, marker) in styles.items():
            lines = [
                rows for name, rows in results.items() if name.startswith(method) and rows[:, CALLS].any()
            ]
            lines.sort(key=lambda rows: rows[:, CALLS].mean())
            accuracy = [rows[:, HELD_OUT] for rows in lines]
            errors = [np.mean(a) - mean_interval(list(a), 0.95)[0] for a in accuracy]
            axis.errorbar(
                [rows[:, CALLS].mean() for rows in lines],
                [a.mean() for a in accuracy],
                yerr=errors,
                color=colour,
                marker=marker,
                markersize=4,
                capsize=2,
                label=label,
            )
        first = next(iter(results.values()))
        axis.axhline(first[:, ORIGINAL].mean(), color="grey", linestyle=":", label="original order")
        axis.set(title=title, xlabel="distinct program calls", xscale="log")
        axis.set_xticks(CURVE, [f"{calls:,}" for calls in CURVE], minor=False)
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes[0].set_ylabel("held-out accuracy, 95 % intervals")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=len(labels))
    figure.savefig(path, dpi=110)


def synthetic(arguments: argparse.Namespace) -> None:
    panels = {}
    for num_demos in arguments.demos:
        everything: dict[str, list[np.ndarray]] = {}
        for kind in arguments.kinds:
            results, _ = run(arguments, num_demos=num_demos, kind=kind)
            print(table(f"{num_demos} demos, {kind}", results), flush=True)
            for name, rows in results.items():
                everything.setdefault(name, []).append(rows)
        panels[f"{num_demos} demos"] = {name: np.concatenate(rows) for name, rows in everything.items()}
        print(table(f"{num_demos} demos, all kinds", panels[f"{num_demos} demos"]), flush=True)
    if arguments.plot:
        plot(panels, arguments.plot)


def recorded(arguments: argparse.Namespace) -> None:
    panels = {}
    for path in arguments.recorded:
        results, best = run(arguments, path=path)
        panels[path.stem] = results
        print(table(path.stem, results, best), flush=True)
    if arguments.plot:
        plot(panels, arguments.plot)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demos", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=[*KINDS, TRIPLES, OWN])
    parser.add_argument(
        "--landscapes", type=int, default=48, help="of each kind, or splits of a recorded one"
    )
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of the landscapes")
    parser.add_argument("--pool", type=int, default=200, help="train and selection examples")
    parser.add_argument("--budgets", type=int, nargs="+", default=[3_640])
    parser.add_argument("--curve", action="store_true", help=f"budgets {CURVE}")
    parser.add_argument("--ablation", action="store_true", help="parts taken out, at the first budget")
    parser.add_argument("--logprobs", action="store_true", help="the default with log-probabilities as well")
    parser.add_argument("--all-updates", action="store_true", help="the paper's EMA and mixture as well")
    parser.add_argument("--recorded", type=Path, nargs="*", default=[], help="recorded landscapes instead")
    parser.add_argument("--plot", type=Path, help="where to write a picture")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    if options.landscapes < 2:
        parser.error("--landscapes must be at least 2, for intervals")
    (recorded if options.recorded else synthetic)(options)


if __name__ == "__main__":
    main()
