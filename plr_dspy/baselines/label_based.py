"""Methods that choose an order by its label probabilities alone: what LocalE, GlobalE and PDO share."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import dspy

from plr_dspy.baselines.objective import Criterion, LabelObjective
from plr_dspy.baselines.probing import FixedInputs, ProbingWork, WrittenInputs
from plr_dspy.calibration.program import CalibratedProgram
from plr_dspy.compilation.budget import MIN_EXAMPLES
from plr_dspy.compilation.plan import Plan
from plr_dspy.compilation.random_orders import random_plan, random_search
from plr_dspy.lm.finite_outputs import finite_output
from plr_dspy.optimizer.base import Common, Reorderer
from plr_dspy.optimizer.job import Job, Setup
from plr_dspy.programs.calls import Metric
from plr_dspy.programs.prompts import decision_adapter
from plr_dspy.programs.validation import whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack

COMPARED_SHARE = 0.2
"""Of a budget for the comparison with the original order, at most."""


class LabelReorderer(Reorderer):
    """What the methods that look at label probabilities share.

    Args:
        metric: Does not choose the order: it says in the report how the order chosen does beside the original
            one, on the selection split.
        num_candidates: Random orders, the original one among them.
        **common: As in `PLReorder`: max_metric_calls, max_seconds, num_demos, num_threads, max_errors, seed,
            log_dir, accept_changes, track_stats, display_progress.
    """

    scored_on = "probing inputs"
    judges = False
    least_calls: ClassVar[int] = 1
    """Program calls for each order, at least."""

    def __init__(self, metric: Metric, *, num_candidates: int, **common: Unpack[Common]) -> None:
        super().__init__(metric, **common)
        number = whole_number("num_candidates", num_candidates, least=2)
        if number is None:
            raise TypeError("num_candidates must be a whole number; got None")
        self.num_candidates = number

    @abstractmethod
    def criterion(self, job: Job) -> Criterion:
        """Return what the order chosen has most of."""

    @abstractmethod
    def most_calls(self, *, num_train: int, num_orders: int) -> int:
        """Program calls for each order, at most."""

    @abstractmethod
    def probing(self, job: Job) -> FixedInputs | WrittenInputs:
        """Make the probing inputs, as many as the plan has examples."""

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the program has one predictor with one finite output."""
        if isinstance(program, CalibratedProgram):
            raise ValueError(
                f"{self.name} reads the probabilities of labels itself, and the student is calibrated: pass "
                "student.program, and calibrate what comes of it"
            )
        predictors = program.predictors()
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

    def output(self, program: dspy.Module) -> tuple[str, dict[str, Any]]:
        """Name and labels of the finite output."""
        return finite_output(program.predictors()[0].signature, purpose=self.name)

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int) -> Plan:
        """Each order on as many probing inputs as the budget pays for; then the winner beside the original."""
        num_orders = min(self.num_candidates, num_distinct)
        most = self.most_calls(num_train=num_train, num_orders=num_orders)

        def affordable(budget: int) -> tuple[int, int]:
            """Program calls for each order, and examples of the comparison."""
            compared = min(num_selection, max(MIN_EXAMPLES, int(COMPARED_SHARE * budget) // 2))
            return min(most, (budget - 2 * compared) // num_orders), compared

        budget = self.max_metric_calls
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
            by_criterion=True,
        )

    def setup(self, job: Job) -> Setup:
        """Make a search for random orders, the original one first, by a criterion of their label probabilities."""
        inputs = self.probing(job)
        return Setup(
            random_search(job.plan, job.slots.space, seed=job.seed),
            objective=partial(
                LabelObjective,
                inputs=inputs,
                criterion=self.criterion(job),
                num_labels=len(self.output(job.program)[1]),
            ),
            work=ProbingWork(inputs, purpose=self.name, metric=self.metric, examples=job.splits.selection),
            names=[
                "the writing of a probing input" if i < inputs.num_written else f"probing input {i}"
                for i in range(inputs.most)
            ],
        )
