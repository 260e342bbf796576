"""BatchCalibration: the DSPy optimizer that takes away how far a classifier leans to some of its labels."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
import numpy as np
from dspy.teleprompt.teleprompt import Teleprompter

from plr_dspy.calibration.linear import fit_linear
from plr_dspy.calibration.outputs import PURPOSE, finite_output_of, prior_shares, right_labels
from plr_dspy.calibration.program import CalibratedProgram, Calibration
from plr_dspy.calibration.readings import readings
from plr_dspy.label_probabilities.servers import NoProbabilities
from plr_dspy.programs.content_free import CONTENT_FREE, check_text_inputs
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.inputs import check_examples, check_fields
from plr_dspy.programs.splits import shown_by, value_key
from plr_dspy.programs.validation import (
    check_demos,
    check_language_model,
    check_student,
    whole_number,
)
from plr_dspy.statistics.calibration import batch_offsets

logger = logging.getLogger(__name__)

METHODS = ("batch", "contextual", "linear")

INPUTS_PER_LABEL = 5
"""With fewer, the labels that the inputs happen to have cost a point or more where there is nothing to correct."""


class BatchCalibration(Teleprompter):  # type: ignore[misc]
    """Calibrates the probabilities of a classifier's labels, and lets these decide.

    Demos, their order and the name of a label lean a language model towards some labels. That can be measured without
    any labelled example, and taken away: see docs/calibration.md. The student needs an output that is a Literal, an
    enum or a bool, and an LM that gives log-probabilities (OpenAI's chat models, vLLM, llama.cpp); or an output whose
    probabilities replies state (`dspy.experimental.Choice`, `Noul`).

    Args:
        method: "batch" takes away the mean over inputs of the trainset (H. Zhou et al., "Batch calibration",
            arXiv:2309.17249); "contextual" the mean over inputs without content, which costs three calls and needs text
            inputs (T. Z. Zhao et al., "Calibrate before use", ICML 2021). Neither looks at a label. "linear" fits a
            scale and an offset for each label to labelled examples, and changes nothing where cross-validation finds
            no gain (M. Abbas et al., AISTATS 2024).
        num_inputs: Examples of the trainset that are used, at most: one program call each.
        prior: Share of inputs that each label is right for, by label; None for the same share each. "linear" learns it
            from its examples, and takes none.
        predictor: Name of the predictor whose output is calibrated; None where only one has such an output.
        allow_uncalibrated: Whether the calibrated program answers as the student does, with a warning, where its LM
            gives no log-probabilities; otherwise that is an error.
        num_threads: Program calls under way at once; None takes DSPy's setting.
        max_errors: So many failed program calls end the compile, with the exception of the last; None takes DSPy's
            setting.
        seed: Of the choice of examples.
        display_progress: Draw a progress bar.

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
        self.allow_uncalibrated = allow_uncalibrated
        self.num_threads = whole_number("num_threads", num_threads)
        self.max_errors = whole_number("max_errors", max_errors)
        self.seed = whole_number("seed", seed, least=0) or 0
        self.display_progress = display_progress

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
            trainset: Examples. Those that the demos show are left out. Only "linear" looks at their labels.
            teacher, valset: Ignored; other optimizers pass them.
            seed: Instead of the constructor's.

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
        prior = None if self.prior is None else prior_shares(self.prior, output)
        examples = self._examples(student, trainset, len(output.labels), seed=seed)
        check_fields(student, trainset=examples)
        answers = right_labels(examples, output) if self.method == "linear" else None
        found = readings(
            student,
            examples,
            output,
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
        if answers is None:
            offsets, scales = batch_offsets(table, prior=prior, unseen=unseen), np.ones(table.shape[1])
        else:
            fit = fit_linear(table, answers[told], seed=seed)
            offsets, scales = fit.offsets, fit.scales
        calibration = Calibration(
            self.method, tuple(output.labels), tuple(offsets.tolist()), tuple(scales.tolist()), len(told)
        )
        program = CalibratedProgram(
            student, calibration, predictor=output.predictor, allow_uncalibrated=self.allow_uncalibrated
        )
        program._compiled = True
        means = dict(zip(output.labels, np.exp(table).mean(axis=0).round(3).tolist(), strict=True))
        logger.info("calibrated on %d inputs; mean probabilities before: %s", len(told), means)
        return program

    def get_params(self) -> dict[str, Any]:
        """Return the arguments."""
        return dict(vars(self))

    def _examples(
        self, student: dspy.Module, trainset: Sequence[dspy.Example], num_labels: int, *, seed: int
    ) -> list[dspy.Example]:
        """The examples that are used: inputs that differ, and that no demo shows.

        Raises:
            ValueError: when there are too few.
        """
        if self.method == "contextual":
            if not trainset:
                raise ValueError("trainset must hold an example, whose inputs are filled without content")
            names = list(trainset[0].inputs().keys())
            inputs = dict(trainset[0].inputs().items())
            check_text_inputs("method='contextual'", inputs, cure="pass method='batch'")
            return [dspy.Example(dict.fromkeys(names, text)).with_inputs(*names) for text in CONTENT_FREE]
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
        return random.Random(seed).sample(list(usable.values()), count)
