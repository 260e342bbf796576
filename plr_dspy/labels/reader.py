"""Log-probabilities in a program's own calls: asking for them, reading what they say of labels, answering by that."""

from __future__ import annotations

import copy
import functools
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import dspy
import numpy as np
from scipy.special import log_softmax

from plr_dspy.dspy_compat import AdapterParseError, BaseCallback, LMUnsupportedFeatureError, drop_from_memory_cache
from plr_dspy.errors import FatalLMError
from plr_dspy.labels.outputs import LabelOutput
from plr_dspy.statistics.calibration import Array

BEFORE_LABEL = " \t\r\n\"'`*([{"  # may stand before the label in a token: JSON quotes it, models like to make it bold
NUM_ALTERNATIVES = 20  # likely tokens asked for at each position: the most of OpenAI, and of vLLM as it is set up
LEAST = -30.0  # the smallest log-probability that is believed: servers write -9999 for what they do not compute
LEAST_STATED = 0.005  # what a stated probability of 0 may be at most: models state two decimals


class NoProbabilities(FatalLMError):
    """The provider gives no log-probabilities."""


@dataclass
class LogprobRequests:
    """Decides for all calls whether to ask for log-probabilities: until they are refused, or a first reply has none."""

    purpose: str = ""  # what cannot do without them, for which no call is made without asking; empty for nothing
    cure: str = "PLReorder or TopKOrder, which need none"
    wanted: bool = True  # can be switched off
    given: bool = False
    reason: str = ""  # why there are none, or none to learn from
    model: str = ""  # that gives none

    def note_reply(self, lm: Any, *, given: bool) -> None:
        """Note that a call that asked was answered; once one was given any, the others say nothing more."""
        self.given = self.given or given
        if not self.given:
            self._stop(lm, "gives no log-probabilities")

    def note_error(self, lm: Any, error: Exception) -> bool:
        """Note the error of a call that asked; return whether it is to be made again without asking."""
        # Providers refuse by errors of many types, and LMs of the user's own may not take the arguments. An error that
        # cannot parse repeats the reply, which may hold any word; one of another LM, such as the one that reads replies
        # for `dspy.TwoStepAdapter`, says nothing of this. It may lack the provider's name.
        refuses = isinstance(error, LMUnsupportedFeatureError) or "logprob" in str(error).lower()
        is_own = str(lm.model).endswith(getattr(error, "model", None) or "")
        if self.given or not refuses or not is_own or isinstance(error, AdapterParseError):
            return False
        self._stop(lm, "refuses requests for log-probabilities")
        return not self.purpose

    def check(self, cause: Exception | None = None) -> None:
        """Raise `NoProbabilities` where there are none, and something cannot do without them."""
        if self.purpose and self.reason:
            raise NoProbabilities(
                f"{self.purpose} needs the log-probabilities of tokens, and {self.model} gives none: use a model and "
                f"provider that do (OpenAI's chat models, vLLM, llama.cpp), or {self.cure}"
            ) from cause

    def _stop(self, lm: Any, why: str) -> None:
        self.wanted, self.model = False, str(lm.model)
        self.reason = self.reason or f"{self.model} {why}"


@dataclass(eq=False)
class _NotedCalls(BaseCallback):  # type: ignore[misc]
    """Notes the LM calls of a context, and what is written of them to histories, to forget their log-probabilities."""

    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.calls.append((instance, inputs))

    def forget(self) -> None:
        """Take log-probabilities out of DSPy's histories and memory cache: in each, 3 MB for a reply of 150 tokens."""
        for entry in self.history:
            told = [each if isinstance(each, dict) else {"text": each} for each in entry["outputs"]]
            rest = [{name: value for name, value in each.items() if name != "logprobs"} for each in told]
            # Where nobody asks for log-probabilities, a reply is written as a text.
            entry.update(response=None, outputs=[each["text"] if each.keys() == {"text"} else each for each in rest])
        drop_from_memory_cache(self.calls)


