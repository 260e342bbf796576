"""LMs that use an OpenAI-compatible server's plain completions endpoint, without a chat template."""

from __future__ import annotations

import asyncio
import functools
import os
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

import dspy
import httpx
from dspy import lm15

from plr_dspy.dspy_compat import get_litellm, litellm_errors, validate_request
from plr_dspy.errors import UserError

Json: TypeAlias = dict[str, Any]

PROVIDERS = ("text-completion-openai", "hosted_vllm")
CHAT_SETTINGS = ("response_format", "reasoning", "probabilities", "tool_choice")
SHARED_SETTINGS = ("max_tokens", "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty")

# Creating an SSL context takes 16 ms, so all clients share the same context.
_ssl_context = functools.cache(httpx.create_ssl_context)


@dataclass(eq=False)
class CompletionEngine:
    """An engine for `dspy.LM(..., engine=...)` that requests plain text completions.

    The prompt consists of the system prompt and the messages, separated by blank lines.

    Args:
        api_base: The server's address, including the API version, such as
            "http://127.0.0.1:8000/v1".
        model: The model's name on the server. By default, the LM's name without the provider.
        api_key: The API key. It is omitted from `repr` and from saved programs.
        api_key_env: Name of the environment variable that holds the key. Each call reads this
            variable if `api_key` is None.
        timeout: Time limit per request, in seconds.
        provider: litellm's name for the provider: "text-completion-openai" or "hosted_vllm".
        extra_body: Extra request fields, such as a grammar.
    """

    api_base: str
    _: KW_ONLY
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_key_env: str | None = None
    timeout: float = 120.0
    provider: str = PROVIDERS[0]
    extra_body: Json | None = None

    def __post_init__(self) -> None:
        if not str(self.api_base).startswith(("http://", "https://")):
            raise UserError(
                f"api_base must start with http:// or https://; got {self.api_base!r}: pass an address such as "
                "'http://127.0.0.1:8000/v1'"
            )

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Send a request without retries, and return the reply. Raise an `LM15Error` if the request fails."""
        import openai  # imported late, because importing openai takes half a second

        arguments = self._arguments(request)
        litellm = get_litellm(feature="CompletionEngine")
        key = self.api_key or os.environ.get(self.api_key_env or "")
        with (
            litellm_errors(model=request.model, provider=self.provider),
            httpx.Client(verify=_ssl_context()) as connection,
        ):
            client = openai.OpenAI(
                base_url=self.api_base,
                api_key=key or "not-needed",  # The client requires a key, but local servers ignore it.
                timeout=self.timeout,
                max_retries=0,
                http_client=connection,
            )
            reply = litellm.text_completion(client=client, **arguments)
        return self._response(reply.model_dump(), request)

    def dump_state(self) -> Json:
        """Return the settings as JSON data, without the API key."""
        return {name: value for name, value in vars(self).items() if name != "api_key"}

    @classmethod
    def load_state(cls, state: Json) -> CompletionEngine:
        """Build an engine from the result of `dump_state`."""
        return cls(**state)

    def _arguments(self, request: lm15.Request) -> Json:
        """Return litellm's arguments for a request. Omit unset and empty arguments."""
        validate_request(request)
        config = request.config
        arguments: Json = {name: getattr(config, name) for name in SHARED_SETTINGS}
        arguments["stop"] = list(config.stop)
        arguments["user"] = config.user_id
        if config.logprobs is not None:
            # In DSPy, 0 requests only the chosen tokens' log-probabilities. However, some servers then
            # return no log-probabilities at all, so request at least 1 per token.
            arguments["logprobs"] = max(1, config.logprobs)
        extra_body = {**(self.extra_body or {}), **(config.extensions or {}), "top_k": config.top_k}
        # Do not send `metadata`, because `completion_lm` sets it only for DSPy's cache.
        extra_body.pop("metadata", None)
        arguments["extra_body"] = _without_empty(extra_body)
        model = self.model or request.model.removeprefix(f"{self.provider}/")
        return {
            **_without_empty(arguments),
            "model": f"{self.provider}/{model}",
            "prompt": _prompt(request),
            "timeout": self.timeout,
            "num_retries": 0,  # DSPy handles retries and the cache.
            "cache": {"no-cache": True, "no-store": True},
        }

    def _response(self, body: Json, request: lm15.Request) -> lm15.Response:
        """Convert the server's reply to a chat reply with the same text."""
        choices = body.get("choices") or [{}]
        choice = choices[0]
        if not isinstance(choice.get("text"), str):
            raise lm15.ProviderError(
                f"the reply from {self.api_base} contains no completion text: pass the address of a server with a "
                "/completions endpoint as api_base",
                provider=self.provider,
            )
        chat_choice = {
            "message": {"role": "assistant", "content": choice["text"]},
            "finish_reason": choice.get("finish_reason"),
            "logprobs": None,
        }
        if request.config.logprobs is not None:
            chat_choice["logprobs"] = _chat_logprobs(choice.get("logprobs") or {})
        chat_body = {name: body.get(name) for name in ("id", "model", "usage")}
        return lm15.response_from_openai_chat({**chat_body, "choices": [chat_choice]}, model=request.model)


