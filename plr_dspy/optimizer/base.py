"""What all optimizers of an order share: one compile from the arguments to the report."""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import dspy
import torch
from pydantic import Field
from tqdm import tqdm

from plr_dspy._version import __version__
from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.plan import Plan
from plr_dspy.compilation.run import CompileRun
from plr_dspy.dspy_compat import Teleprompter, format_field_value, set_compiled
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram, Calibration
from plr_dspy.labels.outputs import only_labels
from plr_dspy.labels.work import LabelWork
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.optimizer.demos import attempt_errors
from plr_dspy.optimizer.job import Estimate, Job, estimate, make_budget, prepare
from plr_dspy.optimizer.yardsticks import yardsticks
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator, adapter_advice
from plr_dspy.programs.checks import AnyMetric, Checked, Count, Flag, Folder, Positive, WholeNumber, arguments
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.fingerprint import describe, digest
from plr_dspy.programs.made_with import record_settings
from plr_dspy.programs.media import replaced_in
from plr_dspy.programs.slots import PoolSlots, ProgramSlots, add_labelled_demos
from plr_dspy.programs.splits import Examples
from plr_dspy.programs.value_classes import value_classes
from plr_dspy.report.data import Candidate, Confusion, ProgramState, Report, SlotReport
from plr_dspy.report.text import result, shorten
from plr_dspy.retrieval.predict import CalledBlindly
from plr_dspy.runtime import Redactor, interrupts, progress_bar
from plr_dspy.scoring.budget import cost_of, price_of
from plr_dspy.scoring.causes import cause_of
from plr_dspy.scoring.confusion_scores import confusion_matrix, possible_labels
from plr_dspy.scoring.run_log import WRONG, RunLog, error_counts, open_log
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.scoring.values import ValueCodec
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.search import RandomSearch, Search
from plr_dspy.search.space import WITHOUT_DEMOS, Ordering, WholeProgram

logger = logging.getLogger(__name__)

LONGEST = 500  # characters of a field's text in a report


