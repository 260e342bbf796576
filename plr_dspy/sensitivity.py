"""Whether the order of a program's demos matters, before a budget is spent on finding a better one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import numpy as np

from plr_dspy.baselines.random_orders import random_plan, random_search
from plr_dspy.checkpoint import Checkpoint
from plr_dspy.identity import identity
from plr_dspy.inputs import as_folder, check_examples, check_log_dir, whole_number
from plr_dspy.interrupts import Interrupts
from plr_dspy.jobs import Job, Method, Options, prepare
from plr_dspy.metrics import Metric, metric_caller
from plr_dspy.plan import Plan
from plr_dspy.progress import ProgressBar
from plr_dspy.reorderer import LARGEST_SEED
from plr_dspy.search import CrossEntropySearch
from plr_dspy.spread import expected_maximum, spread

SEARCHED = 100
"""Random orders whose best a search is expected to find, at least."""

SIGNIFICANT = 0.05
WORTHWHILE = 0.01
"""Gain below which nobody would search."""


@dataclass(frozen=True)
class OrderSensitivity:
    """How much the order of a program's demos matters; `print` says it in words.

    Attributes:
        scores: Mean score of each order, the program's own first; the others are random.
        num_examples: Examples that scored each.
        p_value: Of scores that lie as far apart, if order decided nothing (a permutation test).
        noise: Standard deviation that chance alone gives to such a mean score.
        deviation: Standard deviation of the true scores of orders, with chance taken out.
        deviation_interval: Its 95 % interval.
        num_searched: Orders of which `expected_gain` takes the best.
        expected_gain: By how much the best of `num_searched` random orders should beat the program's own, if true
            scores are normally distributed; 0 if it should not.
        gain_interval: What `expected_gain` is at both ends of `deviation_interval`.
        program_calls: Made for this.
    """

    scores: list[float]
    num_examples: int
    p_value: float
    noise: float
    deviation: float
    deviation_interval: tuple[float, float]
    num_searched: int
    expected_gain: float
    gain_interval: tuple[float, float]
    program_calls: int

    @property
    def matters(self) -> bool:
        """Whether orders lie further apart than chance alone would put them, at the level of 5 %."""
        return self.p_value <= SIGNIFICANT

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{len(self.scores)} orders of the demos score {min(self.scores):.3f} to {max(self.scores):.3f} on "
            f"{self.num_examples} examples, the program's own {self.scores[0]:.3f} "
            f"({self.program_calls:,} program calls).\n{self._verdict()}"
        )

    __repr__ = __str__

    def _verdict(self) -> str:
        if not self.noise and not self.deviation:
            return "No answer changed with the order: a search has nothing to find."
        if not self.matters:
            chance = f"Chance alone would put them as far apart (p = {self.p_value:.3f}): a search is unlikely to pay."
            largest = self.deviation_interval[1]
            if largest < WORTHWHILE:
                return chance
            return (
                f"{chance} True scores may still have a standard deviation of up to {largest:.3f}: more examples "
                "would tell."
            )
        low, high = self.gain_interval
        return (
            f"The order matters (p = {self.p_value:.4f}; true scores have a standard deviation of "
            f"{self.deviation:.3f}), "
            + (
                "and a search is worth its calls"
                if self.expected_gain >= WORTHWHILE
                else "but the program's own is a good one already"
            )
            + f": the best of {self.num_searched} random orders should be {self.expected_gain:+.3f} "
            f"[{low:+.3f}, {high:+.3f}] better."
        )


@dataclass(frozen=True)
class _Sample(Method):
    """Random orders, on all examples."""

    num_orders: int

    name = "order_sensitivity"
    takes_num_demos = False

    def arguments(self) -> dict[str, Any]:
        return asdict(self)

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int) -> Plan:
        num_orders, num_examples = min(self.num_orders, num_distinct), num_train + num_selection
        return random_plan(
            num_orders,
            batch=num_orders,
            num_examples=num_examples,
            num_best=0,
            num_compared=0,
            max_metric_calls=num_orders * num_examples,
        )

    def search(self, job: Job) -> CrossEntropySearch:
        return random_search(job)


def order_sensitivity(
    program: dspy.Module,
    metric: Metric,
    dataset: Sequence[dspy.Example],
    num_orders: int = 12,
    *,
    num_threads: int | None = None,
    max_errors: int | None = None,
    seed: int = 0,
    log_dir: str | Path | None = None,
    accept_changes: bool = False,
    display_progress: bool = True,
) -> OrderSensitivity:
    """Say whether the order of a program's demos matters, and what a search might gain.

    Scores the program's own order and random ones on all examples that its demos do not show: ``num_orders`` times
    their number in program calls. 50 examples tell spreads of 10 points from chance, 200 those of 5.

    Args:
        program: With demos in one predictor at least; it is not changed.
        metric: As in `PLReorder`.
        dataset: Examples with inputs and labels.
        num_orders: The program's own included; all there are if these are fewer.
        num_threads, max_errors, seed, log_dir, accept_changes, display_progress: As in `PLReorder`.

    Raises:
        TypeError, ValueError: for bad arguments, before any program call.
        Exception: of the program or the metric, as from `PLReorder.compile`.
    """
    metric_caller(metric)
    num_orders = whole_number("num_orders", num_orders, least=3) or 3
    num_threads, max_errors = whole_number("num_threads", num_threads), whole_number("max_errors", max_errors)
    seed = whole_number("seed", seed, least=0, most=LARGEST_SEED) or 0
    folder = as_folder("log_dir", log_dir)
    check_examples("dataset", dataset)
    if len(dataset) < 2:
        raise ValueError(f"dataset must hold at least two examples; got {len(dataset)}: pass some 50 or more")
    job = prepare(Options(_Sample(num_orders), metric, None, seed), program, trainset=dataset, valset=None)
    if job.slots.space.num_distinct < 2:
        raise ValueError(
            "program has one order of its demos only: nothing to compare; choose 2 demos or more"
        )
    if folder is not None:
        check_log_dir(folder)
    with (
        Checkpoint(folder, partial(identity, job), accept_changes=accept_changes) as checkpoint,
        ProgressBar(job.plan.program_calls, display=display_progress) as bar,
        Interrupts() as interrupts,
    ):
        scorer = job.new_scorer(
            num_threads=num_threads,
            max_errors=max_errors,
            on_cell=bar.advance,
            interrupted=interrupts.received,
            ledger=checkpoint.ledger,
        )
        _, rows = scorer.table(job.new_search().ask(), range(job.plan.num_train_examples))
        return _said(
            np.array(rows), num_distinct=job.slots.space.num_distinct, calls=scorer.program_calls, seed=seed
        )


def _said(table: np.ndarray, *, num_distinct: int, calls: int, seed: int) -> OrderSensitivity:
    """What a table of scores ``[orders, examples]`` says, the program's own order first."""
    found = spread(table, seed)
    scores = table.mean(axis=1)
    searched = min(SEARCHED, num_distinct)

    def gain(deviation: float) -> float:
        trust = deviation**2 / (deviation**2 + found.noise**2) if deviation else 0.0
        return max(0.0, expected_maximum(searched) * deviation - trust * float(scores[0] - scores.mean()))

    return OrderSensitivity(
        scores=scores.tolist(),
        num_examples=table.shape[1],
        p_value=found.p_value,
        noise=found.noise,
        deviation=found.deviation,
        deviation_interval=found.interval,
        num_searched=searched,
        expected_gain=gain(found.deviation),
        gain_interval=(gain(found.interval[0]), gain(found.interval[1])),
        program_calls=calls,
    )
