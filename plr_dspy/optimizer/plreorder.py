"""PLReorder: the DSPy optimizer that learns the order of a program's demos."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import dspy
import numpy as np
from pydantic import AfterValidator, Field

from plr_dspy.compilation.plan import Plan, make_plan
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import LabelCounts, LabelOutput, label_output, prior_shares, warn_of_labels
from plr_dspy.labels.reader import NoProbabilities
from plr_dspy.labels.work import UNASKED, LabelWork, label_scores
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.optimizer.job import Job
from plr_dspy.plackett_luce.updates import update_rule
from plr_dspy.programs.calls import MetricWork
from plr_dspy.programs.checks import Count, Flag, Fraction, Number, Probability, WholeNumber, arguments
from plr_dspy.report.schema import Signal
from plr_dspy.scoring.run_log import FAILED, WRONG, CallRecord
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.search import CrossEntropySearch, Search, ThompsonSearch
from plr_dspy.statistics.calibration import Array, right_counts, shares_to_try

logger = logging.getLogger(__name__)

# Calls that tell whether log-probabilities come: a reply may be no label, an example be answered without an LM. Beyond
# the first ones, more are made only if log-probabilities must come, replies cannot be parsed, or no LM was asked.
FIRST_CALLS, MOST_TRIES = 2, 8


@arguments
class PLReorder(Reorderer):
    """Searches the orders of a program's demos, which a learnt Plackett-Luce distribution proposes, and picks the best.

    Demos, instructions and weights stay as they are: run it after an optimizer that chooses demos.
    Source: "PLR: Plackett-Luce for Reordering In-Context Learning Examples", arXiv:2603.21373.

    Args:
        metric: ``metric(example, prediction)``; larger is better. Bools, numbers and ``Prediction(score=...)`` count.
            Further parameters, such as ``trace``, get their defaults, or None.
        signal: What the search learns from a call. "score" is the metric's score alone; "logprobs" the
            log-probabilities of labels as well, which tell the same with a fraction of the calls; "auto" takes them
            where they come with the calls that are made anyway, and says in the report why it did not. They do where
            exactly one output of the program is a Literal, an enum or a bool, the metric needs nothing but its
            value, and the endpoint gives them (OpenAI's chat models, vLLM, llama.cpp). The metric is asked once for
            each example and label, before any call.
        calibrate: Score orders by calibrated answers, and return a `CalibratedProgram` in the chosen order: then an
            order is chosen for what calibration cannot give (docs/calibration.md). It costs no further call, and
            needs what signal="logprobs" needs. True calibrates to the shares that labels have in the examples, if these
            are clearly uneven, or to the same share each, or not at all, by what scores best; a dict from labels to
            shares says them. Gains are over the student as it is, which returns as it was where nothing is better.
        update: "mle", "ema", "mixture", or an update object such as ``MixtureEM(num_components=2)``.
        auto: Budget in program calls: "light" (1,000), "medium" (3,000) or "heavy" (10,000). "paper"
            runs PLR Algorithm 1 with the paper's values, every sample on the whole train split: at
            most 15 x 15 x train + 13 x selection examples. None takes `max_metric_calls`.
        max_metric_calls: Budget in program calls instead; never exceeded.
        max_seconds: No program call begins later than this; those under way end. The search gives the
            final comparison its share of the time.
        max_cost: US dollars. No call begins that may take the sum past them, by what calls have cost so far; race and
            final comparison get their share. What `log_dir` holds counts. It needs a price for each model.
        stop_at_score: The search ends after the round in which an order has this score on the train split,
            as the search estimates it.
        patience: The search ends when so many rounds in a row left the best order what it was.
        min_probability: Of the orders that are better on new examples with this probability or more, the one with the
            largest expected gain replaces the original one; with none of them the original stays. 0.9 changes only what
            is sure, and 0 whatever is expected to gain at all. None takes those that are at least three times as likely
            to be better as to be worse. With auto="paper" it is 0, and of these orders the best on the selection split
            is taken.
        num_iterations, num_samples, elite_fraction, num_final_draws: T, B, rho and K of PLR
            Algorithm 1; None leaves them to `auto`.
        num_demos: Labelled demos for a student that has none at all; None makes that an error.
        num_threads: Program calls under way at once; None takes DSPy's setting.
        max_errors: So many failed program calls end the compile, with the exception of the last; None
            takes DSPy's setting, or a twentieth of the calls made if that is more. An example that runs for no order
            counts once. Answers that cannot be parsed are wrong answers, not failures. A metric whose first value is no
            number ends it at once.
        seed: Of everything random.
        log_dir: Folder that keeps every finished call and every round (``calls.jsonl``), and the report
            (``report.json``). A compile with the same program, metric, models and examples goes on from there: no
            finished call is made again, and the search begins anew only if arguments changed that decide its course. As
            long as it holds no score, and no demo of a teacher, any other compile may start there, with its whole
            budget. None keeps nothing.
        accept_changes: Go on from a `log_dir` although the program, the metric, a model or an example is not
            what it was, because the scores paid for there hold all the same.
        display_progress: Draw a progress bar; where you have set up no log handlers, also show a line for each
            round and one at the end, as DSPy does.

    Attributes:
        report: The `Report` of the last compile, also when it was interrupted or ended in an error.
        best_program: What the last compile returned; after an interrupt or an error, the program in
            the best order that the search had seen.

    Raises:
        TypeError, ValueError: for arguments out of range; the message says what to pass.
    """

    name = "PLReorder"
    searched: ClassVar[str] = "orders"  # as of `make_plan`

    signal: Literal["auto", "score", "logprobs"] = "auto"  # type: ignore[misc]
    calibrate: Flag | Mapping[Any, Number] = False  # type: ignore[misc]
    update: Annotated[Any, AfterValidator(update_rule)] = Field("mle", validate_default=True)
    auto: Literal["light", "medium", "heavy", "paper"] | None = "light"
    stop_at_score: Number | None = None
    patience: Count | None = None
    min_probability: Probability | None = None  # type: ignore[misc]
    num_iterations: Count | None = None
    num_samples: Count | None = None
    elite_fraction: Fraction | None = None
    num_final_draws: Annotated[WholeNumber, Field(ge=0)] | None = None

    def check_together(self) -> None:
        """Raise a ValueError where arguments do not go together."""
        if self.auto is None and self.max_metric_calls is None:
            raise UserError("auto=None needs a number of program calls: pass max_metric_calls")
        asked = self._needing_logprobs
        if self.calibrate is not False and self.signal == "score":
            raise UserError("calibrate needs log-probabilities: pass signal='auto' or leave it out")
        if self.auto == "paper" and asked:
            raise UserError(f"auto='paper' learns from scores alone, as the paper does: leave out {asked}")

    @property
    def _needing_logprobs(self) -> str:
        """The argument that needs the log-probabilities of labels, if any."""
        return "calibrate" if self.calibrate is not False else "signal='logprobs'" * (self.signal == "logprobs")

    def _no_logprobs(self, reason: str) -> str:
        """Say that there are no log-probabilities, and what to do."""
        several = self.calibrate is not False and "predictors" in reason
        of_one = "; BatchCalibration(predictor=...) calibrates one predictor of several" * several
        return (
            f"{self._needing_logprobs} needs the log-probabilities of labels, and there are none: {reason}. Leave it "
            f"out to go on with scores{of_one}"
        )

    def plan(self, *, signal: str = "score", **sizes: Any) -> Plan:
        names = ("max_metric_calls", "num_iterations", "num_samples", "elite_fraction", "num_final_draws")
        chosen: dict[str, Any] = {name: getattr(self, name) for name in names}
        return make_plan(self.auto, signal=signal, searched=self.searched, **chosen, **sizes)

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Warn of a program that is calibrated, and is not to be calibrated anew."""
        if isinstance(program, CalibratedProgram):
            logger.warning("student is calibrated for the order that its demos have: pass calibrate=True")

    def work(self, job: Job) -> MetricWork:
        """Return what makes a call: it reads log-probabilities where the program and the metric allow for it.

        A ValueError says where they do not and must be read, and where shares of labels do not fit the labels.
        """
        one_prompt = job.slots.space.num_distinct < 2
        if self.calibrate is not False and one_prompt:
            raise UserError(
                "calibrate=True chooses among orders, and all orders of the demos give the same prompt: pass the "
                "program to BatchCalibration"
            )
        found: LabelWork | str = ""
        if self.signal != "score" and not one_prompt:
            found = label_work(job) if job.plan.racing else "auto='paper' scores orders as the paper does"
        if isinstance(found, LabelWork):
            return found
        if found and self._needing_logprobs:
            raise UserError(self._no_logprobs(found))
        work = super().work(job)
        work.signal = Signal(used="score", reason=found, labels=[])
        return work

    def search(self, job: Job, responses: LabelResponses | None = None) -> Search:
        plan = job.plan
        shape: dict[str, Any] = {"update": self.update, "seed": job.seed}
        shape |= {name: getattr(plan, name) for name in ("num_samples", "elite_fraction")}
        if not plan.racing:
            return CrossEntropySearch(job.slots.space, **shape)
        return ThompsonSearch(
            job.slots.space,
            num_examples=plan.num_train_examples,
            num_initial=plan.num_initial,
            classes=tuple(classes for slot in job.slots.slots for classes in slot.classes),
            example_classes=job.splits.classes,
            responses=responses,
            **shape,
        )

    def _probe(self, job: Job, work: MetricWork, scorer: CellScorer) -> LabelResponses | None:
        """Make the first calls, unless paid, and say in `work.signal` if log-probabilities come; raise if they must."""
        if not isinstance(work, LabelWork):
            return None
        # The first cell that says whether log-probabilities come, or the last one tried; None where none could be paid.
        cell: CallRecord | None = None
        required, num_first = bool(self._needing_logprobs), min(job.plan.num_first_examples, FIRST_CALLS)
        # A student without demos may never say a label; with demos it does.
        tried = [job.slots.space.identity] * num_first + [job.slots.showing(1.0)] * (MOST_TRIES - num_first)
        for example, ordering in enumerate(tried[: len(job.splits.train)]):
            if not (cells := scorer.cells(scorer.affordable({ordering: [example]}))):
                break
            cell = cells[ordering][example]
            if cell.label_logprobs is not None or cell.refused:
                break
            if example + 1 >= num_first and not (required or cell.lacking == UNASKED or cell.outcome == WRONG):
                break
        if cell is None or cell.label_logprobs is not None:
            return work.responses(scorer, work.shares)
        work.requests.wanted = False
        reason = cell.refused or cell.lacking or "the first answers came without any"
        if cell.outcome == FAILED:
            reason = "the first calls failed"
            if required:
                raise scorer.nothing_ran(list(scorer.cells_asked().values()))
        if required:
            raise NoProbabilities(self._no_logprobs(reason))
        work.signal = Signal(used="score", reason=reason, labels=[])
        return None


def label_work(job: Job) -> LabelWork | str:
    """Make work that reads log-probabilities, or say why the program or the metric does not allow for it."""
    output, metric, examples = label_output(job.program), job.optimizer.metric, job.scored_examples
    if isinstance(output, str):
        return output
    scores = label_scores(metric, examples, output, max_seconds=job.optimizer.max_seconds)
    if isinstance(scores, str):
        return scores
    counts = _label_counts(job, output, scores)
    warn_of_labels(job.program, output, counts, by_accuracy=not isinstance(metric, SetMetric))
    own = None if job.calibrated_student is None else job.calibrated_student.calibration
    calibrate = job.optimizer.calibrate
    work = LabelWork(
        metric,
        examples,
        output=output,
        scores=scores,
        calibrating=calibrate is not False,
        original=job.slots.build(job.original),
        own=None if own is None else own.applied,
    )
    work.signal = Signal(used="logprobs", reason="", labels=list(output.labels))
    work.shares = shares_to_try(scores, between=work.influence is not None)
    if isinstance(calibrate, Mapping):
        work.shares = prior_shares(calibrate, output.labels, name="calibrate")[None]
    return work


def _label_counts(job: Job, output: LabelOutput, scores: Array) -> LabelCounts:
    """Count the labels of the trainset; where these are not what the metric calls right, the labels that score best."""
    numbers = output.numbers(job.scored_examples)
    known = np.flatnonzero(numbers >= 0)
    best = scores[known].max(axis=1)
    if known.size and (scores[known, numbers[known]] == best).all():
        return LabelCounts.of(output, job.trainset, name=job.optimizer.trainset_name)
    num_none = output.num_none(job.scored_examples)
    return LabelCounts(right_counts(scores), f"{len(scores)} examples that score", num_none)
