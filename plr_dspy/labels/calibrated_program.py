"""Programs that decide by the probabilities of labels: a calibrated one, and one with an order for each input."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import orjson
from numpy.typing import ArrayLike
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from plr_dspy._version import __version__
from plr_dspy.dspy_compat import Parameter, serialize_object, set_compiled
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.labels.outputs import LabelOutput, needed_output
from plr_dspy.labels.reader import LabelReader, LogprobRequests, Reading, labels_read
from plr_dspy.metrics.copies import own_value
from plr_dspy.programs.calls import WRONG_ANSWERS
from plr_dspy.programs.checks import saved_state
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.made_with import settings_of
from plr_dspy.runtime import write_atomically
from plr_dspy.statistics.calibration import Array, calibrated

logger = logging.getLogger(__name__)

PURPOSE = "calibration"
PROBABILITIES = "probabilities"  # field of a prediction that calibrated programs add

LOADER = "plr_dspy: this program is calibrated; load it with plr_dspy.load_program(student, path)"
"""A dependency of the saved program, by the name that DSPy's error has when the student itself loads the file."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))  # Files from later versions may hold more.
class Calibration:
    """How the probabilities of labels are calibrated: ``scales * log p + offsets``, normalised.

    Attributes:
        method: How it was found: "batch"; "none" changes nothing.
        labels, offsets, scales: Labels as demos call them, and theirs, ``[L]``; without scales all are 1.
        num_inputs: Inputs that it was found from; of `PLReorder`, the examples of the compile.
        shares: Of the labels, that answers are calibrated to, ``[L]``; empty where they are not known.
        adapter, model, prompt: What it was found with, which `CalibratedProgram` compares with what it is used with:
            their names, and a digest of the instructions, fields and demos; None where that is not known.
    """

    method: str
    labels: tuple[str, ...]
    offsets: tuple[float, ...]
    scales: tuple[float, ...] = ()
    num_inputs: int = 0
    shares: tuple[float, ...] = ()
    adapter: str | None = field(default=None, compare=False)
    model: str | None = field(default=None, compare=False)
    prompt: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", self.scales or (1.0,) * len(self.offsets))
        numbers = [*self.offsets, *self.scales]
        if not len(self.labels) == len(self.offsets) == len(self.scales) or not np.isfinite(numbers).all():
            raise UserError(f"calibration must have a finite offset and scale for each label; got {self}")

    @classmethod
    def none(cls, labels: Iterable[str]) -> Calibration:
        """Return the calibration that changes nothing."""
        names = tuple(labels)
        return cls("none", names, (0.0,) * len(names))

    def applied(self, found: Reading) -> Reading:
        """Return the reading with calibrated log-probabilities, and the label that is likeliest by them."""
        unseen = np.isin(np.arange(len(self.labels)), found.unseen)
        told = calibrated(found.log_probabilities, self.offsets, scales=self.scales, unseen=unseen)
        return Reading(self.labels[int(told.argmax())], tuple(told.tolist()), found.unseen)


def calibrated_output(program: dspy.Module, predictor: str | None = None) -> LabelOutput:
    """Find the output to calibrate, of the named predictor where several have one; a ValueError says why none is."""
    predictors = dict(program.named_predictors())
    names = list(predictors)
    if predictor is not None and predictor not in names:
        raise UserError(f"predictor must be one of {names}; got {predictor!r}")
    cure = "" if predictor is not None or len(names) == 1 else f", or pass predictor= with one of {names}"
    if any(isinstance(part, PerInputOrder) for _, part in program.named_sub_modules()):
        raise UserError(
            "a program of DEmO decides by the probabilities of labels already, and cannot be calibrated: pass the "
            "program that it was made of"
        )
    output = needed_output(program, PURPOSE, only=predictor, cure=cure)
    if any(PROBABILITIES in each.signature.output_fields for each in predictors.values()):
        raise UserError(
            f"calibrated predictions hold the probabilities of labels as {PROBABILITIES!r}, and the program has an "
            "output of this name: rename it"
        )
    return output


@cache
def warn_once(other: str, prompt: str | None) -> None:
    """Warn that the calibration of a prompt was found with something other, whichever copy of a program is called."""
    logger.warning("the calibration was found with %scalibrate the program anew", other)


