"""BatchCalibration: the DSPy optimizer that takes away how far a classifier leans to some of its labels."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import field
from itertools import compress
from typing import Annotated, Any, Literal, NamedTuple

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

FIRST_REPLIES = 6  # if none of so many says anything of labels, no further call is made
INPUTS_PER_LABEL = 5  # with fewer, the labels that inputs happen to have cost a point or more for nothing
EVEN = "all are taken to be equally frequent"
MAX_FOLDS = 10  # of the cross-validation of a linear calibration

PENALTY = 2.0
"""On squared distances of scales from 1 and of offsets from 0, beside the log losses of all examples. Weaker ones lose
more on 10 and 20 examples than they gain on 100."""


@arguments
class BatchCalibration(Checked, Teleprompter):  # type: ignore[misc]
    """Calibrates the probabilities of a classifier's labels, and lets these decide.

    Demos, their order and the name of a label lean a language model towards some labels (docs/calibration.md). The
    student needs an output that is a Literal, an enum or a bool, and an LM that gives log-probabilities (OpenAI's chat
    models, vLLM, llama.cpp); or an output whose probabilities replies state (`dspy.experimental.Choice`, `Noul`).

    Args:
        method: "batch" takes away the mean over inputs of the trainset (H. Zhou et al., "Batch calibration",
            arXiv:2309.17249); "contextual" the mean over inputs without content, which costs three calls and needs text
            inputs (T. Z. Zhao et al., "Calibrate before use", ICML 2021). "linear" fits a scale and an offset for each
            label to labelled examples, and changes nothing where cross-validation finds no gain (M. Abbas et al.,
            AISTATS 2024).
        num_inputs: Examples of the trainset that are used, at most: one program call each. Each label has about its
            share of them; with a metric all take turns, however rare one is, and count in their shares.
        prior: Share of inputs that each label is right for, by label, which answers are calibrated to. No compile
            changes it: the shares that were used are in `report`. With None,
            "batch" takes what scores best on the labels of the trainset by cross-validation: their shares, if these are
            clearly uneven, the same share each, or answers as they are. Without labels, and for "contextual", None is
            the same share each. "linear" learns shares, and takes none.
        metric: A metric over a set, such as ``F1("positive")``, which decides in place of accuracy, with "batch" and
            labelled examples; it may also choose shares in the ratio of the square roots of the labels' own.
        predictor: Name of the predictor whose output is calibrated; None where only one has such an output.
        seed: Of the choice of examples.
        num_threads, max_errors, display_progress: As in `PLReorder`.

    Attributes:
        accuracies: Where labels have decided in the last compile, the accuracy on its inputs of each way that was
            compared: of the student "as it is", by its "likeliest label", "calibrated to" some shares (each input is
            left out of what calibrates it), and "always" the most frequent label. With a metric, its values, and
            "always" the label that is best for it. Otherwise empty.
        report: What the last compile did and found, a `CalibrationReport`: `print` it. None before. Its `shares` are
            those that answers are calibrated to, as ``calibration.shares`` of the program; `prior` stays as it is.

    Raises:
        TypeError, ValueError: for arguments out of range; the message says what to pass.
    """

    method: Literal["batch", "contextual", "linear"] = field(default="batch", kw_only=False)
    num_inputs: Annotated[WholeNumber, Field(ge=2)] = 64
    prior: Mapping[Any, Number] | None = None
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
        teacher: Any = None,
        valset: list[dspy.Example] | None = None,
        seed: int | None = None,
    ) -> CalibratedProgram:
        """Calibrate the student.

        Args:
            student: A program; it is not changed. One that is calibrated already is calibrated anew.
            trainset: Examples. Those that the demos show are left out. "contextual" does not look at their labels.
            teacher, valset: Ignored; other optimizers pass them.
            seed: Instead of the constructor's.

        Returns:
            The calibrated program, with the report as plain data at ``calibration_report``. Its `calibration` is None
            where labels have decided that answers stay as they are: it tells the probabilities beside them.

        Raises:
            TypeError, ValueError: for bad arguments, before any program call.
            NoProbabilities: when the LM gives no log-probabilities.
            Exception: of the program, see `max_errors`.
        """
        self.report = None
        seed = self._seed(seed)
        self.check_together()
        predictor = self.predictor
        if isinstance(student, CalibratedProgram):
            student, predictor = student.program, predictor or student.predictor
        check_given(student, trainset=trainset)
        output = calibrated_output(student, predictor)
        prior = None if self.prior is None else prior_shares(self.prior, output.labels)
        usable, left_out = self._usable(student, trainset)
        deciding, shares_from = False, "the same for each label" if prior is None else "your prior"
        if self.method == "batch" and prior is None:
            labelled = self._labelled(usable, output, trainset)
            deciding = len(labelled) > 1
            if deciding:
                left_out[WITHOUT_LABEL] = len(usable) - len(labelled)
                usable = labelled
            else:
                shares_from = f"no labels decide: {EVEN}"
        if self.metric is not None and not deciding:
            raise UserError(f"metric needs examples with labels at {output.name!r}: pass some, or leave metric out")
        examples, weights = self._sampled(usable, output, seed=seed)
        left_out[NOT_NEEDED] = len(usable) - len(examples)
        answers, counts = output.numbers(examples), output.counts(usable)
        if self.method == "linear" and ((answers < 0).any() or len(set(answers)) == 1):
            seen = sorted({repr(example.get(output.name)) for example in examples})
            raise UserError(
                f"method='linear' needs examples with different labels at {output.name!r}, each of them one of "
                f"{list(output.labels)}; got {', '.join(seen[:5])}: give all examples one, or pass method='batch', "
                "which needs no labels"
            )
        self.accuracies = {}
        labels = LabelCounts.of(output, trainset)
        if deciding:
            if self.metric is not None:
                self.metric.check(usable)
            warn_of_labels(student, output, labels, by_accuracy=self.metric is None)
        limits = {name: getattr(self, name) for name in ("num_threads", "max_errors", "display_progress")}
        replies = read_replies(student, examples, output, as_it_is=deciding, **limits)
        calibration: Calibration | None = None
        comparison: dict[str, Any] = {"scores": {}}
        if deciding:
            calibration, comparison = self._best(replies, examples, output, counts=counts, weights=weights)
            best_of = f"best of {len(comparison['scores'])} ways, by the labels of {len(replies.ran)} inputs"
            shares_from = f"the {best_of}"
            if calibration is None or not calibration.shares:
                shares_from = f"none, for answers without them are the {best_of}"
            if is_uneven(counts):
                shares_from += f"; uneven shares come from the labels of {counts.sum():.0f} examples"
        elif self.method != "linear":
            calibration = replies.calibrated_to(prior, method=self.method)
            if prior is None:
                replies.warn_of_answers(calibration)
        elif fit := fit_linear(replies.log_probabilities, answers[replies.inputs], seed=seed):
            scales, offsets = (tuple(each.tolist()) for each in fit)
            calibration = Calibration("linear", tuple(output.labels), offsets, scales, len(replies.inputs))
            shares_from = "none, for scales and offsets are fitted to the labels"
        else:
            shares_from = "none, for cross-validation finds no gain"
        self.report = replies.report(
            calibration,
            weights=weights,
            method=self.method,
            metric="accuracy" if self.metric is None else repr(self.metric),
            output=output.name,
            label_counts=dict(zip(output.labels, labels.counts.astype(int).tolist(), strict=True)),
            num_examples=len(trainset),
            left_out=left_out,
            shares_from=shares_from,
            **comparison,
        )
        logger.info("%s", self.report.line())
        program = CalibratedProgram(student, calibration, predictor=output.predictor).bound()
        program.calibration_report = self.report.to_dict()
        return program

    def _usable(self, student: dspy.Module, trainset: Examples) -> tuple[list[dspy.Example], dict[str, int]]:
        """Return the examples whose inputs may calibrate, and how many others there are, by reason."""
        if self.method == "contextual":
            return _content_free(trainset), {REPLACED: len(trainset)}
        return _different(student, trainset)

    def _labelled(self, usable: Examples, output: LabelOutput, trainset: Examples) -> list[dspy.Example]:
        """Return the usable examples with a label, and say what becomes of the others."""
        labelled = list(compress(usable, output.numbers(usable) >= 0))
        if output.strange(usable, texts=False):
            consequence = "they are left out" if len(labelled) > 1 else EVEN
            logger.warning(f"{output.strange(trainset, texts=False)}: {consequence}")
        elif len(labelled) < 2:
            logger.info(f"no example has a label at {output.name!r}: {EVEN}")
        num_none = output.num_none(usable)
        if len(labelled) > 1 and num_none:
            logger.info(f"{num_none} examples have None at {output.name!r}, and calibrate no label")
        return labelled

    def _best(
        self, replies: LabelReplies, examples: Examples, output: LabelOutput, *, counts: Array, weights: Array
    ) -> tuple[Calibration | None, dict[str, Any]]:
        """Return the calibration that answers best, None for none, and fields of the report; set `accuracies`.

        The labels have `counts` ``[L]``.
        """
        told, labels, ran = replies.log_probabilities, replies.labels, replies.ran
        right, asked = output.numbers(examples)[ran], [examples[number] for number in ran]
        predictions = [dspy.Prediction({output.name: label}) for label in output.labels.values()]
        ways: dict[str, tuple[NDArray[np.int64], Calibration | None]] = {
            AS_IT_IS: (replies.answered, None),
            LIKELIEST: (told.argmax(axis=1), Calibration.none(labels)),
        }
        of_inputs = weights[replies.inputs]
        for shares in likely_shares(counts, between=self.metric is not None):
            answers = cross_validated(told, shares, unseen=replies.unseen, weights=of_inputs)
            found = replies.calibrated_to(shares, weights=of_inputs)
            ways[f"calibrated to {shares_by_label(labels, shares)}"] = answers, found

        def value(numbers: NDArray[np.int64]) -> float:
            """What answers to all inputs that ran, by number, are worth."""
            if self.metric is None:
                return float((numbers == right).mean())
            answers: list[str | None] = []
            for example, number in zip(asked, numbers.tolist(), strict=True):
                answer = None
                if number >= 0:
                    answer = self.metric.answer(example, predictions[number])
                answers.append(answer)
            return self.metric.score(self.metric.right_labels(asked), answers, labels=labels, weights=weights[ran])

        for name, (answers, _) in ways.items():
            answered = np.full(len(examples), -1)  # Replies that say nothing of labels count as wrong.
            answered[replies.inputs] = answers
            self.accuracies[name] = value(answered[ran])
        scores = dict(self.accuracies)
        best = max(scores, key=scores.__getitem__)  # The first of equals: as it is.
        to_one = {label: value(np.full(len(ran), number)) for number, label in enumerate(labels)}
        most = labels[int(counts.argmax())] if self.metric is None else max(to_one, key=to_one.__getitem__)
        self.accuracies[f"always {most!r}"] = to_one[most]
        if scores[best] <= to_one[most]:
            logger.warning(
                f"{best}: {scores[best]:.3f} on {len(ran)} inputs, which is no more than always answering {most!r} "
                f"gives, {to_one[most]:.3f}: let PLFewShot choose the program's demos, or take another model"
            )
        comparison = {"scores": scores, "chosen": best, "always": most, "always_score": to_one[most]}
        return ways[best][1], comparison

    def _sampled(self, usable: Examples, output: LabelOutput, *, seed: int) -> tuple[list[dspy.Example], Array]:
        """The examples that are used, and what each of them counts; a warning says where they are few."""
        if self.method == "contextual":
            return list(usable), np.ones(len(usable))
        count, wanted = min(self.num_inputs, len(usable)), INPUTS_PER_LABEL * len(output.labels)
        if self.method == "batch" and count < wanted:
            more = " and a larger num_inputs" if self.num_inputs < wanted else ""
            logger.warning(
                f"only {count} inputs to calibrate {len(output.labels)} labels on: which labels they happen to have "
                f"moves the result; pass {wanted} or more{more}"
            )
        labels = output.numbers(usable).tolist()  # each has its share of those drawn
        drawn = [usable[i] for i in mixed(range(len(usable)), labels, random.Random(seed), balanced=True)]
        if self.metric is None:
            return drawn[:count], np.ones(count)
        # Rare ones decide: all take turns, and count in their shares.
        scores = ConfusionScores(self.metric, self.metric.right_labels(drawn), output.labels)
        chosen = scores.alternate_labels(len(drawn))[:count]
        (weights,) = scores.weights(np.ones((1, count), dtype=bool), np.array(chosen))
        return [drawn[i] for i in chosen], weights


class LabelReplies(NamedTuple):
    """What the replies to n inputs, given by number, said of labels: those that said anything."""

    labels: list[str]
    inputs: NDArray[np.int64]  # [n]
    log_probabilities: Array  # [n, L]
    unseen: NDArray[np.bool_]  # [n, L], where a label was not among the likeliest tokens
    answered: NDArray[np.int64]  # [n], the label of the program's own answer by number, -1 for none
    ran: NDArray[np.int64]  # the inputs whose calls did not fail, whether they say anything or not
    num_failed: int = 0
    num_unread: int = 0  # replies that the adapter could not read, whether they say anything or not
    num_silent: int = 0  # replies that say nothing of labels

    def calibrated_to(
        self, shares: Array | None = None, *, method: str = "batch", weights: ArrayLike = 1.0
    ) -> Calibration:
        """The calibration by mean probabilities of inputs to shares of labels ``[L]``; None for the same share each."""
        to = np.full(len(self.labels), 1.0 / len(self.labels)) if shares is None else shares
        offsets = batch_offsets(self.log_probabilities, prior=to, unseen=self.unseen, weights=weights)
        rounded, num_inputs = tuple(np.round(to, 6).tolist()), len(self.inputs)
        return Calibration(method, tuple(self.labels), tuple(offsets.tolist()), num_inputs=num_inputs, shares=rounded)

    def report(self, calibration: Calibration | None, *, weights: Array, **facts: Any) -> CalibrationReport:
        """Make the report of a calibration by these replies; `facts` are fields that they do not tell."""
        likely = np.average(np.exp(self.log_probabilities), axis=0, weights=weights[self.inputs])
        shares = () if calibration is None else calibration.shares
        return CalibrationReport(
            num_inputs=len(self.inputs),
            mean_probabilities=dict(zip(self.labels, likely.tolist(), strict=True)),
            shares=dict(zip(self.labels, shares, strict=True)) if shares else None,
            calibrated=calibration is not None and calibration.method != "none",
            num_scored=len(self.ran),
            program_calls=len(self.ran) + self.num_failed,
            num_failed=self.num_failed,
            num_unread=self.num_unread,
            num_silent=self.num_silent,
            **facts,
        )

    def warn_of_answers(self, calibration: Calibration) -> None:
        """Warn where answers are far from even with calibration and without: then labels may well be uneven."""
        moved = calibrated(self.log_probabilities, calibration.offsets, unseen=self.unseen)
        tables = (self.log_probabilities, moved)
        counts = [np.bincount(each.argmax(axis=1), minlength=len(self.labels)) for each in tables]
        if all(is_uneven(each, far=True) for each in counts):
            before, after = (shares_by_label(self.labels, each / each.sum()) for each in counts)
            logger.warning(
                f"answers to {len(self.inputs)} inputs are far from the same share of each label before calibration "
                f"({before}) and after it ({after}): if the labels are not equally frequent, pass labelled examples, "
                "or their shares as prior"
            )


def read_replies(
    program: dspy.Module,
    examples: Examples,
    output: LabelOutput,
    *,
    as_it_is: bool = False,
    display_progress: bool = False,
    **limits: Any,
) -> LabelReplies:
    """Run a program on the inputs of examples, for what its replies say of the labels of an output. Unless it is to
    answer `as_it_is`, the likeliest label is its answer, so that a reply that cannot be read costs no second call."""
    work = LabelWork(None, examples, output=output, purpose=PURPOSE, calibrating=not as_it_is)
    with progress_bar(len(examples), display=display_progress, title="BatchCalibration") as bar:

        def check(cells: list[CallRecord]) -> None:
            """Raise `NoProbabilities` if none of several replies says anything of labels."""
            ended = [cell for cell in cells if cell.outcome != FAILED]
            are_enough = len(cells) >= FIRST_REPLIES and len(ended) > 1
            if are_enough and not any(cell.label_logprobs for cell in ended):
                raise _no_probabilities(output, 0, len(ended))

        # The first one alone: where log-probabilities are refused, no other call is made.
        options: dict[str, Any] = {"called": "calibration input", "on_cell": bar.update, **limits}
        cells, scorer = calls_on(program, work, len(examples), first=(1, FIRST_REPLIES), check=check, **options)
    if failed := [cell for cell in cells if cell.outcome == FAILED]:
        if len(failed) == len(cells):
            raise scorer.nothing_ran(failed)
        first = f"{failed[0].error}: {failed[0].message}"
        logger.warning("%d of %d calls failed, the first by %s", len(failed), len(cells), first)
    labels = list(output.labels)
    told = {i: each for i, each in enumerate(cells) if each.label_logprobs}
    if len(told) < 2:
        raise _no_probabilities(output, len(told), len(cells))
    if len(told) < len(cells):
        logger.warning("%d of %d replies say nothing of labels", len(cells) - len(told), len(cells))
    ran = [number for number, cell in enumerate(cells) if cell.outcome != FAILED]
    return LabelReplies(
        labels,
        np.array(list(told)),
        np.array([cell.label_logprobs for cell in told.values()]),
        np.array([np.isin(np.arange(len(labels)), cell.unseen_labels) for cell in told.values()]),
        np.array([labels.index(cell.value) if cell.value else -1 for cell in told.values()]),
        np.array(ran),
        num_failed=len(failed),
        num_unread=sum(cell.outcome == WRONG for cell in cells),
        num_silent=len(ran) - len(told),
    )


def _no_probabilities(output: LabelOutput, num_told: int, num_replies: int) -> NoProbabilities:
    """Return the error for replies of which too few say anything of labels."""
    needs = "replies with labels among the likeliest tokens"
    cure = "add demos, or use another adapter (PlainTextAdapter for small and base models) or model"
    if output.decision is not None:
        needs = f"replies that state the probabilities of {output.name!r} as JSON"
        cure = "use another model, or declare a Literal alone, whose log-probabilities are read"
    return NoProbabilities(f"{PURPOSE} needs {needs}; {num_told} of {num_replies} have any: {cure}")


def fit_linear(log_probabilities: Array, answers: NDArray[np.int64], *, seed: int = 0) -> tuple[Array, Array] | None:
    """Fit scales and offsets of the labels, each ``[L]``, to the right labels ``[N]`` by penalised logistic regression.

    It is None where cross-validation finds no gain in log loss beyond its error.

    Source: M. Abbas et al., "Enhancing in-context learning via linear probe calibration", AISTATS 2024.

    Deviation: The paper multiplies probabilities by a full matrix; log-probabilities with one scale for each label need
    fewer examples, and batch calibration is a special case of them.
    """
    num = len(answers)
    shuffled = np.random.default_rng(seed).permutation(num)
    by_label = shuffled[np.argsort(answers[shuffled], kind="stable")]
    gains, num_folds = np.zeros(num), min(MAX_FOLDS, num)
    for fold in range(num_folds):
        held = np.isin(np.arange(num), by_label[fold::num_folds])  # Each fold has its share of each label.
        scales, offsets = _fit(log_probabilities[~held], answers[~held])
        told = log_softmax(log_probabilities[held] * scales + offsets, axis=1)
        gains[held] = (told - log_probabilities[held])[np.arange(held.sum()), answers[held]]
    if gains.mean() <= gains.std(ddof=1) / np.sqrt(num):
        return None
    return _fit(log_probabilities, answers)


def _fit(known: Array, answers: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the scales and offsets with the least penalised loss."""
    (num, num_labels), rows = known.shape, np.arange(len(known))
    start = np.repeat([1.0, 0.0], num_labels)

    def loss(parameters: Array) -> float:
        """Return the penalised loss of scales and offsets, one after the other."""
        told = log_softmax(known * parameters[:num_labels] + parameters[num_labels:], axis=1)
        return float(PENALTY / num * ((parameters - start) ** 2).sum() - told[rows, answers].mean())

    found = minimize(loss, start, method="L-BFGS-B").x
    return found[:num_labels], found[num_labels:]


