"""What all optimizers of an order share: one compile from the arguments to the report."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import dspy
import torch
from dspy.teleprompt.teleprompt import Teleprompter
from pydantic import Field
from tqdm import tqdm

from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.path import Compilation
from plr_dspy.compilation.plan import Plan, most_calls
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.optimizer.cost_estimate import Estimate, estimate, make_budget
from plr_dspy.optimizer.job import Job, prepare
from plr_dspy.optimizer.mlflow import track
from plr_dspy.optimizer.reporting import build_report
from plr_dspy.programs.arguments import AnyMetric, Checked, Count, Flag, Folder, Positive, Seed, arguments
from plr_dspy.programs.calls import MetricWork, Work
from plr_dspy.programs.checks import check_log_dir
from plr_dspy.programs.copies import ProgramFactory, named_predictors
from plr_dspy.programs.evaluator import ProgramEvaluator
from plr_dspy.programs.identity import digest, facts
from plr_dspy.report.data import Report
from plr_dspy.report.text import MIN_PROBABILITY, result
from plr_dspy.runtime.progress_bar import progress_bar
from plr_dspy.runtime.signals import interrupts
from plr_dspy.scoring.budget import Budget
from plr_dspy.scoring.ledger import Ledger, open_ledger
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.search import RandomSearch, Search
from plr_dspy.search.stopping import Stopper

logger = logging.getLogger(__name__)

NOT_DECIDING = {
    "metric",
    "seed",
    "max_seconds",
    "max_cost",
    "num_threads",
    "max_errors",
    "log_dir",
    "accept_changes",
    "display_progress",
}
"""Arguments that do not decide the result, or that an identity names otherwise."""

ENDING = {"auto", "max_metric_calls", "stop_at_score", "patience", "num_iterations"}
"""Arguments that say when a search ends: where only these changed, it goes on from where it was."""


@dataclass(frozen=True)
class Session:
    """What stands open while calls are made.

    Attributes:
        ledger: What has been paid.
        budget: Of the calls.
        bar: Shows how far it is.
        interrupted: Set by a signal.
    """

    ledger: Ledger
    budget: Budget
    bar: tqdm
    interrupted: threading.Event


@arguments
class Reorderer(Checked, Teleprompter, ABC):
    """What all optimizers of an order share: checks, budget, ledger, progress, errors and report.

    Subclasses say what tells one from another: `plan`, `search`, and what else of the methods below is not as theirs.

    Args:
        metric, max_metric_calls, max_seconds, max_cost, num_demos, num_threads, max_errors, seed, log_dir,
            accept_changes, display_progress: As in `PLReorder`.

    Attributes:
        report: The `Report` of the last compile, also when it was interrupted or ended in an error.
        best_program: What the last compile returned; after an interrupt or an error, the program in
            the best order that the search had seen.
        name: What users call the optimizer.
        student_name, trainset_name: What users call the program that they pass, and the examples that score.
        balanced: Whether the splits have the classes evenly mixed.
        scored_on: What orders are scored on in the search.
        judges: Whether the metric's scores choose: then a student that came without demos is a candidate as it is.
        min_probability: Probability of being better on new examples that an order needs to be chosen.
        stoppers: What ends the search early.
    """

    metric: AnyMetric = Field(kw_only=False)
    max_metric_calls: Count | None = None
    max_seconds: Positive | None = None
    max_cost: Positive | None = None
    num_demos: Annotated[Count, Field(ge=2)] | None = 8
    num_threads: Count | None = None
    max_errors: Count | None = None
    seed: Seed = 0
    log_dir: Folder | None = None
    accept_changes: Flag = False
    display_progress: Flag = True

    name: ClassVar[str]
    student_name: ClassVar[str] = "student"
    trainset_name: ClassVar[str] = "trainset"
    scored_on: ClassVar[str] = "train examples"
    judges: ClassVar[bool] = True
    balanced: ClassVar[bool] = True
    min_probability: ClassVar[float] = MIN_PROBABILITY
    stoppers: ClassVar[Sequence[Stopper]] = ()

    def __post_init__(self) -> None:
        self.report: Report | None = None
        self.best_program: dspy.Module | None = None
        self.check_together()
        self._share_before = 0.0  # of the money, for what is called before the search
        self._spent = 0  # calls that are made, or may be made, before it

    @abstractmethod
    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        """Lay out a compile; arguments and errors are those of `make_plan`."""

    def search(self, job: Job, plan: Plan, responses: LabelResponses | None = None) -> Search:
        """Make the search of a plan: of random orders, the program's own first, unless a subclass has another.

        Args:
            job: What is compiled.
            plan: Its shape.
            responses: The log-probabilities of labels that the search learns from; None for none.
        """
        return RandomSearch(
            job.slots.space, num_orderings=plan.num_initial, num_samples=plan.num_samples, seed=job.seed
        )

    def work(self, job: Job) -> Work:
        """Return what makes a program call; it knows what the search learns from it."""
        return MetricWork(self.metric, [*job.splits.train, *job.splits.selection])

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise a ValueError with the reason and the cure, unless the optimizer can order this program's demos."""
        return

    def bare(self, student: Any) -> Any:
        """Return what is compiled of a student."""
        return student

    def calibrated(
        self,
        job: Job,
        work: Work,
        program: dspy.Module,
        offsets: Sequence[float],
        shares: Sequence[float],
    ) -> dspy.Module:
        """Return a program in one of the orders as it was scored: calibrated by these offsets, where answers were.

        Args:
            job: What was compiled.
            work: What its calls did.
            program: In that order.
            offsets, shares: Of the labels: what calibrates the answers, and what to; empty where nothing does.
        """
        return program.bound() if isinstance(program, CalibratedProgram) else program

    def arguments(self) -> dict[str, Any]:
        """Return the user's arguments that decide the result, but for the seed, as plain data."""
        # What users' subclasses and trackers keep in an optimizer beside these may be large, secret or never the same.
        deciding = [field.name for field in fields(self) if field.name not in NOT_DECIDING]
        return {name: as_plain_data(getattr(self, name)) for name in deciding}

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
            student: A program with demos, or for `PLFewShot` with or without any; it is not changed.
            trainset: Examples that score the student with other demos or in other orders. Those that the demos show
                are left out. `PLFewShot` sets some of them aside, which become demos and score nothing.
            teacher: A program whose right answers make demos for `PLFewShot`, or a list that begins with one; the
                student itself unless given. Other optimizers ignore it.
            valset: Examples of the final comparison, as many of them as the budget affords; None or
                empty takes 20 % of the trainset.
            seed: Instead of the constructor's.

        Returns:
            A compiled copy that differs from the student in the order of its demos (of `PLFewShot`: in its demos), with
            the report as plain data at ``reorder_report``, and what took part in the final comparison at
            ``candidate_programs``: dicts with "score", "program", "origin" and "ordering", the chosen one first.
            If the student has an attribute ``candidate_programs`` of its own, that stays instead.

        Raises:
            TypeError, ValueError: for bad arguments, before any program call.
            RuntimeError: when another compile is using `log_dir`, or too few examples run for any order.
            Exception: of the program or the metric, see `max_errors`.
        """
        started = time.monotonic()
        self.report = self.best_program = None
        teacher = self._teacher(teacher)
        job = self._prepared(student, trainset=trainset, valset=valset, seed=self._seed(seed))
        with self._opened(job, trainset=trainset, valset=valset, teacher=teacher) as opened:
            job = self._ready(job, opened, teacher)
            work = self.work(job)
            scorer = self._scorer(job, opened, work)
            compilation: Compilation | None = None
            try:
                responses = self._probe(job, work, scorer)
                compilation = self._compilation(job, work, scorer, responses, opened.bar)
                outcome = compilation.run()
            except BaseException as error:
                opened.ledger.stop()  # calls that are still under way come too late
                if compilation is None:
                    compilation = self._compilation(job, work, scorer, None, opened.bar)
                self._keep(job, work, compilation, compilation.unfinished(error), started=started)
                raise
            return self._keep(job, work, compilation, outcome, started=started)

    def _prepared(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        valset: list[dspy.Example] | None,
        seed: int,
    ) -> Job:
        """Check the arguments, and lay out the compile; arguments are those of `compile`."""
        return prepare(self, student, trainset=trainset, valset=valset, seed=seed)

    def _teacher(self, teacher: Any) -> dspy.Module | None:
        """Return the teacher, if the optimizer has any use for one."""
        return None

    def _ready(self, job: Job, opened: Session, teacher: Any) -> Job:
        """Return the job as it is when all demos are there."""
        return job

    def _probe(self, job: Job, work: Work, scorer: CellScorer) -> LabelResponses | None:
        """Return what the search learns from calls beside scores, after a first one where that is needed to tell."""
        return None

    def _compilation(
        self,
        job: Job,
        work: Work,
        scorer: CellScorer,
        responses: LabelResponses | None,
        bar: tqdm,
    ) -> Compilation:
        """Make the compile of a job, once it is known what its search learns from."""
        plan, num_train = job.plan, len(job.splits.train)
        if responses is not None:
            plan = self.plan(**job.sizes, signal="logprobs")
        search = self.search(job, plan, responses)
        ending = {name: value for name, value in self.arguments().items() if name in ENDING}
        _, keys = self._examples(job, work)
        course = {name: value for name, value in job.arguments().items() if name not in ENDING}
        pool = [[digest(demo) for demo in slot.demos] for slot in job.slots.slots]
        course |= {"learns from": "score" if responses is None else "logprobs", "pool": digest(pool)}
        course |= {"splits": digest([num_train, keys]), "exhaustive": plan.exhaustive}
        scorer.ledger.begin(course if plan.racing else {**course, **asdict(plan)})  # laid out for one budget
        return Compilation(
            search,
            scorer,
            plan=plan,
            num_train=num_train,
            original=job.original,
            sample=lambda: work.sample,
            min_probability=self.min_probability,
            stoppers=self.stoppers,
            limits=ending,
            shifted=responses is not None,
            bar=bar,
        )

    def _scorer(self, job: Job, opened: Session, work: Work) -> CellScorer:
        """Make what scores orders of the job's demos."""
        names, keys = self._examples(job, work)
        opened.ledger.number_examples(keys)
        evaluator = ProgramEvaluator(
            job.program,
            job.slots,
            work,
            names=names,
            ledger=opened.ledger,
            num_threads=self.num_threads,
            max_errors=self.max_errors,
            on_cell=opened.bar.update,
            budget=opened.budget,
            interrupted=opened.interrupted,
        )
        return CellScorer(evaluator, earlier=[attempt.key for attempt in job.attempts])

    def _examples(self, job: Job, work: Work) -> tuple[list[str], list[str]]:
        """What messages call the examples that cells name by number, and what the ledger calls them."""
        return job.splits.names, [digest(each) for each in (*job.splits.train, *job.splits.selection)]

    @contextmanager
    def _opened(
        self,
        job: Job,
        *,
        trainset: Sequence[dspy.Example],
        valset: Sequence[dspy.Example] | None = None,
        teacher: dspy.Module | None = None,
    ) -> Iterator[Session]:
        """Open what a job needs to make calls, and close it at the end.

        Raises:
            ValueError: when the folder cannot be written to, or belongs to another compile, or when the money is too
                little.
            RuntimeError: when another compile is using it.
        """
        folder = None if self.log_dir is None else Path(self.log_dir)
        if folder is not None:
            check_log_dir(folder)
        identity = partial(self._identity, job, [*trainset, *(valset or [])])
        with (
            torch.device("cpu"),  # wherever the caller's own tensors go
            open_ledger(folder, identity, accept_changes=self.accept_changes) as ledger,
            progress_bar(
                job.plan.program_calls,
                display=self.display_progress,
                title=self.name,
                at_end=self._say_result,
            ) as bar,
            interrupts() as interrupted,
        ):
            bar.update(ledger.num_resumed)
            limits = {"max_cost": self.max_cost, "max_seconds": self.max_seconds}
            budget = make_budget(job, ledger, teacher=teacher, share=self._share_before, **limits)
            yield Session(ledger, budget, bar, interrupted)

    def _identity(self, job: Job, examples: Sequence[dspy.Example]) -> dict[str, Any]:
        """Collect what decides the scores of a compile: the program, its models, the metric, the examples."""
        settings = job.settings()
        values: dict[str, Any] = dict(job.program.named_sub_modules())  # those in private attributes, too
        values |= {
            "the metric": self.metric,
            "the settings of its models": [
                p.lm or dspy.settings.lm for _, p in named_predictors(job.program)
            ],
            "the adapter": dspy.settings.adapter or dspy.ChatAdapter(),
        }
        shown = {name: settings[name] for name in ("models", "adapter")}
        examples_fact = {"the examples": digest(sorted(map(digest, examples)))}
        return {**shown, **self._deciding(), **facts(values), **examples_fact}

    def _deciding(self) -> dict[str, Any]:
        """Collect the arguments that decide what a call scores and tells; those of `PLReorder` with its defaults."""
        return {"calibrate": False, "signal": "auto"}

    def estimate(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        valset: list[dspy.Example] | None = None,
        seed: int | None = None,
    ) -> Estimate:
        """Say what `compile` with these arguments would cost; no program call is made.

        Prompts of `PLFewShot` are taken to show half as many demos as they may.

        Raises:
            TypeError, ValueError: for bad arguments, as `compile` does.
        """
        job = self._prepared(student, trainset=trainset, valset=valset, seed=self._seed(seed))
        make_budget(job, max_cost=self.max_cost, share=self._share_before)
        limits = {"max_cost": self.max_cost, "max_seconds": self.max_seconds}
        return estimate(job, bootstrap_calls=self._spent, **limits)

    def _keep(
        self,
        job: Job,
        work: Work,
        compilation: Compilation,
        outcome: Outcome,
        *,
        started: float,
    ) -> dspy.Module:
        """Set `report` and `best_program`, and write the report to `log_dir`."""
        limits = {
            name: getattr(self, name) for name in ("num_threads", "max_errors", "max_seconds", "max_cost")
        }
        job = replace(job, plan=compilation.plan)
        most = most_calls(len(job.splits.train) + len(job.splits.selection))
        self.report = build_report(
            job,
            outcome,
            compilation.scorer,
            names=self._examples(job, work)[0],
            signal=work.signal,
            settings={**job.settings(), **limits, "most_useful_calls": most},
            seconds=time.monotonic() - started,
        )
        shares = () if outcome.calibration is None else outcome.calibration.shares
        program = self._finished(job, work, outcome, compilation, shares)
        program.reorder_report = self.report.to_dict()
        ranked = sorted(
            enumerate(outcome.candidates),
            key=lambda pair: (pair[0] != outcome.chosen, -pair[1].gain.expected, -pair[1].score),
        )
        candidates = [
            {
                "score": each.score,
                "program": self._program(job, work, each.ordering, each.offsets, shares),
                "origin": each.origin,
                "ordering": {n: list(o) for n, o in job.slots.permutations(each.ordering).items()},
            }
            for _, each in ranked
        ]
        if not hasattr(program, "candidate_programs"):  # An attribute of the user's own stays.
            program.candidate_programs = candidates
        self.best_program = program
        folder = None if self.log_dir is None else Path(self.log_dir)
        if folder is not None:
            try:
                self.report.save(folder / "report.json")
            except OSError as error:  # what was paid for must not be lost to a full disk
                logger.warning("the report could not be written to %s: %s", folder, error)
        track(self.report)
        return program

    def _finished(
        self,
        job: Job,
        work: Work,
        outcome: Outcome,
        compilation: Compilation,
        shares: Sequence[float],
    ) -> dspy.Module:
        """Return the program in the order chosen."""
        return self._program(job, work, outcome.ordering, outcome.offsets, shares)

    def _program(
        self, job: Job, work: Work, ordering: Any, offsets: Sequence[float], shares: Sequence[float]
    ) -> dspy.Module:
        """Return the program in an order as it was scored: calibrated by these offsets, where answers were."""
        program = ProgramFactory(job.program).build(job.slots.demos(ordering))
        program = self.calibrated(job, work, program, offsets, shares)
        program._compiled = True
        return program

    def _say_result(self) -> None:
        """Log what came of the compile, in a line."""
        if self.report is not None:
            logger.info("%s", result(self.report))


def as_plain_data(value: Any) -> Any:
    """An argument as plain data; of objects a digest, which is the same in every process."""
    if isinstance(value, Mapping):
        return {str(key): as_plain_data(part) for key, part in value.items()}
    return value if isinstance(value, (bool, int, float, str, type(None))) else digest(value)
