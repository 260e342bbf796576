"""Which demos, how many, in what order: accuracy by program calls of the default search and of what it must beat.

python benchmarks/arrangements.py                            # pools of 20, 50 and 200; 500 and 1,000 calls
python benchmarks/arrangements.py --worlds 40 --budgets 300
python benchmarks/arrangements.py --claims --worlds 100      # what is claimed where no demo does any good
python benchmarks/arrangements.py --claims --signal logprobs --noise 3 --budgets 200

The worlds are synthetic (`ArrangementWorld`): an arrangement's accuracy is decided by which demos it shows, how many,
by the classes of the demos next to the question, and by what each example prefers. All methods have the same 100
examples and calls, and begin with the program without demos; true scores are those on 2,000 other examples.
Differences are paired, with 95 % intervals over worlds. With --best comes the end of a climb of 3,000 steps on the true
score itself. With --claims, no arrangement of the worlds is better than none: "replaced" is the share of compiles that
give the program demos all the same, "better" the share that claim so (p >= .9), and "change" that of the true score.
With --signal logprobs the search learns from log-probabilities of the two labels as well.
"""

from __future__ import annotations

import argparse
import itertools
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from claims import claimed
from landscapes import TwoLabels
from methods import Pool, planned_outcome

from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.plan import Plan
from plr_dspy.search.space import Ordering, OrderingSpace
from plr_dspy.statistics.comparisons import mean_interval

NUM_EXAMPLES, NUM_HELD_OUT = 100, 2_000
MAX_DEMOS = 8
FIRST_SEED = 60_000
CLIMBING_STEPS = 3_000

STRENGTHS = {
    "classes": (0.5, 0.2, 0.2, 0.0),
    "items": (0.15, 0.4, 0.2, 0.0),
    "nothing": (0.0, 0.0, 0.0, 0.0),
    "harm": (0.0, 0.0, 0.0, 0.5),
}
"""Logits by kind of world: of the leaning, the worth, the logarithm of the number of demos, and the harm of demos."""

WITHOUT_GAIN = ("nothing", "harm")
"""The kinds of world where no arrangement is better than none."""

NOISE = 0.6
"""Standard deviation of what an example makes of an arrangement, in logits."""


class ArrangementWorld(TwoLabels):
    """A program whose accuracy with any demos is known without a model.

    The log-odds of a right answer to an example are its own easiness, plus the quality of the arrangement, plus its
    leaning for or against the example's class, plus what the example makes of this very arrangement. Quality is the
    worth of the demos shown, each of which counts most near the end, and grows with their number; the leaning is the
    model's own, and that of the classes shown, of which the last count most. Over random arrangements their standard
    deviations are about those of `landscapes.SyntheticLandscape`, which are of recorded answers of a real model.

    Args:
        size: Demos in the pool, half of either class.
        seed: Of everything random.
        kind: "classes" decide most, as in the recorded answers, or "items": which demos are shown, whatever their
            class. In a world of kind "nothing" no arrangement is better than another, and in one of kind "harm" each
            is worse than none.
        num_known: Examples that a search has; `NUM_HELD_OUT` others say what it is worth.
        noise: Standard deviation of what an example makes of an arrangement, in logits.
    """

    def __init__(
        self,
        size: int,
        seed: int,
        *,
        kind: str = "classes",
        num_known: int = NUM_EXAMPLES,
        noise: float = NOISE,
    ) -> None:
        rng = np.random.default_rng([size, seed])
        self.classes = (rng.permutation(size) % 2).tolist()
        self.num_demos, self.num_examples = size, num_known + NUM_HELD_OUT
        self.example_classes = self.right_labels.tolist()
        self._worth = rng.normal(size=size)
        self._bias = rng.normal()
        self._easiness = rng.normal(0.2, 0.9, size=self.num_examples)
        self._strengths, self._seed, self._noise = STRENGTHS[kind], seed, noise

    def odds(self, order: tuple[int, ...]) -> np.ndarray:
        items = list(order)
        lean, worth, more, harm = self._strengths
        nearness = 0.6 ** np.arange(len(items))[::-1]  # of the last demo 1
        signs = 2.0 * np.array([self.classes[item] for item in items]) - 1.0
        leaning = lean * (self._bias + float(nearness @ signs))
        quality = worth * float((0.2 + 0.8 * nearness) @ self._worth[items]) + more * np.log1p(len(items))
        quality -= harm * bool(items)
        sides = 2.0 * self.right_labels - 1.0
        rng = np.random.default_rng([self._seed, zlib.crc32(repr(items).encode())])
        noise = self._noise * rng.normal(size=len(sides))
        odds: np.ndarray = self._easiness + quality + leaning * sides + noise
        return odds


