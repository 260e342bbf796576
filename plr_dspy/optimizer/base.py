"""The base class of the optimizers, with the methods `compile` and `estimate`."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from plr_dspy.compiling.choice import Outcome
from plr_dspy.compiling.paper import PaperRun
from plr_dspy.compiling.plan import Plan, ProblemSize
from plr_dspy.compiling.rounds import MinExamples
from plr_dspy.compiling.run import CompileRun
from plr_dspy.data.examples import Rows, as_examples
from plr_dspy.dspy_compat import Teleprompter, call_back, current_adapter, set_compiled
from plr_dspy.errors import UserError
from plr_dspy.optimizer.detailed_results import detailed_results
from plr_dspy.optimizer.estimate import Estimate, check_prices, estimate_cost, make_budget
from plr_dspy.optimizer.expected_scores import expected_scores, fitted_model, program_scores
from plr_dspy.optimizer.opening import OpenCompile, open_calls
from plr_dspy.optimizer.report_builder import FinishedProgram, build_report
from plr_dspy.optimizer.setup import (
    CompileOptions,
    CompileSetup,
    DemoChoices,
    Teacher,
    check_metric,
    checked_rivals,
    checked_student,
    make_setup,
)
from plr_dspy.optimizer.windows import window_warning
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator, adapter_advice
from plr_dspy.programs.checks import (
    AnyMetric,
    Checked,
    Count,
    Flag,
    Folder,
    Positive,
    WholeNumber,
    arguments,
    check_module,
)
from plr_dspy.programs.fingerprint import describe, digest
from plr_dspy.programs.hidden_demos import warn_of_hidden_demos
from plr_dspy.programs.made_with import record_settings
from plr_dspy.programs.rivals import Programs, Rival, named_programs
from plr_dspy.programs.slots import ProgramSlots, add_labeled_demos
from plr_dspy.programs.splits import Examples
from plr_dspy.report.report import Report
from plr_dspy.report.schema import Alternative
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.report.text import result
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.search import RandomSearch, Search
from plr_dspy.search.space import WITHOUT_DEMOS, Candidate

logger = logging.getLogger(__name__)


@arguments
class DemoOptimizer(Checked, Teleprompter, ABC):
    """The base class of the optimizers.

    It checks arguments, makes program calls within the budget, and builds the report. Subclasses
    define `plan` and usually override `search`. For the arguments, see `PLReorder`.

    Attributes:
        chooses_by_score: Whether scores decide which candidate is returned. If they do, a
            student that was given labeled demos also competes without these demos.
        orders_demos: Whether the student must have predictors whose demos can be ordered.
        takes_programs: Whether `compile` accepts `programs`.
        balances_splits: Whether the train and selection splits are stratified by class.
        scored_on: The report's name for the examples on which candidates were scored.
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
    rival_name: ClassVar[str] = "student"  # the student's name in comparisons with the user's programs
    scored_on: ClassVar[str] = "train examples"
    chooses_by_score: ClassVar[bool] = True
    orders_demos: ClassVar[bool] = True
    takes_programs: ClassVar[bool] = False
    signal: ClassVar[str] = "auto"
    calibrate: ClassVar[bool | Mapping[Any, float]] = False
    min_probability: ClassVar[float | None] = None

    @property
    def balances_splits(self) -> bool:
        return True

    def __post_init__(self) -> None:
        self.report: Report | None = None
        self.best_program: dspy.Module | None = None
        self._rivals: Sequence[Rival] = ()  # the user's programs in the current compile run
        self.check_together()

    @abstractmethod
    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        """Return the plan for a problem of this size.

        Args:
            size: The numbers of examples, distinct prompts and bootstrapping attempts.
            signal: The signal that the search learns from, "score" or "logprobs".

        Raises:
            ValueError: If the budget is too small.
        """

    def search(self, setup: CompileSetup, responses: LabelResponses | None = None) -> Search:
        """Return the search. By default, it proposes random orders."""
        return RandomSearch(
            setup.slots.space,
            num_orderings=setup.plan.num_initial,
            num_samples=setup.plan.num_samples,
            seed=setup.seed,
        )

    def work(self, setup: CompileSetup) -> MetricWork:
        """Return the object that calls programs and scores their answers."""
        return MetricWork(self.metric, setup.scored_examples, setup.labels_of_metric)

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise a ValueError if the optimizer does not support this program.

        By default, every program is supported.
        """

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: Rows,
        teacher: Teacher = None,
        valset: Rows | None = None,
        seed: int | None = None,
        programs: Programs | None = None,
        inputs: Sequence[str] | None = None,
    ) -> dspy.Module:
        """Search for the best order of the student's demos. `PLFewShot` also chooses the demos.

        Args:
            student: Program to optimize. The student itself is not modified.
            trainset: Examples to score candidates on: a list of `dspy.Example` objects or dicts, or
                a `datasets.Dataset`. `PLFewShot` uses some of these examples as demos instead.
            teacher: Program whose correct answers become demos. Only `PLFewShot` uses it. In a
                list, the first program is the teacher. None means the student.
            valset: Examples for the final comparison. If None or empty, 20% of the trainset
                is used.
            seed: Random seed; None uses the constructor's seed.
            programs: Other programs, such as results of other optimizers, that may be returned
                unchanged. A dict maps names for the report to programs (in `PLFewShot`, any name
                except "student"); a list needs no names. Examples that these programs show as
                demos are not used for scoring. By default, the best of these programs replaces
                the student if a gain is at least 1.5 times as likely as a loss. The search's best
                candidate replaces the winner of this comparison only if a gain is at least three
                times as likely as a loss. `PLFewShot` also tries these programs' demos and
                instructions in the student. Each predictor of the student takes them from the
                predictor with the same name and fields or, if there is none, from the only
                predictor with the same fields.
            inputs: Names of the input columns in a data set, or of the input keys in dicts.
                None infers the names from the program.

        Returns:
            A compiled copy of the student, or of one of `programs`. Its attribute
            ``reorder_report`` contains the report as plain data. Its attribute
            ``detailed_results`` contains the candidates of the final comparison, unless the
            program already has an attribute with this name.

        Raises:
            TypeError, ValueError: If an argument is invalid. Most of these errors are raised before
                any program call.
            RuntimeError: If another run uses `log_dir`, all new calls fail, or almost no answers
                can be parsed.
            Exception: The last exception that the program or the metric raised, if calls failed on
                `max_errors` examples, or if every further call would fail in the same way.
        """
        self.report = self.best_program = None
        setup = self._prepare(
            student, trainset, valset, seed=seed, teacher=teacher, programs=programs, inputs=inputs
        )
        warning = window_warning(setup)
        if warning:
            logger.warning("%s", warning)
        with self._open(setup) as open_compile:
            return self._run(open_compile)

    def estimate(
        self,
        student: dspy.Module,
        *,
        trainset: Rows,
        teacher: Teacher = None,
        valset: Rows | None = None,
        seed: int | None = None,
        programs: Programs | None = None,
        inputs: Sequence[str] | None = None,
    ) -> Estimate:
        """Estimate what `compile` would cost with these arguments, without making program calls.

        The result is an upper estimate under the assumptions that `Estimate` describes. If an
        argument needs the log-probabilities of labels, the metric scores labels for up to 10
        seconds, as in `compile`.

        Raises:
            TypeError, ValueError: If an argument is invalid, as in `compile`.
        """
        setup = self._prepare(
            student, trainset, valset, seed=seed, teacher=teacher, programs=programs, inputs=inputs
        )
        self._check_before_calls(setup)
        return replace(estimate_cost(setup), warning=window_warning(setup))

    def _check_before_calls(self, setup: CompileSetup) -> None:
        """Raise the errors that `_open` raises before the first call, so that `estimate` raises them, too."""
        make_budget(setup)
        self.work(setup)

    def _prepare(
        self,
        student: dspy.Module,
        trainset: Rows,
        valset: Rows | None,
        *,
        seed: int | None = None,
        teacher: Teacher = None,
        programs: Programs | None = None,
        inputs: Sequence[str] | None = None,
    ) -> CompileSetup:
        """Check the arguments and return the setup of the compile run, without making program calls."""
        started = time.monotonic()
        self.check_together()  # Attributes may have been reassigned since `__init__`.
        options = CompileOptions.of(self)
        check_module(student, self.student_name)
        as_inputs = partial(as_examples, program=student, inputs=inputs, program_name=self.student_name)
        trainset = as_inputs(trainset, name="trainset")
        valset = as_inputs(valset or [], name="valset")
        seed = self._seed(seed)
        rng = random.Random(seed)
        program = checked_student(options, student, trainset, valset)
        self.check(program, trainset)
        self._rivals = ()
        named = named_programs({} if programs is None else programs)
        if named:
            self._check_takes_programs()
            self._rivals = checked_rivals(options, Rival(self.rival_name, program), named, trainset, valset)
        choices = self._choices(program, trainset, valset, rng, teacher)
        setup = make_setup(
            options, choices, seed=seed, trainset=trainset, valset=valset, rng=rng, started=started
        )
        if not setup.needs_calls:
            return setup
        setup = self._without_unusable(setup)
        try:
            setup = self._with_plan(setup)
        except UserError:  # The budget is too small. Report errors in other arguments first.
            self._check_without_plan(setup)
            raise
        check_metric(setup)
        return setup

    def _without_unusable(self, setup: CompileSetup) -> CompileSetup:
        """Return the setup without choices that would make prompts too long. By default, keep all of them."""
        return setup

    def _check_without_plan(self, setup: CompileSetup) -> None:
        """Check the arguments that are normally checked only after the plan is made."""
        check_prices(setup)
        check_metric(setup)

    def _check_takes_programs(self) -> None:
        """Raise a ValueError if `compile` does not support the argument `programs`."""
        if not self.takes_programs:
            raise UserError(
                f"{self.name} cannot compare programs: compile without other programs, then pass the result and these "
                "programs to choose_program (plr-dspy choose on the command line)"
            )

    def _with_plan(self, setup: CompileSetup, signal: str = "score") -> CompileSetup:
        """Return the setup with a plan for a search that learns from this signal."""
        return setup.with_plan(self.plan(setup.size, signal=signal))

    def _choices(
        self,
        program: dspy.Module,
        trainset: Examples,
        valset: Examples,
        rng: random.Random,
        teacher: Teacher,
    ) -> DemoChoices:
        """Return the demos to order, after adding labeled demos to a student without demos."""
        filled_predictors = (
            add_labeled_demos(program, trainset, self.num_demos, rng) if self.num_demos else []
        )
        if filled_predictors:
            warn_of_hidden_demos(program, self.student_name)
        slots = ProgramSlots(program, self._rivals)
        if not slots.slots:
            fix = "pass at least 3 examples with the fields that the prompts show"
            if self.num_demos is None:
                fix = "set num_demos"
            raise UserError(
                f"{self.student_name} must have demos to order; got no demos, and none were added: choose demos with "
                f"PLFewShot (--select on the command line), pass a program that has demos, or {fix}"
            )
        original = WITHOUT_DEMOS if filled_predictors and self.chooses_by_score else slots.space.identity
        return DemoChoices(program=program, slots=slots, original=original)

    @contextlib.contextmanager
    def _open(self, setup: CompileSetup) -> Iterator[OpenCompile]:
        """Yield a compile run that is ready to make calls.

        First make any demos and instructions that are planned. On exit, close the log and other
        resources.
        """
        with open_calls(
            setup,
            identity=lambda: self._identity(setup),
            at_end=lambda: logger.info("%s", result(self.report)) if self.report else None,
        ) as (log, make_payer):
            if setup.attempts or setup.proposals:
                # If an error or an interrupt ends this phase, the best program is the student.
                self.best_program = setup.slots.build(setup.original)
                setup = self._make_demos(setup, make_payer)
            work = self.work(setup)
            names, keys = self._examples(setup, work)
            log.number_examples(keys)
            payer = make_payer(setup.slots, work, names=names)
            bootstrapped = [attempt.key for attempt in setup.attempts]
            evaluator = Evaluator(payer, bootstrapped=bootstrapped, confusion_scores=work.confusion_scores)
            yield OpenCompile(setup, work, names, payer, evaluator, make_payer)

    def _make_demos(self, setup: CompileSetup, make_payer: Callable[..., ProgramEvaluator]) -> CompileSetup:
        """Make the planned demos and instructions, and return the setup with them. By default, make none."""
        return setup

    def _identity(self, setup: CompileSetup) -> dict[str, Any]:
        """Return a description of everything that determines the scores.

        This includes the program, its models, the metric and the examples. Calls in `log_dir`
        are reused only if this description has not changed or `accept_changes` is true.
        """
        settings = setup.settings()
        adapter = current_adapter()
        return {
            "models": settings["models"],
            "adapter": settings["adapter"],
            "calibrate": self.calibrate is not False,
            # "logprobs" and "auto" make the same calls.
            "signal": "score" if self.signal == "score" else "auto",
            **describe(setup.program, self.metric, setup.models, adapter),
            "the examples": digest(sorted(map(digest, setup.examples))),
        }

    def _examples(self, setup: CompileSetup, work: MetricWork) -> tuple[list[str], list[str]]:
        """Return two lists for the scored examples: their names in messages, and their keys in the log."""
        return setup.splits.names, [digest(example) for example in setup.scored_examples]

    def _run(self, open_compile: OpenCompile) -> dspy.Module:
        """Run the search, and return the program built from its result.

        After an error, build a program and a report from the finished calls, then raise the error again.
        """
        run: CompileRun | None = None
        outcome: Outcome | None = None
        try:
            responses = self._probe(open_compile)
            if responses is not None:
                setup = self._with_plan(open_compile.setup, signal="logprobs")
                open_compile = replace(open_compile, setup=setup, responses=responses)
            run = self._make_run(open_compile)
            outcome = run.run()
            return self._conclude(open_compile, run, outcome)
        except BaseException as error:  # This includes interrupts, even while the report is built.
            self._conclude_after_error(error, open_compile, run, outcome)
            raise

    def _conclude_after_error(
        self,
        error: BaseException,
        open_compile: OpenCompile,
        run: CompileRun | None,
        outcome: Outcome | None,
    ) -> None:
        """Set `report` and `best_program` from the finished calls.

        `run` and `outcome` are None if the error was raised before they existed.
        """
        open_compile.evaluator.log.close()  # Discard the results of calls in progress.
        if run is None:
            run = self._make_run(replace(open_compile, responses=None))
        if outcome is None:
            outcome = run.unfinished(error)
        if isinstance(error, KeyboardInterrupt):
            outcome = replace(outcome, stop=Stop(StopReason.INTERRUPTED))
        self._conclude(open_compile, run, outcome)

    def _probe(self, open_compile: OpenCompile) -> LabelResponses | None:
        """Return the log-probabilities of labels, or None to learn only from scores.

        By default, return None. Subclasses may make the first calls to find out whether replies
        include log-probabilities.
        """
        return None

    def _make_run(self, open_compile: OpenCompile) -> CompileRun:
        """Return a run with a new search. The search also learns from any ``open_compile.responses``."""
        setup = open_compile.setup
        return self._run_kind(setup.plan)(
            self.search(setup, open_compile.responses),
            open_compile.evaluator,
            plan=setup.plan,
            num_train=len(setup.splits.train),
            original=setup.original,
            user_programs=setup.slots.competing,
            sample=lambda: open_compile.work.sample,
            advice=adapter_advice(),
            shows_demos=setup.slots.shows_demos,
            min_probability=self.min_probability,
            stop_at_score=getattr(self, "stop_at_score", None),
            patience=getattr(self, "patience", None),
            shifted=open_compile.responses is not None,
            widen=self._widening(open_compile),
            min_examples=self._min_examples(open_compile),
            on_round=partial(call_back, self, "on_round_end"),
        )

    def _min_examples(self, open_compile: OpenCompile) -> MinExamples | None:
        """Return a function that maps candidates to their minimum number of examples.

        By default, return None: there is no minimum.
        """
        return None

    def _widening(self, open_compile: OpenCompile) -> Callable[..., Search | None] | None:
        """Return a function that widens the search space, or None if the space is fixed.

        By default, return None. For the function's argument, see `widen` in `SearchRounds`.
        """
        return None

    def _run_kind(self, plan: Plan) -> type[CompileRun]:
        """Return the class of the run that carries out this plan."""
        return CompileRun if plan.racing else PaperRun

    def _conclude(self, open_compile: OpenCompile, run: CompileRun, outcome: Outcome) -> dspy.Module:
        """Set `report` and `best_program`, and return the program.

        If `log_dir` is set, also write the report to this folder.
        """
        setup = open_compile.setup
        finished = self._finish(setup, run, outcome, partial(_build_as_scored, setup, open_compile.work))
        program = finished.program
        self.best_program = program  # Set this first, in case building the report is interrupted.
        self.report = report = build_report(open_compile, run, outcome, finished)
        program.reorder_report = report.to_dict()
        if not hasattr(program, "detailed_results"):  # Keep the user's own attribute.
            program.detailed_results = detailed_results(report, outcome.decision)
        if self.log_dir is not None:
            try:
                report.save(Path(self.log_dir) / "report.json")
            except OSError as error:  # Return the program even if, for example, the disk is full.
                logger.warning("the report could not be written to %s: %s", self.log_dir, error)
        return program

    def _finish(
        self,
        setup: CompileSetup,
        run: CompileRun,
        outcome: Outcome,
        build_program: Callable[..., dspy.Module],
    ) -> FinishedProgram:
        """Return the program that `compile` returns, with entries for the report.

        `build_program` builds a candidate's program as it was scored.
        """
        program = build_program(outcome.decision.candidate, outcome.decision.revision)
        return FinishedProgram(program, programs=self._program_scores(setup, run, outcome))

    def _program_scores(self, setup: CompileSetup, run: CompileRun, outcome: Outcome) -> list[Alternative]:
        """Return the expected scores of the user's programs, best first."""
        if not setup.rivals:
            return []
        return program_scores(
            setup.slots, expected_scores(setup.slots, run, outcome, fitted_model(run, outcome))
        )


def _build_as_scored(
    setup: CompileSetup, work: MetricWork, candidate: Candidate, revision: Revision | None
) -> dspy.Module:
    """Build a candidate's program with the answer revision that was used to score it."""
    program = setup.slots.build(candidate)
    record_settings(program)
    program = work.answering(program, revision)
    set_compiled(program, True)
    return program
