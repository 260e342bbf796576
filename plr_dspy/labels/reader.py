"""An adapter mixin that reads label log-probabilities in replies, and can replace a program's answers."""

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
from typing import NamedTuple, TypeAlias

import dspy
import numpy as np
from scipy.special import log_softmax

from plr_dspy.dspy_compat import (
    AdapterParseError,
    BaseCallback,
    LMUnsupportedFeatureError,
    current_adapter,
    current_caller,
    drop_from_memory_cache,
    with_caller,
)
from plr_dspy.errors import FatalLMError
from plr_dspy.labels.outputs import LabelOutput
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter, Value, title_of, without_none
from plr_dspy.statistics.arrays import Array

BEFORE_LABEL = " \t\r\n\"'`*([{"  # characters that may precede a label in the same token, as in JSON
NUM_ALTERNATIVES = 20  # alternatives to request per token: OpenAI's maximum, and vLLM's default maximum
MIN_LOGPROB = -30.0  # lower bound for log-probabilities; servers return -9999 for unknown values
MIN_CERTAIN = -1e-3  # minimum log-probability of a label whose token has no alternatives in the reply
UNPARSED = object()  # stands for the label of an unparsable reply, until a decision replaces it


class NoProbabilities(FatalLMError):
    """An error raised if replies do not contain the required log-probabilities."""


@dataclass
class LogprobRequests:
    """The status of requests for log-probabilities, shared by several calls.

    Requests stop if the provider rejects them, or if the first reply has no log-probabilities.
    """

    purpose: str = ""  # name of the feature that needs log-probabilities; empty if they are optional
    given: bool = False  # whether any reply has contained log-probabilities
    reason: str = ""  # why requests have stopped; empty if requests continue

    def note_reply(self, lm: dspy.BaseLM, *, given: bool) -> None:
        self.given = self.given or given
        if not self.given:
            self.reason = f"{lm.model} returns no log-probabilities"

    def note_error(self, lm: dspy.BaseLM, error: Exception) -> bool:
        """Stop requests if an error shows that the provider rejects them.

        Return whether to repeat the call without requesting log-probabilities.
        """
        # Exception types vary by provider, so search the message. Ignore parse errors, because
        # their messages quote the reply.
        rejects = isinstance(error, LMUnsupportedFeatureError) or "logprob" in str(error).lower()
        if self.given or not rejects or isinstance(error, AdapterParseError):
            return False
        self.reason = f"{lm.model} rejects requests for log-probabilities"
        return not self.purpose

    def check(self, cause: Exception | None = None) -> None:
        """Raise `NoProbabilities` if log-probabilities are needed but missing."""
        if self.purpose and self.reason:
            raise NoProbabilities(
                f"{self.purpose} needs the log-probabilities of tokens, but {self.reason}. Use a model and provider "
                "that return log-probabilities, such as OpenAI's chat models, vLLM or llama.cpp."
            ) from cause


@dataclass(eq=False)
class _RecordedCalls(BaseCallback):  # type: ignore[misc]
    """A callback that records LM calls and history entries, to remove their log-probabilities later."""

    calls: list[tuple[dspy.BaseLM, dict[str, Value]]] = field(default_factory=list)
    history: list[dict[str, Value]] = field(default_factory=list)

    def on_lm_start(self, call_id: str, instance: dspy.BaseLM, inputs: dict[str, Value]) -> None:
        self.calls.append((instance, inputs))

    def remove_logprobs(self) -> None:
        """Remove log-probabilities from histories and the memory cache, because those of 150 tokens take 3 MB."""
        for entry in self.history:
            entry.update(response=None, outputs=[_without_logprobs(output) for output in entry["outputs"]])
        drop_from_memory_cache(self.calls)


def _without_logprobs(output: Value) -> Value:
    if not isinstance(output, dict):
        return output
    fields = {name: value for name, value in output.items() if name != "logprobs"}
    return fields["text"] if fields.keys() == {"text"} else fields


class Reading(NamedTuple):
    """The label and the label probabilities from one reply."""

    label: str | None  # the label's text in demos, or None if the adapter could not parse the reply
    log_probabilities: tuple[float, ...]  # normalized log-probability of each label, [L]
    unseen: tuple[int, ...] = ()  # indices of labels that are not among the likeliest tokens


# A function that maps the reading of a reply to a reading whose label becomes the answer.
Decision: TypeAlias = Callable[[Reading], Reading]
Fields: TypeAlias = dict[str, Value]  # a reply's fields, as adapters return them


