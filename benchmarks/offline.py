"""What compiles find where the truth is known: on simulated landscapes, and on recorded answers of a real model.

python benchmarks/offline.py                                           # at equal and at the paper's calls
python benchmarks/offline.py --worlds "own effects" coins --demos 4 8 --pools 20 100 --methods light@1000
python benchmarks/offline.py --recorded FILES --methods halving@500 light@500 logprobs@500
python benchmarks/offline.py --recorded FILES --best-of 5 --methods light@1000
python benchmarks/offline.py --recorded FILES --shares .15 --pools 70 --methods original "F1 logprobs@300"
python benchmarks/offline.py --worlds "likeness helps" --demos 0 --pools 100 --methods fixed@300 retrieved@300 auto@300

A method has the program calls after its name; without a number as many as its paper, or as `auto="light"`:

original       the program as it is
light          PLReorder by scores; "logprobs" by log-probabilities of labels as well, "calibrated" with calibrate=True
paper          PLR Algorithm 1, with calls as many samples and draws as fit
top-k          random search
halving        successive halving of random orders, or of arrangements
batch          BatchCalibration, with 64 calls or fewer
F1 light       PLReorder, or PLFewShot, by the F1 of the rare label; "F1 logprobs", "F1 calibrated", "F1 batch"
fixed          PLFewShot by scores, with demos of the examples; "retrieved" finds demos for each input, by the rule that
               costs no call as "retrieved@0", and in "auto" both compete

The worlds are those of `landscapes.WORLDS`. In "classes", "items", "nothing" and "harm" demos may be left out, and
`--demos` is the size of the pool. `--pools` are the examples of both splits; further ones are held out. Of recorded
answers that is one half, and the original order is a random one; with --best-of the original is the best of so many
random orders, by all examples. Seeds below 20,000 made the search.

With --shares a label is made rare: "label 1", and of recorded answers each label in turn. So many of the examples have
it, known ones by number and held-out ones by weight, and the F1 of this label is what counts, not accuracy.

"Less" is the difference to each method of --against, by default the first, paired; "less original" that to the program
as it is. "Changed" is the share of compiles that replaced it, "better" of those that claim so (p >= .9), "worse" of
those that lost more than a point on held-out examples, "lost then" how much. "Promised" is the gain that reports
expect, "inside" how often what the returned program gets lies in the interval that they expect. "Best" is the accuracy
of the best of all recorded orders. Intervals are 95 %.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from command import options, percent, print_table, processes, with_interval
from landscapes import KINDS, WORLDS, Landscape, Rearranged, RecordedLandscape
from replay import METHODS, Pool, compiled, halving


@dataclass(frozen=True)
class World:
    """Where methods are compared: a simulated world, or a file of recorded answers.

    Attributes:
        num_pool: Known examples; of recorded answers 0 is one half.
        best_of: Random orders of which the original is the best; 0 leaves it what it is.
        share, rare: Share of the examples that have the rare label, and its number; without one accuracy counts.
    """

    source: str | Path
    num_demos: int = 0
    num_pool: int = 0
    best_of: int = 0
    share: float = 0.0
    rare: int = 1

    def __str__(self) -> str:
        if isinstance(self.source, Path):
            return f"{self.source.stem}, label {self.rare}" if self.share else self.source.stem
        return self.source

    def pool(self, seed: int) -> tuple[Pool, float]:
        """What is known of a world; and the held-out accuracy of the best of all recorded orders."""
        rng, best, landscape = np.random.default_rng(seed), math.nan, self._landscape(seed)
        num_pool = self.num_pool or landscape.num_examples // 2
        if isinstance(landscape, RecordedLandscape) and not self.share:
            best = landscape.best(range(num_pool, landscape.num_examples))
        if self.best_of:
            orders = [tuple(map(int, rng.permutation(landscape.num_demos))) for _ in range(self.best_of)]
            original = max(orders, key=lambda order: landscape.answers(order).mean())
            examples = []
            if self.share:
                is_rare, num_rare = landscape.right_labels == self.rare, round(self.share * num_pool)
                known = [*np.flatnonzero(is_rare)[:num_rare], *np.flatnonzero(~is_rare)[: num_pool - num_rare]]
                rest = sorted({*range(landscape.num_examples)} - {*known})
                examples = [*rng.permutation(known), *rest]
            landscape = Rearranged(landscape, original, examples)
        return Pool(landscape, num_pool, self.rare, self.share), best

    def _landscape(self, seed: int) -> Landscape:
        if isinstance(self.source, Path):
            return RecordedLandscape(self.source, seed)
        make = WORLDS[self.source]
        num_held_out = getattr(make, "func", make).num_held_out
        landscape = make(self.num_demos, seed, self.num_pool + num_held_out)
        if self.share:
            rng, classes = np.random.default_rng([seed, 5]), []
            for size in (self.num_pool, num_held_out):
                classes += rng.permutation(np.arange(size) < round(self.share * size)).astype(int).tolist()
            landscape.right_labels = np.array(classes)
        return landscape


def measured(seed: int, *, world: World, method: str) -> dict[str, float]:
    """What a method comes to in one world."""
    torch.set_num_threads(1)
    pool, best = world.pool(seed)
    identity = pool.space.identity[0]
    original = pool.held_out(identity)
    name, _, calls_given = method.partition("@")
    budget, began = int(calls_given) if calls_given else None, time.perf_counter()
    found = {"held-out": original, "changed": False, "calls": 0.0}
    if name == "halving":
        order, found["calls"] = halving(pool, budget or 1_000, seed)
        found |= {"held-out": pool.held_out(order), "changed": order != identity}
    elif name != "original":
        made = compiled(pool, name, budget, seed)
        found = {"held-out": made.score, "changed": made.changed, "calls": made.calls}
        if (comparison := made.comparison) is not None:
            low, high = (comparison.expected_chosen or (0.0, 0.0, 1.0))[1:]
            found |= {"inside": low <= made.score <= high, "promised": comparison.expected_gain, "better": made.claims}
    found |= {"s": time.perf_counter() - began, "original": original, "best": best}
    every = dict.fromkeys(("better", "inside", "promised"), math.nan) | found
    return {name: float(value) for name, value in every.items()}


def cells(rows: pd.DataFrame, references: list[pd.DataFrame], *, tasks: int = 1) -> list[str]:
    """The columns of a table, of what compiles found; intervals of several tasks are over means by split."""
    gains = rows["held-out"] - rows["original"]
    worse = gains < -0.01

    def interval(values: pd.Series) -> str:
        return with_interval(values.to_numpy().reshape(tasks, -1).mean(axis=0))

    return [
        str(len(rows)),
        f"{rows['held-out'].mean():.3f}",
        "" if rows["best"].isna().any() else f"{rows['best'].mean():.3f}",
        *("" if rows is each else interval(rows["held-out"] - each["held-out"]) for each in references),
        interval(gains),
        percent(rows["changed"]),
        percent(rows["better"]),
        percent(worse),
        f"{-gains[worse].mean() if worse.any() else 0:.3f}",
        percent(worse[rows["better"] == 1]),
        "" if rows["promised"].isna().all() else f"{rows['promised'].mean():+.3f}",
        percent(rows["inside"]),
        f"{rows['calls'].mean():,.0f}",
        f"{rows['s'].mean():.1f}",
    ]


def worlds_of(args: argparse.Namespace) -> Iterator[list[World]]:
    """The worlds of each shape; of recorded answers whose share is given, one for each label that is made rare."""
    best_of = args.best_of
    if not args.recorded:
        for num_demos, num_pool, share in itertools.product(args.demos, args.pools, args.shares):
            yield [World(each, num_demos, num_pool, best_of, share) for each in args.worlds]
    elif not any(args.shares):
        yield [World(path, best_of=best_of or 1) for path in args.recorded]
    else:
        labels = [(path, label) for path in args.recorded for label in range(len(np.load(path)["labels"]))]
        for num_pool, share in itertools.product(args.pools, args.shares):
            yield [World(path, 0, num_pool, best_of or 1, share, label) for path, label in labels]


def rows_of(worlds: list[World], methods: list[str], against: list[str], run: Any) -> Iterator[list[str]]:
    """The rows of a table: each method in each world, and in all of them."""
    first = worlds[0]
    shown = [str(each or "") for each in (first.num_demos, first.num_pool, first.share)]
    every: dict[str, list[pd.DataFrame]] = {method: [] for method in methods}
    for world in worlds:
        found = {method: pd.DataFrame(run(partial(measured, world=world, method=method))) for method in methods}
        for method in methods:
            every[method].append(found[method])
            yield [str(world), *shown, method, *cells(found[method], [found[each] for each in against])]
    if len(worlds) > 1:
        together = {method: pd.concat(found, ignore_index=True) for method, found in every.items()}
        tasks = len(worlds) if isinstance(first.source, Path) and not first.share else 1
        for method in methods:
            references = [together[each] for each in against]
            yield ["all", *shown, method, *cells(together[method], references, tasks=tasks)]


def main() -> None:
    logging.disable(logging.WARNING)
    args = options(
        __doc__ or "",
        among={"worlds": list(WORLDS)},
        worlds=list(KINDS),
        recorded=[Path],
        demos=[8, 16, 32],
        pools=[200],
        shares=[0.0],
        methods=["paper", "top-k", "halving@3640", "light@3640"],
        against=[str],
        best_of=0,
        compiles=48,
        first_seed=20_000,
        jobs=1,
    )
    known = ["original", "halving", *METHODS]
    if unknown := [each for each in args.methods if each.partition("@")[0] not in known]:
        raise SystemExit(f"--methods must be of {known}, with @ and a number of calls; got {unknown}")
    against = args.against or args.methods[:1]
    methods = list(dict.fromkeys([*against, *args.methods]))
    seeds = range(args.first_seed, args.first_seed + args.compiles)
    names = [
        *("world", "demos", "examples", "share", "method", "compiles", "held-out", "best"),
        *(f"less {each}" for each in against),
        *("less original", "changed", "better, p >= .9", "worse", "lost then", "worse of better"),
        *("promised", "inside", "calls", "s"),
    ]
    with processes(args.jobs) as run:
        tables = (rows_of(worlds, methods, against, lambda work: run(work, seeds)) for worlds in worlds_of(args))
        print_table(names, itertools.chain.from_iterable(tables))


if __name__ == "__main__":
    main()
