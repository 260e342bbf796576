"""Whether the order of a program's demos matters, before a budget is spent on finding a better one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import dspy
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plr_dspy.compilation.futility import ENOUGH_ANSWERS, FutilityCheck
from plr_dspy.compilation.paper import random_plan
from plr_dspy.compilation.plan import Plan, ProblemSize
from plr_dspy.errors import UserError
from plr_dspy.labels.work import LabelWork
from plr_dspy.metrics.by_example import Metric
from plr_dspy.optimizer.base import DemoOptimizer, OpenCompile
from plr_dspy.optimizer.learning import label_work
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.calls import MetricWork, adapter_advice
from plr_dspy.programs.checks import WholeNumber, arguments
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import FAILED, WRONG
from plr_dspy.search.model.ordering_model import LEAST_SHARE
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.calibration import Array, batch_offsets, calibrated, likely_shares, right_counts
from plr_dspy.statistics.comparisons import spread

SEARCHED = 100  # random orders whose best a search is expected to find, at least; where so many are scored, these
NUM_ORDERS, MIN_ORDERS = 10, 3

MIN_EXAMPLES = 10  # fewest examples that the calls must pay for on each order; fewer hardly tell anything from chance
SIGNIFICANT = 0.05  # up to this p value, the order of the demos is said to matter
WORTHWHILE = 0.01  # from this gain on, a search is said to be worth its calls


@dataclass(frozen=True)
class OrderSensitivity:
    """How much the order of a program's demos matters; `print` says it in words.

    Everything is said about new examples like those of the dataset.

    Attributes:
        scores: Mean score of each order, the program's own first; the others are random, or all there are.
        num_distinct, num_examples: Orders of the demos, and examples that scored each of `scores`.
        num_usable: Examples of the dataset that can score orders.
        num_unusable: Answers that could not be parsed, and prompts too long for the model; they count as wrong.
        p_value: How often chance puts mean scores this far apart if all orders score the same on new examples.
        noise: Standard deviation that the choice of examples gives to the mean score of an order.
        deviation, deviation_interval: Standard deviation of the true scores of all orders, and its 95 % interval.
        num_searched: Orders of which `expected_gain` takes the best: all, or 100 random ones.
        expected_gain, gain_interval: True score of the best of these less that of the program's own, at least 0, and
            its 95 % interval. Neither exceeds the highest possible score (1, or the highest seen).
        calibrated: The same for calibrated answers, by the same calls; None without log-probabilities.
    """

    scores: list[float]
    num_distinct: int
    num_examples: int
    num_usable: int
    num_unusable: int
    p_value: float
    noise: float
    deviation: float
    deviation_interval: tuple[float, float]
    num_searched: int
    expected_gain: float
    gain_interval: tuple[float, float]
    program_calls: int
    calibrated: OrderSensitivity | None = None

    @property
    def matters(self) -> bool:
        """Tell whether orders lie further apart than chance alone would put them, at the level of 5 %."""
        return self.p_value <= SIGNIFICANT

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        said = (
            f"{len(self.scores)} of {self.num_distinct:,} orders of the demos {self._range()} on {self.num_examples} "
            f"examples, the program's own {self.scores[0]:.3f} ({self.program_calls:,} program calls)."
        )
        num_answers = len(self.scores) * self.num_examples
        if 2 * self.num_unusable > num_answers and not self.matters:
            return (
                f"{said}\n{self.num_unusable:,} of {num_answers:,} answers could not be parsed, or had a prompt too "
                "long for the model, and count as wrong: this says nothing about the order.\nRecommended: see what the "
                "model answers (dspy.inspect_history()), mend the program or the adapter, and run this again."
            )
        said, advice, calibrated = f"{said}\n{self._finding()}", self._advice("PLReorder"), self.calibrated
        if calibrated is not None:
            own, after = calibrated.scores[0], calibrated._advice("PLReorder with calibrate=True")
            said += (
                f"\nCalibrated, they {calibrated._range()}, the program's own {own:.3f}, by the same calls. "
                f"{calibrated._finding()}"
            )
            if own > max(self.scores[0], sum(self.scores) / len(self.scores)) + 1e-9:
                advice = f"calibrate first (BatchCalibration), which takes 64 calls and no search; after that {after}"
            elif calibrated._is_promising and not self._is_promising:
                advice = after
        return f"{said}\nRecommended: {advice}"

    __repr__ = __str__

    def _range(self) -> str:
        return f"score {min(self.scores):.3f} to {max(self.scores):.3f}"

    @property
    def _is_promising(self) -> bool:
        """Whether a search should find an order that is worth while."""
        return self.matters and self.expected_gain >= WORTHWHILE

    def _finding(self) -> str:
        """Say whether the order matters, and what the best one should gain."""
        every, (low, high) = self.num_searched == self.num_distinct, self.gain_interval
        best = f"the best of {'all ' if every else ''}{self.num_searched}{'' if every else ' random'} orders"
        least, largest = self.deviation_interval
        if not self.noise and not self.deviation:
            return f"No answer changed with the order, on these {self.num_examples} examples."
        if not self.matters:
            return (
                f"Chance alone would put them as far apart (p = {self.p_value:.3f}); true scores of orders may have a "
                f"standard deviation of up to {largest:.3f}, and on new examples {best} may be up to {high:+.3f} "
                "better than the program's own."
            )
        return (
            f"The order matters (p = {self.p_value:.4f}; true scores of orders have a standard deviation of "
            f"{self.deviation:.3f} [{least:.3f}, {largest:.3f}]): {best} should be {self.expected_gain:+.3f} "
            f"[{low:+.3f}, {high:+.3f}] better than the program's own."
        )

    def _advice(self, search: str) -> str:
        """Say whether to search, and what would narrow the interval of the gain where that is not sure."""
        if self.gain_interval[1] < WORTHWHILE:
            return "no search, which has nothing to find here."
        if self._is_promising and self.gain_interval[0] > 0:
            return f"a search ({search}), which is worth its calls."
        advice = f"a search ({search}), which may pay." if self._is_promising else "no search yet."
        # Its error is the own score's, from few examples, and about twice that of the mean of orders, from few orders.
        more = 4 * self.num_examples
        count = len(self.scores)
        what = f"examples: {more:,} of them (max_metric_calls={more * count}) about halve these limits."
        if more > self.num_usable:
            all_of_them = f" (all of them: max_metric_calls={self.num_usable * count})"
            rest = all_of_them * (self.num_usable > self.num_examples)
            what = f"examples: {more:,} about halve these limits; the dataset has {self.num_usable:,}{rest}."
        few_orders = count < self.num_distinct and self.noise < 2 * self.deviation / math.sqrt(count - 1)
        if self.matters and few_orders:
            more = min(4 * count, self.num_distinct)
            what = f"orders: num_orders={more}, max_metric_calls={more * self.num_examples}."
        return f"{advice} To be surer, run this again with more {what}"


@arguments
class RandomSample(DemoOptimizer):
    """Scores random orders, all on the same examples; `order_sensitivity` makes it, and no user."""

    name = "order_sensitivity"
    student_name, trainset_name = "program", "dataset"
    num_demos: ClassVar[None] = None  # type: ignore[misc]
    num_orders: Annotated[WholeNumber, Field(ge=MIN_ORDERS)] = NUM_ORDERS

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        num_orders = min(self.num_orders, size.num_distinct)
        num_examples = size.num_train + size.num_selection
        limit = num_orders * num_examples if self.max_metric_calls is None else self.max_metric_calls
        least = num_orders * min(MIN_EXAMPLES, num_examples)
        if limit < least:
            raise UserError(
                f"max_metric_calls must be at least {least}, for {num_orders} orders on "
                f"{least // num_orders} examples; got {limit}: raise it"
                + (", or lower num_orders" if num_orders > MIN_ORDERS else "")
            )
        num_examples = min(limit // num_orders, num_examples)
        return random_plan(num_orders, num_examples=num_examples, num_best=0, num_compared=0, budget=limit)

    def work(self, setup: CompileSetup) -> MetricWork:
        work = label_work(setup)
        return work if isinstance(work, LabelWork) else super().work(setup)

    def measure(self, program: dspy.Module, dataset: Sequence[dspy.Example]) -> OrderSensitivity:
        """Score the orders, on fewer examples if failures have cost calls, and say how far apart they lie."""
        prepared = self._prepare(program, dataset, [])
        num_distinct = prepared.slots.space.num_distinct
        if num_distinct < 2:
            raise UserError("program has one order of its demos only: nothing to compare; choose 2 demos or more")
        with self._open(prepared) as opened:
            orders = self.search(opened.setup).ask()
            scored = self._score(opened, orders)
            num_unusable = int((scored.outcomes == WRONG).sum())
            calibrated: OrderSensitivity | None = None
            work = opened.work
            if isinstance(work, LabelWork):
                responses = work.responses(opened.scorer, likely_shares(right_counts(work.scores)))
                labels = _calibrated_labels(responses, orders, scored.examples)
                tables = [scored.table(opened, own_labels) for own_labels in labels]
                if tables:
                    calibrated = self._sensitivity(opened, max(tables, key=np.mean))
            sensitivity = self._sensitivity(opened, scored.table(opened, np.full(scored.outcomes.shape, -1)))
            return replace(sensitivity, num_unusable=num_unusable, calibrated=calibrated)

    def _score(self, opened: OpenCompile, orders: Sequence[Candidate]) -> ScoredOrders:
        """Score the orders on as many examples as the budget pays for."""
        scorer = opened.scorer
        metric = scorer.influence
        num_usable = len(opened.setup.scored_examples)
        asked = list(range(num_usable)) if metric is None else metric.alternate_labels(num_usable)
        asked = asked[: opened.setup.plan.num_train_examples]
        while len(asked) > 2 and len(scorer.affordable(dict.fromkeys(orders, asked))) < len(set(orders)):
            asked.pop()
        # If hardly any of the first answers can be read, no further call is made.
        scorer.table(orders, asked[: math.ceil(ENOUGH_ANSWERS / len(orders))])
        FutilityCheck(scorer, num_usable, lambda: opened.work.sample, compares=False, advice=adapter_advice()).check()
        asked.sort()
        examples, rows = scorer.table(orders, asked)
        records = scorer.known(dict.fromkeys(orders, examples))
        outcomes = [[records[order][example].outcome for example in examples] for order in orders]
        return ScoredOrders(orders, np.array(examples), np.array(rows), np.array(outcomes))

    def _sensitivity(self, opened: OpenCompile, scores: Array) -> OrderSensitivity:
        """Say how far apart orders with these scores ``[o, e]`` lie."""
        metric = opened.scorer.influence
        num_distinct = opened.setup.slots.space.num_distinct
        num_searched = min(num_distinct, max(SEARCHED, len(scores)))
        bounds = None
        means = scores.mean(axis=1)
        if metric is not None:
            bounds = metric.bounds
            means = np.clip(means, *bounds)
        found = spread(scores, num_distinct=num_distinct, num_searched=num_searched, bounds=bounds, seed=self.seed)
        return OrderSensitivity(
            scores=means.tolist(),
            num_distinct=num_distinct,
            num_examples=scores.shape[1],
            num_usable=len(opened.setup.scored_examples),
            num_unusable=0,
            num_searched=num_searched,
            program_calls=opened.scorer.num_calls(),
            **found._asdict(),
        )


@dataclass(frozen=True)
class ScoredOrders:
    """Orders and their scores on the same examples."""

    orders: Sequence[Candidate]
    examples: NDArray[np.int64]  # [e], their numbers
    scores: Array  # [o, e], as they came
    outcomes: NDArray[np.str_]  # [o, e], of the call records

    def table(self, opened: OpenCompile, labels: NDArray[np.int64]) -> Array:
        """Return the scores ``[o, e]`` of answers with these labels, or as they came if a label is -1.

        A failed call counts as the mean of the other orders on its example: it says nothing about its order.
        """
        work = opened.work
        table = self.scores
        if opened.scorer.influence is not None:
            table = _near_own_answers(opened.scorer, opened.scorer.influence, self.orders, self.examples, labels)
        elif isinstance(work, LabelWork):
            table = np.where(labels < 0, table, work.scores[self.examples, labels])
        ended = self.outcomes != FAILED
        return np.where(ended, table, np.where(ended, table, 0.0).sum(axis=0) / ended.sum(axis=0))


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
    """Say whether the order of a program's demos matters, and what a search might gain.

    Scores the program's own order and random ones, all on the same examples, as many as ``max_metric_calls`` pays for
    of those that the demos do not show. 300 calls find the effect in 6 to 9 of 10 programs whose orders have a standard
    deviation of 10 points, and in 1 to 4 of 10 if it is 5 points (right-or-wrong scores, 8 demos).

    If the endpoint gives log-probabilities of labels, the same calls tell how far apart calibrated orders lie
    (`BatchCalibration`). An order that an optimizer chose looks better on its own examples than it is: pass others.

    Args:
        program: With demos in one predictor at least; it is not changed.
        metric: As in `PLReorder`.
        dataset: Examples with inputs and labels.
        num_orders: The program's own included; all there are if these are fewer.
        max_metric_calls: Budget in program calls; never exceeded. None pays for all examples.
        num_threads, max_errors, seed, log_dir, accept_changes, display_progress: As in `PLReorder`.

    Raises:
        TypeError, ValueError: for bad arguments, before any program call.
        RuntimeError: when hardly any of the first answers could be parsed.
        Exception: of the program or the metric, as from `PLReorder.compile`.
    """
    given = {name: value for name, value in locals().items() if name not in ("program", "dataset")}
    return RandomSample(**given).measure(program, dataset)


def _near_own_answers(
    scorer: Evaluator,
    influence: ConfusionScores,
    orders: Sequence[Candidate],
    examples: NDArray[np.int64],
    labels: NDArray[np.int64],
) -> Array:
    """Scores by a metric over a set, ``[o, e]``, each order's near its own answers, which are these labels, or as they
    are where it is -1; NaN of failed calls."""
    table, numbers = np.full(labels.shape, np.nan), examples.tolist()
    for row, order, own in zip(table, orders, labels.tolist(), strict=True):
        answered = influence.answers(
            scorer.records_of(order), {e: label for e, label in zip(numbers, own, strict=True) if label >= 0}
        )
        influence.linearize_at((e, answered[e]) for e in numbers if e in answered)
        scores = [influence.score(e, answered[e]) if e in answered else np.nan for e in numbers]
        row[:] = influence.reweighted(np.array([scores]), examples)
    return table


def _calibrated_labels(
    responses: LabelResponses, orders: Sequence[Candidate], examples: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """The labels ``[o, e]`` of answers that are calibrated by those of their order, for each guess of shares; -1 for
    those that told none. Empty where most told none."""
    assert responses.shares is not None
    logs, unseen = responses.table(dict.fromkeys(orders, examples.tolist()), examples)
    known, found = ~np.isnan(logs[..., 0]), []
    if known.sum() <= LEAST_SHARE * known.size:
        return []
    for shares in responses.shares:
        labels = np.full(known.shape, -1)
        weights = responses.weights(known, examples)
        for row, told, own, hidden, counts in zip(labels, known, logs, unseen, weights, strict=True):
            if told.sum() > 1:
                offsets = batch_offsets(own[told], unseen=hidden[told], prior=shares, weights=counts[told])
                row[told] = calibrated(own[told], offsets, unseen=hidden[told]).argmax(axis=1)
        found.append(labels)
    return found
