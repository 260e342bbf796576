"""What all optimizers of demos share: one compile from the arguments to the report."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import dspy
import torch
from pydantic import Field

from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.paper import PaperRun
from plr_dspy.compilation.plan import Plan, ProblemSize
from plr_dspy.compilation.run import CompileRun
from plr_dspy.dspy_compat import Teleprompter, set_compiled
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram, Calibration
from plr_dspy.labels.work import LabelWork
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.optimizer.estimate import Estimate, estimate_cost, make_budget
from plr_dspy.optimizer.report_builder import FinishedProgram, build_report
from plr_dspy.optimizer.setup import (
    CompileOptions,
    CompileSetup,
    DemoChoices,
    Teacher,
    checked_copy,
    make_setup,
    plain_arguments,
)
from plr_dspy.optimizer.yardsticks import yardsticks
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator, adapter_advice
from plr_dspy.programs.checks import AnyMetric, Checked, Count, Flag, Folder, Positive, WholeNumber, arguments
from plr_dspy.programs.fingerprint import describe, digest
from plr_dspy.programs.made_with import record_settings
from plr_dspy.programs.slots import ProgramSlots, add_labelled_demos
from plr_dspy.programs.splits import Examples
from plr_dspy.programs.value_classes import value_classes
from plr_dspy.report.report import Report
from plr_dspy.report.text import result
from plr_dspy.runtime import interrupts, progress_bar
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import open_log
from plr_dspy.scoring.values import ValueCodec
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.search import RandomSearch, Search
from plr_dspy.search.space import WITHOUT_DEMOS, Ordering, WholeProgram

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenCompile:
    """A compile that can make calls."""

    setup: CompileSetup
    work: MetricWork  # makes a program call
    scorer: Evaluator
    responses: LabelResponses | None = None  # what the search learns from calls beside scores


@arguments
class DemoOptimizer(Checked, Teleprompter, ABC):
    """What all optimizers of demos share: checks, budget, log, progress, errors and report.

    Subclasses have a `plan`, mostly a `search`, and override what else differs. Arguments are as in `PLReorder`.

    Attributes:
        chooses_by_score: Whether the metric decides; then a student without demos is a candidate as it is.
        balances_splits: Whether both splits get equal shares of each class.
    """

    metric: AnyMetric = field(kw_only=False)
    max_metric_calls: Count | None = None
    max_seconds: Positive | None = None
    max_cost: Positive | None = None
    num_demos: Annotated[WholeNumber, Field(ge=2)] | None = 8
    log_dir: Folder | None = None
    accept_changes: Flag = False

    name: ClassVar[str]
    student_name: ClassVar[str] = "student"
    trainset_name: ClassVar[str] = "trainset"
    scored_on: ClassVar[str] = "train examples"
    chooses_by_score: ClassVar[bool] = True
    signal: ClassVar[str] = "auto"
    calibrate: ClassVar[Any] = False
    min_probability: ClassVar[float | None] = None

    @property
    def balances_splits(self) -> bool:
        return True

    def __post_init__(self) -> None:
        self.report: Report | None = None
        self.best_program: dspy.Module | None = None
        self.check_together()

    @abstractmethod
    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        """Lay out a compile of this size; a ValueError says that the budget is too small."""

    def search(self, setup: CompileSetup, responses: LabelResponses | None = None) -> Search:
        """Make the search of a compile; it asks for random orders unless a subclass has another."""
        return RandomSearch(
            setup.slots.space, num_orderings=setup.plan.num_initial, num_samples=setup.plan.num_samples, seed=setup.seed
        )

    def work(self, setup: CompileSetup) -> MetricWork:
        """Return what makes a program call; it knows what the search learns from it."""
        labels: list[str] = []
        if isinstance(self.metric, SetMetric):
            labels = self.metric.output_labels(setup.program, setup.scored_examples)
        return MetricWork(self.metric, setup.scored_examples, labels)

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise a ValueError unless the optimizer can order this program's demos."""

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: Teacher = None,
        valset: list[dspy.Example] | None = None,
        seed: int | None = None,
    ) -> dspy.Module:
        """Search for the best order of the student's demos; `PLFewShot` also for those to show.

        Args:
            student: The program; it is not changed.
            trainset: Examples that score candidates. `PLFewShot` makes demos of some, which score nothing.
            teacher: A program whose right answers make demos for `PLFewShot`, or a list that begins with one; None
                takes the student.
            valset: Examples of the final comparison; None or empty takes 20 % of the trainset.
            seed: Instead of the constructor's.

        Returns:
            A compiled copy, with the report as plain data at ``reorder_report``.

        Raises:
            TypeError, ValueError: If an argument is bad, before any program call.
            RuntimeError: If another compile is using `log_dir`, or hardly any answer can be read.
            Exception: Of the program or the metric, see `max_errors`.
        """
        started = time.monotonic()
        self.report = self.best_program = None
        setup = self._prepare(student, trainset, valset, seed=seed, teacher=teacher)
        with self._open(setup, started) as opened:
            return self._run(opened, started)

    def estimate(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: Teacher = None,
        valset: list[dspy.Example] | None = None,
        seed: int | None = None,
    ) -> Estimate:
        """Say what `compile` with these arguments would cost; no program call is made.

        Prompts of `PLFewShot` are taken to show half as many demos as they may.

        Raises:
            TypeError, ValueError: For bad arguments, as `compile` does.
        """
        setup = self._prepare(student, trainset, valset, seed=seed, teacher=teacher)
        make_budget(setup)
        return estimate_cost(setup)

    def _prepare(
        self,
        student: dspy.Module,
        trainset: Examples,
        valset: Examples | None,
        *,
        seed: int | None = None,
        teacher: Teacher = None,
    ) -> CompileSetup:
        """Check the arguments of a compile, and lay it out; no program call is made."""
        self.check_together()  # They may have been set since.
        options = self._options()
        valset = valset or []
        seed = self._seed(seed)
        rng = random.Random(seed)
        program = checked_copy(options, student, trainset, valset)
        self.check(program, trainset)
        choices = self._choices(program, trainset, valset, rng, teacher)
        setup = make_setup(options, choices, seed=seed, trainset=trainset, valset=valset, rng=rng)
        if not setup.needs_calls:
            return setup
        setup = self._with_plan(setup)
        if isinstance(self.metric, SetMetric):
            parts = [setup.scored_examples]
            if setup.plan.num_selection_examples:
                parts = [setup.splits.train, setup.splits.selection]
            self.metric.check(*parts)
        return setup

    def _options(self) -> CompileOptions:
        """Return what compiles read of this optimizer."""
        # Users' subclasses may have `get_params` of their own, with values that are never the same.
        options: dict[str, Any] = {"arguments": plain_arguments(Checked.get_params(self))}
        for option in fields(CompileOptions):
            if hasattr(self, option.name):
                options[option.name] = getattr(self, option.name)
        return CompileOptions(**options)

    def _with_plan(self, setup: CompileSetup, signal: str = "score") -> CompileSetup:
        """Return a setup with the plan for what its calls tell."""
        return setup.with_plan(self.plan(setup.size, signal=signal))

    def _choices(
        self, program: dspy.Module, trainset: Examples, valset: Examples, rng: random.Random, teacher: Teacher
    ) -> DemoChoices:
        """Return what can be ordered or chosen."""
        added = add_labelled_demos(program, trainset, self.num_demos, rng) if self.num_demos else []
        slots = ProgramSlots(program)
        if not slots.slots:
            raise UserError(
                f"{self.student_name} has no demos to order, and none were added (num_demos={self.num_demos}; its "
                "prompts must show the fields of the examples, of which there must be more than 2): compile it first "
                "with dspy.BootstrapFewShot or PLFewShot"
            )
        original = WITHOUT_DEMOS if added and self.chooses_by_score else slots.space.identity
        return DemoChoices(program=program, slots=slots, original=original)

    @contextlib.contextmanager
    def _open(self, setup: CompileSetup, started: float | None = None) -> Iterator[OpenCompile]:
        """Open what a compile needs to make calls, and close it at the end; yield it when all demos are made."""
        folder = None if self.log_dir is None else Path(self.log_dir)
        with (
            torch.device("cpu"),  # wherever the caller's own tensors go
            open_log(
                folder,
                partial(self._identity, setup),
                accept_changes=self.accept_changes,
                codec=lambda: ValueCodec(value_classes(setup.program)),
            ) as log,
            progress_bar(
                setup.plan.program_calls,
                display=self.display_progress,
                title=self.name,
                at_end=lambda: logger.info("%s", result(self.report)) if self.report else None,
            ) as bar,
            interrupts() as interrupted,
        ):
            evaluator = partial(
                ProgramEvaluator,
                log=log,
                max_errors=self.max_errors,
                on_cell=lambda: bar.update(log.num_calls - bar.n),
                budget=make_budget(setup, log, started),
                interrupted=interrupted,
            )
            if setup.attempts:
                setup = self._make_demos(setup, evaluator)
            work = self.work(setup)
            names, keys = self._examples(setup, work)
            log.number_examples(keys)
            payer = evaluator(setup.slots, work, names=names, num_threads=self.num_threads)
            yield OpenCompile(setup, work, scorer_of(setup, work, payer))

    def _make_demos(self, setup: CompileSetup, evaluator: Callable[..., ProgramEvaluator]) -> CompileSetup:
        """Make the demos that calls make before the search; return the setup with them."""
        return setup

    def _identity(self, setup: CompileSetup) -> dict[str, Any]:
        """Collect what decides the scores of a compile: the program, its models, the metric, the examples."""
        settings = setup.settings()
        adapter = dspy.settings.adapter or dspy.ChatAdapter()
        return {
            "models": settings["models"],
            "adapter": settings["adapter"],
            "calibrate": self.calibrate is not False,
            "signal": "score" if self.signal == "score" else "auto",  # "logprobs" asks for the same
            **describe(setup.program, self.metric, setup.models, adapter),
            "the examples": digest(sorted(map(digest, setup.examples))),
        }

    def _examples(self, setup: CompileSetup, work: MetricWork) -> tuple[list[str], list[str]]:
        """Return what messages call the examples that records name by number, and what the log calls them."""
        return setup.splits.names, [digest(example) for example in setup.scored_examples]

    def _run(self, opened: OpenCompile, started: float) -> dspy.Module:
        """Search, and conclude by what is known when it ends, be it by an error."""
        run: CompileRun | None = None
        outcome: Outcome | None = None
        try:
            responses = self._probe(opened)
            if responses is not None:
                setup = self._with_plan(opened.setup, signal="logprobs")
                opened = replace(opened, setup=setup, responses=responses)
            run = self._make_run(opened)
            outcome = run.run()
            return self._conclude(opened, run, outcome, started)
        except BaseException as error:  # It may be an interrupt while the report was made.
            opened.scorer.log.stop()  # Calls that are still under way come too late.
            run = run or self._make_run(replace(opened, responses=None))
            self._conclude(opened, run, outcome or run.unfinished(error), started)
            raise

    def _probe(self, opened: OpenCompile) -> LabelResponses | None:
        """Return what the search learns from calls beside scores, after a first one where that is needed to tell."""
        return None

    def _make_run(self, opened: OpenCompile) -> CompileRun:
        """Make the run of a compile, once it is known what its search learns from."""
        setup = opened.setup
        kind = CompileRun if setup.plan.racing else PaperRun
        return kind(
            self.search(setup, opened.responses),
            opened.scorer,
            plan=setup.plan,
            num_train=len(setup.splits.train),
            original=setup.original,
            sample=lambda: opened.work.sample,
            advice=adapter_advice(),
            min_probability=self.min_probability,
            stop_at_score=getattr(self, "stop_at_score", None),
            patience=getattr(self, "patience", None),
            shifted=opened.responses is not None,
        )

    def _conclude(self, opened: OpenCompile, run: CompileRun, outcome: Outcome, started: float) -> dspy.Module:
        """Set `report` and `best_program`, write the report to `log_dir`, and return the program."""
        setup = opened.setup
        work = opened.work
        decision = outcome.decision
        shares = () if decision.calibration is None else decision.calibration.shares
        program_in = partial(_program_as_scored, setup, work, shares)
        finished = self._finish(setup, run, outcome, program_in)
        program = finished.program
        names, _ = self._examples(setup, work)
        self.report = report = build_report(
            setup,
            outcome,
            run.evaluator,
            finished,
            yardsticks(setup, run, decision),
            names=names,
            signal=work.signal,
            seconds=time.monotonic() - started,
        )
        program.reorder_report = report.to_dict()
        self.best_program = program
        if self.log_dir is not None:
            try:
                report.save(Path(self.log_dir) / "report.json")
            except OSError as error:  # what was paid for must not be lost to a full disk
                logger.warning("the report could not be written to %s: %s", self.log_dir, error)
        return program

    def _finish(
        self, setup: CompileSetup, run: CompileRun, outcome: Outcome, program_in: Callable[..., dspy.Module]
    ) -> FinishedProgram:
        """Make what the compile returns; `program_in` makes a program as scored."""
        return FinishedProgram(program_in(outcome.decision.ordering, outcome.decision.offsets))


def scorer_of(setup: CompileSetup, work: MetricWork, payer: ProgramEvaluator) -> Evaluator:
    """Return the scorer of a compile by what makes its calls."""
    bootstrapped = [attempt.key for attempt in setup.attempts]
    return Evaluator(payer, bootstrapped=bootstrapped, influence=work.influence)


def _program_as_scored(
    setup: CompileSetup,
    work: MetricWork,
    shares: Sequence[float],
    ordering: Ordering | WholeProgram,
    offsets: Sequence[float],
) -> dspy.Module:
    """Make the program in an order, calibrated by the offsets that it was scored with, if any."""
    program = setup.slots.build(ordering)
    record_settings(program)
    if offsets:
        assert isinstance(work, LabelWork)
        calibration = Calibration(
            "batch" if shares else "none",
            tuple(work.output.labels),
            tuple(offsets),
            num_inputs=len(setup.scored_examples),
            shares=tuple(shares),
        )
        program = CalibratedProgram(program, calibration, predictor=work.output.predictor)
    set_compiled(program, True)
    return program
