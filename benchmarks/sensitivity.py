"""Whether the intervals and the test of `order_sensitivity` hold, on simulated scores whose truth is known.

python benchmarks/sensitivity.py                 # all worlds, 400 tables each: 6 minutes on 2 cores
python benchmarks/sensitivity.py --tables 100    # quicker, less exact
python benchmarks/sensitivity.py --splits        # how 300 calls are best split into orders and examples

Answers are right or wrong. In each world, orders have true scores with a known standard deviation, two orders of equal
true score disagree on a given share of the examples, and which examples an order gets right is unrelated between
orders, or a smooth function of the demos' positions that differs by example, or of one demo's position alone.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from plr_dspy.statistics import spread as analysis

Array = NDArray[np.float64]
SEARCHED = 100


@dataclass(frozen=True)
class World:
    """What tables of scores are drawn from.

    Attributes:
        demos: Their number.
        orders: Scored, the program's own included; all where these are fewer.
        examples: That score each.
        deviation: Standard deviation of the true scores of orders.
        disagreement: Share of examples on which two orders of equal true score differ.
        tastes: What decides which orders an example prefers: "unrelated", "smooth" or "one demo".
        accuracy: Mean true score, with all shades of easiness; "contested" where some examples are a toss-up and no
            order changes the rest.
    """

    demos: int
    orders: int
    examples: int
    deviation: float
    disagreement: float
    tastes: str
    accuracy: float | str

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """A table of scores ``[orders, examples]``, and the true scores of all orders, or of 100."""
        count = math.factorial(self.demos)
        if count <= SEARCHED:
            orders = rng.permutation(np.array(list(itertools.permutations(range(self.demos)))))
        else:
            orders = np.array([rng.permutation(self.demos) for _ in range(SEARCHED)])
        effects = rng.normal(size=len(orders))
        if count <= SEARCHED:
            effects = (effects - effects.mean()) / effects.std()
        true, scored = self.true_scores(effects), min(self.orders, len(orders))
        if isinstance(self.accuracy, str):
            chances = (true[:scored, None] - (1 - self.share) * 0.75) / self.share
            contested, decided = rng.random((2, self.examples)) < [[self.share], [0.75]]
            tossed = rng.random((scored, self.examples)) < chances
            return np.where(contested, tossed, decided).astype(float), true
        places = np.argsort(orders, axis=1) - (self.demos - 1) / 2
        if self.tastes == "smooth":
            places = places / np.linalg.norm(places, axis=1, keepdims=True)
            tastes = places[:scored] @ rng.normal(size=(self.demos, self.examples))
            variances = np.ones(len(orders))
        elif self.tastes == "one demo":
            place = places[:, :1] / places[:, 0].std()
            tastes, variances = place[:scored] * rng.normal(size=self.examples), place[:, 0] ** 2
        else:
            tastes, variances = rng.normal(size=(scored, self.examples)), np.ones(len(orders))
        shared = shared_variance(self.accuracy, self.disagreement)
        own = 1 - shared
        levels = special.ndtri(true) * np.sqrt(
            shared + own * variances
        )  # so that mean scores are the true ones
        easiness = math.sqrt(shared) * rng.normal(size=self.examples)
        return (levels[:scored, None] + easiness + math.sqrt(own) * tastes > 0).astype(float), true

    @property
    def share(self) -> float:
        """Of the examples that are a toss-up."""
        return max(2 * self.disagreement, 5 * self.deviation)

    def true_scores(self, effects: Array) -> Array:
        """Of orders with standard normal effects."""
        if isinstance(self.accuracy, str):
            return self.share * np.clip(0.5 + self.deviation / self.share * effects, 0.0, 1.0) + 0.75 * (
                1 - self.share
            )
        return np.clip(self.accuracy + self.deviation * effects, 0.01, 0.99)

    def true_deviation(self, true: Array) -> float:
        """Standard deviation of the true scores of all orders; of more than 100, those of the distribution."""
        if math.factorial(self.demos) <= SEARCHED:
            return float(true.std())
        return float(self.true_scores(special.ndtri((np.arange(10_000) + 0.5) / 10_000)).std())


@cache
def shared_variance(accuracy: float, disagreement: float) -> float:
    """Share of the variance that is an example's easiness, so that two orders disagree as often as wanted."""
    disagreement = min(disagreement, 1.9 * accuracy * (1 - accuracy))
    level = special.ndtri(accuracy)

    def excess(shared: float) -> float:
        both = stats.multivariate_normal([0, 0], [[1, shared], [shared, 1]]).cdf([level, level])
        return float(2 * (accuracy - both) - disagreement)

    return float(optimize.brentq(excess, 0.0, 0.999_999))


def within_examples(scores: Array, rng: np.random.Generator) -> tuple[float, float]:
    """For comparison: p-values of the F test of orders x examples, and of permutations within examples."""
    orders, examples = scores.shape
    centred = scores - scores.mean(axis=0)
    means = centred.mean(axis=1)
    noise = ((centred - means[:, None]) ** 2).sum() / ((orders - 1) * (examples - 1))
    ratio = examples * (means**2).sum() / (orders - 1) / noise if noise else 0.0
    permuted = rng.permuted(np.repeat(scores[None], 199, axis=0), axis=1).mean(axis=2).var(axis=1)
    reached = (permuted >= scores.mean(axis=1).var() - 1e-12).sum()
    return float(special.fdtrc(orders - 1, (orders - 1) * (examples - 1), ratio)), (1 + reached) / 200


