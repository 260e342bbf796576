"""What compiles find where the truth is known: on simulated landscapes, and on recorded answers of a real model.

python benchmarks/offline.py                                           # at equal and at the paper's calls
python benchmarks/offline.py --recorded FILES --methods halving@500 light@500 logprobs@500

A method has the program calls after its name; without a number as many as its paper, or as `auto="light"`:

original       the program as it is
light          PLReorder by scores; "logprobs" by log-probabilities of labels as well, "calibrated" with calibrate=True
paper          PLR Algorithm 1, with calls as many samples and draws as fit; "top-k" is random search
halving        successive halving of random orders, or of arrangements; "batch" is BatchCalibration with up to 64 calls
fixed          PLFewShot by scores, with demos of the examples; "retrieved" finds demos for each input, by the rule that
               costs no call as "retrieved@0", and in "auto" both compete

In the worlds "classes", "items", "nothing" and "harm" demos may be left out, and `--demos` is the size of the pool.
`--pools` are the examples of both splits; further ones are held out. Of recorded answers that is one half, and the
original order is the best of `--best-of` random ones, or any. Seeds below 20,000 made the search.

With --shares a label is made rare ("label 1", and of recorded answers each in turn): so many known examples have it,
held-out ones by weight, and its F1 counts. "F1 light", "F1 logprobs", "F1 calibrated" and "F1 batch" choose by it.

"Less" is the difference to each method of --against, by default the first, paired, with its 95 % interval. "Changed" is
the share of compiles that replaced the original, "better" of those that claim so, "worse" of those that lost more than
a point on held-out examples, "lost then" how much. "Promised" is the gain that reports expect, "inside" how often what
the returned program gets lies in the interval that they expect, "best" the accuracy of the best of all recorded orders.
"""

import argparse
import itertools
import logging
import math
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from command import options, percent, print_table, with_interval
from landscapes import KINDS, WORLDS, Landscape, Rearranged, RecordedLandscape
from replay import METHODS, Pool, compiled, halving


