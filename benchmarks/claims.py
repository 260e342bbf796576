"""Does what a compile says hold on new examples?

python benchmarks/claims.py                               # worlds in which no order is better than the original
python benchmarks/claims.py --good                        # an original order that is already a good one
python benchmarks/claims.py --good --recorded FILES       # the same on answers of a real model

In worlds without a common effect either each example prefers an order of its own, or every answer is a coin's, or
orders lean to one of two labels that have nothing to do with the examples, or the logits of three labels have noise of
their own for each prompt ("noise", with its standard deviation; "own noise" is shared by like orders): an order is
"better" (p >= .9) by mistake there. In the world "lone original" the original order is right on 70 % of the examples,
and any other on 60 %. A good original is the best of `--best-of` random orders, by all examples of the
world, held-out ones included. "Changed" is the share of compiles that replaced the original order, "worse" of those
that lost more than a point on 1,000 held-out examples (of recorded answers, on the half that is held out), "lost then"
how much these lost.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from landscapes import (
    KINDS,
    CoinLandscape,
    GoodOriginalLandscape,
    Landscape,
    LeaningLandscape,
    NoisyLogitsLandscape,
    OwnEffectsLandscape,
    SyntheticLandscape,
)
from methods import Pool, planned_outcome, top_k_outcome
from recorded import RecordedLandscape, Renamed

from plr_dspy.compilation.choice import Outcome
from plr_dspy.report.text import MIN_WIN_PROBABILITY
from plr_dspy.statistics.comparisons import mean_interval

WORLDS = {
    "own effects": OwnEffectsLandscape,
    "coins": CoinLandscape,
    "leaning": LeaningLandscape,
    **{f"noise {size}": partial(NoisyLogitsLandscape, noise=size) for size in (1, 3, 5)},
    "own noise 3": partial(NoisyLogitsLandscape, noise=1.0, own=3.0),
    "lone original": GoodOriginalLandscape,
}
MODES = ("light", "logprobs", "calibrated", "paper", "top-k")
FIRST_SEED = 40_000


def compiled(pool: Pool, mode: str, budget: int | None, seed: int) -> Outcome:
    """What a compile in this mode finds."""
    if mode == "top-k":
        return top_k_outcome(pool, seed, budget)
    if mode in ("logprobs", "calibrated"):
        plan = pool.plan("light", budget, signal="logprobs")
        return planned_outcome(pool, plan, "mle", seed, "logprobs", calibrating=mode == "calibrated")
    return planned_outcome(pool, pool.plan(mode, None if mode == "paper" else budget), "mle", seed)


def claimed(found: Outcome) -> bool:
    """Whether the chosen order is called better than the original."""
    return found.comparison is not None and found.comparison.probability >= MIN_WIN_PROBABILITY


def row(seed: int, landscape: Landscape, num_pool: int, mode: str, budget: int | None) -> list[float]:
    """Whether it was claimed to be better, whether it was changed, the held-out gain, and the calls."""
    torch.set_num_threads(1)
    pool = Pool.of(landscape, num_pool)
    found = compiled(pool, mode, budget, seed)
    chosen, original = found.ordering[0], pool.space.identity[0]  # The original is the program as it is.
    gain = pool.held_out(chosen, found.offsets) - pool.held_out(original)
    return [claimed(found), bool(found.chosen), gain, found.program_calls["total"]]


def nothing_to_find(
    seed: int, *, world: str, num_demos: int, num_pool: int, mode: str, budget: int
) -> list[float]:
    """A compile in a world where no order is better than the original."""
    return row(seed, WORLDS[world](num_demos, seed, num_pool + 1_000), num_pool, mode, budget)


def good_original(
    seed: int, *, world: str | Path, num_demos: int, num_pool: int, best_of: int, mode: str, budget: int
) -> list[float]:
    """A compile whose original order is the best of some random ones."""
    landscape: Landscape
    if isinstance(world, Path):
        landscape = RecordedLandscape(world, seed)
        num_pool = landscape.num_examples // 2
    else:
        landscape = SyntheticLandscape(world, num_demos, seed, num_examples=num_pool + 1_000)
    rng = np.random.default_rng(seed)
    orders = [tuple(map(int, rng.permutation(landscape.num_demos))) for _ in range(best_of)]
    original = max(orders, key=lambda order: landscape.answers(order).mean())
    return row(seed, Renamed(landscape, original), num_pool, mode, budget)


def line(rows: Sequence[Sequence[float]]) -> str:
    """The columns of a table."""
    claimed, changed, gains, calls = np.array(rows, dtype=float).T
    low, high = mean_interval(list(gains))
    lost = -gains[gains < -0.01]
    return (
        f"{len(rows)} | {100 * claimed.mean():.0f} % | {100 * changed.mean():.0f} % | {gains.mean():+.4f} "
        f"[{low:+.4f}, {high:+.4f}] | {100 * len(lost) / len(rows):.0f} % | "
        f"{lost.mean() if len(lost) else 0.0:.3f} | {calls.mean():,.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=WORLDS)
    parser.add_argument("--good", action="store_true", help="worlds with a good original order")
    parser.add_argument("--recorded", type=Path, nargs="+", default=[], help="recorded landscapes for --good")
    parser.add_argument(
        "--best-of", type=int, default=5, help="random orders, the best of which is the original"
    )
    parser.add_argument("--demos", type=int, nargs="+", default=[2, 3, 4, 8])
    parser.add_argument(
        "--pools", type=int, nargs="+", default=[20, 40, 100, 200], help="examples of both splits"
    )
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--budget", type=int, default=1_000, help="program calls, but for the paper's mode")
    parser.add_argument("--compiles", type=int, default=100, help="in each world")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    worlds = (args.recorded or KINDS) if args.good else args.worlds
    seeds = range(args.first_seed, args.first_seed + args.compiles)
    shown = "compiles | better, p >= .9 | changed | held-out gain | worse | lost then | calls"
    print(f"| world | demos | examples | mode | {shown} |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(args.jobs) as executor:
        for world in worlds:
            for num_demos in args.demos if not args.recorded else [0]:
                for num_pool in args.pools if not args.recorded else [0]:
                    for mode in args.modes:
                        shape = {"world": world, "num_demos": num_demos, "num_pool": num_pool, "mode": mode}
                        shape["budget"] = args.budget
                        work = (
                            partial(good_original, best_of=args.best_of, **shape)
                            if args.good
                            else partial(nothing_to_find, **shape)
                        )
                        rows = list(executor.map(work, seeds, chunksize=5))
                        name = world.stem if isinstance(world, Path) else world
                        print(
                            f"| {name} | {num_demos or ''} | {num_pool or ''} | {mode} | {line(rows)} |",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
