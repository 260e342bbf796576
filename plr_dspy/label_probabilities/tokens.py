"""The arithmetic of label probabilities: from the log-probabilities of a reply's tokens to those of labels.

A reply is a list of positions, each the token that was generated there and the likeliest ones.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Alternatives: TypeAlias = Mapping[str, float]
"""Log-probability of each of the likeliest tokens, by their text; an empty text is the end of the answer."""
Token: TypeAlias = tuple[str, float]
"""Text and log-probability of a token."""
Follow: TypeAlias = Callable[[str], Alternatives | None]
"""Gives the alternatives after a text that begins where the label does; None where nobody knows them."""

BEFORE_LABEL = " \t\r\n\"'`*([{"
"""What a token may hold before the label begins in it: JSON quotes it, models like to make it bold."""

NEGLIGIBLE = 1e-4
"""A token of less probability that several labels begin with is not followed: they share it evenly."""


class Position(NamedTuple):
    """One place of a reply: the token that was generated, and what might have been, the token itself included."""

    token: str
    alternatives: Alternatives


def positions_of(logprobs: Any) -> list[Position]:
    """Return the positions of a reply from its log-probabilities, in the shape of chat or of plain completions.

    Args:
        logprobs: What DSPy gives as "logprobs"; None and empty ones make an empty list.
    """
    content = _part(logprobs, "content")
    if content is None:
        tokens, values = _part(logprobs, "tokens") or [], _part(logprobs, "token_logprobs") or []
        tops = _part(logprobs, "top_logprobs") or [None] * len(tokens)
        places = [
            (token, {token: v, **(top or {})}) for token, v, top in zip(tokens, values, tops, strict=False)
        ]
    else:
        places = [
            (place.token, {each.token: each.logprob for each in (place, *(place.top_logprobs or ()))})
            for place in content
        ]
    return [
        Position(token, {text: value for text, value in alternatives.items() if value is not None})
        for token, alternatives in places
    ]


def _part(logprobs: Any, name: str) -> Any:
    return logprobs.get(name) if isinstance(logprobs, Mapping) else getattr(logprobs, name, None)


def masses_in_reply(
    positions: Sequence[Position], labels: Sequence[str], answered: str | None, *, name: str
) -> tuple[Array, Alternatives]:
    """Return the probabilities ``[L]`` of labels where a reply answers with one, and the likeliest tokens there.

    Takes what `label_position` does, of a reply that has positions.
    """
    start = label_position(positions, labels, answered, name=name)
    alternatives = positions[start].alternatives
    return from_alternatives(alternatives, labels, follow=path(positions, start)), alternatives


def from_alternatives(
    alternatives: Alternatives, labels: Sequence[str], *, follow: Follow = lambda text: None
) -> Array:
    """Return probabilities ``[L]`` of labels by their tokens: their sum is at most 1, as other answers have the rest.

    A token that only one label begins with counts for this label. One that several begin with is followed by
    the tokens after it.

    Args:
        alternatives: The likeliest tokens at the position where the label begins.
        labels: Distinct labels, ``[L]``; case matters only where they differ in nothing else.
        follow: Gives the likeliest tokens further on.
    """
    fold = str.casefold if len({label.casefold() for label in labels}) == len(labels) else str
    before_label = "".join(c for c in BEFORE_LABEL if not any(label.startswith(c) for label in labels))
    masses = np.zeros(len(labels))

    def share(alternatives: Alternatives, rests: Mapping[int, str], before: str, probability: float) -> None:
        """Share out what the tokens after `before` say among labels, of which these rests are missing."""
        left = probability
        for token, log_probability in alternatives.items():
            text = fold(token if before else token.lstrip(before_label))
            fitting = [i for i, rest in rests.items() if token and rest and _begin_alike(rest, text)]
            if not fitting:
                continue
            mass = probability * math.exp(min(0.0, log_probability))
            left -= mass
            after = follow(before + token) if len(fitting) > 1 and mass >= NEGLIGIBLE else None
            if after is not None:
                share(after, {i: rests[i][len(text) :] for i in fitting}, before + token, mass)
                continue
            spelled = {fold(other) for other in alternatives if other != token}
            sharing = [i for i in fitting if rests[i] not in spelled] or fitting
            masses[sharing] += mass / len(sharing)
        # A label that is complete ends with whatever does not make another one of it.
        masses[[i for i, rest in rests.items() if not rest]] += max(0.0, left)

    share(alternatives, {i: fold(label) for i, label in enumerate(labels)}, "", 1.0)
    return masses


def from_continuations(replies: Sequence[Sequence[Token]]) -> Array:
    """Return log-probabilities ``[L]`` of the continuations of one prompt, up to a constant.

    Args:
        replies: For each continuation the tokens of prompt and continuation with their log-probabilities. What
            all begin with says nothing and is left out, so that rounding there does not count.
    """
    shared = 0
    for tokens in zip(*replies, strict=False):
        if len({token for token, _ in tokens}) > 1:
            break
        shared += 1
    return np.array([math.fsum(value for _, value in reply[shared:]) for reply in replies])


def label_position(
    positions: Sequence[Position], labels: Sequence[str], answered: str | None, *, name: str
) -> int:
    """Find where the label begins in a reply.

    Args:
        positions: The positions of the reply.
        labels: What may stand there.
        answered: The label that the adapter read from the reply: its last occurrence is the answer, as what was
            thought aloud comes before. None where it read none: the first occurrence of any label, or what
            follows the field's header, or the beginning.
        name: The name of the field: where an occurrence comes right after it, others do not count.
    """
    tokens = [position.token for position in positions]
    wanted = sorted([answered] if answered is not None else labels, key=len, reverse=True)
    label = rf"(?<!\w)(?P<label>{'|'.join(map(re.escape, wanted))})(?!\w)"
    for before in (rf"(?<!\w){re.escape(name)}(?!\w)\W*?", ""):
        found = list(re.finditer(before + label, "".join(tokens), re.IGNORECASE))
        if found:
            begin = found[-1 if answered is not None else 0].start("label")
            return bisect_right(list(accumulate(map(len, tokens))), begin)
    # Something else stands in the place of a label: after the field's header, as in chat, or at the beginning.
    header = re.search(rf"\[\[ ## {re.escape(name)} ## \]\]\W*|\"{re.escape(name)}\"\s*:\W*", "".join(tokens))
    begin = 0 if header is None else header.end()
    return min(bisect_right(list(accumulate(map(len, tokens))), begin), len(tokens) - 1)


def path(positions: Sequence[Position], start: int) -> Follow:
    """Tell what follows a text that begins at a position, which is known where the text is what was generated."""
    generated = accumulate((position.token for position in positions[start:]), initial="")
    known = {text: place.alternatives for text, place in zip(generated, positions[start:], strict=False)}
    return known.get


def _begin_alike(rest: str, text: str) -> bool:
    """Whether a token's text is the beginning of what is missing of a label, or that and the end of the word."""
    return rest.startswith(text) or (text.startswith(rest) and not text[len(rest)].isalnum())
