"""Is the order that replaces the original one better than it, as often as the search says?

python benchmarks/calibration.py                          # synthetic landscapes, a random original order
python benchmarks/calibration.py --best-of 20             # an original order that is already the best of 20
python benchmarks/calibration.py --recorded FILES         # answers of a real model, half of the examples held out

For each threshold of the probability that it takes to replace the original order (`plr_dspy.ending.SURE`): how often it
is replaced, the mean gain on held-out examples, and how often the chosen order is worse there.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from landscapes import KINDS, Landscape, RecordedLandscape, Renamed, SyntheticLandscape
from methods import Pool, planned_outcome

from plr_dspy import ending

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def one(kind: str | Path, seed: int, args: argparse.Namespace) -> tuple[float, float, float]:
    """Probability of being better that the search gives its winner, and held-out accuracy of original and winner."""
    ending.SURE = 0.0
    landscape: Landscape = (
        RecordedLandscape(kind, seed)
        if isinstance(kind, Path)
        else SyntheticLandscape(kind, args.demos, seed)
    )
    num_pool = landscape.num_examples // 2 if isinstance(kind, Path) else args.pool
    num_selection = num_pool // 5
    pool = Pool(landscape, num_pool - num_selection, num_selection)
    rng = np.random.default_rng(seed)
    orders = [tuple(map(int, rng.permutation(landscape.num_demos))) for _ in range(args.best_of)]
    original = max(orders, key=pool.held_out)
    pool = Pool(Renamed(landscape, original), pool.num_train, pool.num_selection)
    found = planned_outcome(pool, pool.plan("light", args.budget), "mle", seed)
    comparison = found.comparison
    probability = 0.0 if comparison is None or comparison.probability is None else comparison.probability
    return probability, pool.held_out(pool.space.identity[0]), pool.held_out(found.ordering[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recorded", type=Path, nargs="+", default=[])
    parser.add_argument("--demos", type=int, default=8)
    parser.add_argument("--pool", type=int, default=100)
    parser.add_argument("--budget", type=int, default=1_000)
    parser.add_argument("--landscapes", type=int, default=24, help="of each kind, or splits of each file")
    parser.add_argument(
        "--best-of", type=int, default=1, help="random orders, the best of which is the original"
    )
    parser.add_argument("--first-seed", type=int, default=30_000)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    kinds = args.recorded or list(KINDS)
    jobs = [(kind, args.first_seed + i, args) for kind in kinds for i in range(args.landscapes)]
    with ProcessPoolExecutor(args.jobs) as executor:
        rows = np.array(list(executor.map(one, *zip(*jobs, strict=True))))
    probability, original, winner = rows.T
    gain = winner - original
    print(
        f"{len(rows)} compiles with {args.budget:,} calls; original {original.mean():.3f}, winner {winner.mean():.3f}\n"
    )
    print("| replaced at | share replaced | mean gain | worse at all | worse by .02 | worse by .05 |")
    print("|---|---|---|---|---|---|")
    for threshold in THRESHOLDS:
        kept = np.where(probability >= threshold, gain, 0.0)
        shares = " | ".join(f"{(kept < -least).mean():.3f}" for least in (0.0, 0.02, 0.05))
        print(f"| {threshold} | {(probability >= threshold).mean():.2f} | {kept.mean():+.4f} | {shares} |")
    print("\n| probability said | compiles | truly better |\n|---|---|---|")
    for low, high in zip((0.0, *THRESHOLDS), (*THRESHOLDS, 1.01), strict=True):
        within = (probability >= low) & (probability < high)
        if within.any():
            print(f"| {low} to {min(high, 1.0)} | {within.sum()} | {(gain[within] > 0).mean():.2f} |")


if __name__ == "__main__":
    main()