@dataclass(frozen=True)
class ArrangementPool(Pool):
    """A world whose demos may be left out, and whose program begins without any."""

    @property
    def space(self) -> OrderingSpace:
        size = self.landscape.num_demos
        return OrderingSpace.of_sizes(size, max_length=min(MAX_DEMOS, size), identity=((),))

    def plan(self, auto: str, budget: int | None = None, **overrides: Any) -> Plan:
        return super().plan(auto, budget, searched="demos", **overrides)

    def truth(self, arrangement: Ordering) -> float:
        """Accuracy on examples that no search has seen."""
        return self.held_out(arrangement[0])

    def best(self, seed: int) -> float:
        """Accuracy of about the best arrangement."""
        rng, space = np.random.default_rng(seed), self.space
        best = space.identity
        height = self.truth(best)
        for _ in range(CLIMBING_STEPS):
            other = space.moved(best, rng)
            if (reached := self.truth(other)) > height:
                best, height = other, reached
        return height


def default_outcome(pool: ArrangementPool, budget: int, seed: int, signal: str = "score") -> Outcome:
    """All that the default search finds."""
    return planned_outcome(pool, pool.plan("light", budget, signal=signal), "mle", seed, signal)


def default(pool: ArrangementPool, budget: int, seed: int) -> Ordering:
    """The arrangement that the default search chooses."""
    return default_outcome(pool, budget, seed).ordering


