"""Time of an iteration's ask and tell: what a compile spends beside program calls.

python benchmarks/overhead.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

from plr_dspy import CrossEntropySearch, MaximumLikelihood, MixtureEM, OrderingSpace, RankEMA
from plr_dspy.search.space import Ordering, Trial
from plr_dspy.search.surrogate.label_responses import LabelResponses
from plr_dspy.search.thompson import ThompsonSearch


def milliseconds(function) -> float:
    start = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - start)


def iteration(rule, num_demos: int, rounds: int) -> float:
    """Median time of ask + tell, after one round to warm up."""
    search = CrossEntropySearch(OrderingSpace.of_sizes(num_demos), update=rule, seed=0)

    def one_round() -> None:
        search.tell([Trial(ordering, i / 100, 1) for i, ordering in enumerate(search.ask())])

    one_round()
    return statistics.median(milliseconds(one_round) for _ in range(rounds))


def modelled(
    num_demos: int, num_cells: int, rounds: int, *, shares: np.ndarray | bool | None = False
) -> float:
    """Median time of ask + tell of the default search that knows so many scores, 8 to 40 an ordering.

    Args:
        num_demos, num_cells, rounds: The size of it.
        shares: Of two labels whose answers are calibrated; None for log-probabilities alone, False for scores alone.
    """
    rng = np.random.default_rng(0)
    right = np.arange(160) % 2
    leanings, own = rng.normal(size=2**16), rng.normal(size=160)

    def told(ordering: Ordering, example: int) -> tuple[float, float]:
        z = 0.5 * (own[example] + 2 * right[example] - 1 + leanings[hash(ordering) % 2**16])
        return -float(np.logaddexp(0.0, 2 * z)), -float(np.logaddexp(0.0, -2 * z))

    responses = (
        None
        if shares is False
        else LabelResponses(np.eye(2)[right], told, shares=shares, calibrating=shares is not None)
    )
    search = ThompsonSearch(
        OrderingSpace.of_sizes(num_demos),
        num_examples=160,
        classes=[[i % 2 for i in range(num_demos)]],
        example_classes=[i % 2 for i in range(160)],
        responses=responses,
    )
    known: dict[Ordering, dict[int, float]] = {}

    def trials(orderings: list[Ordering]) -> list[Trial]:
        for ordering in orderings:
            scores = known.setdefault(ordering, {})
            more = rng.permutation(160)[: 16 if scores else 8]
            scores |= {int(example): float(rng.random() < 0.6) for example in more}
        return [Trial(o, 0.0, len(known[o]), tuple(known[o].items())) for o in orderings]

    search.tell(trials(search.draw(num_cells // 24)))
    search.tell(trials(list(known)))

    def one_round() -> None:
        search.tell(trials(search.ask()))

    one_round()
    return statistics.median(milliseconds(one_round) for _ in range(rounds))


def fit(num_demos: int, rounds: int) -> float:
    """Median time of one maximum-likelihood fit of 3 elites, 60 Adam steps."""
    rule = MaximumLikelihood()
    generator = torch.Generator().manual_seed(0)
    elites = torch.stack([torch.randperm(num_demos, generator=generator) for _ in range(3)])
    start = torch.zeros(num_demos, dtype=torch.float64)
    rule.fit(start, elites)
    return statistics.median(milliseconds(lambda: rule.fit(start, elites)) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds; the median is printed")
    rounds = parser.parse_args().rounds
    print("demos   ema (ms)   mle (ms)   mixture (ms)   mle fit alone (ms)")
    for num_demos in (8, 32, 256):
        times = [iteration(rule, num_demos, rounds) for rule in (RankEMA(), MaximumLikelihood(), MixtureEM())]
        alone = fit(num_demos, rounds)
        print(f"{num_demos:5d}   {times[0]:8.1f}   {times[1]:8.1f}   {times[2]:12.1f}   {alone:18.1f}")
    print("\nthe default search: demos, cells known, ms with scores, log-probabilities, calibrated answers")
    for num_demos, num_cells in ((8, 1_000), (8, 10_000), (16, 10_000), (32, 10_000)):
        kinds = [
            modelled(num_demos, num_cells, rounds, shares=kind) for kind in (False, None, np.full(2, 0.5))
        ]
        print(f"{num_demos:5d}   {num_cells:6,d}   " + "   ".join(f"{kind:6.1f}" for kind in kinds))


if __name__ == "__main__":
    main()
