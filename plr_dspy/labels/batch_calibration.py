"""`BatchCalibration`, a DSPy optimizer that corrects a classifier's label bias."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import dspy
import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator, Field, SkipValidation

from plr_dspy.data.examples import Rows, as_examples
from plr_dspy.dspy_compat import Teleprompter
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import PURPOSE, CalibratedProgram, calibrated_output
from plr_dspy.labels.calibration import Calibration
from plr_dspy.labels.calibration_report import AS_IT_IS, CalibrationReport
from plr_dspy.labels.checks import NAMES_OF_CLASSES, are_whole_numbers
from plr_dspy.labels.outputs import LabelOutput, prior_shares
from plr_dspy.labels.reader import NoProbabilities
from plr_dspy.labels.work import LabelReadingWork
from plr_dspy.lm.plain_text_adapter import Value
from plr_dspy.metrics.confusion import SetMetric, check_over_set
from plr_dspy.metrics.fields import columns_of
from plr_dspy.programs.calls import calls_on
from plr_dspy.programs.checks import Checked, Number, WholeNumber, arguments, check_given, check_module
from plr_dspy.programs.made_with import record_settings
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.programs.splits import Examples, mixed, shown_by, value_key
from plr_dspy.report.formats import shares_by_label
from plr_dspy.runtime import progress_bar
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.run_log import FAILED, CallRecord
from plr_dspy.statistics.arrays import Array
from plr_dspy.statistics.calibration import batch_offsets, cross_validated, likely_shares
from plr_dspy.statistics.comparisons import paired_interval

logger = logging.getLogger(__name__)

NUM_FIRST = 6  # number of calls after which to stop if no reply has label probabilities

Indices = NDArray[np.int64]
OverSet = Annotated[SkipValidation[SetMetric], AfterValidator(check_over_set)]


@arguments
class BatchCalibration(Checked, Teleprompter):  # type: ignore[misc]
    """An optimizer that divides each label's probability by the label's mean probability on trainset inputs.

    The quotients are weighted by the labels' target shares (see `prior`). The student needs an
    output that is a Literal, an enum or a bool. The student's LM must return log-probabilities, as
    OpenAI's chat models, vLLM and llama.cpp do.

    Source: H. Zhou et al., arXiv:2309.17249.

    Args:
        num_inputs: Maximum number of examples on which to call the program. Without `metric`,
            the sample is stratified by label. With `metric`, labels are sampled as evenly as
            possible, and weights restore the labels' frequencies.
        prior: Expected share of each label among the correct answers. By default, the shares
            are chosen by cross-validation if at least two examples have labels. Otherwise, they
            are equal.
        metric: Metric over a set, such as ``F1("positive")``, to maximize instead of
            accuracy. It requires labeled examples and ``prior=None``. The metric of an earlier
            search is not used automatically, so pass it again.
        predictor: Name of the predictor to calibrate; needed only if several predictors have
            an output that is a Literal, an enum or a bool.
        seed: Seed for sampling examples.
        num_threads, max_errors, display_progress: As in `PLReorder`.

    Attributes:
        report: The `CalibrationReport` from the last call to `compile`. None if there was no call
            or the call failed.
    """

    num_inputs: Annotated[WholeNumber, Field(ge=2)] = 64
    prior: Mapping[Value, Number] | None = None
    metric: OverSet | None = None
    predictor: str | None = None

    def __post_init__(self) -> None:
        self.report: CalibrationReport | None = None
        self.check_together()

    def check_together(self) -> None:
        if self.metric is not None and self.prior is not None:
            raise UserError(
                f"metric requires prior=None; got prior={self.prior!r}: omit either metric or prior"
            )

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: Rows,
        teacher: object = None,
        valset: Rows | None = None,
        seed: int | None = None,
        inputs: Sequence[str] | None = None,
    ) -> CalibratedProgram:
        """Return a calibrated copy of the student.

        Args:
            student: The program to calibrate. It is not modified. If it is already calibrated,
                the copy gets a new calibration.
            trainset: Examples. Duplicate inputs and examples that are also demos are ignored.
            teacher, valset: Ignored, but accepted because DSPy passes both to optimizers.
            seed: Overrides the optimizer's seed.
            inputs: As in `PLReorder.compile`.

        Returns:
            The calibrated program. Its attribute ``calibration_report`` holds the report as
            plain data. If labels are used and no calibration scores higher than the student's
            own answers, the program's `calibration` is None.

        Raises:
            NoProbabilities: If fewer than two replies have label probabilities.
        """
        self.report = None
        seed = self._seed(seed)
        self.check_together()
        student, predictor = self._uncalibrated(student)
        check_module(student, "student")
        trainset = as_examples(trainset, student, name="trainset", inputs=inputs, program_name="student")
        check_given(student, trainset=trainset)
        output = calibrated_output(student, predictor)
        prior = None if self.prior is None else prior_shares(self.prior, output.labels)
        usable, uses_labels = self._usable(student, output, trainset)
        searched_by = _metric_of_search(student)
        if uses_labels and self.metric is None and searched_by:
            logger.warning(
                "the student was compiled with the metric %s, but its calibration will maximize accuracy: to "
                "maximize that metric, pass BatchCalibration(metric=%s)",
                searched_by,
                searched_by,
            )
        examples, weights = self._draw(usable, output, seed=seed)
        replies = read_replies(
            student,
            examples,
            output,
            as_it_is=uses_labels,
            display_progress=self.display_progress,
            num_threads=self.num_threads,
            max_errors=self.max_errors,
        )
        metric = "accuracy" if self.metric is None else repr(self.metric)
        report = replies.report(weights, metric=metric, num_examples=len(trainset))
        if uses_labels:
            report = self._with_best_strategy(
                report, replies, examples, weights, output, label_counts=output.counts(usable)
            )
        else:
            report = replace(report, calibration=replies.calibrated_to(prior))
        self.report = report
        logger.info("%s", report)
        program = CalibratedProgram(student, report.calibration, predictor=output.predictor)
        record_settings(program)
        program.calibration_report = asdict(report)
        return program

    def _uncalibrated(self, student: dspy.Module) -> tuple[dspy.Module, str | None]:
        """Return the student without a calibration, and the name of the predictor to calibrate, if known."""
        if not isinstance(student, CalibratedProgram):
            return student, self.predictor
        if self.predictor not in (None, student.predictor):
            raise UserError(
                f"predictor must be {student.predictor!r}, because the student is already calibrated for this one, and "
                f"a program can have only one calibration; got {self.predictor!r}: pass student.program to replace the "
                "calibration"
            )
        return student.program, student.predictor

    def _usable(
        self, student: dspy.Module, output: LabelOutput, trainset: Examples
    ) -> tuple[list[dspy.Example], bool]:
        """Return the examples from which to draw inputs, and whether to use the examples' labels.

        The examples have distinct inputs and are not demos. If labels are used, unlabeled
        examples are omitted.
        """
        distinct = _distinct(student, trainset)
        labeled = [distinct[i] for i in np.flatnonzero(output.numbers(distinct) >= 0)]
        uses_labels = self.prior is None and len(labeled) > 1
        unlabeled = [distinct[i] for i in np.flatnonzero(output.numbers(distinct) < 0)]
        problem, fix = _why_unlabeled(unlabeled, distinct, output)
        if self.metric is not None:
            if not uses_labels:
                raise UserError(
                    f"metric needs at least 2 examples with a label in field {output.name!r}; got {len(labeled)}"
                    f"{problem}: {fix or 'label more examples'}, or omit metric"
                )
            if self.metric.field not in (None, output.name):
                raise UserError(
                    f"metric must compare the calibrated field {output.name!r}; got {self.metric!r}: pass a "
                    f"metric with field={output.name!r}"
                )
            self.metric.check(labeled)
            self.metric.check_value(labeled, list(output.labels))
        if self.prior is None and fix:
            consequence = "all labels are assumed to be equally frequent"
            if uses_labels:
                consequence = "these examples are ignored"
            logger.warning(
                f"{len(unlabeled)} of {len(distinct)} examples have none of the labels {list(output.labels)} in field "
                f"{output.name!r}{problem}; {consequence}: {fix}"
            )
        return (labeled if uses_labels else distinct), uses_labels

    def _draw(
        self, usable: list[dspy.Example], output: LabelOutput, *, seed: int
    ) -> tuple[list[dspy.Example], Array]:
        count = min(self.num_inputs, len(usable))
        labels = output.numbers(usable).tolist()
        order = mixed(range(len(usable)), labels, random.Random(seed), balanced=True)
        drawn = [usable[i] for i in order]
        if self.metric is None:
            return drawn[:count], np.ones(count)
        # Rare labels affect the metric most, so sample all labels equally often. The weights
        # restore the labels' shares.
        scores = ConfusionScores(self.metric, self.metric.right_labels(drawn), output.labels)
        chosen = scores.alternate_labels(len(drawn))[:count]
        (weights,) = scores.weights(np.ones((1, count), dtype=bool), np.array(chosen))
        return [drawn[i] for i in chosen], weights

    def _with_best_strategy(
        self,
        report: CalibrationReport,
        replies: LabelReplies,
        examples: list[dspy.Example],
        weights: Array,
        output: LabelOutput,
        *,
        label_counts: Array,
    ) -> CalibrationReport:
        """Return the report with the calibration strategy that scores best on labeled examples.

        If several strategies have the highest score, choose the first. `AS_IT_IS` precedes all others.
        """
        labels = replies.labels
        weights_of_read = weights[replies.inputs]
        weights_of_completed = weights[replies.completed]
        correct = output.numbers(examples)[replies.completed]
        # Fit calibrations to inputs with label probabilities, but score the answers to all completed inputs.
        answers = {AS_IT_IS: replies.answers}
        calibrations: dict[str, Calibration | None] = {AS_IT_IS: None}
        for shares in likely_shares(label_counts, between=self.metric is not None):
            strategy = f"calibrated to {shares_by_label(labels, shares)}"
            answers_of_read = cross_validated(
                replies.log_probabilities, shares, unseen=replies.unseen, weights=weights_of_read
            )
            answers[strategy] = replies.answers_with(answers_of_read)
            calibrations[strategy] = replies.calibrated_to(shares, weights=weights_of_read)
        scores = {}
        for strategy, answers_of_completed in answers.items():
            scores[strategy] = self._score(answers_of_completed, correct, labels, weights_of_completed)
        chosen = max(scores, key=scores.__getitem__)
        constant_scores = {}
        for index, label in enumerate(labels):
            constant_answers = np.full(len(correct), index)
            constant_scores[f"always {label!r}"] = self._score(
                constant_answers, correct, labels, weights_of_completed
            )
        always = max(constant_scores, key=constant_scores.__getitem__)
        interval = None
        if self.metric is None:
            interval = paired_interval(
                (answers[chosen] == correct).astype(float) - (answers[AS_IT_IS] == correct)
            )
        if scores[chosen] <= constant_scores[always]:
            logger.warning(
                f"the best strategy ({chosen}) scores {scores[chosen]:.3f} on {len(correct)} inputs, no more than "
                f"a constant answer ({always}: {constant_scores[always]:.3f}). Let PLFewShot choose the demos, or "
                "use another model."
            )
        scores[always] = constant_scores[always]
        return replace(
            report, calibration=calibrations[chosen], scores=scores, chosen=chosen, gain_interval=interval
        )

    def _score(self, answers: Indices, correct: Indices, labels: list[str], weights: Array) -> float:
        """Return the metric's value for these answers, or their accuracy if there is no metric.

        `answers` and `correct` hold label indices, ``[c]``. An answer that is not a label is -1.
        """
        if self.metric is None:
            return float((answers == correct).mean())
        texts = [*labels, None]
        answer_texts = [texts[index] for index in answers]
        return self.metric.score(
            [labels[index] for index in correct], answer_texts, labels=labels, weights=weights
        )


@dataclass(frozen=True)
class LabelReplies:
    """The label probabilities in a program's replies.

    ``n`` is the number of replies with label probabilities, ``c`` is the number of completed
    calls, and ``L`` is the number of labels.
    """

    labels: list[str]
    inputs: Indices  # index of each reply's input, [n]
    log_probabilities: Array  # log-probability of each label in each reply, [n, L]
    unseen: NDArray[np.bool_]  # whether each label is missing from the likeliest tokens, [n, L]
    completed: Indices  # indices of inputs whose calls did not fail, in ascending order, [c]
    answers: Indices  # label indices of the program's own answers, or -1 if an answer is not a label, [c]
    num_failed: int

    def report(self, weights: Array, *, metric: str, num_examples: int) -> CalibrationReport:
        """Return a report whose calibration is still to be chosen."""
        means = np.average(np.exp(self.log_probabilities), axis=0, weights=weights[self.inputs])
        return CalibrationReport(
            calibration=None,
            metric=metric,
            mean_probabilities=dict(zip(self.labels, means.tolist(), strict=True)),
            num_examples=num_examples,
            num_inputs=len(self.inputs),
            program_calls=len(self.completed) + self.num_failed,
            num_failed=self.num_failed,
        )

    def answers_with(self, read_answers: Indices) -> Indices:
        """Return the answers to all completed inputs, ``[c]``.

        `read_answers`, ``[n]``, are the new answers to inputs with label probabilities. For all
        other inputs, the program's own answers are kept, as in a calibrated program.
        """
        answers = self.answers.copy()
        answers[np.searchsorted(self.completed, self.inputs)] = read_answers
        return answers

    def calibrated_to(self, shares: Array | None = None, *, weights: ArrayLike = 1.0) -> Calibration:
        """Return the calibration whose target label shares are `shares`, ``[L]``. None means equal shares."""
        if shares is None:
            shares = np.full(len(self.labels), 1.0 / len(self.labels))
        offsets = batch_offsets(self.log_probabilities, prior=shares, unseen=self.unseen, weights=weights)
        return Calibration(tuple(self.labels), tuple(offsets.tolist()), tuple(np.round(shares, 6).tolist()))


def read_replies(
    program: dspy.Module,
    examples: Examples,
    output: LabelOutput,
    *,
    as_it_is: bool = False,
    display_progress: bool = False,
    num_threads: int | None = None,
    max_errors: int | None = None,
) -> LabelReplies:
    """Call a program on examples and read the label probabilities in its replies.

    If `as_it_is` is true, the program keeps its own answers. Otherwise, the likeliest label
    replaces each answer, so that the adapter does not retry unparsable replies.
    """

    def check(records: list[CallRecord]) -> None:
        completed = [record for record in records if record.outcome != FAILED]
        has_enough = len(records) >= NUM_FIRST and len(completed) > 1
        if has_enough and not any(record.label_logprobs for record in completed):
            raise _no_probabilities(0, len(completed))

    work = LabelReadingWork(examples, output, purpose=PURPOSE, as_it_is=as_it_is)
    with progress_bar(len(examples), display=display_progress, title="BatchCalibration") as bar:
        records, evaluator = calls_on(
            ProgramSlots(program),
            work,
            len(examples),
            called="calibration input",
            first=(1, NUM_FIRST),  # The first call is made alone, because the provider may reject it.
            check=check,
            on_cell=bar.update,
            num_threads=num_threads,
            max_errors=max_errors,
        )
    completed = [index for index, record in enumerate(records) if record.outcome != FAILED]
    if not completed:
        raise evaluator.nothing_ran_error(records)
    num_labels = sum(bool(record.value) and not record.lacking for record in records)
    num_others = sum(bool(record.lacking) for record in records)
    if num_labels >= num_others:
        # Most answers are labels, so the others are probably deliberate, such as "unsure". Calibration
        # does not change them. Otherwise, the program probably converts labels to other values.
        records = [
            replace(record, value=None, label_logprobs=None) if record.lacking else record
            for record in records
        ]
    labels = list(output.labels)
    inputs = [index for index, record in enumerate(records) if record.label_logprobs]
    if len(inputs) < 2:
        raise _no_probabilities(len(inputs), len(records))
    readings = [records[index] for index in inputs]
    is_unseen = np.zeros((len(inputs), len(labels)), dtype=bool)
    for row, reading in enumerate(readings):
        is_unseen[row, list(reading.unseen_labels)] = True
    return LabelReplies(
        labels,
        np.array(inputs),
        np.array([reading.label_logprobs for reading in readings]),
        is_unseen,
        np.array(completed),
        np.array([_label_index(records[index], labels) for index in completed]),
        num_failed=len(records) - len(completed),
    )


def _label_index(record: CallRecord, labels: Sequence[str]) -> int:
    """Return the index of a call's answer in `labels`, or -1 if the answer is not a label."""
    return labels.index(record.value) if record.value else -1


