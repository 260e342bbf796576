"""The probabilities of labels, read off the log-probabilities of tokens.

Pure functions: what asks a server for tokens is `label_probabilities.adapter`. A reply is a list of positions, each the
token that was generated there and the likeliest ones with their log-probabilities.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Alternatives: TypeAlias = Mapping[str, float]
"""Log-probability of each of the likeliest tokens, by their text."""

BEFORE_LABEL = " \t\r\n\"'`*([{"
"""What a token may hold before the label begins in it: JSON quotes it, models like to make it bold."""

NEGLIGIBLE = 1e-4
"""A token of less probability that several labels begin with is not followed: they share it evenly."""


@dataclass(frozen=True)
class Position:
    """One place of a reply.

    Attributes:
        token: What was generated.
        alternatives: What might have been, the token itself included.
    """

    token: str
    alternatives: Alternatives


def from_alternatives(
    alternatives: Alternatives,
    labels: Sequence[str],
    *,
    follow: Callable[[str], Alternatives | None] = lambda text: None,
) -> Array:
    """Probabilities ``[L]`` of labels by their first tokens: sum at most 1, the rest goes to other answers.

    A token that only one label begins with counts for this label. One that several begin with is followed by
    the tokens after it.

    Args:
        alternatives: At the position where the label begins.
        labels: Distinct; case matters only where they differ in nothing else.
        follow: The alternatives after a text that begins at the label's position; None where nobody knows.
    """
    if len({label.casefold() for label in labels}) == len(labels):
        fold: Callable[[str], str] = str.casefold
    else:
        fold = str
    masses = np.zeros(len(labels))
    before_label = "".join(c for c in BEFORE_LABEL if not any(label.startswith(c) for label in labels))

    def share(alternatives: Alternatives, rests: Mapping[int, str], before: str, probability: float) -> None:
        """Share out what the tokens after `before` say among labels, of which these rests are missing."""
        left = probability
        for token, log_probability in alternatives.items():
            mass = probability * math.exp(min(0.0, log_probability))
            text = fold(token if before else token.lstrip(before_label))
            fitting = {label: rest for label, rest in rests.items() if rest and _begin_alike(rest, text)}
            if not fitting:
                continue
            left -= mass
            if len(fitting) == 1:
                masses[next(iter(fitting))] += mass
                continue
            longer = {label: rest[len(text) :] for label, rest in fitting.items()}
            after = follow(before + token) if mass >= NEGLIGIBLE else None
            if after is None:
                spelled = {fold(other) for other in alternatives if other != token}
                sharing = [label for label, rest in fitting.items() if rest not in spelled] or list(fitting)
                masses[sharing] += mass / len(sharing)
            else:
                share(after, longer, before + token, mass)
        for label, rest in rests.items():
            if not rest:  # it is complete: whatever does not make another one of it ends it
                masses[label] += max(0.0, left)

    share(alternatives, {i: fold(label) for i, label in enumerate(labels)}, "", 1.0)
    return masses


def from_continuations(replies: Sequence[Sequence[tuple[str, float]]]) -> Array:
    """Log-probabilities ``[L]`` of the continuations of one prompt, up to a constant.

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


def normalised(masses: Array) -> Array:
    """The distribution over labels that is proportional to these."""
    total: Array = masses / masses.sum()
    return total


def label_position(
    positions: Sequence[Position], labels: Sequence[str], answered: str | None, *, name: str
) -> int:
    """Where the label begins in a reply.

    Args:
        positions: Of the reply.
        labels: What may stand there.
        answered: The label that the adapter read from the reply: its last occurrence is the answer, as what was
            thought aloud comes before. None where it read none: the first occurrence of any label, or the
            beginning.
        name: Of the field: where an occurrence comes right after it, others do not count.
    """
    text = "".join(position.token for position in positions)
    wanted = [answered] if answered is not None else labels
    pattern = "|".join(re.escape(label) for label in sorted(wanted, key=len, reverse=True))
    label = rf"(?<!\w)(?P<label>{pattern})(?!\w)"
    found: list[re.Match[str]] = []
    for before in (rf"(?<!\w){re.escape(name)}(?!\w)\W*?", ""):
        found = found or list(re.finditer(before + label, text, re.IGNORECASE))
    if not found:
        return 0
    begin = found[-1 if answered is not None else 0].start("label")
    end = 0
    for index, position in enumerate(positions):
        end += len(position.token)
        if begin < end:
            return index
    raise AssertionError("a match lies within the text")


def path(positions: Sequence[Position], start: int) -> Callable[[str], Alternatives | None]:
    """What follows a text that begins at a position: known where the text is what was generated."""

    def follow(text: str) -> Alternatives | None:
        generated = ""
        for index in range(start, len(positions)):
            if generated == text:
                return positions[index].alternatives
            generated += positions[index].token
        return None

    return follow


def _begin_alike(rest: str, text: str) -> bool:
    """Whether a token's text is the beginning of what is missing of a label, or that and the end of the word."""
    if rest.startswith(text):
        return True
    return text.startswith(rest) and not text[len(rest)].isalnum()
