"""Whether the order of a program's demos matters, before a budget is spent on finding a better one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import dspy
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plr_dspy.compilation.first_signs import ENOUGH_ANSWERS, FirstSigns
from plr_dspy.compilation.plan import Plan, random_plan
from plr_dspy.labels.work import LabelWork
from plr_dspy.metrics.by_example import Metric
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.optimizer.job import Job, prepare
from plr_dspy.optimizer.plreorder import label_responses, label_work
from plr_dspy.programs.arguments import WholeNumber, arguments
from plr_dspy.programs.calls import MetricWork
from plr_dspy.report.order_sensitivity import OrderSensitivity
from plr_dspy.retrieval.places import FoundSlots
from plr_dspy.scoring.influence import Influence
from plr_dspy.scoring.ledger import FAILED, WRONG
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.model.ordering_model import LEAST_SHARE
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import Ordering
from plr_dspy.statistics.calibration import batch_offsets, calibrated, likely_shares, right_counts
from plr_dspy.statistics.spread import Array, spread

SEARCHED = 100
"""Random orders whose best a search is expected to find, at least; where so many are scored, these."""

NUM_ORDERS, MIN_ORDERS = 10, 3

MIN_EXAMPLES = 10
"""Fewest examples that the calls must pay for on each order; fewer hardly tell anything from chance."""


@arguments
class RandomSample(Reorderer):
    """Scores random orders, all on the same examples; `order_sensitivity` makes it, and no user."""

    name = "order_sensitivity"
    student_name, trainset_name = "program", "dataset"
    orders_found: ClassVar[bool] = True
    num_demos: ClassVar[None] = None  # type: ignore[misc]
    num_orders: Annotated[WholeNumber, Field(ge=MIN_ORDERS)] = NUM_ORDERS

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        num_orders, num_examples = min(self.num_orders, num_distinct), num_train + num_selection
        limit = num_orders * num_examples if self.max_metric_calls is None else self.max_metric_calls
        least = num_orders * min(MIN_EXAMPLES, num_examples)
        if limit < least:
            raise ValueError(
                f"max_metric_calls must be at least {least}, for {num_orders} orders on "
                f"{least // num_orders} examples; got {limit}: raise it"
                + (", or lower num_orders" if num_orders > MIN_ORDERS else "")
            )
        return random_plan(
            num_orders,
            batch=num_orders,
            num_examples=min(limit // num_orders, num_examples),
            num_best=0,
            num_compared=0,
            max_metric_calls=limit,
        )

    def work(self, job: Job) -> MetricWork:
        work = label_work(job)
        return work if isinstance(work, LabelWork) else super().work(job)

    def measure(self, program: dspy.Module, dataset: Sequence[dspy.Example]) -> OrderSensitivity:
        """Score the orders, on fewer examples where failures have cost calls, and say how far apart they lie."""
        prepared = prepare(self, program, dataset, [], seed=self.seed)
        num_distinct = prepared.slots.space.num_distinct
        if num_distinct < 2:
            raise ValueError("program has one order of its demos only: nothing to compare; choose 2 demos or more")
        if isinstance(prepared.slots, FoundSlots) and self.num_orders == MIN_ORDERS < num_distinct:
            raise ValueError(
                f"num_orders must be at least {MIN_ORDERS + 1} where demos are found for each input: one of them is "
                "the reverse of the program's own"
            )
        with self._open(prepared) as (job, work, scorer, _):
            orders, influence = self.search(job).ask(), scorer.influence
            sampled, reverse = slice(len(orders)), None
            if isinstance(job.slots, FoundSlots):
                if job.slots.reverse not in orders:  # It is no random one.
                    orders[-1] = job.slots.reverse
                    sampled = slice(len(orders) - 1)
                reverse = orders.index(job.slots.reverse)
            num_usable = len(job.scored_examples)
            asked = list(range(num_usable)) if influence is None else influence.turns(num_usable)
            asked = asked[: job.plan.num_train_examples]
            while len(asked) > 2 and not scorer.fits(dict.fromkeys(orders, asked)):
                asked.pop()
            few = asked[: -(-ENOUGH_ANSWERS // len(orders))]
            scorer.table(orders, few)  # Where hardly any of these can be read, no further call is made.
            FirstSigns(scorer, num_usable, lambda: work.sample, by_scores=False).check()
            asked.sort()
            examples, rows = scorer.table(orders, asked)
            cells = scorer.known_cells(dict.fromkeys(orders, examples))
            outcomes = np.array([[cells[order][example].outcome for example in examples] for order in orders])
            numbers, ended = np.array(examples), outcomes != FAILED

            def table_of(labels: NDArray[np.int64]) -> Array:
                """The scores ``[o, e]`` of answers, which are of these labels, or as they are where it is -1."""
                table = np.array(rows)
                if influence is not None:
                    table = _near_own_answers(scorer, influence, orders, numbers, labels)
                elif isinstance(work, LabelWork):
                    table = np.where(labels < 0, table, work.scores[numbers, labels])
                # A failed call counts as the mean of the other orders on its example: it says nothing about its order.
                return np.where(ended, table, np.where(ended, table, 0.0).sum(axis=0) / ended.sum(axis=0))

            def sensitivity(scores: Array, **more: Any) -> OrderSensitivity:
                bounds = influence.bounds if influence else None
                means, scores = np.clip(scores.mean(axis=1), *(bounds or (-np.inf, np.inf))), scores[sampled]
                num_searched = min(num_distinct, max(SEARCHED, len(scores)))
                sizes: Any = {"num_distinct": num_distinct, "num_searched": num_searched}
                return OrderSensitivity(
                    scores=means[sampled].tolist(),
                    reverse=None if reverse is None else float(means[reverse]),
                    num_examples=scores.shape[1],
                    num_usable=num_usable,
                    program_calls=scorer.budget.calls,
                    **sizes,
                    **spread(scores, **sizes, bounds=bounds, seed=self.seed)._asdict(),
                    **more,
                )

            calibrated, as_they_are = None, np.full(outcomes.shape, -1)
            if isinstance(work, LabelWork):
                responses = label_responses(scorer, work, likely_shares(right_counts(work.scores)))
                if tables := [table_of(labels) for labels in _calibrated_labels(responses, orders, numbers)]:
                    calibrated = sensitivity(max(tables, key=np.mean), num_unusable=0)
            num_unusable = int((outcomes[sampled] == WRONG).sum())
            return sensitivity(table_of(as_they_are), num_unusable=num_unusable, calibrated=calibrated)


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

    Scores the program's own order and random ones, all on the same examples: as many as ``max_metric_calls`` pays
    for, drawn from those that the demos do not show. 300 calls find the effect in 6 to 9 of 10 programs whose orders
    have a standard deviation of 10 points, in 1 to 4 of 10 where it is 5 points (right-or-wrong scores, 8 demos).

    Of a classifier whose endpoint gives log-probabilities, the same calls also tell how far apart the orders lie once
    they are calibrated, which needs no search: see `BatchCalibration`. An order that an optimizer chose on these very
    examples looks better on them than it is: pass others then.

    Args:
        program: With demos in one predictor at least; it is not changed.
        metric: As in `PLReorder`.
        dataset: Examples with inputs and labels.
        num_orders: The program's own included, and where demos are found for each input its reverse, so that they are 4
            at least; all there are if these are fewer.
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
    scorer: CellScorer,
    influence: Influence,
    orders: Sequence[Ordering],
    examples: NDArray[np.int64],
    labels: NDArray[np.int64],
) -> Array:
    """Scores by a metric over a set, ``[o, e]``, each order's near its own answers: their mean is the metric of these.

    Answers are of these labels, or as they are where it is -1; those of failed calls are NaN.
    """
    table, numbers = np.full(labels.shape, np.nan), examples.tolist()
    for row, order, own in zip(table, orders, labels.tolist(), strict=True):
        answered = scorer.outputs(order, {e: label for e, label in zip(numbers, own, strict=True) if label >= 0})
        influence.refer((e, answered[e]) for e in numbers if e in answered)
        scores = [influence.score(e, answered[e]) if e in answered else np.nan for e in numbers]
        row[:] = influence.stratified(np.array([scores]), examples)
    return table


def _calibrated_labels(
    responses: LabelResponses, orders: Sequence[Ordering], examples: NDArray[np.int64]
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
