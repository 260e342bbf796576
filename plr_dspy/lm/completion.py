"""LMs behind the plain completions endpoint of an OpenAI-compatible server: no chat template in between."""

from __future__ import annotations

from typing import Any

import dspy

from plr_dspy.lm.engines import PROVIDERS, AsyncCompletionEngine, CompletionEngine


def completion_lm(
    model: str,
    *,
    api_base: str,
    api_key: str | None = None,
    api_key_env: str | None = None,
    provider: str = "text-completion-openai",
    timeout: float = 120.0,
    extra_body: dict[str, Any] | None = None,
    temperature: float | None = 0.0,
    max_tokens: int | None = 16,
    cache: bool = True,
    num_retries: int = 3,
    **lm_kwargs: Any,
) -> dspy.LM:
    """Build a `dspy.LM` that sends plain prompts to a llama.cpp, vLLM or other OpenAI-compatible server.

    DSPy's cache does not know servers: two that serve one model name share cached answers. To load a saved
    program that holds this LM, pass `allow_unsafe_lm_state=True`.

    Args:
        model: The model's name at the server; a leading "hosted_vllm/" or "text-completion-openai/" is taken
            as the provider.
        api_base: The server's address up to its version, such as "http://127.0.0.1:8000/v1".
        api_key, api_key_env, provider, timeout, extra_body: See `CompletionEngine`.
        temperature: The sampling temperature.
        max_tokens: The longest answer, in tokens.
        cache: Whether DSPy caches the answers.
        num_retries: How often DSPy repeats an attempt that failed for a passing reason.
        **lm_kwargs: More arguments of `dspy.LM`.

    Returns:
        The LM, with a sync and an async engine.

    Raises:
        ValueError: If `model`, `api_base`, `provider` or `timeout` is not of these.
    """
    prefix, _, rest = model.partition("/")
    if prefix in PROVIDERS:
        provider, model = prefix, rest
    if not model:
        raise ValueError("model: expected the model's name at the server, got an empty name")
    if extra_body and "metadata" not in lm_kwargs:
        # DSPy's cache key leaves the engine out: a grammar would share answers with its absence.
        lm_kwargs["metadata"] = {"extra_body": dict(extra_body)}
    engine = CompletionEngine(
        api_base,
        model=model,
        api_key=api_key,
        api_key_env=api_key_env,
        timeout=timeout,
        provider=provider,
        extra_body=extra_body,
    )
    return dspy.LM(
        # With the provider in its name, the LM shares no cached answer with a chat LM of the same model.
        f"{provider}/{model}",
        engine=engine,
        async_engine=AsyncCompletionEngine(**vars(engine)),
        temperature=temperature,
        max_tokens=max_tokens,
        cache=cache,
        num_retries=num_retries,
        **lm_kwargs,
    )