class Reading(NamedTuple):
    """What one reply says."""

    label: str | None  # that was answered, as demos call it; None where the adapter could not read one
    log_probabilities: tuple[float, ...]  # [L], normalised
    unseen: tuple[int, ...] = ()  # numbers of labels not among the likeliest tokens, with the smallest of these at most


Decision: TypeAlias = Callable[[Reading], Reading]  # gives the label that is the answer, and its probabilities


class LabelReader:
    """The first base of a type made of an adapter's own: it reads what the adapter's calls return."""

    readings: list[Reading | None]  # of each call with the output, None where the reply says nothing of labels
    undecided: list[Reading]  # what decisions were made of
    unread: Reading | None  # of the first reply that the adapter could not read, where nothing decides
    label_output: LabelOutput
    _requests: LogprobRequests
    _decision: Decision | None
    _own: dspy.Predict
    _others: set[int]  # ids of the program's other predictors
    _outside: list[LabelReader]  # readers around this one of the same output, for which it reads, too

    def __call__(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, *rest: Any, **named: Any) -> Any:
        """Make the adapter's own call; with the output in the signature, ask for log-probabilities and read them."""
        make_call: Any = super().__call__  # type: ignore[misc]
        with self._asking(lm, lm_kwargs, signature) as asking:
            if asking is not None:
                return self._read(lm, lm_kwargs, make_call(lm, asking, signature, *rest, **named))
        return make_call(lm, lm_kwargs, signature, *rest, **named)

    async def acall(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, *rest: Any, **named: Any) -> Any:
        """Do what `__call__` does, with the LM's async call."""
        make_call: Any = super().acall  # type: ignore[misc]
        with self._asking(lm, lm_kwargs, signature) as asking:
            if asking is not None:
                return self._read(lm, lm_kwargs, await make_call(lm, asking, signature, *rest, **named))
        return await make_call(lm, lm_kwargs, signature, *rest, **named)

    @contextmanager
    def _asking(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any) -> Iterator[dict[str, Any] | None]:
        """Yield the arguments of an LM call that is read, else None; a refusal, to call without asking, is no error."""
        requests, settings, output = self._requests, dspy.settings, self.label_output
        callers, fields = settings.caller_modules or [], signature.output_fields
        caller = callers[-1] if callers else None
        # Copies that the program makes on the way are read as the predictor itself is.
        is_copy = getattr(caller, "stage", None) == self._own.stage and id(caller) not in self._others
        has_it = output.name in fields and "logprobs" not in fields
        has_it = has_it and fields[output.name].annotation in (output.annotation, output.annotation | None)
        if not (has_it and (caller is self._own or is_copy)):
            yield None
        elif output.decision is not None:
            yield lm_kwargs
        elif not requests.wanted:
            requests.check()
            yield None
        else:
            noted, callbacks = _NotedCalls(), settings.callbacks or []
            number = {**getattr(lm, "kwargs", {}), **lm_kwargs}.get("top_logprobs") or 0
            # DSPy writes to the histories of all that are calling. What is streamed might not be the answer, and parts
            # of chat replies come without log-probabilities.
            context = {"caller_modules": [noted, *callers], "callbacks": [*callbacks, noted], "send_stream": None}
            try:
                with dspy.context(**context, plr_dspy_asked=True):
                    yield {**lm_kwargs, "logprobs": True, "top_logprobs": max(number, NUM_ALTERNATIVES)}
            except Exception as error:
                if not requests.note_error(lm, error):
                    raise
            finally:
                noted.forget()

    def _call_postprocess(self, processed: Any, original: Any, outputs: list[Any], *rest: Any) -> Any:
        """Do what the adapter does; where it cannot read a reply, what is likely there may be the answer."""
        try:
            return super()._call_postprocess(processed, original, outputs, *rest)  # type: ignore[misc]
        except AdapterParseError:
            alone = len(original.output_fields) == len(outputs) == 1 and isinstance(outputs[0], Mapping)
            logprobs = outputs[0].get("logprobs") if alone and dspy.settings.get("plr_dspy_asked") else None
            if (found := _reading_of(logprobs, self.label_output, None)) is None:
                raise
            if self._decision is not None:
                return [{self.label_output.name: object(), "logprobs": logprobs}]  # An answer that is to be decided.
            self._requests.given = True
            self.unread = self.unread or found
            raise

    def _read(self, lm: Any, lm_kwargs: dict[str, Any], values: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Keep what the first of the returned values says; return the values as they are without asking."""
        output, states = self.label_output, self.label_output.decision is not None
        for i, value in enumerate(values or [{}]):
            said, label, found = value.get(output.name), output.label_of(value), None
            if states and value:
                masses = output.stated(said)
                if masses.any():  # DSPy raises for zeros.
                    masses, label = masses / masses.sum(), list(output.labels)[int(masses.argmax())]
                    found = _normalised(label, masses, math.log(min(LEAST_STATED, masses[masses > 0].min())))
            elif label is not None or (self._decision and said is not None):  # None may be an answer, too.
                found = _reading_of(value.get("logprobs"), output, label)
            if found is not None and self._decision is not None:
                self.undecided.append(found)
                found = self._decision(found)
                stated = output.evidence(said, np.exp(found.log_probabilities)) if states else None
                value[output.name] = stated or output.labels[str(found.label)]
            for reader in (self, *self._outside) if i == 0 else ():
                reader.readings.append(found)
                if not reader._requests.given:
                    places = getattr(value.get("logprobs"), "content", None) or ()
                    others = (each.token != place.token for place in places for each in place.top_logprobs or ())
                    reader._requests.note_reply(lm, given=bool(value) if states else any(others))
        asks_itself = {**getattr(lm, "kwargs", {}), **lm_kwargs}.get("logprobs")
        for value in values if not (states or asks_itself) else ():
            value.pop("logprobs", None)
        return values

    def behind(self, answer: Any) -> Reading | None:
        """Return what the last reply said that gave a program's answer; of one without a label the last of all."""
        label = self.label_output.label_of(answer)
        alike = [each for each in self.readings if label is None or (each and each.label == label)]
        return alike[-1] if alike else None


@contextmanager
def labels_read(
    program: dspy.Module, output: LabelOutput, requests: LogprobRequests, *, decision: Decision | None = None
) -> Iterator[Any]:
    """Read what replies to a program's calls in this context say of labels; yield the `LabelReader`.

    It is a copy of the context's adapter, of a subclass of the adapter's type, and makes the calls that the adapter
    makes, but for one that the endpoint refuses. Those of copies that the program makes on the way (`dspy.BestOfN`) are
    read, too. A decision gives the answer, whatever label the reply says, and where the adapter could not read the
    reply, too, if the output is the only one.
    """
    adapter = dspy.settings.adapter or dspy.ChatAdapter()
    reader: Any = copy.copy(adapter)
    reader.__class__ = _reading_type(type(adapter))  # type: ignore[arg-type]
    reader.readings, reader.undecided, reader.unread = [], [], None
    reader.label_output, reader._requests, reader._decision = output, requests, decision
    predictors = dict(program.named_predictors())
    reader._own, reader._others = predictors.pop(output.predictor), set(map(id, predictors.values()))
    same = isinstance(adapter, LabelReader) and (adapter.label_output.name, adapter.label_output.labels)
    reader._outside = [adapter, *adapter._outside] if same == (output.name, output.labels) else []
    try:
        with dspy.context(adapter=reader):
            yield reader
    except Exception as error:
        requests.check(error)
        raise
    requests.check()


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


def _reading_of(logprobs: Any, output: LabelOutput, label: str | None) -> Reading | None:
    """Return what a reply's "logprobs" say of labels; None where none is likely, or one token alone is told."""
    places, labels = getattr(logprobs, "content", None) or (), list(output.labels)
    tokens = [place.token for place in places]
    # A label may be read from another spelling, as "yes" for True: then the tokens there are not those of labels.
    if not tokens or (label is not None and label.casefold() not in "".join(tokens).casefold()):
        return None
    start, after = label_position(tokens, labels, label, name=output.name), dict[str, dict[str, float]]()
    for text, place in zip(accumulate(tokens[start:], initial=""), places[start:], strict=False):
        after[text] = {each.token: each.logprob for each in (place, *(place.top_logprobs or ()))}
    masses = from_alternatives(after, labels)
    if len(after[""]) < 2 or not masses.any():
        return None
    return _normalised(label, masses, min(after[""].values()))


def _normalised(label: str | None, masses: Array, least: float) -> Reading:
    """Return the reading of probabilities ``[L]``; the logs of those of 0 are at most `least`."""
    known = np.log(masses, out=np.full(len(masses), least), where=masses > 0)
    unseen = tuple(np.flatnonzero(masses == 0).tolist())
    return Reading(label, tuple(log_softmax(np.maximum(known, LEAST)).tolist()), unseen)


def from_alternatives(after: Mapping[str, Mapping[str, float]], labels: Sequence[str]) -> Array:
    """Return probabilities ``[L]`` of labels, by the log-probabilities of the likely tokens after each text; empty is
    where the label begins.

    A token that only one label begins with counts for this label. One that several begin with is followed by the tokens
    after it, where these are known, and shared evenly among them elsewhere. Case matters only where labels differ in
    nothing else. The sum is at most 1, as other answers have the rest.
    """
    fold = str.casefold if len({label.casefold() for label in labels}) == len(labels) else str
    before_label = "".join(c for c in BEFORE_LABEL if not any(label.startswith(c) for label in labels))
    masses = np.zeros(len(labels))
    # Texts, what of labels is missing after them, and the probability that what follows shares out among these.
    pending = [("", {i: fold(label) for i, label in enumerate(labels)}, 1.0)]
    while pending:
        before, rests, probability = pending.pop()
        alternatives, left = after[before], probability
        texts = {token: fold(token if before else token.lstrip(before_label)) for token in alternatives}
        for token, text in texts.items():
            # It is the beginning of what is missing of a label, or the longest of these and the end of the word.
            ended = (each for each in rests.values() if text.startswith(each) and not text[len(each) :][:1].isalnum())
            longest = max(ended, key=len, default="")
            fitting = [i for i, rest in rests.items() if rest and (rest.startswith(text) or rest == longest)]
            if not (token and fitting):
                continue
            mass = probability * math.exp(min(0.0, alternatives[token]))
            left -= mass
            if len(fitting) > 1 and before + token in after:
                pending.append((before + token, {i: rests[i][len(text) :] for i in fitting}, mass))
                continue
            spelled = set(texts.values()) - {text}
            sharing = [i for i in fitting if rests[i] not in spelled] or fitting
            masses[sharing] += mass / len(sharing)
        # A label that is complete ends with whatever does not make another one of it.
        masses[[i for i, rest in rests.items() if not rest]] += max(0.0, left)
    return masses


def label_position(tokens: Sequence[str], labels: Sequence[str], answered: str | None, *, name: str) -> int:
    """Find where the label begins in a reply: behind the name of the field, if a label is there, or else anywhere.

    The last occurrence of what the adapter read as `answered` is the answer, as what was thought aloud comes before.
    Where it read none, that is the first occurrence of any label, or what follows the field's header, or the beginning.
    """
    reply, ends = "".join(tokens), list(accumulate(map(len, tokens)))
    wanted = sorted([answered] if answered is not None else labels, key=len, reverse=True)
    label = rf"(?<!\w)(?P<label>{'|'.join(map(re.escape, wanted))})(?!\w)"
    for before in (rf"(?<!\w){re.escape(name)}(?!\w)\W*?", ""):
        if found := list(re.finditer(before + label, reply, re.IGNORECASE)):
            return bisect_right(ends, found[-1 if answered is not None else 0].start("label"))
    # Something else stands in the place of a label: after the field's header, as in chat, or at the beginning.
    header = re.search(rf"\[\[ ## {re.escape(name)} ## \]\]\W*|\"{re.escape(name)}\"\s*:\W*", reply)
    return min(bisect_right(ends, 0 if header is None else header.end()), len(tokens) - 1)
