"""The function `choose_program`: it races several programs and chooses the best."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import dspy

from plr_dspy.compiling.choice import Outcome
from plr_dspy.compiling.elimination import EliminationRun, calls_per_program
from plr_dspy.compiling.plan import MAX_ROUNDS, MIN_EXAMPLES, Plan, ProblemSize
from plr_dspy.compiling.run import CompileRun
from plr_dspy.data.examples import Rows
from plr_dspy.errors import UserError
from plr_dspy.metrics.by_example import Metric
from plr_dspy.optimizer.base import DemoOptimizer
from plr_dspy.optimizer.estimate import Estimate, estimate_cost
from plr_dspy.optimizer.report_builder import FinishedProgram
from plr_dspy.optimizer.setup import CompileSetup, DemoChoices, Teacher
from plr_dspy.programs.checks import Probability, arguments
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.rivals import Rival, named_programs
from plr_dspy.programs.slots import WholeProgramSlots
from plr_dspy.programs.splits import Examples
from plr_dspy.report.report import Report
from plr_dspy.search.elimination import EliminationSearch
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.search import Search


class ProgramChoice(NamedTuple):
    """The result of `choose_program`. Its string form is the text of the report.

    Attributes:
        program: A copy of the chosen program. Its attribute ``reorder_report`` contains the
            report as plain data. Its attribute ``detailed_results`` lists the programs that
            finished the race, unless it is the user's own attribute.
        name: The chosen program's name.
        report: The `Report` on the race. ``report.programs`` lists the expected scores of all
            scored programs.
    """

    program: dspy.Module
    name: str
    report: Report

    def __str__(self) -> str:
        return str(self.report)


@arguments
class ProgramRace(DemoOptimizer):
    """The optimizer that races whole programs for `choose_program`."""

    name = "choose_program"
    student_name: ClassVar[str] = "the first program"
    orders_demos: ClassVar[bool] = False
    takes_programs: ClassVar[bool] = True
    signal: ClassVar[str] = "score"
    num_demos: ClassVar[None] = None  # type: ignore[misc]
    min_probability: Probability | None = None  # type: ignore[misc]

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        num_programs = size.num_distinct
        num_examples = size.num_train + size.num_selection
        max_calls = num_programs * num_examples
        min_calls = num_programs * MIN_EXAMPLES
        if self.max_metric_calls is not None and self.max_metric_calls < min_calls:
            raise UserError(
                f"max_metric_calls must be at least {min_calls} for {num_programs} programs; got "
                f"{self.max_metric_calls}: increase max_metric_calls, or pass fewer programs"
            )
        budget = min(self.max_metric_calls or max_calls, max_calls)
        return Plan(
            num_iterations=MAX_ROUNDS,
            num_samples=num_programs,
            num_best_seen=num_programs - 1,
            num_train_examples=num_examples,
            max_metric_calls=budget,
            race_calls=budget,
        )

    def search(self, setup: CompileSetup, responses: LabelResponses | None = None) -> Search:
        slots = setup.slots
        assert isinstance(slots, WholeProgramSlots)
        return EliminationSearch(slots.space, slots.original)

    def choose(
        self,
        programs: Mapping[str, dspy.Module],
        trainset: Rows,
        valset: Rows | None,
        inputs: Sequence[str] | None,
    ) -> ProgramChoice:
        """Race the programs, and return the chosen program, its name and the report."""
        first, others = self._first_and_others(programs)
        program = self.compile(first, trainset=trainset, valset=valset, programs=others, inputs=inputs)
        assert self.report is not None
        return ProgramChoice(program, self.report.returned.name, self.report)

    def estimate_choice(
        self,
        programs: Mapping[str, dspy.Module],
        trainset: Rows,
        valset: Rows | None,
        inputs: Sequence[str] | None,
    ) -> Estimate:
        """Return an upper estimate of the cost of `choose`."""
        first, others = self._first_and_others(programs)
        setup = self._prepare(first, trainset, valset, programs=others, inputs=inputs)
        self._check_before_calls(setup)
        candidates = setup.slots.competing
        limits = calls_per_program(setup.plan.program_calls, len(candidates), len(setup.scored_examples))
        return estimate_cost(setup, dict.fromkeys(candidates, limits))

    def _first_and_others(
        self, programs: Mapping[str, dspy.Module]
    ) -> tuple[dspy.Module, dict[str, dspy.Module]]:
        """Return the first program and a dict of the other programs.

        Also store the first program's name for messages and the report.
        """
        (name, first), *others = programs.items()
        self.rival_name = name  # type: ignore[misc]
        self.student_name = f"programs[{name!r}]"  # type: ignore[misc]
        return first, dict(others)

    def _choices(
        self,
        program: dspy.Module,
        trainset: Examples,
        valset: Examples,
        rng: random.Random,
        teacher: Teacher,
    ) -> DemoChoices:
        slots = WholeProgramSlots([Rival(self.rival_name, program), *self._rivals])
        return DemoChoices(program=program, slots=slots, original=slots.original)

    def _with_plan(self, setup: CompileSetup, signal: str = "score") -> CompileSetup:
        """Return the setup with a plan and with all examples in one split.

        A race holds out no examples for its final comparison.
        """
        splits = setup.splits
        # Order the examples by hash. A later race on a subset of them then scores the subset in the
        # same order.
        order = sorted(
            zip(setup.scored_examples, splits.names, strict=True), key=partial(_hash_of, setup.seed)
        )
        examples, names = zip(*order, strict=True)
        single_split = replace(splits, train=list(examples), selection=[], names=list(names))
        return super()._with_plan(replace(setup, splits=single_split), signal)

    def _identity(self, setup: CompileSetup) -> dict[str, Any]:
        """Return a description of everything that determines the scores, except the programs.

        The keys of logged calls identify the programs, so races of different programs can share
        a log.
        """
        identity = super()._identity(setup)
        names = ("adapter", "calibrate", "signal", "the metric", "the adapter", "the examples")
        return {**{name: identity[name] for name in names}, "the model": digest(dspy.settings.lm)}

    def _run_kind(self, plan: Plan) -> type[CompileRun]:
        return EliminationRun

    def _finish(
        self,
        setup: CompileSetup,
        run: CompileRun,
        outcome: Outcome,
        build_program: Callable[..., dspy.Module],
    ) -> FinishedProgram:
        program = setup.slots.build(outcome.decision.candidate)
        return FinishedProgram(program, programs=self._program_scores(setup, run, outcome))


def _hash_of(seed: int, named_example: tuple[dspy.Example, str]) -> str:
    """Return a hash of the seed and the example's content, without the example's name."""
    example, _ = named_example
    return hashlib.sha256(f"{seed} {digest(example)}".encode()).hexdigest()


def choose_program(
    programs: Mapping[str, dspy.Module] | Sequence[dspy.Module],
    metric: Metric,
    trainset: Rows,
    *,
    valset: Rows | None = None,
    inputs: Sequence[str] | None = None,
    max_metric_calls: int | None = None,
    max_cost: float | None = None,
    max_seconds: float | None = None,
    min_probability: float | None = None,
    num_threads: int | None = None,
    max_errors: int | None = None,
    seed: int = 0,
    log_dir: str | Path | None = None,
    accept_changes: bool = False,
    display_progress: bool = True,
) -> ProgramChoice:
    """Choose the best of several programs in a race, with about half the calls of a full comparison.

    The first program is the baseline. By default, another program replaces it only if a gain is at
    least 1.5 times as likely as a loss. A program drops out once further examples are unlikely to
    make it the winner. While all results are equal, no program drops out before 59 examples are scored,
    or 40% of all examples if that is fewer. Identical programs are scored only once. Programs may
    differ in modules, signatures and models.

    Args:
        programs: At least two programs, as a dict from names to programs or as a list. Programs
            in a list are named "program 1", "program 2" and so on. No program is modified.
        metric: As in `PLReorder`.
        trainset: Examples to score the programs on. Examples that a program shows as demos are
            ignored. Do not pass examples that an optimizer has used, because they favor that
            optimizer's programs.
        valset: More examples, used like those of `trainset`.
        inputs: As in `PLReorder.compile`; None infers the inputs from the first program.
        max_metric_calls: Maximum number of program calls. None allows enough calls to score all
            programs on all examples.
        max_cost, max_seconds, min_probability, num_threads, max_errors, seed, accept_changes,
            display_progress: As in `PLReorder`.
        log_dir: As in `PLReorder`. A later race with more programs can reuse the logged calls.

    Returns:
        A copy of the chosen program, its name, and the report.

    Raises:
        TypeError, ValueError: If an argument is invalid. No program calls are made.
        RuntimeError: If another process is using `log_dir`, or if almost no answers can be
            parsed.
        Exception: If too many program calls fail, as in `PLReorder.compile`.
    """
    options = {
        name: value
        for name, value in locals().items()
        if name not in ("programs", "trainset", "valset", "inputs")
    }
    return ProgramRace(**options).choose(named_programs(programs, min_number=2), trainset, valset, inputs)
