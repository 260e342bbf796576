"""A comparison of methods on simulated landscapes and on recorded answers, for which true scores are known.

python benchmarks/offline.py                                           # "light" at a tenth of the paper's calls
python benchmarks/offline.py --recorded FILES --methods halving@500 light@500 logprobs@500

A number after a method's name limits its program calls. Without a number, the limit is that of the method's paper or
of `auto="light"`. The methods are:

original       the original program
random demos   a random arrangement with as many demos as allowed
light          PLReorder with signal="score"
logprobs       PLReorder with signal="logprobs"
calibrated     PLReorder with calibrate=True
paper          PLR Algorithm 1, with as many samples and draws as the limit allows
top-k          random search
halving        successive halving of random orders, or of arrangements
batch          BatchCalibration with up to 64 calls
fixed          PLFewShot with demos="fixed" and signal="score"
retrieved      PLFewShot with demos="retrieved" and signal="score"; "retrieved@0" makes no calls
auto           PLFewShot with demos="auto" and signal="score"

In the worlds "classes", "items", "nothing", "help", "harm" and "cost", the methods choose from `--demos` demos, and
PLFewShot replaces PLReorder. `--pools` is the number of known examples, for both splits. All other examples are held
out. In recordings, half of the examples are known unless --shares is passed. The original order of a recording is the
best of `--best-of` random orders; by default, it is a random order. The search was developed with seeds below 20,000.

With --shares, one label is made rare: "label 1", or each recorded label in turn. It gets this share of the known
examples, and held-out examples are weighted to give this share. Scores are the label's F1. "F1 light", "F1 logprobs",
"F1 calibrated" and "F1 batch" also optimize this F1.

The columns of the table are:

less NAME      paired difference from each method in --against (by default the first), with a 95% interval
changed        share of compiles that replaced the original
better         share of compiles whose report says "better"
worse          share of compiles that lost more than a point on held-out examples
lost then      mean loss of the "worse" compiles
promised       mean gain that the reports expect
inside         share of compiles whose held-out score lies in the report's interval
best           held-out accuracy of the best of all recorded orders
"""

import argparse
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from command import options, percent, print_table, with_interval
from landscapes import KINDS, WORLDS, Landscape, Rearranged, RecordedLandscape
from replay import METHODS, Pool, compile_with, halving

RANDOM = "random demos"
Run = Callable[[Callable[[int], dict[str, float]]], Iterable[dict[str, float]]]


@dataclass(frozen=True)
class World:
    """A simulated world, or a file of recorded answers, in which methods are compared.

    Attributes:
        num_pool: Number of known examples. For recorded answers, 0 means half of the examples.
        best_of: Number of random orders to draw. The best of them is the original order. If 0, the original order is
            random for recorded answers and unchanged for simulated worlds.
        share: Share of the rare label. If 0, scores are accuracies.
        rare: Index of the rare label.
    """

    source: str | Path
    num_demos: int = 0
    num_pool: int = 0
    best_of: int = 0
    share: float = 0.0
    rare: int = 1

    def __str__(self) -> str:
        if isinstance(self.source, str):
            return self.source
        if self.share:
            return f"{self.source.stem}, label {self.rare}"
        return self.source.stem

    def pool(self, seed: int) -> tuple[Pool, float]:
        """Return the pool, and the held-out accuracy of the best of all recorded orders."""
        if isinstance(self.source, str):
            landscape = self._simulated(self.source, seed)
            best_of = self.best_of
        else:
            landscape = RecordedLandscape(self.source, seed)
            best_of = self.best_of or 1
        num_pool = self.num_pool or landscape.num_examples // 2
        best = math.nan
        if isinstance(landscape, RecordedLandscape) and not self.share:
            best = landscape.best(range(num_pool, landscape.num_examples))
        if best_of:
            landscape = self._rearranged(landscape, best_of, num_pool, np.random.default_rng(seed))
        return Pool(landscape, num_pool, self.rare, self.share), best

    def _simulated(self, name: str, seed: int) -> Landscape:
        make = WORLDS[name]
        num_held_out = getattr(make, "func", make).num_held_out
        landscape = make(self.num_demos, seed, self.num_pool + num_held_out)
        if self.share:
            rng = np.random.default_rng([seed, 5])
            parts = []
            for size in (self.num_pool, num_held_out):
                is_rare = np.arange(size) < round(self.share * size)
                parts.append(rng.permutation(is_rare))
            landscape.right_labels = np.concatenate(parts).astype(int)
        return landscape

    def _rearranged(
        self, landscape: Landscape, best_of: int, num_pool: int, rng: np.random.Generator
    ) -> Landscape:
        """Return the landscape with the best of several random orders as the original order.

        If `share` is set, make the label `rare` rare among the known examples.
        """
        orders = [tuple(rng.permutation(landscape.num_demos).tolist()) for _ in range(best_of)]
        original = max(orders, key=lambda order: landscape.answers(order).mean())
        examples = []
        if self.share:
            is_rare = landscape.right_labels == self.rare
            num_rare = round(self.share * num_pool)
            rare = np.flatnonzero(is_rare)[:num_rare]
            others = np.flatnonzero(~is_rare)[: num_pool - num_rare]
            known = np.concatenate([rare, others])
            held_out = np.setdiff1d(np.arange(landscape.num_examples), known)
            examples = [*rng.permutation(known), *held_out]
        return Rearranged(landscape, original, examples)


