"""The base class of PLReorder and PLFewShot. It creates the search and chooses the signal to learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import label_output, prior_shares
from plr_dspy.labels.reader import NoProbabilities
from plr_dspy.labels.work import UNASKED, LabelWork, label_scores
from plr_dspy.optimizer.base import DemoOptimizer
from plr_dspy.optimizer.estimate import make_budget
from plr_dspy.optimizer.opening import OpenCompile
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.plackett_luce.updates import update_rule
from plr_dspy.programs.attached_results import sub_modules
from plr_dspy.programs.calls import MetricWork
from plr_dspy.programs.checks import Count, Flag, Number, Probability, arguments
from plr_dspy.report.schema import Signal
from plr_dspy.scoring.run_log import FAILED, WRONG, CallRecord
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.search import CrossEntropySearch, Search
from plr_dspy.search.thompson import ThompsonSearch
from plr_dspy.statistics.calibration import shares_to_try

# Usual and maximum number of calls to find out whether replies have log-probabilities. One call is
# not enough: its reply may have no label, or the program may answer without calling its classifier.
# The usual number is exceeded only if log-probabilities are required, a reply cannot be parsed, or
# the classifier was not called.
FIRST_CALLS = 2
MOST_CALLS = 8


@arguments
class LearningOptimizer(DemoOptimizer):
    """An optimizer that learns from scores and, if available, from log-probabilities of labels.

    Arguments are as in `PLReorder`. Subclasses define their own `auto` argument.
    """

    takes_programs: ClassVar[bool] = True
    auto: ClassVar[str | None] = "light"

    signal: Literal["auto", "score", "logprobs"] = "auto"  # type: ignore[misc]
    calibrate: Flag | Mapping[Any, Number] = False  # type: ignore[misc]
    update: Annotated[Any, AfterValidator(update_rule)] = Field("mle", validate_default=True)
    stop_at_score: Number | None = None
    patience: Count | None = None
    min_probability: Probability | None = None  # type: ignore[misc]

    def check_together(self) -> None:
        if self.auto is None and self.max_metric_calls is None:
            raise UserError(
                "auto=None needs a number of program calls; got max_metric_calls=None: pass a number as "
                "max_metric_calls, or omit auto"
            )
        if self.calibrate is not False and self.signal == "score":
            raise UserError(
                "calibrate needs log-probabilities of labels, but signal='score' requests none: omit calibrate, "
                "or pass signal='auto'"
            )

    def _check_takes_programs(self) -> None:
        super()._check_takes_programs()
        if self.auto == "paper":
            raise UserError(
                "auto='paper' cannot compare programs: compile without other programs, then pass the result and these "
                "programs to choose_program (plr-dspy choose on the command line)"
            )
        if self.calibrate is not False:
            raise UserError(
                f"calibrate={self.calibrate!r} cannot be combined with other programs, because these programs are "
                "compared without calibration: omit calibrate, and calibrate the returned program instead"
            )

    @property
    def _needing_logprobs(self) -> str:
        """The argument that needs log-probabilities of labels, or an empty string if no argument does."""
        if self.calibrate is not False:
            return "calibrate"
        if self.signal == "logprobs":
            return "signal='logprobs'"
        return ""

    def _no_logprobs(self, reason: str) -> str:
        """Return an error message for unavailable log-probabilities, with the reason and a fix."""
        argument = self._needing_logprobs
        return (
            f"{argument} needs the log-probabilities of labels, but they are not available: {reason}. Omit {argument} "
            "to search by scores. To calibrate one of several predictors, use BatchCalibration(predictor=...)."
        )

    def work(self, setup: CompileSetup) -> MetricWork:
        """Return the object that makes program calls and scores the answers.

        The object also reads log-probabilities of labels if the arguments, the program and the
        metric allow it.
        """
        one_prompt = setup.slots.space.num_distinct < 2
        if self.calibrate is not False and one_prompt:
            raise UserError(
                "calibrate needs several prompts to choose from, but all orders of the demos give the same prompt: "
                "omit calibrate, and calibrate the program with BatchCalibration instead"
            )
        reason = ""
        if self.signal != "score" and not one_prompt:
            if not setup.plan.program_calls:
                reason = "no calls are made"
            elif not setup.plan.racing:
                reason = "auto='paper' learns only from scores, as in the paper"
            else:
                labels = label_work(setup, self.calibrate)
                if isinstance(labels, LabelWork):
                    return labels
                reason = labels
        if reason and self._needing_logprobs:
            raise UserError(self._no_logprobs(reason))
        work = super().work(setup)
        work.signal = Signal(used="score", reason=reason, labels=[])
        return work

    def _check_without_plan(self, setup: CompileSetup) -> None:
        super()._check_without_plan(setup)
        if self._needing_logprobs and setup.slots.space.num_distinct > 1:
            reason = label_work(setup, self.calibrate)
            if isinstance(reason, str):
                raise UserError(self._no_logprobs(reason))

    def _check_before_calls(self, setup: CompileSetup) -> None:
        """Raise the errors that can be found before the first call.

        The metric may be slow, so score labels only if an argument needs their log-probabilities.
        """
        if self._needing_logprobs:
            super()._check_before_calls(setup)
        else:
            make_budget(setup)
            super().work(setup)

    def search(self, setup: CompileSetup, responses: LabelResponses | None = None) -> Search:
        """Return the search: PLR Algorithm 1 if the plan has no race, else Thompson sampling."""
        plan = setup.plan
        if not plan.racing:
            return CrossEntropySearch(
                setup.slots.space,
                num_samples=plan.num_samples,
                elite_fraction=plan.elite_fraction,
                update=self.update,
                seed=setup.seed,
            )
        return ThompsonSearch(
            setup.slots.space,
            num_examples=plan.num_train_examples,
            num_initial=plan.num_initial,
            classes=setup.slots.classes,
            example_classes=setup.splits.classes,
            responses=responses,
            num_samples=plan.num_samples,
            elite_fraction=plan.elite_fraction,
            update=self.update,
            seed=setup.seed,
        )

    def _probe(self, open_compile: OpenCompile) -> LabelResponses | None:
        """Make the first calls to find out whether replies have log-probabilities.

        If the search cannot learn from log-probabilities, store the reason in `work.signal`.

        Returns:
            The log-probabilities of labels, or None if the search cannot learn from them.

        Raises:
            NoProbabilities: If an argument needs log-probabilities, but replies have none.
            NothingRan: If an argument needs log-probabilities, but the last of these calls failed.
        """
        work = open_compile.work
        evaluator = open_compile.evaluator
        if not isinstance(work, LabelWork):
            return None
        record = self._decisive_record(open_compile)
        if record is None or record.label_logprobs is not None:
            return work.responses(evaluator)
        is_required = bool(self._needing_logprobs)
        has_failed = record.outcome == FAILED
        if is_required and has_failed:
            raise evaluator.nothing_ran_error(list(evaluator.records_asked().values()))
        reason = record.refused or record.lacking or "the first replies had no log-probabilities"
        if has_failed:
            reason = "the first calls failed"
        if is_required:
            raise NoProbabilities(self._no_logprobs(reason))
        work.requests.reason = reason  # With a reason, later calls request no log-probabilities.
        work.signal = Signal(used="score", reason=reason, labels=[])
        return None

    def _decisive_record(self, open_compile: OpenCompile) -> CallRecord | None:
        """Make calls until a record shows whether replies have log-probabilities, and return this record.

        If no record shows this, return the last record, or None if the budget allowed no call.
        """
        slots = open_compile.setup.slots
        evaluator = open_compile.evaluator
        record: CallRecord | None = None
        for example in range(min(MOST_CALLS, len(open_compile.setup.splits.train))):
            # The student may need demos to reply with a label, so show demos after `FIRST_CALLS` calls.
            ordering = slots.space.identity if example < FIRST_CALLS else slots.showing(1.0)
            records = evaluator.evaluate(evaluator.affordable({ordering: [example]}))
            if not records:
                return record
            record = records[ordering][example]
            if record.label_logprobs is not None or record.refused:
                return record
            is_required = bool(self._needing_logprobs)
            next_may_differ = is_required or record.lacking == UNASKED or record.outcome == WRONG
            if example + 1 >= FIRST_CALLS and not next_may_differ:
                return record
        return record


def label_work(setup: CompileSetup, calibrate: bool | Mapping[Any, float]) -> LabelWork | str:
    """Return the object that makes calls and reads log-probabilities of labels.

    If the program or the metric rules out log-probabilities, return the reason instead.
    """
    output = label_output(setup.program)
    metric = setup.options.metric
    examples = setup.scored_examples
    if isinstance(output, str):
        return output
    if output.num_none(examples):
        return f"None is the right value of {output.name!r} in some examples, and has no log-probability"
    if any(isinstance(part, CalibratedProgram) for _, part in sub_modules(setup.program)):
        return "a part of the program is calibrated"
    scores = label_scores(metric, examples, output, max_seconds=setup.options.max_seconds)
    if isinstance(scores, str):
        return scores
    work = LabelWork(
        metric,
        examples,
        output=output,
        scores=scores,
        calibrating=calibrate is not False,
        original=setup.slots.build(setup.original),
    )
    work.signal = Signal(used="logprobs", reason="", labels=list(output.labels))
    work.shares = shares_to_try(scores, between=work.confusion_scores is not None)
    if isinstance(calibrate, Mapping):
        work.shares = prior_shares(calibrate, output.labels, name="calibrate")[None]
    return work
