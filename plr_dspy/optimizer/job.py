"""Everything that is decided before the first program call."""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import dspy

from plr_dspy.compilation.assembly import new_objective
from plr_dspy.compilation.budget import NOTHING_TO_DO, Plan
from plr_dspy.orderings.space import WITHOUT_DEMOS, Ordering
from plr_dspy.programs.copies import ProgramFactory, named_predictors
from plr_dspy.programs.evaluation import program_scorer
from plr_dspy.programs.metrics import Metric
from plr_dspy.programs.slots import ProgramSlots, add_labelled_demos
from plr_dspy.programs.splits import Splits, check_splits, make_splits
from plr_dspy.programs.validation import (
    check_demos,
    check_examples,
    check_fields,
    check_language_model,
    check_student,
)
from plr_dspy.programs.work import MetricWork, Work
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.scoring.objectives import SearchObjective
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.cross_entropy import CrossEntropySearch
from plr_dspy.search.stopping import Stopper

logger = logging.getLogger(__name__)

FEW_EXAMPLES = 30
"""With fewer, chance decides which order looks best."""


class Method(ABC):
    """A way to find an order: what tells one optimizer from another.

    Attributes:
        name: What users call it.
        balanced: Whether the splits have the classes evenly mixed.
        scored_on: What orders are scored on in the search.
        judges: Whether the metric's scores choose: then a student that came without demos is a candidate as it is.
        min_probability: Of being better on new examples that an order needs to be chosen.
        takes_num_demos: Whether users can have it give demos to a student without any.
    """

    name: str
    balanced = True
    scored_on = "train examples"
    judges = True
    min_probability = 0.0
    takes_num_demos = True

    @property
    def stoppers(self) -> list[Stopper]:
        """What ends the search early."""
        return []

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """What decides its result, as plain data."""

    @abstractmethod
    def plan(self, *, num_train: int, num_selection: int, num_distinct: int) -> Plan:
        """Lay out a compile; arguments and errors are those of `make_plan`."""

    @abstractmethod
    def search(self, job: Job) -> CrossEntropySearch:
        """The search of a compile."""

    def objective(self, job: Job, scorer: CellScorer) -> SearchObjective:
        """What scores orderings for the search."""
        return new_objective(job.plan, scorer, num_train=len(job.splits.train), original=job.original)

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless it can order this program's demos.

        Raises:
            ValueError: with the reason and the cure.
        """
        return

    def finished(self, job: Job, compiled: dspy.Module, objective: SearchObjective) -> dspy.Module:
        """The program that a compile returns, from the program in the order chosen."""
        return compiled

    def probing(self, job: Job) -> Any:
        """Inputs that the search uses instead of the train split; one object for each job."""
        return None

    def searched(self, job: Job) -> list[str]:
        """What messages call the examples of the search, which come before those of the selection split."""
        return job.splits.names[: len(job.splits.train)]

    def work(self, job: Job) -> Work:
        """What a program call does."""
        return MetricWork(job.options.metric, [*job.splits.train, *job.splits.selection])


@dataclass(frozen=True)
class Options:
    """What decides the result of a compile, beside the program and the data.

    Attributes:
        method: Finds the order.
        metric: Scores a prediction.
        num_demos: Labelled demos for a student that has none.
        seed: Of everything random.
    """

    method: Method
    metric: Metric
    num_demos: int | None
    seed: int

    def arguments(self) -> dict[str, Any]:
        """The user's arguments as plain data."""
        return {
            "method": self.method.name,
            **self.method.arguments(),
            "num_demos": self.num_demos,
            "seed": self.seed,
            "metric": getattr(self.metric, "__name__", type(self.metric).__name__),
        }


