"""Label probabilities from servers of plain completions, by what each server can do."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import dspy
from dspy import lm15
from dspy.utils.exceptions import (
    AdapterParseError,
    LMInvalidRequestError,
    LMUnsupportedFeatureError,
    LMUnsupportedModelError,
)

from plr_dspy.label_probabilities.continuations import Continuations
from plr_dspy.label_probabilities.tokens import Alternatives, Array, Token, from_alternatives
from plr_dspy.lm.errors import Hopeless

logger = logging.getLogger(__name__)

NUM_ALTERNATIVES = 20
"""How many likely tokens are asked for at each position: the most that OpenAI gives, and vLLM as it is set up."""

PROMPT_END_LENGTH = 8
"""How many characters at the end of a prompt may decide how a server spells a label after it."""


class NoProbabilities(Hopeless):
    """The provider gives no log-probabilities."""


class NoEcho(Exception):
    """The server does not echo a prompt with its log-probabilities."""


class TokenServer:
    """Asks one LM of plain completions how likely tokens are, and remembers what its server can do.

    It holds the LM weakly, so that it can be forgotten with it.

    Args:
        lm: An LM with a `CompletionEngine`.
        purpose: What needs the probabilities, for messages.
    """

    def __init__(self, lm: dspy.LM, purpose: str) -> None:
        self._lm = weakref.proxy(lm)
        self._purpose = purpose
        self._continuations: dict[tuple[str, ...], Continuations] = {}
        self._lock = threading.Lock()

    def masses(self, prompt: str, labels: Sequence[str]) -> Array:
        """Return the probabilities ``[L]`` of labels after a prompt, up to a factor.

        Raises:
            NoProbabilities: If the server gives none.
        """
        with self._lock:
            echoes = self._echoes
        if not echoes:
            return from_alternatives(
                self.likeliest(prompt), labels, follow=lambda text: self.likeliest(prompt + text)
            )
        # A label that another one begins with is told from it by the end of its line.
        nested = any(a != b and b.startswith(a) for a in labels for b in labels)
        texts = [f" {label}" + "\n" * nested for label in labels]
        key = (prompt[-PROMPT_END_LENGTH:], *texts)
        with self._lock:
            if key not in self._continuations:
                self._continuations[key] = Continuations(
                    texts, prompt, echo=self.echo, likeliest=self.likeliest
                )
        return self._continuations[key].probabilities(prompt)

    def echo(self, text: str) -> list[Token]:
        """Return the tokens of a text; the first one, which has no probability, may be left out.

        Raises:
            NoEcho: If the server does not echo the text.
        """
        reply = self._next_token(text, logprobs=1, extensions={"echo": True})
        tokens = [(token.token, token.logprob) for token in reply.logprobs or ()]
        if not reply.message.text.startswith(text) or len(tokens) < 2:
            raise NoEcho(f"the server of {self._lm.model} does not echo every prompt with log-probabilities")
        generated = reply.usage.output_tokens if reply.usage else None
        return tokens[: len(tokens) - (1 if generated is None else generated)]

    def likeliest(self, text: str) -> Alternatives:
        """Return the likeliest tokens after a text.

        Raises:
            NoProbabilities: If the server gives none.
        """
        with refusals_told(self._lm, self._purpose):
            reply = self._next_token(text, logprobs=NUM_ALTERNATIVES)
        if not reply.logprobs:
            raise without_probabilities(self._lm, self._purpose)
        token = reply.logprobs[0]
        return {token.token: token.logprob, **{top.token: top.logprob for top in token.top}}

    @cached_property
    def _echoes(self) -> bool:
        try:
            found = bool(self.echo("One, two, three"))
        except LMUnsupportedModelError:
            raise
        except (NoEcho, LMInvalidRequestError, LMUnsupportedFeatureError):
            found = False
        how = "summed over each label's tokens" if found else "of the likeliest tokens"
        logger.info("label probabilities of %s: %s", self._lm.model, how)
        return found

    def _next_token(self, text: str, **settings: Any) -> Any:
        config = lm15.Config(max_tokens=1, temperature=0.0, **settings)
        message = lm15.Message.user(text)
        return self._lm(lm15.Request(model=self._lm.model, messages=(message,), config=config))


class TokenServers:
    """Keeps a `TokenServer` for each LM, made when the LM is first asked about; safe in threads.

    Args:
        purpose: What needs the probabilities, for messages.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._servers: weakref.WeakKeyDictionary[dspy.LM, TokenServer] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def masses(self, lm: dspy.LM, prompt: str, labels: Sequence[str]) -> Array:
        """Do what `TokenServer.masses` does, with the server of an LM."""
        with self._lock:
            server = self._servers.setdefault(lm, TokenServer(lm, self._purpose))
        return server.masses(prompt, labels)


@contextmanager
def refusals_told(lm: Any, purpose: str | None) -> Iterator[None]:
    """Turn the error of an LM that refuses to give log-probabilities into one that says what to do.

    Args:
        lm: The LM that is called in this context.
        purpose: What needs the log-probabilities, for messages; None where nobody has asked for any.

    Raises:
        NoProbabilities: In the place of such an error.
    """
    try:
        yield
    except Exception as error:
        if purpose is None or not is_refusal(lm, error):
            raise
        raise without_probabilities(lm, purpose) from error


def is_refusal(lm: Any, error: Exception) -> bool:
    """Tell whether an LM that was asked for log-probabilities refuses to give them.

    Errors of another LM, such as the one that reads replies for `dspy.TwoStepAdapter`, say nothing of this. Providers
    say so by errors of many types, and LMs of the user's own may not take the arguments; all name them.
    """
    if isinstance(error, AdapterParseError):  # It repeats the reply, which may hold any word.
        return False
    if not str(lm.model).endswith(
        getattr(error, "model", None) or ""
    ):  # Errors may name it without the provider.
        return False
    return isinstance(error, LMUnsupportedFeatureError) or "logprob" in str(error).lower()


def asking_for_probabilities(lm: Any, lm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an LM call, and those that ask for the likeliest tokens at each position."""
    if getattr(lm, "model_type", "chat") == "text":  # Plain completions say it by a number.
        return {**lm_kwargs, "logprobs": NUM_ALTERNATIVES}
    wanted = {**getattr(lm, "kwargs", {}), **lm_kwargs}.get("top_logprobs") or 0
    return {**lm_kwargs, "logprobs": True, "top_logprobs": max(wanted, NUM_ALTERNATIVES)}


def without_probabilities(
    lm: Any, purpose: str, *, cure: str = "PLReorder or TopKOrder, which need none"
) -> NoProbabilities:
    """Make the error for an LM that gives no log-probabilities; the cure is what can be used in place of it."""
    return NoProbabilities(
        f"{purpose} needs the log-probabilities of tokens, and {lm.model} gives none: use a model and provider that "
        f"do (OpenAI's chat models, vLLM, llama.cpp), or {cure}"
    )
