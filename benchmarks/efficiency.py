"""Held-out accuracy against program calls, for the searches of this package and what they must beat.

python benchmarks/efficiency.py --demos 8 16 --landscapes 48
python benchmarks/efficiency.py --recorded DATA/mr_k5_seed1.npz DATA/subj_k5_seed1.npz --budgets 500 1000 2000

Every method runs on the same landscapes with the same splits: 160 train, 40 selection and 1,000 held-out
examples; of recorded ones a half are the pool. Differences are paired, with 95 % intervals over landscapes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from landscapes import KINDS, Landscape, LandscapePayer, RecordedLandscape, SyntheticLandscape

from plr_dspy import OrderingSpace
from plr_dspy.checkpoint import Checkpoint
from plr_dspy.compilation import Compilation, new_search
from plr_dspy.plan import Overrides, Plan, make_plan
from plr_dspy.progress import ProgressBar
from plr_dspy.scoring import CellScorer
from plr_dspy.statistics import mean_interval

REFERENCE = "paper mle"


@dataclass(frozen=True)
class Pool:
    """A landscape and how many of its examples are for what: train, selection, and the rest held out."""

    landscape: Landscape
    num_train: int
    num_selection: int

    def held_out(self, order: tuple[int, ...]) -> float:
        return float(self.landscape.answers(order)[self.num_train + self.num_selection :].mean())


Method = Callable[[Pool, int], tuple[tuple[int, ...], int]]
"""A pool and a seed to the chosen order and the program calls."""


def compiled(pool: Pool, plan: Plan, update: str, seed: int) -> tuple[tuple[int, ...], int]:
    """Run what `PLReorder` runs."""
    space = OrderingSpace.of_sizes(pool.landscape.num_demos)
    search = new_search(plan, space, update=update, seed=seed)
    scorer = CellScorer(LandscapePayer(pool.landscape), max_metric_calls=plan.call_limit)
    with Checkpoint(None, {}) as checkpoint, ProgressBar(0, display=False) as bar:
        outcome = Compilation(
            search,
            scorer,
            plan=plan,
            num_train=pool.num_train,
            stoppers=[],
            max_seconds=None,
            checkpoint=checkpoint,
            bar=bar,
        ).run()
    return outcome.ordering[0], scorer.program_calls


def plan_of(pool: Pool, auto: str, budget: int | None = None) -> Plan:
    return make_plan(
        auto,
        Overrides(max_metric_calls=budget),
        num_train=pool.num_train,
        num_selection=pool.num_selection,
        num_distinct=OrderingSpace.of_sizes(pool.landscape.num_demos).num_distinct,
    )


def paper(update: str) -> Method:
    """PLR Algorithm 1 with the paper's values; cells are memoised, so it pays for distinct ones only."""
    return lambda pool, seed: compiled(pool, plan_of(pool, "paper"), update, seed)


def default(budget: int) -> Method:
    """`PLReorder` with ``max_metric_calls``."""
    return lambda pool, seed: compiled(pool, plan_of(pool, "light", budget), "mle", seed)


def top_k(num_orders: int = 225) -> Method:
    """Random search: every order on the whole train split, the best 10 on the selection split."""

    def method(pool: Pool, seed: int) -> tuple[tuple[int, ...], int]:
        plan = replace(
            plan_of(pool, "paper"),
            num_iterations=1,
            num_samples=num_orders,
            num_final_draws=0,
            num_best_seen=10,
            archive=True,
        )
        return compiled(pool, plan, "mle", seed)

    return method


