"""Methods that choose by label probabilities alone: all orders are asked, and a criterion names the best."""

from __future__ import annotations

import itertools
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import dspy
import numpy as np
from pydantic import Field
from scipy.special import ndtr

from plr_dspy.baselines.probing import ProbingWork
from plr_dspy.compilation.choice import Finalist, Outcome, Result, comparison
from plr_dspy.compilation.path import calls_by_phase
from plr_dspy.compilation.plan import MIN_EXAMPLES, Plan, random_plan
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import LabelOutput, check_text_inputs, needed_output
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.arguments import Count, arguments
from plr_dspy.programs.calls import MetricWork
from plr_dspy.programs.prompts import decision_adapter
from plr_dspy.scoring.budget import MARGIN
from plr_dspy.scoring.cells import FAILED, Cell
from plr_dspy.scoring.scorer import CellScorer, NothingRan
from plr_dspy.search.model.ordering_model import Gain
from plr_dspy.search.search import Search
from plr_dspy.search.space import Ordering
from plr_dspy.statistics.calibration import Array
from plr_dspy.statistics.comparisons import paired_interval

logger = logging.getLogger(__name__)

Criterion = Callable[[Array], float]
"""Of a table ``[E, L]`` of label probabilities; larger is better (`plr_dspy.baselines.criteria`)."""

COMPARED_SHARE = 0.2
"""Of a budget for the comparison with the original order, at most."""

OTHERS = ", or use PLReorder or TopKOrder, which need none"
"""What else can be done where a program has no such output."""