@dataclass(frozen=True)
class World:
    """Where methods are compared: a simulated world, or a file of recorded answers.

    Attributes:
        num_pool: Known examples; of recorded answers 0 is one half.
        best_of: Random orders of which the original is the best; 0 is one where answers are recorded, else none.
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
        if isinstance(self.source, Path):
            landscape: Landscape = RecordedLandscape(self.source, seed)
        else:
            make = WORLDS[self.source]
            num_held_out = getattr(make, "func", make).num_held_out
            landscape = make(self.num_demos, seed, self.num_pool + num_held_out)
            if self.share:
                draw = np.random.default_rng([seed, 5]).permutation
                parts = [np.arange(size) < round(self.share * size) for size in (self.num_pool, num_held_out)]
                landscape.right_labels = np.concatenate([draw(part) for part in parts]).astype(int)
        rng = np.random.default_rng(seed)
        best = math.nan
        num_pool = self.num_pool or landscape.num_examples // 2
        if isinstance(landscape, RecordedLandscape) and not self.share:
            best = landscape.best(range(num_pool, landscape.num_examples))
        if best_of := self.best_of or isinstance(landscape, RecordedLandscape):
            orders = [tuple(map(int, rng.permutation(landscape.num_demos))) for _ in range(best_of)]
            original = max(orders, key=lambda order: landscape.answers(order).mean())
            examples = []
            if self.share:
                is_rare = landscape.right_labels == self.rare
                num_rare = round(self.share * num_pool)
                known = [*np.flatnonzero(is_rare)[:num_rare], *np.flatnonzero(~is_rare)[: num_pool - num_rare]]
                examples = [*rng.permutation(known), *np.setdiff1d(np.arange(landscape.num_examples), known)]
            landscape = Rearranged(landscape, original, examples)
        return Pool(landscape, num_pool, self.rare, self.share), best


def measured(seed: int, *, world: World, method: str) -> dict[str, float]:
    """What a method comes to in one world."""
    torch.set_num_threads(1)
    pool, best = world.pool(seed)
    identity = pool.space.identity[0]
    name, _, calls_given = method.partition("@")
    budget = int(calls_given) if calls_given else None
    began = time.perf_counter()
    found = dict.fromkeys(("better", "inside", "promised"), math.nan) | {"changed": False, "calls": 0, "best": best}
    found["held-out"] = found["original"] = pool.held_out(identity)
    if name == "halving":
        order, found["calls"] = halving(pool, budget or 1_000, seed)
        found |= {"held-out": pool.held_out(order), "changed": order != identity}
    elif name != "original":
        made = compiled(pool, name, budget, seed)
        found |= {"held-out": made.score, "changed": made.changed, "calls": made.calls}
        if (comparison := made.comparison) is not None:
            low, high = (comparison.expected_chosen or (0.0, 0.0, 1.0))[1:]
            found |= {"inside": low <= made.score <= high, "promised": comparison.expected_gain, "better": made.claims}
    found["s"] = time.perf_counter() - began
    return {name: float(value) for name, value in found.items()}


def cells(method: str, found: dict[str, pd.DataFrame], against: list[str], tasks: int) -> dict[str, str]:
    """The columns of a table, of what compiles found; intervals of several tasks are over means by split."""
    rows = found[method]
    scores = found[method]["held-out"]
    gains = scores - rows["original"]
    worse = gains < -0.01

    def interval(values: pd.Series) -> str:
        return with_interval(values.to_numpy().reshape(tasks, -1).mean(axis=0))

    return {
        "compiles": str(len(rows)),
        "held-out": f"{scores.mean():.3f}",
        "best": "" if rows["best"].isna().any() else f"{rows['best'].mean():.3f}",
        **{f"less {each}": interval(scores - found[each]["held-out"]) if each != method else "" for each in against},
        "less original": interval(gains),
        "changed": percent(rows["changed"]),
        "better, p >= .9": percent(rows["better"]),
        "worse": percent(worse),
        "lost then": f"{-gains[worse].mean() if worse.any() else 0:.3f}",
        "worse of better": percent(worse[rows["better"] == 1]),
        "promised": "" if rows["promised"].isna().all() else f"{rows['promised'].mean():+.3f}",
        "inside": percent(rows["inside"]),
        "calls": f"{rows['calls'].mean():,.0f}",
        "s": f"{rows['s'].mean():.1f}",
    }


def worlds_of(args: argparse.Namespace) -> Iterator[list[World]]:
    """The worlds of each shape; of recorded answers whose share is given, one for each label that is made rare."""
    if not args.recorded:
        for num_demos, num_pool, share in itertools.product(args.demos, args.pools, args.shares):
            yield [World(each, num_demos, num_pool, args.best_of, share) for each in args.worlds]
    elif not any(args.shares):
        yield [World(path, best_of=args.best_of) for path in args.recorded]
    else:
        labels = [(path, label) for path in args.recorded for label in range(len(np.load(path)["labels"]))]
        for num_pool, share in itertools.product(args.pools, args.shares):
            yield [World(path, 0, num_pool, args.best_of, share, label) for path, label in labels]


def rows_of(worlds: list[World], methods: list[str], against: list[str], run: Any) -> Iterator[dict[str, str]]:
    """The rows of a table: each method in each world, and in all of them."""
    first = worlds[0]
    every = []
    shape = {"demos": first.num_demos or "", "examples": first.num_pool or "", "share": first.share or ""}

    def rows(world: str, found: dict[str, pd.DataFrame], tasks: int = 1) -> Iterator[dict[str, str]]:
        for method in methods:
            yield {"world": world, **shape, "method": method, **cells(method, found, against, tasks)}

    for world in worlds:
        every.append({method: pd.DataFrame(run(partial(measured, world=world, method=method))) for method in methods})
        yield from rows(str(world), every[-1])
    if len(worlds) > 1:
        together = {method: pd.concat([each[method] for each in every], ignore_index=True) for method in methods}
        yield from rows("all", together, len(worlds) if isinstance(first.source, Path) and not first.share else 1)


def main() -> None:
    logging.disable(logging.WARNING)
    given = {"demos": [8, 16, 32], "pools": [200], "shares": [0.0], "recorded": [Path], "best_of": 0, "against": [str]}
    given |= {"methods": ["paper", "top-k", "halving@3640", "light@3640"], "compiles": 48, "first_seed": 20_000}
    args = options(__doc__, among={"worlds": list(WORLDS)}, worlds=list(KINDS), **given, jobs=1)
    known = ["original", "halving", *METHODS]
    if unknown := [each for each in args.methods if each.partition("@")[0] not in known]:
        raise SystemExit(f"--methods must be of {known}, with @ and a number of calls; got {unknown}")
    against = args.against or args.methods[:1]
    methods = list(dict.fromkeys([*against, *args.methods]))
    seeds = range(args.first_seed, args.first_seed + args.compiles)
    with ProcessPoolExecutor(args.jobs) as pool:
        tables = (rows_of(worlds, methods, against, lambda work: pool.map(work, seeds)) for worlds in worlds_of(args))
        print_table(itertools.chain.from_iterable(tables))


if __name__ == "__main__":
    main()
