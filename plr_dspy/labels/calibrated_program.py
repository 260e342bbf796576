"""Programs that answer with the most probable label after calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import ClassVar

import dspy
import numpy as np

from plr_dspy.dspy_compat import Parameter, model_of, set_compiled
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.labels.calibration import Calibration
from plr_dspy.labels.outputs import LabelOutput, needed_output
from plr_dspy.labels.per_input_order import PerInputOrder
from plr_dspy.labels.reader import LabelReader, LogprobRequests, labels_read
from plr_dspy.lm.plain_text_adapter import Value
from plr_dspy.programs.attached_results import sub_modules
from plr_dspy.programs.copying import ProgramFactory

PURPOSE = "calibration"
PROBABILITIES = "probabilities"  # name of the field that calibration adds to predictions


def calibrated_output(program: dspy.Module, predictor: str | None = None) -> LabelOutput:
    """Return the output to calibrate. Raise a ValueError unless exactly one output can be calibrated."""
    predictors = dict(program.named_predictors())
    names = list(predictors)
    if predictor is not None and predictor not in names:
        raise UserError(
            f"predictor must be one of {names}; got {predictor!r}: pass the name of the classifier"
        )
    fix = ""
    if predictor is None and len(names) > 1:
        fix = f", or pass one of the names {names} as predictor"
    output = needed_output(program, PURPOSE, only=predictor, fix=fix)
    for _, part in sub_modules(program):
        is_wrapper = isinstance(part, (CalibratedProgram, PerInputOrder))
        if is_wrapper and predictors[output.predictor] in part.predictors():
            raise UserError(
                f"predictor {output.predictor!r} is in a {type(part).__name__}, which cannot be calibrated: pass the "
                f"program that this {type(part).__name__} wraps"
            )
    if any(PROBABILITIES in other.signature.output_fields for other in predictors.values()):
        raise UserError(
            f"calibration adds the field {PROBABILITIES!r}, but the program already has it: rename this output"
        )
    return output


class CalibratedProgram(dspy.Module):
    """A program that answers with the most probable label after calibration.

    ``prediction.probabilities`` maps each label to the label's calibrated probability, or is
    None if the reply has no label probabilities. The program then keeps its own answer. But until a
    reply has had log-probabilities, a reply without any raises `NoProbabilities`. Load a saved
    program with `load_program`.

    Args, which are also attributes:
        program: A program with an output that is a Literal, an enum or a bool. The attribute is
            a copy.
        calibration: A calibration from `BatchCalibration`. If None, predictions contain
            probabilities, but the answers do not change.
        predictor: Name of the predictor to calibrate; needed only if several predictors have
            such an output.
    """

    passes_inputs_on: ClassVar[bool] = True  # lets `unwrapped` find the wrapped program

    calibration: Calibration | None

    def __init__(
        self, program: dspy.Module, calibration: Calibration | None = None, *, predictor: str | None = None
    ) -> None:
        super().__init__()
        if not isinstance(program, dspy.Module) or isinstance(program, CalibratedProgram):
            raise UserTypeError(
                f"program must be a dspy.Module that is not calibrated already; got {type(program).__name__}: pass "
                "a dspy.Module, or the attribute program of the CalibratedProgram"
            )
        if not isinstance(calibration, (Calibration, type(None))):
            raise UserTypeError(
                f"calibration must be a Calibration or None; got {calibration!r}: pass the report.calibration of a "
                "BatchCalibration optimizer, or omit calibration"
            )
        self.program = ProgramFactory(program).build({})
        set_compiled(self.program, False)  # Otherwise, DSPy would not save the wrapped program.
        # Names of the models that have returned log-probabilities.
        self._models_with_logprobs: set[str] = set()
        self._set(calibration, predictor)

    def forward(self, *args: Value, **inputs: Value) -> Value:
        with self._reading() as reader:
            prediction = self.program(*args, **inputs)
        return _with_probabilities(prediction, reader)

    async def aforward(self, *args: Value, **inputs: Value) -> Value:
        with self._reading() as reader:
            call = dspy.asyncify(self.program)
            if hasattr(self.program, "aforward"):
                call = self.program.acall
            prediction = await call(*args, **inputs)
        return _with_probabilities(prediction, reader)

    @contextmanager
    def _reading(self) -> Iterator[LabelReader]:
        output = calibrated_output(self.program, self.predictor)
        decision = None if self.calibration is None else self.calibration.applied
        model = getattr(model_of(dict(self.program.named_predictors())[output.predictor]), "model", "")
        requests = LogprobRequests(PURPOSE, given=model in self._models_with_logprobs)
        try:
            with labels_read(self.program, output, requests, decision=decision) as reader:
                yield reader
        finally:
            if requests.given:
                self._models_with_logprobs.add(model)

    def _set(self, calibration: Calibration | None, predictor: str | None) -> None:
        output = calibrated_output(self.program, predictor)
        if calibration is not None and list(output.labels) != list(calibration.labels):
            raise UserError(
                f"calibration must have the program's labels {list(output.labels)}; got {list(calibration.labels)}: "
                "calibrate this program with BatchCalibration"
            )
        self.predictor = output.predictor
        self.calibration = calibration

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        # DSPy saves and loads these parameters, so include the calibration.
        return [("calibration", _SavedCalibration(self)), *super().named_parameters()]

    # DSPy does not save programs that are marked as compiled, so this program ignores the mark.
    _compiled = property(lambda self: False, lambda self, value: None)


def _with_probabilities(prediction: Value, reader: LabelReader) -> Value:
    """Return the prediction with the label probabilities as its first field.

    The last field must stay last, because `dspy.majority` votes on it.
    """
    if not isinstance(prediction, dspy.Prediction):
        return prediction
    probabilities = None
    reading = reader.reading_for(prediction)
    if reading is not None:
        labels = reader.label_output.labels.values()
        probabilities = dict(zip(labels, np.exp(reading.log_probabilities).tolist(), strict=True))
    fields = dict(prediction.items())
    for name in fields:
        del prediction[name]
    for name, value in {PROBABILITIES: probabilities, **fields}.items():
        prediction[name] = value
    return prediction


class _SavedCalibration(Parameter):  # type: ignore[misc]
    """A program's calibration, as a parameter that DSPy saves and loads."""

    def __init__(self, program: CalibratedProgram) -> None:
        self._program = program

    def reset(self) -> None:
        """Do nothing, because optimizers call `reset()` only to remove demos."""

    def dump_state(self, json_mode: bool = True) -> dict[str, Value]:
        calibration = self._program.calibration
        fields = None if calibration is None else asdict(calibration)
        return {"predictor": self._program.predictor, "found": fields}

    def load_state(self, state: Mapping[str, Value]) -> None:
        fields = state["found"]
        calibration = None if fields is None else Calibration(**fields)
        self._program._set(calibration, state["predictor"])