def _content_free(trainset: Examples) -> list[dspy.Example]:
    """Examples whose inputs, those of the trainset, have no content."""
    if not trainset:
        raise UserError("trainset must hold an example, whose inputs are filled without content")
    inputs = dict(trainset[0].inputs().items())
    check_text_inputs("method='contextual'", inputs, cure="pass method='batch'")
    return [dspy.Example(dict.fromkeys(inputs, text)).with_inputs(*inputs) for text in CONTENT_FREE]


def _different(student: dspy.Module, trainset: Examples) -> tuple[list[dspy.Example], dict[str, int]]:
    """Return the examples with inputs that differ and that no demo shows, and how many are left out, by reason."""
    shown = shown_by([demo for _, each in student.named_predictors() for demo in each.demos], trainset)
    keys = [value_key(dict(example.inputs().items())) for example in trainset]
    num_repeated = len(keys) - len(set(keys))
    warn_of_repeats(num_repeated, len(trainset), name="trainset", what=GIVEN_TWICE)
    usable = list({keys[i]: example for i, example in enumerate(trainset) if i not in shown}.values())
    if len(usable) < 2:
        raise UserError(
            f"trainset must hold at least 2 different inputs that no demo shows; of its {len(trainset)} examples "
            f"{len(usable)} are left: pass more, or method='contextual', which needs no inputs"
        )
    return usable, {GIVEN_TWICE: num_repeated, SHOWN: len(set(keys)) - len(usable)}
