"""An adapter that reads probabilities of labels in a program's own calls, and can answer the likeliest label."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError
from scipy.special import log_softmax

from plr_dspy.labels.outputs import Array, LabelOutput
from plr_dspy.labels.requests import (
    LogprobRequests,
    NoProbabilities,
    asking_for_probabilities,
    asks_itself,
    light_memory,
    without_probabilities,
)
from plr_dspy.labels.tokens import Position, masses_in_reply, positions_of
from plr_dspy.lm.finite_outputs import label_text, labels_of, without_none
from plr_dspy.programs.copies import named_predictors

LEAST = -30.0
"""The smallest log-probability that is believed: servers write -9999 for what they do not compute."""

LEAST_STATED = 0.005
"""What a stated probability of 0 may be at most: models state two decimals."""

_UNREAD = object()
"""Stands for an answer that the adapter could not read, until it is decided."""


class Reading(NamedTuple):
    """What one reply says of labels.

    Attributes:
        label: The label that was answered, as demos call it; None where the adapter could not read one.
        log_probabilities: Of all labels ``[L]``, normalised over them. One that is not among the likeliest tokens
            has the smallest of these, which is an upper bound.
        unseen: Numbers of the labels that were not among the likeliest tokens.
    """

    label: str | None
    log_probabilities: tuple[float, ...]
    unseen: tuple[int, ...] = ()


Decision: TypeAlias = Callable[[Reading], Reading]
"""Gives, for what a reply says of labels, the label that is the answer and its probabilities."""


class LabelReader:
    """Comes before an adapter's own type, and reads what its calls return; `label_reader` makes one.

    Attributes:
        readings: One for each call with the output; None where a reply says nothing of labels.
        unread: What the first reply that the adapter could not read says, where nothing decides; None for nothing.
        asked: The LM of the last call with the output.
    """

    readings: list[Reading | None]
    unread: Reading | None
    asked: Any
    _output: LabelOutput
    _requests: LogprobRequests
    _decision: Decision | None
    _is_read: Callable[[Any], bool]
    _outer: LabelReader | None

    def __call__(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Make the adapter's own call; with the output in the signature, ask for log-probabilities and read them."""
        make_call: Any = super().__call__  # type: ignore[misc]
        with self._asking(lm, lm_kwargs, signature) as asking:
            if asking is not None:
                try:
                    return self._read(lm, lm_kwargs, make_call(lm, asking, signature, demos, inputs))
                except Exception as error:
                    if not self._requests.note_error(lm, error):
                        raise
        values: list[dict[str, Any]] = make_call(lm, lm_kwargs, signature, demos, inputs)
        return values

    async def acall(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Do what `__call__` does, with the LM's async call."""
        make_call: Any = super().acall  # type: ignore[misc]
        with self._asking(lm, lm_kwargs, signature) as asking:
            if asking is not None:
                try:
                    return self._read(lm, lm_kwargs, await make_call(lm, asking, signature, demos, inputs))
                except Exception as error:
                    if not self._requests.note_error(lm, error):
                        raise
        values: list[dict[str, Any]] = await make_call(lm, lm_kwargs, signature, demos, inputs)
        return values

    @contextmanager
    def _asking(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any) -> Iterator[dict[str, Any] | None]:
        """Yield the arguments of an LM call that is read; None for another, or where nothing is asked for."""
        if not self._is_ours(signature):
            yield None
            return
        self.asked = lm
        if self._output.stated is not None:
            yield lm_kwargs
            return
        with self._requests.turn() as wanted:
            if not wanted and self._requests.required:
                raise NoProbabilities(self._requests.reason)
            if not wanted:
                yield None
                return
            memory = nullcontext() if asks_itself(lm, lm_kwargs) else light_memory()
            # What is streamed might not be the answer, and chat replies in parts come without log-probabilities.
            with memory, dspy.context(send_stream=None):
                yield asking_for_probabilities(lm, lm_kwargs)

    def _is_ours(self, signature: Any) -> bool:
        """Tell whether a call with this signature is one that is read."""
        outputs, ours = signature.output_fields, self._output
        if ours.name not in outputs or "logprobs" in outputs:
            return False
        if not self._is_read((dspy.settings.caller_modules or [None])[-1]):
            return False
        if ours.stated is not None:
            return ours.stated.are_asked_of(outputs[ours.name])
        return labels_of(without_none(outputs[ours.name].annotation)) == ours.labels

    def _call_postprocess(
        self, processed_signature: Any, original_signature: Any, outputs: list[Any], lm: Any, lm_kwargs: Any
    ) -> list[dict[str, Any]]:
        """Do what the adapter does; where it cannot read a reply, what is likely there may be the answer."""
        postprocess: Any = super()._call_postprocess  # type: ignore[misc]
        try:
            values: list[dict[str, Any]] = postprocess(
                processed_signature, original_signature, outputs, lm, lm_kwargs
            )
            return values
        except AdapterParseError:
            alone = len(original_signature.output_fields) == 1 and self._output.stated is None
            if not (alone and self._requests.wanted and self._is_ours(original_signature)):
                raise
            logprobs = (
                outputs[0].get("logprobs") if len(outputs) == 1 and isinstance(outputs[0], Mapping) else None
            )
            found = _reading_of(positions_of(logprobs), self._output, None)
            if found is None:
                raise
            if self._decision is None:
                self._requests.note_reply(lm, given=True)
                self.unread = self.unread or found
                raise
            return [{self._output.name: _UNREAD, "logprobs": logprobs}]

    def _read(self, lm: Any, lm_kwargs: dict[str, Any], values: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Keep what the first of the returned values says; return the values as they are without asking."""
        output, stated = self._output, self._output.stated
        for i, value in enumerate(values or [{}]):
            positions = positions_of(value.get("logprobs"))
            said, given = value.get(output.name), any(len(place.alternatives) > 1 for place in positions)
            found = None
            if stated is not None and value:
                found, given = _stated_reading(stated.weighted(said), output), True
            # None is an answer of its own where the type allows it.
            elif (label := label_text(output.labels, said)) is not None or (
                self._decision and said is not None
            ):
                found = _reading_of(positions, output, label)
            if found is not None and self._decision is not None:
                found = self._decision(found)
                value[output.name] = output.labels[str(found.label)]
                if stated is not None:
                    value[output.name] = stated.evidence(said, np.exp(found.log_probabilities))
            if i == 0:
                self._keep(found, lm, given=given)
        if stated is None and not asks_itself(lm, lm_kwargs):
            for value in values:
                value.pop("logprobs", None)
        return values

    def _keep(self, found: Reading | None, lm: Any, *, given: bool) -> None:
        """Keep a reading, here and where the same is read from outside."""
        self._requests.note_reply(lm, given=given)
        self.readings.append(found)
        outer, ours = self._outer, self._output
        if outer is not None and (outer._output.name, outer._output.labels) == (ours.name, ours.labels):
            outer._keep(found, lm, given=given)


def label_reader(
    program: dspy.Module, output: LabelOutput, *, requests: LogprobRequests, decision: Decision | None = None
) -> Any:
    """Return a copy of this context's adapter that reads what replies to a program's own calls say of labels.

    It is of a subclass of the adapter's type, and makes the calls that the adapter makes, but for one that the
    endpoint refuses.

    Args:
        program: Its calls of the predictor are read, those of copies that it makes on the way (`dspy.BestOfN`) too.
        output: The output that is read.
        requests: Decides whether log-probabilities are asked for; where replies state probabilities, nothing is.
        decision: Gives the answer, whatever label the reply says; it is asked where the adapter could not read the
            reply, too, if the output is the only one. None leaves the answer as it is.

    Returns:
        The copy, a `LabelReader`.
    """
    predictors = dict(named_predictors(program))
    own = predictors.pop(output.predictor)
    others = {id(other) for other in predictors.values()}

    def is_read(caller: Any) -> bool:
        return caller is own or (getattr(caller, "stage", None) == own.stage and id(caller) not in others)

    adapter = dspy.settings.adapter or dspy.ChatAdapter()
    reader = copy.copy(adapter)
    reader.__class__ = _reading_type(type(adapter))  # type: ignore[arg-type]
    vars(reader).update(
        readings=[],
        unread=None,
        asked=None,
        _output=output,
        _requests=requests,
        _decision=decision,
        _is_read=is_read,
        _outer=adapter if isinstance(adapter, LabelReader) else None,
    )
    return reader


@functools.cache
def _reading_type(kind: type) -> type:
    """The type of readers that do what an adapter of this type does."""
    if issubclass(kind, LabelReader):  # It is read from outside as well: one reader asks for both.
        return kind
    # Errors name the type of the adapter, which is the user's.
    made = type(kind.__name__, (LabelReader, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    for name in {"format", "parse"} & vars(made).keys():
        delattr(made, name)  # DSPy wraps those of a subclass once more, and would call callbacks twice.
    return made


@contextmanager
def labels_read(
    program: dspy.Module,
    output: LabelOutput,
    *,
    requests: LogprobRequests,
    decision: Decision | None,
    purpose: str,
    cure: str = "PLReorder or TopKOrder, which need none",
) -> Iterator[Any]:
    """Read what replies to a program's calls in this context say of labels; yield the `LabelReader`.

    Args:
        program, output, requests, decision: As in `label_reader`.
        purpose, cure: As in `without_probabilities`.

    Raises:
        NoProbabilities: where log-probabilities are required, and the LM gives none.
    """
    reader = label_reader(program, output, requests=requests, decision=decision)
    try:
        with dspy.context(adapter=reader):
            yield reader
    except Exception as error:
        if not (requests.required and requests.reason):
            raise
        raise without_probabilities(reader.asked, purpose, cure=cure) from error
    if requests.required and requests.reason:
        raise without_probabilities(reader.asked, purpose, cure=cure)


def reading_of_answer(reader: Any, answer: Any) -> Reading | None:
    """Return what the reply behind a program's answer said of labels; None where that is nothing.

    Args:
        reader: Of the program call.
        answer: What the program returned. Where it made several calls, the last of those that gave the same label
            counts; the last of all where it holds no label, and none where no call gave its label.
    """
    found: list[Reading | None] = reader.readings
    label = answered_label(reader._output, answer)
    if label is None:
        return found[-1] if found else None
    return next((each for each in reversed(found) if each is not None and each.label == label), None)


def answered_label(output: LabelOutput, answer: Any) -> str | None:
    """Return the label that a program's answer holds, as demos call it; None where it holds none."""
    return label_text(output.labels, answer.get(output.name) if isinstance(answer, dspy.Prediction) else None)


def _reading_of(positions: Sequence[Position], output: LabelOutput, label: str | None) -> Reading | None:
    """Return what a reply says of labels.

    It is None where none is among the likeliest tokens, where only one token is told, and where the label was read from
    another spelling, as adapters read "yes" as True: then the tokens there are not those of labels.
    """
    said = "".join(position.token for position in positions).casefold()
    if not positions or (label is not None and label.casefold() not in said):
        return None
    masses, alternatives = masses_in_reply(positions, list(output.labels), label, name=output.name)
    if len(alternatives) < 2 or not masses.any():
        return None
    return _normalised(label, masses, min(alternatives.values()))


def _stated_reading(masses: Array, output: LabelOutput) -> Reading | None:
    """Return the reading of stated probabilities ``[L]``, up to a factor; None for zeros, where DSPy raises."""
    if not masses.sum() > 0:
        return None
    masses = masses / masses.sum()
    label = list(output.labels)[int(masses.argmax())]
    return _normalised(label, masses, math.log(min(LEAST_STATED, masses[masses > 0].min())))


def _normalised(label: str | None, masses: Array, least: float) -> Reading:
    """Return the reading of probabilities ``[L]``; the logs of those of 0 are at most `least`."""
    known = np.log(masses, out=np.full(len(masses), least), where=masses > 0)
    unseen = tuple(np.flatnonzero(masses == 0).tolist())
    return Reading(label, tuple(log_softmax(np.maximum(known, LEAST)).tolist()), unseen)