@arguments
class Reorderer(Checked, Teleprompter, ABC):
    """What all optimizers of an order share: checks, budget, log, progress, errors and report.

    Subclasses have their own `plan`, mostly their own `search`, and override what else is not as here.
    Arguments and attributes are those of `PLReorder`, and what users call things. Where one `chooses_by_score` of the
    metric, a student without demos is a candidate as it is. One that `chooses_demos` takes programs that find their
    demos for each input.
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
    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        """Lay out a compile; arguments and errors are those of `make_plan`."""

    def search(self, job: Job, responses: LabelResponses | None = None) -> Search:
        """Make the search of a job: of random orders, the program's own first, unless a subclass has another."""
        return RandomSearch(
            job.slots.space, num_orderings=job.plan.num_initial, num_samples=job.plan.num_samples, seed=job.seed
        )

    def work(self, job: Job) -> MetricWork:
        """Return what makes a program call; it knows what the search learns from it."""
        labels: list[str] = []
        if isinstance(self.metric, SetMetric):
            labels = self.metric.output_labels(job.program, job.scored_examples)
        return MetricWork(self.metric, job.scored_examples, labels)

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
            TypeError, ValueError: for bad arguments, before any program call; with `max_cost`, when a call has used a
                model without a price.
            RuntimeError: when another compile is using `log_dir`, too few examples run for any order, or hardly any of
                the first answers can be read.
            Exception: of the program or the metric, see `max_errors`; or that log-probabilities do not come that must.
        """
        started = time.monotonic()
        self.report = self.best_program = None
        prepared = prepare(self, student, trainset, valset, seed=self._seed(seed), teacher=teacher)
        with self._open(prepared, started) as (job, work, scorer, bar):
            compilation: CompileRun | None = None
            outcome: Outcome | None = None
            try:
                if job.findable and scorer.log.header is not None and scorer.log.header.fixed_only:
                    job, work, scorer = self._without_finding(job, scorer, CalledBlindly())
                try:
                    job, compilation = self._search_of(job, work, scorer, bar)
                    outcome = compilation.run()
                except CalledBlindly as error:
                    compilation = None  # It is of demos that the job has no more.
                    job, work, scorer = self._without_finding(job, scorer, error)
                    _note_fixed_only(scorer.log)
                    job, compilation = self._search_of(job, work, scorer, bar)
                    outcome = compilation.run()
                return self._conclude(job, work, compilation, outcome, started=started)
            except BaseException as error:  # It may be an interrupt while the report was made.
                scorer.log.stop()  # calls that are still under way come too late
                compilation = compilation or self._compilation(job, work, scorer, None, bar)
                self._conclude(job, work, compilation, outcome or compilation.unfinished(error), started=started)
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
        job = prepare(self, student, trainset, valset, seed=self._seed(seed), teacher=teacher)
        make_budget(job)
        return estimate(job)

    def _choices(
        self, program: dspy.Module, trainset: Examples, valset: Examples, rng: random.Random, teacher: Any
    ) -> dict[str, Any]:
        """Return what can be ordered or chosen, as fields of the job; `others` are demos, which never score."""
        added = add_labelled_demos(program, trainset, self.num_demos, rng) if self.num_demos else []
        slots = ProgramSlots(program)
        if not slots.slots:
            why, adding = "", "pass num_demos=8, which adds labelled ones, or "
            if self.get_params().get("num_demos", 0) is not None:
                why, adding = ", and no prompt of it shows the fields of the examples" * bool(self.num_demos), ""
            if self.num_demos and len(trainset) < 3:
                why, adding = ", and trainset is too small to take some from", "pass 100 examples or more, or "
            raise UserError(
                f"{self.student_name} has no demos to order{why}: {adding}compile it first with "
                "dspy.BootstrapFewShot or PLFewShot, which make demos of its own answers"
            )
        original = WITHOUT_DEMOS if added and self.chooses_by_score else slots.space.identity
        return {"slots": slots, "original": original}

    def _search_of(self, job: Job, work: MetricWork, scorer: CellScorer, bar: tqdm) -> tuple[Job, CompileRun]:
        """Return a job once it is known what its search learns from, and its compile."""
        responses = self._probe(job, work, scorer)
        if responses is not None:
            job = replace(job, plan=job.planned(signal="logprobs"))
        return job, self._compilation(job, work, scorer, responses, bar)

    def _without_finding(
        self, job: Job, scorer: CellScorer, error: CalledBlindly
    ) -> tuple[Job, MetricWork, CellScorer]:
        """Return a job whose demos are not found for each input, and what makes its calls; raise if there is none."""
        raise error

    def _make_demos(self, job: Job, evaluator: Callable[..., ProgramEvaluator]) -> Job:
        """Make the demos that calls make before the search, by an evaluator of them; return the job with them."""
        return job

    def _probe(self, job: Job, work: MetricWork, scorer: CellScorer) -> LabelResponses | None:
        """Return what the search learns from calls beside scores, after a first one where that is needed to tell."""
        return None

    @contextlib.contextmanager
    def _open(self, job: Job, started: float | None = None) -> Iterator[tuple[Job, MetricWork, CellScorer, tqdm]]:
        """Open what a job needs to make calls, and close it at the end; yield the job when all demos are there."""
        folder = None if self.log_dir is None else Path(self.log_dir)
        with (
            torch.device("cpu"),  # wherever the caller's own tensors go
            open_log(
                folder,
                partial(self._identity, job),
                accept_changes=self.accept_changes,
                codec=lambda: ValueCodec(value_classes(job.program)),
            ) as log,
            progress_bar(
                job.plan.program_calls,
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
                budget=make_budget(job, log, started),
                interrupted=interrupted,
            )
            if job.attempts:
                job = self._make_demos(job, evaluator)
            work = self.work(job)
            names, keys = self._examples(job, work)
            log.number_examples(keys)
            payer = evaluator(job.slots, work, names=names, num_threads=self.num_threads)
            bootstrapped = [each.key for each in job.attempts]
            yield job, work, CellScorer(payer, bootstrapped=bootstrapped, influence=work.influence), bar

    def _identity(self, job: Job) -> dict[str, Any]:
        """Collect what decides the scores of a compile: the program, its models, the metric, the examples."""
        settings = job.settings()
        adapter = dspy.settings.adapter or dspy.ChatAdapter()
        return {
            "models": settings["models"],
            "adapter": settings["adapter"],
            "the calibration of student": job.calibrated_student and digest(job.calibrated_student.calibration),
            "calibrate": self.calibrate is not False,
            "signal": "score" if self.signal == "score" else "auto",  # "logprobs" asks for the same
            **describe(job.program, self.metric, job.models, adapter),
            "the examples": digest(sorted(map(digest, job.examples))),
        }

    def _examples(self, job: Job, work: MetricWork) -> tuple[list[str], list[str]]:
        """What messages call the examples that cells name by number, and what the log calls them."""
        return job.splits.names, [digest(each) for each in job.scored_examples]

    def _compilation(
        self, job: Job, work: MetricWork, scorer: CellScorer, responses: LabelResponses | None, bar: tqdm
    ) -> CompileRun:
        """Make the compile of a job, once it is known what its search learns from."""
        return CompileRun(
            self.search(job, responses),
            scorer,
            plan=job.plan,
            num_train=len(job.splits.train),
            original=job.original,
            sample=lambda: work.sample,
            advice=adapter_advice(),
            min_probability=self.min_probability,
            stop_at_score=getattr(self, "stop_at_score", None),
            patience=getattr(self, "patience", None),
            shifted=responses is not None,
            on_round=lambda last: bar.set_postfix_str(f"round {last.index + 1}, mean score {last.mean_score:.3f}"),
        )

    def _conclude(
        self, job: Job, work: MetricWork, compilation: CompileRun, outcome: Outcome, *, started: float
    ) -> dspy.Module:
        """Set `report` and `best_program`, write the report to `log_dir`, and return the program."""
        shares = () if outcome.calibration is None else outcome.calibration.shares
        program_in = partial(_program_as_scored, job, work, shares)
        program, fields = self._made(job, compilation, outcome, program_in)
        self.report = report = build_report(
            job,
            outcome,
            compilation.scorer,
            names=self._examples(job, work)[0],
            signal=work.signal,
            seconds=time.monotonic() - started,
            **yardsticks(job, compilation, outcome),
            **fields,
        )
        program.reorder_report = report.to_dict()
        if not hasattr(program, "candidate_programs"):  # An attribute of the user's own stays.
            chosen = None if outcome.chosen is None else outcome.candidates[outcome.chosen]
            best_first = sorted(outcome.candidates, key=lambda e: (e is not chosen, -e.gain.expected, -e.score))
            program.candidate_programs = [
                {
                    "score": each.score,
                    "program": program_in(each.ordering, each.offsets),
                    "origin": each.origin,
                    "ordering": job.slots.shown(each.ordering),
                }
                for each in best_first
            ]
        self.best_program = program
        if self.log_dir is not None:
            try:
                report.save(Path(self.log_dir) / "report.json")
            except OSError as error:  # what was paid for must not be lost to a full disk
                logger.warning("the report could not be written to %s: %s", self.log_dir, error)
        if "mlflow" in sys.modules:
            log_to_mlflow(report)
        return program

    def _made(
        self, job: Job, compilation: CompileRun, outcome: Outcome, program_in: Callable[..., dspy.Module]
    ) -> tuple[dspy.Module, dict[str, Any]]:
        """Return what the compile returns, and further fields of its report; `program_in` makes a program as scored."""
        return program_in(outcome.ordering, outcome.offsets), {}


def _note_fixed_only(log: RunLog) -> None:
    """Note in the log's header that the program cannot be shown demos found for each input.

    The calls that told it are none of this run, as they are none of a run that knows it from the beginning.
    """
    log.leave_out_failed()
    if log.header is not None:
        log.write_header(replace(log.header, fixed_only=True))


def _program_as_scored(
    job: Job, work: MetricWork, shares: Sequence[float], ordering: Ordering | WholeProgram, offsets: Sequence[float]
) -> dspy.Module:
    """Make the program in an order, calibrated by the offsets that it was scored with; without any, as it came."""
    program = job.slots.build(ordering)
    record_settings(program)
    if offsets:
        assert isinstance(work, LabelWork)
        kind, number = "batch" if shares else "none", len(job.scored_examples)
        found = Calibration(kind, tuple(work.output.labels), tuple(offsets), num_inputs=number, shares=tuple(shares))
        program = CalibratedProgram(program, found, predictor=work.output.predictor).bound()
    elif (student := job.calibrated_student) is not None:
        program = CalibratedProgram(program, student.calibration, predictor=student.predictor)
    elif isinstance(program, CalibratedProgram):
        program.bound()
    set_compiled(program, True)
    return program


def build_report(job: Job, outcome: Outcome, scorer: CellScorer, *, names: Sequence[str], **others: Any) -> Report:
    """Make the report of a compile that has ended; names are those of examples, others are fields of the report."""
    metric = job.optimizer.metric
    models, tokens = [*job.models, *language_models(metric)], defaultdict[str, Any](Counter)
    for tokens_of_call in scorer.log.tokens:
        for model, counts in tokens_of_call.items():
            tokens[model].update(counts)
    found = ("comparison", "evidence", "calibration", "history", "program_calls")
    errors = error_counts(scorer.log.records.items(), names)
    if job.attempts:
        errors = [*attempt_errors(job.attempts), *errors]
    # Without calls, nearest demos stand in the place of the original.
    original = job.slots.original if isinstance(job.slots, PoolSlots) else job.original
    return Report(
        original=_program_state(job, original, scorer),
        returned=_program_state(job, outcome.ordering, scorer),
        slots=_slot_reports(job, outcome, original),
        distinct_prompts=float(min(job.slots.space.num_distinct, int(sys.float_info.max))),
        candidates=[
            Candidate(
                origin=result.origin,
                ordering=job.slots.shown(result.ordering),
                score=result.score,
                expected_gain=result.gain.expected,
                probability=min(result.gain.probability, result.gain.probability_calibrated),
                probability_worse=max(result.gain.worse, result.gain.worse_calibrated),
            )
            for result in outcome.candidates
        ],
        tokens=tokens,
        cost=cost_of(tokens) if all(price_of(str(lm.model)) for lm in models) else None,
        errors=errors,
        confusion=_confusion(job, metric, outcome) if isinstance(metric, SetMetric) and outcome.answered else None,
        plr_dspy_version=__version__,
        dspy_version=dspy.__version__,
        settings=job.settings(),
        stopped=str(outcome.stop),
        stop_reason=outcome.stop.reason,
        **{name: getattr(outcome, name) for name in found},
        **others,
    )


def _confusion(job: Job, metric: SetMetric, outcome: Outcome) -> Confusion:
    """Count the labels that both programs answered."""
    numbers, before, after = zip(*outcome.answered, strict=True)
    right_labels = metric.right_labels([job.scored_examples[number] for number in numbers])
    labels = possible_labels(right_labels)

    def counts(answers: Sequence[str | None]) -> list[list[int]]:
        matrix: list[list[int]] = confusion_matrix(right_labels, answers, labels).astype(int).tolist()
        return matrix

    return Confusion(labels=labels, original=counts(before), returned=counts(after))


def _program_state(job: Job, ordering: Ordering | WholeProgram, scorer: CellScorer) -> ProgramState:
    """Count what the program shows in an ordering, and how the calls that scored it ended."""
    cells = scorer.cells_of(ordering).values()
    return ProgramState(
        num_demos=job.slots.num_demos(ordering),
        demo_tokens=job.slots.tokens(ordering) if isinstance(job.slots, PoolSlots) else None,
        num_calls=len(cells),
        num_failed=sum(bool(cell.error) for cell in cells),
        num_unread=sum(cell.outcome == WRONG and cause_of(cell.error) is None for cell in cells),
    )


def _slot_reports(job: Job, outcome: Outcome, shown: Ordering | WholeProgram) -> list[SlotReport]:
    """Make the part of the report for each predictor with demos; texts are those of prompts, without secrets."""
    ordering, original = job.slots.shown(outcome.ordering), job.slots.shown(shown)
    distributions, predictors = iter(outcome.distributions), dict(job.program.named_predictors())
    redact = Redactor([dspy.settings.lm, *language_models(job.program)])

    def start(text: str) -> str:
        without_data = replaced_in(text, lambda data: "[data]")
        return shorten(redact(without_data).encode(errors="replace").decode(), LONGEST)

    return [
        SlotReport(
            predictor=slot.predictor,
            num_demos=len(slot.demos),
            ordering=ordering[slot.predictor],
            blocks=[list(block) for block in slot.blocks],
            distributions=[next(distributions).state_dict() for _ in slot.blocks],
            demos=[
                {n: start(format_field_value(field, demo[n])) for n, field in signature.fields.items() if n in demo}
                for signature in [predictors[slot.predictor].signature]
                for demo in slot.demos
            ],
            origins=[pooled.origin for pooled in slot.pool],
            original=original[slot.predictor],
            only_labels=only_labels(
                predictors[slot.predictor], list(map(slot.demos.__getitem__, ordering[slot.predictor])), job.examples
            ),
        )
        for slot in job.slots.slots
    ]


def log_to_mlflow(report: Report) -> None:
    """Log a report to MLflow, which is imported, if a run is active.

    Settings are parameters; scores are metrics by program calls, and in percent as `eval`, by which MLflow compares
    programs; the report is ``reorder_report.json``, its figure, with matplotlib, ``reorder_report.png``.
    """
    mlflow: Any = sys.modules["mlflow"]
    try:
        if not getattr(mlflow, "active_run", lambda: None)():
            return
        scalars = {n: v for n, v in report.settings.items() if isinstance(v, (str, int, float)) and v != ""}
        if report.signal is not None:
            scalars["signal_used"] = report.signal.used
        mlflow.log_params({f"reorder.{name}": value for name, value in scalars.items()})
        found = {"program_calls": report.program_calls["total"], "cost": report.cost}
        if report.comparison is not None:
            found |= {name: getattr(report.comparison, name) for name in ("original", "chosen", "gain")}
        mlflow.log_metrics({f"reorder.{name}": value for name, value in found.items() if value is not None}, step=0)
        for round_ in report.history:
            best = round_.best_score_so_far
            told = {"reorder.best_score": best, "reorder.mean_score": round_.mean_score, "eval": 100 * best}
            mlflow.log_metrics(told, step=round_.program_calls)
        mlflow.log_dict(report.to_dict(), "reorder_report.json")
        with contextlib.suppress(ImportError):  # no matplotlib
            mlflow.log_figure(report.plot(), "reorder_report.png")
    except Exception as error:  # of whatever stores it, wherever that is; the compile is paid for
        logger.warning("the report could not be logged to MLflow: %s: %s", type(error).__name__, error)
