"""Whether the intervals and the test of `order_sensitivity` hold, on simulated scores whose truth is known.

python benchmarks/sensitivity.py                 # all worlds, 400 tables each: 6 minutes on 2 cores
python benchmarks/sensitivity.py --tables 100    # quicker, less exact
python benchmarks/sensitivity.py --splits        # how often 300 calls show an effect, by orders and examples

Answers are right or wrong. In each world, orders have true scores with a known standard deviation, two orders of equal
true score disagree on a given share of the examples, and which examples an order gets right is unrelated between
orders, or a smooth function of the demos' positions that differs by example, or of one demo's position alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from command import options, print_table, processes
from numpy.typing import NDArray
from scipy import optimize, special, stats

from plr_dspy.statistics import spread as analysis

Array = NDArray[np.float64]
SEARCHED = 100


@dataclass(frozen=True)
class World:
    """What tables of scores are drawn from."""

    demos: int
    orders: int  # Scored, the program's own included; all where these are fewer.
    examples: int  # That score each.
    deviation: float  # Standard deviation of the true scores of orders.
    disagreement: float  # Share of examples on which two orders of equal true score differ.
    tastes: str  # What decides which orders an example prefers: "unrelated", "smooth" or "one demo".
    accuracy: float | str  # Mean true score; "contested" where some examples are a toss-up and no order changes others.

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
        # So that mean scores are the true ones.
        levels = special.ndtri(true) * np.sqrt(shared + own * variances)
        easiness = math.sqrt(shared) * rng.normal(size=self.examples)
        return (levels[:scored, None] + easiness + math.sqrt(own) * tastes > 0).astype(float), true

    @property
    def share(self) -> float:
        """Of the examples that are a toss-up."""
        return max(2 * self.disagreement, 5 * self.deviation)

    def true_scores(self, effects: Array) -> Array:
        """Of orders with standard normal effects."""
        if isinstance(self.accuracy, str):
            tossed = np.clip(0.5 + self.deviation / self.share * effects, 0.0, 1.0)
            return self.share * tossed + 0.75 * (1 - self.share)
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


def results(world: World, tables: int) -> Array:
    """Means over tables: the intervals of deviation and gain held the truth, and an effect was seen."""
    analysis.NUM_FLIPS, analysis.NUM_DRAWS = 999, 2_000
    rng, found = np.random.default_rng(1), []
    distinct = math.factorial(world.demos)
    sizes = {"num_distinct": distinct, "num_searched": min(distinct, SEARCHED)}
    for table in range(tables):
        scores, true = world.draw(rng)
        result = analysis.spread(scores, **sizes, seed=table)
        deviation, gain = world.true_deviation(true), true.max() - true[0]
        (low, high), (least, most) = result.deviation_interval, result.gain_interval
        covered = [low - 1e-9 <= deviation <= high + 1e-9, least - 1e-9 <= gain <= most + 1e-9]
        found.append([*covered, result.p_value <= 0.05])
    return np.mean(np.array(found, dtype=float), axis=0)


def worlds() -> Iterator[World]:
    """All that are simulated."""
    shapes = (2, 3, 4, 8), (0.0, 0.03, 0.1), (0.05, 0.4), (10, 20, 40, 100)
    for demos, deviation, disagreement, examples in itertools.product(*shapes):
        for tastes in ("unrelated", "smooth", "one demo"):
            yield World(demos, 10, examples, deviation, disagreement, tastes, 0.7)
        if examples in (20, 40):
            for accuracy in (0.5, 0.9, "contested"):
                yield World(demos, 10, examples, deviation, disagreement, "unrelated", accuracy)


def splits() -> Iterator[World]:
    """Ways to spend 300 calls."""
    for disagreement, deviation, orders in itertools.product((0.15, 0.4), (0.05, 0.1), (4, 6, 10, 15, 30)):
        yield World(8, orders, 300 // orders, deviation, disagreement, "smooth", 0.7)


def main() -> None:
    args = options(__doc__ or "", tables=400, splits=False, jobs=2)
    chosen = list(splits() if args.splits else worlds())
    with processes(args.jobs) as run:
        found = np.array(list(run(partial(results, tables=args.tables), chosen)))
    if args.splits:
        shapes = ((each.disagreement, each.deviation, f"{each.orders} x {each.examples}") for each in chosen)
        powers = ((*shape, f"{power:.2f}") for shape, power in zip(shapes, found[:, 2], strict=True))
        print_table(("disagreement", "deviation", "orders x examples", "power"), powers)
        return
    told = {
        "the interval of the deviation held the truth": (found[:, 0], np.min),
        "the interval of the gain held the truth": (found[:, 1], np.min),
        "an effect was seen where there is none": (found[[world.deviation == 0 for world in chosen], 2], np.max),
    }
    rows = ((name, f"{values.mean():.3f}", f"{worst(values):.3f}") for name, (values, worst) in told.items())
    print_table((f"{len(chosen)} worlds", "mean", "worst"), rows)


if __name__ == "__main__":
    main()
