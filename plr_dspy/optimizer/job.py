"""The job of a compile: its program, splits, plan and search, all checked before the first program call."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import dspy

from plr_dspy.compilation.plan import NOTHING_TO_DO, Plan
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.optimizer.bootstrapping import Attempt
from plr_dspy.programs.checks import (
    check_demos,
    check_examples,
    check_fields,
    check_language_model,
    check_student,
)
from plr_dspy.programs.copies import ProgramFactory, named_predictors
from plr_dspy.programs.slots import ProgramSlots, PromptSlots, add_labelled_demos
from plr_dspy.programs.splits import Splits, check_splits, make_splits
from plr_dspy.report.text import FEW_EXAMPLES
from plr_dspy.search.space import WITHOUT_DEMOS, Ordering

if TYPE_CHECKING:
    from plr_dspy.optimizer.base import Reorderer

logger = logging.getLogger(__name__)

HOOKS = ("arguments", "bare", "plan", "work", "search", "check", "calibrated")
"""Methods of optimizers that a compile calls."""


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
        attempts: At bootstrapped demos; the plan knows nothing of their calls.
    """

    optimizer: Reorderer
    seed: int
    program: dspy.Module
    slots: PromptSlots
    splits: Splits
    plan: Plan
    original: Ordering
    attempts: tuple[Attempt, ...] = ()

    @property
    def sizes(self) -> Any:
        """What a plan is laid out for."""
        return {
            "num_train": len(self.splits.train),
            "num_selection": len(self.splits.selection),
            "num_distinct": self.slots.space.num_distinct,
        }

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


def prepare(
    optimizer: Reorderer,
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
            + (f", or pass num_demos to {optimizer.name}" if "num_demos" in vars(optimizer) else "")
        )
    optimizer.check(program, trainset)
    slots = ProgramSlots(program)
    name = optimizer.trainset_name
    splits = make_splits(trainset, valset, demos, rng, balanced=optimizer.balanced, name=name)
    original = WITHOUT_DEMOS if added and optimizer.judges else slots.space.identity
    job = Job(optimizer, seed, program, slots, splits, NOTHING_TO_DO, original)
    if slots.space.num_distinct < 2:
        return job
    check_splits(splits, num_trainset=len(trainset), num_valset=len(valset), name=name)
    warn_of_few_examples(len(splits.train) + len(splits.selection), len(trainset) + len(valset), optimizer)
    return replace(job, plan=optimizer.plan(**job.sizes))


def checked_copy(
    optimizer: Reorderer,
    student: dspy.Module,
    *,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example],
) -> dspy.Module:
    """Check what the user passes, and return a copy of the program to work on.

    Raises:
        TypeError, ValueError: for bad arguments.
    """
    for hook in HOOKS:
        if not callable(getattr(optimizer, hook)):  # a user's subclass keeps something under its name
            raise TypeError(
                f"{type(optimizer).__name__}.{hook} must be the method of {optimizer.name}: rename the attribute"
            )
    optimizer.check_together()  # They may have been set since.
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


def without_results(program: dspy.Module) -> dspy.Module:
    """Take from a program what an earlier optimizer found beside it, and return the program.

    Every copy would hold copies of those programs; and a report is never twice the same, so that no `log_dir` would be
    found again.
    """
    attributes = vars(program)
    report, found = attributes.pop("reorder_report", None), attributes.get("candidate_programs")
    are_candidates = isinstance(found, list) and all(
        isinstance(part, Mapping) and {"score", "program"} <= part.keys() for part in found
    )
    none_compared = isinstance(report, Mapping) and not report.get("candidates")
    if are_candidates and (found or none_compared):  # Other empty lists are of the user's own.
        del attributes["candidate_programs"]
    return program


def warn_of_few_examples(num_usable: int, num_given: int, optimizer: Reorderer) -> None:
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
