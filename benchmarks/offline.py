"""What compiles find where the truth is known: on simulated landscapes, and on recorded answers.

python benchmarks/offline.py                                           # at equal and at the paper's calls
python benchmarks/offline.py --recorded FILES --methods halving@500 light@500 logprobs@500

A method has the program calls after its name; without a number as many as its paper, or as `auto="light"`:

original       the program as it is
light          PLReorder by scores
logprobs       PLReorder by log-probabilities of labels as well
calibrated     PLReorder with calibrate=True
paper          PLR Algorithm 1, with as many samples and draws as fit
top-k          random search
halving        successive halving of random orders, or of arrangements
batch          BatchCalibration with up to 64 calls
fixed          PLFewShot by scores, with demos of the examples
retrieved      PLFewShot that finds demos for each input, by the rule that costs no call as "retrieved@0"
auto           PLFewShot with both of them

In the worlds "classes", "items", "nothing" and "harm" demos may be left out, and `--demos` is the size of the
pool. `--pools` are the examples of both splits; further ones are held out. Of recorded answers that is one
half, and the original order is the best of `--best-of` random ones, or any. Seeds below 20,000 made the search.

With --shares a label is made rare ("label 1", and of recorded answers each in turn). Known examples have it in
this share, held-out ones by weight, and its F1 counts. "F1 light", "F1 logprobs", "F1 calibrated" and "F1 batch"
choose by it.

less NAME      the difference to each method of --against (the first), paired, with its 95 % interval
changed        the share of compiles that replaced the original
better         of those that claim so
worse          of those that lost more than a point on held-out examples; "lost then" how much
promised       the gain that reports expect
inside         how often the held-out score lies in the interval that the report expects
best           the accuracy of the best of all recorded orders
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
from replay import METHODS, Pool, compiled, halving

Run = Callable[[Callable[[int], dict[str, float]]], Iterable[dict[str, float]]]


@dataclass(frozen=True)
class World:
    """Where methods are compared: a simulated world, or a file of recorded answers.

    Attributes:
        num_pool: Known examples; of recorded answers 0 is one half.
        best_of: Random orders of which the original is the best; 0 is one if answers are recorded, else none.
        share, rare: Share of the examples that have the rare label, and its number; without one accuracy counts.
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
        """Return what is known, and the held-out accuracy of the best of all recorded orders."""
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

    def _rearranged(self, landscape: Landscape, best_of: int, num_pool: int, rng: np.random.Generator) -> Landscape:
        """Return a landscape whose original order is the best of random ones, and a label rare if it has a share."""
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


def measured(seed: int, *, world: World, method: str) -> dict[str, float]:
    """Return what a method comes to in one world."""
    torch.set_num_threads(1)
    pool, best = world.pool(seed)
    original = pool.space.identity[0]
    name, _, number = method.partition("@")
    budget = int(number) if number else None
    began = time.perf_counter()
    of_original = pool.held_out(original)
    row = {
        "better": math.nan,
        "inside": math.nan,
        "promised": math.nan,
        "changed": 0.0,
        "calls": 0.0,
        "best": best,
        "held-out": of_original,
        "original": of_original,
    }
    if name == "halving":
        order, row["calls"] = halving(pool, budget or 1_000, seed)
        row["held-out"] = pool.held_out(order)
        row["changed"] = float(order != original)
    elif name != "original":
        result = compiled(pool, name, budget, seed)
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


def cells(method: str, found: dict[str, pd.DataFrame], against: list[str], num_tasks: int) -> dict[str, str]:
    """Return a row of a table; intervals of several tasks are over means by split."""
    frame = found[method]
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
            row[f"less {other}"] = interval(scores - found[other]["held-out"])
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
    """Yield the worlds of each shape; of recorded answers with a share, one for each label that is made rare."""
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


def rows_of(worlds: list[World], methods: list[str], against: list[str], run: Run) -> Iterator[dict[str, object]]:
    """Yield the rows of a table: each method in each world, and in all of them."""
    first = worlds[0]
    shape = {"demos": first.num_demos or "", "examples": first.num_pool or "", "share": first.share or ""}
    frames: dict[str, list[pd.DataFrame]] = {method: [] for method in methods}
    for world in worlds:
        found = {}
        for method in methods:
            found[method] = pd.DataFrame(run(partial(measured, world=world, method=method)))
            frames[method].append(found[method])
        for method in methods:
            yield {"world": str(world), **shape, "method": method, **cells(method, found, against, 1)}
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
    known = ["original", "halving", *METHODS]
    unknown = [method for method in args.methods if method.partition("@")[0] not in known]
    if unknown:
        raise SystemExit(f"--methods must be of {known}, with @ and a number of calls; got {unknown}")
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