class LabelReader:
    """A mixin that makes an adapter read label probabilities in the replies to its calls."""

    readings: list[Reading | None]  # one entry per call for the label output; None if no label was read
    unread: Reading | None  # reading of the first unparsable reply; always None if there is a decision
    label_output: LabelOutput
    _requests: LogprobRequests
    _decision: Decision | None
    _predictor: dspy.Predict
    _other_ids: set[int]  # `id()` of each other predictor in the program
    # The title that may precede a label at the start of replies. None if replies start otherwise.
    _title: str | None

    def __call__(
        self, lm: dspy.BaseLM, lm_kwargs: Fields, signature: Value, *rest: Value, **named: Value
    ) -> Value:
        make_call: Value = super().__call__  # type: ignore[misc]
        with self._request_logprobs(lm, lm_kwargs, signature) as extended_kwargs:
            if extended_kwargs is not None:
                return self._read(lm, lm_kwargs, make_call(lm, extended_kwargs, signature, *rest, **named))
        return make_call(lm, lm_kwargs, signature, *rest, **named)

    async def acall(
        self, lm: dspy.BaseLM, lm_kwargs: Fields, signature: Value, *rest: Value, **named: Value
    ) -> Value:
        make_call: Value = super().acall  # type: ignore[misc]
        with self._request_logprobs(lm, lm_kwargs, signature) as extended_kwargs:
            if extended_kwargs is not None:
                return self._read(
                    lm, lm_kwargs, await make_call(lm, extended_kwargs, signature, *rest, **named)
                )
        return await make_call(lm, lm_kwargs, signature, *rest, **named)

    @contextmanager
    def _request_logprobs(
        self, lm: dspy.BaseLM, lm_kwargs: Fields, signature: Value
    ) -> Iterator[Fields | None]:
        """Yield LM arguments that request log-probabilities, or None if the call should not request any.

        If a call is rejected but can be repeated without log-probabilities, suppress the error.
        """
        if not self._reads(signature):
            yield None
            return
        if self._requests.reason:
            self._requests.check()
            yield None
            return
        recorded = _RecordedCalls()
        num_alternatives = {**getattr(lm, "kwargs", {}), **lm_kwargs}.get("top_logprobs") or 0
        if num_alternatives < 2:  # A single alternative does not show the other labels' probabilities.
            num_alternatives = NUM_ALTERNATIVES
        callbacks = [*(dspy.settings.callbacks or []), recorded]
        # Do not stream replies, because chunks lack log-probabilities, and a decision may replace the label.
        context = dspy.context(
            **with_caller(recorded), callbacks=callbacks, send_stream=None, plr_dspy_asked=True
        )
        try:
            with context:
                yield {**lm_kwargs, "logprobs": True, "top_logprobs": num_alternatives}
        except Exception as error:
            if not self._requests.note_error(lm, error):
                raise
        finally:
            recorded.remove_logprobs()

    def _reads(self, signature: Value) -> bool:
        output = self.label_output
        fields = signature.output_fields
        if output.name not in fields or "logprobs" in fields:
            return False
        if without_none(fields[output.name].annotation) != output.annotation:
            return False
        caller = current_caller()
        # Compare the `stage` attributes, because copies of a predictor keep this attribute.
        return getattr(caller, "stage", None) == self._predictor.stage and id(caller) not in self._other_ids

    def _call_postprocess(
        self, processed: Value, original: Value, outputs: list[Value], *rest: Value
    ) -> Value:
        try:
            return super()._call_postprocess(processed, original, outputs, *rest)  # type: ignore[misc]
        except AdapterParseError:
            logprobs = None
            has_one_answer = len(original.output_fields) == len(outputs) == 1
            if has_one_answer and isinstance(outputs[0], Mapping) and dspy.settings.get("plr_dspy_asked"):
                logprobs = outputs[0].get("logprobs")
            reading = self._reading_of(logprobs, None)
            if reading is None:
                raise
            if self._decision is not None:
                return [{self.label_output.name: UNPARSED, "logprobs": logprobs}]
            self._requests.given = True
            self.unread = self.unread or reading
            raise

    def _read(self, lm: dspy.BaseLM, lm_kwargs: Fields, completions: list[Fields]) -> list[Fields]:
        """Return the completions with decided answers, and record the first completion's reading."""
        readings = [self._read_and_decide(fields) for fields in completions]
        reading = readings[0] if readings else None
        logprobs = completions[0].get("logprobs") if completions else None
        given = any(len(place.top_logprobs or ()) > 1 for place in _places(logprobs))
        # A label with a probability near 1 may have no alternatives. But if no reply has had
        # alternatives so far, the server may not support them. A search must then not use the reading.
        if self._decision is None and not (given or self._requests.given):
            reading = None
        self.readings.append(reading)
        if given or reading is None:
            self._requests.note_reply(lm, given=given)
        if not {**getattr(lm, "kwargs", {}), **lm_kwargs}.get("logprobs"):
            for fields in completions:
                fields.pop("logprobs", None)
        return completions

    def _read_and_decide(self, fields: Fields) -> Reading | None:
        """Return a completion's reading, or None if no label can be read. A decision replaces the answer."""
        output = self.label_output
        label = output.label_of(fields)
        if label is None:
            # A decision replaces UNPARSED and other values that are not labels. Keep None: it may be a valid answer.
            answer = fields.get(output.name)
            if self._decision is None or answer is None:
                return None
        reading = self._reading_of(fields.get("logprobs"), label)
        if reading is not None and self._decision is not None:
            reading = self._decision(reading)
            fields[output.name] = output.labels[str(reading.label)]
        return reading

    def _reading_of(self, logprobs: Value, label: str | None) -> Reading | None:
        """Return the reading of a reply's log-probabilities, or None if they do not show label probabilities."""
        output = self.label_output
        places = _places(logprobs)
        labels = list(output.labels)
        tokens = [place.token for place in places]
        # The label cannot be located if the reply spells it differently, for example, "yes" for True.
        if not tokens or (label is not None and label.casefold() not in "".join(tokens).casefold()):
            return None
        start = label_position(tokens, labels, label, name=output.name, title=self._title)
        return _reading_at(start, places, labels, label)

    def reading_for(self, answer: Value) -> Reading | None:
        """Return the last reading with the answer's label, or None if there is no such reading.

        If the answer has no label, return the last reading.
        """
        label = self.label_output.text_of(answer)
        for reading in reversed(self.readings):
            if label is None or (reading is not None and reading.label == label):
                return reading
        return None


