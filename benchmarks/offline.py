"""What compiles find where the truth is known: on synthetic landscapes, and on recorded answers of a real model.

python benchmarks/offline.py                                           # at equal and at the paper's calls
python benchmarks/offline.py --worlds "own effects" coins --demos 4 8 --pools 20 100 --methods light@1000
python benchmarks/offline.py --recorded FILES --methods halving@500 light@500 logprobs@500
python benchmarks/offline.py --recorded FILES --methods score-dspy@1000 logprobs-dspy@250
python benchmarks/offline.py --recorded FILES --best-of 5 --methods light@1000

A method has the program calls after its name; without a number as many as its paper, or as `auto="light"`:

light          PLReorder by scores; "logprobs" by log-probabilities of labels as well, "calibrated" with calibrate=True
score-dspy     light the whole way through DSPy, whose language model answers from the landscape; also "logprobs-dspy"
paper          PLR Algorithm 1, with calls as many samples and draws as fit
top-k          random search
halving        successive halving of random orders, or of arrangements

The worlds are those of `landscapes.WORLDS`. In "classes", "items", "nothing" and "harm" demos may be left out, and
`--demos` is the size of the pool. `--pools` are the examples of both splits; 1,000 others are held out (2,000 where
demos may be left out), and of recorded answers one half. The original order of recorded answers is a random one; with
--best-of the original is the best of so many random orders, by all examples. Seeds below 20,000 made the search.

"Less" is the difference to each method of --against, by default the first, paired; "less original" that to the program
as it is. "Changed" is the share of compiles that replaced it, "better" of those that claim so (p >= .9), "worse" of
those that lost more than a point of held-out accuracy, "lost then" how much. "Best" is the accuracy of the best of all
recorded orders, and tau Kendall's, of the learnt probability of these and their accuracy. Intervals are 95 %.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from command import head, options, percent, processes, row, with_interval
from landscapes import KINDS, WORLDS, Landscape, RecordedLandscape, Renamed
from methods import MODES, Pool, claimed, compiled, halving
from replay import compiled_through_dspy
from scipy.stats import kendalltau

from plr_dspy.report.text import MIN_WIN_PROBABILITY


def pool_of(seed: int, world: str | Path, num_demos: int, num_pool: int, best_of: int) -> tuple[Pool, float]:
    """A world and what is known of it; and the held-out accuracy of the best of all recorded orders."""
    landscape: Landscape
    if isinstance(world, Path):
        landscape = RecordedLandscape(world, seed)
        num_pool, best_of = landscape.num_examples // 2, best_of or 1
        best = landscape.best(range(num_pool, landscape.num_examples))
    else:
        make, best = WORLDS[world], math.nan
        held_out = getattr(make, "func", make).num_held_out
        landscape = make(num_demos, seed, num_pool + held_out)
    if best_of:
        rng = np.random.default_rng(seed)
        orders = [tuple(map(int, rng.permutation(landscape.num_demos))) for _ in range(best_of)]
        landscape = Renamed(landscape, max(orders, key=lambda order: landscape.answers(order).mean()))
    return Pool.of(landscape, num_pool), best


def measured(
    seed: int, *, world: str | Path, num_demos: int, num_pool: int, best_of: int, method: str
) -> dict[str, float]:
    """What a method comes to in one world."""
    torch.set_num_threads(1)
    pool, best = pool_of(seed, world, num_demos, num_pool, best_of)
    original, began = pool.space.identity[0], time.perf_counter()
    name, _, calls_given = method.partition("@")
    budget = int(calls_given) if calls_given else None
    chosen, offsets, found = original, (), {"calls": 0.0}
    if name == "halving":
        chosen, found["calls"] = halving(pool, budget, seed)
    elif name.endswith("-dspy"):
        common = {"num_known": pool.num_known, "budget": budget, "seed": seed}
        chosen, report = compiled_through_dspy(pool.landscape, signal=name.removesuffix("-dspy"), **common)
        found["calls"] = report.program_calls["total"]
        found["better"] = report.comparison.probability >= MIN_WIN_PROBABILITY
    elif (outcome := compiled(pool, name, budget, seed)) is not None:
        chosen, offsets = outcome.ordering[0], outcome.offsets
        found |= {"calls": outcome.program_calls["total"], "better": claimed(outcome)}
        found["changed"] = bool(outcome.chosen)
        if outcome.distributions and not math.isnan(best):
            orders = [order for (order,) in pool.space.enumerate()]
            logits = outcome.distributions[0].log_prob(torch.tensor(orders)).tolist()
            found["tau"] = kendalltau(logits, [pool.held_out(order) for order in orders]).statistic
    found["s"] = time.perf_counter() - began
    truth = {"held-out": pool.held_out(chosen, offsets), "original": pool.held_out(original), "best": best}
    every = {"better": math.nan, "tau": math.nan, "changed": chosen != original} | found | truth
    return {name: float(value) for name, value in every.items()}


def cells(rows: pd.DataFrame, references: list[pd.DataFrame], *, tasks: int = 1) -> list[str]:
    """The columns of a table, of what compiles found; intervals of several tasks are over means by split."""
    gains, tau = rows["held-out"] - rows["original"], rows["tau"].dropna()
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
        with_interval(tau.to_numpy(), digits=2) if len(tau) else "",
        f"{rows['calls'].mean():,.0f}",
        f"{rows['s'].mean():.1f}",
    ]


def main() -> None:
    logging.getLogger("plr_dspy").setLevel(logging.WARNING)
    args = options(
        __doc__ or "",
        among={"worlds": list(WORLDS)},
        worlds=list(KINDS),
        recorded=[Path],
        demos=[8, 16, 32],
        pools=[200],
        methods=["paper", "top-k", "halving@3640", "light@3640"],
        against=[str],
        best_of=0,
        compiles=48,
        first_seed=20_000,
        jobs=1,
    )
    known = [*MODES, "halving", "score-dspy", "logprobs-dspy"]
    if unknown := [each for each in args.methods if each.partition("@")[0] not in known]:
        raise SystemExit(f"--methods must be of {known}, with @ and a number of calls; got {unknown}")
    against = args.against or args.methods[:1]
    methods = list(dict.fromkeys([*against, *args.methods]))
    seeds = range(args.first_seed, args.first_seed + args.compiles)
    print(
        head(
            *("world", "demos", "examples", "method", "compiles", "held-out", "best"),
            *(f"less {each}" for each in against),
            *("less original", "changed", "better, p >= .9", "worse", "lost then", "worse of better"),
            *("tau", "calls", "s"),
        )
    )
    shapes = [(0, 0)] if args.recorded else list(itertools.product(args.demos, args.pools))
    worlds = args.recorded or args.worlds
    with processes(args.jobs) as run:
        for num_demos, num_pool in shapes:
            shape = {"num_demos": num_demos, "num_pool": num_pool, "best_of": args.best_of}
            found: dict[str, list[pd.DataFrame]] = {method: [] for method in methods}
            shown = [num_demos or "", num_pool or ""]
            for world in worlds:
                for method in methods:
                    work = partial(measured, world=world, method=method, **shape)
                    found[method].append(pd.DataFrame(run(work, seeds)))
                for method in methods:
                    told = cells(found[method][-1], [found[each][-1] for each in against])
                    print(row(getattr(world, "stem", world), *shown, method, *told), flush=True)
            if len(worlds) > 1:
                together = {method: pd.concat(found[method], ignore_index=True) for method in methods}
                references, tasks = [together[each] for each in against], len(args.recorded) or 1
                for method in methods:
                    print(row("all", *shown, method, *cells(together[method], references, tasks=tasks)))


if __name__ == "__main__":
    main()
