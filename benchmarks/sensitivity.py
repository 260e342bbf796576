"""Check the intervals and the test of `order_sensitivity` on simulated scores with known truth.

python benchmarks/sensitivity.py                 # all worlds, 400 tables each: 6 minutes on 2 cores
python benchmarks/sensitivity.py --splits        # power with 300 calls

Answers are right or wrong. The true scores of orders have a known standard deviation, and two orders of
equal true score disagree on a given share of the examples. The orders that an example prefers are random,
or depend smoothly on the positions of all demos, or on the position of one demo.
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
    """A simulated world, from which tables of scores are drawn."""

    demos: int
    orders: int  # maximum number of scored orders, including the program's own
    examples: int  # number of examples per order
    deviation: float  # standard deviation of the true scores of orders
    disagreement: float  # share of examples on which two orders of equal true score differ
    tastes: str  # how examples prefer orders: "unrelated", "smooth" or "one demo"
    accuracy: float | str  # mean true score; "contested" if orders affect only some examples, which are toss-ups

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return a table of scores ``[orders, examples]``, and the true scores of at most 100 orders."""
        orders, effects = self._draw_orders(rng)
        true_scores = self.true_scores(effects)
        num_scored = min(self.orders, len(orders))
        of_scored = true_scores[:num_scored]
        if self.accuracy == "contested":
            limits = [[self.share], [0.75]]
            is_contested, is_right = rng.random((2, self.examples)) < limits
            chances = (of_scored[:, None] - (1 - self.share) * 0.75) / self.share
            tossed = rng.random((num_scored, self.examples)) < chances
            return np.where(is_contested, tossed, is_right).astype(float), true_scores
        features = self._features(orders)[:num_scored]
        tastes = features @ rng.normal(size=(features.shape[1], self.examples))
        shared = shared_variance(self.accuracy, self.disagreement)
        # Scale the levels so that expected scores equal the true ones.
        spread = np.sqrt(shared + (1 - shared) * (features**2).sum(axis=1))
        levels = special.ndtri(of_scored) * spread
        easiness = math.sqrt(shared) * rng.normal(size=self.examples)
        utility = levels[:, None] + easiness + math.sqrt(1 - shared) * tastes
        return (utility > 0).astype(float), true_scores

    def _draw_orders(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return random orders and their effects."""
        are_few = math.factorial(self.demos) <= SEARCHED
        if are_few:
            orders = rng.permutation(np.array(list(itertools.permutations(range(self.demos)))))
        else:
            orders = np.array([rng.permutation(self.demos) for _ in range(SEARCHED)])
        effects = rng.normal(size=len(orders))
        if are_few:
            effects = (effects - effects.mean()) / effects.std()
        return orders, effects

    def _features(self, orders: np.ndarray) -> np.ndarray:
        """Return the features in which the tastes of examples are linear, ``[orders, features]``."""
        if self.tastes == "unrelated":
            return np.eye(len(orders), min(self.orders, len(orders)))
        places = np.argsort(orders, axis=1) - (self.demos - 1) / 2
        if self.tastes == "smooth":
            return places / np.linalg.norm(places, axis=1, keepdims=True)
        return places[:, :1] / places[:, 0].std()

    @property
    def share(self) -> float:
        """The share of examples that are toss-ups."""
        return max(2 * self.disagreement, 5 * self.deviation)

    def true_scores(self, effects: np.ndarray) -> np.ndarray:
        """Return the true scores of orders, given their standard normal effects."""
        if isinstance(self.accuracy, str):
            tossed = np.clip(0.5 + self.deviation / self.share * effects, 0.0, 1.0)
            return self.share * tossed + 0.75 * (1 - self.share)
        return np.clip(self.accuracy + self.deviation * effects, 0.01, 0.99)

    def true_deviation(self, true_scores: np.ndarray) -> float:
        """Return the standard deviation of all true scores; for 100 or more, that of their distribution."""
        if len(true_scores) < SEARCHED:
            return float(true_scores.std())
        quantiles = special.ndtri((np.arange(10_000) + 0.5) / 10_000)
        return float(self.true_scores(quantiles).std())


@cache
def shared_variance(accuracy: float, disagreement: float) -> float:
    """Return the share of variance due to easy and hard examples with which two orders disagree this often."""
    disagreement = min(disagreement, 1.9 * accuracy * (1 - accuracy))
    level = special.ndtri(accuracy)

    def excess(shared: float) -> float:
        normal = stats.multivariate_normal([0, 0], [[1, shared], [shared, 1]])
        both_right = normal.cdf([level, level])
        return float(2 * (accuracy - both_right) - disagreement)

    return float(optimize.brentq(excess, 0.0, 0.999_999))


def results(world: World, tables: int) -> np.ndarray:
    """Return the coverage of the intervals of deviation and gain, and the share of tables with p <= .05."""
    analysis.NUM_FLIPS = 999
    analysis.NUM_DRAWS = 2_000
    rng = np.random.default_rng(1)
    num_distinct = math.factorial(world.demos)
    num_searched = min(num_distinct, SEARCHED)
    rows = []
    for table in range(tables):
        scores, true_scores = world.draw(rng)
        spread = analysis.spread(scores, num_distinct=num_distinct, num_searched=num_searched, seed=table)
        true_gain = true_scores.max() - true_scores[0]
        rows.append(
            [
                covers(spread.deviation_interval, world.true_deviation(true_scores)),
                covers(spread.gain_interval, true_gain),
                spread.p_value <= 0.05,
            ]
        )
    return np.mean(np.array(rows, dtype=float), axis=0)


def covers(interval: tuple[float, float], truth: float) -> bool:
    low, high = interval
    return low - 1e-9 <= truth <= high + 1e-9


def worlds() -> Iterator[World]:
    """Yield all simulated worlds."""
    demos = (2, 3, 4, 8)
    deviations = (0.0, 0.03, 0.1)
    disagreements = (0.05, 0.4)
    examples = (10, 20, 40, 100)
    for shape in itertools.product(demos, deviations, disagreements, examples):
        num_demos, deviation, disagreement, num_examples = shape
        kinds: list[tuple[str, float | str]] = [("unrelated", 0.7), ("smooth", 0.7), ("one demo", 0.7)]
        if num_examples in (20, 40):
            kinds += [("unrelated", 0.5), ("unrelated", 0.9), ("unrelated", "contested")]
        for tastes, accuracy in kinds:
            yield World(num_demos, 10, num_examples, deviation, disagreement, tastes, accuracy)


def splits() -> Iterator[World]:
    """Yield worlds with different splits of 300 calls into orders and examples."""
    for disagreement in (0.15, 0.4):
        for deviation in (0.05, 0.1):
            for num_orders in (4, 6, 10, 15, 30):
                yield World(8, num_orders, 300 // num_orders, deviation, disagreement, "smooth", 0.7)


def rows_of_splits(simulated: list[World], rates: np.ndarray) -> Iterator[dict[str, object]]:
    for world, power in zip(simulated, rates[:, 2], strict=True):
        yield {
            "disagreement": world.disagreement,
            "deviation": world.deviation,
            "orders x examples": f"{world.orders} x {world.examples}",
            "power": f"{power:.2f}",
        }


def rows_of_worlds(simulated: list[World], rates: np.ndarray) -> Iterator[dict[str, str]]:
    has_no_effect = [world.deviation == 0 for world in simulated]
    false_positives = rates[has_no_effect, 2]
    shares = [
        ("the interval of the deviation covers the truth", rates[:, 0], rates[:, 0].min()),
        ("the interval of the gain covers the truth", rates[:, 1], rates[:, 1].min()),
        ("an effect is detected where there is none", false_positives, false_positives.max()),
    ]
    for text, values, worst in shares:
        yield {f"{len(simulated)} worlds": text, "mean": f"{values.mean():.3f}", "worst": f"{worst:.3f}"}


def main() -> None:
    args = options(__doc__, tables=400, splits=False, jobs=2)
    simulated = list(splits() if args.splits else worlds())
    with ProcessPoolExecutor(args.jobs) as pool:
        rates = np.array(list(pool.map(partial(results, tables=args.tables), simulated)))
    print_table(rows_of_splits(simulated, rates) if args.splits else rows_of_worlds(simulated, rates))


if __name__ == "__main__":
    main()
