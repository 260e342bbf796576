"""Causes outside the program that make calls fail, with the exceptions and a fix for each cause."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A cause outside the program that makes calls fail. Once it is fixed, the calls may succeed."""

    errors: tuple[str, ...]  # names of exception classes in DSPy and litellm
    fix: str  # advice for the user, shown at the end of a message
    is_fatal: bool = False  # whether every later call would fail in the same way


FEWER_DEMOS = (
    "use fewer or shorter demos, with PLFewShot(max_demos=..., max_demo_tokens=...) or --max-demos on the command "
    "line"
)

CAUSES = (
    Cause(
        ("ContextWindowExceededError",),
        f"{FEWER_DEMOS}, or increase the server's context length and repeat the failed calls with accept_changes=True",
    ),
    Cause(
        ("LMAuthError", "AuthenticationError", "PermissionDeniedError"),
        "check the key (api_key) and its access to this model",
        is_fatal=True,
    ),
    Cause(
        ("LMBillingError", "BudgetExceededError"),
        "add credit to your provider account, or increase the spending limit",
        is_fatal=True,
    ),
    Cause(
        ("LMUnsupportedModelError", "NotFoundError"),
        "check the name of the model, and check that the server at api_base serves this model",
        is_fatal=True,
    ),
    Cause(
        ("LMConfigurationError", "LMNotConfiguredError"),
        "configure the LM for its provider, for example with api_key and api_base",
        is_fatal=True,
    ),
    Cause(
        ("LMTransportError", "APIConnectionError"),
        "check that the server is running, and that api_base is the server's address",
    ),
    Cause(
        ("LMRateLimitError", "RateLimitError", "RouterRateLimitError"),
        "wait, reduce num_threads, or increase the LM's num_retries",
    ),
    Cause(
        ("LMTimeoutError", "Timeout", "APITimeoutError"),
        "check that the server is not overloaded, reduce num_threads, or increase the LM's timeout",
    ),
    Cause(
        (
            "LMServerError",
            "LMProviderError",
            "APIError",
            "APIResponseValidationError",
            "BadGatewayError",
            "InternalServerError",
            "ServiceUnavailableError",
        ),
        "check the server's log, or wait until the provider has recovered",
    ),
    Cause(
        ("LMInvalidRequestError", "BadRequestError", "InvalidRequestError", "UnprocessableEntityError"),
        "find out from the error message why the server rejected the request, and change the LM's or server's settings",
    ),
    Cause(("LMLockTimeoutError",), "stop the other process that has locked the LM's credentials"),
)

_BY_ERROR: dict[str, Cause] = {}
for _cause in CAUSES:
    _BY_ERROR |= dict.fromkeys(_cause.errors, _cause)


def cause_of(error: str) -> Cause | None:
    """Return the cause of exceptions with this class name, or None if the program or metric may be the cause."""
    return _BY_ERROR.get(error)


def main_cause(errors: Iterable[str]) -> Cause | None:
    """Return the most frequent cause of `errors`, or None if this cause is unknown or `errors` is empty."""
    causes = Counter(map(cause_of, errors))
    return causes.most_common(1)[0][0] if causes else None


def fix_for(errors: Iterable[str], *, otherwise: str) -> str:
    """Return the fix for the main cause of `errors`, or `otherwise` if `main_cause()` returns None."""
    cause = main_cause(errors)
    return otherwise if cause is None else cause.fix