class CalibratedProgram(dspy.Module):
    """A program whose finite output is the likeliest label by calibrated probabilities.

    It makes the LM calls of the program and no others, and asks for log-probabilities with them, unless replies state
    probabilities, as `dspy.experimental.Choice` and `Noul` have them do. A prediction has the calibrated probability of
    each label, by the label, at ``prediction.probabilities``; None where a reply says nothing of any label. It saves to
    JSON, also as a part of a larger program; `load_program` loads it. A call with another adapter, model, instructions
    or demos than the calibration was found with is logged as a warning, once. It is never frozen, as DSPy does not save
    frozen parts of a program.

    Args, and attributes of the same names:
        program: It has an output that is a Literal, an enum, a bool, a Choice or a Noul. It is copied.
        calibration: As `BatchCalibration` finds it; None tells the probabilities, and decides nothing.
        predictor: Name of the predictor with that output; None where only one has one.

    Raises:
        ValueError: for a program without such an output, or a calibration of other labels.
    """

    calibration: Calibration | None

    def __init__(
        self, program: dspy.Module, calibration: Calibration | None = None, *, predictor: str | None = None
    ) -> None:
        super().__init__()
        if not isinstance(program, dspy.Module) or isinstance(program, CalibratedProgram):
            raise UserTypeError(
                f"program must be a dspy.Module that is not calibrated already; got {type(program).__name__}: pass an "
                "instance of one, or the attribute program of a calibrated one"
            )
        if not isinstance(calibration, (Calibration, type(None))):
            raise UserTypeError(f"calibration must be a Calibration or None; got {calibration!r}")
        self.program = ProgramFactory(program).build({})
        set_compiled(self.program, False)  # What is frozen would not be saved.
        self._take(calibration, predictor)

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """Return the program's prediction, with the calibrated label and the probabilities.

        Raises:
            NoProbabilities: when the LM gives no log-probabilities.
        """
        with self._reading() as reader:
            prediction = self.program(*args, **inputs)
        return _with_probabilities(prediction, reader)

    async def aforward(self, *args: Any, **inputs: Any) -> Any:
        """Do what `forward` does, with the program's async calls."""
        with self._reading() as reader:
            call = self.program.acall if hasattr(self.program, "aforward") else dspy.asyncify(self.program)
            prediction = await call(*args, **inputs)
        return _with_probabilities(prediction, reader)

    def _reading(self) -> AbstractContextManager[LabelReader]:
        """The context in which what is said of labels is read, and decides."""
        output, found = calibrated_output(self.program, self.predictor), self.calibration
        if found is not None:
            for name, now in self._now().items():
                if (own := getattr(found, name)) and now and own != now:
                    other = f"the {name} {own}, and is used with {now}: configure {own}, or "
                    warn_once("other instructions or demos: " if name == "prompt" else other, found.prompt)

        requests = LogprobRequests(PURPOSE, cure="the program that it wraps (its attribute program)")
        return labels_read(self.program, output, requests, decision=None if found is None else found.applied)

    def bound(self) -> CalibratedProgram:
        """Note what the calibration is of, where it does not say so: the adapter, model and prompt of this moment."""
        if (found := self.calibration) is not None:
            of: dict[str, Any] = {name: getattr(found, name) or now for name, now in self._now().items()}
            self.calibration = replace(found, **of)
        return self

    def _now(self) -> dict[str, str | None]:
        """Return the adapter, the model and a digest of the prompt that a call would be made with."""
        predictor = dict(self.program.named_predictors())[self.predictor]
        fields = list(predictor.signature.fields)
        shown = [{name: demo[name] for name in fields if name in demo} for demo in predictor.demos]
        return {
            **settings_of(predictor),
            "prompt": digest([fields, predictor.signature.dump_state(), serialize_object(shown)]),
        }

    def _take(self, calibration: Calibration | None, predictor: str | None) -> None:
        """Take the calibration of a predictor's output; a ValueError says where it is of other labels."""
        output = calibrated_output(self.program, predictor)
        if calibration is not None and list(output.labels) != list(calibration.labels):
            raise UserError(
                f"the calibration is of the labels {list(calibration.labels)}, and the program has "
                f"{list(output.labels)}: wrap the program that was calibrated, or calibrate this one"
            )
        self.predictor = output.predictor
        self.calibration = calibration

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Return the calibration, which DSPy then saves and loads, too, and those of the program."""
        return [("calibration", _SavedCalibration(self)), *super().named_parameters()]

    # A larger program would not save it where it is frozen, as optimizers leave what they compile.
    _compiled = property(lambda self: False, lambda self, value: None)

    def load_state(self, state: Mapping[str, Any], **options: Any) -> None:
        """Become what `dump_state` was taken of, which must be a calibrated program."""
        if "calibration" not in state:
            raise UserError(
                "the state is of a program that is not calibrated: load it into the program itself, and wrap that"
            )
        super().load_state(state, **options)

    def save(self, path: str | Path, *arguments: Any, **options: Any) -> None:
        """Save as any program; to the student itself, the JSON says that it is calibrated."""
        super().save(path, *arguments, **options)
        if Path(path).suffix == ".json":
            state = orjson.loads(Path(path).read_bytes())
            state["metadata"]["dependency_versions"][LOADER] = __version__
            layout = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE  # DSPy's
            write_atomically(Path(path), orjson.dumps(state, option=layout))

    def load(self, path: str | Path, allow_pickle: bool = False, allow_unsafe_lm_state: bool = False) -> None:
        """Load what `save` wrote, as DSPy does; a ValueError says where the file holds something else."""
        state = saved_state(path, allow_pickle=allow_pickle)
        self.load_state(state, allow_unsafe_lm_state=allow_unsafe_lm_state)


def _with_probabilities(prediction: Any, reader: LabelReader) -> Any:
    """The prediction with the probabilities of labels first, as `dspy.majority` votes on the last field."""
    if isinstance(prediction, dspy.Prediction):
        found, others, labels = reader.behind(prediction), dict(prediction.items()), reader.label_output.labels.values()
        for name in others:
            del prediction[name]
        told = found and dict(zip(labels, np.exp(found.log_probabilities).tolist(), strict=True))
        for name, value in {PROBABILITIES: told, **others}.items():
            prediction[name] = value
    return prediction


class _SavedCalibration(Parameter):  # type: ignore[misc]
    """The calibration of a program as DSPy looks for it, saves it and loads it."""

    def __init__(self, program: CalibratedProgram) -> None:
        self._program = program

    def reset(self) -> None:
        """Keep the calibration: a call says that the demos are others."""

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        found = self._program.calibration
        return {"predictor": self._program.predictor, "found": None if found is None else asdict(found)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Give the program this calibration; a ValueError says where it is of other labels, or another version's."""
        found = state["found"]
        try:
            calibration = None if found is None else Calibration(**found)
        except ValidationError as error:
            told = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
            raise UserError(
                f"the saved calibration cannot be read ({'; '.join(told)}): if a later plr_dspy wrote it, update "
                "plr_dspy, otherwise calibrate the program anew"
            ) from error
        self._program._take(calibration, state["predictor"])


