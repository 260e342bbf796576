"""Label probabilities from servers of plain completions, by what each can do."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dspy
from dspy import lm15
from dspy.utils.exceptions import LMInvalidRequestError, LMUnsupportedFeatureError, LMUnsupportedModelError

from plr_dspy.label_probabilities.continuations import Continuations, Token
from plr_dspy.label_probabilities.tokens import Alternatives, Array, from_alternatives
from plr_dspy.lm.errors import Hopeless

logger = logging.getLogger(__name__)

NUM_ALTERNATIVES = 20
"""Likeliest tokens asked for at each position: the most that OpenAI gives, and vLLM as it is set up."""

END = 8
"""Characters at the end of a prompt that may decide how a server spells a label after it."""


class NoProbabilities(Hopeless):
    """The provider gives no log-probabilities."""


class Endpoints:
    """What the servers of plain completions can do, found out at their first call.

    Args:
        purpose: What needs the probabilities, for messages.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._servers: weakref.WeakKeyDictionary[dspy.LM, _Server] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def masses(self, lm: dspy.LM, prompt: str, labels: Sequence[str]) -> Array:
        """Probabilities of labels after a prompt, up to a factor.

        Raises:
            NoProbabilities: when the server gives none.
        """
        with self._lock:
            server = self._servers.setdefault(lm, _Server(self._purpose))
        return server.masses(lm, prompt, labels)


class _Server:
    """What is known of one LM. It holds no reference to it, so that it can be forgotten with it."""

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._echoes: bool | None = None
        self._continuations: dict[tuple[str, ...], Continuations] = {}
        self._lock = threading.Lock()

    def masses(self, lm: dspy.LM, prompt: str, labels: Sequence[str]) -> Array:
        """As `Endpoints.masses`."""
        server = PlainServer(lm, self._purpose)
        with self._lock:
            if self._echoes is None:
                self._echoes = server.echoes()
                how = "summed over each label's tokens" if self._echoes else "of the likeliest tokens"
                logger.info("label probabilities of %s: %s", lm.model, how)
        if self._echoes:
            return self._exact(server, prompt, labels)
        return from_alternatives(
            server.likeliest(prompt), labels, follow=lambda text: server.likeliest(prompt + text)
        )

    def _exact(self, server: PlainServer, prompt: str, labels: Sequence[str]) -> Array:
        # A label that another one begins with is told from it by its end.
        nested = any(a != b and b.startswith(a) for a in labels for b in labels)
        texts = [f" {label}" + ("\n" if nested else "") for label in labels]
        key = (prompt[-END:], *texts)
        with self._lock:
            if key not in self._continuations:
                self._continuations[key] = Continuations(texts, server, prompt)
        return self._continuations[key].masses(server, prompt)


class PlainServer:
    """Asks an LM of plain completions for log-probabilities.

    Args:
        lm: With a `CompletionEngine`.
        purpose: What needs them, for messages.
    """

    def __init__(self, lm: dspy.LM, purpose: str) -> None:
        self._lm = lm
        self._purpose = purpose

    def echoes(self) -> bool:
        """Whether the server echoes prompts with log-probabilities; some refuse to."""
        try:
            return self._echoed("One, two, three") is not None
        except LMUnsupportedModelError:
            raise
        except (LMInvalidRequestError, LMUnsupportedFeatureError):
            return False

    def echo(self, text: str) -> Sequence[Token]:
        """The tokens of a text.

        Raises:
            RuntimeError: when it is not echoed.
        """
        tokens = self._echoed(text)
        if tokens is None:
            raise RuntimeError(
                f"the server of {self._lm.model} does not echo every prompt with log-probabilities"
            )
        return tokens

    def likeliest(self, text: str) -> Alternatives:
        """The likeliest tokens after a text.

        Raises:
            NoProbabilities: when the server gives none.
        """
        with refusals_told(self._lm, self._purpose):
            reply = self._asked(text, logprobs=NUM_ALTERNATIVES)
        if not reply.logprobs:
            raise without_probabilities(self._lm, self._purpose)
        token = reply.logprobs[0]
        return {token.token: token.logprob, **{top.token: top.logprob for top in token.top}}

    def _echoed(self, text: str) -> list[Token] | None:
        reply = self._asked(text, logprobs=1, extensions={"echo": True})
        tokens = [(token.token, token.logprob) for token in reply.logprobs or ()]
        generated = reply.usage.output_tokens if reply.usage else None
        if not reply.message.text.startswith(text) or len(tokens) < 2:
            return None
        return tokens[: len(tokens) - (1 if generated is None else generated)]

    def _asked(self, text: str, *, logprobs: int, extensions: dict[str, Any] | None = None) -> Any:
        """One token after a text."""
        config = lm15.Config(max_tokens=1, temperature=0.0, logprobs=logprobs, extensions=extensions)
        message = lm15.Message.user(text)
        return self._lm(lm15.Request(model=self._lm.model, messages=(message,), config=config))


@contextmanager
def refusals_told(lm: Any, purpose: str | None) -> Iterator[None]:
    """Say what an error means of an LM that refuses to give log-probabilities.

    Args:
        lm: It.
        purpose: What needs them, for messages; None where nobody has asked for any.

    Raises:
        NoProbabilities: in the place of such an error.
    """
    try:
        yield
    except (LMInvalidRequestError, LMUnsupportedFeatureError) as error:
        refused = isinstance(error, LMUnsupportedFeatureError) or "logprob" in str(error).lower()
        if purpose is None or not refused:
            raise
        raise without_probabilities(lm, purpose) from error


def without_probabilities(lm: Any, purpose: str) -> NoProbabilities:
    """The error for an LM that gives none."""
    return NoProbabilities(
        f"{purpose} needs the log-probabilities of tokens, and {lm.model} gives none: use a model and provider that "
        "do (OpenAI's chat models, vLLM, llama.cpp), or PLReorder or TopKOrder, which need none"
    )
