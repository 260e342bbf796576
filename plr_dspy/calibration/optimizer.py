"""BatchCalibration: the DSPy optimizer that takes away how far a classifier leans to some of its labels."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
import numpy as np
from dspy.teleprompt.teleprompt import Teleprompter
from numpy.typing import NDArray

from plr_dspy.calibration.linear import fit_linear
from plr_dspy.calibration.outputs import (
    PURPOSE,
    finite_output_of,
    prior_shares,
    right_labels,
    warn_of_labels,
)
from plr_dspy.calibration.program import CalibratedProgram, Calibration
from plr_dspy.calibration.readings import readings
from plr_dspy.label_probabilities.servers import NoProbabilities
from plr_dspy.programs.content_free import CONTENT_FREE, check_text_inputs
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.inputs import check_examples, check_fields
from plr_dspy.programs.label_scores import LabelOutput
from plr_dspy.programs.splits import shown_by, value_key
from plr_dspy.programs.validation import (
    check_demos,
    check_language_model,
    check_student,
    flag,
    whole_number,
)
from plr_dspy.statistics.calibration import (
    Array,
    batch_offsets,
    calibrated,
    cross_validated,
    is_far_from_even,
    likely_shares,
)

logger = logging.getLogger(__name__)

METHODS = ("batch", "contextual", "linear")

INPUTS_PER_LABEL = 5
"""With fewer, the labels that the inputs happen to have cost a point or more where there is nothing to correct."""


class BatchCalibration(Teleprompter):  # type: ignore[misc]
    """Calibrates the probabilities of a classifier's labels, and lets these decide.

    Demos, their order and the name of a label lean a language model towards some labels. That can be measured without
    any labelled example, and taken away: see docs/calibration.md. If examples have labels, these decide to which shares
    of labels it calibrates, and whether at all. The student needs an output that is a Literal, an enum or a
    bool, and an LM that gives log-probabilities (OpenAI's chat models, vLLM, llama.cpp); or an output whose
    probabilities replies state (`dspy.experimental.Choice`, `Noul`).

    Args:
        method: "batch" takes away the mean over inputs of the trainset (H. Zhou et al., "Batch calibration",
            arXiv:2309.17249); "contextual" the mean over inputs without content, which costs three calls and needs text
            inputs (T. Z. Zhao et al., "Calibrate before use", ICML 2021). "linear" fits a scale and an offset for each
            label to labelled examples, and changes nothing where cross-validation finds no gain (M. Abbas et al.,
            AISTATS 2024).
        num_inputs: Examples of the trainset that are used, at most: one program call each.
        prior: Share of inputs that each label is right for, by label, which answers are calibrated to whatever comes
            of it. With None, "batch" looks at the labels of the trainset: answers are calibrated to their shares, if
            these are clearly uneven, or to the same share each, whichever scores best by cross-validation, and stay as
            they are where neither scores better; examples without a label are left out. Where none has one, and for
            "contextual", None is the same share each. "linear" learns shares from its examples, and takes none.
        predictor: Name of the predictor whose output is calibrated; None where only one has such an output.
        allow_uncalibrated: Whether the calibrated program answers as the student does, with a warning, where its LM
            gives no log-probabilities; otherwise that is an error.
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

    def __init__(
        self,
        method: str = "batch",
        *,
        num_inputs: int = 64,
        prior: Mapping[Any, float] | None = None,
        predictor: str | None = None,
        allow_uncalibrated: bool = False,
        num_threads: int | None = None,
        max_errors: int | None = None,
        seed: int = 0,
        display_progress: bool = True,
    ) -> None:
        super().__init__()
        if method not in METHODS:
            raise ValueError(f"method must be one of {list(METHODS)}; got {method!r}")
        if prior is not None and method == "linear":
            raise ValueError("prior must be None with method='linear', which learns it: leave it out")
        if prior is not None and not isinstance(prior, Mapping):
            raise TypeError(f"prior must be a dict from labels to shares; got {prior!r}")
        self.method = method
        self.num_inputs = whole_number("num_inputs", num_inputs, least=2) or 64
        self.prior = prior
        self.predictor = predictor
        self.allow_uncalibrated = flag("allow_uncalibrated", allow_uncalibrated)
        self.num_threads = whole_number("num_threads", num_threads)
        self.max_errors = whole_number("max_errors", max_errors)
        self.seed = whole_number("seed", seed, least=0) or 0
        self.display_progress = flag("display_progress", display_progress)
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
            trainset: Examples. Those that the demos show are left out. "contextual" does not look at their labels.
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
        seed = whole_number("seed", self.seed if seed is None else seed, least=0) or 0
        predictor = self.predictor
        if isinstance(student, CalibratedProgram):
            student, predictor = student.program, predictor or student.predictor
        check_student(student)
        check_demos(student)
        check_examples("trainset", trainset, student)
        check_language_model(student)
        output = finite_output_of(student, predictor)
        prior = None if self.prior is None else prior_shares(self.prior, output.labels)
        examples, counts = self._examples(student, trainset, output, seed=seed)
        check_fields(student, trainset=examples)
        answers = right_labels(examples, output)
        if self.method == "linear":
            _check_labels(answers, examples, output)
        deciding = self.method == "batch" and prior is None and bool((answers >= 0).all())
        if deciding:
            warn_of_labels(student, output, counts)
        self.accuracies = {}
        found = readings(
            student,
            examples,
            output,
            as_it_is=deciding,
            num_threads=self.num_threads,
            max_errors=self.max_errors,
            display_progress=self.display_progress,
        )
        told = [i for i, each in enumerate(found) if each is not None]
        if len(told) < 2:
            needs = "replies with labels among the likeliest tokens"
            cure = "add demos, or use another adapter (PlainTextAdapter for small and base models) or model"
            if output.stated is not None:
                needs = f"replies that state the probabilities of {output.name!r} as JSON"
                cure = "use another model, or declare a Literal alone, whose log-probabilities are read"
            raise NoProbabilities(f"{PURPOSE} needs {needs}; {len(told)} of {len(found)} have any: {cure}")
        if len(told) < len(found):
            logger.warning("%d of %d replies say nothing of labels", len(found) - len(told), len(found))
        table = np.array([found[i].log_probabilities for i in told])  # type: ignore[union-attr]
        unseen = np.array([np.isin(np.arange(table.shape[1]), found[i].unseen) for i in told])  # type: ignore[union-attr]
        labels = tuple(output.labels)
        calibration: Calibration | None
        if self.method == "linear":
            fit = fit_linear(table, answers[told], seed=seed)
            calibration = Calibration(
                "linear", labels, tuple(fit.offsets.tolist()), tuple(fit.scales.tolist()), len(told)
            )
        elif deciding:
            said = np.array([labels.index(found[i].label) if found[i].label else -1 for i in told])  # type: ignore[union-attr, arg-type]
            calibration = self._best(table, unseen, said, answers, told, counts=counts, labels=labels)
        else:
            shares = np.full(len(labels), 1.0 / len(labels)) if prior is None else prior
            calibration = _batch(self.method, labels, table, unseen, shares)
            if prior is None:
                _warn_of_answers(table, unseen, calibration)
        program = CalibratedProgram(
            student, calibration, predictor=output.predictor, allow_uncalibrated=self.allow_uncalibrated
        )
        means = dict(zip(labels, np.exp(table).mean(axis=0).round(3).tolist(), strict=True))
        to = f" to {_named(labels, calibration.shares)}" if calibration and calibration.shares else ""
        logger.info(
            "%s, by %d inputs; mean probabilities before: %s%s",
            "answers stay as they are" if calibration is None else f"calibrated{to}",
            len(told),
            means,
            "".join(f"; {name}: {accuracy:.3f}" for name, accuracy in self.accuracies.items()),
        )
        return program.bound()

    def _best(
        self,
        table: Array,
        unseen: NDArray[np.bool_],
        said: NDArray[np.int64],
        answers: NDArray[np.int64],
        told: Sequence[int],
        *,
        counts: Array,
        labels: tuple[str, ...],
    ) -> Calibration | None:
        """The calibration by which the labels are answered best; None where that is none. Sets `accuracies`.

        Args:
            table, unseen: Of the replies that say something of labels, ``[n, L]``.
            said: What the student answers there, ``[n]``; -1 where that is no label.
            answers: The right label of all inputs ``[N]``; the other replies count as wrong.
            told: Numbers of the inputs with such a reply, ``[n]``.
            counts: Examples of the trainset that each label is right for, ``[L]``.
            labels: What demos call them.
        """
        right = np.eye(len(labels))[answers[told]]
        ways: dict[str, tuple[Array, Calibration | None]] = {
            "as it is": ((said == answers[told]).astype(np.float64), None),
            "likeliest label": (right[np.arange(len(told)), table.argmax(axis=1)], Calibration.none(labels)),
        }
        for shares in likely_shares(counts):
            scores = cross_validated(table, right, shares, unseen=unseen)
            ways[f"calibrated to {_named(labels, shares)}"] = (
                scores,
                _batch(self.method, labels, table, unseen, shares),
            )
        self.accuracies = {name: float(scores.sum()) / len(answers) for name, (scores, _) in ways.items()}
        best = max(self.accuracies, key=self.accuracies.__getitem__)  # The first of equals: as it is.
        most = int(counts.argmax())
        self.accuracies[f"always {labels[most]!r}"] = float((answers == most).mean())
        return ways[best][1]

    def get_params(self) -> dict[str, Any]:
        """Return the arguments."""
        return {name: value for name, value in vars(self).items() if name != "accuracies"}

    def _examples(
        self, student: dspy.Module, trainset: Sequence[dspy.Example], output: LabelOutput, *, seed: int
    ) -> tuple[list[dspy.Example], Array]:
        """The examples that are used, inputs that differ and that no demo shows, and how often all have each label.

        Raises:
            ValueError: when there are too few.
        """
        num_labels = len(output.labels)
        if self.method == "contextual":
            if not trainset:
                raise ValueError("trainset must hold an example, whose inputs are filled without content")
            names = list(trainset[0].inputs().keys())
            inputs = dict(trainset[0].inputs().items())
            check_text_inputs("method='contextual'", inputs, cure="pass method='batch'")
            free = [dspy.Example(dict.fromkeys(names, text)).with_inputs(*names) for text in CONTENT_FREE]
            return free, np.zeros(num_labels)
        demos = [demo for _, predictor in named_predictors(student) for demo in predictor.demos]
        shown = shown_by(demos, trainset)
        usable = {
            value_key(dict(example.inputs().items())): example
            for i, example in enumerate(trainset)
            if i not in shown
        }
        if len(usable) < 2:
            raise ValueError(
                f"trainset must hold at least 2 different inputs that no demo shows; of its {len(trainset)} examples "
                f"{len(usable)} are left: pass more, or method='contextual', which needs no inputs"
            )
        known = right_labels(list(usable.values()), output)
        if self.method == "batch" and self.prior is None and (known < 0).any():
            named = [each.get(output.name) for each in usable.values()]
            strange = next(
                (value for value, number in zip(named, known, strict=True) if value and number < 0), None
            )
            if strange is not None or (known >= 0).any():
                left = (
                    "they are left out" if (known >= 0).sum() > 1 else "all are taken to be equally frequent"
                )
                logger.warning(
                    "%d of %d examples have none of the labels %s at %r%s: %s",
                    (known < 0).sum(),
                    len(known),
                    list(output.labels),
                    output.name,
                    "" if strange is None else f" (one has {strange!r})",
                    left,
                )
            if (known >= 0).sum() > 1:
                pairs = zip(usable.items(), known, strict=True)
                usable = {key: example for (key, example), number in pairs if number >= 0}
                known = known[known >= 0]
        count, wanted = min(self.num_inputs, len(usable)), INPUTS_PER_LABEL * num_labels
        if self.method == "batch" and count < wanted:
            logger.warning(
                "only %d inputs to calibrate %d labels on: which labels they happen to have moves the result; pass %d "
                "or more%s",
                count,
                num_labels,
                wanted,
                " and a larger num_inputs" if self.num_inputs < wanted else "",
            )
        counts = np.bincount(known[known >= 0], minlength=num_labels).astype(np.float64)
        return random.Random(seed).sample(list(usable.values()), count), counts


def _batch(
    method: str, labels: tuple[str, ...], table: Array, unseen: NDArray[np.bool_], shares: Array
) -> Calibration:
    """The calibration by the mean probabilities of labels, ``[n, L]``, to shares of them, ``[L]``."""
    offsets = tuple(batch_offsets(table, prior=shares, unseen=unseen).tolist())
    return Calibration(
        method, labels, offsets, (1.0,) * len(labels), len(table), tuple(np.round(shares, 6).tolist())
    )


def _named(labels: Sequence[str], shares: Sequence[float] | Array) -> str:
    """Shares by label, for people."""
    return ", ".join(f"{label!r} {share:.2f}" for label, share in zip(labels, shares, strict=True))


def _warn_of_answers(table: Array, unseen: NDArray[np.bool_], calibration: Calibration) -> None:
    """Warn where answers are far from even with calibration and without: then labels may well be uneven."""
    moved = calibrated(table, calibration.offsets, unseen=unseen)
    counts = [np.bincount(each.argmax(axis=1), minlength=table.shape[1]) for each in (table, moved)]
    if all(is_far_from_even(each) for each in counts):
        logger.warning(
            "answers are far from the same share of each label before calibration (%s) and after it (%s): if the "
            "labels are not equally frequent, pass labelled examples, or their shares as prior",
            *(_named(calibration.labels, each / each.sum()) for each in counts),
        )


def _check_labels(answers: NDArray[np.int64], examples: Sequence[dspy.Example], output: LabelOutput) -> None:
    """Raise unless all examples have one of the labels, and not all the same.

    Raises:
        ValueError: with the reason and the cure.
    """
    texts, cure = list(output.labels), "or pass method='batch', which needs no labels"
    for answer, example in zip(answers, examples, strict=True):
        if answer < 0:
            raise ValueError(
                f"method='linear' needs examples whose {output.name!r} is one of {texts}; got "
                f"{example.get(output.name)!r}: give all examples one, {cure}"
            )
    if len(set(answers)) == 1:
        raise ValueError(
            f"method='linear' needs examples with different labels; all {len(answers)} have {texts[answers[0]]!r}: "
            f"pass some with another, {cure}"
        )
