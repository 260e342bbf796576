"""Log-probabilities of a few texts, each after many prompts, from a server that can echo a prompt with its own.

Such a server computes the log-probabilities of a prompt from its beginning (vLLM has no prefix cache for them), one
whole prompt a text. What comes next is cheaper to ask for: there the prefix cache serves, and the likeliest tokens
tell most texts at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import softmax

from plr_dspy.label_probabilities.tokens import NEGLIGIBLE, Alternatives, Array, Token, from_continuations

LARGEST_DISAGREEMENT = 0.1
"""How far both ways to a probability may differ: those of servers that compute in 16 bits differ by up to .08."""


class Continuations:
    """Some texts, and how a server spells them after a prompt, which it is asked when this is made.

    Args:
        texts: Distinct texts, ``[L]``.
        prompt: Any prompt; those that end like it can be scored.
        echo: Asks the server for the tokens of a text; the first one, which has no probability, may be left out.
        likeliest: Asks the server for the likeliest tokens after a text.

    Attributes:
        spelled: The tokens of each text. None where a text does not begin with a token of its own, or where the
            likeliest tokens told something else than the echo: then all prompts are echoed.
    """

    def __init__(
        self,
        texts: Sequence[str],
        prompt: str,
        *,
        echo: Callable[[str], Sequence[Token]],
        likeliest: Callable[[str], Alternatives],
    ) -> None:
        self._texts, self._echo, self._likeliest = list(texts), echo, likeliest
        echoed = [echo(prompt + text) for text in texts]
        tails = [_tail(tokens, text) for tokens, text in zip(echoed, texts, strict=True)]
        self.spelled = [[token for token, _ in tail] for tail in tails] if all(tails) else None
        exact = softmax(from_continuations(echoed))
        if np.abs(exact - self.probabilities(prompt)).max() > LARGEST_DISAGREEMENT:
            self.spelled = None

    def probabilities(self, prompt: str) -> Array:
        """Return the distribution ``[L]`` over the texts after a prompt, to an error of `NEGLIGIBLE`."""
        sums = None if self.spelled is None else self._from_likeliest(prompt, self.spelled)
        if sums is None:
            sums = from_continuations([self._echo(prompt + text) for text in self._texts])
        probabilities: Array = softmax(sums)
        return probabilities

    def _from_likeliest(self, prompt: str, spelled: Sequence[Sequence[str]]) -> Array | None:
        """Return log-probabilities ``[L]``, likely texts first; None where the server spells a text otherwise."""
        after = functools.cache(lambda text: self._likeliest(prompt + text))
        first = [after("").get(tokens[0], -math.inf) for tokens in spelled]
        sums = np.full(len(spelled), -math.inf)
        for i in np.argsort(first)[::-1]:
            found = _follow_greedily(
                spelled[i], after, floor=sums.max() + math.log(NEGLIGIBLE / len(spelled))
            )
            if found is None:
                tail = _tail(self._echo(prompt + self._texts[i]), self._texts[i])
                if [token for token, _ in tail] != spelled[i]:
                    return None
                found = math.fsum(value for _, value in tail)
            sums[i] = found
        return sums


def _follow_greedily(
    tokens: Sequence[str], after: Callable[[str], Alternatives], *, floor: float
) -> float | None:
    """Return the log-probability of tokens one after the other, or an upper bound of it that is below `floor`.

    None says that a token is not among the likeliest, and that no such bound can be given.
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
    """Return the last tokens, which make up just this text; an empty list where there are none."""
    rest = text
    for start in reversed(range(len(tokens))):
        token, _ = tokens[start]
        if not token or not rest.endswith(token):
            break
        rest = rest.removesuffix(token)
        if not rest:
            return list(tokens[start:])
    return []
