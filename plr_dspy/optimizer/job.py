"""The job of a compile: its program, splits, plan and search, all checked before the first program call."""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

import dspy

from plr_dspy.calibration.program import CalibratedProgram
from plr_dspy.compilation.assembly import new_objective
from plr_dspy.compilation.outcome import Outcome
from plr_dspy.compilation.plan import NOTHING_TO_DO, Plan
from plr_dspy.optimizer.attempts import Attempt
from plr_dspy.optimizer.detailed_results import without_results
from plr_dspy.orderings.space import WITHOUT_DEMOS, Ordering
from plr_dspy.programs.calls import Metric, MetricWork, Work
from plr_dspy.programs.copies import ProgramFactory, named_predictors
from plr_dspy.programs.inputs import check_examples, check_fields
from plr_dspy.programs.slots import ProgramSlots, PromptSlots, add_labelled_demos
from plr_dspy.programs.splits import Splits, check_splits, make_splits
from plr_dspy.programs.validation import (
    check_demos,
    check_language_model,
    check_student,
)
from plr_dspy.report.schema import Signal
from plr_dspy.report.text import FEW_EXAMPLES, MIN_PROBABILITY
from plr_dspy.scoring.objectives import SearchObjective
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.search import Search
from plr_dspy.search.stopping import Stopper

logger = logging.getLogger(__name__)


class Optimizer(ABC):
    """What `prepare` and a compile ask of an optimizer: all that tells one from another.

    Attributes:
        name: What users call it.
        student_name, trainset_name: What users call the program that they pass, and the examples that score.
        metric: Scores a prediction.
        num_demos: Labelled demos for a student that has none; None makes that an error.
        balanced: Whether the splits have the classes evenly mixed.
        scored_on: What orders are scored on in the search.
        judges: Whether the metric's scores choose: then a student that came without demos is a candidate as it is.
        min_probability: Probability of being better on new examples that an order needs to be chosen.
        takes_num_demos: Whether users can have it give demos to a student without any.
        stoppers: What ends the search early.
    """

    name: str
    student_name, trainset_name = "student", "trainset"
    metric: Metric
    num_demos: int | None
    balanced = True
    scored_on = "train examples"
    judges = True
    min_probability = MIN_PROBABILITY
    takes_num_demos = True
    stoppers: Sequence[Stopper] = ()

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Return the user's arguments that decide the result, but for the seed, as plain data."""

    @abstractmethod
    def plan(self, *, num_train: int, num_selection: int, num_distinct: int) -> Plan:
        """Lay out a compile; arguments and errors are those of `make_plan`."""

    @abstractmethod
    def setup(self, job: Job) -> Setup:
        """Make what a compile needs; most optimizers return `by_metric` with a search."""

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the optimizer can order this program's demos.

        Raises:
            ValueError: with the reason and the cure.
        """
        return

    def listened(self, job: Job, scorer: CellScorer, *, deadline: float | None) -> Job:
        """Return the job as it is done after a first call, for optimizers that decide by one.

        Args:
            job: As it was laid out.
            scorer: Makes the call.
            deadline: By `time.monotonic`, when no further call may begin.
        """
        return job

    def bare(self, student: Any) -> Any:
        """Return what is compiled of a student."""
        return student

    def calibrated(
        self, job: Job, program: dspy.Module, offsets: Sequence[float], shares: Sequence[float]
    ) -> dspy.Module:
        """Return a program in one of the orders as it was scored: calibrated by these offsets, where answers were.

        Args:
            job: What was compiled.
            program: In that order.
            offsets, shares: Of the labels: what calibrates the answers, and what to; empty where nothing does.
        """
        return program.bound() if isinstance(program, CalibratedProgram) else program

    def finished(
        self, job: Job, compiled: dspy.Module, *, outcome: Outcome, objective: SearchObjective
    ) -> dspy.Module:
        """Return what a compile returns, from the program in the order chosen."""
        return self.calibrated(job, compiled, (), ())


@dataclass(frozen=True)
class Setup:
    """What a compile is made of.

    Attributes:
        search: Proposes orderings.
        objective: Makes, of the scorer, what scores orderings for the search.
        work: Makes one program call, on the examples of the search or on those of the selection split.
        names: What messages call the examples of the search.
        signal: What the search learns from a call, as far as is known; None where the metric does not choose.
    """

    search: Search
    objective: Callable[[CellScorer], SearchObjective]
    work: Work
    names: list[str]
    signal: Signal | None = None


@dataclass(frozen=True)
class Job:
    """A compile, prepared.

    Attributes:
        optimizer: Which one.
        seed: Of everything random.
        program: A copy of the student.
        slots: What can be ordered in it.
        splits: The examples that score orders.
        plan: The shape of the compile.
        original: What the user has: the identity, `WITHOUT_DEMOS`, or an arrangement.
        earlier: Program calls that were made before for bootstrapped demos, and of which the plan knows nothing.
    """

    optimizer: Optimizer
    seed: int
    program: dspy.Module
    slots: PromptSlots
    splits: Splits
    plan: Plan
    original: Ordering
    earlier: tuple[Attempt, ...] = ()

    @cached_property
    def setup(self) -> Setup:
        """What the compile is made of; one search, which learns."""
        return self.optimizer.setup(self)

    def laid_out(self, plan: Plan, setup: Setup) -> Job:
        """Return the job with another plan, and with this setup."""
        job = replace(self, plan=plan)
        vars(job)["setup"] = setup
        return job

    @property
    def names(self) -> list[str]:
        """What messages call the examples of the search, then those of the selection split."""
        return [*self.setup.names, *self.splits.names[len(self.splits.train) :]]

    def arguments(self) -> dict[str, Any]:
        """The user's arguments that decide the result, as plain data."""
        optimizer = self.optimizer
        return {
            "method": optimizer.name,
            **optimizer.arguments(),
            "seed": self.seed,
            "metric": getattr(optimizer.metric, "__name__", type(optimizer.metric).__name__),
        }

    def settings(self) -> dict[str, Any]:
        """Everything that decides the result, as plain data."""
        predictors = [predictor for _, predictor in named_predictors(self.program)]
        return {
            **self.arguments(),
            "scored_on": self.optimizer.scored_on,
            "adapter": type(dspy.settings.adapter or dspy.ChatAdapter()).__name__,
            "models": sorted({str(lm.model) for p in predictors if (lm := p.lm or dspy.settings.lm)}),
            "num_train": len(self.splits.train),
            "num_selection": len(self.splits.selection),
            **asdict(self.plan),
        }


