"""Log-probabilities with the calls of a program: how they are asked for, who gives none, and how little is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError, LMUnsupportedFeatureError

from plr_dspy.lm.engines import Hopeless

NUM_ALTERNATIVES = 20
"""How many likely tokens are asked for at each position: the most that OpenAI gives, and vLLM as it is set up."""


class NoProbabilities(Hopeless):
    """The provider gives no log-probabilities."""


class LogprobRequests:
    """Decides whether log-probabilities are asked for: until an endpoint refuses them, or its first reply has none.

    One is shared by all calls of a compile; threads may share it. Until a first reply has come, calls that ask
    follow one another, so that an endpoint refuses one request at most.

    Args:
        required: No call is made without asking.

    Attributes:
        wanted: Whether calls ask; it can be switched off.
        given: Whether any reply had them.
        reason: Why they are no longer asked for; empty otherwise.
    """

    def __init__(self, *, required: bool = False) -> None:
        self.required = required
        self.wanted = True
        self.given = False
        self.reason = ""
        self._accepted = False
        self._lock = threading.RLock()  # Coroutines of one thread pass together.

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Wait until it is known whether to ask, or for the turn to find out; yield whether to ask."""
        with ExitStack() as stack:
            if self.wanted and not self._accepted:
                stack.enter_context(self._lock)
                if not self.wanted or self._accepted:
                    stack.close()
            yield self.wanted

    def note_reply(self, lm: Any, *, given: bool) -> None:
        """Note that a call that asked was answered."""
        with self._lock:
            self._accepted = True
            self.given = self.given or given
            if not self.given:
                self._stop(f"{lm.model} gives no log-probabilities")

    def note_error(self, lm: Any, error: Exception) -> bool:
        """Note the error of a call that asked; return whether it is to be made again without asking."""
        with self._lock:
            if isinstance(error, AdapterParseError):  # of a reply
                self._accepted = True
            if self.given or not _is_refusal(lm, error):
                return False
            self._stop(f"{lm.model} refuses requests for log-probabilities")
            return not self.required

    def _stop(self, reason: str) -> None:
        self.wanted = False
        self.reason = self.reason or reason


def _is_refusal(lm: Any, error: Exception) -> bool:
    """Tell whether an LM that was asked for log-probabilities refuses to give them.

    Errors of another LM, such as the one that reads replies for `dspy.TwoStepAdapter`, say nothing of this. Providers
    say so by errors of many types, and LMs of the user's own may not take the arguments; all name them.
    """
    if isinstance(error, AdapterParseError):  # It repeats the reply, which may hold any word.
        return False
    # Errors may name the model without the provider.
    if not str(lm.model).endswith(getattr(error, "model", None) or ""):
        return False
    return isinstance(error, LMUnsupportedFeatureError) or "logprob" in str(error).lower()


def without_probabilities(
    lm: Any, purpose: str, *, cure: str = "PLReorder or TopKOrder, which need none"
) -> NoProbabilities:
    """Make the error for an LM that gives no log-probabilities; the cure is what can be used in place of it."""
    return NoProbabilities(
        f"{purpose} needs the log-probabilities of tokens, and {lm.model} gives none: use a model and provider that "
        f"do (OpenAI's chat models, vLLM, llama.cpp), or {cure}"
    )


def asking_for_probabilities(lm: Any, lm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an LM call, and those that ask for the likeliest tokens at each position."""
    if getattr(lm, "model_type", "chat") == "text":  # Plain completions say it by a number.
        return {**lm_kwargs, "logprobs": NUM_ALTERNATIVES}
    wanted = {**getattr(lm, "kwargs", {}), **lm_kwargs}.get("top_logprobs") or 0
    return {**lm_kwargs, "logprobs": True, "top_logprobs": max(wanted, NUM_ALTERNATIVES)}


def asks_itself(lm: Any, lm_kwargs: Mapping[str, Any]) -> bool:
    """Whether the program asks for log-probabilities on its own account."""
    return bool({**getattr(lm, "kwargs", {}), **lm_kwargs}.get("logprobs"))


@contextmanager
def light_memory() -> Iterator[None]:
    """Take log-probabilities out of what LM calls in this context leave in DSPy's histories and memory cache.

    One reply of 150 tokens takes 3 MB in each. Where there is no disk cache, replies stay in the memory cache.
    """
    record = SimpleNamespace(history=[])  # DSPy writes each entry to the histories of all that are calling.
    callers, callbacks = dspy.settings.caller_modules or [], dspy.settings.callbacks or []
    try:
        with dspy.context(caller_modules=[record, *callers], callbacks=[*callbacks, _DiskOnly()]):
            yield
    finally:
        for entry in record.history:
            entry["response"] = None
            entry["outputs"] = [_without_logprobs(output) for output in entry["outputs"]]


def _without_logprobs(output: Any) -> Any:
    """Return what a history holds of a reply as it would be without log-probabilities."""
    if not isinstance(output, dict):
        return output
    rest = {name: value for name, value in output.items() if name != "logprobs"}
    return rest["text"] if rest.keys() == {"text"} else rest


class _DiskOnly(BaseCallback):  # type: ignore[misc]
    """Takes replies out of DSPy's memory cache again, where its disk cache holds them to answer the same call."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[dspy.LM, dict[str, Any]]] = {}

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Keep what was called."""
        self._calls[call_id] = (instance, inputs)

    def on_lm_end(
        self, call_id: str, outputs: dict[str, Any] | None, exception: Exception | None = None
    ) -> None:
        """Take the reply out of the memory. DSPy logs an error here, and goes on."""
        # DSPy has no public name for the key of a call. Imported here, another DSPy costs memory and no more.
        from dspy.clients.execution import IGNORED_CACHE_KEYS, prepare

        (lm, inputs), cache = self._calls.pop(call_id), dspy.cache
        if exception is not None or not (cache.enable_disk_cache and cache.enable_memory_cache):
            return
        call = prepare(lm, inputs.get("prompt"), inputs.get("messages"), inputs.get("kwargs", {}))
        for asynchronous in (False, True) if call.cache else ():
            key = cache.cache_key(call.key(lm, asynchronous), IGNORED_CACHE_KEYS)
            if key in cache.disk_cache:
                with cache._lock:
                    cache.memory_cache.pop(key, None)