def measure(seed: int, *, world: World, method: str) -> dict[str, float]:
    """Run a method in one world, and return its measurements."""
    torch.set_num_threads(1)
    pool, best = world.pool(seed)
    original = pool.space.identity[0]
    name, _, number = method.partition("@")
    budget = int(number) if number else None
    began = time.perf_counter()
    original_score = pool.held_out(original)
    row = {
        "better": math.nan,
        "inside": math.nan,
        "promised": math.nan,
        "changed": 0.0,
        "calls": 0.0,
        "best": best,
        "held-out": original_score,
        "original": original_score,
    }
    if name == RANDOM:
        rng = np.random.default_rng([seed, 8])
        order = tuple(rng.permutation(pool.landscape.num_demos)[: pool.landscape.max_shown].tolist())
        row["held-out"] = pool.held_out(order)
        row["changed"] = 1.0
    elif name == "halving":
        order, row["calls"] = halving(pool, budget or 1_000, seed)
        row["held-out"] = pool.held_out(order)
        row["changed"] = float(order != original)
    elif name != "original":
        result = compile_with(pool, name, budget, seed)
        row["held-out"] = result.score
        row["changed"] = float(result.changed)
        row["calls"] = result.calls
        comparison = result.comparison
        if comparison is not None:
            _, low, high = comparison.expected_chosen or (0.0, 0.0, 1.0)
            row["inside"] = float(low <= result.score <= high)
            row["promised"] = comparison.expected_gain
            row["better"] = float(result.claims)
    row["s"] = time.perf_counter() - began
    return row


def cells(
    method: str, frame_by_method: dict[str, pd.DataFrame], against: list[str], num_tasks: int
) -> dict[str, str]:
    """Return the table row for a method.

    The intervals are over splits, so the scores in each split are first averaged over the tasks.
    """
    frame = frame_by_method[method]
    scores = frame["held-out"]
    gains = scores - frame["original"]
    is_worse = gains < -0.01

    def interval(values: pd.Series) -> str:
        by_task = values.to_numpy().reshape(num_tasks, -1)
        return with_interval(by_task.mean(axis=0))

    row = {"compiles": str(len(frame)), "held-out": f"{scores.mean():.3f}", "best": ""}
    if not frame["best"].isna().any():
        row["best"] = f"{frame['best'].mean():.3f}"
    for other in against:
        row[f"less {other}"] = ""
        if other != method:
            row[f"less {other}"] = interval(scores - frame_by_method[other]["held-out"])
    row["less original"] = interval(gains)
    row["changed"] = percent(frame["changed"])
    row["better, p >= .9"] = percent(frame["better"])
    row["worse"] = percent(is_worse)
    row["lost then"] = f"{(-gains[is_worse]).sum() / max(1, is_worse.sum()):.3f}"
    row["worse of better"] = percent(is_worse[frame["better"] == 1])
    row["promised"] = ""
    if not frame["promised"].isna().all():
        row["promised"] = f"{frame['promised'].mean():+.3f}"
    row["inside"] = percent(frame["inside"])
    row["calls"] = f"{frame['calls'].mean():,.0f}"
    row["s"] = f"{frame['s'].mean():.1f}"
    return row


