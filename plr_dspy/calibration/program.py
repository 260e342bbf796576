"""A program whose finite output is decided by calibrated probabilities, which it gives beside the label."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import dspy
import numpy as np

from plr_dspy.label_probabilities.reader import LogprobRequests, Reading, reading
from plr_dspy.label_probabilities.servers import without_probabilities
from plr_dspy.programs.copies import ProgramFactory, named_predictors
from plr_dspy.programs.label_scores import LabelOutput, label_output
from plr_dspy.statistics.calibration import calibrated

logger = logging.getLogger(__name__)

PURPOSE = "calibration"


@dataclass(frozen=True)
class Calibration:
    """How the probabilities of labels are calibrated: ``scales * log p + offsets``, normalised.

    Attributes:
        method: How it was found: "batch", "contextual" or "linear".
        labels: As demos call them, ``[L]``.
        offsets, scales: Of the labels, ``[L]``.
        num_inputs: Inputs that it was found from.
    """

    method: str
    labels: tuple[str, ...]
    offsets: tuple[float, ...]
    scales: tuple[float, ...]
    num_inputs: int

    def __post_init__(self) -> None:
        numbers = [*self.offsets, *self.scales]
        if not len(self.labels) == len(self.offsets) == len(self.scales) or not np.isfinite(numbers).all():
            raise ValueError(f"calibration must have a finite offset and scale for each label; got {self}")

    def applied(self, found: Reading) -> Reading:
        """Return the reading with calibrated log-probabilities, and the label that is likeliest by them."""
        unseen = np.isin(np.arange(len(self.labels)), found.unseen)
        told = calibrated(found.log_probabilities, self.offsets, scales=self.scales, unseen=unseen)
        return Reading(self.labels[int(told.argmax())], tuple(told.tolist()), found.unseen)


class CalibratedProgram(dspy.Module):
    """A program whose finite output is the likeliest label by calibrated probabilities.

    It makes the LM calls of the program and no others, and asks for log-probabilities with them. A prediction has the
    calibrated probability of each label, by the label, at ``prediction.probabilities``; None where a reply says nothing
    of any label. It saves to JSON; to load it, wrap the student again:
    ``program = CalibratedProgram(student); program.load(path)``.

    Args:
        program: It has an output that is a Literal, an enum or a bool. It is not changed.
        calibration: As `BatchCalibration` finds it; None tells the probabilities, and decides nothing.
        predictor: Name of the predictor with that output; None where only one has one.
        allow_uncalibrated: Take the program's own answer, with a warning, where the LM gives no log-probabilities.

    Attributes:
        program, calibration, predictor, allow_uncalibrated: The same; the program is a copy.

    Raises:
        ValueError: for a program without such an output, or a calibration of other labels.
    """

    def __init__(
        self,
        program: dspy.Module,
        calibration: Calibration | None = None,
        *,
        predictor: str | None = None,
        allow_uncalibrated: bool = False,
    ) -> None:
        super().__init__()
        self.program = ProgramFactory(program).build({})
        self.program._compiled = False  # What is frozen would not be saved.
        self.predictor = finite_output_of(program, predictor).predictor
        self.allow_uncalibrated = allow_uncalibrated
        self.calibration = calibration
        self._without: list[str] = []  # names of LMs that give no log-probabilities
        if calibration is not None:
            self._check(calibration)

    def forward(self, **inputs: Any) -> Any:
        """Return the program's prediction, with the calibrated label and the probabilities.

        Raises:
            NoProbabilities: when the LM gives no log-probabilities.
            Exception: of the program.
        """
        with self._reading() as reader:
            prediction = self.program(**inputs)
        return self._told(prediction, reader)

    async def aforward(self, **inputs: Any) -> Any:
        """Do what `forward` does, with the program's async calls."""
        with self._reading() as reader:
            if hasattr(self.program, "aforward"):
                prediction = await self.program.acall(**inputs)
            else:
                prediction = await dspy.asyncify(self.program)(**inputs)
        return self._told(prediction, reader)

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """Read what is said of labels in this context, and decide by it; yield the reader."""
        output = finite_output_of(self.program, self.predictor)
        predictor = dict(named_predictors(self.program))[output.predictor]
        lm = predictor.lm or dspy.settings.lm
        requests = LogprobRequests(required=not self.allow_uncalibrated)
        requests.wanted = getattr(lm, "model", None) not in self._without
        reader = reading(
            dspy.settings.adapter or dspy.ChatAdapter(),
            output.name,
            output.labels,
            requests=requests,
            decision=None if self.calibration is None else self.calibration.applied,
            predictor=predictor,
        )
        try:
            with dspy.context(adapter=reader):
                yield reader
        except Exception as error:
            if not requests.reason:
                raise
            raise without_probabilities(lm, PURPOSE) from error
        if requests.reason and not self.allow_uncalibrated:
            raise without_probabilities(lm, PURPOSE)
        if requests.reason:
            logger.warning("answers are not calibrated: %s", requests.reason)
            self._without.append(lm.model)

    def _told(self, prediction: Any, reader: Any) -> Any:
        """Return the prediction with the probabilities."""
        if isinstance(prediction, dspy.Prediction):
            labels = finite_output_of(self.program, self.predictor).labels.values()
            found = reader.readings[-1] if reader.readings else None
            prediction.probabilities = found and dict(
                zip(labels, np.exp(found.log_probabilities).tolist(), strict=True)
            )
        return prediction

    def _check(self, calibration: Calibration) -> None:
        labels = finite_output_of(self.program, self.predictor).labels
        if tuple(labels) != tuple(calibration.labels):
            raise ValueError(
                f"the calibration is of the labels {list(calibration.labels)}, and the program has {list(labels)}: "
                "wrap the program that was calibrated, or calibrate this one"
            )

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """Return the state of the program, and the calibration."""
        state: dict[str, Any] = super().dump_state(json_mode=json_mode)
        calibration = None if self.calibration is None else asdict(self.calibration)
        return {**state, "calibration": {"predictor": self.predictor, "found": calibration}}

    def load_state(self, state: Mapping[str, Any], **options: Any) -> None:
        """Become what `dump_state` was taken of.

        Raises:
            ValueError: when it is the state of a program without calibration, or with one of other labels.
        """
        if "calibration" not in state:
            raise ValueError(
                "the state is of a program that is not calibrated: load it into the program itself, and wrap that"
            )
        predictor, found = state["calibration"]["predictor"], state["calibration"]["found"]
        calibration = None
        if found is not None:
            lists = {name: tuple(found[name]) for name in ("labels", "offsets", "scales")}
            calibration = Calibration(method=found["method"], num_inputs=found["num_inputs"], **lists)
        before = self.predictor
        self.predictor = predictor
        try:
            if calibration is not None:
                self._check(calibration)
            super().load_state(state, **options)
        except BaseException:
            self.predictor = before
            raise
        self.calibration = calibration


def finite_output_of(program: dspy.Module, predictor: str | None) -> LabelOutput:
    """Find the output that is calibrated.

    Args:
        program: It has one.
        predictor: Name of the predictor that has it; None where only one does.

    Raises:
        ValueError: when there is no such output, or more than one.
    """
    names = [name for name, _ in named_predictors(program)]
    if predictor is not None and predictor not in names:
        raise ValueError(f"predictor must be one of {names}; got {predictor!r}")
    output = label_output(program, only=predictor)
    if isinstance(output, str):
        cure = "" if predictor is not None or len(names) == 1 else f", or pass predictor= with one of {names}"
        raise ValueError(
            f"calibration needs an output with few possible values: {output}. Give exactly one output such a type{cure}"
        )
    return output