class AsyncCompletionEngine(CompletionEngine):
    """A `CompletionEngine` for `dspy.LM(..., async_engine=...)`, with the same arguments."""

    async def complete(self, request: lm15.Request) -> lm15.Response:  # type: ignore[override]
        """Send a request in another thread, without retries, and return the reply."""
        return await asyncio.to_thread(super().complete, request)


def _prompt(request: lm15.Request) -> str:
    """Return the prompt as text. Raise an `UnsupportedFeatureError` if the request needs more than text."""
    unsupported = [f"config.{name}" for name in CHAT_SETTINGS if getattr(request.config, name) is not None]
    if request.tools:
        unsupported.append("tools")
    texts: list[str | None] = [message.text for message in request.messages]
    if isinstance(request.system, str):
        texts.insert(0, request.system)
    elif request.system:
        texts[:0] = [getattr(part, "text", None) for part in request.system]
    if None in texts:
        unsupported.append("message parts that are not text")
    if unsupported:
        message = f"plain completions accept text only; got {unsupported[0]}: omit {unsupported[0]}, or use a chat LM"
        raise lm15.UnsupportedFeatureError(message, feature=unsupported[0])
    return "\n\n".join(map(str, texts))


def _without_empty(settings: Json) -> Json:
    return {name: value for name, value in settings.items() if value not in (None, [], {})}


def _chat_logprobs(logprobs: Json) -> Json:
    """Return log-probabilities in the format of chat endpoints. llama.cpp already uses this format."""
    if logprobs.get("content") is not None:
        return logprobs
    tokens = logprobs.get("tokens") or []
    chosen = logprobs.get("token_logprobs") or []
    alternatives = logprobs.get("top_logprobs") or [{} for _ in tokens]
    content = []
    for token, logprob, tops in zip(tokens, chosen, alternatives, strict=False):
        if logprob is None:
            continue
        top_logprobs = [{"token": text, "logprob": value} for text, value in (tops or {}).items()]
        content.append({"token": token, "logprob": logprob, "top_logprobs": top_logprobs})
    return {"content": content}


def completion_lm(
    model: str,
    *,
    api_base: str,
    api_key: str | None = None,
    api_key_env: str | None = None,
    provider: str = PROVIDERS[0],
    timeout: float = 120.0,
    extra_body: Json | None = None,
    temperature: float | None = 0.0,
    max_tokens: int | None = 16,
    **lm_kwargs: Any,
) -> dspy.LM:
    """Build a `dspy.LM` that sends plain prompts to an OpenAI-compatible server, such as llama.cpp or vLLM.

    DSPy's cache ignores the server's address. Therefore, models with the same name on different
    servers share cached answers.

    Args:
        model: The model's name on the server. A prefix "hosted_vllm/" or
            "text-completion-openai/" sets the provider.
        api_base: The server's address, including the API version, such as
            "http://127.0.0.1:8000/v1".
        api_key, api_key_env, provider, timeout, extra_body: See `CompletionEngine`.
        temperature, max_tokens, lm_kwargs: See `dspy.LM`. By default, the temperature is 0, and
            answers have at most 16 tokens.
    """
    prefix, _, name = model.partition("/")
    if prefix in PROVIDERS:
        provider = prefix
        model = name
    if extra_body:
        # DSPy's cache key ignores the engine. Extra fields may change answers, so add them to the key.
        lm_kwargs.setdefault("metadata", {"extra_body": dict(extra_body)})
    settings: Json = {"api_base": api_base, "model": model, "api_key": api_key, "api_key_env": api_key_env}
    settings |= {"timeout": timeout, "provider": provider, "extra_body": extra_body}
    engines = {"engine": CompletionEngine(**settings), "async_engine": AsyncCompletionEngine(**settings)}
    # Put the provider in the name, so that DSPy's cache does not return a chat LM's answers.
    return dspy.LM(
        f"{provider}/{model}", temperature=temperature, max_tokens=max_tokens, **engines, **lm_kwargs
    )
