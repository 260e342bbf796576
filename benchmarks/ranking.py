"""Are the orders that a search finds probable the accurate ones? Kendall's tau, on recorded answers of a real model.

python benchmarks/ranking.py --recorded DATA/mr_k5_seed1.npz --plot ranking.png

Half of the examples are the pool, of which 80 % score orders in the search; all orders are then ranked by the learnt
probability, and scored on the other half. Intervals are over splits, of the mean; the picture is of the first one.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from methods import Pool, planned_outcome
from recorded import RecordedLandscape, Renamed

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from paper.figures import draw_ranking
from paper.results import Ranking
from paper.tables import kendall
from plr_dspy import MixtureEM
from plr_dspy.statistics.comparisons import mean_interval

BUDGET = 1_000
SEARCHES = {
    "paper, 1 component": ("paper", None, MixtureEM(num_components=1)),
    "paper, 4 components": ("paper", None, MixtureEM(num_components=4)),
    "paper, MLE": ("paper", None, "mle"),
    f"default, {BUDGET:,} calls": ("light", BUDGET, "mle"),
}


def ranked(path: Path, seed: int, search_name: str) -> Ranking:
    """All orders by the distribution that a search has learnt on one split."""
    auto, budget, update = SEARCHES[search_name]
    recorded = RecordedLandscape(path, seed)
    size = recorded.num_examples // 2
    original = np.random.default_rng(seed).permutation(recorded.num_demos).tolist()
    pool = Pool.of(Renamed(recorded, original), size)
    (distribution,) = planned_outcome(pool, pool.plan(auto, budget), update, seed).distributions
    orders = [order for (order,) in pool.space.enumerate()]
    return Ranking(
        orders=tuple(orders),
        log_probs=tuple(distribution.log_prob(torch.tensor(orders)).tolist()),
        accuracies=tuple(pool.held_out(order) for order in orders),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recorded", type=Path, nargs="+", required=True)
    parser.add_argument("--splits", type=int, default=40)
    parser.add_argument("--plot", type=Path, help="where to write the picture")
    args = parser.parse_args()
    print("| task | search | Kendall's tau | splits with tau above 0 |\n|---|---|---|---|")
    pictures = []
    for path in args.recorded:
        for name in SEARCHES:
            rankings = [ranked(path, seed, name) for seed in range(args.splits)]
            taus = [tau for r in rankings if not math.isnan(tau := kendall(r)[0])]
            low, high = mean_interval(taus)
            share = np.mean([tau > 0 for tau in taus])
            print(
                f"| {path.stem} | {name} | {np.mean(taus):+.2f} [{low:+.2f}, {high:+.2f}] | {100 * share:.0f} % |"
            )
            if name == next(iter(SEARCHES)):
                num_demos = len(rankings[0].orders[0])
                pictures.append(
                    {"task": path.stem, "num_demos": num_demos, "seed": 0, "ranking": rankings[0]}
                )
    if args.plot:
        draw_ranking(pd.DataFrame(pictures), args.plot)


if __name__ == "__main__":
    main()
