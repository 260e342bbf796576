"""A program whose finite output is decided by calibrated probabilities, which it gives beside the label."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import dspy
import numpy as np

from plr_dspy.calibration.outputs import PURPOSE, finite_output_of, output_reader, reading_of_answer
from plr_dspy.label_probabilities.reader import Reading
from plr_dspy.label_probabilities.requests import LogprobRequests
from plr_dspy.label_probabilities.servers import without_probabilities
from plr_dspy.programs.copies import ProgramFactory, named_predictors
from plr_dspy.programs.label_scores import LabelOutput
from plr_dspy.statistics.calibration import calibrated

logger = logging.getLogger(__name__)

CURE = "the program that it wraps (its attribute program), or allow_uncalibrated=True"
"""What answers without log-probabilities."""


@dataclass(frozen=True)
class Calibration:
    """How the probabilities of labels are calibrated: ``scales * log p + offsets``, normalised.

    Attributes:
        method: How it was found: "batch", "contextual" or "linear".
        labels: As demos call them, ``[L]``.
        offsets, scales: Of the labels, ``[L]``.
        num_inputs: Inputs that it was found from; of `PLReorder`, the examples of the compile: where this order was not
            called on one, others were.
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

    @classmethod
    def none(cls, labels: Iterable[str]) -> Calibration:
        """Return the calibration that changes nothing."""
        names = tuple(labels)
        return cls("none", names, (0.0,) * len(names), (1.0,) * len(names), 0)

    def applied(self, found: Reading) -> Reading:
        """Return the reading with calibrated log-probabilities, and the label that is likeliest by them."""
        unseen = np.isin(np.arange(len(self.labels)), found.unseen)
        told = calibrated(found.log_probabilities, self.offsets, scales=self.scales, unseen=unseen)
        return Reading(self.labels[int(told.argmax())], tuple(told.tolist()), found.unseen)


class CalibratedProgram(dspy.Module):
    """A program whose finite output is the likeliest label by calibrated probabilities.

    It makes the LM calls of the program and no others, and asks for log-probabilities with them, unless replies state
    probabilities, as `dspy.experimental.Choice` and `Noul` have them do. A prediction has the
    calibrated probability of each label, by the label, at ``prediction.probabilities``; None where a reply says nothing
    of any label. It saves to JSON; to load it, wrap the student again:
    ``program = CalibratedProgram(student); program.load(path)``.

    Args:
        program: It has an output that is a Literal, an enum, a bool, a Choice or a Noul. It is not changed.
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
        if not isinstance(program, dspy.Module):
            raise TypeError(
                f"program must be a dspy.Module; got {type(program).__name__}: pass an instance of one"
            )
        if isinstance(program, CalibratedProgram):
            raise ValueError(
                "program must not be calibrated already: pass its attribute program, which it wraps"
            )
        if not isinstance(calibration, (Calibration, type(None))):
            raise TypeError(
                f"calibration must be a Calibration, as BatchCalibration finds it, or None; got {calibration!r}"
            )
        self.program = ProgramFactory(program).build({})
        self.program._compiled = False  # What is frozen would not be saved.
        self.predictor = finite_output_of(program, predictor).predictor
        self.allow_uncalibrated = allow_uncalibrated
        self.calibration = calibration
        self._endpoints = _Endpoints()
        if calibration is not None:
            self._check(calibration)

    def forward(self, **inputs: Any) -> Any:
        """Return the program's prediction, with the calibrated label and the probabilities.

        Raises:
            NoProbabilities: when the LM gives no log-probabilities.
            Exception: of the program.
        """
        with self._reading() as (reader, output):
            prediction = self.program(**inputs)
        return _with_probabilities(prediction, reader, output)

    async def aforward(self, **inputs: Any) -> Any:
        """Do what `forward` does, with the program's async calls."""
        with self._reading() as (reader, output):
            if hasattr(self.program, "aforward"):
                prediction = await self.program.acall(**inputs)
            else:
                prediction = await dspy.asyncify(self.program)(**inputs)
        return _with_probabilities(prediction, reader, output)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Any, LabelOutput]]:
        """Read what is said of labels in this context, and decide by it; yield the reader and the output."""
        output = finite_output_of(self.program, self.predictor)
        requests = LogprobRequests(required=True)
        if self.allow_uncalibrated:
            lm = dict(named_predictors(self.program))[output.predictor].lm
            requests = self._endpoints.requests(lm or dspy.settings.lm)
        decision = None if self.calibration is None else self.calibration.applied
        reader = output_reader(self.program, output, requests=requests, decision=decision)
        try:
            with dspy.context(adapter=reader):
                yield reader, output
        except Exception as error:
            if self.allow_uncalibrated or not requests.reason:
                raise
            raise without_probabilities(reader.asked, PURPOSE, cure=CURE) from error
        if requests.reason and not self.allow_uncalibrated:
            raise without_probabilities(reader.asked, PURPOSE, cure=CURE)
        if requests.reason:
            self._endpoints.warn(requests.reason)

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


def _with_probabilities(prediction: Any, reader: Any, output: LabelOutput) -> Any:
    """Give a prediction the probabilities of its answer; return what the program returned."""
    if isinstance(prediction, dspy.Prediction):
        found = reading_of_answer(reader, output, prediction)
        told = found and np.exp(found.log_probabilities).tolist()
        prediction.probabilities = told and dict(zip(output.labels.values(), told, strict=True))
    return prediction


class _Endpoints:
    """Keeps what is known of the log-probabilities of LMs; copies of a program share it, and it is not saved."""

    def __init__(self) -> None:
        self._requests: weakref.WeakKeyDictionary[Any, LogprobRequests] = weakref.WeakKeyDictionary()
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def requests(self, lm: dspy.BaseLM | None) -> LogprobRequests:
        """Return what decides whether an LM is asked; None stands for those that a program brings itself."""
        with self._lock:
            return self._requests.setdefault(self if lm is None else lm, LogprobRequests())

    def warn(self, reason: str) -> None:
        """Warn, once for each reason."""
        with self._lock:
            new = reason not in self._warned
            self._warned.add(reason)
        if new:
            logger.warning("answers are not calibrated: %s", reason)

    def __deepcopy__(self, memo: Any) -> _Endpoints:
        return self

    def __reduce__(self) -> Any:
        return _Endpoints, ()
