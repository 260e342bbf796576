"""Everything that is decided before the first program call."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import dspy

from plr_dspy.assembly import new_search
from plr_dspy.evaluation import program_scorer
from plr_dspy.inputs import (
    check_demos,
    check_examples,
    check_fields,
    check_language_model,
    check_splits,
    check_student,
)
from plr_dspy.ledger import Ledger
from plr_dspy.metrics import Metric
from plr_dspy.plan import NOTHING_TO_DO, Overrides, Plan, make_plan
from plr_dspy.programs import ProgramFactory
from plr_dspy.scoring import CellScorer
from plr_dspy.search import CrossEntropySearch
from plr_dspy.slots import ProgramSlots, add_labelled_demos
from plr_dspy.splits import Splits, make_splits
from plr_dspy.stopping import Converged, Patience, Stopper, TargetScore
from plr_dspy.updates import UpdateRule


@dataclass(frozen=True)
class Options:
    """What decides the result of a compile, beside the program and the data.

    Attributes:
        metric: Scores a prediction.
        update: The update rule.
        auto: "light", "medium", "heavy" or "paper".
        overrides: What the user fixed of the plan.
        num_demos: Labelled demos for a student that has none.
        stop_at_score, patience, stop_at_mode_probability: What ends the search early; None does not.
        seed: Of everything random.
    """

    metric: Metric
    update: UpdateRule
    auto: str
    overrides: Overrides
    num_demos: int | None
    stop_at_score: float | None
    patience: int | None
    stop_at_mode_probability: float | None
    seed: int

    @property
    def stoppers(self) -> list[Stopper]:
        """What ends the search early."""
        stoppers: list[Stopper] = []
        if self.stop_at_score is not None:
            stoppers.append(TargetScore(self.stop_at_score))
        if self.patience is not None:
            stoppers.append(Patience(self.patience))
        if self.stop_at_mode_probability is not None:
            stoppers.append(Converged(self.stop_at_mode_probability))
        return stoppers

    def arguments(self) -> dict[str, Any]:
        """The user's arguments as plain data."""
        return {
            "auto": self.auto,
            "update": {"name": self.update.name, **_parameters(self.update)},
            **asdict(self.overrides),
            "stop_at_score": self.stop_at_score,
            "patience": self.patience,
            "stop_at_mode_probability": self.stop_at_mode_probability,
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
    """

    options: Options
    program: dspy.Module
    slots: ProgramSlots
    splits: Splits
    plan: Plan

    def new_search(self) -> CrossEntropySearch:
        """The search that the plan asks for."""
        return new_search(
            self.plan,
            self.slots.space,
            update=self.options.update,
            seed=self.options.seed,
            classes=self.slots.classes,
            example_classes=self.splits.classes,
        )

    def new_scorer(
        self,
        *,
        num_threads: int | None,
        max_errors: int | None,
        on_cell: Callable[[], None],
        interrupted: threading.Event,
        ledger: Ledger,
    ) -> CellScorer:
        """The scorer of the program's orderings, on the train split followed by the selection split."""
        return program_scorer(
            self.program,
            self.slots,
            metric=self.options.metric,
            examples=[*self.splits.train, *self.splits.selection],
            names=self.splits.names,
            num_threads=num_threads,
            max_errors=max_errors,
            max_metric_calls=self.plan.call_limit,
            on_cell=on_cell,
            interrupted=interrupted,
            ledger=ledger,
        )

    def settings(self) -> dict[str, Any]:
        """Everything that decides the result, as plain data."""
        predictors = self.program.predictors()
        return {
            **self.options.arguments(),
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
    valset = [] if valset is None else valset
    check_student(student)
    check_examples("trainset", trainset)
    check_examples("valset", valset)
    check_language_model(student)
    check_demos(student)
    check_fields(student, trainset=trainset, valset=valset)
    rng = random.Random(options.seed)
    program = ProgramFactory(student).build({})
    if options.num_demos is not None:
        add_labelled_demos(program, trainset, options.num_demos, rng)
    demos = [demo for predictor in program.predictors() for demo in predictor.demos]
    if not demos:
        raise ValueError(
            "student has no demos to order: compile it first with an optimizer that chooses demos, such as "
            "dspy.LabeledFewShot or dspy.BootstrapFewShot, or pass num_demos to PLReorder"
        )
    slots = ProgramSlots(program)
    splits = make_splits(trainset, valset, demos, rng, balanced=options.auto != "paper")
    if slots.space.num_distinct < 2:
        return Job(options, program, slots, splits, NOTHING_TO_DO)
    check_splits(splits, num_trainset=len(trainset), num_valset=len(valset))
    plan = make_plan(
        options.auto,
        options.overrides,
        num_train=len(splits.train),
        num_selection=len(splits.selection),
        num_distinct=slots.space.num_distinct,
    )
    return Job(options, program, slots, splits, plan)


def _parameters(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as plain data; those of other objects are not known."""
    plain = (bool, int, float, str, type(None))
    parameters = {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else {}
    return {name: v if isinstance(v, plain) else repr(v) for name, v in parameters.items()}