def results(world: World, tables: int) -> Array:
    """Means over tables: the deviation covered, the gain covered, `matters`, F and permutations reject, widths."""
    analysis.NUM_FLIPS, analysis.NUM_DRAWS = 999, 2_000
    rng, found = np.random.default_rng(1), []
    distinct = math.factorial(world.demos)
    for table in range(tables):
        scores, true = world.draw(rng)
        result = analysis.spread(
            scores, num_distinct=distinct, num_searched=min(distinct, SEARCHED), seed=table
        )
        deviation = world.true_deviation(true)
        gain = true.max() - true[0]
        f_test, permutations = within_examples(scores, rng) if world.deviation == 0 else (1.0, 1.0)
        found.append(
            [
                result.interval[0] - 1e-9 <= deviation <= result.interval[1] + 1e-9,
                result.gain_interval[0] - 1e-9 <= gain <= result.gain_interval[1] + 1e-9,
                result.p_value <= 0.05,
                f_test <= 0.05,
                permutations <= 0.05,
                result.interval[1] - result.interval[0],
                result.gain_interval[1] - result.gain_interval[0],
                abs(result.gain - gain),
            ]
        )
    return np.mean(np.array(found, dtype=float), axis=0)


def worlds() -> Iterator[World]:
    """All that are simulated."""
    for demos, deviation, disagreement, examples in itertools.product(
        (2, 3, 4, 8), (0.0, 0.03, 0.1), (0.05, 0.4), (10, 20, 40, 100)
    ):
        for tastes in ("unrelated", "smooth", "one demo"):
            yield World(demos, 10, examples, deviation, disagreement, tastes, 0.7)
        if examples in (20, 40):
            for accuracy in (0.5, 0.9, "contested"):
                yield World(demos, 10, examples, deviation, disagreement, "unrelated", accuracy)


def splits() -> Iterator[World]:
    """Ways to spend 300 calls."""
    for disagreement, deviation, orders in itertools.product(
        (0.15, 0.4), (0.05, 0.1), (4, 6, 8, 10, 12, 15, 20, 30)
    ):
        yield World(8, orders, 300 // orders, deviation, disagreement, "smooth", 0.7)


def print_rows(title: str, rows: dict[str, list[Array]]) -> None:
    """Mean and worst of the worlds of each row."""
    print(
        f"\n| {title} | worlds | deviation covered: mean, least | gain covered: mean, least |\n|---|---|---|---|"
    )
    for name, values in rows.items():
        mean, least = np.mean(values, axis=0), np.min(values, axis=0)
        print(f"| {name} | {len(values)} | {mean[0]:.3f}, {least[0]:.3f} | {mean[1]:.3f}, {least[1]:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=400, help="of each world")
    parser.add_argument("--splits", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    chosen = list(splits() if args.splits else worlds())
    with ProcessPoolExecutor(args.processes) as pool:
        found = list(pool.map(results, chosen, [args.tables] * len(chosen)))
    if args.splits:
        print(
            "| disagreement | deviation | orders x examples | power | width of deviation, of gain | error of gain |"
        )
        print("|---|---|---|---|---|---|")
        for world, (_, _, power, _, _, *rest) in zip(chosen, found, strict=True):
            split = f"{world.orders} x {world.examples}"
            print(f"| {world.disagreement} | {world.deviation} | {split} | {power:.2f} | "
                  f"{rest[0]:.3f}, {rest[1]:.3f} | {rest[2]:.3f} |")  # fmt: skip
        return
    for field in ("demos", "examples", "deviation", "disagreement", "tastes", "accuracy"):
        rows = defaultdict(list)
        for world, values in zip(chosen, found, strict=True):
            rows[f"{getattr(world, field)}"].append(values)
        print_rows(field, rows)
    print(
        "\n| no effect; tastes | worlds | `matters`: mean, most | F test | permutations |\n|---|---|---|---|---|"
    )
    for tastes in ("unrelated", "smooth", "one demo"):
        null = [v for w, v in zip(chosen, found, strict=True) if w.deviation == 0 and w.tastes == tastes]
        mean, most = np.mean(null, axis=0), np.max(null, axis=0)
        shares = " | ".join(f"{mean[i]:.3f}, {most[i]:.3f}" for i in (2, 3, 4))
        print(f"| {tastes} | {len(null)} | {shares} |")
    print("\nLeast covered:")
    for column, name in enumerate(("deviation", "gain")):
        for i in np.argsort([values[column] for values in found])[:8]:
            print(f"{name} {found[i][column]:.3f} {chosen[i]}")
    print("\nMost false positives:")
    null = [i for i, world in enumerate(chosen) if world.deviation == 0]
    for i in sorted(null, key=lambda i: -found[i][2])[:5]:
        print(f"{found[i][2]:.3f} {chosen[i]}")


if __name__ == "__main__":
    main()