class PerInputOrder(dspy.Module):
    """A program that orders its demos anew for each input.

    Of its orders it takes the one under which the input adds most to the probability of the label predicted: one
    LM call for each order. Without orders it is the program itself. It saves to JSON; `load_program` loads it.

    Args:
        program: Makes one LM call, whose finite output is the answer.
        orders: To choose from: of each, its "permutations", the demo indices by position for each predictor, and
            "content_free", the mean distribution ``[L]`` over content-free inputs.
    """

    def __init__(self, program: dspy.Module, orders: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__()
        self.program = ProgramFactory(program).build({})
        set_compiled(self.program, False)  # what is frozen would not be saved
        self.orders = tuple(orders)

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """The answer in the order that the input has most influence under.

        Raises:
            NoProbabilities: when the LM gives no log-probabilities.
        """
        answers, requests, predictors = [], LogprobRequests("DEmO"), dict(self.program.named_predictors())
        for order in self.orders:
            demos = {name: [predictors[name].demos, places] for name, places in order["permutations"].items()}
            if any(sorted(places) != list(range(len(held))) for held, places in demos.values()):
                continue  # They are others by now, as after `reset_copy`.
            shown = {name: [held[i] for i in places] for name, (held, places) in demos.items()}
            program = ProgramFactory(self.program).build(shown)
            output, answer = needed_output(self.program, "DEmO", cure=""), None
            likeliest = Calibration.none(output.labels).applied
            with labels_read(program, output, requests, decision=likeliest) as reader, suppress(*WRONG_ANSWERS):
                # A program may write to what it gets, which the next order must not see.
                own_inputs = {name: own_value(value) for name, value in inputs.items()}
                answer = program(*map(own_value, args), **own_inputs)
            if answer is not None and (found := reader.behind(answer)):  # Else no label is likely in this order.
                p = distribution(found.log_probabilities, found.unseen)
                answers.append((p.max() - order["content_free"][int(p.argmax())], answer))
        return max(answers, key=lambda each: each[0])[1] if answers else self.program(*args, **inputs)

    async def aforward(self, *args: Any, **inputs: Any) -> Any:
        return await dspy.asyncify(self.forward)(*args, **inputs)

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        return {**super().dump_state(json_mode=json_mode), "orders": list(self.orders)}

    def load_state(self, state: Mapping[str, Any], **options: Any) -> None:
        super().load_state(state, **options)
        self.orders = tuple(state.get("orders", ()))


def distribution(log_probabilities: ArrayLike, unseen: Sequence[int]) -> Array:
    """Return the probabilities ``[L]`` of labels, 0 for those that are not among the likeliest tokens."""
    probabilities = np.exp(np.array(log_probabilities))
    probabilities[list(unseen)] = 0.0
    return np.asarray(probabilities / probabilities.sum())
