"""Measures whether the order of demos matters, before a search spends its budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import dspy
import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from plr_dspy.compiling.futility import ENOUGH_ANSWERS, FutilityCheck
from plr_dspy.compiling.paper import random_plan
from plr_dspy.compiling.plan import Plan, ProblemSize
from plr_dspy.errors import UserError
from plr_dspy.metrics.by_example import Metric
from plr_dspy.optimizer.base import DemoOptimizer, OpenCompile
from plr_dspy.programs.calls import adapter_advice
from plr_dspy.programs.checks import WholeNumber, arguments
from plr_dspy.scoring.confusion_scores import Answers, ConfusionScores
from plr_dspy.scoring.run_log import FAILED, WRONG
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.arrays import Array
from plr_dspy.statistics.comparisons import SIGNIFICANT, spread

MIN_SEARCHED = 100  # A search is assumed to find the best of at least this many random orders.
NUM_ORDERS = 10
MIN_ORDERS = 3
MIN_EXAMPLES = 10  # minimum examples per order; with fewer, differences are mostly chance
WORTHWHILE = 0.01  # smallest gain that justifies a search


@dataclass(frozen=True)
class OrderSensitivity:
    """The effect of the order of demos on a program's scores; `print` explains it.

    Attributes:
        scores: Mean score of each order: the program's own first, then random ones.
        num_distinct, num_examples: Number of distinct orders of the demos, and of examples
            scored per order.
        num_unusable: Number of calls without a parsable answer or with too long a prompt;
            these count as wrong.
        p_value: Probability of mean scores at least this far apart if all orders score the
            same on new examples.
        deviation, deviation_interval: Standard deviation of the true scores of all orders,
            and its 95 % interval.
        expected_gain, gain_interval: Expected gain of the best of `num_searched` orders over
            the program's own, and its 95 % interval.
    """

    scores: list[float]
    num_distinct: int
    num_examples: int
    num_unusable: int
    program_calls: int
    num_searched: int
    p_value: float
    deviation: float
    deviation_interval: tuple[float, float]
    expected_gain: float
    gain_interval: tuple[float, float]

    @property
    def matters(self) -> bool:
        """Whether orders differ by more than chance, at the 5 % level."""
        return self.p_value <= SIGNIFICANT

    def __str__(self) -> str:
        lines = [
            f"{len(self.scores)} of {self.num_distinct:,} orders of the demos score {min(self.scores):.3f} to "
            f"{max(self.scores):.3f} on {self.num_examples} examples, the program's own {self.scores[0]:.3f} "
            f"({self.program_calls:,} program calls)."
        ]
        if self.num_unusable:
            lines.append(f"{self.num_unusable:,} answers could not be read and count as wrong.")
        low, high = self.gain_interval
        best = f"the best of {self.num_searched} orders"
        if self.matters:
            least, largest = self.deviation_interval
            lines.append(
                f"The order matters (p = {self.p_value:.4f}). The standard deviation across orders is "
                f"{self.deviation:.3f} [{least:.3f}, {largest:.3f}]. The expected gain of {best} over the program's "
                f"own is {self.expected_gain:+.3f} [{low:+.3f}, {high:+.3f}]."
            )
        else:
            lines.append(
                f"The differences may be chance (p = {self.p_value:.3f}). The gain of {best} over the program's own is "
                f"at most {high:+.3f}."
            )
        return "\n".join([*lines, f"Recommended: {self._advice()}"])

    def _advice(self) -> str:
        if self.gain_interval[1] < WORTHWHILE:
            return "no search, because there is too little to gain."
        if self.matters and self.gain_interval[0] > 0:
            return "a search with PLReorder, because the gain justifies its calls."
        return "no search yet. For more certainty, run this again with more calls (max_metric_calls) or more examples."


@arguments
class RandomSample(DemoOptimizer):
    """Scores random orders on the same examples; for `order_sensitivity` only."""

    name = "order_sensitivity"
    student_name = "program"
    trainset_name = "dataset"
    signal: ClassVar[str] = "score"
    num_demos: ClassVar[None] = None  # type: ignore[misc]
    num_orders: Annotated[WholeNumber, Field(ge=MIN_ORDERS)] = NUM_ORDERS

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        num_orders = min(self.num_orders, size.num_distinct)
        num_examples = size.num_train + size.num_selection
        limit = num_orders * num_examples if self.max_metric_calls is None else self.max_metric_calls
        least = num_orders * min(MIN_EXAMPLES, num_examples)
        if limit < least:
            raise UserError(
                f"max_metric_calls must be at least {least} for {num_orders} orders; got {limit}: raise it, or lower "
                f"num_orders (at least {MIN_ORDERS})"
            )
        num_examples = min(limit // num_orders, num_examples)
        return random_plan(num_orders, num_examples=num_examples, num_best=0, num_compared=0, budget=limit)

    def measure(self, program: dspy.Module, dataset: Sequence[dspy.Example]) -> OrderSensitivity:
        """Score random orders, and estimate how much all orders differ."""
        setup = self._prepare(program, dataset, [])
        num_distinct = setup.slots.space.num_distinct
        if num_distinct < 2:
            raise UserError(
                "program must have at least 2 distinct orders of its demos; it has 1: give it 2 or more different demos"
            )
        with self._open(setup) as opened:
            orders = self.search(opened.setup).ask()
            _, scores, num_unusable = score_table(opened, orders)
            means = scores.mean(axis=1)
            bounds = None
            if opened.scorer.influence is not None:
                bounds = opened.scorer.influence.bounds
                means = np.clip(means, *bounds)
            num_searched = min(num_distinct, max(MIN_SEARCHED, len(orders)))
            estimates = spread(
                scores, num_distinct=num_distinct, num_searched=num_searched, bounds=bounds, seed=self.seed
            )
            return OrderSensitivity(
                scores=means.tolist(),
                num_distinct=num_distinct,
                num_examples=scores.shape[1],
                num_unusable=num_unusable,
                program_calls=opened.scorer.num_calls(),
                num_searched=num_searched,
                **estimates._asdict(),
            )


def score_table(opened: OpenCompile, candidates: Sequence[Candidate]) -> tuple[list[int], Array, int]:
    """Score candidates; return the examples, the scores ``[c, e]``, and the number of unusable answers.

    A failed call gets the mean score of the other candidates on its example. A metric over a
    set is linearized at each candidate's own answers.
    """
    scorer = opened.scorer
    metric = scorer.influence
    num_usable = len(opened.setup.scored_examples)
    indices = list(range(num_usable))
    if metric is not None:
        indices = metric.alternate_labels(num_usable)
    sample = indices[: opened.setup.plan.num_train_examples]
    # Stop early if hardly any of the first answers can be parsed.
    scorer.table(candidates, sample[: math.ceil(ENOUGH_ANSWERS / len(candidates))])
    FutilityCheck(scorer, num_usable, lambda: opened.work.sample, compares=False, advice=adapter_advice()).check()
    examples, rows = scorer.table(candidates, sorted(sample))
    records = scorer.known(dict.fromkeys(candidates, examples))
    outcomes = np.array([[records[candidate][example].outcome for example in examples] for candidate in candidates])
    failed = outcomes == FAILED
    table = np.where(failed, np.nan, rows)
    if metric is not None:
        for number, candidate in enumerate(candidates):
            answers = metric.answers(scorer.records_of(candidate), {})
            table[number] = linearized(metric, answers, examples, failed[number])
    table = np.where(failed, np.nanmean(table, axis=0), table)
    return examples, table, int((outcomes == WRONG).sum())


def linearized(metric: ConfusionScores, answers: Answers, examples: Sequence[int], failed: ArrayLike = False) -> Array:
    """Return the scores ``[e]`` of a candidate's answers, whose mean is the metric over the set; NaN if it failed."""
    metric.linearize_at((example, answers[example]) for example in examples if example in answers)
    scores = np.array([metric.score(example, answers.get(example)) for example in examples])
    scores = np.where(failed, np.nan, scores)
    (weighted,) = metric.reweighted(scores[None], np.array(examples))
    return np.asarray(weighted)