@dataclass(frozen=True)
class Job:
    """A compile, prepared.

    Attributes:
        options: What decides the result.
        program: A copy of the student.
        slots: What can be ordered in it.
        splits: The examples that score orders.
        plan: The shape of the compile.
        original: What the user has: the identity, or `WITHOUT_DEMOS`.
    """

    options: Options
    program: dspy.Module
    slots: ProgramSlots
    splits: Splits
    plan: Plan
    original: Ordering

    def new_search(self) -> CrossEntropySearch:
        """The search of the method."""
        return self.options.method.search(self)

    @cached_property
    def probing(self) -> Any:
        """Inputs that the search uses instead of the train split."""
        return self.options.method.probing(self)

    @cached_property
    def work(self) -> Work:
        """What a program call does."""
        return self.options.method.work(self)

    @property
    def names(self) -> list[str]:
        """What messages call the examples."""
        return [*self.options.method.searched(self), *self.splits.names[len(self.splits.train) :]]

    @property
    def num_searched(self) -> int:
        """Examples of the search."""
        return len(self.options.method.searched(self))

    def new_objective(self, scorer: CellScorer) -> SearchObjective:
        """What scores orderings for the search."""
        return self.options.method.objective(self, scorer)

    def new_scorer(
        self,
        *,
        num_threads: int | None,
        max_errors: int | None,
        on_cell: Callable[[], None],
        interrupted: threading.Event,
        ledger: Ledger,
    ) -> CellScorer:
        """The scorer of the program's orderings, on the search's examples followed by the selection split."""
        return program_scorer(
            self.program,
            self.slots,
            metric=self.options.metric,
            examples=[*self.splits.train, *self.splits.selection],
            names=self.names,
            work=self.work,
            num_threads=num_threads,
            max_errors=max_errors,
            max_metric_calls=self.plan.call_limit,
            on_cell=on_cell,
            interrupted=interrupted,
            ledger=ledger,
        )

    def settings(self) -> dict[str, Any]:
        """Everything that decides the result, as plain data."""
        predictors = [predictor for _, predictor in named_predictors(self.program)]
        return {
            **self.options.arguments(),
            "scored_on": self.options.method.scored_on,
            "adapter": type(dspy.settings.adapter or dspy.ChatAdapter()).__name__,
            "models": sorted({str(lm.model) for p in predictors if (lm := p.lm or dspy.settings.lm)}),
            "num_train": len(self.splits.train),
            "num_selection": len(self.splits.selection),
            **asdict(self.plan),
        }


def prepare(
    options: Options,
    student: dspy.Module,
    *,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example] | None,
) -> Job:
    """Check the arguments and lay out a compile; no program call is made.

    Raises:
        TypeError, ValueError: for bad arguments.
    """
    method = options.method
    valset = [] if valset is None else valset
    check_student(student)
    check_examples("trainset", trainset)
    check_examples("valset", valset)
    check_language_model(student)
    check_demos(student)
    check_fields(student, trainset=trainset, valset=valset)
    rng = random.Random(options.seed)
    program = ProgramFactory(student).build({})
    added = add_labelled_demos(program, trainset, options.num_demos, rng) if options.num_demos else []
    demos = [demo for _, predictor in named_predictors(program) for demo in predictor.demos]
    if not demos:
        raise ValueError(
            "student has no demos to order: compile it first with an optimizer that chooses demos, such as "
            "dspy.LabeledFewShot or dspy.BootstrapFewShot"
            + (f", or pass num_demos to {method.name}" if method.takes_num_demos else "")
        )
    method.check(program, trainset)
    slots = ProgramSlots(program)
    splits = make_splits(trainset, valset, demos, rng, balanced=method.balanced)
    original = WITHOUT_DEMOS if added and method.judges else slots.space.identity
    if slots.space.num_distinct < 2:
        return Job(options, program, slots, splits, NOTHING_TO_DO, original)
    check_splits(splits, num_trainset=len(trainset), num_valset=len(valset))
    _warn_of_few_examples(len(splits.train) + len(splits.selection), len(trainset) + len(valset), method)
    plan = method.plan(
        num_train=len(splits.train),
        num_selection=len(splits.selection),
        num_distinct=slots.space.num_distinct,
    )
    return Job(options, program, slots, splits, plan, original)


def _warn_of_few_examples(num_usable: int, num_given: int, method: Method) -> None:
    """Say so where chance decides which order looks best."""
    if num_usable >= FEW_EXAMPLES or not method.judges:
        return
    logger.warning(
        "only %d of %d examples can score orders of the demos (the others are shown by demos, or given twice): chance "
        "alone moves an order's score on so few by %.2f, so that little can be found; pass 100 or more",
        num_usable,
        num_given,
        (0.25 / num_usable) ** 0.5,
    )
