"""BatchCalibration: the DSPy optimizer that removes the label bias of a classifier."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import Annotated, Literal

import dspy
import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.optimize import minimize
from scipy.special import log_softmax

from plr_dspy.dspy_compat import Teleprompter
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import PURPOSE, CalibratedProgram, Calibration, calibrated_output
from plr_dspy.labels.calibration_report import (
    AS_IT_IS,
    GIVEN_TWICE,
    LIKELIEST,
    NOT_NEEDED,
    REPLACED,
    SHOWN,
    WITHOUT_LABEL,
    CalibrationReport,
)
from plr_dspy.labels.outputs import (
    CONTENT_FREE,
    LabelCounts,
    LabelOutput,
    check_text_inputs,
    prior_shares,
    warn_of_labels,
)
from plr_dspy.labels.reader import NoProbabilities
from plr_dspy.labels.work import LabelWork
from plr_dspy.lm.plain_text_adapter import Value
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.programs.calls import calls_on
from plr_dspy.programs.checks import Checked, Number, WholeNumber, arguments, check_given
from plr_dspy.programs.splits import Examples, mixed, shown_by, value_key, warn_of_repeats
from plr_dspy.report.text import shares_by_label
from plr_dspy.runtime import progress_bar
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.run_log import FAILED, WRONG, CallRecord
from plr_dspy.statistics.calibration import Array, batch_offsets, calibrated, cross_validated, is_uneven, likely_shares

logger = logging.getLogger(__name__)

NUM_FIRST = 6  # replies; stop if none of them has label probabilities
INPUTS_PER_LABEL = 5  # fewer cost a point or more
EVEN = "all are taken to be equally frequent"
MAX_FOLDS = 10  # of the cross-validation of a linear calibration

# Weight of squared distances of scales from 1 and offsets from 0. Weaker ones lose
# more on 10 and 20 examples than they gain on 100.
PENALTY = 2.0

Numbers = NDArray[np.int64]


@arguments
class BatchCalibration(Checked, Teleprompter):  # type: ignore[misc]
    """Calibrates the label probabilities of a classifier, and answers by them.

    The student needs an output that is a Literal, an enum or a bool, and an LM with
    log-probabilities (OpenAI's chat models, vLLM, llama.cpp), or an output whose
    probabilities replies state (`dspy.experimental.Choice`, `Noul`).

    Args:
        method: "batch" divides by mean probabilities over inputs of the trainset
            (H. Zhou et al., arXiv:2309.17249), "contextual" by those over three texts
            without content (T. Z. Zhao et al., ICML 2021). "linear" fits a scale and an
            offset per label to labelled examples, if cross-validation finds a gain
            (M. Abbas et al., AISTATS 2024).
        num_inputs: Largest number of examples to call the program on. Each label has
            about its share of them. With a metric, labels take turns and are weighted.
        prior: Share of inputs that each label is right for, by label. With None,
            "batch" finds the best shares by cross-validation if examples have labels.
            Otherwise shares are even. "linear" takes none.
        metric: Metric over a set, such as ``F1("positive")``, to compare by instead of
            accuracy; for "batch" with labelled examples.
        predictor: Name of the predictor to calibrate; None if only one qualifies.
        seed: Seed of the choice of examples.
        num_threads, max_errors, display_progress: As in `PLReorder`.

    Attributes:
        accuracies: Accuracy or metric of each way to answer that the last compile
            compared: "as it is", "likeliest label", "calibrated to" some shares, and
            "always" one label. Empty if labels did not decide.
        report: `CalibrationReport` of the last compile; None before.
    """

    method: Literal["batch", "contextual", "linear"] = field(default="batch", kw_only=False)
    num_inputs: Annotated[WholeNumber, Field(ge=2)] = 64
    prior: Mapping[Value, Number] | None = None
    metric: SetMetric | None = None
    predictor: str | None = None

    def __post_init__(self) -> None:
        self.accuracies: dict[str, float] = {}
        self.report: CalibrationReport | None = None
        self.check_together()

    def check_together(self) -> None:
        if self.prior is not None and self.method == "linear":
            raise UserError("prior must be None with method='linear', which learns it: leave it out")
        if self.metric is not None and (self.method != "batch" or self.prior is not None):
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
            The calibrated program. Its `calibration` is None if answers stay as they
            are. It has the report as plain data in ``calibration_report``.
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
        sample = self._sample(student, output, trainset, seed=seed)
        label_counts = LabelCounts.of(output, trainset)
        if sample.labels_decide:
            warn_of_labels(student, output, label_counts, by_accuracy=self.metric is None)
        self.accuracies = {}
        replies = self._read(student, sample, output)
        finding = self._calibrate(replies, sample, output, prior=prior, seed=seed)
        self.report = self._report(finding, replies, sample, output.name, label_counts.counts, len(trainset))
        logger.info("%s", self.report.line())
        program = CalibratedProgram(student, finding.calibration, predictor=output.predictor).bound()
        program.calibration_report = self.report.to_dict()
        return program

    def _sample(self, student: dspy.Module, output: LabelOutput, trainset: Examples, *, seed: int) -> Sample:
        """Choose the examples to call the program on, and count the others."""
        if self.method == "contextual":
            examples = _content_free(trainset)
            left_out = {REPLACED: len(trainset), NOT_NEEDED: 0}
            return Sample(examples, np.ones(len(examples)), output.counts(examples), left_out)
        usable, left_out = _different(student, trainset)
        labels_decide = False
        if self.method == "batch" and self.prior is None:
            labelled = _labelled(usable, output, trainset)
            labels_decide = len(labelled) > 1
            if labels_decide:
                left_out[WITHOUT_LABEL] = len(usable) - len(labelled)
                usable = labelled
        if self.metric is not None:
            if not labels_decide:
                raise UserError(f"metric needs examples with labels at {output.name!r}: pass some, or leave metric out")
            self.metric.check(usable)
        examples, weights = self._draw(usable, output, seed=seed)
        if self.method == "linear":
            _check_labelled(examples, output)
        left_out[NOT_NEEDED] = len(usable) - len(examples)
        return Sample(examples, weights, output.counts(usable), left_out, labels_decide)

    def _draw(self, usable: list[dspy.Example], output: LabelOutput, *, seed: int) -> tuple[list[dspy.Example], Array]:
        count = min(self.num_inputs, len(usable))
        wanted = INPUTS_PER_LABEL * len(output.labels)
        if self.method == "batch" and count < wanted:
            addition = ""
            if self.num_inputs < wanted:
                addition = " and a larger num_inputs"
            logger.warning(
                f"only {count} inputs to calibrate {len(output.labels)} labels on: pass {wanted} or more{addition}"
            )
        labels = output.numbers(usable).tolist()
        order = mixed(range(len(usable)), labels, random.Random(seed), balanced=True)
        drawn = [usable[i] for i in order]
        if self.metric is None:
            return drawn[:count], np.ones(count)
        # Rare labels decide: labels take turns, and are weighted by their shares.
        scores = ConfusionScores(self.metric, self.metric.right_labels(drawn), output.labels)
        chosen = scores.alternate_labels(len(drawn))[:count]
        (weights,) = scores.weights(np.ones((1, count), dtype=bool), np.array(chosen))
        return [drawn[i] for i in chosen], weights

    def _read(self, student: dspy.Module, sample: Sample, output: LabelOutput) -> LabelReplies:
        return read_replies(
            student,
            sample.examples,
            output,
            as_it_is=sample.labels_decide,
            display_progress=self.display_progress,
            num_threads=self.num_threads,
            max_errors=self.max_errors,
        )

    def _calibrate(
        self, replies: LabelReplies, sample: Sample, output: LabelOutput, *, prior: Array | None, seed: int
    ) -> Finding:
        if sample.labels_decide:
            return self._best_way(replies, sample, output)
        if self.method == "linear":
            return _linear(replies, output.numbers(sample.examples), seed=seed)
        calibration = replies.calibrated_to(prior, method=self.method)
        if prior is not None:
            return Finding(calibration, "your prior")
        replies.warn_of_answers(calibration)
        if self.method == "contextual":
            return Finding(calibration, "the same for each label")
        return Finding(calibration, f"no labels decide: {EVEN}")

    def _best_way(self, replies: LabelReplies, sample: Sample, output: LabelOutput) -> Finding:
        answers, calibrations = self._ways(replies, sample)
        examples = [sample.examples[i] for i in replies.ran]
        weights = sample.weights[replies.ran]

        def score(numbers: Numbers) -> float:
            return self._score(numbers, examples, output, weights)

        scores = {way: score(replies.with_silent(numbers)) for way, numbers in answers.items()}
        chosen = max(scores, key=scores.__getitem__)  # of equals the first: as it is
        calibration = calibrations[chosen]
        always_scores = {label: score(np.full(len(examples), i)) for i, label in enumerate(replies.labels)}
        always = max(always_scores, key=always_scores.__getitem__)
        if self.metric is None:
            always = replies.labels[int(sample.label_counts.argmax())]
        always_score = always_scores[always]
        self.accuracies = {**scores, f"always {always!r}": always_score}
        if scores[chosen] <= always_score:
            logger.warning(
                f"{chosen}: {scores[chosen]:.3f} on {len(examples)} inputs, which is no more than always answering "
                f"{always!r}, {always_score:.3f}: let PLFewShot choose the demos, or take another model"
            )
        shares_from = f"the best of {len(scores)} ways, by the labels of {len(examples)} inputs"
        if calibration is None or not calibration.shares:
            shares_from = f"none, for answers without them are {shares_from}"
        if is_uneven(sample.label_counts):
            shares_from += f"; uneven shares come from the labels of {sample.label_counts.sum():.0f} examples"
        return Finding(calibration, shares_from, scores, chosen, always, always_score)

    def _ways(self, replies: LabelReplies, sample: Sample) -> tuple[dict[str, Numbers], dict[str, Calibration | None]]:
        """Return the answers ``[n]`` and calibrations of the ways to compare."""
        logs = replies.log_probabilities
        weights = sample.weights[replies.inputs]
        answers = {AS_IT_IS: replies.answered, LIKELIEST: logs.argmax(axis=1)}
        calibrations = {AS_IT_IS: None, LIKELIEST: Calibration.none(replies.labels)}
        for shares in likely_shares(sample.label_counts, between=self.metric is not None):
            way = f"calibrated to {shares_by_label(replies.labels, shares)}"
            answers[way] = cross_validated(logs, shares, unseen=replies.unseen, weights=weights)
            calibrations[way] = replies.calibrated_to(shares, weights=weights)
        return answers, calibrations

    def _score(self, answers: Numbers, examples: Examples, output: LabelOutput, weights: Array) -> float:
        """Return the accuracy or metric of label numbers ``[n]``; -1 is wrong."""
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

    def _report(
        self,
        finding: Finding,
        replies: LabelReplies,
        sample: Sample,
        output_name: str,
        label_counts: Array,
        num_examples: int,
    ) -> CalibrationReport:
        calibration = finding.calibration
        weights = sample.weights[replies.inputs]
        means = np.average(np.exp(replies.log_probabilities), axis=0, weights=weights)
        shares = None
        if calibration is not None and calibration.shares:
            shares = dict(zip(replies.labels, calibration.shares, strict=True))
        return CalibrationReport(
            method=self.method,
            metric="accuracy" if self.metric is None else repr(self.metric),
            output=output_name,
            label_counts=dict(zip(replies.labels, label_counts.astype(int).tolist(), strict=True)),
            num_examples=num_examples,
            num_inputs=len(replies.inputs),
            left_out=sample.left_out,
            mean_probabilities=dict(zip(replies.labels, means.tolist(), strict=True)),
            shares=shares,
            shares_from=finding.shares_from,
            calibrated=calibration is not None and calibration.method != "none",
            scores=finding.scores,
            chosen=finding.chosen,
            num_scored=len(replies.ran),
            always=finding.always,
            always_score=finding.always_score,
            program_calls=len(replies.ran) + replies.num_failed,
            num_failed=replies.num_failed,
            num_unread=replies.num_unread,
            num_silent=len(replies.ran) - len(replies.inputs),
        )


@dataclass(frozen=True)
class Sample:
    """The examples that calibrate an output."""

    examples: list[dspy.Example]  # [E]
    weights: Array  # [E]
    label_counts: Array  # of all usable examples, [L]
    left_out: dict[str, int]  # number of the trainset's other examples, by reason
    labels_decide: bool = False  # whether labels choose between ways to answer


@dataclass(frozen=True)
class Finding:
    """The calibration to use, and why; fields are as in `CalibrationReport`."""

    calibration: Calibration | None
    shares_from: str
    scores: dict[str, float] = field(default_factory=dict)
    chosen: str | None = None
    always: str | None = None
    always_score: float | None = None


@dataclass(frozen=True)
class LabelReplies:
    """Replies to the n of E inputs for which they give label probabilities."""

    labels: list[str]
    inputs: Numbers  # their numbers, [n]
    log_probabilities: Array  # [n, L]
    unseen: NDArray[np.bool_]  # labels not among the likeliest tokens, [n, L]
    answered: Numbers  # the program's own answers, -1 for none, [n]
    ran: Numbers  # inputs whose calls did not fail
    num_failed: int
    num_unread: int  # replies that the adapter could not read

    def with_silent(self, answers: Numbers) -> Numbers:
        """Return answers to all inputs that `ran`, -1 for the others."""
        answered = np.full(self.ran.max() + 1, -1)
        answered[self.inputs] = answers
        return answered[self.ran]

    def calibrated_to(
        self, shares: Array | None = None, *, method: str = "batch", weights: ArrayLike = 1.0
    ) -> Calibration:
        """Calibrate mean probabilities to shares ``[L]``; None for even ones."""
        if shares is None:
            shares = np.full(len(self.labels), 1.0 / len(self.labels))
        offsets = batch_offsets(self.log_probabilities, prior=shares, unseen=self.unseen, weights=weights)
        return Calibration(
            method,
            tuple(self.labels),
            tuple(offsets.tolist()),
            num_inputs=len(self.inputs),
            shares=tuple(np.round(shares, 6).tolist()),
        )

    def warn_of_answers(self, calibration: Calibration) -> None:
        """Warn if answers are far from even with calibration and without it."""
        logs = calibrated(self.log_probabilities, calibration.offsets, unseen=self.unseen)
        before = self._answer_counts(self.log_probabilities)
        after = self._answer_counts(logs)
        if is_uneven(before, far=True) and is_uneven(after, far=True):
            logger.warning(
                f"{len(self.inputs)} answers are far from even before calibration "
                f"({shares_by_label(self.labels, before / before.sum())}) and after it "
                f"({shares_by_label(self.labels, after / after.sum())}): if the labels are not equally frequent, pass "
                "labelled examples, or their shares as prior"
            )

    def _answer_counts(self, log_probabilities: Array) -> Numbers:
        return np.bincount(log_probabilities.argmax(axis=1), minlength=len(self.labels))


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
    """Call a program on examples, and read the label probabilities in its replies.

    Unless `as_it_is`, it answers the likeliest label, so that a reply that cannot be
    read costs no second call.
    """

    def check(records: list[CallRecord]) -> None:
        ended = [record for record in records if record.outcome != FAILED]
        are_enough = len(records) >= NUM_FIRST and len(ended) > 1
        if are_enough and not any(record.label_logprobs for record in ended):
            raise _no_probabilities(output, 0, len(ended))

    work = LabelWork(None, examples, output=output, purpose=PURPOSE, calibrating=not as_it_is)
    with progress_bar(len(examples), display=display_progress, title="BatchCalibration") as bar:
        records, scorer = calls_on(
            program,
            work,
            len(examples),
            called="calibration input",
            first=(1, NUM_FIRST),  # A first call that is refused stays the only one.
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
    return _replies_of(records, output, num_failed=len(failed))


def _replies_of(records: list[CallRecord], output: LabelOutput, *, num_failed: int) -> LabelReplies:
    labels = list(output.labels)
    inputs = [number for number, record in enumerate(records) if record.label_logprobs]
    if len(inputs) < 2:
        raise _no_probabilities(output, len(inputs), len(records))
    if len(inputs) < len(records):
        logger.warning("%d of %d replies say nothing of labels", len(records) - len(inputs), len(records))
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
        num_failed=num_failed,
        num_unread=sum(record.outcome == WRONG for record in records),
    )


def _no_probabilities(output: LabelOutput, num_read: int, num_replies: int) -> NoProbabilities:
    needs = "replies with labels among the likeliest tokens"
    cure = "add demos, or use another adapter (PlainTextAdapter for small and base models) or model"
    if output.decision is not None:
        needs = f"replies that state the probabilities of {output.name!r} as JSON"
        cure = "use another model, or declare a Literal alone, whose log-probabilities are read"
    return NoProbabilities(f"{PURPOSE} needs {needs}; {num_read} of {num_replies} have any: {cure}")


def _linear(replies: LabelReplies, answers: Numbers, *, seed: int) -> Finding:
    fit = fit_linear(replies.log_probabilities, answers[replies.inputs], seed=seed)
    if fit is None:
        return Finding(None, "none, for cross-validation finds no gain")
    scales, offsets = fit
    numbers = (tuple(offsets.tolist()), tuple(scales.tolist()), len(replies.inputs))
    calibration = Calibration("linear", tuple(replies.labels), *numbers)
    return Finding(calibration, "none, for scales and offsets are fitted to the labels")


def fit_linear(log_probabilities: Array, answers: Numbers, *, seed: int = 0) -> tuple[Array, Array] | None:
    """Fit a scale and an offset per label by penalised logistic regression.

    Source: M. Abbas et al., "Enhancing in-context learning via linear probe
    calibration", AISTATS 2024.

    Deviation: The paper multiplies probabilities by a full matrix. One scale per label
    for log-probabilities needs fewer examples, and contains batch calibration.

    Args:
        log_probabilities: Log-probabilities of labels, ``[N, L]``.
        answers: Right labels, ``[N]``.
        seed: Seed of the folds.

    Returns:
        Scales and offsets, ``[L]``; None if cross-validation finds no certain gain.
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
    """Return the scales and offsets with the least penalised loss."""
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


def _content_free(trainset: Examples) -> list[dspy.Example]:
    """Return examples with the trainset's inputs, filled without content."""
    if not trainset:
        raise UserError("trainset must hold an example, whose inputs are filled without content")
    inputs = dict(trainset[0].inputs().items())
    check_text_inputs("method='contextual'", inputs, cure="pass method='batch'")
    return [dspy.Example(dict.fromkeys(inputs, text)).with_inputs(*inputs) for text in CONTENT_FREE]


def _different(student: dspy.Module, trainset: Examples) -> tuple[list[dspy.Example], dict[str, int]]:
    """Return distinct examples that no demo shows, and count the others by reason."""
    demos = [demo for predictor in student.predictors() for demo in predictor.demos]
    shown = shown_by(demos, trainset)
    keys = [value_key(dict(example.inputs().items())) for example in trainset]
    num_distinct = len(set(keys))
    num_repeated = len(keys) - num_distinct
    warn_of_repeats(num_repeated, len(trainset), name="trainset", what=GIVEN_TWICE)
    usable = list({keys[i]: example for i, example in enumerate(trainset) if i not in shown}.values())
    if len(usable) < 2:
        raise UserError(
            f"trainset must hold at least 2 different inputs that no demo shows; of its {len(trainset)} examples "
            f"{len(usable)} are left: pass more, or method='contextual'"
        )
    return usable, {GIVEN_TWICE: num_repeated, SHOWN: num_distinct - len(usable)}


def _labelled(usable: list[dspy.Example], output: LabelOutput, trainset: Examples) -> list[dspy.Example]:
    """Return the examples with a label; log what happens to the others."""
    labelled = list(compress(usable, output.numbers(usable) >= 0))
    are_enough = len(labelled) > 1
    consequence = "they are left out" if are_enough else EVEN
    if output.strange(usable, texts=False):
        logger.warning(f"{output.strange(trainset, texts=False)}: {consequence}")
    elif not are_enough:
        logger.info(f"no example has a label at {output.name!r}: {EVEN}")
    num_none = output.num_none(usable)
    if are_enough and num_none:
        logger.info(f"{num_none} examples have None at {output.name!r}, and calibrate no label")
    return labelled


def _check_labelled(examples: list[dspy.Example], output: LabelOutput) -> None:
    answers = output.numbers(examples)
    if (answers >= 0).all() and len(set(answers)) > 1:
        return
    values = sorted({repr(example.get(output.name)) for example in examples})
    raise UserError(
        f"method='linear' needs examples with different labels at {output.name!r}, each of them one of "
        f"{list(output.labels)}; got {', '.join(values[:5])}: give all examples one, or pass method='batch'"
    )
