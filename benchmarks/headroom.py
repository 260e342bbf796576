"""A check of `headroom`'s intervals and advice on simulated scores with known true means.

python benchmarks/headroom.py                    # all worlds, 400 tables each: 5 minutes on 2 cores

Answers are correct or incorrect. In worlds without an effect, all programs have the same true score. Other worlds have
one or more true effects, and some also have an instruction. Two programs with equal true scores disagree on a given
share of the examples. Programs with demos agree more with each other than with the program without demos.
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

from plr_dspy.optimizer import headroom, levers
from plr_dspy.optimizer.levers import (
    CALIBRATED,
    CALIBRATED_RANDOM,
    HOW,
    INSTRUCTION,
    NEAREST,
    NO_DEMOS,
    ORDERS,
    PROGRAM,
    RANDOM,
    SETS,
)
from plr_dspy.statistics import comparisons
from plr_dspy.statistics.levers import PairedExperiment

BEST_OF_20 = 1.8675  # expected maximum of 20 standard normal variables
CALLS = 300
NUM_ORDERS = 40_320  # orders of 8 demos
ALIKE = 0.3  # share of the answers' variance that all programs with demos have in common


@dataclass(frozen=True)
class World:
    """The true effects from which tables of scores are simulated."""

    has_demos: bool  # whether the original program shows demos
    accuracy: float = 0.6  # true score of the program
    disagreement: float = 0.3  # share of examples on which two programs with equal true scores disagree
    demos: float = 0.0  # gain from random demos
    sets: float = 0.0  # standard deviation of gains over sets of demos
    orders: float = 0.0  # standard deviation of gains over the orders of a set
    nearest: float = 0.0  # gain from the nearest demos
    calibrated: float = 0.0  # gain from calibration
    instruction: float | None = None  # gain from another instruction; None if there is no other instruction
    num_examples: int = 0  # number of examples; 0 means as many as the calls allow

    @property
    def rows(self) -> dict[str, list[int]]:
        """The row indices of each lever's programs. Rows of calibrated answers need no calls."""
        sizes = {PROGRAM: 1, NO_DEMOS: int(self.has_demos), RANDOM: headroom.NUM_SETS, NEAREST: 1}
        sizes |= {ORDERS: headroom.NUM_ORDERS, INSTRUCTION: int(self.instruction is not None)}
        sizes |= {CALIBRATED: 1, CALIBRATED_RANDOM: headroom.NUM_SETS}
        numbers = itertools.count()
        rows = {name: list(itertools.islice(numbers, size)) for name, size in sizes.items() if size}
        if not self.has_demos:  # The rows of random sets already contain the first set in its first order.
            rows[ORDERS][0] = rows[RANDOM][0]
        return rows

    @property
    def gains(self) -> dict[str, float]:
        """The true gain of each lever."""
        orders = 0.0 if self.has_demos else self.demos
        return {
            NO_DEMOS: 0.0,
            RANDOM: self.demos,
            NEAREST: self.nearest,
            ORDERS: orders + BEST_OF_20 * self.orders,
            SETS: self.demos + BEST_OF_20 * math.hypot(self.sets, self.orders),
            CALIBRATED: self.calibrated,
            CALIBRATED_RANDOM: self.demos + self.calibrated,
            INSTRUCTION: self.demos + (self.instruction or 0.0),
        }

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return a table of scores ``[programs, examples]``."""
        rows = self.rows
        true_gains = np.zeros(max(itertools.chain(*rows.values())) + 1)
        true_gains[rows[NEAREST]] = self.nearest
        effects = self.sets * rng.normal(size=headroom.NUM_SETS)
        first = 0.0 if self.has_demos else self.demos + effects[0]
        true_gains[rows[ORDERS]] = first + self.orders * rng.normal(size=headroom.NUM_ORDERS)
        true_gains[rows[RANDOM]] = self.demos + effects + self.orders * rng.normal(size=headroom.NUM_SETS)
        if not self.has_demos:
            shown_twice = rows[ORDERS][0]
            true_gains[shown_twice] = first + self.orders * rng.normal()
        true_gains[rows[CALIBRATED]] = self.calibrated
        true_gains[rows[CALIBRATED_RANDOM]] = true_gains[rows[RANDOM]] + self.calibrated
        if self.instruction is not None:  # The instruction is scored with the first set of demos.
            true_gains[rows[INSTRUCTION]] = true_gains[rows[RANDOM][0]] + self.instruction
        return self._scores(true_gains, rng)

    def _scores(self, true_gains: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw scores of 0 and 1 for programs with these true gains."""
        rows = self.rows
        num_calls = (
            len(true_gains) - len(rows[CALIBRATED]) - len(rows[CALIBRATED_RANDOM]) - (not self.has_demos)
        )
        num_examples = self.num_examples or CALLS // num_calls
        shared = shared_variance(self.accuracy, self.disagreement)
        tastes = rng.normal(size=(len(true_gains), num_examples))
        without_demos = rows[NO_DEMOS if self.has_demos else PROGRAM]
        fresh = tastes.copy()
        common = rng.normal(size=num_examples)
        with_demos = np.setdiff1d(np.arange(len(tastes)), without_demos)
        tastes[with_demos] = math.sqrt(1 - ALIKE) * tastes[with_demos] + math.sqrt(ALIKE) * common
        # Calibration changes few answers of a program.
        for raw, calibrated in ((PROGRAM, CALIBRATED), (RANDOM, CALIBRATED_RANDOM)):
            tastes[rows[calibrated]] = (
                math.sqrt(0.8) * tastes[rows[raw]] + math.sqrt(0.2) * fresh[rows[calibrated]]
            )
        levels = special.ndtri(np.clip(self.accuracy + true_gains, 0.01, 0.99))[:, None]
        easiness = math.sqrt(shared) * rng.normal(size=num_examples)
        return (levels + easiness + math.sqrt(1 - shared) * tastes > 0).astype(float)