@contextmanager
def labels_read(
    program: dspy.Module,
    output: LabelOutput,
    requests: LogprobRequests,
    *,
    decision: Decision | None = None,
) -> Iterator[Value]:
    """Yield a `LabelReader` that reads the labels in a program's replies within the context.

    If log-probabilities are optional and the provider rejects a request for them, the call is
    repeated without this request. The `decision`, if any, replaces each answer whose label
    probabilities can be read. If the label is the only output, the decision also replaces
    unparsable replies.
    """
    adapter = current_adapter()
    reader: Value = copy.copy(adapter)
    reader.__class__ = _reading_type(type(adapter))  # type: ignore[arg-type]
    reader.readings = []
    reader.unread = None
    reader.label_output = output
    reader._requests = requests
    reader._decision = decision
    predictors = dict(program.named_predictors())
    reader._predictor = predictors.pop(output.predictor)
    reader._other_ids = set(map(id, predictors.values()))
    first_output = next(iter(reader._predictor.signature.output_fields.items()))
    reader._title = None
    if isinstance(adapter, PlainTextAdapter) and output.name == first_output[0]:
        reader._title = title_of(*first_output)
    try:
        with dspy.context(adapter=reader):
            yield reader
    except Exception as error:
        requests.check(error)
        raise
    requests.check()


@functools.cache
def _reading_type(kind: type) -> type:
    if issubclass(kind, LabelReader):
        return kind
    # Keep the class name, because error messages must name the user's adapter.
    reading_type = type(
        kind.__name__, (LabelReader, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__}
    )
    # DSPy wraps `format` and `parse` again in each new class. Remove the new wrappers, because they
    # would run each callback twice.
    for name in {"format", "parse"} & vars(reading_type).keys():
        delattr(reading_type, name)
    return reading_type


def _places(logprobs: Value) -> Sequence[Value]:
    return getattr(logprobs, "content", None) or ()


def _reading_at(
    start: int, places: Sequence[Value], labels: Sequence[str], label: str | None
) -> Reading | None:
    """Return the reading of the label that begins at the index `start`, or None if it has no probabilities."""
    tokens = [place.token for place in places]
    after: dict[str, dict[str, float]] = {}
    for text, place in zip(accumulate(tokens[start:], initial=""), places[start:], strict=False):
        alternatives = (place, *(place.top_logprobs or ()))
        after[text] = {alternative.token: alternative.logprob for alternative in alternatives}
    masses = from_alternatives(after, labels)
    # Labels that are not among the alternatives have at most this log-probability.
    least = min(after[""].values())
    if len(after[""]) < 2:
        # Without alternatives, the reading is useful only if the token's own probability is near 1.
        if least < MIN_CERTAIN:
            return None
        least = MIN_LOGPROB
    if not masses.any():
        return None
    logs = np.log(masses, out=np.full(len(masses), least), where=masses > 0)
    unseen = tuple(np.flatnonzero(masses == 0).tolist())
    return Reading(label, tuple(log_softmax(np.maximum(logs, MIN_LOGPROB)).tolist()), unseen)


