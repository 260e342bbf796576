"""PLReorder: the DSPy optimizer that orders a program's demos."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import dspy
from dspy.teleprompt.teleprompt import Teleprompter

from plr_dspy.compilation import Job, Outcome, find_ordering, nothing_to_order, unfinished
from plr_dspy.estimates import Estimate, estimate
from plr_dspy.inputs import (
    check_demos,
    check_examples,
    check_fields,
    check_language_model,
    check_log_dir,
    check_splits,
    check_student,
    fraction,
    whole_number,
)
from plr_dspy.loop import Progress
from plr_dspy.metrics import Metric, metric_caller
from plr_dspy.plan import BUDGETS, NOTHING_TO_DO, Overrides, make_plan
from plr_dspy.programs import ProgramFactory
from plr_dspy.progress import ProgressBar
from plr_dspy.records import Report
from plr_dspy.reporting import build_report
from plr_dspy.scoring import CellScorer
from plr_dspy.slots import ProgramSlots, add_labelled_demos
from plr_dspy.splits import make_splits
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
        num_iterations, num_samples, elite_fraction, num_final_draws: T, B, rho and K of PLR
            Algorithm 1; None leaves them to `auto`.
        num_demos: Labelled demos for a student that has none at all; None makes that an error.
        num_threads: Program calls under way at once; None takes DSPy's setting.
        max_errors: So many failed program calls end the compile, with the exception of the last; None
            takes DSPy's setting. Answers that cannot be parsed are wrong answers, not failures.
        seed: Of everything random.
        log_dir: Folder that gets the report as ``report.json``.
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
        self.num_iterations = whole_number("num_iterations", num_iterations)
        self.num_samples = whole_number("num_samples", num_samples)
        self.elite_fraction = fraction("elite_fraction", elite_fraction)
        self.num_final_draws = whole_number("num_final_draws", num_final_draws, least=0)
        self.num_demos = whole_number("num_demos", num_demos, least=2)
        self.num_threads = whole_number("num_threads", num_threads)
        self.max_errors = whole_number("max_errors", max_errors)
        self.seed = whole_number("seed", seed, least=0, most=LARGEST_SEED) or 0
        self.log_dir = None if log_dir is None else Path(log_dir)
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
            Exception: of the program or the metric, see `max_errors`.
        """
        started = time.monotonic()
        self.report = self.best_program = None
        job = self._prepare(student, trainset=trainset, valset=valset, seed=seed)
        progress = Progress()
        with ProgressBar(job.plan.program_calls, display=self.display_progress) as bar:
            scorer = job.new_scorer(
                self.metric, num_threads=self.num_threads, max_errors=self.max_errors, on_cell=bar.advance
            )
            try:
                if job.slots.space.num_distinct < 2:
                    logger.warning(
                        "all orders of the demos give the same prompt: nothing to order, no call made"
                    )
                    outcome = nothing_to_order(job)
                else:
                    outcome = find_ordering(job, scorer, bar, progress)
            except BaseException:
                self._keep(job, unfinished(job, progress), scorer, time.monotonic() - started)
                raise
        return self._keep(job, outcome, scorer, time.monotonic() - started)

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
        return estimate(self._prepare(student, trainset=trainset, valset=valset, seed=seed))

    def _keep(self, job: Job, outcome: Outcome, scorer: CellScorer, seconds: float) -> dspy.Module:
        """Set `report` and `best_program`, and write the report to `log_dir`."""
        self.report = build_report(job, outcome, scorer, settings=self._settings(job), seconds=seconds)
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

    def _prepare(
        self,
        student: dspy.Module,
        *,
        trainset: Sequence[dspy.Example],
        valset: Sequence[dspy.Example] | None,
        seed: int | None,
    ) -> Job:
        """Everything that is decided before the first program call."""
        valset = [] if valset is None else valset
        seed = self.seed if seed is None else whole_number("seed", seed, least=0, most=LARGEST_SEED) or 0
        check_student(student)
        check_examples("trainset", trainset)
        check_examples("valset", valset)
        check_language_model(student)
        check_demos(student)
        check_fields(student, trainset)
        if self.log_dir is not None:
            check_log_dir(self.log_dir)
        rng = random.Random(seed)
        program = ProgramFactory(student).build({})
        if self.num_demos is not None:
            add_labelled_demos(program, trainset, self.num_demos, rng)
        demos = [demo for predictor in program.predictors() for demo in predictor.demos]
        if not demos:
            raise ValueError(
                "student has no demos to order: compile it first with an optimizer that chooses demos, such as "
                "dspy.LabeledFewShot or dspy.BootstrapFewShot, or pass num_demos to PLReorder"
            )
        slots = ProgramSlots(program)
        splits = make_splits(trainset, valset, demos, rng, balanced=self.auto != "paper")
        if slots.space.num_distinct < 2:
            return Job(program, slots, splits, NOTHING_TO_DO, self.update, seed)
        check_splits(splits, num_trainset=len(trainset), num_valset=len(valset))
        plan = make_plan(
            self.auto,
            Overrides(
                max_metric_calls=self.max_metric_calls,
                num_iterations=self.num_iterations,
                num_samples=self.num_samples,
                elite_fraction=self.elite_fraction,
                num_final_draws=self.num_final_draws,
            ),
            num_train=len(splits.train),
            num_selection=len(splits.selection),
            num_distinct=slots.space.num_distinct,
        )
        return Job(program, slots, splits, plan, self.update, seed)

    def _settings(self, job: Job) -> dict[str, Any]:
        """Everything that decides the run, as plain data."""
        rule: Any = self.update
        parameters = {f.name: getattr(rule, f.name) for f in fields(rule)} if is_dataclass(rule) else {}
        plain = (bool, int, float, str, type(None))
        update = {name: v if isinstance(v, plain) else repr(v) for name, v in parameters.items()}
        return {
            "auto": self.auto,
            "update": {"name": self.update.name, **update},
            "seed": job.seed,
            "metric": getattr(self.metric, "__name__", type(self.metric).__name__),
            "adapter": type(dspy.settings.adapter or dspy.ChatAdapter()).__name__,
            "models": sorted(
                {str(lm.model) for p in job.program.predictors() if (lm := p.lm or dspy.settings.lm)}
            ),
            "num_demos": self.num_demos,
            "num_threads": self.num_threads,
            "max_errors": self.max_errors,
            "num_train": len(job.splits.train),
            "num_selection": len(job.splits.selection),
            **asdict(job.plan),
        }
