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
from numpy.typing import NDArray
from scipy.special import log_softmax

from plr_dspy.label_probabilities.light_memory import light_memory
from plr_dspy.label_probabilities.requests import LogprobRequests
from plr_dspy.label_probabilities.servers import NoProbabilities, asking_for_probabilities
from plr_dspy.label_probabilities.stated import LEAST_STATED, StatedProbabilities
from plr_dspy.label_probabilities.tokens import Position, masses_in_reply, positions_of
from plr_dspy.lm.finite_outputs import label_text, labels_of, without_none

LEAST = -30.0
"""The smallest log-probability that is believed: servers write -9999 for what they do not compute."""

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


class _Reader:
    """Comes before an adapter's own type, and reads what its calls return.

    Attributes:
        readings: One for each call with the output; None where a reply says nothing of labels.
        unread: What the first reply that the adapter could not read says, where nothing decides; None for nothing.
        asked: The LM of the last call with the output.
    """

    readings: list[Reading | None]
    unread: Reading | None
    asked: Any
    _name: str
    _labels: Mapping[str, Any]
    _requests: LogprobRequests
    _decision: Decision | None
    _reads: Callable[[Any], bool] | None
    _stated: StatedProbabilities | None
    _outer: _Reader | None

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
            first = outputs[0] if len(outputs) == 1 else None
            if not self._requests.wanted or not isinstance(first, Mapping):
                raise
            if (
                self._stated is not None
                or not self._is_ours(original_signature)
                or len(original_signature.output_fields) > 1
            ):
                raise
            positions = positions_of(first.get("logprobs"))
            found = _reading_of(positions, list(self._labels), None, name=self._name)
            if found is None:
                raise
            if self._decision is None:
                self._requests.note_reply(lm, given=True)
                self.unread = self.unread or found
                raise
            return [{self._name: _UNREAD, "logprobs": first.get("logprobs")}]

    def _is_ours(self, signature: Any) -> bool:
        """Whether a call with this signature is one that is read."""
        outputs = signature.output_fields
        if self._name not in outputs or "logprobs" in outputs:
            return False
        if self._reads is not None and not self._reads((dspy.settings.caller_modules or [None])[-1]):
            return False
        if self._stated is not None:
            return self._stated.are_asked_of(outputs[self._name])
        return labels_of(without_none(outputs[self._name].annotation)) == self._labels

    @contextmanager
    def _asking(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any) -> Iterator[dict[str, Any] | None]:
        """Yield the arguments of an LM call that asks; None for a call that is none of ours."""
        if not self._is_ours(signature):
            yield None
            return
        self.asked = lm
        if self._stated is not None:
            yield lm_kwargs
            return
        with self._requests.turn() as wanted:
            if not wanted and self._requests.required:
                raise NoProbabilities(self._requests.reason)
            if not wanted:
                yield None
                return
            memory = nullcontext() if _asks_itself(lm, lm_kwargs) else light_memory()
            # What is streamed might not be the answer, and chat replies in parts come without log-probabilities.
            with memory, dspy.context(send_stream=None):
                yield asking_for_probabilities(lm, lm_kwargs)

    def _read(self, lm: Any, lm_kwargs: dict[str, Any], values: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Keep what the first of the returned values says; return the values as they are without asking."""
        if self._stated is not None:
            return self._read_stated(lm, values)
        for i, value in enumerate(values or [{}]):
            positions = positions_of(value.get("logprobs"))
            said = value.get(self._name)
            label = label_text(self._labels, said)
            found = None
            # None is an answer of its own where the type allows it.
            if label is not None or (self._decision is not None and said is not None):
                found = _reading_of(positions, list(self._labels), label, name=self._name)
            if found is not None and self._decision is not None:
                found = self._decision(found)
                value[self._name] = self._labels[str(found.label)]
            if i == 0:
                given = any(len(place.alternatives) > 1 for place in positions)
                self._requests.note_reply(lm, given=given)
                self._keep(found, lm, given=given)
        if not _asks_itself(lm, lm_kwargs):
            for value in values:
                value.pop("logprobs", None)
        return values

    def _read_stated(self, lm: Any, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Do what `_read` does with the probabilities that replies state."""
        assert self._stated is not None
        for i, value in enumerate(values):
            found, masses = None, self._stated.weighted(value[self._name])
            if masses.sum() > 0:  # Otherwise DSPy raises.
                masses = masses / masses.sum()
                label = list(self._labels)[int(masses.argmax())]
                found = _normalised(label, masses, math.log(min(LEAST_STATED, masses[masses > 0].min())))
            if found is not None and self._decision is not None:
                found = self._decision(found)
                told = np.exp(found.log_probabilities)
                value[self._name] = self._stated.evidence(value[self._name], told)
            if i == 0:
                self._keep(found, lm, given=True)
        return values

    def _keep(self, found: Reading | None, lm: Any, *, given: bool) -> None:
        """Keep a reading, here and where the same is read from outside."""
        self.readings.append(found)
        outer = self._outer
        if outer is not None and (outer._name, outer._labels) == (self._name, self._labels):
            outer._requests.note_reply(lm, given=given)
            outer._keep(found, lm, given=given)


def reading(
    adapter: dspy.Adapter,
    name: str,
    labels: Mapping[str, Any],
    *,
    requests: LogprobRequests,
    decision: Decision | None = None,
    reads: Callable[[Any], bool] | None = None,
    stated: StatedProbabilities | None = None,
) -> Any:
    """Return a copy of an adapter that reads the log-probabilities of labels from the replies to its own calls.

    It is of a subclass of the adapter's type, and makes the calls that the adapter makes, but for one that the
    endpoint refuses.

    Args:
        adapter: Stays as it is.
        name: The output field whose calls are read; calls with other signatures pass through.
        labels: The values of this field by what demos call them, as in `labels_of`.
        requests: Decides whether log-probabilities are asked for.
        decision: Gives the answer, whatever label the reply says; it is asked where the adapter could not read the
            reply, too, if the output is the only one. None leaves the answer as it is.
        reads: Tells whether the calls of a module are read; None for all with such an output.
        stated: Of an output whose replies state probabilities: these are read, and nothing further is asked for.

    Returns:
        The copy. Its `readings` hold a `Reading`, or None, for each call that asked.
    """
    reader = copy.copy(adapter)
    outer = adapter if isinstance(adapter, _Reader) else None
    reader.__class__ = _reading_type(type(adapter))  # type: ignore[arg-type]
    vars(reader).update(
        readings=[],
        unread=None,
        asked=None,
        _name=name,
        _labels=dict(labels),
        _requests=requests,
        _decision=decision,
        _reads=reads,
        _stated=stated,
        _outer=outer,
    )
    return reader


@functools.cache
def _reading_type(kind: type) -> type:
    if issubclass(kind, _Reader):  # It is read from outside as well: one reader asks for both.
        return kind
    # Errors name the type of the adapter, which is the user's.
    made = type(kind.__name__, (_Reader, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    for name in {"format", "parse"} & vars(made).keys():
        delattr(made, name)  # DSPy wraps those of a subclass once more, and would call callbacks twice.
    return made


def _reading_of(
    positions: Sequence[Position], labels: Sequence[str], label: str | None, *, name: str
) -> Reading | None:
    """Return what a reply says of labels.

    It is None where none is among the likeliest tokens, where only one token is told, and where the label was read from
    another spelling, as adapters read "yes" as True: then the tokens there are not those of labels.
    """
    said = "".join(position.token for position in positions).casefold()
    if not positions or (label is not None and label.casefold() not in said):
        return None
    masses, alternatives = masses_in_reply(positions, labels, label, name=name)
    if len(alternatives) < 2 or not masses.any():
        return None
    return _normalised(label, masses, min(alternatives.values()))


def _normalised(label: str | None, masses: NDArray[np.float64], least: float) -> Reading:
    """Return the reading of probabilities ``[L]``; the logs of those of 0 are at most `least`."""
    known = np.log(masses, out=np.full(len(masses), least), where=masses > 0)
    unseen = tuple(np.flatnonzero(masses == 0).tolist())
    return Reading(label, tuple(log_softmax(np.maximum(known, LEAST)).tolist()), unseen)


def _asks_itself(lm: Any, lm_kwargs: Mapping[str, Any]) -> bool:
    """Whether the program asks for log-probabilities on its own account."""
    return bool({**getattr(lm, "kwargs", {}), **lm_kwargs}.get("logprobs"))
