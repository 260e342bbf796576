"""LMs behind the plain completions endpoint of an OpenAI-compatible server, with no chat template in between."""

import contextlib
import functools
import math
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import dspy
import httpx
from dspy import lm15
from dspy.clients._litellm import get_litellm
from dspy.clients.engines.base import validate_request
from dspy.clients.engines.litellm_errors import litellm_errors
from dspy.utils.exceptions import LMAuthError, LMBillingError, LMConfigurationError, LMUnsupportedModelError

from plr_dspy.errors import FatalLMError

PROVIDERS = ("text-completion-openai", "hosted_vllm")
CHAT_ONLY = ("response_format", "reasoning", "probabilities", "tool_choice")  # settings that plain completions lack
SENT_AS_THEY_ARE = ("max_tokens", "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty")

_ssl_context = functools.cache(httpx.create_ssl_context)  # takes 16 ms, which every new client would spend again


# The next call would fail in the same way: stop at once.
HOPELESS = (FatalLMError, LMAuthError, LMBillingError, LMConfigurationError, LMUnsupportedModelError)


@dataclass(eq=False)
class CompletionEngine:
    """Sends a request's text as the prompt of a plain completion, for `dspy.LM(..., engine=...)`.

    The texts of the system prompt and of all messages are joined with blank lines. Other parts are refused.

    Args:
        api_base: The server's address up to its version, such as "http://127.0.0.1:8000/v1".
        model: The model's name at the server; None takes the LM's name without the provider.
        api_key: The key, kept out of `repr` and of saved programs.
        api_key_env: The environment variable that holds the key, read at each call if `api_key` is None.
        timeout: Limit of one attempt, in seconds.
        provider: How litellm routes the call: "text-completion-openai" or "hosted_vllm".
        extra_body: More fields for the request, such as a grammar.
    """

    api_base: str
    _: KW_ONLY
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_key_env: str | None = None
    timeout: float = 120.0
    provider: str = PROVIDERS[0]
    extra_body: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.api_base, str) or not self.api_base.startswith(("http://", "https://")):
            raise ValueError(f"api_base: expected one such as 'http://127.0.0.1:8000/v1', got {self.api_base!r}")
        if self.provider not in PROVIDERS:
            raise ValueError(f"provider: expected one of {PROVIDERS}, got {self.provider!r}")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise ValueError(f"timeout: expected a positive number of seconds, got {self.timeout!r}")

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Make one attempt; an LM15Error says where the server refuses, fails, or cannot be reached."""
        arguments = self._arguments(request)
        litellm = get_litellm(feature="CompletionEngine")
        with self._errors(request), httpx.Client(verify=_ssl_context()) as connection:
            reply = litellm.text_completion(client=self._client("OpenAI", connection), **arguments)
        return self._response(reply, request)

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Yield the whole response as the events of a stream."""
        yield from lm15.response_to_events(self.complete(request))

    def dump_state(self) -> dict[str, Any]:
        """Return the settings as JSON data, without the key."""
        return {name: value for name, value in vars(self).items() if name != "api_key"}

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> Any:
        """Build an engine from `dump_state`; its key comes from `api_key_env` or is a placeholder."""
        return cls(**state)

    def _client(self, name: str, connection: Any) -> Any:
        """Return a client that makes one attempt; it refuses to have no key, at which local servers do not look."""
        import openai  # which litellm imports anyway: half a second

        key = self.api_key or os.environ.get(self.api_key_env or "") or "not-needed"
        settings = {"base_url": self.api_base, "timeout": self.timeout, "max_retries": 0}
        return getattr(openai, name)(http_client=connection, api_key=key, **settings)

    def _arguments(self, request: lm15.Request) -> dict[str, Any]:
        """Return the arguments of litellm's call, without those of which DSPy has said nothing."""
        validate_request(request)
        config = request.config
        system = request.system or ()
        texts = [system] if isinstance(system, str) else [getattr(part, "text", None) for part in system]
        texts += [message.text for message in request.messages]
        more = [f"config.{name}" for name in CHAT_ONLY if getattr(config, name) is not None]
        more += ["tools"] * bool(request.tools) + ["a message part that is not text"] * (None in texts)
        if more:
            what = f"Plain completions carry text only, got {more[0]}."
            raise lm15.UnsupportedFeatureError(what, feature=more[0])
        # `metadata` only tells requests apart in DSPy's cache, see `completion_lm`.
        extensions = {name: value for name, value in (config.extensions or {}).items() if name != "metadata"}
        top_k = {} if config.top_k is None else {"top_k": config.top_k}
        arguments = {name: getattr(config, name) for name in SENT_AS_THEY_ARE} | {
            "stop": list(config.stop) or None,
            # Some servers take 0 for "none at all", where a DSPy request means "of the chosen tokens only".
            "logprobs": None if config.logprobs is None else max(1, config.logprobs),
            "user": config.user_id,
            "extra_body": {**(self.extra_body or {}), **extensions, **top_k} or None,
        }
        return {
            **{name: value for name, value in arguments.items() if value is not None},
            "model": f"{self.provider}/{self.model or request.model.removeprefix(f'{self.provider}/')}",
            "prompt": "\n\n".join(map(str, texts)),
            "timeout": self.timeout,
            "num_retries": 0,  # DSPy owns retries and the cache.
            "cache": {"no-cache": True, "no-store": True},
        }

    @contextlib.contextmanager
    def _errors(self, request: lm15.Request) -> Iterator[None]:
        """Turn litellm's errors into those of DSPy."""
        with litellm_errors(model=request.model, provider=self.provider):
            try:
                yield
            except Exception as error:
                # DSPy looks for "retry-after" in `headers`, which litellm leaves empty.
                headers = getattr(error, "headers", None) or getattr(error, "litellm_response_headers", None)
                error.headers = headers  # type: ignore[attr-defined]
                raise

    def _response(self, reply: Any, request: lm15.Request) -> lm15.Response:
        """Read the reply as one of the chat endpoint that holds the same text."""
        body = reply.model_dump()
        choice = (body.get("choices") or [{}])[0]
        if not isinstance(choice.get("text"), str):
            raise lm15.ProviderError(
                f"The reply of {self.api_base} holds no completion text; is it an OpenAI-compatible server?",
                provider=self.provider,
            )
        logprobs = choice.get("logprobs") or {}
        if logprobs.get("content") is None:  # Else it has the shape of the chat endpoint already, as llama.cpp's.
            tokens, chosen = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
            tops = logprobs.get("top_logprobs") or [None] * len(tokens)
            logprobs = {"content": []}
            for token, logprob, top in zip(tokens, chosen, tops, strict=False):
                if logprob is not None:
                    others = [{"token": other, "logprob": value} for other, value in (top or {}).items()]
                    logprobs["content"].append({"token": token, "logprob": logprob, "top_logprobs": others})
        chat_choice = {
            "message": {"role": "assistant", "content": choice["text"]},
            "finish_reason": choice.get("finish_reason"),
            "logprobs": None if request.config.logprobs is None else logprobs,
        }
        kept = {name: body.get(name) for name in ("id", "model", "usage")}
        return lm15.response_from_openai_chat({**kept, "choices": [chat_choice]}, model=request.model)


