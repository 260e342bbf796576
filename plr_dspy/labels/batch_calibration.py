"""BatchCalibration: the DSPy optimizer that takes away how far a classifier leans to some of its labels."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import dspy
import numpy as np
from dspy.teleprompt.teleprompt import Teleprompter
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from plr_dspy.labels.calibrated_program import PURPOSE, CalibratedProgram, Calibration, calibrated_output
from plr_dspy.labels.outputs import LabelOutput, prior_shares, warn_of_labels
from plr_dspy.labels.reader import NoProbabilities
from plr_dspy.labels.work import LabelWork
from plr_dspy.programs.arguments import Checked, Count, Flag, Number, Seed, arguments
from plr_dspy.programs.checks import check_given
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.evaluator import ProgramEvaluator
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.programs.splits import shown_by, value_key
from plr_dspy.runtime.progress_bar import progress_bar
from plr_dspy.runtime.signals import interrupts
from plr_dspy.scoring.cells import FAILED
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.statistics.calibration import (
    FAR_FROM_EVEN,
    Array,
    batch_offsets,
    calibrated,
    cross_validated,
    is_uneven,
    likely_shares,
)

logger = logging.getLogger(__name__)

INPUTS_PER_LABEL = 5
"""With fewer, the labels that the inputs happen to have cost a point or more where there is nothing to correct."""


@arguments
class BatchCalibration(Checked, Teleprompter):  # type: ignore[misc]
    """Calibrates the probabilities of a classifier's labels, and lets these decide.

    Demos, their order and the name of a label lean a language model towards some labels. That can be measured without
    any labelled example, and taken away: by the mean probabilities over a batch of inputs (H. Zhou et al., "Batch
    calibration", arXiv:2309.17249); see docs/calibration.md. If examples have labels, these decide to which shares
    of labels it calibrates, and whether at all. The student needs an output that is a Literal, an enum or a
    bool, and an LM that gives log-probabilities (OpenAI's chat models, vLLM, llama.cpp); or an output whose
    probabilities replies state (`dspy.experimental.Choice`, `Noul`).

    Args:
        num_inputs: Examples of the trainset that are used, at most: one program call each.
        prior: Share of inputs that each label is right for, by label, which answers are calibrated to whatever comes
            of it. With None, the labels of the trainset decide: answers are calibrated to their shares, if
            these are clearly uneven, or to the same share each, whichever scores best by cross-validation, and stay as
            they are where neither scores better; examples without a label are left out. Where none has one, None is the
            same share each.
        predictor: Name of the predictor whose output is calibrated; None where only one has such an output.
        num_threads: Program calls under way at once; None takes DSPy's setting.
        max_errors: So many failed program calls end the compile, with the exception of the last; None takes DSPy's
            setting.
        seed: Of the choice of examples.
        display_progress: Draw a progress bar.

    Attributes:
        accuracies: Where labels have decided in the last compile, the accuracy on its inputs of each way that was
            compared: of the student "as it is", by its "likeliest label", "calibrated to" some shares (each input is
            left out of what calibrates it), and "always" the most frequent label. Otherwise empty.

    Raises:
        TypeError, ValueError: for arguments out of range; the message says what to pass.
    """

    num_inputs: Annotated[Count, Field(ge=2)] = 64
    prior: Mapping[Any, Number] | None = None
    predictor: str | None = None
    num_threads: Count | None = None
    max_errors: Count | None = None
    seed: Seed = 0
    display_progress: Flag = True

    def __post_init__(self) -> None:
        self.accuracies: dict[str, float] = {}

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
            trainset: Examples. Those that the demos show are left out.
            teacher, valset: Ignored; other optimizers pass them.
            seed: Instead of the constructor's.

        Returns:
            The calibrated program. Its `calibration` is None where labels have decided that answers stay as they are:
            it tells the probabilities beside them.

        Raises:
            TypeError, ValueError: for bad arguments, before any program call.
            NoProbabilities: when the LM gives no log-probabilities.
            Exception: of the program, see `max_errors`.
        """
        seed = self._seed(seed)
        predictor = self.predictor
        if isinstance(student, CalibratedProgram):
            student, predictor = student.program, predictor or student.predictor
        check_given(student, trainset=trainset)
        output = calibrated_output(student, predictor)
        prior = None if self.prior is None else prior_shares(self.prior, output.labels)
        usable, answers = self._usable(student, trainset, output)
        counts = np.bincount(answers[answers >= 0], minlength=len(output.labels)).astype(np.float64)
        chosen = random.Random(seed).sample(range(len(usable)), min(self.num_inputs, len(usable)))
        examples, answers = [usable[i] for i in chosen], answers[chosen]
        deciding = prior is None and bool((answers >= 0).all())
        if deciding:
            warn_of_labels(student, output, counts)
        self.accuracies = {}
        limits = {name: getattr(self, name) for name in ("num_threads", "max_errors", "display_progress")}
        replies = read_replies(student, examples, output, as_it_is=deciding, **limits)
        calibration = (
            self._best(replies, answers, counts=counts) if deciding else replies.calibrated_to(prior)
        )
        if calibration is not None and not deciding and prior is None:
            replies.warn_of_answers(calibration)
        to = f" to {_named(replies.labels, calibration.shares)}" if calibration and calibration.shares else ""
        logger.info(
            "%s, by %d inputs; mean probabilities before: %s%s",
            "answers stay as they are" if calibration is None else f"calibrated{to}",
            len(replies.inputs),
            _named(replies.labels, np.exp(replies.log_probabilities).mean(axis=0)),
            "".join(f"; {name}: {accuracy:.3f}" for name, accuracy in self.accuracies.items()),
        )
        return CalibratedProgram(student, calibration, predictor=output.predictor).bound()

    def _best(
        self, replies: LabelReplies, answers: NDArray[np.int64], *, counts: Array
    ) -> Calibration | None:
        """The calibration by which the labels are answered best; None where that is none. Sets `accuracies`.

        Replies that say nothing of labels count as wrong; `answers` ``[N]`` are the right labels of all inputs, and
        `counts` ``[L]`` the examples of the trainset that each label is right for.
        """
        told, labels = replies.log_probabilities, replies.labels
        right, rows = np.eye(len(labels))[answers[replies.inputs]], np.arange(len(told))
        ways: dict[str, tuple[Array, Calibration | None]] = {
            "as it is": ((replies.answered == answers[replies.inputs]).astype(np.float64), None),
            "likeliest label": (right[rows, told.argmax(axis=1)], Calibration.none(labels)),
        }
        for shares in likely_shares(counts):
            scores = cross_validated(told, right, shares, unseen=replies.unseen)
            ways[f"calibrated to {_named(labels, shares)}"] = scores, replies.calibrated_to(shares)
        self.accuracies = {name: float(scores.sum()) / len(answers) for name, (scores, _) in ways.items()}
        best = max(self.accuracies, key=self.accuracies.__getitem__)  # The first of equals: as it is.
        most = int(counts.argmax())
        self.accuracies[f"always {labels[most]!r}"] = float((answers == most).mean())
        return ways[best][1]

    def _usable(
        self, student: dspy.Module, trainset: Sequence[dspy.Example], output: LabelOutput
    ) -> tuple[list[dspy.Example], NDArray[np.int64]]:
        """The examples that can be used, inputs that differ and that no demo shows, and the numbers of their labels."""
        shown = shown_by([demo for _, each in named_predictors(student) for demo in each.demos], trainset)
        unshown = [example for i, example in enumerate(trainset) if i not in shown]
        usable = list({value_key(dict(each.inputs().items())): each for each in unshown}.values())
        if len(usable) < 2:
            raise ValueError(
                f"trainset must hold at least 2 different inputs that no demo shows; of its {len(trainset)} examples "
                f"{len(usable)} are left: pass more"
            )
        answers = output.numbers(usable)
        labelled, enough = answers >= 0, (answers >= 0).sum() > 1
        values = [each.get(output.name) for each, has in zip(usable, labelled, strict=True) if not has]
        if self.prior is None and values:
            strange = next((value for value in values if value), None)
            if strange is not None or labelled.any():
                logger.warning(
                    "%d of %d examples have none of the labels %s at %r (one has %r): %s",
                    len(values),
                    len(usable),
                    list(output.labels),
                    output.name,
                    strange,
                    "they are left out" if enough else "all are taken to be equally frequent",
                )
            if enough:
                usable = [each for each, has in zip(usable, labelled, strict=True) if has]
                answers = answers[labelled]
        wanted = INPUTS_PER_LABEL * len(output.labels)
        if (count := min(self.num_inputs, len(usable))) < wanted:
            logger.warning(
                "only %d inputs to calibrate %d labels on: which labels they happen to have moves the result; pass %d "
                "or more, and num_inputs of as many",
                count,
                len(output.labels),
                wanted,
            )
        return usable, answers


@dataclass(frozen=True)
class LabelReplies:
    """What replies said of labels: those to the `inputs` ``[n]``, by number, that said anything.

    Log-probabilities are ``[n, L]``; a label was `unseen` ``[n, L]`` where it was not among the likeliest tokens, and
    `answered` ``[n]`` has the number of the label that the program answered, -1 for none.
    """

    labels: list[str]
    inputs: NDArray[np.int64]
    log_probabilities: Array
    unseen: NDArray[np.bool_]
    answered: NDArray[np.int64]

    def calibrated_to(self, shares: ArrayLike | None = None) -> Calibration:
        """Return the calibration by mean probabilities to shares of labels, ``[L]``; None for the same share each."""
        to = np.full(len(self.labels), 1.0 / len(self.labels)) if shares is None else np.asarray(shares)
        offsets = batch_offsets(self.log_probabilities, prior=to, unseen=self.unseen)
        shares, count = tuple(np.round(to, 6).tolist()), len(self.inputs)
        return Calibration(
            "batch", tuple(self.labels), tuple(offsets.tolist()), num_inputs=count, shares=shares
        )

    def warn_of_answers(self, calibration: Calibration) -> None:
        """Warn where answers are far from even with calibration and without: then labels may well be uneven."""
        moved = calibrated(self.log_probabilities, calibration.offsets, unseen=self.unseen)
        tables = (self.log_probabilities, moved)
        counts = [np.bincount(each.argmax(axis=1), minlength=len(self.labels)) for each in tables]
        if all(is_uneven(each, least=FAR_FROM_EVEN) for each in counts):
            logger.warning(
                "answers are far from the same share of each label before calibration (%s) and after it (%s): if the "
                "labels are not equally frequent, pass labelled examples, or their shares as prior",
                *(_named(self.labels, each / each.sum()) for each in counts),
            )


def read_replies(
    program: dspy.Module,
    examples: Sequence[dspy.Example],
    output: LabelOutput,
    *,
    as_it_is: bool = False,
    num_threads: int | None = None,
    max_errors: int | None = None,
    display_progress: bool = False,
) -> LabelReplies:
    """Run a program on the inputs of examples, for what its replies say of the labels of an output.

    Unless it is to answer `as_it_is`, the likeliest label is its answer, so that a reply that cannot be read costs no
    second call, as in use. Other arguments, and errors of the program, are those of `BatchCalibration`.

    Raises:
        NoProbabilities: when the LM gives no log-probabilities, or fewer than two replies say anything of labels.
        RuntimeError: when no call ended with an answer.
    """
    slots, names = ProgramSlots(program), [f"calibration input {i}" for i in range(len(examples))]
    work = LabelWork(None, examples, output=output, purpose=PURPOSE, calibrating=not as_it_is)
    with (
        progress_bar(len(examples), display=display_progress, title="BatchCalibration") as bar,
        interrupts() as interrupted,
    ):
        options = {"on_cell": bar.update, "interrupted": interrupted, "max_errors": max_errors}
        scorer = CellScorer(
            ProgramEvaluator(program, slots, work, names=names, num_threads=num_threads, **options)
        )
        # The first one alone: where log-probabilities are refused, no other call is made.
        scorer.cells({slots.space.identity: range(1)})
        (cells,) = scorer.cells({slots.space.identity: range(len(examples))}).values()
    if failed := [cell for cell in cells.values() if cell.outcome == FAILED]:
        if len(failed) == len(cells):
            raise scorer.nothing_ran(failed, 1)
        first = f"{failed[0].error}: {failed[0].message}"
        logger.warning("%d of %d calls failed, the first by %s", len(failed), len(cells), first)
    labels, told = list(output.labels), {i: each for i, each in cells.items() if each.label_logprobs}
    if len(told) < 2:
        needs = "replies with labels among the likeliest tokens"
        cure = "add demos, or use another adapter (PlainTextAdapter for small and base models) or model"
        if output.decision is not None:
            needs = f"replies that state the probabilities of {output.name!r} as JSON"
            cure = "use another model, or declare a Literal alone, whose log-probabilities are read"
        raise NoProbabilities(f"{PURPOSE} needs {needs}; {len(told)} of {len(cells)} have any: {cure}")
    if len(told) < len(cells):
        logger.warning("%d of %d replies say nothing of labels", len(cells) - len(told), len(cells))
    return LabelReplies(
        labels,
        np.array(list(told)),
        np.array([cell.label_logprobs for cell in told.values()]),
        np.array([np.isin(np.arange(len(labels)), cell.unseen_labels) for cell in told.values()]),
        np.array([labels.index(cell.value) if cell.value else -1 for cell in told.values()]),
    )


def _named(labels: Sequence[str], shares: Sequence[float] | Array) -> str:
    """Shares by label, for people."""
    return ", ".join(f"{label!r} {share:.2f}" for label, share in zip(labels, shares, strict=True))
