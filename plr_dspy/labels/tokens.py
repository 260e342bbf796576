"""From the log-probabilities of a reply's tokens to the probabilities of the labels that might stand there."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Alternatives: TypeAlias = Mapping[str, float]
"""Log-probability of each of the likeliest tokens, by their text; an empty text is the end of the answer."""

BEFORE_LABEL = " \t\r\n\"'`*([{"
"""What a token may hold before the label begins in it: JSON quotes it, models like to make it bold."""


class Position(NamedTuple):
    """One place of a reply: the token that was generated, and what might have been, the token itself included."""

    token: str
    alternatives: Alternatives


def positions_of(logprobs: Any) -> list[Position]:
    """Return the positions of a reply from what DSPy gives as "logprobs"."""
    return [
        Position(place.token, {each.token: each.logprob for each in (place, *(place.top_logprobs or ()))})
        for place in getattr(logprobs, "content", None) or ()
    ]


def from_alternatives(after: Mapping[str, Alternatives], labels: Sequence[str]) -> Array:
    """Return probabilities ``[L]`` of labels, by the likely tokens after each text; empty is where the label begins.

    A token that only one label begins with counts for this label. One that several begin with is followed by the tokens
    after it, where these are known, and shared evenly among them elsewhere. Case matters only where labels differ in
    nothing else. The sum is at most 1, as other answers have the rest.
    """
    fold = str.casefold if len({label.casefold() for label in labels}) == len(labels) else str
    before_label = "".join(c for c in BEFORE_LABEL if not any(label.startswith(c) for label in labels))
    masses = np.zeros(len(labels))

    def share(rests: Mapping[int, str], before: str, probability: float) -> None:
        """Share out what the tokens after `before` say among labels, of which these rests are missing."""
        alternatives, left = after[before], probability
        for token, log_probability in alternatives.items():
            text = fold(token if before else token.lstrip(before_label))
            # It is the beginning of what is missing of a label, or that and the end of the word.
            fitting = [
                i
                for i, rest in rests.items()
                if rest
                and (rest.startswith(text) or (text.startswith(rest) and not text[len(rest)].isalnum()))
            ]
            if not (token and fitting):
                continue
            mass = probability * math.exp(min(0.0, log_probability))
            left -= mass
            if len(fitting) > 1 and before + token in after:
                share({i: rests[i][len(text) :] for i in fitting}, before + token, mass)
                continue
            spelled = {fold(other) for other in alternatives if other != token}
            sharing = [i for i in fitting if rests[i] not in spelled] or fitting
            masses[sharing] += mass / len(sharing)
        # A label that is complete ends with whatever does not make another one of it.
        masses[[i for i, rest in rests.items() if not rest]] += max(0.0, left)

    share({i: fold(label) for i, label in enumerate(labels)}, "", 1.0)
    return masses


def label_position(
    positions: Sequence[Position], labels: Sequence[str], answered: str | None, *, name: str
) -> int:
    """Find where the label begins in a reply: behind the name of the field, if a label is there, or else anywhere.

    The last occurrence of what the adapter read as `answered` is the answer, as what was thought aloud comes before.
    Where it read none, that is the first occurrence of any label, or what follows the field's header, or the beginning.
    """
    tokens = [position.token for position in positions]
    reply, ends = "".join(tokens), list(accumulate(map(len, tokens)))
    wanted = sorted([answered] if answered is not None else labels, key=len, reverse=True)
    label = rf"(?<!\w)(?P<label>{'|'.join(map(re.escape, wanted))})(?!\w)"
    for before in (rf"(?<!\w){re.escape(name)}(?!\w)\W*?", ""):
        if found := list(re.finditer(before + label, reply, re.IGNORECASE)):
            return bisect_right(ends, found[-1 if answered is not None else 0].start("label"))
    # Something else stands in the place of a label: after the field's header, as in chat, or at the beginning.
    header = re.search(rf"\[\[ ## {re.escape(name)} ## \]\]\W*|\"{re.escape(name)}\"\s*:\W*", reply)
    return min(bisect_right(ends, 0 if header is None else header.end()), len(tokens) - 1)