def from_alternatives(after: Mapping[str, Mapping[str, float]], labels: Sequence[str]) -> Array:
    """Return unnormalized label probabilities, ``[L]``, calculated from token log-probabilities.

    If a token starts several labels, the labels share the token's probability in proportion to
    the next tokens' probabilities. If the next tokens are unknown, the labels get equal shares,
    but labels that a longer token also begins get none. Case is ignored unless two labels differ
    only in case.

    Args:
        after: Maps each beginning of the answer to the log-probabilities of possible next tokens.
        labels: The labels' texts.
    """
    fold: Callable[[str], str] = str.casefold
    if len(set(map(fold, labels))) < len(labels):
        fold = str
    first_characters = {label[0] for label in labels}
    before_label = "".join(character for character in BEFORE_LABEL if character not in first_characters)
    masses = np.zeros(len(labels))

    def distribute(probability: float, text: str, rests: Mapping[int, str]) -> None:
        """Distribute the probability that the answer begins with `text` among the labels in `rests`.

        `rests` maps the index of each label that begins with `text` to the rest of the label.
        """
        spellings = {token: fold(token if text else token.lstrip(before_label)) for token in after[text]}
        remaining = probability
        for token, spelling in spellings.items():
            matches = _matching_labels(spelling, rests)
            if not token or not matches:
                continue
            mass = probability * math.exp(min(0.0, after[text][token]))
            remaining -= mass
            if len(matches) > 1 and text + token in after:
                # The next tokens are known, so they decide between the labels.
                distribute(mass, text + token, {i: rests[i][len(spelling) :] for i in matches})
            else:
                # The labels get equal shares. However, a label gets no share if a longer token also
                # begins the rest of the label, because the model would use that token.
                longer = [
                    other
                    for other in spellings.values()
                    if other.startswith(spelling) and other != spelling
                ]
                candidates = [i for i in matches if not rests[i].startswith(tuple(longer))] or matches
                masses[candidates] += mass / len(candidates)
        # A complete label gets the probability of all tokens that do not continue another label.
        masses[[i for i, rest in rests.items() if not rest]] += max(0.0, remaining)

    distribute(1.0, "", dict(enumerate(map(fold, labels))))
    return masses


def _matching_labels(spelling: str, rests: Mapping[int, str]) -> list[int]:
    """Return the indices of the labels that a token with this spelling could continue or complete.

    `rests` maps label indices to the labels' remaining texts. A token can continue any number of
    labels. If a token begins with several remaining texts, it completes only the longest one.
    """
    completed = []
    for rest in rests.values():
        if spelling.startswith(rest) and not spelling[len(rest) :][:1].isalnum():
            completed.append(rest)
    longest = max(completed, key=len, default="")
    return [i for i, rest in rests.items() if rest and (rest.startswith(spelling) or rest == longest)]


def label_position(
    tokens: Sequence[str],
    labels: Sequence[str],
    answered: str | None,
    *,
    name: str,
    title: str | None = None,
) -> int:
    """Return the index of the token in which the label begins.

    Prefer labels directly after the header of the field `name`, then labels after this name at the
    start of a line, then labels after this name anywhere, then all labels. If there is a `title`,
    prefer labels at the start of the reply, or after this title there. If several labels follow a
    header, find the first, because adapters ignore repeated fields. Elsewhere, find the last occurrence
    of `answered`, because reasoning before the answer may mention the label. If `answered` is None,
    find the first occurrence of any label. If no label occurs, return the index of the token after
    the field's header, or 0 if the reply has no header.
    """
    reply = "".join(tokens)
    ends = list(accumulate(map(len, tokens)))
    candidates = sorted(labels, key=len, reverse=True)
    occurrence = 0
    if answered is not None:
        candidates = [answered]
        occurrence = -1
    label = rf"(?<!\w)(?P<label>{'|'.join(map(re.escape, candidates))})(?!\w)"
    field = re.escape(name)
    header = rf"(?:\[\[ ## {field} ## \]\]|\"{field}\"\s*:|<{field}>)"
    after_header = rf"{header}\W*?"
    beginnings = [after_header, rf"(?m:^)[^\w\n]*{field}(?!\w)\W*?", rf"(?<!\w){field}(?!\w)\W*?", ""]
    if title is not None:
        beginnings = [rf"\A\s*(?:{re.escape(title)})?\W*?", ""]
    for beginning in beginnings:
        matches = list(re.finditer(beginning + label, reply, re.IGNORECASE))
        if matches:
            if title is not None or beginning == after_header:
                occurrence = 0
            return bisect_right(ends, matches[occurrence].start("label"))
    match = re.search(rf"{header}\W*", reply)
    if match is None:
        return 0
    return min(bisect_right(ends, match.end()), len(tokens) - 1)