def worlds_of(args: argparse.Namespace) -> Iterator[list[World]]:
    """Yield the worlds of each table. For recorded answers with a share, each label is rare in one world."""
    if not args.recorded:
        for num_demos, num_pool, share in itertools.product(args.demos, args.pools, args.shares):
            yield [World(name, num_demos, num_pool, args.best_of, share) for name in args.worlds]
        return
    if not any(args.shares):
        yield [World(path, best_of=args.best_of) for path in args.recorded]
        return
    for num_pool, share in itertools.product(args.pools, args.shares):
        worlds = []
        for path in args.recorded:
            for label in range(len(np.load(path)["labels"])):
                worlds.append(World(path, 0, num_pool, args.best_of, share, label))
        yield worlds


def rows_of(
    worlds: list[World], methods: list[str], against: list[str], run: Run
) -> Iterator[dict[str, object]]:
    """Yield the rows of a table: each method in each world, then each method over all worlds."""
    first = worlds[0]
    shape = {"demos": first.num_demos or "", "examples": first.num_pool or "", "share": first.share or ""}
    frames: dict[str, list[pd.DataFrame]] = {method: [] for method in methods}
    for world in worlds:
        frame_by_method = {}
        for method in methods:
            frame_by_method[method] = pd.DataFrame(run(partial(measure, world=world, method=method)))
            frames[method].append(frame_by_method[method])
        for method in methods:
            yield {
                "world": str(world),
                **shape,
                "method": method,
                **cells(method, frame_by_method, against, 1),
            }
    if len(worlds) > 1:
        together = {method: pd.concat(frames[method], ignore_index=True) for method in methods}
        has_splits = isinstance(first.source, Path) and not first.share
        num_tasks = len(worlds) if has_splits else 1
        for method in methods:
            yield {"world": "all", **shape, "method": method, **cells(method, together, against, num_tasks)}


def main() -> None:
    logging.disable(logging.WARNING)
    args = options(
        __doc__,
        among={"worlds": list(WORLDS)},
        worlds=list(KINDS),
        demos=[8, 16, 32],
        pools=[200],
        shares=[0.0],
        recorded=[Path],
        best_of=0,
        against=[str],
        methods=["paper", "top-k", "halving@3640", "light@3640"],
        compiles=48,
        first_seed=20_000,
        jobs=1,
    )
    known = ["original", RANDOM, "halving", *METHODS]
    unknown = [method for method in args.methods if method.partition("@")[0] not in known]
    if unknown:
        raise SystemExit(
            f"--methods must be among {known}, optionally with @ and a number of calls; got {unknown}: replace "
            "these names"
        )
    against = args.against or args.methods[:1]
    methods = list(dict.fromkeys([*against, *args.methods]))
    seeds = range(args.first_seed, args.first_seed + args.compiles)
    with ProcessPoolExecutor(args.jobs) as pool:

        def run(compile_one: Callable[[int], dict[str, float]]) -> Iterable[dict[str, float]]:
            return pool.map(compile_one, seeds)

        tables = (rows_of(worlds, methods, against, run) for worlds in worlds_of(args))
        print_table(itertools.chain.from_iterable(tables))


if __name__ == "__main__":
    main()