def by_metric(job: Job, search: Search, *, work: Work | None = None, signal: Signal | None = None) -> Setup:
    """Return the setup of a search whose orderings the metric scores on the train split.

    Args:
        job: What is set up.
        search: Proposes orderings.
        work: Makes a call; None takes one that learns the metric's score.
        signal: What the search learns from a call.
    """
    splits = job.splits
    return Setup(
        search,
        objective=partial(new_objective, job.plan, num_train=len(splits.train), original=job.original),
        work=work or MetricWork(job.optimizer.metric, [*splits.train, *splits.selection]),
        names=splits.names[: len(splits.train)],
        signal=signal,
    )


def prepare(
    optimizer: Optimizer,
    student: dspy.Module,
    *,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example] | None,
    seed: int,
) -> Job:
    """Check the arguments and lay out a compile; no program call is made.

    Raises:
        TypeError, ValueError: for bad arguments.
    """
    valset = [] if valset is None else valset
    program = checked_copy(optimizer, student, trainset=trainset, valset=valset)
    rng = random.Random(seed)
    added = add_labelled_demos(program, trainset, optimizer.num_demos, rng) if optimizer.num_demos else []
    demos = [demo for _, predictor in named_predictors(program) for demo in predictor.demos]
    if not demos:
        raise ValueError(
            f"{optimizer.student_name} has no demos to order: compile it first with an optimizer that chooses demos, "
            "such as dspy.LabeledFewShot or dspy.BootstrapFewShot"
            + (f", or pass num_demos to {optimizer.name}" if optimizer.takes_num_demos else "")
        )
    optimizer.check(program, trainset)
    slots = ProgramSlots(program)
    name = optimizer.trainset_name
    splits = make_splits(trainset, valset, demos, rng, balanced=optimizer.balanced, name=name)
    original = WITHOUT_DEMOS if added and optimizer.judges else slots.space.identity
    if slots.space.num_distinct < 2:
        return Job(optimizer, seed, program, slots, splits, NOTHING_TO_DO, original)
    check_splits(splits, num_trainset=len(trainset), num_valset=len(valset), name=name)
    warn_of_few_examples(len(splits.train) + len(splits.selection), len(trainset) + len(valset), optimizer)
    plan = optimizer.plan(
        num_train=len(splits.train),
        num_selection=len(splits.selection),
        num_distinct=slots.space.num_distinct,
    )
    return Job(optimizer, seed, program, slots, splits, plan, original)


def checked_copy(
    optimizer: Optimizer,
    student: dspy.Module,
    *,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example],
) -> dspy.Module:
    """Check what the user passes, and return a copy of the program to work on.

    Raises:
        TypeError, ValueError: for bad arguments.
    """
    _check_hooks(optimizer)
    student = optimizer.bare(student)
    check_student(student, optimizer.student_name)
    check_examples(optimizer.trainset_name, trainset, student)
    check_examples("valset", valset, student)
    check_language_model(student)
    check_demos(student)
    check_fields(student, **{optimizer.trainset_name: trainset, "valset": valset})
    program = without_results(ProgramFactory(student).build({}))
    if isinstance(program, CalibratedProgram) and program.calibration is not None:
        program.calibration = replace(program.calibration, prompt=None)  # Its demos are to change.
    return program


def _check_hooks(optimizer: Optimizer) -> None:
    """Raise where a user's subclass keeps something under the name of a method that a compile calls."""
    for hook in ("arguments", "bare", "plan", "setup", "check", "listened", "calibrated", "finished"):
        if not callable(getattr(optimizer, hook)):
            raise TypeError(
                f"{type(optimizer).__name__}.{hook} must be the method of {optimizer.name}: rename the attribute"
            )


def warn_of_few_examples(num_usable: int, num_given: int, optimizer: Optimizer) -> None:
    """Say so where chance decides which order looks best."""
    if num_usable >= FEW_EXAMPLES or not optimizer.judges:
        return
    others = num_given > num_usable
    logger.warning(
        "only %d %sexamples can score orders of the demos%s. On so few, chance alone moves the score of an order by "
        "%.2f, so little can be found: pass 100 examples or more",
        num_usable,
        f"of the {num_given} " * others,
        " (the others are demos, or given twice)" * others,
        (0.25 / num_usable) ** 0.5,
    )
