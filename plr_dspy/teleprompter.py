"""PLReorder: the DSPy optimizer that orders a program's demos."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import dspy
from dspy.teleprompt.teleprompt import Teleprompter

from plr_dspy.assembly import new_objective
from plr_dspy.checkpoint import Checkpoint
from plr_dspy.compilation import Compilation, Outcome
from plr_dspy.estimates import Estimate, estimate
from plr_dspy.identity import identity
from plr_dspy.inputs import as_folder, check_log_dir, fraction, number, whole_number
from plr_dspy.interrupts import Interrupts
from plr_dspy.jobs import Job, Options, prepare
from plr_dspy.ledger import Ledger
from plr_dspy.metrics import Metric, metric_caller
from plr_dspy.plan import BUDGETS, Overrides
from plr_dspy.programs import ProgramFactory
from plr_dspy.progress import ProgressBar
from plr_dspy.report import Report
from plr_dspy.reporting import build_report
from plr_dspy.updates import UpdateRule, update_rule

logger = logging.getLogger(__name__)

LARGEST_SEED = 2**63 - 1


class PLReorder(Teleprompter):
    """Learns a Plackett-Luce distribution over the orders of a program's demos, and picks one.

    Demos, instructions and weights stay as they are: run it after an optimizer that chooses demos.
    Source: "PLR: Plackett-Luce for Reordering In-Context Learning Examples", arXiv:2603.21373.

    Args:
        metric: ``metric(example, prediction)``; larger is better. Bools, numbers and
            ``Prediction(score=...)`` count. Further parameters, such as ``trace``, get their defaults,
            or None.
        update: "mle", "ema", "mixture", or an update object such as ``MixtureEM(num_components=2)``.
        auto: Budget in program calls: "light" (1,000), "medium" (3,000) or "heavy" (10,000). "paper"
            runs PLR Algorithm 1 with the paper's values, every sample on the whole train split: at
            most 15 x 15 x train + 13 x selection examples.
        max_metric_calls: Budget in program calls instead; never exceeded.
        max_seconds: No program call begins later than this; those under way end. The search gives the
            final comparison its share of the time.
        stop_at_score: The search ends after the round in which an order has this score on the train split,
            as the search estimates it.
        patience: The search ends when so many rounds in a row left the best order what it was.
        stop_at_mode_probability: The search ends after the round in which the most probable order of
            every predictor's demos has at least this probability.
        num_iterations, num_samples, elite_fraction, num_final_draws: T, B, rho and K of PLR
            Algorithm 1; None leaves them to `auto`.
        num_demos: Labelled demos for a student that has none at all; None makes that an error.
        num_threads: Program calls under way at once; None takes DSPy's setting.
        max_errors: So many failed program calls end the compile, with the exception of the last; None
            takes DSPy's setting. An example that runs for no order counts once. Answers that cannot be
            parsed are wrong answers, not failures.
        seed: Of everything random.
        log_dir: Folder that keeps every finished call (``cells.jsonl``), the state of the search
            (``state.json``) and the report (``report.json``). A compile with the same program, data
            and settings goes on from there: no finished call is made again. None keeps nothing.
        display_progress: Draw a progress bar.

    Attributes:
        report: The `Report` of the last compile, also when it was interrupted or ended in an error.
        best_program: What the last compile returned; after an interrupt or an error, the program in
            the best order that the search had seen.

    Raises:
        TypeError, ValueError: for arguments out of range; the message says what to pass.
    """

    def __init__(
        self,
        metric: Metric,
        *,
        update: str | UpdateRule = "mle",
        auto: str = "light",
        max_metric_calls: int | None = None,
        max_seconds: float | None = None,
        stop_at_score: float | None = None,
        patience: int | None = None,
        stop_at_mode_probability: float | None = None,
        num_iterations: int | None = None,
        num_samples: int | None = None,
        elite_fraction: float | None = None,
        num_final_draws: int | None = None,
        num_demos: int | None = 8,
        num_threads: int | None = None,
        max_errors: int | None = None,
        seed: int = 0,
        log_dir: str | Path | None = None,
        display_progress: bool = True,
    ) -> None:
        super().__init__()
        metric_caller(metric)
        if auto not in (*BUDGETS, "paper"):
            raise ValueError(f"auto must be one of {[*BUDGETS, 'paper']}; got {auto!r}")
        self.metric = metric
        self.update = update_rule(update)
        self.auto = auto
        self.max_metric_calls = whole_number("max_metric_calls", max_metric_calls)
        self.max_seconds = number("max_seconds", max_seconds, above=0.0)
        self.stop_at_score = number("stop_at_score", stop_at_score)
        self.patience = whole_number("patience", patience)
        self.stop_at_mode_probability = fraction("stop_at_mode_probability", stop_at_mode_probability)
        self.num_iterations = whole_number("num_iterations", num_iterations)
        self.num_samples = whole_number("num_samples", num_samples)
        self.elite_fraction = fraction("elite_fraction", elite_fraction)
        self.num_final_draws = whole_number("num_final_draws", num_final_draws, least=0)
        self.num_demos = whole_number("num_demos", num_demos, least=2)
        self.num_threads = whole_number("num_threads", num_threads)
        self.max_errors = whole_number("max_errors", max_errors)
        self.seed = whole_number("seed", seed, least=0, most=LARGEST_SEED) or 0
        self.log_dir = as_folder("log_dir", log_dir)
        self.display_progress = display_progress
        self.report: Report | None = None
        self.best_program: dspy.Module | None = None

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: Any = None,
        valset: list[dspy.Example] | None = None,
        seed: int | None = None,
    ) -> dspy.Module:
        """Order the student's demos.

        Args:
            student: A program with demos; it is not changed.
            trainset: Examples that score orders. Those that the demos show are left out.
            teacher: Ignored; other optimizers pass one.
            valset: Examples of the final comparison, as many of them as the budget affords; None or
                empty takes 20 % of the trainset.
            seed: Instead of the constructor's.

        Returns:
            A compiled copy that differs from the student in the order of its demos, with the
            report as plain data at ``reorder_report``.

        Raises:
            TypeError, ValueError: for bad arguments, before any program call.
            RuntimeError: when another compile is using `log_dir`, or too few examples run for any order.
            Exception: of the program or the metric, see `max_errors`.
        """
        started = time.monotonic()
        self.report = self.best_program = None
        job = prepare(self._options(seed), student, trainset=trainset, valset=valset)
        if self.log_dir is not None:
            check_log_dir(self.log_dir)
        with (
            Checkpoint(self.log_dir, {} if self.log_dir is None else identity(job)) as checkpoint,
            ProgressBar(job.plan.program_calls, display=self.display_progress) as bar,
            Interrupts() as interrupts,
        ):
            scorer = job.new_scorer(
                num_threads=self.num_threads,
                max_errors=self.max_errors,
                on_cell=bar.advance,
                interrupted=interrupts.received,
                ledger=checkpoint.ledger,
            )
            compilation = Compilation(
                job.new_search(),
                new_objective(job.plan, scorer, num_train=len(job.splits.train)),
                scorer,
                plan=job.plan,
                num_train=len(job.splits.train),
                stoppers=job.options.stoppers,
                max_seconds=self.max_seconds,
                checkpoint=checkpoint,
                bar=bar,
            )
            try:
                outcome = compilation.run()
            except BaseException as error:
                checkpoint.ledger.close()  # calls that are still under way come too late
                self._keep(job, compilation.unfinished(error), checkpoint.ledger, started=started)
                raise
            return self._keep(job, outcome, checkpoint.ledger, started=started)

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
        return estimate(prepare(self._options(seed), student, trainset=trainset, valset=valset))

    def _options(self, seed: int | None) -> Options:
        """What decides the result, with the seed of `compile`."""
        seed = self.seed if seed is None else whole_number("seed", seed, least=0, most=LARGEST_SEED) or 0
        return Options(
            metric=self.metric,
            update=self.update,
            auto=self.auto,
            overrides=Overrides(
                max_metric_calls=self.max_metric_calls,
                num_iterations=self.num_iterations,
                num_samples=self.num_samples,
                elite_fraction=self.elite_fraction,
                num_final_draws=self.num_final_draws,
            ),
            num_demos=self.num_demos,
            stop_at_score=self.stop_at_score,
            patience=self.patience,
            stop_at_mode_probability=self.stop_at_mode_probability,
            seed=seed,
        )

    def _keep(self, job: Job, outcome: Outcome, ledger: Ledger, *, started: float) -> dspy.Module:
        """Set `report` and `best_program`, and write the report to `log_dir`."""
        limits = {name: getattr(self, name) for name in ("num_threads", "max_errors", "max_seconds")}
        settings = {**job.settings(), **limits}
        seconds = time.monotonic() - started
        self.report = build_report(job, outcome, ledger, settings=settings, seconds=seconds)
        compiled = ProgramFactory(job.program).build(job.slots.demos(outcome.ordering))
        compiled.reorder_report = self.report.to_dict()
        compiled._compiled = True
        self.best_program = compiled
        if self.log_dir is not None:
            try:
                self.report.save(self.log_dir / "report.json")
            except OSError as error:  # what was paid for must not be lost to a full disk
                logger.warning("the report could not be written to %s: %s", self.log_dir, error)
        logger.info("%s", self.report)
        return compiled
