"""What all optimizers of demos share: one compile from the arguments to the report."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import dspy
import torch
from pydantic import Field
from tqdm import tqdm

from plr_dspy.compilation.choice import Outcome
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
from plr_dspy.retrieval.predict import CalledBlindly
from plr_dspy.runtime import interrupts, progress_bar
from plr_dspy.scoring.run_log import RunLog, open_log
from plr_dspy.scoring.scorer import CellScorer
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
    scorer: CellScorer
    bar: tqdm
    responses: LabelResponses | None = None  # what the search learns from calls beside scores


@arguments
class DemoOptimizer(Checked, Teleprompter, ABC):
    """What all optimizers of demos share: checks, budget, log, progress, errors and report.

    Subclasses have a `plan`, mostly a `search`, and override what else differs. Arguments are as in `PLReorder`.

    Attributes:
        chooses_by_score: Whether the metric decides; then a student without demos is a candidate as it is.
        chooses_demos: Whether programs are accepted that find their demos for each input.
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
    chooses_demos: ClassVar[bool] = False
    signal: ClassVar[Any] = "auto"
    calibrate: ClassVar[Any] = False
    min_probability: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        self.report: Report | None = None
        self.best_program: dspy.Module | None = None
        self.check_together()

    @abstractmethod
    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        """Lay out a compile of this size; a ValueError says that the budget is too small."""

    def search(self, setup: CompileSetup, responses: LabelResponses | None = None) -> Search:
        """Make the search of a compile: of random orders, the program's own first, unless a subclass has another."""
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
        """Raise a ValueError with the reason and the cure, unless the optimizer can order this program's demos."""

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: Any = None,
        valset: list[dspy.Example] | None = None,
        seed: int | None = None,
    ) -> dspy.Module:
        """Search for the best order of the student's demos; `PLFewShot` searches for which demos to show, too.

        Args:
            student: A program with demos, for `PLFewShot` with or without any; it is not changed.
            trainset: Examples that score candidates. Those that the demos show are left out. `PLFewShot` makes demos
                of some, which score nothing.
            teacher: A program whose right answers make demos for `PLFewShot`, or a list that begins with one; None
                takes the student. Other optimizers ignore it.
            valset: Examples of the final comparison, if the budget affords them; None or empty takes 20 % of the
                trainset.
            seed: Instead of the constructor's.

        Returns:
            A compiled copy that differs from the student in its demos or their order, with the report as plain data at
            ``reorder_report``, and what was compared at ``candidate_programs``: dicts with "score", "program", "origin"
            and "ordering", the chosen one first. A student's own attribute ``candidate_programs`` stays instead.

        Raises:
            TypeError, ValueError: If an argument is bad, before any program call; or, with `max_cost`, if a call has
                used a model without a price.
            RuntimeError: If another compile is using `log_dir`, too few examples run for any order, or hardly any of
                the first answers can be read.
            Exception: Of the program or the metric, see `max_errors`; or if needed log-probabilities do not come.
        """
        started = time.monotonic()
        self.report = self.best_program = None
        prepared = self._prepare(student, trainset, valset, seed=seed, teacher=teacher)
        with self._open(prepared, started) as opened:
            log = opened.scorer.log
            run: CompileRun | None = None
            outcome: Outcome | None = None
            try:
                if opened.setup.findable and log.header is not None and log.header.fixed_only:
                    opened = self._without_retrieval(opened, CalledBlindly())
                try:
                    opened = self._probed(opened)
                    run = self._make_run(opened)
                    outcome = run.run()
                except CalledBlindly as error:
                    run = None  # Its demos are found for each input.
                    opened = self._without_retrieval(opened, error)
                    _note_fixed_only(log)
                    opened = self._probed(opened)
                    run = self._make_run(opened)
                    outcome = run.run()
                return self._conclude(opened, run, outcome, started=started)
            except BaseException as error:  # It may be an interrupt while the report was made.
                log.stop()  # Calls that are still under way come too late.
                run = run or self._make_run(replace(opened, responses=None))
                self._conclude(opened, run, outcome or run.unfinished(error), started=started)
                raise

    def estimate(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: Any = None,
        valset: list[dspy.Example] | None = None,
        seed: int | None = None,
    ) -> Estimate:
        """Say what `compile` with these arguments would cost; no program call is made.

        Prompts of `PLFewShot` are taken to show half as many demos as they may.

        Raises:
            TypeError, ValueError: for bad arguments, as `compile` does.
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
        teacher: Any = None,
    ) -> CompileSetup:
        """Check the arguments of a compile, and lay it out; no program call is made."""
        self.check_together()  # They may have been set since.
        options = self._options()
        valset = valset or []
        seed = self._seed(seed)
        rng = random.Random(seed)
        program, calibrated_student = checked_copy(options, student, trainset, valset)
        self.check(program, trainset)
        setup = make_setup(
            options,
            self._choices(program, trainset, valset, rng, teacher),
            seed=seed,
            trainset=trainset,
            valset=valset,
            calibrated_student=calibrated_student,
            rng=rng,
        )
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
        return CompileOptions(
            metric=self.metric,
            method=self.name,
            student_name=self.student_name,
            trainset_name=self.trainset_name,
            scored_on=self.scored_on,
            chooses_by_score=self.chooses_by_score,
            chooses_demos=self.chooses_demos,
            balances_splits=getattr(self, "auto", None) != "paper",  # The paper shuffles, no more.
            calibrate=self.calibrate,
            max_metric_calls=self.max_metric_calls,
            max_seconds=self.max_seconds,
            max_cost=self.max_cost,
            # Users' subclasses may have `get_params` of their own, with values that are never the same.
            arguments=plain_arguments(Checked.get_params(self)),
        )

    def _with_plan(self, setup: CompileSetup, signal: str = "score") -> CompileSetup:
        """Return a setup with the plan for what its calls tell."""
        return setup.with_plan(self.plan(setup.size, signal=signal))

    def _choices(
        self, program: dspy.Module, trainset: Examples, valset: Examples, rng: random.Random, teacher: Any
    ) -> DemoChoices:
        """Return what can be ordered or chosen."""
        added = add_labelled_demos(program, trainset, self.num_demos, rng) if self.num_demos else []
        slots = ProgramSlots(program)
        if not slots.slots:
            why = ""
            adding = "pass num_demos=8, which adds labelled ones, or "
            if self.get_params().get("num_demos", 0) is not None:
                adding = ""
            if self.num_demos and len(trainset) < 3:
                why = ", and trainset is too small to take some from"
                adding = "pass 100 examples or more, or "
            elif self.num_demos:
                why = ", and no prompt of it shows the fields of the examples"
            raise UserError(
                f"{self.student_name} has no demos to order{why}: {adding}compile it first with "
                "dspy.BootstrapFewShot or PLFewShot, which make demos of its own answers"
            )
        original = WITHOUT_DEMOS if added and self.chooses_by_score else slots.space.identity
        return DemoChoices(program=program, slots=slots, original=original)

    def _probed(self, opened: OpenCompile) -> OpenCompile:
        """Return the compile once it is known what its search learns from."""
        responses = self._probe(opened.setup, opened.work, opened.scorer)
        if responses is None:
            return opened
        setup = self._with_plan(opened.setup, signal="logprobs")
        return replace(opened, setup=setup, responses=responses)

    def _without_retrieval(self, opened: OpenCompile, error: CalledBlindly) -> OpenCompile:
        """Return a compile whose demos are not found for each input; raise the error if there is none."""
        raise error

    def _make_demos(self, setup: CompileSetup, evaluator: Callable[..., ProgramEvaluator]) -> CompileSetup:
        """Make the demos that calls make before the search, by an evaluator of them; return the setup with them."""
        return setup

    def _probe(self, setup: CompileSetup, work: MetricWork, scorer: CellScorer) -> LabelResponses | None:
        """Return what the search learns from calls beside scores, after a first one where that is needed to tell."""
        return None

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
            bootstrapped = [attempt.key for attempt in setup.attempts]
            scorer = CellScorer(payer, bootstrapped=bootstrapped, influence=work.influence)
            yield OpenCompile(setup, work, scorer, bar)

    def _identity(self, setup: CompileSetup) -> dict[str, Any]:
        """Collect what decides the scores of a compile: the program, its models, the metric, the examples."""
        settings = setup.settings()
        adapter = dspy.settings.adapter or dspy.ChatAdapter()
        return {
            "models": settings["models"],
            "adapter": settings["adapter"],
            "the calibration of student": setup.calibrated_student and digest(setup.calibrated_student.calibration),
            "calibrate": self.calibrate is not False,
            "signal": "score" if self.signal == "score" else "auto",  # "logprobs" asks for the same
            **describe(setup.program, self.metric, setup.models, adapter),
            "the examples": digest(sorted(map(digest, setup.examples))),
        }

    def _examples(self, setup: CompileSetup, work: MetricWork) -> tuple[list[str], list[str]]:
        """What messages call the examples that cells name by number, and what the log calls them."""
        return setup.splits.names, [digest(each) for each in setup.scored_examples]

    def _make_run(self, opened: OpenCompile) -> CompileRun:
        """Make the run of a compile, once it is known what its search learns from."""
        setup = opened.setup
        return CompileRun(
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
            on_round=lambda last: opened.bar.set_postfix_str(
                f"round {last.index + 1}, mean score {last.mean_score:.3f}"
            ),
        )

    def _conclude(self, opened: OpenCompile, run: CompileRun, outcome: Outcome, *, started: float) -> dspy.Module:
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
            run.scorer,
            finished,
            yardsticks(setup, run, decision),
            names=names,
            signal=work.signal,
            seconds=time.monotonic() - started,
        )
        program.reorder_report = report.to_dict()
        if not hasattr(program, "candidate_programs"):  # An attribute of the user's own stays.
            chosen = None if decision.chosen is None else decision.candidates[decision.chosen]
            best_first = sorted(decision.candidates, key=lambda e: (e is not chosen, -e.gain.expected, -e.score))
            program.candidate_programs = [
                {
                    "score": each.score,
                    "program": program_in(each.ordering, each.offsets),
                    "origin": each.origin,
                    "ordering": setup.slots.shown(each.ordering),
                }
                for each in best_first
            ]
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


def _note_fixed_only(log: RunLog) -> None:
    """Note in the log's header that the program cannot be shown demos found for each input.

    The calls that told it are none of this run, as they are none of a run that knows it from the beginning.
    """
    log.leave_out(CalledBlindly.__name__)
    if log.header is not None:
        log.write_header(replace(log.header, fixed_only=True))


def _program_as_scored(
    setup: CompileSetup,
    work: MetricWork,
    shares: Sequence[float],
    ordering: Ordering | WholeProgram,
    offsets: Sequence[float],
) -> dspy.Module:
    """Make the program in an order, calibrated by the offsets that it was scored with; without any, as it came."""
    program = setup.slots.build(ordering)
    record_settings(program)
    if offsets:
        assert isinstance(work, LabelWork)
        kind, number = "batch" if shares else "none", len(setup.scored_examples)
        found = Calibration(kind, tuple(work.output.labels), tuple(offsets), num_inputs=number, shares=tuple(shares))
        program = CalibratedProgram(program, found, predictor=work.output.predictor).bound()
    elif (student := setup.calibrated_student) is not None:
        program = CalibratedProgram(program, student.calibration, predictor=student.predictor)
    elif isinstance(program, CalibratedProgram):
        program.bound()
    set_compiled(program, True)
    return program
