"""Keeps large replies, those with log-probabilities, on disk and out of DSPy's cache in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback


@contextmanager
def light_memory() -> Iterator[None]:
    """Take log-probabilities out of what LM calls in this context leave in DSPy's histories and memory cache.

    Where there is no disk cache, replies stay in the memory cache.
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
        lm, inputs = self._calls.pop(call_id)
        if exception is None:
            _take_out_of_memory(lm, inputs)


def _take_out_of_memory(lm: dspy.LM, inputs: dict[str, Any]) -> None:
    # DSPy has no public name for the key of a call. It is imported here so that another DSPy costs memory and no more.
    from dspy.clients.execution import IGNORED_CACHE_KEYS, prepare

    cache = dspy.cache
    if not (cache.enable_disk_cache and cache.enable_memory_cache):
        return
    call = prepare(lm, inputs.get("prompt"), inputs.get("messages"), inputs.get("kwargs", {}))
    if not call.cache:
        return
    for asynchronous in (False, True):
        key = cache.cache_key(call.key(lm, asynchronous), IGNORED_CACHE_KEYS)
        if key in cache.disk_cache:
            with cache._lock:
                cache.memory_cache.pop(key, None)