def random_search(pool: ArrangementPool, budget: int, seed: int) -> Ordering:
    """The best of as many random arrangements as can be scored on all examples."""
    return _best(pool, _drawn(pool, max(1, budget // pool.num_known), seed))


def halving(pool: ArrangementPool, budget: int, seed: int, keep: float = 0.4) -> Ordering:
    """Successive halving of random arrangements, which begin with 4 examples each in a third of the calls."""
    alive = _drawn(pool, max(1, budget // 12), seed)
    rungs, calls, examples = int(np.ceil(np.log(len(alive)) / np.log(1 / keep))), 0, 0
    for rung in range(rungs):
        more = max(1, (budget - calls) // (rungs - rung) // len(alive)) if rung else 4
        more = min(more, pool.num_known - examples)
        calls, examples = calls + more * len(alive), examples + more
        if calls > budget:
            break
        alive = _ranked(pool, alive, examples)[: max(1, int(np.ceil(keep * len(alive))))]
    return alive[0]


def _drawn(pool: ArrangementPool, number: int, seed: int) -> list[Ordering]:
    """The program without demos, and distinct random arrangements."""
    drawn = pool.space.draw(2 * number, np.random.default_rng(seed))
    return list(dict.fromkeys([pool.space.identity, *drawn]))[:number]


def _ranked(pool: ArrangementPool, some: Sequence[Ordering], num_examples: int) -> list[Ordering]:
    return sorted(some, key=lambda arrangement: -pool.landscape.answers(arrangement[0])[:num_examples].mean())


def _best(pool: ArrangementPool, some: Sequence[Ordering]) -> Ordering:
    return _ranked(pool, some, pool.num_known)[0]


Method = Callable[[ArrangementPool, int, int], Ordering]
METHODS: dict[str, Method] = {"random search": random_search, "halving": halving, "default": default}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pools", type=int, nargs="+", default=[20, 50, 200], help="demos in the pool")
    parser.add_argument("--budgets", type=int, nargs="+", default=[500, 1_000], help="program calls")
    parser.add_argument("--kinds", nargs="+", choices=STRENGTHS)
    parser.add_argument("--claims", action="store_true", help="worlds where no demo does any good")
    parser.add_argument(
        "--examples", type=int, nargs="+", default=[10, 20, 40], help="of each world of --claims"
    )
    parser.add_argument("--signal", choices=["score", "logprobs"], default="score", help="of --claims")
    parser.add_argument("--noise", type=float, default=NOISE, help="of the worlds of --claims, in logits")
    parser.add_argument("--worlds", type=int, default=12, help="of each kind")
    parser.add_argument("--best", action="store_true", help="climb on the true score as well")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(args.first_seed, args.first_seed + args.worlds)
    if args.claims:
        print_claims(args, seeds)
        return
    print(f"{args.worlds} worlds a row; held-out accuracy\n")
    print("| world | pool | calls | method | score | against halving | s |\n|---|---|---|---|---|---|---|")
    for kind, size in itertools.product(args.kinds or ["classes", "items"], args.pools):
        pools = [ArrangementPool.of(ArrangementWorld(size, seed, kind=kind), NUM_EXAMPLES) for seed in seeds]
        start = np.mean([pool.truth(pool.space.identity) for pool in pools])
        print(f"| {kind} | {size} | 0 | no demos | {start:.3f} | | |")
        for budget in args.budgets:
            for line in lines(pools, budget, seeds):
                print(f"| {kind} | {size} | {budget:,} | {line} |", flush=True)
        if args.best:
            best = np.mean([pool.best(seed) for pool, seed in zip(pools, seeds, strict=True)])
            print(f"| {kind} | {size} | | about the best | {best:.3f} | | |", flush=True)


def print_claims(args: argparse.Namespace, seeds: Sequence[int]) -> None:
    """Print a row for each kind of world, number of examples, pool and budget."""
    print(f"{args.worlds} worlds a row; change is of held-out accuracy\n")
    print("| world | examples | pool | calls | replaced | better | change |\n|---|---|---|---|---|---|---|")
    shapes = itertools.product(args.kinds or WITHOUT_GAIN, args.examples, args.pools, args.budgets)
    for kind, number, size, budget in shapes:
        worlds = [ArrangementWorld(size, s, kind=kind, num_known=number, noise=args.noise) for s in seeds]
        pools = [ArrangementPool.of(world, number) for world in worlds]
        rows = [claim(pool, budget, s, args.signal) for pool, s in zip(pools, seeds, strict=True)]
        replaced, better, change = np.mean(rows, axis=0)
        low, high = mean_interval([gain for _, _, gain in rows])
        shares = f"{100 * replaced:.0f} % | {100 * better:.0f} % | {change:+.3f} [{low:+.3f}, {high:+.3f}]"
        print(f"| {kind} | {number} | {size} | {budget:,} | {shares} |", flush=True)


def claim(pool: ArrangementPool, budget: int, seed: int, signal: str = "score") -> tuple[bool, bool, float]:
    """Whether the program without demos is replaced, whether that is called better, and what the true score gains."""
    outcome, nothing = default_outcome(pool, budget, seed, signal), pool.space.identity
    replaced = outcome.ordering != nothing
    return replaced, replaced and claimed(outcome), pool.truth(outcome.ordering) - pool.truth(nothing)


def lines(pools: Sequence[ArrangementPool], budget: int, seeds: Sequence[int]) -> Iterator[str]:
    """The last columns of the table: a row for each method."""
    scores, seconds = {}, {}
    for name, method in METHODS.items():
        began = time.perf_counter()
        scores[name] = [p.truth(method(p, budget, seed)) for p, seed in zip(pools, seeds, strict=True)]
        seconds[name] = (time.perf_counter() - began) / len(pools)
    for name, found in scores.items():
        gains = np.subtract(found, scores["halving"]).tolist()
        against = ""
        if name != "halving" and len(gains) > 1:
            low, high = mean_interval(gains)
            against = f"{np.mean(gains):+.3f} [{low:+.3f}, {high:+.3f}]"
        yield f"{name} | {np.mean(found):.3f} | {against} | {seconds[name]:.1f}"


if __name__ == "__main__":
    main()
