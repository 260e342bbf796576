"""Programs that decide by label probabilities: calibrated, or with an order for each input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict

import dspy
import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from plr_dspy.dspy_compat import Parameter, set_compiled
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.labels.outputs import LabelOutput, needed_output
from plr_dspy.labels.reader import LabelReader, LogprobRequests, Reading, labels_read
from plr_dspy.lm.plain_text_adapter import Value
from plr_dspy.metrics.copies import own_value
from plr_dspy.programs.calls import WRONG_ANSWERS
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.statistics.arrays import Array
from plr_dspy.statistics.calibration import calibrated

PURPOSE = "calibration"
PROBABILITIES = "probabilities"  # field added to calibrated predictions


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))  # Files from later versions may hold more.
class Calibration:
    """A calibration of label probabilities: ``scales * log p + offsets``, normalised.

    Attributes:
        method: Method that found it; "none" changes nothing.
        labels: Labels, as in demos, ``[L]``.
        offsets, scales: One value per label, ``[L]``; scales default to 1.
        num_inputs: Number of inputs behind it; for `PLReorder`, of examples.
        shares: Label shares that answers are calibrated to, ``[L]``, if any.
    """

    method: str
    labels: tuple[str, ...]
    offsets: tuple[float, ...]
    scales: tuple[float, ...] = ()
    num_inputs: int = 0
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", self.scales or (1.0,) * len(self.offsets))
        is_finite = np.isfinite([*self.offsets, *self.scales]).all()
        if not len(self.labels) == len(self.offsets) == len(self.scales) or not is_finite:
            raise UserError(f"calibration must have a finite offset and scale for each label; got {self}")

    @classmethod
    def none(cls, labels: Iterable[str]) -> Calibration:
        """Return the calibration that changes nothing."""
        names = tuple(labels)
        return cls("none", names, (0.0,) * len(names))

    def applied(self, reading: Reading) -> Reading:
        """Return calibrated log-probabilities and the likeliest label."""
        is_unseen = np.isin(np.arange(len(self.labels)), reading.unseen)
        logs = calibrated(reading.log_probabilities, self.offsets, scales=self.scales, unseen=is_unseen)
        return Reading(self.labels[int(logs.argmax())], tuple(logs.tolist()), reading.unseen)


def calibrated_output(program: dspy.Module, predictor: str | None = None) -> LabelOutput:
    """Return the output to calibrate; raise if there is not exactly one."""
    predictors = dict(program.named_predictors())
    names = list(predictors)
    if predictor is not None and predictor not in names:
        raise UserError(f"predictor must be one of {names}; got {predictor!r}")
    cure = ""
    if predictor is None and len(names) > 1:
        cure = f", or pass predictor= with one of {names}"
    output = needed_output(program, PURPOSE, only=predictor, cure=cure)
    for _, part in program.named_sub_modules():
        reads_itself = isinstance(part, (CalibratedProgram, PerInputOrder))
        if reads_itself and predictors[output.predictor] in part.predictors():
            raise UserError(
                f"{output.predictor!r} is in a {type(part).__name__}, which cannot be calibrated: pass the program "
                "that it was made of"
            )
    if any(PROBABILITIES in other.signature.output_fields for other in predictors.values()):
        raise UserError(f"calibration adds a field {PROBABILITIES!r}, and the program has such an output: rename it")
    return output


class CalibratedProgram(dspy.Module):
    """A program that answers with the likeliest label by calibrated probabilities.

    ``prediction.probabilities`` has each label's calibrated probability, or is None if
    the reply gives none. `load_program` loads the program.

    Args, and attributes of the same names:
        program: A program with an output that is a Literal, an enum or a bool. It is
            copied.
        calibration: A calibration from `BatchCalibration`. With None, probabilities are
            shown but decide nothing.
        predictor: Name of the predictor with that output; None if there is only one.
    """

    calibration: Calibration | None

    def __init__(
        self, program: dspy.Module, calibration: Calibration | None = None, *, predictor: str | None = None
    ) -> None:
        super().__init__()
        if not isinstance(program, dspy.Module) or isinstance(program, CalibratedProgram):
            raise UserTypeError(
                f"program must be a dspy.Module that is not calibrated already; got {type(program).__name__}: pass "
                "the program itself"
            )
        if not isinstance(calibration, (Calibration, type(None))):
            raise UserTypeError(f"calibration must be a Calibration or None; got {calibration!r}")
        self.program = ProgramFactory(program).build({})
        set_compiled(self.program, False)  # DSPy does not save frozen programs.
        self._set(calibration, predictor)

    def forward(self, *args: Value, **inputs: Value) -> Value:
        """Return the program's prediction with a calibrated label."""
        with self._reading() as reader:
            prediction = self.program(*args, **inputs)
        return _with_probabilities(prediction, reader)

    async def aforward(self, *args: Value, **inputs: Value) -> Value:
        """Do what `forward` does, using the program's async calls."""
        with self._reading() as reader:
            call = dspy.asyncify(self.program)
            if hasattr(self.program, "aforward"):
                call = self.program.acall
            prediction = await call(*args, **inputs)
        return _with_probabilities(prediction, reader)

    def _reading(self) -> AbstractContextManager[LabelReader]:
        output = calibrated_output(self.program, self.predictor)
        decision = None if self.calibration is None else self.calibration.applied
        return labels_read(self.program, output, LogprobRequests(PURPOSE), decision=decision)

    def _set(self, calibration: Calibration | None, predictor: str | None) -> None:
        """Set a predictor's calibration; raise if its labels differ."""
        output = calibrated_output(self.program, predictor)
        if calibration is not None and list(output.labels) != list(calibration.labels):
            raise UserError(
                f"the calibration is of the labels {list(calibration.labels)}, and the program has "
                f"{list(output.labels)}: calibrate this program"
            )
        self.predictor = output.predictor
        self.calibration = calibration

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Return the parameters that DSPy saves and loads, including the calibration."""
        return [("calibration", _SavedCalibration(self)), *super().named_parameters()]

    # Optimizers freeze what they compile, and DSPy does not save frozen parts.
    _compiled = property(lambda self: False, lambda self, value: None)


def _with_probabilities(prediction: Value, reader: LabelReader) -> Value:
    """Put probabilities first, because `dspy.majority` votes on the last field."""
    if not isinstance(prediction, dspy.Prediction):
        return prediction
    probabilities = None
    reading = reader.behind(prediction)
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
        """Keep the calibration."""

    def dump_state(self, json_mode: bool = True) -> dict[str, Value]:
        calibration = self._program.calibration
        found = None if calibration is None else asdict(calibration)
        return {"predictor": self._program.predictor, "found": found}

    def load_state(self, state: Mapping[str, Value]) -> None:
        found = state["found"]
        try:
            calibration = None if found is None else Calibration(**found)
        except ValidationError as error:
            raise UserError(
                f"the saved calibration cannot be read ({error}): update plr_dspy, or calibrate the program anew"
            ) from error
        self._program._set(calibration, state["predictor"])


class PerInputOrder(dspy.Module):
    """A program that orders its demos for each input.

    It calls the LM once per order, and uses the order in which the input most raises the
    predicted label's probability. Without orders, it acts like the program itself.

    Args:
        program: A program with one LM call, whose finite output is the answer.
        orders: Each has "permutations", the demo indices per predictor, and
            "content_free", the mean distribution ``[L]`` over content-free inputs.
    """

    def __init__(self, program: dspy.Module, orders: Sequence[Mapping[str, Value]] = ()) -> None:
        super().__init__()
        self.program = ProgramFactory(program).build({})
        set_compiled(self.program, False)  # DSPy does not save frozen programs.
        self.orders = tuple(orders)

    def forward(self, *args: Value, **inputs: Value) -> Value:
        """Return the answer in the order in which the input has the most influence."""
        requests = LogprobRequests("DEmO")
        answers = []
        for order in self.orders:
            answer, reading = self._answer_in(order["permutations"], requests, args, inputs)
            if reading is not None:
                probabilities = distribution(reading.log_probabilities, reading.unseen)
                label = int(probabilities.argmax())
                answers.append((probabilities[label] - order["content_free"][label], answer))
        if not answers:
            return self.program(*args, **inputs)
        return max(answers, key=lambda pair: pair[0])[1]

    def _answer_in(
        self,
        permutations: Mapping[str, Sequence[int]],
        requests: LogprobRequests,
        args: Sequence[Value],
        inputs: Mapping[str, Value],
    ) -> tuple[Value, Reading | None]:
        """Return the answer in an order, and the reading of its reply, if any."""
        predictors = dict(self.program.named_predictors())
        demos = {}
        for name, permutation in permutations.items():
            demos[name] = [predictors[name].demos[i] for i in permutation]
        program = ProgramFactory(self.program).build(demos)
        output = needed_output(program, "DEmO")
        likeliest = Calibration.none(output.labels).applied
        # A program may modify its inputs; the next order must not see that.
        own_args = [own_value(value) for value in args]
        own_inputs = {name: own_value(value) for name, value in inputs.items()}
        answer = None
        with labels_read(program, output, requests, decision=likeliest) as reader, suppress(*WRONG_ANSWERS):
            answer = program(*own_args, **own_inputs)
        return answer, None if answer is None else reader.behind(answer)

    async def aforward(self, *args: Value, **inputs: Value) -> Value:
        return await dspy.asyncify(self.forward)(*args, **inputs)

    def dump_state(self, json_mode: bool = True) -> dict[str, Value]:
        return {**super().dump_state(json_mode=json_mode), "orders": list(self.orders)}

    def load_state(self, state: Mapping[str, Value], **options: bool) -> None:
        super().load_state(state, **options)
        self.orders = tuple(state.get("orders", ()))


def distribution(log_probabilities: ArrayLike, unseen: Sequence[int]) -> Array:
    """Return label probabilities, ``[L]``, with 0 for unseen labels."""
    probabilities = np.exp(np.array(log_probabilities))
    probabilities[list(unseen)] = 0.0
    return np.asarray(probabilities / probabilities.sum())