@cache
def shared_variance(accuracy: float, disagreement: float) -> float:
    """Return the share of the answers' variance that two equally good programs have in common.

    Args:
        accuracy: Accuracy of both programs.
        disagreement: Share of examples on which the programs disagree.
    """
    disagreement = min(disagreement, 1.9 * accuracy * (1 - accuracy))
    level = special.ndtri(accuracy)

    def excess(shared: float) -> float:
        normal = stats.multivariate_normal([0, 0], [[1, shared], [shared, 1]])
        both_right = normal.cdf([level, level])
        return float(2 * (accuracy - both_right) - disagreement)

    return float(optimize.brentq(excess, 0.0, 0.999_999))


def covers(interval: tuple[float, float], truth: float) -> bool:
    low, high = interval
    return low - 1e-9 <= truth <= high + 1e-9


def results(world: World, tables: int) -> dict[str, list[float]]:
    """Return four values for each lever, and how often each of two kinds of advice is given.

    The values are how often the interval contains the true gain, how often it excludes 0, its mean
    width, and the mean error of the expected gain. The advice is to keep the program ("kept") or to
    use the instruction ("instructed").
    """
    comparisons.NUM_DRAWS = 2_000
    comparisons.NUM_FLIPS = 999
    rng = np.random.default_rng(1)
    measured: dict[str, list[list[float]]] = {}
    num_kept = 0
    num_instructed = 0
    changes = levers.changes_of(world.rows, NUM_ORDERS)
    for table in range(tables):
        scores = world.draw(rng)
        experiment = PairedExperiment(scores, seed=table)
        gains = levers.lever_gains(experiment, changes)
        advice = levers.best_advice(changes, gains, num_examples=scores.shape[1])
        num_kept += advice.startswith(levers.NOTHING_TO_GAIN)
        num_instructed += HOW[INSTRUCTION] in advice
        for name, gain in gains.items():
            low, high = gain.interval
            truth = world.gains[name]
            row = [covers((low, high), truth), low > 0 or high < 0, high - low, gain.value - truth]
            measured.setdefault(name, []).append(row)
    rates = {name: np.mean(rows, axis=0).tolist() for name, rows in measured.items()}
    return {**rates, "kept": [num_kept / tables], "instructed": [num_instructed / tables]}


def without_effect() -> Iterator[World]:
    """Yield worlds in which no lever helps, with the default number of examples and with 30."""
    for has_demos, accuracy, disagreement in itertools.product((False, True), (0.5, 0.8), (0.1, 0.4)):
        for num_examples in (0, 30):
            yield World(has_demos, accuracy, disagreement, num_examples=num_examples)


def with_effects() -> Iterator[World]:
    """Yield worlds in which one or more levers have an effect."""
    for has_demos in (False, True):
        yield World(has_demos, demos=0.2, sets=0.05, orders=0.02)
        yield World(has_demos, demos=0.05, nearest=0.2)
        yield World(has_demos, demos=-0.1, sets=0.1)
        yield World(has_demos, sets=0.1, orders=0.05, calibrated=0.1)
        yield World(has_demos, disagreement=0.15, orders=0.1)
        yield World(has_demos, accuracy=0.5, disagreement=0.2, sets=0.15)


def with_instructions() -> Iterator[World]:
    """Yield worlds with an instruction that has no effect or helps in addition to the demos."""
    for has_demos, instruction in itertools.product((False, True), (0.0, 0.2)):
        yield World(has_demos, accuracy=0.4, demos=0.2, sets=0.1, instruction=instruction)
        yield World(has_demos, accuracy=0.4, demos=0.2, sets=0.1, instruction=instruction, num_examples=75)


def table_rows(worlds: list[World], all_rates: list[dict[str, list[float]]]) -> Iterator[dict[str, object]]:
    """Yield rows for levers and advice, with means over worlds and the worst values in parentheses."""
    kinds = {"no effect": set(without_effect()), "effects": set(with_effects())}
    for gain in (0.0, 0.2):
        kinds[f"instruction {gain:+.1f}"] = {
            world for world in with_instructions() if world.instruction == gain
        }
    for kind, members in kinds.items():
        rates = [rate for world, rate in zip(worlds, all_rates, strict=True) if world in members]
        for name in HOW:
            values = np.array([rate[name] for rate in rates if name in rate])
            if not values.size:
                continue
            covered, excluded, width, error = values.mean(axis=0)
            yield {
                "worlds": f"{len(values)}, {kind}",
                "lever": name,
                "truth covered (worst)": f"{covered:.3f} ({values[:, 0].min():.3f})",
                "0 excluded (most)": f"{excluded:.3f} ({values[:, 1].max():.3f})",
                "width": f"{width:.2f}",
                "error": f"{error:+.3f}",
            }
        kept = np.array([rate["kept"][0] for rate in rates])
        instructed = np.array([rate["instructed"][0] for rate in rates])
        for advice, shares in (("keep the program", kept), ("an instruction", instructed)):
            yield {
                "worlds": f"{len(shares)}, {kind}",
                "lever": f"advice: {advice} in {shares.mean():.3f} ({shares.min():.3f} to {shares.max():.3f})",
                **dict.fromkeys(("covered", "excluded", "width", "error"), ""),
            }


def main() -> None:
    args = options(__doc__, tables=400, jobs=2)
    worlds = [*without_effect(), *with_effects(), *with_instructions()]
    with ProcessPoolExecutor(args.jobs) as pool:
        all_rates = list(pool.map(partial(results, tables=args.tables), worlds))
    print_table(table_rows(worlds, all_rates))


if __name__ == "__main__":
    main()