class AsyncCompletionEngine(CompletionEngine):
    """The async counterpart of `CompletionEngine`, with the same arguments, for `async_engine=`."""

    async def complete(self, request: lm15.Request) -> lm15.Response:  # type: ignore[override]
        """Make one attempt, as `CompletionEngine.complete` does."""
        arguments = self._arguments(request)
        litellm = get_litellm(feature="AsyncCompletionEngine")
        with self._errors(request):
            async with httpx.AsyncClient(verify=_ssl_context()) as connection:
                client = self._client("AsyncOpenAI", connection)
                reply = await litellm.atext_completion(client=client, **arguments)
        return self._response(reply, request)

    async def stream(self, request: lm15.Request) -> AsyncIterator[Any]:  # type: ignore[override]
        """Yield the whole response as the events of a stream."""
        for event in lm15.response_to_events(await self.complete(request)):
            yield event


def completion_lm(
    model: str,
    *,
    api_base: str,
    api_key: str | None = None,
    api_key_env: str | None = None,
    provider: str = PROVIDERS[0],
    timeout: float = 120.0,
    extra_body: dict[str, Any] | None = None,
    temperature: float | None = 0.0,
    max_tokens: int | None = 16,
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
        temperature, max_tokens, lm_kwargs: As of `dspy.LM`; an answer has 16 tokens at most.
    """
    prefix, _, rest = model.partition("/")
    if prefix in PROVIDERS:
        provider, model = prefix, rest
    if not model:
        raise ValueError("model: expected the model's name at the server, got an empty name")
    if extra_body:
        # DSPy's cache key leaves the engine out: a grammar would share answers with its absence.
        lm_kwargs.setdefault("metadata", {"extra_body": dict(extra_body)})
    settings: dict[str, Any] = {"api_key": api_key, "api_key_env": api_key_env, "timeout": timeout}
    settings |= {"api_base": api_base, "model": model, "provider": provider, "extra_body": extra_body}
    engines = {"engine": CompletionEngine(**settings), "async_engine": AsyncCompletionEngine(**settings)}
    # With the provider in its name, the LM shares no cached answer with a chat LM of the same model.
    return dspy.LM(f"{provider}/{model}", temperature=temperature, max_tokens=max_tokens, **engines, **lm_kwargs)
