"""What all optimizers of an order share: one compile from the arguments to the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from inspect import signature
from pathlib import Path
from typing import Any, TypedDict

import dspy
from dspy.teleprompt.teleprompt import Teleprompter

from plr_dspy.compilation.budget import most_calls
from plr_dspy.compilation.engine import Compilation
from plr_dspy.compilation.outcome import Outcome
from plr_dspy.optimizer.candidates import candidate_programs
from plr_dspy.optimizer.cost_estimate import Estimate, estimate
from plr_dspy.optimizer.detailed_results import detailed_results
from plr_dspy.optimizer.job import Job, Optimizer, prepare
from plr_dspy.optimizer.log_lines import PACKAGE
from plr_dspy.optimizer.mlflow import track
from plr_dspy.optimizer.money import make_purse
from plr_dspy.optimizer.reporting import build_report
from plr_dspy.optimizer.session import Session, session
from plr_dspy.programs.calls import Metric, metric_caller
from plr_dspy.programs.copies import ProgramFactory
from plr_dspy.programs.digest.description import digest
from plr_dspy.programs.validation import as_folder, flag, number, whole_number
from plr_dspy.report.report import Report
from plr_dspy.report.text import result
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.scoring.objectives import SearchObjective

logger = logging.getLogger(__name__)

LARGEST_SEED = 2**63 - 1

FOUND = {"report", "best_program"}
"""Attributes that hold what a compile has found."""

NOT_DECIDING = FOUND | {
    "metric",
    "seed",
    "max_seconds",
    "max_cost",
    "num_threads",
    "max_errors",
    "log_dir",
    "accept_changes",
    "track_stats",
    "display_progress",
}
"""Attributes that do not decide the result, or that an identity names otherwise."""


class Common(TypedDict, total=False):
    """Arguments that all optimizers of an order take."""

    max_metric_calls: int | None
    max_seconds: float | None
    max_cost: float | None
    num_demos: int | None
    num_threads: int | None
    max_errors: int | None
    seed: int
    log_dir: str | Path | None
    accept_changes: bool
    track_stats: bool
    display_progress: bool


class Reorderer(Teleprompter, Optimizer):
    """What all optimizers of an order share: checks, budget, checkpoint, progress, errors and report.

    Args:
        metric, max_metric_calls, max_seconds, max_cost, num_demos, num_threads, max_errors, seed, log_dir,
            accept_changes, track_stats, display_progress: As in `PLReorder`.

    Attributes:
        report: The `Report` of the last compile, also when it was interrupted or ended in an error.
        best_program: What the last compile returned; after an interrupt or an error, the program in
            the best order that the search had seen.
    """

    def __init__(
        self,
        metric: Metric,
        *,
        max_metric_calls: int | None = None,
        max_seconds: float | None = None,
        max_cost: float | None = None,
        num_demos: int | None = 8,
        num_threads: int | None = None,
        max_errors: int | None = None,
        seed: int = 0,
        log_dir: str | Path | None = None,
        accept_changes: bool = False,
        track_stats: bool = False,
        display_progress: bool = True,
    ) -> None:
        super().__init__()
        metric_caller(metric)
        self.metric = metric
        self.max_metric_calls = whole_number("max_metric_calls", max_metric_calls)
        self.max_seconds = number("max_seconds", max_seconds, above=0.0)
        self.max_cost = number("max_cost", max_cost, above=0.0)
        self.num_demos = whole_number("num_demos", num_demos, least=2)
        self.num_threads = whole_number("num_threads", num_threads)
        self.max_errors = whole_number("max_errors", max_errors)
        self.seed = whole_number("seed", seed, least=0, most=LARGEST_SEED) or 0
        self.log_dir = as_folder("log_dir", log_dir)
        self.accept_changes = flag("accept_changes", accept_changes)
        self.track_stats = flag("track_stats", track_stats)
        self.display_progress = flag("display_progress", display_progress)
        self.report: Report | None = None
        self.best_program: dspy.Module | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the user's arguments that decide the result, but for the seed, as plain data."""
        # What users' subclasses and trackers keep in an optimizer beside these may be large, secret or never the same.
        ours = [kind for kind in type(self).__mro__ if kind.__module__.startswith(f"{PACKAGE}.")]
        known = {name for kind in ours for name in signature(kind).parameters} - NOT_DECIDING
        return {name: as_plain_data(value) for name, value in vars(self).items() if name in known}

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
        job = self._prepared(
            student, trainset=trainset, teacher=teacher, valset=valset, seed=self._seed(seed)
        )
        with self._session(job, at_end=self._say_result) as opened:
            ledger = opened.checkpoint.ledger
            begun = started if job.earlier else time.monotonic()
            deadline = None if self.max_seconds is None else begun + self.max_seconds
            compilation = self._compilation(job, opened, deadline)
            try:
                listened = self.listened(job, opened.scorer, deadline=deadline)
                if listened is not job:
                    job, compilation = listened, self._compilation(listened, opened, deadline)
                outcome = compilation.run()
            except BaseException as error:
                ledger.close()  # calls that are still under way come too late
                self._keep(job, compilation.unfinished(error), compilation.objective, ledger, started=started)
                raise
            return self._keep(job, outcome, compilation.objective, ledger, started=started)

    def _prepared(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: Any,
        valset: list[dspy.Example] | None,
        seed: int,
    ) -> Job:
        """Check the arguments, and lay out the compile; arguments are those of `compile`."""
        return prepare(self, student, trainset=trainset, valset=valset, seed=seed)

    def _compilation(self, job: Job, opened: Session, deadline: float | None) -> Compilation:
        """Make the compile of a job, which is to end at a deadline by `time.monotonic`."""
        return Compilation(
            job.setup.search,
            job.setup.objective(opened.scorer),
            opened.scorer,
            plan=job.plan,
            num_train=len(job.setup.names),
            original=job.original,
            sample=lambda: job.setup.work.sample,
            min_probability=self.min_probability,
            stoppers=self.stoppers,
            max_seconds=None if deadline is None else deadline - time.monotonic(),
            purse=opened.purse,
            checkpoint=opened.checkpoint,
            bar=opened.bar,
        )

    def estimate(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        valset: list[dspy.Example] | None = None,
        seed: int | None = None,
    ) -> Estimate:
        """Say what `compile` with these arguments would cost; no program call is made.

        Raises:
            TypeError, ValueError: for bad arguments, as `compile` does.
        """
        job = prepare(self, student, trainset=trainset, valset=valset, seed=self._seed(seed))
        make_purse(job, self.max_cost)
        return estimate(job, max_cost=self.max_cost, max_seconds=self.max_seconds)

    def get_params(self) -> dict[str, Any]:
        """The arguments, as a dict of its own: trackers add to what they get."""
        return {n: value for n, value in vars(self).items() if n not in FOUND and not n.startswith("_")}

    def _seed(self, seed: int | None) -> int:
        """The seed of a compile, which wins over the constructor's."""
        return self.seed if seed is None else whole_number("seed", seed, least=0, most=LARGEST_SEED) or 0

    def _session(
        self, job: Job, *, at_end: Callable[[], None] | None = None
    ) -> AbstractContextManager[Session]:
        """What stands open while calls are made."""
        return session(
            job,
            num_threads=self.num_threads,
            max_errors=self.max_errors,
            log_dir=as_folder("log_dir", self.log_dir),
            accept_changes=self.accept_changes,
            display_progress=self.display_progress,
            max_cost=self.max_cost,
            at_end=at_end,
        )

    def _keep(
        self, job: Job, outcome: Outcome, objective: SearchObjective, ledger: Ledger, *, started: float
    ) -> dspy.Module:
        """Set `report` and `best_program`, and write the report to `log_dir`."""
        limits = {
            name: getattr(self, name) for name in ("num_threads", "max_errors", "max_seconds", "max_cost")
        }
        most = most_calls(len(job.splits.train) + len(job.splits.selection))
        settings = {**job.settings(), **limits, "most_useful_calls": most}
        seconds = time.monotonic() - started
        self.report = build_report(job, outcome, ledger, settings=settings, seconds=seconds)
        factory = ProgramFactory(job.program)
        compiled = factory.build(job.slots.demos(outcome.ordering))
        compiled = self.finished(job, compiled, outcome=outcome, objective=objective)
        compiled.reorder_report = self.report.to_dict()
        candidates = candidate_programs(job, outcome, factory)
        if not hasattr(compiled, "candidate_programs"):  # An attribute of the user's own stays.
            compiled.candidate_programs = candidates
        folder = as_folder("log_dir", self.log_dir)
        if self.track_stats and not hasattr(compiled, "detailed_results"):
            compiled.detailed_results = detailed_results(
                candidates,
                total_metric_calls=self.report.program_calls["total"],
                log_dir=None if folder is None else str(folder),
                seed=job.seed,
            )
        compiled._compiled = True
        self.best_program = compiled
        if folder is not None:
            try:
                self.report.save(folder / "report.json")
            except OSError as error:  # what was paid for must not be lost to a full disk
                logger.warning("the report could not be written to %s: %s", folder, error)
        track(self.report)
        return compiled

    def _say_result(self) -> None:
        """Log what came of the compile, in a line."""
        if self.report is not None:
            logger.info("%s", result(self.report))


def as_plain_data(value: Any) -> Any:
    """An argument as plain data; of objects a digest, which is the same in every process."""
    if isinstance(value, Mapping):
        return {str(key): as_plain_data(part) for key, part in value.items()}
    return value if isinstance(value, (bool, int, float, str, type(None))) else digest(value)
