"""Whether the intervals and the test of `order_sensitivity` hold, on simulated scores whose truth is known.

python benchmarks/sensitivity.py                 # all worlds, 400 tables each: 6 minutes on 2 cores
python benchmarks/sensitivity.py --splits        # how often 300 calls show an effect, by orders and examples

Answers are right or wrong. Orders have true scores with a known standard deviation, two orders of equal true score
disagree on a given share of the examples, and which examples an order gets right is unrelated between orders, or a
smooth function of the demos' positions that differs by example, or of one demo's position alone.
"""

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from command import options, print_table
from scipy import optimize, special, stats

from plr_dspy.statistics import comparisons as analysis

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

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A table of scores ``[orders, examples]``, and the true scores of all orders, or of 100."""
        are_few = math.factorial(self.demos) <= SEARCHED
        if are_few:
            orders = rng.permutation(np.array(list(itertools.permutations(range(self.demos)))))
        else:
            orders = np.array([rng.permutation(self.demos) for _ in range(SEARCHED)])
        effects = rng.normal(size=len(orders))
        if are_few:
            effects = (effects - effects.mean()) / effects.std()
        true, scored = self.true_scores(effects), min(self.orders, len(orders))
        if self.accuracy == "contested":
            contested, decided = rng.random((2, self.examples)) < [[self.share], [0.75]]
            tossed = rng.random((scored, self.examples)) < (true[:scored, None] - (1 - self.share) * 0.75) / self.share
            return np.where(contested, tossed, decided).astype(float), true
        places = np.argsort(orders, axis=1) - (self.demos - 1) / 2
        features = {
            "unrelated": np.eye(len(orders), scored),
            "smooth": places / np.linalg.norm(places, axis=1, keepdims=True),
            "one demo": places[:, :1] / places[:, 0].std(),
        }[self.tastes][:scored]
        tastes = features @ rng.normal(size=(features.shape[1], self.examples))
        shared = shared_variance(self.accuracy, self.disagreement)
        # So that mean scores are the true ones.
        levels = special.ndtri(true[:scored]) * np.sqrt(shared + (1 - shared) * (features**2).sum(axis=1))
        easiness = math.sqrt(shared) * rng.normal(size=self.examples)
        return (levels[:, None] + easiness + math.sqrt(1 - shared) * tastes > 0).astype(float), true

    @property
    def share(self) -> float:
        """Of the examples that are a toss-up."""
        return max(2 * self.disagreement, 5 * self.deviation)

    def true_scores(self, effects: np.ndarray) -> np.ndarray:
        """Of orders with standard normal effects."""
        if isinstance(self.accuracy, str):
            tossed = np.clip(0.5 + self.deviation / self.share * effects, 0.0, 1.0)
            return self.share * tossed + 0.75 * (1 - self.share)
        return np.clip(self.accuracy + self.deviation * effects, 0.01, 0.99)

    def true_deviation(self, true: np.ndarray) -> float:
        """Standard deviation of the true scores of all orders; of more than 100, those of the distribution."""
        if len(true) < SEARCHED:
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


def results(world: World, tables: int) -> np.ndarray:
    """Means over tables: the intervals of deviation and gain held the truth, and an effect was seen."""
    analysis.NUM_FLIPS, analysis.NUM_DRAWS = 999, 2_000
    rng, found, distinct = np.random.default_rng(1), [], math.factorial(world.demos)
    sizes = {"num_distinct": distinct, "num_searched": min(distinct, SEARCHED)}
    for table in range(tables):
        scores, true = world.draw(rng)
        result = analysis.spread(scores, **sizes, seed=table)
        truths = (world.true_deviation(true), true.max() - true[0])
        intervals = zip((result.deviation_interval, result.gain_interval), truths, strict=True)
        held = [low - 1e-9 <= truth <= high + 1e-9 for (low, high), truth in intervals]
        found.append([*held, result.p_value <= 0.05])
    return np.mean(np.array(found, dtype=float), axis=0)


def worlds() -> Iterator[World]:
    """All that are simulated."""
    shapes = (2, 3, 4, 8), (0.0, 0.03, 0.1), (0.05, 0.4), (10, 20, 40, 100)
    for demos, deviation, disagreement, examples in itertools.product(*shapes):
        kinds = [(tastes, 0.7) for tastes in ("unrelated", "smooth", "one demo")]
        kinds += [("unrelated", accuracy) for accuracy in (0.5, 0.9, "contested") if examples in (20, 40)]
        for kind in kinds:
            yield World(demos, 10, examples, deviation, disagreement, *kind)


def splits() -> Iterator[World]:
    """Ways to spend 300 calls."""
    for disagreement, deviation, orders in itertools.product((0.15, 0.4), (0.05, 0.1), (4, 6, 10, 15, 30)):
        yield World(8, orders, 300 // orders, deviation, disagreement, "smooth", 0.7)


def main() -> None:
    args = options(__doc__, tables=400, splits=False, jobs=2)
    chosen = list(splits() if args.splits else worlds())
    with ProcessPoolExecutor(args.jobs) as pool:
        found = np.array(list(pool.map(partial(results, tables=args.tables), chosen)))
    if args.splits:
        names = ("disagreement", "deviation", "orders x examples", "power")
        shapes = [(each.disagreement, each.deviation, f"{each.orders} x {each.examples}") for each in chosen]
        cells = ((*shape, f"{power:.2f}") for shape, power in zip(shapes, found[:, 2], strict=True))
        print_table(dict(zip(names, row, strict=True)) for row in cells)
        return
    seen = found[[world.deviation == 0 for world in chosen], 2]
    told = [
        ("the interval of the deviation held the truth", found[:, 0], found[:, 0].min()),
        ("the interval of the gain held the truth", found[:, 1], found[:, 1].min()),
        ("an effect was seen where there is none", seen, seen.max()),
    ]
    name = f"{len(chosen)} worlds"
    print_table({name: what, "mean": f"{values.mean():.3f}", "worst": f"{worst:.3f}"} for what, values, worst in told)


if __name__ == "__main__":
    main()
