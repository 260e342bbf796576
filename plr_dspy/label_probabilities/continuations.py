"""Log-probabilities of a few texts, each after many prompts, from a server that can echo a prompt with its own.

Such a server computes the log-probabilities of a prompt from its beginning (vLLM has no prefix cache for them), one
whole prompt a text. What comes next is cheaper to ask for: there the prefix cache serves, and the likeliest tokens
tell most texts at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from plr_dspy.label_probabilities.tokens import (
    NEGLIGIBLE,
    Alternatives,
    Array,
    from_continuations,
    normalised,
)

Token = tuple[str, float]
"""Text and log-probability."""

AGREEMENT = 0.1
"""Of both ways to the same probabilities: those of servers that compute in 16 bits differ by up to .08."""


class Server(Protocol):
    """Says how likely tokens are."""

    def echo(self, text: str) -> Sequence[Token]:
        """The tokens of a text; the first one, which has no probability, may be left out."""

    def likeliest(self, text: str) -> Alternatives:
        """The likeliest tokens after a text."""


class Continuations:
    """Some texts, and how a server spells them after a prompt, which it is asked when this is made.

    Args:
        texts: Distinct.
        server: Echoes the prompt with each text, and says what is likeliest after it.
        prompt: Any; those that end like it can be scored.

    Attributes:
        spelled: The tokens of each text. None where a text does not begin with a token of its own, or where the
            likeliest tokens told something else than the echo: then all prompts are echoed.
    """

    def __init__(self, texts: Sequence[str], server: Server, prompt: str) -> None:
        self._texts = list(texts)
        echoed = [server.echo(prompt + text) for text in texts]
        tails = [_tail(reply, text) for reply, text in zip(echoed, texts, strict=True)]
        self.spelled = [tuple(token for token, _ in tail) for tail in tails] if all(tails) else None
        exact, asked = (_masses(sums) for sums in (from_continuations(echoed), self._sums(server, prompt)))
        if np.abs(normalised(exact) - normalised(asked)).max() > AGREEMENT:
            self.spelled = None

    def masses(self, server: Server, prompt: str) -> Array:
        """Probabilities ``[L]`` of the texts after a prompt, up to a factor, to `NEGLIGIBLE` of their sum."""
        return _masses(self._sums(server, prompt))

    def _sums(self, server: Server, prompt: str) -> Array:
        """Log-probabilities ``[L]``, up to a constant."""
        sums = None if self.spelled is None else self._asked(server, prompt, self.spelled)
        if sums is None:
            sums = from_continuations([server.echo(prompt + text) for text in self._texts])
        return sums

    def _asked(self, server: Server, prompt: str, spelled: Sequence[tuple[str, ...]]) -> Array | None:
        """From the likeliest tokens, likely texts first; None where the server spells a text otherwise."""
        known = {"": server.likeliest(prompt)}

        def after(text: str) -> Alternatives:
            if text not in known:
                known[text] = server.likeliest(prompt + text)
            return known[text]

        sums = np.full(len(spelled), -math.inf)
        for i in sorted(range(len(spelled)), key=lambda i: -known[""].get(spelled[i][0], -math.inf)):
            found = _followed(spelled[i], after, floor=sums.max() + math.log(NEGLIGIBLE / len(spelled)))
            if found is None:
                tail = _tail(server.echo(prompt + self._texts[i]), self._texts[i])
                if tuple(token for token, _ in tail) != spelled[i]:
                    return None
                found = math.fsum(value for _, value in tail)
            sums[i] = found
        return sums


def _masses(sums: Array) -> Array:
    masses: Array = np.exp(sums - sums.max())
    return masses


def _followed(tokens: Sequence[str], after: Callable[[str], Alternatives], *, floor: float) -> float | None:
    """Log-probability of tokens one after the other, or an upper bound of it that is below `floor`.

    None where a token is not among the likeliest, and no such bound can be given.
    """
    total, text = 0.0, ""
    for token in tokens:
        alternatives = after(text)
        if token not in alternatives:
            bound = total + min(alternatives.values(), default=0.0)
            return bound if bound < floor else None
        total += alternatives[token]
        if total < floor:
            break
        text += token
    return total


def _tail(tokens: Sequence[Token], text: str) -> list[Token]:
    """The last tokens, which make up just this text; empty where there are none."""
    rest = text
    for start in reversed(range(len(tokens))):
        token, _ = tokens[start]
        if not token or not rest.endswith(token):
            break
        rest = rest.removesuffix(token)
        if not rest:
            return list(tokens[start:])
    return []
