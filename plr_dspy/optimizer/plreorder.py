"""PLReorder: the DSPy optimizer that learns the order of a program's demos."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Annotated, Any, Literal

import dspy
from pydantic import AfterValidator, BeforeValidator, Field, SkipValidation

from plr_dspy.compilation.plan import Plan, make_plan
from plr_dspy.labels.calibrated_program import CalibratedProgram, Calibration
from plr_dspy.labels.work import LabelWork
from plr_dspy.optimizer.base import Reorderer, as_plain_data
from plr_dspy.optimizer.job import Job
from plr_dspy.optimizer.signal import probe, work_of
from plr_dspy.plackett_luce.updates import update_rule
from plr_dspy.programs.arguments import Count, Fraction, Number, Probability, WholeNumber, arguments, shown
from plr_dspy.programs.calls import MetricWork
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.search import CrossEntropySearch, Search
from plr_dspy.search.stopping import Patience, Stopper, TargetScore
from plr_dspy.search.thompson import ThompsonSearch

logger = logging.getLogger(__name__)


def _flag_or_shares(value: Any) -> Any:
    """The value, if it is a bool or a dict of numbers that is not empty."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, Mapping) or not value:
        raise ValueError(
            f"calibrate must be True, False, or a dict from labels to shares; got {shown(value)}"
        )
    for label, share in value.items():
        if isinstance(share, bool) or not isinstance(share, Real) or not math.isfinite(share):
            raise ValueError(
                f"calibrate must have a number for each label; got {shown(share)} for {shown(label)}"
            )
    return dict(value)


@arguments
class PLReorder(Reorderer):
    """Learns a Plackett-Luce distribution over the orders of a program's demos, and picks one.

    Demos, instructions and weights stay as they are: run it after an optimizer that chooses demos.
    Source: "PLR: Plackett-Luce for Reordering In-Context Learning Examples", arXiv:2603.21373.

    Args:
        metric: ``metric(example, prediction)``; larger is better. Bools, numbers and
            ``Prediction(score=...)`` count. Further parameters, such as ``trace``, get their defaults,
            or None.
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
            largest expected gain replaces the original one; with none of them the original stays. None takes 0.5,
            which changes what is more likely better than not; 0.9 changes only what is sure, and 0 whatever is expected
            to gain at all. With auto="paper" it is 0, and of these orders the best on the selection split is taken.
        num_iterations, num_samples, elite_fraction, num_final_draws: T, B, rho and K of PLR
            Algorithm 1; None leaves them to `auto`.
        num_demos: Labelled demos for a student that has none at all; None makes that an error.
        num_threads: Program calls under way at once; None takes DSPy's setting.
        max_errors: So many failed program calls end the compile, with the exception of the last; None
            takes DSPy's setting. An example that runs for no order counts once. Answers that cannot be
            parsed are wrong answers, not failures. A metric whose first value is no number ends it at once.
        seed: Of everything random.
        log_dir: Folder that keeps every finished call and every round (``cells.jsonl``), and the report
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

    signal: Literal["auto", "score", "logprobs"] = "auto"  # type: ignore[misc]
    calibrate: Annotated[  # type: ignore[misc]
        SkipValidation[bool | Mapping[Any, float]], BeforeValidator(_flag_or_shares)
    ] = False
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
            raise ValueError("auto=None needs a number of program calls: pass max_metric_calls")
        if self.calibrate is not False and self.signal == "score":
            raise ValueError("calibrate needs log-probabilities: pass signal='auto' or leave it out")
        if self.auto == "paper" and (self.calibrate is not False or self.signal == "logprobs"):
            what = "calibrate" if self.calibrate is not False else "signal='logprobs'"
            raise ValueError(
                f"auto='paper' scores orders as the paper does, by no log-probabilities: leave out {what}"
            )

    @property
    def balanced(self) -> bool:  # type: ignore[override]
        """Whether the splits have the classes evenly mixed; the paper shuffles, no more."""
        return self.auto != "paper"

    @property
    def stoppers(self) -> list[Stopper]:  # type: ignore[override]
        """What ends the search early."""
        stoppers: list[Stopper] = []
        if self.stop_at_score is not None:
            stoppers.append(TargetScore(self.stop_at_score))
        if self.patience is not None:
            stoppers.append(Patience(self.patience))
        return stoppers

    def arguments(self) -> dict[str, Any]:
        """Return the user's arguments that decide the result, but for the seed, as plain data."""
        rule = self.update
        names: list[str] = [field.name for field in fields(rule)] if is_dataclass(rule) else []
        parameters = {name: getattr(rule, name) for name in names}
        return {**super().arguments(), "update": {"name": rule.name, **as_plain_data(parameters)}}

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        """Lay out a compile."""
        return make_plan(
            self.auto,
            max_metric_calls=self.max_metric_calls,
            num_iterations=self.num_iterations,
            num_samples=self.num_samples,
            elite_fraction=self.elite_fraction,
            num_final_draws=self.num_final_draws,
            num_train=num_train,
            num_selection=num_selection,
            num_distinct=num_distinct,
            signal=signal,
        )

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Warn of a program that is calibrated, and is not to be calibrated anew."""
        if isinstance(program, CalibratedProgram):
            logger.warning("student is calibrated for the order that its demos have: pass calibrate=True")

    def work(self, job: Job) -> MetricWork:
        """Return what makes a call: it reads log-probabilities where the program and the metric allow for it."""
        return work_of(job)

    def search(self, job: Job, plan: Plan, responses: LabelResponses | None = None) -> Search:
        """Make the search of a plan."""
        shape: dict[str, Any] = {
            "update": self.update,
            "num_samples": plan.num_samples,
            "elite_fraction": plan.elite_fraction,
            "seed": job.seed,
        }
        if not plan.racing:
            return CrossEntropySearch(job.slots.space, **shape)
        return ThompsonSearch(
            job.slots.space,
            num_examples=plan.num_train_examples,
            num_initial=plan.num_initial,
            classes=job.slots.classes,
            example_classes=job.splits.classes,
            responses=responses,
            **shape,
        )

    def calibrated(
        self,
        job: Job,
        work: MetricWork,
        program: dspy.Module,
        offsets: Sequence[float],
        shares: Sequence[float],
    ) -> dspy.Module:
        """Return a program in an order as it was scored; without offsets, with the calibration that it came with."""
        own = job.own
        if not offsets and own:
            return CalibratedProgram(program, own.calibration, predictor=own.predictor)
        if self.calibrate is False or not offsets or not isinstance(work, LabelWork):
            return super().calibrated(job, work, program, offsets, shares)
        found = Calibration(
            "batch" if shares else "none",
            tuple(work.output.labels),
            tuple(offsets),
            num_inputs=len(job.splits.train) + len(job.splits.selection),
            shares=tuple(shares),
        )
        return CalibratedProgram(program, found, predictor=work.output.predictor).bound()

    def _probe(self, job: Job, work: MetricWork, scorer: CellScorer) -> LabelResponses | None:
        """Return the log-probabilities of calls, where the first one has brought any."""
        return probe(job, work, scorer) if isinstance(work, LabelWork) else None
