"""BatchCalibration, a DSPy optimizer that removes the label bias of a classifier."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal

import dspy
import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.optimize import minimize
from scipy.special import log_softmax

from plr_dspy.data.examples import Rows, as_examples
from plr_dspy.dspy_compat import Teleprompter
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import PURPOSE, CalibratedProgram, calibrated_output
from plr_dspy.labels.calibration import Calibration
from plr_dspy.labels.calibration_report import AS_IT_IS, LIKELIEST, CalibrationReport
from plr_dspy.labels.outputs import LabelOutput, prior_shares
from plr_dspy.labels.reader import NoProbabilities
from plr_dspy.labels.work import LabelReadingWork
from plr_dspy.lm.plain_text_adapter import Value
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.programs.calls import calls_on
from plr_dspy.programs.checks import Checked, Number, WholeNumber, arguments, check_given, check_module
from plr_dspy.programs.made_with import record_settings
from plr_dspy.programs.splits import Examples, mixed, shown_by, value_key
from plr_dspy.report.text import shares_by_label
from plr_dspy.runtime import progress_bar
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.run_log import FAILED, WRONG, CallRecord
from plr_dspy.statistics.arrays import Array
from plr_dspy.statistics.calibration import batch_offsets, cross_validated, likely_shares
from plr_dspy.statistics.comparisons import paired_interval

logger = logging.getLogger(__name__)

NUM_FIRST = 6  # stop after this many calls if no reply has label probabilities
MAX_FOLDS = 10  # maximum folds to cross-validate a linear calibration

# Weight of the L2 penalty that pulls scales to 1 and offsets to 0. A weaker penalty
# loses more with 10 or 20 examples than it gains with 100.
PENALTY = 2.0

Numbers = NDArray[np.int64]


@arguments
class BatchCalibration(Checked, Teleprompter):  # type: ignore[misc]
    """Optimizer that calibrates the label probabilities of a classifier.

    The student needs an output that is a Literal, an enum or a bool, and an LM that
    returns log-probabilities (OpenAI's chat models, vLLM, llama.cpp).

    Args:
        method: "batch" divides label probabilities by their means over trainset inputs
            (H. Zhou et al., arXiv:2309.17249). "linear" fits a scale and an offset per
            label to labelled examples, and keeps them if cross-validation finds a gain
            (M. Abbas et al., AISTATS 2024).
        num_inputs: Maximum number of examples to call the program on, stratified by
            label. With a metric, labels alternate, and weights restore their shares.
        prior: Expected share of each label among the right answers. With None, "batch"
            chooses the shares by cross-validation if examples have labels, and assumes
            equal shares otherwise. Must be None for "linear".
        metric: Metric over a set, such as ``F1("positive")``, to maximise instead of
            accuracy; requires "batch", prior=None and labelled examples.
        predictor: Name of the predictor to calibrate, if several have such an output.
        seed: Seed for sampling examples and for cross-validation folds.
        num_threads, max_errors, display_progress: As in `PLReorder`.

    Attributes:
        report: `CalibrationReport` of the last compile; None before the first.
    """

    method: Literal["batch", "linear"] = field(default="batch", kw_only=False)
    num_inputs: Annotated[WholeNumber, Field(ge=2)] = 64
    prior: Mapping[Value, Number] | None = None
    metric: SetMetric | None = None
    predictor: str | None = None

    def __post_init__(self) -> None:
        self.report: CalibrationReport | None = None
        self.check_together()

    def check_together(self) -> None:
        if self.prior is not None and self.method == "linear":
            raise UserError(f"prior must be None with method='linear'; got {dict(self.prior)}. Leave it out.")
        if self.metric is not None and (self.method == "linear" or self.prior is not None):
            raise UserError(
                f"metric requires method='batch' and prior=None; got method={self.method!r} and prior={self.prior}. "
                "Leave metric out, or the other two."
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
        """Calibrate the student.

        Args:
            student: A program, calibrated or not; it is not modified.
            trainset: Examples; duplicates and those that are also demos are skipped.
            teacher, valset: Ignored; accepted because DSPy passes them to optimizers.
            seed: Overrides the seed of the constructor.
            inputs: As in `PLReorder.compile`.

        Returns:
            The calibrated program, with the report as plain data in
            ``calibration_report``. Its `calibration` is None if answers stay unchanged.

        Raises:
            ValueError: If these arguments cannot calibrate this student on this trainset.
            NoProbabilities: If the LM returns no label probabilities.
        """
        self.report = None
        seed = self._seed(seed)
        self.check_together()
        predictor = self.predictor
        if isinstance(student, CalibratedProgram):
            predictor = predictor or student.predictor
            student = student.program
        check_module(student, "student")
        trainset = as_examples(trainset, student, name="trainset", inputs=inputs)
        check_given(student, trainset=trainset)
        output = calibrated_output(student, predictor)
        prior = None if self.prior is None else prior_shares(self.prior, output.labels)
        usable, uses_labels = self._usable(student, output, trainset)
        chooses_by_labels = uses_labels and self.method == "batch"
        examples, weights = self._draw(usable, output, seed=seed)
        replies = read_replies(
            student,
            examples,
            output,
            as_it_is=chooses_by_labels,
            display_progress=self.display_progress,
            num_threads=self.num_threads,
            max_errors=self.max_errors,
        )
        metric = "accuracy" if self.metric is None else repr(self.metric)
        report = replies.report(weights, metric=metric, num_examples=len(trainset))
        if chooses_by_labels:
            report = self._with_best_strategy(
                report, replies, examples, weights, output, label_counts=output.counts(usable)
            )
        elif self.method == "linear":
            fit = fit_linear(replies.log_probabilities, output.numbers(examples)[replies.inputs], seed=seed)
            if fit is not None:
                scales, offsets = fit
                report = replace(report, calibration=replies.calibration("linear", offsets, scales=scales))
        else:
            report = replace(report, calibration=replies.calibrated_to(prior))
        self.report = report
        logger.info("%s", report)
        program = CalibratedProgram(student, report.calibration, predictor=output.predictor)
        record_settings(program)
        program.calibration_report = asdict(report)
        return program

    def _usable(self, student: dspy.Module, output: LabelOutput, trainset: Examples) -> tuple[list[dspy.Example], bool]:
        """Return the usable examples, and whether to use their labels."""
        distinct = _distinct(student, trainset)
        labelled = [distinct[i] for i in np.flatnonzero(output.numbers(distinct) >= 0)]
        uses_labels = self.prior is None and len(labelled) > 1
        if self.method == "linear" and np.count_nonzero(output.counts(labelled)) < 2:
            raise UserError(
                f"method='linear' needs at least 2 of the labels {list(output.labels)} in field {output.name!r} of the "
                f"examples; got {len(set(output.numbers(labelled)))}. Label more examples, or pass method='batch'."
            )
        if self.metric is not None:
            if not uses_labels:
                raise UserError(
                    f"metric needs at least 2 examples with a label in field {output.name!r}; got {len(labelled)}. "
                    "Label more examples, or leave metric out."
                )
            self.metric.check(labelled)
        num_unlabelled = len(distinct) - len(labelled)
        if self.prior is None and num_unlabelled and any(output.name in example for example in distinct):
            consequence = "they are ignored" if uses_labels else "all labels are assumed to be equally frequent"
            logger.warning(
                f"{num_unlabelled} of {len(distinct)} examples have none of the labels {list(output.labels)} in field "
                f"{output.name!r}; {consequence}"
            )
        return (labelled if uses_labels else distinct), uses_labels

    def _draw(self, usable: list[dspy.Example], output: LabelOutput, *, seed: int) -> tuple[list[dspy.Example], Array]:
        count = min(self.num_inputs, len(usable))
        labels = output.numbers(usable).tolist()
        order = mixed(range(len(usable)), labels, random.Random(seed), balanced=True)
        drawn = [usable[i] for i in order]
        if self.metric is None:
            return drawn[:count], np.ones(count)
        # Rare labels matter most, so alternate labels, and restore their shares by weights.
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
        """Compare strategies on labelled examples, and report the best; the first wins ties."""
        logs = replies.log_probabilities
        input_weights = weights[replies.inputs]
        answers = {AS_IT_IS: replies.answers, LIKELIEST: logs.argmax(axis=1)}
        calibrations = {AS_IT_IS: None, LIKELIEST: Calibration.none(replies.labels)}
        for shares in likely_shares(label_counts, between=self.metric is not None):
            strategy = f"calibrated to {shares_by_label(replies.labels, shares)}"
            answers[strategy] = cross_validated(logs, shares, unseen=replies.unseen, weights=input_weights)
            calibrations[strategy] = replies.calibrated_to(shares, weights=input_weights)

        completed_examples = [examples[i] for i in replies.completed]
        num_completed = len(completed_examples)

        def score(numbers: Numbers) -> float:
            return self._score(numbers, completed_examples, output, weights[replies.completed])

        all_answers = {strategy: replies.pad_answers(numbers) for strategy, numbers in answers.items()}
        scores = {strategy: score(numbers) for strategy, numbers in all_answers.items()}
        chosen = max(scores, key=scores.__getitem__)
        constant_scores = {label: score(np.full(num_completed, i)) for i, label in enumerate(replies.labels)}
        best_label = max(constant_scores, key=constant_scores.__getitem__)
        interval = None
        if self.metric is None:
            best_label = replies.labels[int(label_counts.argmax())]
            right_numbers = output.numbers(completed_examples)
            is_right = all_answers[chosen] == right_numbers
            was_right = all_answers[AS_IT_IS] == right_numbers
            interval = paired_interval(is_right.astype(float) - was_right)
        if scores[chosen] <= constant_scores[best_label]:
            logger.warning(
                f"the best strategy ({chosen}) scores {scores[chosen]:.3f} on {num_completed} inputs, no more than "
                f"always answering {best_label!r} ({constant_scores[best_label]:.3f}). Let PLFewShot choose the demos, "
                "or use another model."
            )
        scores[f"always {best_label!r}"] = constant_scores[best_label]
        return replace(report, calibration=calibrations[chosen], scores=scores, chosen=chosen, gain_interval=interval)

    def _score(self, answers: Numbers, examples: Examples, output: LabelOutput, weights: Array) -> float:
        """Return the accuracy or metric of predicted label indices ``[n]``; -1 counts as wrong."""
        if self.metric is None:
            return float((answers == output.numbers(examples)).mean())
        predictions = [dspy.Prediction({output.name: label}) for label in output.labels.values()]
        labels: list[str | None] = []
        for example, number in zip(examples, answers.tolist(), strict=True):
            label = None
            if number >= 0:
                label = self.metric.answer(example, predictions[number])
            labels.append(label)
        right_labels = self.metric.right_labels(examples)
        return self.metric.score(right_labels, labels, labels=list(output.labels), weights=weights)


@dataclass(frozen=True)
class LabelReplies:
    """Label probabilities from n replies; those without any are only counted."""

    labels: list[str]
    inputs: Numbers  # input indices, [n]
    log_probabilities: Array  # [n, L]
    unseen: NDArray[np.bool_]  # whether a label is not among the likeliest tokens, [n, L]
    answers: Numbers  # label indices of the program's answers, -1 for none, [n]
    completed: Numbers  # indices of inputs whose calls did not fail
    num_failed: int
    num_unread: int  # replies that the adapter could not parse

    def report(self, weights: Array, *, metric: str, num_examples: int) -> CalibrationReport:
        """Return the report before a calibration is chosen."""
        means = np.average(np.exp(self.log_probabilities), axis=0, weights=weights[self.inputs])
        return CalibrationReport(
            calibration=None,
            metric=metric,
            mean_probabilities=dict(zip(self.labels, means.tolist(), strict=True)),
            num_examples=num_examples,
            num_inputs=len(self.inputs),
            program_calls=len(self.completed) + self.num_failed,
            num_failed=self.num_failed,
            num_unread=self.num_unread,
            num_silent=len(self.completed) - len(self.inputs),
        )

    def pad_answers(self, answers: Numbers) -> Numbers:
        """Extend answers to all `completed` inputs; -1 marks replies without probabilities."""
        padded = np.full(self.completed.max() + 1, -1)
        padded[self.inputs] = answers
        return padded[self.completed]

    def calibrated_to(self, shares: Array | None = None, *, weights: ArrayLike = 1.0) -> Calibration:
        """Return the batch calibration to label shares ``[L]``, by default equal ones."""
        if shares is None:
            shares = np.full(len(self.labels), 1.0 / len(self.labels))
        offsets = batch_offsets(self.log_probabilities, prior=shares, unseen=self.unseen, weights=weights)
        return self.calibration("batch", offsets, shares=np.round(shares, 6))

    def calibration(
        self, method: str, offsets: Array, *, scales: ArrayLike = (), shares: ArrayLike = ()
    ) -> Calibration:
        numbers = [tuple(np.asarray(values).tolist()) for values in (offsets, scales, shares)]
        return Calibration(
            method, tuple(self.labels), numbers[0], numbers[1], num_inputs=len(self.inputs), shares=numbers[2]
        )


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

    Unless `as_it_is`, the likeliest label replaces each answer, so the adapter never
    retries a reply that it cannot parse.
    """

    def check(records: list[CallRecord]) -> None:
        completed = [record for record in records if record.outcome != FAILED]
        has_enough = len(records) >= NUM_FIRST and len(completed) > 1
        if has_enough and not any(record.label_logprobs for record in completed):
            raise _no_probabilities(0, len(completed))

    work = LabelReadingWork(examples, output, purpose=PURPOSE, as_it_is=as_it_is)
    with progress_bar(len(examples), display=display_progress, title="BatchCalibration") as bar:
        records, scorer = calls_on(
            program,
            work,
            len(examples),
            called="calibration input",
            first=(1, NUM_FIRST),  # Make no second call if the provider refuses the first.
            check=check,
            on_cell=bar.update,
            num_threads=num_threads,
            max_errors=max_errors,
        )
    failed = [record for record in records if record.outcome == FAILED]
    if failed:
        if len(failed) == len(records):
            raise scorer.nothing_ran(failed)
        first_error = f"{failed[0].error}: {failed[0].message}"
        logger.warning("%d of %d calls failed; the first error was %s", len(failed), len(records), first_error)
    labels = list(output.labels)
    inputs = [number for number, record in enumerate(records) if record.label_logprobs]
    if len(inputs) < 2:
        raise _no_probabilities(len(inputs), len(records))
    is_unseen = np.zeros((len(inputs), len(labels)), dtype=bool)
    answers = np.full(len(inputs), -1)
    for row, number in enumerate(inputs):
        record = records[number]
        is_unseen[row, list(record.unseen_labels)] = True
        if record.value:
            answers[row] = labels.index(record.value)
    return LabelReplies(
        labels,
        np.array(inputs),
        np.array([records[number].label_logprobs for number in inputs]),
        is_unseen,
        answers,
        np.array([number for number, record in enumerate(records) if record.outcome != FAILED]),
        num_failed=len(failed),
        num_unread=sum(record.outcome == WRONG for record in records),
    )


def _no_probabilities(num_read: int, num_replies: int) -> NoProbabilities:
    return NoProbabilities(
        f"{PURPOSE} needs at least 2 replies with a label among the likeliest tokens; got {num_read} of {num_replies}. "
        "Add demos, or use another model or adapter (PlainTextAdapter for small and base models)."
    )


def fit_linear(log_probabilities: Array, answers: Numbers, *, seed: int = 0) -> tuple[Array, Array] | None:
    """Fit a scale and an offset per label by penalised logistic regression.

    Source: M. Abbas et al., "Enhancing in-context learning via linear probe
    calibration", AISTATS 2024.

    Deviation: The paper fits a full matrix to probabilities. Scaling log-probabilities by
    label needs fewer examples; batch calibration is the case with all scales 1.

    Args:
        log_probabilities: Log-probabilities of labels, ``[N, L]``.
        answers: Indices of the right labels, ``[N]``.
        seed: Seed for the cross-validation folds.

    Returns:
        Scales ``[L]`` and offsets ``[L]``; None if the cross-validated gain in
        log-likelihood is at most one standard error.
    """
    num_examples = len(answers)
    shuffled = np.random.default_rng(seed).permutation(num_examples)
    by_label = shuffled[np.argsort(answers[shuffled], kind="stable")]
    gains = np.zeros(num_examples)
    num_folds = min(MAX_FOLDS, num_examples)
    for fold in range(num_folds):
        # Folds are stratified by label.
        is_held_out = np.isin(np.arange(num_examples), by_label[fold::num_folds])
        scales, offsets = _fit(log_probabilities[~is_held_out], answers[~is_held_out])
        before = log_probabilities[is_held_out]
        after = log_softmax(before * scales + offsets, axis=1)
        gains[is_held_out] = (after - before)[np.arange(len(before)), answers[is_held_out]]
    if gains.mean() <= gains.std(ddof=1) / np.sqrt(num_examples):
        return None
    return _fit(log_probabilities, answers)


def _fit(log_probabilities: Array, answers: Numbers) -> tuple[Array, Array]:
    num_examples, num_labels = log_probabilities.shape
    rows = np.arange(num_examples)
    unchanged = np.repeat([1.0, 0.0], num_labels)

    def loss(parameters: Array) -> float:
        scales, offsets = np.split(parameters, 2)
        logs = log_softmax(log_probabilities * scales + offsets, axis=1)
        penalty = ((parameters - unchanged) ** 2).sum()
        return float(PENALTY / num_examples * penalty - logs[rows, answers].mean())

    best = minimize(loss, unchanged, method="L-BFGS-B").x
    return best[:num_labels], best[num_labels:]


def _distinct(student: dspy.Module, trainset: Examples) -> list[dspy.Example]:
    """Return the examples that are not demos, without repeated inputs."""
    demos: list[Value] = []
    for predictor in student.predictors():
        demos += predictor.demos
    shown = shown_by(demos, trainset)
    keys = [value_key(dict(example.inputs().items())) for example in trainset]
    usable = list({keys[i]: example for i, example in enumerate(trainset) if i not in shown}.values())
    if len(usable) < 2:
        raise UserError(
            f"trainset must contain at least 2 distinct inputs that are not demos; got {len(usable)} in "
            f"{len(trainset)} examples. Pass more examples."
        )
    return usable