@arguments
class LabelReorderer(Reorderer):
    """What the methods that look at label probabilities share: each has a criterion and probing inputs.

    Args:
        metric: Does not choose the order: it says in the report how the order chosen does beside the original
            one, on the selection split.
        num_candidates: Random orders, the original one among them.
        all others: As in `PLReorder`.
    """

    scored_on = "probing inputs"
    judges = False
    least_calls: ClassVar[int] = 1
    """Program calls for each order, at least."""
    makes_inputs = ""
    """The name of a method that makes inputs of its own, which must be text; empty where none are made."""
    temperature: ClassVar[float | None] = None
    """At which the LM writes the probing inputs; None where it writes none."""

    num_candidates: Annotated[Count, Field(ge=2)] = 24

    @abstractmethod
    def criterion(self, job: Job) -> Criterion:
        """Return what the order chosen has most of."""

    @abstractmethod
    def most_calls(self, *, num_train: int, num_orders: int) -> int:
        """Program calls for each order, at most."""

    def inputs(self, job: Job) -> Sequence[Mapping[str, Any]]:
        """The probing inputs, at most as many as the plan has examples; none where the LM writes them."""
        return []

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the program has one predictor with one finite output, and inputs that can be made."""
        predictors = program.predictors()
        if isinstance(program, CalibratedProgram):
            raise ValueError(
                f"{self.name} reads the probabilities of labels itself, and the student is calibrated: pass "
                "student.program, and calibrate what comes of it"
            )
        if len(predictors) != 1:
            raise ValueError(
                f"{self.name} needs a program with one predictor; this one has {len(predictors)}: use PLReorder or "
                "TopKOrder"
            )
        if (decisions := decision_adapter(predictors[0])) is not None:
            client = type(predictors[0].lm or dspy.settings.lm).__name__
            cure = f"use an LM in place of {client}" if decisions.system_one else "declare a Literal alone"
            raise ValueError(
                f"{self.name} reads the tokens of labels, and replies to the student state probabilities in their "
                f"place: {cure}, or use PLReorder or TopKOrder"
            )
        self.output(program)
        for example in trainset if self.makes_inputs else ():
            check_text_inputs(self.makes_inputs, dict(example.inputs().items()))

    def output(self, program: dspy.Module) -> LabelOutput:
        """The finite output."""
        return needed_output(program, self.name, cure=OTHERS)

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        """Each order on as many probing inputs as the budget pays for; then the winner beside the original."""
        num_orders, budget = min(self.num_candidates, num_distinct), self.max_metric_calls
        most = self.most_calls(num_train=num_train, num_orders=num_orders)

        def affordable(budget: int) -> tuple[int, int]:
            """Program calls for each order, and examples of the comparison."""
            compared = min(num_selection, max(MIN_EXAMPLES, int(COMPARED_SHARE * budget) // 2))
            return min(most, (budget - 2 * compared) // num_orders), compared

        num_calls, num_compared = (most, num_selection) if budget is None else affordable(budget)
        if budget is not None and num_calls < self.least_calls:
            enough = next(b for b in itertools.count(num_orders) if affordable(b)[0] >= self.least_calls)
            fewer = (budget - 2 * num_compared) // self.least_calls
            lower = f", or lower num_candidates to {fewer}" if fewer > 1 else ""
            raise ValueError(
                f"max_metric_calls must be at least {enough} for {num_orders} orders; got {budget}: raise it{lower}"
            )
        return random_plan(
            num_orders,
            batch=num_orders,
            num_examples=num_calls,
            num_best=1,
            num_compared=num_compared,
            max_metric_calls=budget,
        )

    def work(self, job: Job) -> MetricWork:
        """Return what makes a call: on a probing input, or on an example of the selection split."""
        return ProbingWork(
            self.metric,
            job.splits.selection,
            inputs=[dspy.Example(fields).with_inputs(*fields) for fields in self.inputs(job)],
            output=self.output(job.program),
            purpose=self.name,
            temperature=self.temperature,
            most=max(0, job.plan.num_train_examples - 1) if self.temperature else 0,
        )

    def _examples(self, job: Job, work: Any) -> tuple[list[str], list[str]]:
        names, keys = super()._examples(job, work)
        first = len(job.splits.train)
        return [*work.names, *names[first:]], [*work.names, *keys[first:]]

    def _compilation(self, job: Job, work: Any, scorer: CellScorer, *options: Any) -> Any:
        """Make the compile of a job."""
        return LabelCompilation(
            job, work, scorer, search=self.search(job, job.plan), criterion=self.criterion(job)
        )


class LabelCompilation:
    """One compile: all orders are asked for label probabilities, and the best one is compared with the original.

    Args:
        job: What is compiled.
        work: What its calls do.
        scorer: Makes the calls.
        search: Proposes orders.
        criterion: What makes one number of an order's label probabilities.

    Attributes:
        means: Mean distribution ``[L]`` over the inputs, of each order asked.
    """

    def __init__(
        self, job: Job, work: ProbingWork, scorer: CellScorer, *, search: Search, criterion: Criterion
    ) -> None:
        self.means: dict[Ordering, Array] = {}
        self.scorer, self.plan, self.search = scorer, job.plan, search
        self._work, self._criterion = work, criterion
        self._original = self._best = job.original
        self._selection = range(work.num_probing, work.num_probing + job.plan.num_selection_examples)

    def run(self) -> Outcome:
        """Ask all orders, and compare the best; the original order wins ties."""
        scorer, plan = self.scorer, self.plan
        if self.search.space.num_distinct < 2:
            logger.warning("all choices of demos and order give the same prompt: there is nothing to compare")
            return self._outcome("all choices give the same prompt")
        scorer.phase = "search"
        scorer.budget.allow(1.0 - min(0.5, MARGIN * plan.final_calls / max(1, plan.program_calls)))
        orderings = self.search.ask()
        rows = self._ask(orderings)
        scores = self._scores(rows) if rows else {}
        scorer.ledger.settle()
        stopped = "all orders asked" if len(rows) == len(orderings) else scorer.budget.refused
        if not rows:
            return self._outcome(f"{stopped}, nothing compared")
        self._best = max(scores, key=scores.__getitem__)
        entries = list(dict.fromkeys([self._original, self._best]))
        scorer.phase, count = "final", len(self._selection)
        scorer.budget.allow(1.0)
        while count and not scorer.fits(dict.fromkeys(entries, self._selection[:count])):
            count -= 1
        try:
            _, table = scorer.table(entries, self._selection[:count], favoured=0) if count else ([], [])
        except NothingRan as error:
            logger.warning("what was chosen could not be compared with the original: %s", error)
            return self._outcome(f"{stopped}, nothing compared: {error}")
        if len(table) < len(entries):
            return self._outcome(f"{scorer.budget.refused or stopped}, nothing compared")
        gains = [Gain(0.0, 0.0), _gain(table[0], table[-1])]
        candidates = [
            Result(Finalist(origin, ordering), math.fsum(row) / len(row), gain)
            for origin, ordering, row, gain in zip(
                ("original", "best seen"), entries, table, gains, strict=False
            )
        ]
        return self._outcome(
            stopped,
            comparison=comparison(table[0], table[-1], num_candidates=2, gain=candidates[-1].gain),
            candidates=candidates,
            chosen=len(candidates) - 1,
        )

    def unfinished(self, error: BaseException) -> Outcome:
        """What is known where the compile ended in an exception."""
        ended = "interrupted" if isinstance(error, KeyboardInterrupt) else f"ended by {type(error).__name__}"
        return self._outcome(ended + " in the final comparison" * (self.scorer.phase == "final"))

    def _ask(self, orderings: Sequence[Ordering]) -> dict[Ordering, dict[int, Cell]]:
        """The cells of orders on the probing inputs; of the first orders only when time or money is up."""
        scorer, work = self.scorer, self._work
        # The first one alone: if the LM gives no log-probabilities, no other call is made.
        scorer.cells({ordering: range(1) for ordering in orderings[:1]})
        if work.first:
            written = scorer.cells(dict.fromkeys(orderings, range(1)))
            if len(written) < len(orderings):
                return {}
            work.take([row[0].value for row in written.values()])
        scorer.ledger.settle()  # An input that is written later would move the others.
        return scorer.cells(dict.fromkeys(orderings, work.probing))

    def _scores(self, rows: Mapping[Ordering, Mapping[int, Cell]]) -> dict[Ordering, float]:
        """The criterion of each order, from its cells; sets `means`.

        Inputs that failed for an order count for none, unless that leaves no input: then such an order is the worst.
        Where no label is among the likeliest tokens, the probabilities are taken for equal.
        """
        cells = [cell for row in rows.values() for cell in row.values()]
        probing = self._work.probing
        inputs = [e for e in probing if all(row[e].outcome != FAILED for row in rows.values())] or probing
        tables = {
            ordering: [row[example].value for example in inputs]
            for ordering, row in rows.items()
            if all(row[example].outcome != FAILED for example in inputs)
        }
        if not tables:
            raise self.scorer.nothing_ran(cells, len(rows))
        told = next((value for values in tables.values() for value in values if value is not None), None)
        if told is None:
            cell = next(cell for cell in cells if cell.outcome != FAILED)
            raise RuntimeError(
                f"none of {len(cells)} calls gave any label a probability, so no order can be told from another; one "
                f"said: {cell.error}: {cell.message}"
            )
        uniform, scores = [1.0 / len(told)] * len(told), {}
        for ordering, values in tables.items():
            table = np.array([uniform if value is None else value for value in values])
            self.means[ordering] = table.mean(axis=0)
            scores[ordering] = float(self._criterion(table))
        return {ordering: scores.get(ordering, min(scores.values())) for ordering in rows}

    def _outcome(self, stopped: str, **compared: Any) -> Outcome:
        """The outcome; without what was compared, nothing was."""
        found: dict[str, Any] = {"comparison": None, "candidates": [], **compared}
        return Outcome(
            ordering=self._best,
            distributions=self.search.distributions,
            evidence=None,
            history=[],
            program_calls=calls_by_phase(self.scorer, self._original, self._selection),
            stopped=stopped,
            **found,
        )


def _gain(original: Sequence[float], chosen: Sequence[float]) -> Gain:
    """What the scores of an order beside the original one let one expect on new examples."""
    low, high = paired_interval([b - a for a, b in zip(original, chosen, strict=True)], 2 * ndtr(1.0) - 1)
    mean, deviation = (low + high) / 2, (high - low) / 2
    return Gain(mean, float(ndtr(mean / deviation)) if deviation else 0.5, deviation)