def halving(budget: int, num_orders: int = 225, keep: float = 0.4) -> Method:
    """Sequential halving of random orders over the whole pool: the least that a search must beat."""

    def method(pool: Pool, seed: int) -> tuple[tuple[int, ...], int]:
        rng = np.random.default_rng(seed)
        alive = [tuple(int(i) for i in rng.permutation(pool.landscape.num_demos)) for _ in range(num_orders)]
        scorer = CellScorer(LandscapePayer(pool.landscape), max_metric_calls=budget)
        rungs = int(np.ceil(np.log(num_orders) / np.log(1 / keep)))
        examples = 0
        for rung in range(rungs):
            left = budget - scorer.program_calls
            more = max(1, left // (rungs - rung) // len(alive))
            examples = min(examples + more, pool.num_train + pool.num_selection)
            orderings = [(order,) for order in alive]
            if scorer.program_calls + scorer.cost(orderings, range(examples)) > budget:
                break
            trials = scorer.score(orderings, range(examples))
            best = sorted(range(len(alive)), key=lambda i: -trials[i].score)
            alive = [alive[i] for i in best[: max(1, int(np.ceil(keep * len(alive))))]]
        return alive[0], scorer.program_calls

    return method


def run(pools: list[Pool], methods: dict[str, Method]) -> dict[str, np.ndarray]:
    """Held-out accuracy, calls and seconds ``[landscapes, 3]`` of each method."""
    results = {name: np.zeros((len(pools), 3)) for name in methods}
    for index, pool in enumerate(pools):
        for name, method in methods.items():
            start = time.perf_counter()
            order, calls = method(pool, index)
            results[name][index] = pool.held_out(order), calls, time.perf_counter() - start
    return results


def table(title: str, results: dict[str, np.ndarray], reference: str) -> str:
    """Lines of Markdown."""
    lines = [f"\n{title}, {len(next(iter(results.values())))} landscapes", ""]
    lines += [f"| method | held-out | calls | against {reference} | s |", "|---|---|---|---|---|"]
    for name, rows in results.items():
        gains = rows[:, 0] - results[reference][:, 0]
        low, high = mean_interval(list(gains), 0.95)
        lines.append(
            f"| {name} | {rows[:, 0].mean():.3f} | {rows[:, 1].mean():,.0f} | "
            f"{gains.mean():+.3f} [{low:+.3f}, {high:+.3f}] | {rows[:, 2].mean():.1f} |"
        )
    return "\n".join(lines)


def methods_for(budgets: list[int], *, all_updates: bool) -> dict[str, Method]:
    updates = ("mle", "ema", "mixture") if all_updates else ("mle",)
    methods: dict[str, Method] = {f"paper {update}": paper(update) for update in updates}
    methods["top-k"] = top_k()
    for budget in budgets:
        methods[f"halving {budget:,}"] = halving(budget)
        methods[f"default {budget:,}"] = default(budget)
    return methods


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demos", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument(
        "--landscapes", type=int, default=48, help="of each kind, or splits of a recorded one"
    )
    parser.add_argument("--budgets", type=int, nargs="+", default=[1_000, 3_640])
    parser.add_argument("--all-updates", action="store_true", help="the paper's EMA and mixture as well")
    parser.add_argument("--recorded", type=Path, nargs="*", default=[], help="recorded landscapes instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    methods = methods_for(arguments.budgets, all_updates=arguments.all_updates)
    for path in arguments.recorded:
        landscapes = [RecordedLandscape(path, seed) for seed in range(arguments.landscapes)]
        half = landscapes[0].num_examples // 2
        pools = [Pool(landscape, round(0.8 * half), half - round(0.8 * half)) for landscape in landscapes]
        results = run(pools, methods)
        best = np.mean([landscape.best(range(half, landscape.num_examples)) for landscape in landscapes])
        print(table(f"{path.stem} (best of all orders {best:.3f})", results, REFERENCE), flush=True)
    for num_demos in [] if arguments.recorded else arguments.demos:
        everything: dict[str, list[np.ndarray]] = {name: [] for name in methods}
        for kind in arguments.kinds:
            pools = [
                Pool(SyntheticLandscape(kind, num_demos, seed), 160, 40)
                for seed in range(arguments.landscapes)
            ]
            results = run(pools, methods)
            print(table(f"{num_demos} demos, {kind}", results, REFERENCE), flush=True)
            for name, rows in results.items():
                everything[name].append(rows)
        joined = {name: np.concatenate(rows) for name, rows in everything.items()}
        print(table(f"{num_demos} demos, all kinds", joined, REFERENCE), flush=True)


if __name__ == "__main__":
    main()
