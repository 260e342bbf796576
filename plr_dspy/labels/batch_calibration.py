"""BatchCalibration: the DSPy optimizer that removes a classifier's label bias."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal

import dspy
import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.optimize import minimize
from scipy.special import log_softmax

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
from plr_dspy.programs.checks import Checked, Number, WholeNumber, arguments, check_given
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

NUM_FIRST = 6  # first replies; stop if none has label probabilities
MAX_FOLDS = 10  # for cross-validating a linear calibration

# Weight of squared distances of scales from 1 and offsets from 0. Lower weights lose
# more on 10 and 20 examples than they gain on 100.
PENALTY = 2.0

Numbers = NDArray[np.int64]


@arguments
class BatchCalibration(Checked, Teleprompter):  # type: ignore[misc]
    """Calibrates a classifier's label probabilities and answers by them.

    The student needs an output that is a Literal, an enum or a bool, and an LM with
    log-probabilities (OpenAI's chat models, vLLM, llama.cpp).

    Args:
        method: "batch" divides by mean probabilities over trainset inputs
            (H. Zhou et al., arXiv:2309.17249). "linear" fits a scale and an offset per
            label to labelled examples, if cross-validation finds a gain (M. Abbas et
            al., AISTATS 2024).
        num_inputs: Maximum number of examples to call the program on. Each label has
            about its share of them. With a metric, labels alternate and are weighted.
        prior: Share of inputs for which each label is right. With None, "batch" finds
            the best shares by cross-validation if examples have labels; otherwise,
            shares are equal. Not for "linear".
        metric: Metric over a set, such as ``F1("positive")``, to use instead of
            accuracy; for "batch" with labelled examples.
        predictor: Name of the predictor to calibrate; None if only one qualifies.
        seed: Seed for choosing examples.
        num_threads, max_errors, display_progress: As in `PLReorder`.

    Attributes:
        report: `CalibrationReport` of the last compile; None before.
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
            raise UserError("prior must be None with method='linear', which learns it: leave it out")
        if self.metric is not None and (self.method == "linear" or self.prior is not None):
            raise UserError("metric decides with method='batch' and without a prior: leave these out")

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: object = None,
        valset: list[dspy.Example] | None = None,
        seed: int | None = None,
    ) -> CalibratedProgram:
        """Calibrate the student.

        Args:
            student: A program, calibrated or not; it is not changed.
            trainset: Examples. Those that demos show are left out.
            teacher, valset: Ignored; other optimizers pass them.
            seed: Overrides the constructor's.

        Returns:
            The calibrated program, with the report as plain data in
            ``calibration_report``. Its `calibration` is None if answers stay as they are.
        """
        self.report = None
        seed = self._seed(seed)
        self.check_together()
        predictor = self.predictor
        if isinstance(student, CalibratedProgram):
            predictor = predictor or student.predictor
            student = student.program
        check_given(student, trainset=trainset)
        output = calibrated_output(student, predictor)
        prior = None if self.prior is None else prior_shares(self.prior, output.labels)
        usable, uses_labels = self._usable(student, output, trainset)
        labels_decide = uses_labels and self.method == "batch"
        examples, weights = self._draw(usable, output, seed=seed)
        replies = read_replies(
            student,
            examples,
            output,
            as_it_is=labels_decide,
            display_progress=self.display_progress,
            num_threads=self.num_threads,
            max_errors=self.max_errors,
        )
        metric = "accuracy" if self.metric is None else repr(self.metric)
        report = replies.report(weights, metric=metric, num_examples=len(trainset))
        if labels_decide:
            report = self._best_way(report, replies, examples, weights, output, label_counts=output.counts(usable))
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
        """Return the usable examples, and whether their labels are used."""
        distinct = _distinct(student, trainset)
        labelled = [distinct[i] for i in np.flatnonzero(output.numbers(distinct) >= 0)]
        uses_labels = self.prior is None and len(labelled) > 1
        if self.method == "linear" and np.count_nonzero(output.counts(labelled)) < 2:
            raise UserError(
                f"method='linear' needs examples with different labels at {output.name!r}, of {list(output.labels)}: "
                "give examples one, or pass method='batch'"
            )
        if self.metric is not None:
            if not uses_labels:
                raise UserError(f"metric needs examples with labels at {output.name!r}: pass some, or leave metric out")
            self.metric.check(labelled)
        num_unlabelled = len(distinct) - len(labelled)
        if self.prior is None and num_unlabelled and any(output.name in example for example in distinct):
            consequence = "these are left out" if uses_labels else "all labels are taken to be equally frequent"
            logger.warning(
                f"{num_unlabelled} of {len(distinct)} examples have none of the labels {list(output.labels)} at "
                f"{output.name!r}: {consequence}"
            )
        return (labelled if uses_labels else distinct), uses_labels

    def _draw(self, usable: list[dspy.Example], output: LabelOutput, *, seed: int) -> tuple[list[dspy.Example], Array]:
        count = min(self.num_inputs, len(usable))
        labels = output.numbers(usable).tolist()
        order = mixed(range(len(usable)), labels, random.Random(seed), balanced=True)
        drawn = [usable[i] for i in order]
        if self.metric is None:
            return drawn[:count], np.ones(count)
        # Rare labels matter most: alternate labels, weighted by their shares.
        scores = ConfusionScores(self.metric, self.metric.right_labels(drawn), output.labels)
        chosen = scores.alternate_labels(len(drawn))[:count]
        (weights,) = scores.weights(np.ones((1, count), dtype=bool), np.array(chosen))
        return [drawn[i] for i in chosen], weights

    def _best_way(
        self,
        report: CalibrationReport,
        replies: LabelReplies,
        examples: list[dspy.Example],
        weights: Array,
        output: LabelOutput,
        *,
        label_counts: Array,
    ) -> CalibrationReport:
        """Add the way to answer that scores best on labelled examples; the first wins ties."""
        logs = replies.log_probabilities
        input_weights = weights[replies.inputs]
        answers = {AS_IT_IS: replies.answered, LIKELIEST: logs.argmax(axis=1)}
        calibrations = {AS_IT_IS: None, LIKELIEST: Calibration.none(replies.labels)}
        for shares in likely_shares(label_counts, between=self.metric is not None):
            way = f"calibrated to {shares_by_label(replies.labels, shares)}"
            answers[way] = cross_validated(logs, shares, unseen=replies.unseen, weights=input_weights)
            calibrations[way] = replies.calibrated_to(shares, weights=input_weights)

        ran = [examples[i] for i in replies.ran]

        def score(numbers: Numbers) -> float:
            return self._score(numbers, ran, output, weights[replies.ran])

        all_answers = {way: replies.with_silent(numbers) for way, numbers in answers.items()}
        scores = {way: score(numbers) for way, numbers in all_answers.items()}
        chosen = max(scores, key=scores.__getitem__)
        always_scores = {label: score(np.full(len(ran), i)) for i, label in enumerate(replies.labels)}
        always = max(always_scores, key=always_scores.__getitem__)
        interval = None
        if self.metric is None:
            always = replies.labels[int(label_counts.argmax())]
            is_right = {way: numbers == output.numbers(ran) for way, numbers in all_answers.items()}
            interval = paired_interval(is_right[chosen].astype(float) - is_right[AS_IT_IS])
        if scores[chosen] <= always_scores[always]:
            logger.warning(
                f"{chosen}: {scores[chosen]:.3f} on {len(ran)} inputs, which is no more than always answering "
                f"{always!r}, {always_scores[always]:.3f}: let PLFewShot choose the demos, or take another model"
            )
        scores[f"always {always!r}"] = always_scores[always]
        return replace(report, calibration=calibrations[chosen], scores=scores, chosen=chosen, gain_interval=interval)

    def _score(self, answers: Numbers, examples: Examples, output: LabelOutput, weights: Array) -> float:
        """Return the accuracy or metric of label numbers ``[n]``; -1 counts as wrong."""
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
    """Replies with label probabilities, for n of the E inputs."""

    labels: list[str]
    inputs: Numbers  # input indices, [n]
    log_probabilities: Array  # [n, L]
    unseen: NDArray[np.bool_]  # labels not among the likeliest tokens, [n, L]
    answered: Numbers  # the program's own answers, -1 for none, [n]
    ran: Numbers  # inputs whose calls did not fail
    num_failed: int
    num_unread: int  # replies that the adapter could not read

    def report(self, weights: Array, *, metric: str, num_examples: int) -> CalibrationReport:
        """Return a report that still lacks a calibration."""
        means = np.average(np.exp(self.log_probabilities), axis=0, weights=weights[self.inputs])
        return CalibrationReport(
            calibration=None,
            metric=metric,
            mean_probabilities=dict(zip(self.labels, means.tolist(), strict=True)),
            num_examples=num_examples,
            num_inputs=len(self.inputs),
            program_calls=len(self.ran) + self.num_failed,
            num_failed=self.num_failed,
            num_unread=self.num_unread,
            num_silent=len(self.ran) - len(self.inputs),
        )

    def with_silent(self, answers: Numbers) -> Numbers:
        """Extend answers to all inputs that `ran`, with -1 for those not read."""
        answered = np.full(self.ran.max() + 1, -1)
        answered[self.inputs] = answers
        return answered[self.ran]

    def calibrated_to(self, shares: Array | None = None, *, weights: ArrayLike = 1.0) -> Calibration:
        """Calibrate mean probabilities to shares ``[L]``; None for equal shares."""
        if shares is None:
            shares = np.full(len(self.labels), 1.0 / len(self.labels))
        offsets = batch_offsets(self.log_probabilities, prior=shares, unseen=self.unseen, weights=weights)
        return self.calibration("batch", offsets, shares=np.round(shares, 6))

    def calibration(
        self, method: str, offsets: Array, *, scales: ArrayLike = (), shares: ArrayLike = ()
    ) -> Calibration:
        """Return a calibration based on these replies."""
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

    Unless `as_it_is`, it answers with the likeliest label, so that an unreadable reply
    costs no second call.
    """

    def check(records: list[CallRecord]) -> None:
        ended = [record for record in records if record.outcome != FAILED]
        are_enough = len(records) >= NUM_FIRST and len(ended) > 1
        if are_enough and not any(record.label_logprobs for record in ended):
            raise _no_probabilities(0, len(ended))

    work = LabelReadingWork(examples, output, purpose=PURPOSE, as_it_is=as_it_is)
    with progress_bar(len(examples), display=display_progress, title="BatchCalibration") as bar:
        records, scorer = calls_on(
            program,
            work,
            len(examples),
            called="calibration input",
            first=(1, NUM_FIRST),  # If the first call is refused, make no others.
            check=check,
            on_cell=bar.update,
            num_threads=num_threads,
            max_errors=max_errors,
        )
    failed = [record for record in records if record.outcome == FAILED]
    if failed:
        if len(failed) == len(records):
            raise scorer.nothing_ran(failed)
        first = f"{failed[0].error}: {failed[0].message}"
        logger.warning("%d of %d calls failed, the first by %s", len(failed), len(records), first)
    labels = list(output.labels)
    inputs = [number for number, record in enumerate(records) if record.label_logprobs]
    if len(inputs) < 2:
        raise _no_probabilities(len(inputs), len(records))
    is_unseen = np.zeros((len(inputs), len(labels)), dtype=bool)
    answered = np.full(len(inputs), -1)
    for row, number in enumerate(inputs):
        record = records[number]
        is_unseen[row, list(record.unseen_labels)] = True
        if record.value:
            answered[row] = labels.index(record.value)
    return LabelReplies(
        labels,
        np.array(inputs),
        np.array([records[number].label_logprobs for number in inputs]),
        is_unseen,
        answered,
        np.array([number for number, record in enumerate(records) if record.outcome != FAILED]),
        num_failed=len(failed),
        num_unread=sum(record.outcome == WRONG for record in records),
    )


def _no_probabilities(num_read: int, num_replies: int) -> NoProbabilities:
    return NoProbabilities(
        f"{PURPOSE} needs replies with labels among the likeliest tokens; {num_read} of {num_replies} have any: add "
        "demos, or use another adapter (PlainTextAdapter for small and base models) or model"
    )


def fit_linear(log_probabilities: Array, answers: Numbers, *, seed: int = 0) -> tuple[Array, Array] | None:
    """Fit a scale and an offset per label by penalised logistic regression.

    Source: M. Abbas et al., "Enhancing in-context learning via linear probe
    calibration", AISTATS 2024.

    Deviation: The paper multiplies probabilities by a full matrix. One scale per label
    for log-probabilities needs fewer examples and generalises batch calibration.

    Args:
        log_probabilities: Log-probabilities of labels, ``[N, L]``.
        answers: Right labels, ``[N]``.
        seed: Seed for the folds.

    Returns:
        Scales and offsets, ``[L]``; None if cross-validation finds no clear gain.
    """
    num_examples = len(answers)
    shuffled = np.random.default_rng(seed).permutation(num_examples)
    by_label = shuffled[np.argsort(answers[shuffled], kind="stable")]
    gains = np.zeros(num_examples)
    num_folds = min(MAX_FOLDS, num_examples)
    for fold in range(num_folds):
        # Each fold has its share of each label.
        is_held_out = np.isin(np.arange(num_examples), by_label[fold::num_folds])
        scales, offsets = _fit(log_probabilities[~is_held_out], answers[~is_held_out])
        before = log_probabilities[is_held_out]
        after = log_softmax(before * scales + offsets, axis=1)
        gains[is_held_out] = (after - before)[np.arange(len(before)), answers[is_held_out]]
    if gains.mean() <= gains.std(ddof=1) / np.sqrt(num_examples):
        return None
    return _fit(log_probabilities, answers)


def _fit(log_probabilities: Array, answers: Numbers) -> tuple[Array, Array]:
    """Return the scales and offsets that minimise the penalised loss."""
    num_examples, num_labels = log_probabilities.shape
    rows = np.arange(num_examples)
    unchanged = np.repeat([1.0, 0.0], num_labels)

    def loss(parameters: Array) -> float:
        """Return the penalised loss of scales and offsets, concatenated."""
        scales, offsets = np.split(parameters, 2)
        logs = log_softmax(log_probabilities * scales + offsets, axis=1)
        penalty = ((parameters - unchanged) ** 2).sum()
        return float(PENALTY / num_examples * penalty - logs[rows, answers].mean())

    best = minimize(loss, unchanged, method="L-BFGS-B").x
    return best[:num_labels], best[num_labels:]


def _distinct(student: dspy.Module, trainset: Examples) -> list[dspy.Example]:
    """Return the distinct examples that no demo shows."""
    demos: list[Value] = []
    for predictor in student.predictors():
        demos += predictor.demos
    shown = shown_by(demos, trainset)
    keys = [value_key(dict(example.inputs().items())) for example in trainset]
    usable = list({keys[i]: example for i, example in enumerate(trainset) if i not in shown}.values())
    if len(usable) < 2:
        raise UserError(
            f"trainset must hold at least 2 different inputs that no demo shows; of its {len(trainset)} examples "
            f"{len(usable)} are left: pass more"
        )
    return usable