def order_sensitivity(
    program: dspy.Module,
    metric: Metric,
    dataset: Sequence[dspy.Example],
    num_orders: int = NUM_ORDERS,
    *,
    max_metric_calls: int | None = 300,
    num_threads: int | None = None,
    max_errors: int | None = None,
    seed: int = 0,
    log_dir: str | Path | None = None,
    accept_changes: bool = False,
    display_progress: bool = True,
) -> OrderSensitivity:
    """Measure whether the order of a program's demos matters, and what a search might gain.

    Pass examples that no optimizer has seen, because an optimized order scores too well on
    its own.

    Args:
        program: Program with demos in at least one predictor; it is not modified.
        dataset: Examples with inputs and labels. All orders are scored on the same examples.
        num_orders: Maximum number of orders to score, including the program's own.
        max_metric_calls: Maximum number of program calls. None scores every order on all
            examples.
        metric, num_threads, max_errors, seed, log_dir, accept_changes, display_progress: As
            in `PLReorder`.

    Raises:
        TypeError, ValueError: If an argument is invalid, before any program call.
        RuntimeError: If hardly any of the first answers can be parsed.
        Exception: If the program or the metric raises one, as in `PLReorder.compile`.
    """
    options = {name: value for name, value in locals().items() if name not in ("program", "dataset")}
    return RandomSample(**options).measure(program, dataset)