def _no_probabilities(num_read: int, num_replies: int) -> NoProbabilities:
    return NoProbabilities(
        f"{PURPOSE} needs at least 2 replies with a label among the likeliest tokens; got {num_read} from "
        f"{num_replies} calls. Add demos, or use another model or adapter (PlainTextAdapter for small and base models)."
    )


def _metric_of_search(student: dspy.Module) -> str:
    """Return the repr of the metric over a set that the student was compiled with, or an empty string."""
    report = getattr(student, "reorder_report", None)
    if not isinstance(report, Mapping):
        return ""
    metric = str(report.get("settings", {}).get("metric", ""))
    return metric if "(" in metric else ""  # Only names of metrics over a set contain arguments.


def _why_unlabeled(
    unlabeled: Sequence[dspy.Example], examples: Sequence[dspy.Example], output: LabelOutput
) -> tuple[str, str]:
    """Return two parts of a message: the reason for missing labels, and the fix.

    The reason may be empty. Both parts are empty if no label is missing. They are also empty if no
    example has the output's field and the unlabeled examples have only inputs. The labels then
    seem to be omitted on purpose.
    """
    if not unlabeled:
        return "", ""
    values = output.other_values(unlabeled)
    if values:
        fix = "replace these values with labels"
        if are_whole_numbers([example.get(output.name) for example in unlabeled]):
            fix += f"; {NAMES_OF_CLASSES}"
        return f", but {output.describe(values, unlabeled)}", fix
    num_none = output.num_none(unlabeled)
    if num_none:
        return f" (None: {num_none})", "if None is a category, make it a label, such as 'none'"
    if any(output.name in example for example in examples):
        return "", "add labels to these examples"
    if any(example.labels().keys() for example in unlabeled):
        fix = f"if one of these columns holds the labels, rename it to {output.name!r}"
        return f"; the columns are {columns_of(unlabeled)}", fix
    return "", ""


def _distinct(student: dspy.Module, trainset: Examples) -> list[dspy.Example]:
    """Return one example for each distinct set of inputs. Omit examples that are also demos.

    Raise a ValueError if fewer than two examples remain.
    """
    demos: list[Value] = []
    for predictor in student.predictors():
        demos += predictor.demos
    shown = shown_by(demos, trainset)
    keys = [value_key(dict(example.inputs().items())) for example in trainset]
    usable = list({keys[i]: example for i, example in enumerate(trainset) if i not in shown}.values())
    if len(usable) < 2:
        raise UserError(
            f"trainset must contain at least 2 distinct inputs that are not demos; got {len(usable)} in "
            f"{len(trainset)} examples: pass more examples"
        )
    return usable
